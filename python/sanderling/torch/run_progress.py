"""Progress of a deep run: the counters and metrics that a checkpoint keeps, and how they are updated.

`sanderling.torch.deep_run` has the loop that updates them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sanderling.torch.run_log import Line, RunLog


@dataclass
class Progress:
    """Counters and metrics of a run; a checkpoint has them in its `extra`."""

    step: int = 0
    """Completed steps."""
    examples: int = 0
    """Trained samples of all trainers together."""
    passes: int = 0
    """Completed passes."""
    unjudged: bool = False
    """Whether the last completed pass still has to be validated."""
    used_rows: int = 0
    """Rows used in the current pass by all trainers together. Hubs count the rows that they have served themselves."""
    pass_rows: int = 0
    """Rows of the last completed pass; 0: unknown."""
    train_s: float = 0.0
    """Training time in seconds, without validation and saving."""
    wait_s: float = 0.0
    """Part of `train_s` spent waiting for minibatches."""
    best: Line | None = None
    """Metrics of the best validation; None before the first."""
    best_pass: int = 0
    """Number of the best pass, from 1; without validation, of the last pass."""
    plateaus: int = 0
    """Number of validations without improvement since the start."""
    idle: int = 0
    """Number of validated passes since the best one."""
    bad_rows: int = 0
    """Bad rows of the training files skipped in the last pass; for hubs, see their own statistics."""
    valid_bad_rows: int = 0
    """Bad rows of the validation files skipped in the last validation."""
    first: Line = field(default_factory=dict)
    """Metrics of the training rows of the first pass, each scored before it was learned from."""
    last: Line = field(default_factory=dict)
    """Metrics of the training rows of the last pass; from the second pass on, the model has seen these rows before."""

    def measure(self, metrics: Line) -> None:
        """Store the metrics of the training rows of the current pass."""
        self.last = metrics
        if self.passes == 0:
            self.first = metrics


def log_bad_rows(log: RunLog, stats: Mapping[str, Any]) -> int:
    """Return the number of bad rows in the statistics of a queue; logs it with the first reason if there are any."""
    if stats["bad_rows"]:
        log.say(f"{stats['bad_rows']:,} bad rows were skipped; the first: {stats['bad_row_messages'][0]}")
    return int(stats["bad_rows"])


def merge_stages(before: list[Line], stages: list[Line]) -> list[Line]:
    """Return `stages` with seconds and counts of the equally named stages `before` added, and their share of time."""
    earlier = {stage["name"]: stage for stage in before}
    none = {"seconds": 0.0, "count": 0}
    added = [{**stage, **{key: stage[key] + earlier.get(stage["name"], none)[key] for key in none}} for stage in stages]
    total = sum(stage["seconds"] for stage in added)
    return [{**stage, "share": stage["seconds"] / total if total > 0.0 else 0.0} for stage in added]


def improves(monitor: str, new: Line, best: Line) -> bool:
    """Return whether the validation `new` is better than `best` by the metric `monitor`."""
    if monitor not in ("auc", "logloss"):
        return bool(new[monitor] < best[monitor] if monitor in ("mse", "rmse", "mae") else new[monitor] > best[monitor])
    # AUC is NaN with a single class. Then the loss decides; otherwise the first pass would always stay the best.
    if monitor == "auc" and np.isfinite(new["auc"]) and np.isfinite(best["auc"]):
        return bool(new["auc"] > best["auc"])
    return bool(new["logloss"] < best["logloss"])
