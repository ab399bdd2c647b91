"""Numeric features whose values are so large that they swamp a deep model. Knows no training."""

from collections.abc import Iterable

import numpy as np

import sanderling

SWAMPS = 100.0
"""A feature swamps the model if the root mean square of its values is at least this."""
# Rows at the start of a run that are looked at.
_LOOK_ROWS = 4096


class Magnitudes:
    """Looks at the first rows of a run."""

    def __init__(self, numbers: Iterable[str]) -> None:
        """Looks at the features of these names, which are numbers."""
        self._squares = dict.fromkeys(numbers, (0.0, 0))
        self._rows_left = _LOOK_ROWS if self._squares else 0

    def add(self, batch: sanderling.Batch) -> list[str]:
        """Looks at a batch; once enough rows were looked at, sentences about features with large values."""
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
        """Sentences about features with large values among the rows so far; after it nothing is looked at."""
        sizes = {name: (total / max(count, 1)) ** 0.5 for name, (total, count) in self._squares.items()}
        self._rows_left, self._squares = 0, {}
        return [
            f'warning: values of "{name}" are about {size:.1e} and swamp the model: set its type to "log" or "quantile"'
            for name, size in sizes.items()
            if size >= SWAMPS
        ]
