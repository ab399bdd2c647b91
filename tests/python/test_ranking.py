"""Ranking metrics against loops over the definitions, and GAUC against scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

import sanderling


@pytest.mark.parametrize("levels", [3, 1000])
@pytest.mark.parametrize("weighted", [False, True])
def test_gauc_is_the_mean_of_scikit_learns_auc(levels: int, weighted: bool) -> None:
    rng = np.random.default_rng(levels)
    groups = rng.integers(0, 40, 600).astype(np.uint64) << np.uint64(40)
    labels, scores = rng.integers(0, 2, 600), rng.integers(0, levels, 600) / levels
    # Groups with one class, and one of a single row.
    labels[groups == groups[0]] = 1
    groups[5] = 7
    weights = rng.random(600) if weighted else None
    areas, sizes = [], []
    for group in np.unique(groups):
        rows = groups == group
        if 0 < labels[rows].sum() < rows.sum():
            areas.append(roc_auc_score(labels[rows], scores[rows]))
            sizes.append(rows.sum() if weights is None else weights[rows].sum())
    expected = np.average(areas, weights=sizes)
    assert sanderling.gauc(labels, scores, groups, weights) == pytest.approx(expected, rel=1e-12)


def test_gauc_without_two_classes_is_undefined() -> None:
    assert math.isnan(sanderling.gauc([1, 1, 0], [0.1, 0.2, 0.3], ["a", "a", "b"]))
    assert math.isnan(sanderling.gauc([], [], []))
    with pytest.raises(sanderling.LengthError, match="2 labels, 1 scores"):
        sanderling.gauc([1, 0], [0.5], [1, 1])


def by_definition(ranked: list[list[int]], relevant: list[set[int]], k: int) -> dict[str, float]:
    users = [(row[:k], items) for row, items in zip(ranked, relevant, strict=True) if items]
    sums = dict.fromkeys(("recall", "ndcg", "hr", "mrr", "precision", "map"), 0.0)
    for row, items in users:
        places = [place for place, item in enumerate(row, 1) if item in items]
        sums["recall"] += len(places) / len(items)
        sums["precision"] += len(places) / k
        sums["hr"] += bool(places)
        sums["mrr"] += 1 / places[0] if places else 0.0
        ideal = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(items)) + 1))
        sums["ndcg"] += sum(1 / math.log2(place + 1) for place in places) / ideal
        sums["map"] += sum((number + 1) / place for number, place in enumerate(places)) / len(items)
    return {f"{name}@{k}": value / len(users) for name, value in sums.items()}


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_lists_are_those_of_the_definitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    users, items = 30, 50
    ranked = np.stack([rng.permutation(items)[:10] for _ in range(users)])
    relevant = [set(rng.integers(0, items + 5, rng.integers(0, 12)).tolist()) for _ in range(users)]
    found = sanderling.ranking_metrics(ranked, [np.array(sorted(some), np.int64) for some in relevant], [1, 5, 10])
    expected = {"users": float(sum(map(bool, relevant)))}
    for k in (1, 5, 10):
        expected |= by_definition(ranked.tolist(), relevant, k)
    assert found == pytest.approx(expected, rel=1e-12)


def test_ndcg_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    scores, gains = rng.random((8, 30)), (rng.random((8, 30)) < 0.3).astype(float)
    ranked = np.argsort(-scores, 1)
    found = sanderling.ranking_metrics(ranked, [np.flatnonzero(row) for row in gains], 7)
    assert found["ndcg@7"] == pytest.approx(ndcg_score(gains, scores, k=7), rel=1e-12)


def test_lists_that_do_not_fit_are_refused() -> None:
    ranked = np.zeros((2, 3), np.int64)
    with pytest.raises(sanderling.LengthError, match="2 lists for 1 users"):
        sanderling.ranking_metrics(ranked, [[1]])
    with pytest.raises(sanderling.LengthError, match="k = "):
        sanderling.ranking_metrics(ranked, [[1], [2]], 4)
