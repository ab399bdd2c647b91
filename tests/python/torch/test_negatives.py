"""Negatives and losses of implicit feedback, against float64 numpy and torch's own losses."""

import numpy as np
import pytest
import torch

import sanderling
from sanderling.torch import negatives
from sanderling.torch.catalogue import Catalogue, Pairs
from sanderling.torch.config_sections import SamplingConfig
from sanderling.torch.negatives import NegativeSampler
from sanderling.torch.ragged import Ragged

USERS, ITEMS = 20, 12


def batch(users: list[int], items: list[list[int]], labels: list[float] | None = None) -> sanderling.Batch:
    flat = np.array([item for some in items for item in some], np.uint64)
    offsets = np.r_[0, np.cumsum([len(some) for some in items])].astype(np.uint32)
    single = np.arange(len(users) + 1, dtype=np.uint32)
    columns = [("user", np.array(users, np.uint64), single, None), ("item", flat, offsets, None)]
    columns.append(("kind", np.array(users, np.uint64) * 100, single, None))
    return sanderling.Batch(
        columns, np.full(len(users), np.nan, np.float32) if labels is None else np.array(labels, np.float32)
    )


@pytest.fixture
def pairs() -> list[tuple[int, int]]:
    """Distinct pairs; item i is in about i + 1 of 13 parts of the users."""
    rng = np.random.default_rng(3)
    found = [(user, item) for user in range(USERS) for item in range(ITEMS) if rng.random() < (item + 1) / 13]
    return found + found[:5]  # some occur twice


@pytest.fixture
def catalogue(pairs: list[tuple[int, int]]) -> Catalogue:
    users, items = zip(*pairs, strict=True)
    half = len(pairs) // 2
    parts = [batch(list(users[part]), [[item] for item in items[part]]) for part in (slice(half), slice(half, None))]
    return Catalogue.collect(parts, "user", "item", ["item"])


def test_a_catalogue_counts_pairs_and_knows_what_was_seen(catalogue: Catalogue, pairs: list[tuple[int, int]]) -> None:
    items, counts = np.unique([item for _, item in pairs], return_counts=True)
    np.testing.assert_array_equal(catalogue.items, items)
    np.testing.assert_array_equal(catalogue.counts, counts)
    everyone, everything = np.meshgrid(np.arange(len(catalogue.users)), np.arange(len(items)), indexing="ij")
    seen = catalogue.has_seen(everyone, everything)
    for user, key in enumerate(catalogue.users):
        expected = {item for of, item in pairs if of == key}
        assert set(catalogue.items[seen[user]].tolist()) == expected
        assert set(catalogue.items[catalogue.seen_by(user)].tolist()) == expected
    assert catalogue.item_ids(np.array([items[3], 99], np.uint64)).tolist() == [3, -1]
    assert not catalogue.has_seen(np.array([-1]), np.array([3])).any()
    again = Catalogue.from_state(catalogue.state())
    for name in ("items", "counts", "users", "codes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(catalogue, name))


def test_pairs_of_lists_of_labels_and_of_features() -> None:
    found = Pairs(batch([1, 2, 3], [[5, 6], [], [7]], [1.0, 1.0, 0.0]), "user", "item")
    assert (found.user_keys.tolist(), found.item_keys.tolist()) == ([1, 1], [5, 6]), "a negative row is no pair"
    features = Catalogue.collect([batch([4, 2, 4], [[9], [8], [8]])], "user", "item", ["item", "kind"])
    assert features.columns["kind"].keys.tolist() == [200, 400], "of the first row of items 8 and 9"
    with pytest.raises(sanderling.ConfigError, match="lists several items"):
        Catalogue.collect([batch([1], [[5, 6]])], "user", "item", ["item", "kind"])
    with pytest.raises(sanderling.NoRowsError):
        Catalogue.collect([batch([1], [[]])], "user", "item", ["item"])


@pytest.mark.parametrize("by", ["uniform", "popularity"])
def test_negatives_have_the_chances_that_are_asked_for(catalogue: Catalogue, by: str) -> None:
    sampler = NegativeSampler(catalogue, SamplingConfig(by=by, per_positive=200, power=0.5, exclude_seen=False))
    users = np.zeros(500, np.int64)
    positives = np.full(500, 4)
    drawn = sampler.draw(users, positives, np.random.default_rng(5))
    chances = catalogue.counts.astype(np.float64) ** (0.5 if by == "popularity" else 0.0)
    chances[4] = 0.0
    chances /= chances.sum()
    counts = np.bincount(drawn.ravel(), minlength=len(catalogue))
    # Six standard deviations of a binomial count.
    assert (np.abs(counts - drawn.size * chances) <= 6 * np.sqrt(drawn.size * chances) + 1e-9).all()
    np.testing.assert_array_equal(drawn, sampler.draw(users, positives, np.random.default_rng(5)))


def test_seen_items_are_no_negatives(catalogue: Catalogue) -> None:
    free = np.array([len(catalogue) - len(catalogue.seen_by(user)) for user in range(len(catalogue.users))])
    users = np.flatnonzero(free > 2).repeat(10)
    positives = np.array([catalogue.seen_by(int(user))[0] for user in users])
    drawn = NegativeSampler(catalogue, SamplingConfig(per_positive=8)).draw(users, positives, np.random.default_rng(1))
    assert not catalogue.has_seen(np.broadcast_to(users[:, None], drawn.shape), drawn).any()


def test_losses_equal_float64_and_torch() -> None:
    rng = np.random.default_rng(2)
    positive, negative = rng.normal(size=6), rng.normal(size=(6, 4))
    p, n = torch.tensor(positive), torch.tensor(negative)
    bpr = np.mean(-np.log(1 / (1 + np.exp(-(positive[:, None] - negative)))))
    assert negatives.bpr(p, n).item() == pytest.approx(bpr, rel=1e-12)
    both = np.concatenate([positive, negative.ravel()])
    signs = np.r_[np.ones(6), -np.ones(24)]
    assert negatives.logloss(p, n).item() == pytest.approx(np.mean(np.log1p(np.exp(-signs * both))), rel=1e-12)
    log_chances = np.log(rng.dirichlet(np.ones(9), 6)[:, :5])
    corrected = np.c_[positive, negative] - log_chances
    expected = -np.mean(corrected[:, 0] - np.log(np.exp(corrected).sum(1)))
    found = negatives.softmax(p, n, (torch.tensor(log_chances[:, 0]), torch.tensor(log_chances[:, 1:])))
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_in_batch_softmax_is_cross_entropy_over_the_others() -> None:
    rng = np.random.default_rng(4)
    scores = torch.tensor(rng.normal(size=(5, 5)))
    items = torch.tensor([0, 1, 2, 1, 3])
    positive, negative = negatives.in_batch(scores, items)
    masked = scores.clone()
    masked[1, 3] = masked[3, 1] = -torch.inf
    expected = torch.nn.functional.cross_entropy(masked, torch.arange(5))
    assert negatives.softmax(positive, negative).item() == pytest.approx(expected.item(), rel=1e-12)


def test_ragged_rows_are_those_of_lists() -> None:
    rows = [[1, 2], [], [3], [4, 5, 6]]
    column = Ragged(
        np.array([key for row in rows for key in row], np.uint64), np.r_[0, np.cumsum([len(row) for row in rows])]
    )
    picked = column.rows(np.array([3, 0, 1, 3]))
    assert [picked.keys[a:b].tolist() for a, b in zip(picked.offsets, picked.offsets[1:], strict=False)] == [
        [4, 5, 6],
        [1, 2],
        [],
        [4, 5, 6],
    ]
    both = Ragged.joined([column, Ragged.empty(2), Ragged.single(np.array([9], np.uint64))])
    assert (both.lengths.tolist(), both.keys.tolist()) == ([2, 0, 1, 3, 0, 0, 1], [1, 2, 3, 4, 5, 6, 9])
