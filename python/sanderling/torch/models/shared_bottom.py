"""Shared bottom (Caruana 1997): layers that several labels share, and a small perceptron for each label."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat


class SharedBottom(nn.Module):
    """Perceptron over all fields, and a head per label."""

    def __init__(
        self,
        fields: int,
        dim: int,
        *,
        labels: int,
        dense: int = 0,
        hidden: Sequence[int] = (400, 400),
        head: Sequence[int] = (64,),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        """Take the layer sizes of the shared perceptron in `hidden`, and of each head in `head`."""
        super().__init__()
        self.row_width = dim
        self.bottom = Mlp(fields * dim + dense, hidden, score=False, dropout=dropout, batch_norm=batch_norm)
        self.heads = nn.ModuleList(
            Mlp(self.bottom.width, head, dropout=dropout, batch_norm=batch_norm) for _ in range(labels)
        )

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Map rows float32 [B, fields, dim] and dense values [B, dense] to logits [B, labels]."""
        shared = self.bottom(flat(rows, dense))
        return torch.cat([head(shared) for head in self.heads], 1)
