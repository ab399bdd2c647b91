"""Warnings about numeric features with values so large that they dominate a deep model."""

from collections.abc import Iterable

import numpy as np

import sanderling

SWAMPS = 100.0
"""Root mean square of the values of a feature from which on it dominates the model."""
# Number of rows at the start of a run that are examined.
_LOOK_ROWS = 4096


# Weight of a row from which on it is named as the cause of a failed step.
_LARGE_WEIGHT = 1e6


def cause(batch: sanderling.Batch, numbers: Iterable[str]) -> str | None:
    """Return the likely cause of a failed step: the largest value, or weight, of these rows; None if none is large.

    `numbers` are the names of the numeric features.
    """
    weight = float(np.max(batch.weights, initial=0.0))
    if weight >= _LARGE_WEIGHT:
        return f"a row has the weight {weight:.1e}: bound the weights"
    columns = ((name, batch.values(name)) for name in numbers)
    largest = {name: float(np.max(np.abs(values), initial=0.0)) for name, values in columns if values is not None}
    name = max(largest, key=lambda name: largest[name], default="")
    if not name or largest[name] < SWAMPS:
        return None
    return f'feature "{name}" has the value {largest[name]:.1e}: set its type to "log" or "quantile"'


class Magnitudes:
    """Root mean square of the numeric features over the first rows of a run."""

    def __init__(self, numbers: Iterable[str]) -> None:
        """Take the names of the numeric features."""
        self._squares = dict.fromkeys(numbers, (0.0, 0))
        self._rows_left = _LOOK_ROWS if self._squares else 0

    def add(self, batch: sanderling.Batch) -> list[str]:
        """Add a batch; returns the warnings once enough rows were added, otherwise an empty list."""
        if self._rows_left <= 0:
            return []
        for name, (total, count) in self._squares.items():
            values = batch.values(name)
            if values is not None:
                squares = np.square(values, dtype=np.float64)
                self._squares[name] = total + float(squares.sum()), count + len(values)
        self._rows_left -= len(batch)
        return [] if self._rows_left > 0 else self.large()

    def large(self) -> list[str]:
        """Return the warnings about the rows so far, and ignore all further rows."""
        sizes = {name: (total / max(count, 1)) ** 0.5 for name, (total, count) in self._squares.items()}
        self._rows_left, self._squares = 0, {}
        return [
            f'warning: values of "{name}" are about {size:.1e} and swamp the model: set its type to "log" or "quantile"'
            for name, size in sizes.items()
            if size >= SWAMPS
        ]
