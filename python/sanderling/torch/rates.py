"""Learning rates of several tables: conversion of `lr` and `lr_scale` to a rate or a factor per table."""

import math
from collections.abc import Mapping

import sanderling

Lr = float | Mapping[str, float] | None
"""A learning rate for all tables, rates by table name, or None: each table's own rate."""


class Rates:
    """Learning rates of several tables, in the order of the tables."""

    def __init__(self, tables: Mapping[str, sanderling.Table | sanderling.RemoteTable]) -> None:
        """Read the learning rates that the tables were made with."""
        self.own = {name: table.lr for name, table in tables.items()}
        """Own rate by table; None for FTRL, which has no `lr`."""
        none = [name for name, lr in self.own.items() if lr is None]
        self._alphas = {name: float(tables[name].blocks[0]["optimizer"]["alpha"]) for name in none}

    def of(self, lr: Lr, lr_scale: float) -> dict[str, float]:
        """Return the learning rate of each table; for FTRL `alpha`, which neither argument changes."""
        rates = {}
        for name, own in self.own.items():
            wanted = lr.get(name) if isinstance(lr, Mapping) else lr
            rates[name] = self._alphas[name] if own is None else (own if wanted is None else wanted) * lr_scale
        return rates

    def scales(self, lr: Lr, lr_scale: float) -> list[float]:
        """Return factors on the tables' own learning rates; ConfigError for an unknown table or an invalid `lr`."""
        if lr is None:
            return [lr_scale] * len(self.own)
        if isinstance(lr, Mapping):
            if unknown := set(lr) - set(self.own):
                raise sanderling.ConfigError(f"lr: there is no table {', '.join(sorted(unknown))}")
            return [self._scale(name, lr.get(name)) * lr_scale for name in self.own]
        return [self._scale(name, lr) * lr_scale for name in self.own]

    def _scale(self, name: str, lr: float | None) -> float:
        """Return the factor that makes the learning rate of a table `lr`; 1 for None."""
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
