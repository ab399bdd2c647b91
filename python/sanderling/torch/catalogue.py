"""Items and users of implicit feedback: keys, the number of pairs of an item, and the items that a user has seen.

Collected in one pass over the training files, before the first pass of training.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import sanderling
from sanderling.torch.ragged import Ids, Ragged

# Limit of user-item pairs in memory, 16 bytes each.
PAIRS_MAX = 1 << 28


class Pairs:
    """User-item pairs of a batch: a row of the batch for each pair, and the keys of user and item."""

    def __init__(self, batch: sanderling.Batch, user: str, item: str) -> None:
        """Take each key of the feature `item` as an item of the row's user; leaves out negative and skipped rows.

        A row without a label is positive. Raises BadRowError for a row without exactly one user.
        """
        users, items = Ragged.of(batch, user), Ragged.of(batch, item)
        # A skipped bad row has NaN as its weight.
        is_kept = ~np.isnan(batch.weights) & ~(batch.labels == 0.0)
        if (wrong := np.flatnonzero(is_kept & (users.lengths != 1))).size:
            raise sanderling.BadRowError(
                f"a row has {users.lengths[wrong[0]]} values of the user {user!r}: it must have exactly one"
            )
        self.rows: Ids = np.repeat(np.arange(len(batch)), np.where(is_kept, items.lengths, 0))
        places = np.repeat(is_kept, items.lengths)
        self.item_keys = items.keys[places]
        self.user_keys = users.keys[users.offsets[:-1][self.rows]]
        self.is_list = bool((items.lengths > 1).any())


class Catalogue:
    """Keys, counts and features of the items, and the items seen by each user; ids are positions in sorted keys."""

    def __init__(
        self,
        items: npt.NDArray[np.uint64],
        counts: Ids,
        users: npt.NDArray[np.uint64],
        codes: Ids,
        columns: dict[str, Ragged],
    ) -> None:
        """Take sorted keys; `codes` are the sorted distinct `user * items + item` of the pairs, by ids."""
        self.items, self.counts, self.users, self.codes, self.columns = items, counts, users, codes, columns

    @classmethod
    def collect(cls, batches: Iterable[sanderling.Batch], user: str, item: str, features: Sequence[str]) -> "Catalogue":
        """Collect users, items and pairs; `features` are all features of items, with the values of the first row.

        Raises NoRowsError without a pair, and ConfigError for more than `PAIRS_MAX` pairs and for a list of items in a
        row if items have further features.
        """
        users, items, count = [], [], 0
        further = [name for name in features if name != item]
        found: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        parts: dict[str, list[Ragged]] = {name: [] for name in further}
        order: list[npt.NDArray[np.uint64]] = []
        for batch in batches:
            pairs = Pairs(batch, user, item)
            count += len(pairs.rows)
            if count > PAIRS_MAX:
                raise sanderling.ConfigError(f"data.train: more than {PAIRS_MAX:,} user-item pairs; name fewer files")
            if further and pairs.is_list:
                raise sanderling.ConfigError(f"model.item: a row lists several items, which cannot have {further[0]!r}")
            users.append(pairs.user_keys)
            items.append(pairs.item_keys)
            if further:
                keys, first = np.unique(pairs.item_keys, return_index=True)
                is_new = ~np.isin(keys, found)
                found = np.union1d(found, keys)
                order.append(keys[is_new])
                for name in further:
                    parts[name].append(Ragged.of(batch, name).rows(pairs.rows[first[is_new]]))
        if count == 0:
            raise sanderling.NoRowsError("data.train: no user-item pair to learn from")
        item_keys, item_ids, counts = np.unique(np.concatenate(items), return_inverse=True, return_counts=True)
        user_keys, user_ids = np.unique(np.concatenate(users), return_inverse=True)
        codes = np.unique(user_ids.astype(np.int64) * len(item_keys) + item_ids)
        columns = {item: Ragged.single(item_keys)}
        if further:
            places = np.argsort(np.concatenate(order))
            columns |= {name: Ragged.joined(parts[name]).rows(places) for name in further}
        return cls(item_keys, counts, user_keys, codes, columns)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)

    def item_ids(self, keys: npt.NDArray[np.uint64]) -> Ids:
        """Return the ids of items, -1 for unknown ones."""
        return _ids(self.items, keys)

    def user_ids(self, keys: npt.NDArray[np.uint64]) -> Ids:
        """Return the ids of users, -1 for unknown ones."""
        return _ids(self.users, keys)

    def has_seen(self, users: Ids, items: Ids) -> npt.NDArray[np.bool_]:
        """Return whether each user has seen the item; both are ids of one shape. An unknown user (-1) has seen none."""
        codes = users * len(self.items) + items
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        found: npt.NDArray[np.bool_] = (self.codes[places] == codes) & (users >= 0)
        return found

    def seen_by(self, user: int) -> Ids:
        """Return the ids of the items that a user has seen; none for an unknown user (-1)."""
        if user < 0:
            return np.zeros(0, np.int64)
        first, last = np.searchsorted(self.codes, [user * len(self.items), (user + 1) * len(self.items)])
        return self.codes[first:last] - user * len(self.items)

    def state(self) -> dict[str, Any]:
        """Return the content for a checkpoint."""
        columns = {
            name: [_tensor(part.keys), torch.from_numpy(part.offsets), _maybe(part.values)]
            for name, part in self.columns.items()
        }
        arrays = {"items": self.items, "counts": self.counts, "users": self.users, "codes": self.codes}
        return {**{name: _tensor(array) for name, array in arrays.items()}, "columns": columns}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Catalogue":
        """Return the catalogue of a checkpoint."""
        columns = {
            name: Ragged(keys.numpy().view(np.uint64), offsets.numpy(), None if values is None else values.numpy())
            for name, (keys, offsets, values) in state["columns"].items()
        }
        items, users = (state[name].numpy().view(np.uint64) for name in ("items", "users"))
        return cls(items, state["counts"].numpy(), users, state["codes"].numpy(), columns)


def _ids(sorted_keys: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64]) -> Ids:
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    ids: Ids = np.where(sorted_keys[places] == keys, places, -1)
    return ids


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor; keys as int64, since torch can do little with uint64."""
    return torch.from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array)


def _maybe(values: npt.NDArray[np.float32] | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values)
