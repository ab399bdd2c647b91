"""Scores of the rows of files by a saved model, batch by batch, as `sanderling eval` and `predict` take them.

The native command has the options, the progress and the output (crates/cli/src/deep.rs).
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

import sanderling
from sanderling.torch.click_model import ClickModel
from sanderling.torch.inputs import for_scoring, no_rows
from sanderling.torch.known_keys import KnownKeyCounts
from sanderling.torch.labels import without_labels
from sanderling.torch.magnitude import cause
from sanderling.torch.objective import REGRESSION_METRICS, objective_of
from sanderling.torch.retrieval_model import RetrievalModel, ranking_of
from sanderling.torch.run_log import Scores
from sanderling.torch.saved_model import open_model

# Rows of a batch.
_BATCH_ROWS = 4096


class FileScores:
    """An open model, and the scores of the rows of files in their order."""

    def __init__(
        self,
        directory: str | Path,
        ps: sanderling.Connection | str | None = None,
        *,
        device: str = "cpu",
        batch_size: int = _BATCH_ROWS,
    ) -> None:
        """Open a saved model, with its tables in this process or on servers as they are now; errors as `open_model`."""
        self._use(*open_model(directory, device=device, ps=ps), batch_size)

    @classmethod
    def of(cls, model: ClickModel, spec: dict[str, Any]) -> Self:
        """Return the scores of a model that is open already."""
        made = cls.__new__(cls)
        made._use(model, spec, _BATCH_ROWS)
        return made

    def _use(self, model: ClickModel, spec: dict[str, Any], batch_size: int) -> None:
        self.model, self._spec = model, spec
        self.reading: dict[str, Any] = self._spec["data"]
        """How the files of the run were read."""
        self._known = KnownKeyCounts(self.model.local_tables())
        self._objective = objective_of(self.model.config, self._spec["feature"])
        self._further, self._numbers = self._objective.further(), Scores()
        self._batch_size = batch_size
        self.first_label_only = True
        """Whether predictions are those of the first of several labels, [rows], or of all, [rows, labels]."""
        self._files: Any = []
        self._rows, self._is_labelled = 0, False
        self._queue: sanderling.FeedQueue | None = None

    def begin(
        self,
        files: Any,  # noqa: ANN401, as FileSource takes it
        reading: dict[str, Any],
        threads: int,
        is_labelled: bool,
    ) -> None:
        """Begin with these files, or rows in memory, read by `threads` threads.

        With `is_labelled`, rows need labels, scores are logits, and skipped rows are left out. Otherwise scores are
        predictions, NaN for a skipped row. A model of users and items has metrics of ranked lists in place of labelled
        rows, and its predictions are the scores of pairs.
        """
        self._files, self._is_labelled, self._rows = files, is_labelled, 0
        source = sanderling.FileSource(
            files,
            {**for_scoring(self._spec if is_labelled else without_labels(self._spec)), "data": reading},
            batch_size=self._batch_size,
            threads=threads,
            train=is_labelled and self.model.config.reads_classes,
        )
        self._queue = sanderling.FeedQueue(source, self.model.emb.native)

    @torch.no_grad()
    def take(self) -> dict[str, Any] | None:
        """Return `labels`, `scores` and `weights` of the next rows, float32 [rows], and `rows_total`; None at the end.

        `rows_total` is the estimated number of rows of all files. Raises NoRowsError for files without a row, and
        DivergedError for a row without a finite score.
        """
        assert self._queue is not None
        if self._is_labelled and isinstance(self.model, RetrievalModel):
            return None  # `end` ranks all items instead
        batch = next(self._queue, None)
        if batch is None:
            if self._is_labelled and self._rows == 0:
                raise no_rows([_shown(self._files)], self._queue)
            return None
        outputs = self.model(batch)
        is_click = not isinstance(self.model, RetrievalModel)
        found = outputs if self._is_labelled or not is_click else self._objective.predictions(outputs)
        scores, weights = found.cpu().numpy(), batch.weights
        # Only a skipped bad row has NaN as its weight.
        is_skipped = np.isnan(weights)
        if (wrong := np.flatnonzero(~np.isfinite(scores).reshape(len(batch), -1).all(1) & ~is_skipped)).size:
            why = cause(batch, self.model.numbers) or "the model has diverged; train it with lower learning rates"
            which = self._rows + int(wrong[0]) + 1
            raise sanderling.DivergedError(f"{_shown(self._files)}: the prediction of row {which} is undefined: {why}")
        scores[is_skipped] = np.nan
        self._known.add(batch)
        self._rows += len(batch)
        labels = batch.labels
        if self._is_labelled:
            self._further.add(outputs, batch)
            labels, scores, weights = self._objective.rows(outputs, batch)
            if not self._objective.has_plots:
                self._numbers.add(labels, scores, weights)
                labels, scores, weights = labels[:0], scores[:0], weights[:0]
        elif self.first_label_only and scores.ndim > 1:
            scores = np.ascontiguousarray(scores[:, 0])
        return {"labels": labels, "scores": scores, "weights": weights, "rows_total": self._queue.pass_rows}

    def ranking(self, files: str | Path | list[str], top_k: Sequence[int] | None = None) -> dict[str, float]:
        """Return metrics of ranked lists for the pairs of files, as `sanderling.ranking_metrics`.

        `top_k` is by default that of the configuration. Raises ConfigError for a model without users and items.
        """
        if not isinstance(self.model, RetrievalModel):
            raise sanderling.ConfigError(f"{self.model.config.model.type} has no users and items to rank; see eval")
        self.begin(_inputs(files), self.reading, 2, is_labelled=True)
        assert self._queue is not None
        return ranking_of(self.model, self._queue, top_k or self.model.config.train.top_k, self._known)

    def remarks(self) -> list[str]:
        """Return a remark on each feature of which no key has a row."""
        return self._known.remarks()

    def end(self) -> dict[str, Any]:
        """Return facts about the scored rows and the tables."""
        stats: dict[str, Any] = {"bad_rows": 0, "bad_row_messages": []}
        metrics: dict[str, float] = {}
        if self._queue is not None:
            if self._is_labelled and isinstance(self.model, RetrievalModel):
                metrics = ranking_of(self.model, self._queue, self.model.config.train.top_k, self._known)
            stats = self._queue.stats()
            self._queue.close()
        metrics |= self._further.metrics()
        if self._numbers.rows:
            found = self._objective.metrics(self._numbers.take())
            metrics |= {name: found[name] for name in ("examples", *REGRESSION_METRICS)}
        tables = self.model.emb.tables.values()
        return {
            "known": [(name, *counts) for name, counts in self._known.counts.items()],
            "rows": sum(len(table) for table in tables),
            "table_bytes": sum(table.bytes for table in tables),
            "bad_rows": stats["bad_rows"],
            "bad_row_messages": stats["bad_row_messages"],
            "metrics": list(metrics.items()),
        }


def predict(
    directory: str | Path,
    source: Any,  # noqa: ANN401, as FileSource takes it
    *,
    batch_size: int = 4096,
    device: str = "cpu",
    ps: sanderling.Connection | str | None = None,
) -> npt.NDArray[np.float32]:
    """Predict a probability per row of files, or of rows in memory such as a frame, float32 [rows], in their order.

    A regression predicts numbers, and a model of users and items scores; several labels give float32 [rows, labels].
    `batch_size` is in rows. A skipped bad row (`data.on_bad_row` of the run) gives NaN. With `ps`, rows are read from
    the servers. A UserWarning names features without any known key. Errors as in `open_model`, and DivergedError for a
    row without a finite prediction.
    """
    scores = FileScores(directory, ps, device=device, batch_size=batch_size)
    scores.begin(_inputs(source), scores.reading, 2, is_labelled=False)
    scores.first_label_only = False
    labels = len(scores.model.config.labels)
    parts = [np.zeros((0, labels) if labels else 0, np.float32)]
    while (rows := scores.take()) is not None:
        parts.append(rows["scores"])
    for remark in scores.remarks():
        warnings.warn(remark, UserWarning, stacklevel=2)
    return np.concatenate(parts)


def _inputs(source: Any) -> Any:  # noqa: ANN401, paths or rows in memory
    """Return a path or a list of paths as a list of text; rows in memory as they are."""
    if isinstance(source, str | Path):
        return [str(source)]
    if isinstance(source, list | tuple) and all(isinstance(name, str | Path) for name in source):
        return [str(name) for name in source]
    return source


def _shown(source: Any) -> str:  # noqa: ANN401
    """Return the inputs as an error names them."""
    is_named = isinstance(source, list) and all(isinstance(name, str) for name in source)
    return ", ".join(source) if is_named else "the rows"
