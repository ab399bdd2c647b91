"""DNN: a multilayer perceptron over the concatenated embeddings of all fields."""

from collections.abc import Sequence

from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat


class DNN(nn.Module):
    """Multilayer perceptron over `fields` rows of `dim` weights and `dense` numbers.

    Its structure is that of the deep part of Covington et al. 2016, and of the perceptrons of the other models here.
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
        """Take the layer sizes in `hidden`."""
        super().__init__()
        self.row_width = dim
        self.mlp = Mlp(fields * dim + dense, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Map rows float32 [B, fields, dim] and dense values [B, dense] to logits [B]."""
        logits: Tensor = self.mlp(flat(rows, dense)).squeeze(1)
        return logits
