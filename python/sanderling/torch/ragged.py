"""Ragged columns of batches: selection of rows, and columns made of several parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

import sanderling

Ids = npt.NDArray[np.int64]


@dataclass
class Ragged:
    """Keys per row, and optionally a value per key; row i has `keys[offsets[i]:offsets[i + 1]]`."""

    keys: npt.NDArray[np.uint64]
    offsets: Ids
    values: npt.NDArray[np.float32] | None = None

    @classmethod
    def of(cls, batch: sanderling.Batch, feature: str) -> Self:
        """Return the column of a feature."""
        return cls(batch.keys(feature), batch.offsets(feature).astype(np.int64), batch.values(feature))

    @classmethod
    def empty(cls, rows: int) -> Self:
        """Return rows without keys."""
        return cls(np.zeros(0, np.uint64), np.zeros(rows + 1, np.int64))

    @classmethod
    def single(cls, keys: npt.NDArray[np.uint64]) -> Self:
        """Return rows of one key each."""
        return cls(keys, np.arange(len(keys) + 1))

    @property
    def lengths(self) -> Ids:
        """Return the number of keys of each row."""
        return np.diff(self.offsets)

    def rows(self, rows: Ids) -> "Ragged":
        """Return these rows, in their order."""
        lengths = self.lengths[rows]
        offsets = np.r_[0, np.cumsum(lengths)]
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.keys[places], offsets, None if self.values is None else self.values[places])

    @staticmethod
    def joined(parts: "Sequence[Ragged]") -> "Ragged":
        """Return the rows of all parts, one part after the other."""
        offsets = np.r_[0, np.cumsum(np.concatenate([part.lengths for part in parts]))]
        values = None
        if any(part.values is not None for part in parts):
            ones = [np.ones(len(part.keys), np.float32) if part.values is None else part.values for part in parts]
            values = np.concatenate(ones)
        return Ragged(np.concatenate([part.keys for part in parts]), offsets, values)

    def column(self, name: str) -> tuple[str, npt.NDArray[np.uint64], npt.NDArray[np.uint32], object]:
        """Return the column as `sanderling.Batch` takes it."""
        return name, self.keys, self.offsets.astype(np.uint32), self.values
