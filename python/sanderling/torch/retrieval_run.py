"""Training of a model of users and items: pairs with negatives in each step, validation by ranked lists."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sanderling
from sanderling.torch import negatives
from sanderling.torch.catalogue import Catalogue, Pairs
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.deep_run import DeepRun
from sanderling.torch.inputs import FileInputs, HubInputs, for_scoring
from sanderling.torch.known_keys import KnownKeyCounts
from sanderling.torch.negatives import NegativeSampler
from sanderling.torch.pace import Pace
from sanderling.torch.ragged import Ids, Ragged
from sanderling.torch.retrieval_model import ITEM, USER, RetrievalModel, ranking_of
from sanderling.torch.run_log import Columns, Line, RunLog, Scores
from sanderling.torch.run_progress import log_bad_rows
from sanderling.torch.validation import valid_queue
from sanderling.torch.workers import Workers

# Rows of a batch while items and users are collected.
_COLLECT_ROWS = 65_536


class RetrievalRun(DeepRun):
    """A run of a `RetrievalModel`."""

    model: RetrievalModel
    model_class = RetrievalModel
    looks_ahead = False

    def __init__(
        self,
        config: DeepConfig,
        run_dir: Path,
        ps: sanderling.Connection | None,
        device: str,
        inputs: FileInputs | HubInputs,
        workers: Workers | None,
        fresh: bool,
    ) -> None:
        """As `DeepRun`; a new run then collects users and items from the training files."""
        if workers is not None:
            raise sanderling.ConfigError(
                f"model.type = {config.model.type!r}: one trainer only, since negatives are drawn from what it has read"
            )
        super().__init__(config, run_dir, ps, device, inputs, workers, fresh)
        # Scores of drawn negatives are no probabilities, so they are neither plotted nor judged as such.
        self.objective.has_plots = False
        if fresh:
            users, items = self.model.features
            source = sanderling.FileSource(
                config.train_inputs,
                for_scoring(self.spec),
                batch_size=_COLLECT_ROWS,
                threads=config.train.threads,
                train=False,
                holdout=inputs.holdout,
            )
            self.use(Catalogue.collect(sanderling.FeedQueue(source), users[0], items[0], items))

    def use(self, catalogue: Catalogue) -> None:
        """Take the catalogue, new or of a checkpoint."""
        self.model.catalogue = catalogue
        self.sampler = NegativeSampler(catalogue, self.config.sampling)
        self.log_chances = torch.from_numpy(np.log(self.sampler.chances).astype(np.float32))

    def restored(self, extra: dict[str, Any]) -> None:
        """Take the catalogue of the checkpoint."""
        super().restored(extra)
        self.use(Catalogue.from_state(extra["catalogue"]))

    def extra(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {**super().extra(), "catalogue": self.model.catalogue.state()}

    def loss_of(self, batch: sanderling.Batch) -> tuple[Tensor, Columns] | None:
        """Return the loss of a batch of pairs, and positives and negatives as scored rows; None without a pair."""
        model, sampling, catalogue = self.model, self.config.sampling, self.model.catalogue
        user, item = model.features[USER][0], model.features[ITEM][0]
        pairs = Pairs(batch, user, item)
        count = len(pairs.rows)
        in_batch = sampling.by == "in_batch"
        if count == 0 or (in_batch and count == 1):
            return None
        positives = catalogue.item_ids(pairs.item_keys)
        if (positives < 0).any():
            raise sanderling.FileError("data.train: has items that were not there when the run began; start it anew")
        drawn = np.zeros((count, 0), np.int64)
        if not in_batch:
            # Equal draws for a step, also after it was resumed.
            rng = np.random.default_rng([self.config.seed, self.progress.step])
            drawn = self.sampler.draw(catalogue.user_ids(pairs.user_keys), positives, rng)
        ids = np.concatenate([positives, drawn.ravel()])
        users = {name: Ragged.of(batch, name).rows(pairs.rows) for name in model.features[USER]}
        whole = model.batch_of(users, {name: column.rows(ids) for name, column in catalogue.columns.items()})
        embedded = model.emb(whole)
        user_vectors = model.vectors(USER, embedded, whole, slice(0, count)) / self.config.model.temperature
        item_vectors = model.vectors(ITEM, embedded, whole, slice(count, None))
        if in_batch:
            scores = user_vectors @ item_vectors.T
            if sampling.correct:
                # By column, since the chance is that of the item.
                scores = scores - self.log_chances[torch.from_numpy(positives)].to(scores.device)
            positive, negative = negatives.in_batch(scores, torch.from_numpy(positives).to(scores.device))
            loss = negatives.softmax(positive, negative)
            # One negative per pair is enough to watch: that of the next pair.
            shown = negative[:, :1].masked_fill(negative[:, :1].isneginf(), 0.0)
        else:
            positive = (user_vectors * item_vectors[:count]).sum(1)
            negative = torch.einsum(
                "pd,pnd->pn", user_vectors, item_vectors[count:].view(count, -1, item_vectors.shape[1])
            )
            loss = self._loss(positive, negative, positives, drawn)
            shown = negative
        with torch.no_grad():
            logits = torch.cat([positive, shown.flatten()]).cpu().numpy()
        labels = np.r_[np.ones(count, np.float32), np.zeros(shown.numel(), np.float32)]
        return loss, (labels, logits, np.ones(len(labels), np.float32))

    def _loss(self, positive: Tensor, negative: Tensor, positives: Ids, drawn: Ids) -> Tensor:
        kind = self.config.train.loss
        if kind == "bpr":
            return negatives.bpr(positive, negative)
        if kind == "logloss":
            return negatives.logloss(positive, negative)
        chances = None
        if self.config.sampling.correct:
            of = [self.log_chances[torch.from_numpy(ids)].to(positive.device) for ids in (positives, drawn)]
            chances = of[0], of[1]
        return negatives.softmax(positive, negative, chances)

    def validate(self, log: RunLog) -> tuple[Line, Columns]:
        """Return the metrics of ranked lists for the validation pairs; the line has no scored rows."""
        queue = valid_queue(self)
        log.begin(Pace("validating", lambda: 0, lambda: queue.pass_rows))
        known = KnownKeyCounts(self.model.local_tables())
        metrics = ranking_of(self.model, queue, self.config.train.top_k, known)
        log.begin(None)
        self.tell_known(known, log)
        self.progress.valid_bad_rows = log_bad_rows(log, queue.stats())
        return {**without_scores(int(metrics.pop("users"))), **metrics}, Scores().take()


def without_scores(examples: int) -> Line:
    """Return the metrics of labelled rows where there are none."""
    undefined = dict.fromkeys(("auc", "logloss", "prob_mean", "real_mean", "normalized_entropy"), float("nan"))
    return {**undefined, "examples": examples, "auc_exact": True}
