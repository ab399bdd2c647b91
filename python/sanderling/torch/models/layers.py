"""Layers that several click models share. They know neither tables nor training.

Shapes: `B` samples, `F` fields, `D` weights of a field's row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Mlp(nn.Sequential):
    """Layers of `hidden` units, each with batch norm if asked, ReLU and dropout; then one unit, if `score`."""

    def __init__(
        self, width: int, hidden: Sequence[int], *, dropout: float = 0.0, batch_norm: bool = False, score: bool = True
    ) -> None:
        """Takes `width` inputs; weights start as Glorot and Bengio 2010 have it, biases at zero."""
        layers: list[nn.Module] = []
        for units in hidden:
            layers.append(nn.Linear(width, units))
            if batch_norm:
                layers.append(nn.BatchNorm1d(units))
            layers.append(nn.ReLU())
            if dropout > 0.0:
                layers.append(nn.Dropout(dropout))
            width = units
        if score:
            layers.append(nn.Linear(width, 1))
        super().__init__(*layers)
        self.width = 1 if score else width
        for layer in layers:
            start(layer)


def start(layer: nn.Module) -> None:
    """First weights of a linear layer; others are left as they are."""
    if isinstance(layer, nn.Linear):
        nn.init.xavier_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def flat(rows: Tensor, dense: Tensor | None) -> Tensor:
    """Rows [B, F, D] of all fields side by side, dense values [B, N] after them: [B, F * D + N]."""
    side_by_side = rows.flatten(1)
    return side_by_side if dense is None else torch.cat([side_by_side, dense], 1)


class Linear(nn.Module):
    """The linear part of a score: a weight per key, which stands in the first column of its row, and a bias.

    Dense values, N of them, have weights of their own.
    """

    def __init__(self, dense: int = 0) -> None:
        """`dense` is N."""
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.weight = nn.Parameter(torch.zeros(dense)) if dense else None

    def forward(self, weights: Tensor, dense: Tensor | None) -> Tensor:
        """Weights [B, F] and dense values [B, N] to scores [B]."""
        score: Tensor = weights.sum(1) + self.bias
        return score if dense is None or self.weight is None else score + dense @ self.weight


def pairs(rows: Tensor) -> Tensor:
    """The sum of the products of all pairs of fields, [B, F, D] to [B] (Rendle 2010, lemma 3.1)."""
    return 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1)
