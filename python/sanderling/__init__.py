"""Train click-through models and use their tables from Python.

Everything here is `sanderling._native` under its public name: this file decides what is public and knows nothing of
how it works. Arrays are numpy's: keys uint64, weights, gradients and predictions float32.
"""

from sanderling._native import (
    ConfigError,
    DamagedError,
    DuplicateNameError,
    Error,
    FileError,
    GradientError,
    LengthError,
    NotFoundError,
    OffsetsError,
    Table,
    TableFullError,
    VersionError,
    __version__,
    checkpoint_tables,
    save_tables,
)

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
