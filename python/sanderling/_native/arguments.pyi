"""Types of arguments that several parts of the native module take."""

import os
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sanderling._native.feed import Batch

_Path: TypeAlias = str | os.PathLike[str]
# Signed or unsigned: the 64 bits are the key.
_Keys: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.int64]
# Arrays of any numeric type, or bool.
_Numbers: TypeAlias = npt.NDArray[np.number[Any] | np.bool]

class _ArrowStream(Protocol):
    """An Arrow stream by the PyCapsule interface: a table, a frame, a record batch reader."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class _ArrowArray(Protocol):
    """An Arrow array by the PyCapsule interface: a record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

# One value of a field, or several of a `multi` feature.
_Value: TypeAlias = str | bytes | float | np.generic | date | time | timedelta | Decimal | None
_Row: TypeAlias = Mapping[str, _Value | list[Any] | tuple[Any, ...]]
# Columns of equal lengths by name.
_Columns: TypeAlias = Mapping[str, npt.NDArray[Any] | list[Any] | tuple[Any, ...] | _ArrowStream | _ArrowArray]
_Rows: TypeAlias = _ArrowStream | _ArrowArray | _Columns | Batch
_Source: TypeAlias = _Path | _Rows | Sequence[_Path | _Rows]
