"""Models of users and items (`mf`, `two_tower`) with their embeddings: vectors, scores of pairs, and ranked lists."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import sanderling
from sanderling.torch import models
from sanderling.torch.catalogue import Catalogue, Pairs
from sanderling.torch.click_model import ClickModel, sizes_of
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.jagged import Embedded
from sanderling.torch.known_keys import KnownKeyCounts
from sanderling.torch.ragged import Ids, Ragged

MODELS: dict[str, type[nn.Module]] = {"mf": models.MF, "two_tower": models.TwoTower}

# Sides of a model.
USER, ITEM = 0, 1
# Items whose vectors are computed at once, and scores of a block of users.
_BLOCK_ROWS = 4096
_BLOCK_SCORES = 1 << 24


class RetrievalModel(ClickModel):
    """A model with a vector for users and one for items; maps batches of pairs to scores."""

    catalogue: Catalogue
    """Items and what users have seen, set by the training run or from a checkpoint."""

    def _dense_part(self, config: DeepConfig, fields: list[str]) -> nn.Module:
        """Return the module of both sides; ConfigError for features that do not fit."""
        model = config.model
        names = [*fields, *self.numbers]
        users, items = model.user or fields[:1], model.item or fields[1:2]
        if missing := [name for name in [*users, *items] if name not in names]:
            raise sanderling.ConfigError(f"model.user, model.item: no feature {missing[0]!r} among {', '.join(names)}")
        if len(users) == 0 or len(items) == 0 or set(users) & set(items):
            raise sanderling.ConfigError("model.user and model.item: need a feature each, and none in common")
        if idle := [name for name in names if name not in {*users, *items}]:
            raise sanderling.ConfigError(f"feature {idle[0]!r}: neither in model.user nor in model.item")
        if users[0] in self.numbers or items[0] in self.numbers:
            raise sanderling.ConfigError("model.user and model.item: the first feature of each identifies it by keys")
        self.features = (users, items)
        """Names of the features of users and items; the first one identifies."""
        self._keyed = [[name for name in side if name not in self.numbers] for side in self.features]
        self._numbers = [[name for name in side if name in self.numbers] for side in self.features]
        kind = MODELS[model.type]
        sizes: dict[str, Any] = sizes_of(kind, config)
        if model.type == "two_tower":
            sizes |= {"dropout": model.dropout, "batch_norm": model.batch_norm, "normalize": model.normalize}
            if model.hidden == []:
                raise sanderling.ConfigError("model.hidden: two_tower needs a layer at least, the vectors")
        elif model.dropout or model.batch_norm or model.normalize:
            raise sanderling.ConfigError("model.dropout, batch_norm, normalize: mf has none; leave them out")
        try:
            return kind(tuple(map(len, self._keyed)), model.dim, dense=tuple(map(len, self._numbers)), **sizes)
        except ValueError as error:
            raise sanderling.ConfigError(f"model.type = {model.type!r}: {error}") from error

    def forward(self, batch: sanderling.Batch) -> Tensor:
        """Return the score of the user with the item of each row, float32 [B]."""
        embedded = self.emb(batch)
        users, items = (self.vectors(side, embedded, batch) for side in (USER, ITEM))
        return (users * items).sum(1)

    def vectors(self, side: int, embedded: Embedded, batch: sanderling.Batch, rows: slice = slice(None)) -> Tensor:
        """Return the vectors of users (0) or items (1) of rows of an embedded batch, float32 [rows, D]."""
        fields = torch.stack([embedded[name][rows] for name in self._keyed[side]], 1)
        dense = self.dense(batch, self._numbers[side]) if self._numbers[side] else None
        vectors: Tensor = self.model(side, fields, None if dense is None else dense[rows])
        return vectors

    def batch_of(self, users: dict[str, Ragged], items: dict[str, Ragged]) -> sanderling.Batch:
        """Return a batch of users, then items: its rows have the features of one side only."""
        counts = [len(next(iter(side.values())).lengths) for side in (users, items)]
        columns = [Ragged.joined([column, Ragged.empty(counts[ITEM])]).column(name) for name, column in users.items()]
        columns += [Ragged.joined([Ragged.empty(counts[USER]), column]).column(name) for name, column in items.items()]
        wide: Any = columns
        return sanderling.Batch(wide)

    @torch.no_grad()
    def item_vectors(self) -> Tensor:
        """Return the vectors of all items of the catalogue, float32 [items, D], in evaluation mode."""
        self.eval()
        columns, parts = self.catalogue.columns, []
        no_users = {name: Ragged.empty(0) for name in self.features[USER]}
        for first in range(0, len(self.catalogue), _BLOCK_ROWS):
            ids = np.arange(first, min(first + _BLOCK_ROWS, len(self.catalogue)))
            batch = self.batch_of(no_users, {name: column.rows(ids) for name, column in columns.items()})
            parts.append(self.vectors(ITEM, self.emb(batch), batch))
        return torch.cat(parts)

    @torch.no_grad()
    def user_vectors(self, users: dict[str, Ragged]) -> Tensor:
        """Return the vectors of users by the columns of their features, float32 [users, D], in evaluation mode."""
        self.eval()
        count = len(next(iter(users.values())).lengths)
        none, parts = {name: Ragged.empty(0) for name in self.features[ITEM]}, []
        for first in range(0, count, _BLOCK_ROWS):
            ids = np.arange(first, min(first + _BLOCK_ROWS, count))
            batch = self.batch_of({name: column.rows(ids) for name, column in users.items()}, none)
            parts.append(self.vectors(USER, self.emb(batch), batch))
        return torch.cat(parts)

    def ranked(
        self, users: dict[str, Ragged], top_k: int, *, exclude_seen: bool = True
    ) -> Iterator[tuple[Ids, npt.NDArray[np.float32]]]:
        """Yield the ids of the best `top_k` items, best first, and their scores for blocks of users, [users, top_k].

        Items that the user has seen in training are left out with `exclude_seen`; a list that runs out of items goes on
        with id -1 and score -inf.
        """
        items, vectors = self.item_vectors(), self.user_vectors(users)
        ids = self.catalogue.user_ids(users[self.features[USER][0]].keys)
        top_k, wanted = min(top_k, len(items)), top_k
        block = max(_BLOCK_SCORES // max(len(items), 1), 1)
        for first in range(0, len(vectors), block):
            scores = vectors[first : first + block] @ items.T
            if exclude_seen:
                seen = [self.catalogue.seen_by(int(user)) for user in ids[first : first + block]]
                rows = np.repeat(np.arange(len(seen)), [len(items) for items in seen])
                scores[torch.from_numpy(rows), torch.from_numpy(np.concatenate(seen))] = -torch.inf
            best = scores.topk(top_k)
            found = best.indices.cpu().numpy().astype(np.int64)
            values = best.values.cpu().numpy()
            found[np.isneginf(values)] = -1
            if wanted > top_k:
                found = np.pad(found, ((0, 0), (0, wanted - top_k)), constant_values=-1)
                values = np.pad(values, ((0, 0), (0, wanted - top_k)), constant_values=-np.inf)
            yield found, values


def ranking_of(
    model: RetrievalModel, batches: Iterable[sanderling.Batch], top_k: Sequence[int], known: KnownKeyCounts
) -> dict[str, float]:
    """Return metrics of ranked lists over all items, for the users and items of pairs, as `ranking_metrics`.

    Items that a user has in the training data are neither in the list nor relevant. An item that the training data lack
    is relevant and never found; `known` counts the keys. Features of a user are those of its first pair. Raises
    NoRowsError without a pair.
    """
    user, item = model.features[USER][0], model.features[ITEM][0]
    keys, items, columns = [], [], []
    for batch in batches:
        known.add(batch)
        pairs = Pairs(batch, user, item)
        keys.append(pairs.user_keys)
        items.append(pairs.item_keys)
        first = np.unique(pairs.user_keys, return_index=True)[1]
        columns.append({name: Ragged.of(batch, name).rows(pairs.rows[first]) for name in model.features[USER]})
    if not columns or not sum(map(len, keys)):
        raise sanderling.NoRowsError("no user-item pair to rank for")
    found = {name: Ragged.joined([part[name] for part in columns]) for name in model.features[USER]}
    user_keys, first = np.unique(found[user].keys, return_index=True)
    users = {name: column.rows(first) for name, column in found.items()}
    item_keys, numbers = np.unique(np.concatenate(items), return_inverse=True)
    ids = model.catalogue.item_ids(item_keys)
    # Unknown items get ids after the known ones.
    ids = np.where(ids < 0, len(model.catalogue) + np.arange(len(ids)), ids)[numbers]
    owners = np.searchsorted(user_keys, np.concatenate(keys))
    is_new = ~model.catalogue.has_seen(model.catalogue.user_ids(user_keys)[owners], ids) | (ids >= len(model.catalogue))
    order = np.argsort(owners[is_new], kind="stable")
    counts = np.bincount(owners[is_new], minlength=len(user_keys))
    relevant = np.split(ids[is_new][order], np.cumsum(counts)[:-1])
    ranked = np.concatenate([block for block, _ in model.ranked(users, max(top_k))])
    return sanderling.ranking_metrics(ranked, relevant, top_k)
