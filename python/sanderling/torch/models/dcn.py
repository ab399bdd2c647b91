"""Deep & Cross Network (Wang et al. 2017): explicit feature crosses of bounded degree and a perceptron."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat, start


class Cross(nn.Module):
    """`x' = x0 (x . w) + b + x` (equation 3): each layer raises the degree by one and has one weight vector."""

    def __init__(self, width: int) -> None:
        """Make a layer for vectors of `width` numbers."""
        super().__init__()
        self.weight = nn.Linear(width, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))
        start(self.weight)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        """Map the input of the first layer and of this one, both [B, width], to the output [B, width]."""
        crossed: Tensor = first * self.weight(x) + self.bias + x
        return crossed


class DCN(nn.Module):
    """Cross layers and a perceptron in parallel; a linear layer combines both to a logit."""

    cross_layer: type[nn.Module] = Cross

    def __init__(
        self,
        fields: int,
        dim: int,
        *,
        dense: int = 0,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        batch_norm: bool = False,
        cross_layers: int = 3,
    ) -> None:
        """Take the layer sizes of the perceptron in `hidden`, and the number of cross layers."""
        super().__init__()
        self.row_width = dim
        width = fields * dim + dense
        self.cross = nn.ModuleList(self.cross_layer(width) for _ in range(cross_layers))
        self.deep = Mlp(width, hidden, dropout=dropout, batch_norm=batch_norm, score=False)
        self.score = nn.Linear(width + self.deep.width, 1)
        start(self.score)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Map rows float32 [B, fields, dim] and dense values [B, dense] to logits [B]."""
        first = x = flat(rows, dense)
        for cross in self.cross:
            x = cross(first, x)
        logits: Tensor = self.score(torch.cat([x, self.deep(first)], 1)).squeeze(1)
        return logits
