"""DLRM (Naumov et al. 2019): a perceptron embeds the dense values; all pairs of embeddings interact."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp


class DLRM(nn.Module):
    """Bottom perceptron over dense values, dot products of all pairs, and top perceptron over both."""

    def __init__(
        self,
        fields: int,
        dim: int,
        *,
        dense: int = 0,
        bottom: Sequence[int] = (64,),
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        """Take the hidden layer sizes of the bottom perceptron in `bottom`, and of the top one in `hidden`."""
        super().__init__()
        self.row_width = dim
        self.bottom = Mlp(dense, [*bottom, dim], dropout=dropout, batch_norm=batch_norm, score=False) if dense else None
        vectors = fields + (1 if dense else 0)
        # Indices below the diagonal: every pair once.
        below = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("below", below[0] * vectors + below[1], persistent=False)
        width = vectors * (vectors - 1) // 2 + (dim if dense else 0)
        self.top = Mlp(width, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Map rows float32 [B, fields, dim] and dense values [B, dense] to logits [B]."""
        parts: list[Tensor] = []
        if self.bottom is not None:
            assert dense is not None, "the model was made for dense values"
            below = self.bottom(dense)
            rows = torch.cat([below.unsqueeze(1), rows], 1)
            parts.append(below)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        places = self.below
        assert isinstance(places, Tensor)
        parts.append(products[:, places])
        logits: Tensor = self.top(torch.cat(parts, 1)).squeeze(1)
        return logits
