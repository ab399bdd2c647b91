"""Learning rates of tables: what `lr` and `lr_scale` of a push come to for each. Knows no rows and no gradients."""

import math
from collections.abc import Mapping

import sanderling

Lr = float | Mapping[str, float] | None
"""A learning rate of all tables, of some by name, or each table's own."""


class Rates:
    """The learning rates of some tables, in their order."""

    def __init__(self, tables: Mapping[str, sanderling.Table | sanderling.RemoteTable]) -> None:
        """Reads the rates that the tables were made with."""
        self.own = {name: table.lr for name, table in tables.items()}
        """None for FTRL, which has none."""
        none = [name for name, lr in self.own.items() if lr is None]
        self._alphas = {name: float(tables[name].blocks[0]["optimizer"]["alpha"]) for name in none}

    def of(self, lr: Lr, lr_scale: float) -> dict[str, float]:
        """The learning rate of each table; of FTRL `alpha`, which neither changes."""
        rates = {}
        for name, own in self.own.items():
            wanted = lr.get(name) if isinstance(lr, Mapping) else lr
            rates[name] = self._alphas[name] if own is None else (own if wanted is None else wanted) * lr_scale
        return rates

    def scales(self, lr: Lr, lr_scale: float) -> list[float]:
        """Factors on the tables' own learning rates; ConfigError for an `lr` that a table cannot have."""
        if lr is None:
            return [lr_scale] * len(self.own)
        if isinstance(lr, Mapping):
            if unknown := set(lr) - set(self.own):
                raise sanderling.ConfigError(f"lr: there is no table {', '.join(sorted(unknown))}")
            return [self._scale(name, lr.get(name)) * lr_scale for name in self.own]
        return [self._scale(name, lr) * lr_scale for name in self.own]

    def _scale(self, name: str, lr: float | None) -> float:
        """The factor with which a table learns at `lr`."""
        if lr is None:
            return 1.0
        own = self.own[name]
        if own is None:
            raise sanderling.ConfigError(
                f"table {name!r}: lr = {lr}: ftrl has no lr; alpha is set when the table is made. Leave lr out"
            )
        if not (own > 0.0 and math.isfinite(lr) and lr >= 0.0):
            wanted = "a learning rate is a finite number from 0 on" if own > 0.0 else "the table was made with lr = 0"
            raise sanderling.ConfigError(f"table {name!r}: lr = {lr}: {wanted}")
        return lr / own
