"""Wide & Deep (Cheng et al. 2016): a linear model, which memorizes, and a perceptron, which generalizes."""

from collections.abc import Sequence

from torch import Tensor, nn

from sanderling.torch.models.layers import Linear, Mlp, flat


class WideDeep(nn.Module):
    """Wide & Deep; a row has `dim + 1` weights: the weight of the key in the wide part, then its embedding.

    Both parts use all features. The wide part gains most from crossed features (`type = "cross"` in the spec).
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
        """Take the layer sizes of the deep part in `hidden`."""
        super().__init__()
        self.row_width = dim + 1
        self.wide = Linear(dense)
        self.deep = Mlp(fields * dim + dense, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Map rows float32 [B, fields, dim + 1] and dense values [B, dense] to logits [B]."""
        wide: Tensor = self.wide(rows[:, :, 0], dense)
        deep: Tensor = self.deep(flat(rows[:, :, 1:], dense)).squeeze(1)
        return wide + deep
