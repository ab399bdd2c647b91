"""Scores of the validation rows of a run, by one trainer or shared among several."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

import sanderling
from sanderling.torch.click_model import ClickModel
from sanderling.torch.inputs import valid_source
from sanderling.torch.known_keys import KnownKeyCounts
from sanderling.torch.magnitude import cause
from sanderling.torch.pace import Pace
from sanderling.torch.run_log import SCORES_MAX, Columns, RunLog, Scores
from sanderling.torch.run_progress import log_bad_rows
from sanderling.torch.workers import Workers

if TYPE_CHECKING:
    from sanderling.torch.deep_run import DeepRun


def valid_queue(run: "DeepRun") -> sanderling.FeedQueue:
    """Return a queue over this trainer's share of the validation rows."""
    train, workers = run.config.train, run.workers
    source = replace(
        valid_source(run.config, run.spec, run.inputs.holdout),
        batch_size=run.batch_size,
        threads=train.threads,
        rank=0 if workers is None else workers.rank,
        ranks=1 if workers is None else workers.size,
    )
    return sanderling.FeedQueue(source, run.model.emb.native if run.looks_ahead else None, depth=train.depth)


def check_finite(logits: npt.NDArray[np.float32], batch: sanderling.Batch, model: ClickModel, what: str) -> None:
    """Raise DivergedError, which names the likely cause, for logits that are not finite."""
    if not np.isfinite(logits).all():
        advice = 'lower the learning rates or bound the features (type = "log")'
        raise sanderling.DivergedError(f"{what}: {cause(batch, model.numbers) or advice}")


def score_together(run: "DeepRun", log: RunLog, workers: Workers) -> Columns:
    """Score the shares of all trainers and gather them; GroupError on all trainers if one fails."""
    mine, failure = None, None
    try:
        mine = score(run, log)
    except Exception as error:
        failure = error
    told: list[Any] = [None] * workers.size
    torch.distributed.all_gather_object(told, (mine, None if failure is None else str(failure)))
    if failure is not None:
        raise failure
    for rank, (_, reason) in enumerate(told):
        if reason is not None:
            raise sanderling.GroupError(f"trainer {rank} could not validate: {reason}")
    labels, logits, weights = (np.concatenate(column) for column in zip(*(share for share, _ in told), strict=True))
    return labels, logits, weights


def score(run: "DeepRun", log: RunLog) -> Columns:
    """Score this trainer's share of the validation rows; ConfigError if they are too many to keep."""
    scores, known, further = Scores(), KnownKeyCounts(run.model.local_tables()), run.objective.further()
    run.model.eval()
    queue = valid_queue(run)
    trainers = 1 if run.workers is None else run.workers.size
    log.begin(Pace("validating", lambda: scores.rows * trainers, lambda: queue.pass_rows))
    with torch.no_grad():
        for batch in queue:
            outputs = run.model(batch)
            rows = run.objective.rows(outputs, batch)
            check_finite(rows[1], batch, run.model, "a prediction over data.valid is infinite or undefined")
            scores.add(*rows)
            further.add(outputs, batch)
            known.add(batch)
            if scores.forgotten:
                raise sanderling.ConfigError(f"data.valid: more than {SCORES_MAX:,} rows; name fewer files")
            log.progress()
    log.begin(None)
    run.further = further.metrics()
    run.tell_known(known, log)
    run.progress.valid_bad_rows = log_bad_rows(log, queue.stats())
    return scores.take()
