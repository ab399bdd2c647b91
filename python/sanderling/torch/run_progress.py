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
    """Where a run is; what a checkpoint keeps of it."""

    step: int = 0
    examples: int = 0
    passes: int = 0
    """Completed passes."""
    unjudged: bool = False
    """Whether the last of them could not be validated yet."""
    used_rows: int = 0
    """Of the pass under way, by all trainers together; over hubs they know it."""
    pass_rows: int = 0
    """Of the last whole pass; 0: none is known."""
    train_s: float = 0.0
    wait_s: float = 0.0
    """Of `train_s`, what was spent waiting for minibatches."""
    best: Line | None = None
    """The best validation."""
    best_pass: int = 0
    plateaus: int = 0
    """Validations that did not improve, in all."""
    idle: int = 0
    """Passes since the best one."""
    bad_rows: int = 0
    """Rows of the files that were left out as bad in the last pass; of hubs, these know it."""
    valid_bad_rows: int = 0
    """Of the validation files, in the last validation."""
    first: Line = field(default_factory=dict)
    """Metrics of the training rows of the first pass, each scored before it was learned from."""
    last: Line = field(default_factory=dict)
    """Metrics of the training rows of the last pass; after the first one, earlier passes have learned from them."""

    def measure(self, metrics: Line) -> None:
        """Keeps the metrics of the training rows of the pass under way."""
        self.last = metrics
        if self.passes == 0:
            self.first = metrics


def log_bad_rows(log: RunLog, stats: Mapping[str, Any]) -> int:
    """How many rows a queue has left out, by its statistics; says so."""
    if stats["bad_rows"]:
        log.say(f"{stats['bad_rows']:,} bad rows were skipped; the first: {stats['bad_row_messages'][0]}")
    return int(stats["bad_rows"])


def merge_stages(before: list[Line], stages: list[Line]) -> list[Line]:
    """The times of stages together, and the share of each."""
    earlier = {stage["name"]: stage for stage in before}
    none = {"seconds": 0.0, "count": 0}
    added = [{**stage, **{key: stage[key] + earlier.get(stage["name"], none)[key] for key in none}} for stage in stages]
    total = sum(stage["seconds"] for stage in added)
    return [{**stage, "share": stage["seconds"] / total if total > 0.0 else 0.0} for stage in added]


def improves(monitor: str, new: Line, best: Line) -> bool:
    """Whether a validation is better than the best one before."""
    # One class has no AUC: then the loss decides, rather than the first pass for ever.
    if monitor == "auc" and np.isfinite(new["auc"]) and np.isfinite(best["auc"]):
        return bool(new["auc"] > best["auc"])
    return bool(new["logloss"] < best["logloss"])
