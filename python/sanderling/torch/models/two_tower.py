"""Models of users and items, whose vectors have the score as dot product (Huang et al. 2013, Rendle et al. 2009)."""

from collections.abc import Sequence

from torch import Tensor, nn

from sanderling.torch.models.layers import Mlp, flat


class Tower(nn.Module):
    """Perceptron over the fields of one side; the last width is that of the vector."""

    def __init__(self, width: int, hidden: Sequence[int], *, dropout: float = 0.0, batch_norm: bool = False) -> None:
        """Make layers of `hidden` units over `width` inputs; the last one is linear."""
        super().__init__()
        self.layers = Mlp(width, hidden[:-1], dropout=dropout, batch_norm=batch_norm, score=False)
        self.vector = nn.Linear(self.layers.width, hidden[-1])
        nn.init.xavier_normal_(self.vector.weight)
        nn.init.zeros_(self.vector.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs [B, width] to vectors [B, hidden[-1]]."""
        vectors: Tensor = self.vector(self.layers(inputs))
        return vectors


class TwoTower(nn.Module):
    """A tower for users and one for items, over all their fields."""

    def __init__(
        self,
        fields: tuple[int, int],
        dim: int,
        *,
        dense: tuple[int, int] = (0, 0),
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
        normalize: bool = False,
    ) -> None:
        """Take the number of fields and dense values of users and items; `normalize` makes vectors of length 1."""
        super().__init__()
        self.row_width, self.normalize = dim, normalize
        self.towers = nn.ModuleList(
            Tower(count * dim + numbers, hidden, dropout=dropout, batch_norm=batch_norm)
            for count, numbers in zip(fields, dense, strict=True)
        )

    def forward(self, side: int, rows: Tensor, dense: Tensor | None) -> Tensor:
        """Map rows float32 [B, fields, dim] and dense values of one side (0 users, 1 items) to vectors [B, D]."""
        vectors: Tensor = self.towers[side](flat(rows, dense))
        return nn.functional.normalize(vectors) if self.normalize else vectors


class MF(nn.Module):
    """Matrix factorization: the row of a user or item is its vector. Has no dense parameters."""

    def __init__(self, fields: tuple[int, int], dim: int, *, dense: tuple[int, int] = (0, 0)) -> None:
        """Take one field of users and one of items; ValueError for more, or for dense values."""
        super().__init__()
        if fields != (1, 1) or dense != (0, 0):
            raise ValueError("mf has one feature of users and one of items, both with keys; take two_tower")
        self.row_width = dim

    def forward(self, side: int, rows: Tensor, dense: Tensor | None) -> Tensor:
        """Return the only row of each sample, [B, 1, dim] to [B, dim]."""
        del side, dense
        return rows.squeeze(1)
