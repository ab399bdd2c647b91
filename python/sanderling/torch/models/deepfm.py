"""DeepFM (Guo et al. 2017): a factorization machine and a perceptron over the same embeddings."""

from collections.abc import Sequence

from torch import Tensor, nn

from sanderling.torch.models.layers import Linear, Mlp, flat, pairs


class DeepFM(nn.Module):
    """DeepFM; a row has `dim + 1` weights: the linear weight of the key, then its factors, also its embedding."""

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
        """Take the layer sizes of the perceptron in `hidden`."""
        super().__init__()
        self.row_width = dim + 1
        self.linear = Linear(dense)
        self.deep = Mlp(fields * dim + dense, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Map rows float32 [B, fields, dim + 1] and dense values [B, dense] to logits [B]."""
        factors = rows[:, :, 1:]
        linear: Tensor = self.linear(rows[:, :, 0], dense)
        deep: Tensor = self.deep(flat(factors, dense)).squeeze(1)
        return linear + pairs(factors) + deep
