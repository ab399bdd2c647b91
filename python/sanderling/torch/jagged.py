"""Ragged inputs and outputs of an embedding collection, as tensors in the layout of TorchRec.

`KeyedJagged` has the methods and the layout of TorchRec's KeyedJaggedTensor. `to_batch` takes any object with these
methods. TorchRec need not be installed.

Shapes: `B` samples of a batch, `F` features, `n` keys, `D` weights of a row, `L` steps of a padded sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import sanderling


class KeyedJaggedLike(Protocol):
    """Interface of a ragged batch: `KeyedJagged`, or KeyedJaggedTensor of TorchRec."""

    def keys(self) -> Sequence[str]:
        """Return the names of the F features."""

    def values(self) -> Tensor:
        """Return the keys of all samples, feature by feature, int64 [n]."""

    def lengths(self) -> Tensor:
        """Return the number of keys of each sample, feature by feature, [F * B]."""

    def weights_or_none(self) -> Tensor | None:
        """Return a weight per key, float32 [n], or None."""


class KeyedJagged:
    """Keys of a batch in ragged columns, laid out as in TorchRec: by feature, then by sample.

    Keys are unsigned 64-bit integers in Sanderling and int64 in torch, with equal bits.
    """

    def __init__(self, keys: Sequence[str], values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> None:
        """Take F feature names, keys int64 [n], lengths [F * B], and weights of keys float32 [n]."""
        self._keys, self._values, self._weights = list(keys), values, weights
        self._lengths = lengths

    @classmethod
    def from_batch(cls, batch: sanderling.Batch, features: Sequence[str] | None = None) -> Self:
        """Make ragged tensors from the columns of a batch, by default all.

        `weights` are the values of the keys, None if no column has values; a column without values has 1.
        """
        names = list(batch.features) if features is None else list(features)
        keys = [batch.keys(name).view(np.int64) for name in names]
        lengths = [np.diff(batch.offsets(name).astype(np.int32)) for name in names]
        values = [batch.values(name) for name in names]
        weights = None
        if any(column is not None for column in values):
            filled = [
                np.ones(len(key), np.float32) if column is None else column
                for key, column in zip(keys, values, strict=True)
            ]
            weights = torch.from_numpy(np.concatenate(filled))
        none = np.zeros(0, np.int64)
        return cls(
            names,
            torch.from_numpy(np.concatenate([none, *keys])),
            torch.from_numpy(np.concatenate([none.astype(np.int32), *lengths])),
            weights,
        )

    def keys(self) -> list[str]:
        """Return the names of the F features."""
        return self._keys

    def values(self) -> Tensor:
        """Return the keys of all samples, feature by feature, int64 [n]."""
        return self._values

    def lengths(self) -> Tensor:
        """Return the number of keys of each sample, feature by feature, as given; int32 [F * B] from a batch."""
        return self._lengths

    def offsets(self) -> Tensor:
        """Return the offsets of the samples in `values`, int64 [F * B + 1]."""
        return torch.cat([self._lengths.new_zeros(1, dtype=torch.int64), self._lengths.cumsum(0)])

    def weights_or_none(self) -> Tensor | None:
        """Return the weights of the keys, float32 [n], or None."""
        return self._weights

    def stride(self) -> int:
        """Return the number of samples, B."""
        return len(self._lengths) // len(self._keys) if self._keys else 0


def to_batch(jagged: KeyedJaggedLike, labels: npt.NDArray[np.float32] | None = None) -> sanderling.Batch:
    """Convert ragged tensors to a `sanderling.Batch`, with `labels` float32 [B] if given.

    Raises TypeError for an object without the methods of `KeyedJaggedLike` and for keys or lengths that are not
    integers; `sanderling.LengthError` or `OffsetsError` for lengths that do not match the keys; and `ConfigError` for
    weights that require a gradient, since they would get none.
    """
    methods = ("keys", "values", "lengths", "weights_or_none")
    if not all(callable(getattr(jagged, method, None)) for method in methods):
        raise TypeError(
            f"a batch is a sanderling.Batch, or has the methods {', '.join(methods)}, as KeyedJagged; this is a"
            f" {type(jagged).__name__}"
        )
    names = list(jagged.keys())
    flat_lengths, flat_keys = _whole("lengths", jagged.lengths()), _whole("keys", jagged.values())
    if not names or len(flat_lengths) % len(names) != 0:
        raise sanderling.LengthError(f"{len(flat_lengths)} lengths are not as many for each of {len(names)} features")
    lengths = flat_lengths.reshape(len(names), -1)
    ends = np.concatenate([[0], lengths.sum(axis=1).cumsum()])
    if ends[-1] != len(flat_keys):
        raise sanderling.LengthError(f"lengths add up to {ends[-1]}, but there are {len(flat_keys)} keys")
    # The sum alone is no proof: it may have wrapped around.
    if ((flat_lengths < 0) | (flat_lengths > len(flat_keys))).any():
        raise sanderling.OffsetsError(f"lengths must be from 0 to the number of keys, {len(flat_keys)}")
    weights = jagged.weights_or_none()
    if weights is not None and weights.requires_grad and torch.is_grad_enabled():
        raise sanderling.ConfigError(
            "weights of keys get no gradient, but these require one: pass weights.detach(), or read the feature with"
            " pooling 'none' and sum its rows times their weights"
        )
    factors = None if weights is None else weights.detach().cpu().to(torch.float32).numpy()
    columns = []
    for name, row, begin, end in zip(names, lengths, ends, ends[1:], strict=False):
        offsets = np.concatenate([[0], row.cumsum()]).astype(np.uint32)
        columns.append((name, flat_keys[begin:end], offsets, None if factors is None else factors[begin:end]))
    return sanderling.Batch(columns, labels=labels)


def _whole(what: str, tensor: Tensor) -> npt.NDArray[np.int64]:
    """Return a one-dimensional integer tensor as an array, int64 [n]; TypeError or LengthError otherwise."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{what} are whole numbers, such as int64, not {tensor.dtype}")
    if tensor.dim() != 1:
        raise sanderling.LengthError(f"{what} are in one dimension, feature by feature, not {list(tensor.shape)}")
    return np.ascontiguousarray(tensor.detach().cpu().numpy().astype(np.int64, copy=False))


@dataclass(frozen=True)
class JaggedRows:
    """Embedding rows of a sequence feature; those of sample `i` are `values[offsets[i]:offsets[i + 1]]`."""

    values: Tensor
    """float32 [n, D]."""
    offsets: Tensor
    """int64 [B + 1], from 0 to n."""

    def lengths(self) -> Tensor:
        """Return the number of rows of each sample, int64 [B]."""
        return self.offsets.diff()

    def padded(self, length: int | None = None, *, keep: Literal["first", "last"] = "first") -> tuple[Tensor, Tensor]:
        """Return the rows padded with zeros, float32 [B, L, D], and their mask, bool [B, L].

        `length` is L, by default the length of the longest sequence. A longer sequence keeps its "first" or its "last"
        rows; the last ones are the most recent of a history.
        """
        if keep not in ("first", "last"):
            raise ValueError(f"keep={keep!r}: 'first' or 'last'")
        lengths = self.lengths()
        longest = int(lengths.max()) if len(lengths) else 0
        length = longest if length is None else length
        starts = self.offsets[:-1]
        if keep == "last":
            starts = starts + (lengths - length).clamp(min=0)
        steps = torch.arange(length, device=self.offsets.device)
        mask = steps < lengths.unsqueeze(1)
        if len(self.values) == 0:
            return self.values.new_zeros((*mask.shape, self.values.shape[1])), mask
        places = torch.where(mask, starts.unsqueeze(1) + steps, 0)
        return self.values[places] * mask.unsqueeze(2), mask


class Embedded:
    """Output of an embedding collection: pooled rows as in TorchRec's KeyedTensor, and `sequences` by feature."""

    def __init__(self, values: Tensor, dims: Mapping[str, int], sequences: Mapping[str, JaggedRows]) -> None:
        """Take pooled rows float32 [B, width], the row width of each pooled feature, and sequences by feature."""
        self._values, self._dims = values, dims
        self.sequences = sequences

    def keys(self) -> list[str]:
        """Return the names of the pooled features."""
        return list(self._dims)

    def values(self) -> Tensor:
        """Return the pooled rows of all features side by side, float32 [B, width]."""
        return self._values

    def __getitem__(self, feature: str) -> Tensor:
        """Return the pooled rows of a feature, float32 [B, D]; KeyError for an unknown feature."""
        begin = 0
        for name, dim in self._dims.items():
            if name == feature:
                return self._values[:, begin : begin + dim]
            begin += dim
        raise KeyError(f"{feature!r} is not among the pooled features {', '.join(self._dims)}")

    def stacked(self) -> Tensor:
        """Return the pooled rows, float32 [B, F, D]; ConfigError unless all features have one width."""
        widths = set(self._dims.values())
        if len(widths) != 1:
            raise sanderling.ConfigError(f"features of different widths {sorted(widths)} cannot be stacked")
        return self._values.view(len(self._values), len(self._dims), widths.pop())


def one_batch(batches: list[sanderling.Batch], features: tuple[str, ...]) -> sanderling.Batch:
    """Concatenate the samples of several batches, without labels and weights."""
    columns = []
    for name in features:
        keys = np.concatenate([batch.keys(name) for batch in batches])
        lengths = np.concatenate([np.diff(batch.offsets(name)) for batch in batches])
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.uint32)
        parts = [batch.values(name) for batch in batches]
        values = None
        if any(part is not None for part in parts):
            ones = [np.ones(len(batch.keys(name)), np.float32) for batch in batches]
            values = np.concatenate([one if part is None else part for part, one in zip(parts, ones, strict=True)])
        columns.append((name, keys, offsets, values))
    return sanderling.Batch(columns)
