"""Ragged columns and what comes out of an embedding collection, as tensors.

`KeyedJagged` has the methods and the layout of TorchRec's KeyedJaggedTensor, and whatever else has them is read the
same way; TorchRec itself is not needed. Knows no table and no gradient.

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
        """Names of the features, F of them."""

    def values(self) -> Tensor:
        """Keys of all samples, feature after feature; int64 [n]."""

    def lengths(self) -> Tensor:
        """Keys of each sample, feature after feature; [F * B]."""

    def weights_or_none(self) -> Tensor | None:
        """A factor per key, float32 [n]."""


class KeyedJagged:
    """Keys of a batch in ragged columns, laid out as in TorchRec: feature after feature, sample after sample.

    Keys are 64 bits without a sign in Sanderling and with one in torch: the bits are the same.
    """

    def __init__(self, keys: Sequence[str], values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> None:
        """Takes F names, int64 keys [n], lengths [F * B], and float32 factors [n] if keys have them."""
        self._keys, self._values, self._weights = list(keys), values, weights
        self._lengths = lengths

    @classmethod
    def from_batch(cls, batch: sanderling.Batch, features: Sequence[str] | None = None) -> Self:
        """The columns of a batch, or those named; weights if any of them has values (1 where a column has none)."""
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
        """Names of the features, F of them."""
        return self._keys

    def values(self) -> Tensor:
        """Keys of all samples, feature after feature; int64 [n]."""
        return self._values

    def lengths(self) -> Tensor:
        """Keys of each sample, feature after feature; int32 [F * B]."""
        return self._lengths

    def offsets(self) -> Tensor:
        """Where the keys of each sample begin, and where the last ones end; int64 [F * B + 1]."""
        return torch.cat([self._lengths.new_zeros(1, dtype=torch.int64), self._lengths.cumsum(0)])

    def weights_or_none(self) -> Tensor | None:
        """A factor per key, float32 [n]."""
        return self._weights

    def stride(self) -> int:
        """Samples, B."""
        return len(self._lengths) // len(self._keys) if self._keys else 0


def to_batch(jagged: KeyedJaggedLike, labels: npt.NDArray[np.float32] | None = None) -> sanderling.Batch:
    """Ragged columns as a batch of Sanderling, with `labels` float32 [B] if given.

    Raises TypeError for what is no such thing, or if keys or lengths are not whole numbers,
    `sanderling.LengthError` or `OffsetsError` if the lengths are not those of the keys, and `ConfigError` for weights
    that require a gradient: they would get none.
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
    # Added up they might wrap around.
    if ((flat_lengths < 0) | (flat_lengths > len(flat_keys))).any():
        raise sanderling.OffsetsError(f"lengths must be from 0 to the number of keys, {len(flat_keys)}")
    weights = jagged.weights_or_none()
    if weights is not None and weights.requires_grad and torch.is_grad_enabled():
        raise sanderling.ConfigError(
            "weights of keys are data here and get no gradient, but these require one: give weights.detach(), or read"
            " the feature with pooling 'none' and sum its rows times their weights"
        )
    factors = None if weights is None else weights.detach().cpu().to(torch.float32).numpy()
    columns = []
    for name, row, begin, end in zip(names, lengths, ends, ends[1:], strict=False):
        offsets = np.concatenate([[0], row.cumsum()]).astype(np.uint32)
        columns.append((name, flat_keys[begin:end], offsets, None if factors is None else factors[begin:end]))
    return sanderling.Batch(columns, labels=labels)


def _whole(what: str, tensor: Tensor) -> npt.NDArray[np.int64]:
    """Whole numbers in one dimension, [n]."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{what} are whole numbers, such as int64, not {tensor.dtype}")
    if tensor.dim() != 1:
        raise sanderling.LengthError(f"{what} are in one dimension, feature after feature, not {list(tensor.shape)}")
    return np.ascontiguousarray(tensor.detach().cpu().numpy().astype(np.int64, copy=False))


@dataclass(frozen=True)
class JaggedRows:
    """Rows of a sequence feature: sample `i` has `values[offsets[i]:offsets[i + 1]]`."""

    values: Tensor
    """float32 [n, D]."""
    offsets: Tensor
    """int64 [B + 1], from 0 to n."""

    def lengths(self) -> Tensor:
        """Rows of each sample, int64 [B]."""
        return self.offsets.diff()

    def padded(self, length: int | None = None, *, keep: Literal["first", "last"] = "first") -> tuple[Tensor, Tensor]:
        """Rows as float32 [B, L, D], zeros after the end of each sequence, and where there are rows, bool [B, L].

        `length` is L, by default that of the longest sequence. Of a longer one the `keep` rows stay: the first, so that
        it is cut on the right, or the last, the most recent of a history.
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
    """The rows of a batch, as TorchRec's KeyedTensor has them, and its sequences."""

    def __init__(self, values: Tensor, dims: Mapping[str, int], sequences: Mapping[str, JaggedRows]) -> None:
        """Takes the pooled rows side by side, the width of each, and the sequences by feature."""
        self._values, self._dims = values, dims
        self.sequences = sequences

    def keys(self) -> list[str]:
        """Names of the pooled features."""
        return list(self._dims)

    def values(self) -> Tensor:
        """All pooled rows side by side, float32 [B, width]."""
        return self._values

    def __getitem__(self, feature: str) -> Tensor:
        """The pooled rows of a feature, float32 [B, D]."""
        begin = 0
        for name, dim in self._dims.items():
            if name == feature:
                return self._values[:, begin : begin + dim]
            begin += dim
        raise KeyError(f"{feature!r} is not among the pooled features {', '.join(self._dims)}")

    def stacked(self) -> Tensor:
        """The pooled rows, float32 [B, F, D]; only if all features have the same width."""
        widths = set(self._dims.values())
        if len(widths) != 1:
            raise sanderling.ConfigError(f"features of different widths {sorted(widths)} cannot be stacked")
        return self._values.view(len(self._values), len(self._dims), widths.pop())


def one_batch(batches: list[sanderling.Batch], features: tuple[str, ...]) -> sanderling.Batch:
    """The samples of all batches, one batch after the other."""
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
