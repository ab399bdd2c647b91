"""Wide & Deep (Cheng et al. 2016): a linear model that memorises beside a perceptron that generalises."""

from collections.abc import Sequence

from torch import Tensor, nn

from sanderling.torch.models.layers import Linear, Mlp, flat


class WideDeep(nn.Module):
    """Rows have `dim + 1` weights: the key's own in the wide part, then its embedding.

    The wide part sees the same features as the deep one; crossed features (`type = "cross"` in the spec) are what it is
    good at.
    """

    def __init__(
        self,
        fields: int,
        dim: int,
        *,
        dense: int = 0,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        """Sizes of the deep part's layers in `hidden`."""
        super().__init__()
        self.row_width = dim + 1
        self.wide = Linear(dense)
        self.deep = Mlp(fields * dim + dense, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Rows float32 [B, fields, dim + 1] and numbers [B, dense] to logits [B]."""
        wide: Tensor = self.wide(rows[:, :, 0], dense)
        deep: Tensor = self.deep(flat(rows[:, :, 1:], dense)).squeeze(1)
        return wide + deep
