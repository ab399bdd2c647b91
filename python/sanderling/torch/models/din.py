"""Deep Interest Network (Zhou et al. 2018): a history weighed by how much each step has to do with the candidate."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat


class Attention(nn.Module):
    """A weight for each step of a history, from step, candidate, their difference and product.

    As in the paper the weights are not normalised: their sum says how strong the interest is.
    """

    def __init__(self, dim: int, hidden: Sequence[int] = (64, 16)) -> None:
        """For rows of `dim` weights."""
        super().__init__()
        self.mlp = Mlp(4 * dim, hidden)

    def forward(self, candidate: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        """Candidates [B, D], histories [B, L, D] and where they have steps, bool [B, L], to interests [B, D]."""
        wide = candidate.unsqueeze(1).expand_as(history)
        weights = self.mlp(torch.cat([history, wide, history - wide, history * wide], 2)).squeeze(2)
        interest: Tensor = torch.bmm((weights * mask).unsqueeze(1), history).squeeze(1)
        return interest


class DIN(nn.Module):
    """The interest that a history shows in the candidate, then a perceptron over it and all fields.

    `candidate` is the place of the candidate's field; its feature and the history share a table.
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
        """Sizes of the layers in `hidden`, and of those that weigh steps in `attention`."""
        super().__init__()
        self.row_width = dim
        self.candidate = candidate
        self.attention = Attention(dim, attention)
        self.mlp = Mlp((fields + 1) * dim + dense, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None, history: Tensor, mask: Tensor) -> Tensor:
        """Rows float32 [B, fields, dim], numbers [B, dense], history [B, L, dim] and mask bool [B, L] to logits [B]."""
        interest = self.attention(rows[:, self.candidate], history, mask)
        logits: Tensor = self.mlp(flat(torch.cat([rows, interest.unsqueeze(1)], 1), dense)).squeeze(1)
        return logits
