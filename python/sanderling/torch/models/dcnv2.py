"""DCN-V2 (Wang et al. 2021) in its parallel form: cross layers with a full matrix, and a perceptron."""

from collections.abc import Sequence

from torch import Tensor, nn

from sanderling.torch.models.dcn import DCN
from sanderling.torch.models.layers import start


class CrossMatrix(nn.Module):
    """`x' = x0 * (W x + b) + x` (equation 1), with an element-wise product."""

    def __init__(self, width: int) -> None:
        """Make a layer for vectors of `width` numbers."""
        super().__init__()
        self.weight = nn.Linear(width, width)
        start(self.weight)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        """Map the input of the first layer and of this one, both [B, width], to the output [B, width]."""
        crossed: Tensor = first * self.weight(x) + x
        return crossed


class DCNv2(DCN):
    """DCN with cross layers of a full matrix, 4 by default instead of 3."""

    cross_layer = CrossMatrix

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
        """Take the layer sizes of the perceptron in `hidden`, and the number of cross layers."""
        super().__init__(
            fields, dim, dense=dense, hidden=hidden, dropout=dropout, batch_norm=batch_norm, cross_layers=cross_layers
        )
