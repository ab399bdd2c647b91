"""Types of arguments that several parts of the native module take."""

import os
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_Path: TypeAlias = str | os.PathLike[str]
# Signed or unsigned: the 64 bits are the key.
_Keys: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.int64]
# Arrays of any numeric type, or bool.
_Numbers: TypeAlias = npt.NDArray[np.number[Any] | np.bool]
