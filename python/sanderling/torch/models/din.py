"""Deep Interest Network (Zhou et al. 2018): attention of a candidate to the steps of a history."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat


class Attention(nn.Module):
    """Attention weight per step of a history, from step, candidate, their difference and their product.

    As in the paper, the weights are not normalized: their sum is the strength of the interest.
    """

    def __init__(self, dim: int, hidden: Sequence[int] = (64, 16)) -> None:
        """Make an attention unit for rows of `dim` weights, with the layer sizes `hidden`."""
        super().__init__()
        self.mlp = Mlp(4 * dim, hidden)

    def forward(self, candidate: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        """Map candidates [B, D], histories [B, L, D] and their mask, bool [B, L], to interests [B, D]."""
        wide = candidate.unsqueeze(1).expand_as(history)
        weights = self.mlp(torch.cat([history, wide, history - wide, history * wide], 2)).squeeze(2)
        interest: Tensor = torch.bmm((weights * mask).unsqueeze(1), history).squeeze(1)
        return interest


class DIN(nn.Module):
    """Interest of a history in the candidate, then a perceptron over the interest and all fields.

    `candidate` is the index of the candidate's field; its feature and the history share a table.
    """

    def __init__(
        self,
        fields: int,
        dim: int,
        *,
        candidate: int,
        dense: int = 0,
        hidden: Sequence[int] = (200, 80),
        attention: Sequence[int] = (64, 16),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        """Take the layer sizes of the perceptron in `hidden`, and of the attention unit in `attention`."""
        super().__init__()
        self.row_width = dim
        self.candidate = candidate
        self.attention = Attention(dim, attention)
        self.mlp = Mlp((fields + 1) * dim + dense, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None, history: Tensor, mask: Tensor) -> Tensor:
        """Map rows float32 [B, fields, dim], dense [B, dense], history [B, L, dim], mask bool [B, L] to logits [B]."""
        interest = self.attention(rows[:, self.candidate], history, mask)
        logits: Tensor = self.mlp(flat(torch.cat([rows, interest.unsqueeze(1)], 1), dense)).squeeze(1)
        return logits
