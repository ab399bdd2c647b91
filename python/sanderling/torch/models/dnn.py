"""The plainest deep click model: a multilayer perceptron over all embeddings side by side."""

from collections.abc import Sequence

from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat


class DNN(nn.Module):
    """`fields` rows of `dim` weights and `dense` numbers to a logit.

    Also the deep part of Covington et al. 2016 and of every other model here.
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
        """Sizes of the layers in `hidden`."""
        super().__init__()
        self.row_width = dim
        self.mlp = Mlp(fields * dim + dense, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, rows: Tensor, dense: Tensor | None = None) -> Tensor:
        """Rows float32 [B, fields, dim] and numbers [B, dense] to logits [B]."""
        logits: Tensor = self.mlp(flat(rows, dense)).squeeze(1)
        return logits
