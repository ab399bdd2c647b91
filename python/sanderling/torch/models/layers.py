"""Layers shared by the click models.

Shapes: `B` samples, `F` fields, `D` weights of a field's row, `N` dense values.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Mlp(nn.Sequential):
    """Multilayer perceptron: hidden layers with optional batch norm, ReLU and dropout; then one unit if `score`."""

    def __init__(
        self, width: int, hidden: Sequence[int], *, dropout: float = 0.0, batch_norm: bool = False, score: bool = True
    ) -> None:
        """Make layers of `hidden` units over `width` inputs.

        Initial weights are normal as in Glorot and Bengio 2010, biases are 0.
        """
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
    """Initialize a linear layer (Glorot normal weights, biases 0); other layers are unchanged."""
    if isinstance(layer, nn.Linear):
        nn.init.xavier_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def flat(rows: Tensor, dense: Tensor | None) -> Tensor:
    """Concatenate the rows [B, F, D] of all fields and dense values [B, N] to [B, F * D + N]."""
    side_by_side = rows.flatten(1)
    return side_by_side if dense is None else torch.cat([side_by_side, dense], 1)


class Linear(nn.Module):
    """Linear part of a score: a bias, a weight per key (the first column of its row), and one per dense value."""

    def __init__(self, dense: int = 0) -> None:
        """Take the number of dense values, N."""
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.weight = nn.Parameter(torch.zeros(dense)) if dense else None

    def forward(self, weights: Tensor, dense: Tensor | None) -> Tensor:
        """Map weights of keys [B, F] and dense values [B, N] to scores [B]."""
        score: Tensor = weights.sum(1) + self.bias
        return score if dense is None or self.weight is None else score + dense @ self.weight


def pairs(rows: Tensor) -> Tensor:
    """Sum the dot products of all pairs of fields, [B, F, D] to [B] (Rendle 2010, lemma 3.1)."""
    return 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1)
