"""DCN-V2 (Wang et al. 2021) in its parallel form: cross layers with a whole matrix beside a perceptron."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat, start


class CrossMatrix(nn.Module):
    """`x' = x0 * (W x + b) + x` (equation 1), the product taken coordinate by coordinate."""

    def __init__(self, width: int) -> None:
        """For vectors of `width`."""
        super().__init__()
        self.weight = nn.Linear(width, width)
        start(self.weight)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        """The input of the first layer and of this one, both [B, width]."""
        crossed: Tensor = first * self.weight(x) + x
        return crossed


class DCNv2(nn.Module):
    """Cross layers and perceptron in parallel; one linear layer makes a logit of both."""

    def __init__(
        self,
        fields: int,
        dim: int,
        *,
        dense: int = 0,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        batch_norm: bool = False,
        cross_layers: int = 4,
    ) -> None:
        """Sizes of the perceptron's layers in `hidden`."""
        super().__init__()
        self.row_width = dim
        width = fields * dim + dense
        self.cross = nn.ModuleList(CrossMatrix(width) for _ in range(cross_layers))
        self.deep = Mlp(width, hidden, dropout=dropout, batch_norm=batch_norm, score=False)
        self.score = nn.Linear(width + self.deep.width, 1)
        start(self.score)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Rows float32 [B, fields, dim] and numbers [B, dense] to logits [B]."""
        first = x = flat(rows, dense)
        for cross in self.cross:
            x = cross(first, x)
        logits: Tensor = self.score(torch.cat([x, self.deep(first)], 1)).squeeze(1)
        return logits
