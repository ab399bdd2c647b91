"""Types of the native module that crates/python builds; `stubtest` compares the two.

Shapes: `n` keys of a request, `dim` weights of a row, `rows` rows of a table.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "ConfigError",
    "DamagedError",
    "DuplicateNameError",
    "Error",
    "FileError",
    "GradientError",
    "LengthError",
    "NotFoundError",
    "OffsetsError",
    "Table",
    "TableFullError",
    "VersionError",
    "__version__",
    "checkpoint_tables",
    "save_tables",
]

__version__: str

class Error(Exception):
    """Whatever Sanderling refuses or fails to do."""

class ConfigError(Error):
    """A configuration contradicts itself or has an unknown or impossible entry."""

class LengthError(Error):
    """Arrays of one request do not fit each other; nothing was read or applied."""

class OffsetsError(Error):
    """Offsets of a pooled pull do not ascend from 0 to the number of keys."""

class GradientError(Error):
    """A gradient or its scale is not a finite, sane number; nothing was applied."""

class TableFullError(Error):
    """New keys found no room within the table's budget; the message counts them."""

class FileError(Error):
    """A file could not be opened, read or written."""

class DamagedError(Error):
    """A file of a checkpoint is cut, changed, or not ours."""

class VersionError(Error):
    """A file of a checkpoint was written by a newer version."""

class DuplicateNameError(Error):
    """Two tables of one checkpoint have the same name."""

class NotFoundError(Error):
    """A checkpoint does not hold what was asked for."""

@final
class Table:
    """An embedding table: rows of weights, found by 64-bit key, updated by the table's optimizer.

    `optimizer` is `{"type": "sgd" | "adagrad" | "adam" | "ftrl", ...}`, `init` is `{"type": "zero"}`,
    `{"type": "normal", "std": ...}` or `{"type": "uniform", "bound": ...}`; a bare string stands for the type with its
    defaults. The default is SGD with a learning rate of 0.01 from zero weights. `budget_bytes` bounds the memory of
    index and rows.

    Arrays must have the stated dtype (anything else is a TypeError). Contiguous ones are used in place. Several
    threads may use one table; the interpreter is released while it works.
    """

    def __new__(
        cls,
        name: str,
        dim: int,
        *,
        optimizer: dict[str, Any] | str | None = None,
        init: dict[str, Any] | str | None = None,
        seed: int = 0,
        budget_bytes: int | None = None,
    ) -> Table: ...
    @property
    def name(self) -> str:
        """The table's name in errors and checkpoints."""
    @property
    def dim(self) -> int:
        """Weights per row."""
    @property
    def bytes(self) -> int:
        """Bytes of memory, index and rows."""
    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What a row consists of: per block its `dims`, `init` and `optimizer`."""
    def __len__(self) -> int: ...
    def __contains__(self, key: int, /) -> bool: ...
    def pull(
        self,
        keys: npt.NDArray[np.uint64],
        *,
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Rows by key, float32 [n, dim]; never creates one.

        A key without a row yields what its row would start with, or zeros. `out`, C-contiguous, is filled and
        returned if given.
        """
    def pull_pooled(
        self,
        keys: npt.NDArray[np.uint64],
        offsets: npt.NDArray[np.uint32],
        *,
        values: npt.NDArray[np.float32] | None = None,
        pooling: Literal["sum", "mean"] = "sum",
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """One row per bag of keys, float32 [len(offsets) - 1, dim].

        Bag `i` is `keys[offsets[i]:offsets[i + 1]]`, each row times its value if there are `values`; an empty bag
        yields zeros.
        """
    def push(self, keys: npt.NDArray[np.uint64], grads: npt.NDArray[np.float32], *, lr: float = 1.0) -> None:
        """Apply gradients, float32 [n, dim]; rows that do not exist are created.

        Gradients of a key that occurs several times are summed, then its row is updated once. `lr` multiplies the
        optimizer's learning rate for this push.
        """
    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of all rows, uint64 [rows].

        `keys()`, `rows()` and `frequency()` go in the same order as long as nothing is pushed or removed between them.
        """
    def rows(self) -> npt.NDArray[np.float32]:
        """Weights of all rows, float32 [rows, dim]."""
    def frequency(self) -> npt.NDArray[np.uint32]:
        """How often each key was pushed, duplicates counted, uint32 [rows]."""
    def remove(self, keys: npt.NDArray[np.uint64]) -> int:
        """Forget rows; returns how many there were."""
    def clear(self) -> None:
        """Forget all rows."""
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a checkpoint that holds this table alone.

        An earlier checkpoint in the directory stays intact until the new one is complete.
        """
    @staticmethod
    def load(directory: str | os.PathLike[str], name: str | None = None) -> Table:
        """Read a table from a checkpoint; the name may be left out if there is only one."""

def save_tables(directory: str | os.PathLike[str], tables: Sequence[Table]) -> None:
    """Write a checkpoint of several tables."""

def checkpoint_tables(directory: str | os.PathLike[str]) -> list[str]:
    """Names of a checkpoint's tables."""
