"""What a click model learns: one label, several labels with a shared bottom, or a number; losses and metrics.

Shapes: `B` rows, `L` labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sanderling
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.labels import Targets
from sanderling.torch.run_log import Columns, Line, Scores, metrics_of


class Objective:
    """One label: logistic loss."""

    has_plots = True
    """Whether scored rows have labels 0 or 1 and logits, which the report plots."""

    def __init__(self, config: DeepConfig, features: Sequence[Mapping[str, Any]]) -> None:
        """Take the configuration and the features of the queue's spec."""
        self.config, self.targets = config, Targets(config.labels, features)

    def loss(self, outputs: Tensor, batch: sanderling.Batch) -> tuple[Tensor, Columns]:
        """Return the mean loss of a batch and its scored rows, from the outputs of the model."""
        labels, weights = (torch.from_numpy(array).to(outputs.device) for array in (batch.labels, batch.weights))
        loss = nn.functional.binary_cross_entropy_with_logits(outputs, labels, weight=weights)
        return loss, self.rows(outputs, batch)

    def rows(self, outputs: Tensor, batch: sanderling.Batch) -> Columns:
        """Return labels, outputs and weights of the first label, all float32 [B]."""
        return batch.labels, outputs.detach().cpu().numpy(), batch.weights

    def metrics(self, rows: Columns) -> Line:
        """Return the metrics of scored rows."""
        return metrics_of(rows)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return predictions from the outputs of the model."""
        return torch.sigmoid(outputs)

    def further(self) -> "Further":
        """Return an empty collection of the scored rows of further labels."""
        return Further([])


class SeveralLabels(Objective):
    """Several labels: the sum of their logistic losses times their weights. A missing label does not count."""

    def loss(self, outputs: Tensor, batch: sanderling.Batch) -> tuple[Tensor, Columns]:
        """Return the sum over labels of the mean loss; outputs are [B, L]."""
        labels = torch.from_numpy(self.targets.classes(batch)).to(outputs.device)
        weights = torch.from_numpy(batch.weights).to(outputs.device).unsqueeze(1)
        known = ~labels.isnan()
        losses = nn.functional.binary_cross_entropy_with_logits(outputs, labels.nan_to_num(), reduction="none")
        factors = torch.tensor([label.weight for label in self.config.labels], device=outputs.device)
        # The mean over all rows, as for a single label, so that a rare label counts less.
        return (losses * known * weights * factors).sum() / len(batch), self.rows(outputs, batch)

    def rows(self, outputs: Tensor, batch: sanderling.Batch) -> Columns:
        """Return the scored rows of the first label."""
        return batch.labels, np.ascontiguousarray(outputs[:, 0].detach().cpu().numpy()), batch.weights

    def further(self) -> "Further":
        """Return an empty collection of the scored rows of all labels but the first."""
        return Further([label.name for label in self.config.labels[1:]], self.targets)


class Regression(Objective):
    """A number: mean squared error."""

    has_plots = False

    def loss(self, outputs: Tensor, batch: sanderling.Batch) -> tuple[Tensor, Columns]:
        """Return the mean squared error times the weights."""
        rows = self.rows(outputs, batch)
        # Only a skipped bad row has NaN as its weight.
        used = torch.from_numpy(np.flatnonzero(~np.isnan(batch.weights))).to(outputs.device)
        wanted, weights = (torch.from_numpy(array).to(outputs.device) for array in (rows[0], rows[2]))
        return (weights * (outputs[used] - wanted).square()).sum() / max(len(used), 1), rows

    def rows(self, outputs: Tensor, batch: sanderling.Batch) -> Columns:
        """Return numbers, outputs and weights without skipped rows; BadRowError for a row without a number."""
        used = ~np.isnan(batch.weights)
        wanted = self.targets.numbers(batch)[used, 0]
        if np.isnan(wanted).any():
            raise sanderling.BadRowError("label: a row has no number; leave such rows out")
        return wanted, outputs.detach().cpu().numpy()[used], batch.weights[used]

    def metrics(self, rows: Columns) -> Line:
        """Return `mse`, `rmse` and `mae`, weighted, and the means of outputs and numbers."""
        return regression_metrics(rows)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the outputs, which are the predictions."""
        return outputs


class Further:
    """Scored rows of the labels after the first one."""

    def __init__(self, names: Sequence[str], targets: Targets | None = None) -> None:
        """Take the names of the labels."""
        self._scores, self._targets = {name: Scores() for name in names}, targets

    def add(self, outputs: Tensor, batch: sanderling.Batch) -> None:
        """Add the rows of a batch; outputs are [B, L]. A row without a label does not count."""
        if not self._scores or self._targets is None:
            return
        classes, logits = self._targets.classes(batch)[:, 1:], outputs.cpu().numpy()[:, 1:]
        for number, scores in enumerate(self._scores.values()):
            known = ~np.isnan(classes[:, number])
            scores.add(classes[known, number], logits[known, number], batch.weights[known])

    def metrics(self) -> dict[str, float]:
        """Return AUC and logloss of each label, as `NAME.auc` and `NAME.logloss`."""
        found: dict[str, float] = {}
        for name, scores in self._scores.items():
            metrics = metrics_of(scores.take())
            found |= {f"{name}.{metric}": float(metrics[metric]) for metric in ("auc", "logloss")}
        return found


def regression_metrics(rows: Columns) -> Line:
    """Return weighted metrics of numbers and predictions; DivergedError for predictions that are not finite."""
    wanted, found, weights = (column.astype(np.float64) for column in rows)
    if not np.isfinite(found).all():
        raise sanderling.DivergedError("a prediction became infinite or undefined; lower the learning rates")
    undefined = dict.fromkeys(("auc", "logloss", "normalized_entropy"), float("nan"))
    if not weights.sum() > 0.0:
        return {"examples": len(wanted), **undefined, **dict.fromkeys(REGRESSION_METRICS, float("nan"))}
    mse = float(np.average((found - wanted) ** 2, weights=weights))
    return {
        "examples": len(wanted),
        **undefined,
        "auc_exact": True,
        "mse": mse,
        "rmse": mse**0.5,
        "mae": float(np.average(np.abs(found - wanted), weights=weights)),
        "prob_mean": float(np.average(found, weights=weights)),
        "real_mean": float(np.average(wanted, weights=weights)),
    }


REGRESSION_METRICS = ("mse", "rmse", "mae", "prob_mean", "real_mean")


def objective_of(config: DeepConfig, features: Sequence[Mapping[str, Any]]) -> Objective:
    """Return the objective of a configuration."""
    kind = Regression if config.is_regression else SeveralLabels if config.labels else Objective
    return kind(config, features)
