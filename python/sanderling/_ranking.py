"""Metrics of rankings: AUC within groups of rows, and metrics of the first K items of each user's list."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sanderling._native import LengthError

__all__ = ["gauc", "ranking_metrics"]


def gauc(
    labels: npt.ArrayLike, scores: npt.ArrayLike, groups: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> float:
    """Return the AUC within groups of rows, such as users, averaged over the groups (Zhu et al. 2017); all are [rows].

    A row with a label above 0 is positive; ties count half. A group counts with its number of rows, or with the sum of
    their `weights`. Groups with a single class do not count; NaN if there is no other. Raises LengthError for arrays of
    different lengths.
    """
    positive = np.asarray(labels).ravel() > 0
    score = np.asarray(scores, np.float64).ravel()
    group = np.unique(np.asarray(groups).ravel(), return_inverse=True)[1]
    weight = np.ones(len(score)) if weights is None else np.asarray(weights, np.float64).ravel()
    if not len(positive) == len(score) == len(group) == len(weight):
        raise LengthError(
            f"gauc: {len(positive)} labels, {len(score)} scores, {len(group)} groups: must be equally many"
        )
    if not len(score):
        return float("nan")
    order = np.lexsort((score, group))
    positive, score, group, weight = positive[order], score[order], group[order], weight[order]
    # Mean rank of equal scores of a group, from 1 within the group.
    is_new = np.r_[True, (score[1:] != score[:-1]) | (group[1:] != group[:-1])]
    run = np.cumsum(is_new) - 1
    begins = np.flatnonzero(is_new)
    counts = np.diff(np.r_[begins, len(score)])
    sizes = np.bincount(group)
    first = np.r_[0, np.cumsum(sizes)[:-1]]
    ranks = (begins + (counts + 1) / 2)[run] - first[group]
    positives = np.bincount(group, positive)
    rank_sums = np.bincount(group, ranks * positive)
    pairs = positives * (sizes - positives)
    has_both = pairs > 0
    if not has_both.any():
        return float("nan")
    areas = (rank_sums - positives * (positives + 1) / 2)[has_both] / pairs[has_both]
    return float(np.average(areas, weights=np.bincount(group, weight)[has_both]))


def ranking_metrics(
    ranked: npt.NDArray[Any], relevant: Sequence[npt.ArrayLike], k: int | Sequence[int] = 20
) -> dict[str, float]:
    """Return metrics of ranked lists, averaged over the users with a relevant item.

    `ranked` has the items of each user, the best first, [users, items]; `relevant` has an array of items per user. For
    each `k`, with the first `k` items:

    - `recall@k`: share of the relevant items that are among them
    - `ndcg@k`: discounted cumulative gain with gain 1, relative to that of an ideal list
    - `hr@k`: share of users with a relevant item among them
    - `mrr@k`: mean of 1 / rank of the first relevant item, 0 without one
    - `precision@k`: share of the `k` places with a relevant item
    - `map@k`: mean over the relevant items of the precision at their place, 0 for those beyond `k`

    `users` is the number of users. Raises LengthError for different numbers of users and for a `k` above the number of
    items per list.
    """
    cuts = [k] if isinstance(k, int) else list(k)
    if len(ranked) != len(relevant):
        raise LengthError(f"ranking_metrics: {len(ranked)} lists for {len(relevant)} users")
    if ranked.ndim != 2 or any(not 1 <= cut <= ranked.shape[1] for cut in cuts):
        raise LengthError(f"ranking_metrics: k = {cuts}, but the lists have the shape {ranked.shape}")
    lists = [np.unique(np.asarray(items, ranked.dtype)) for items in relevant]
    sizes = np.array([len(items) for items in lists], np.int64)
    codes = np.unique(np.concatenate([ranked.ravel(), *lists]), return_inverse=True)[1]
    codes = codes + np.r_[
        np.repeat(np.arange(len(ranked)), ranked.shape[1]), np.repeat(np.arange(len(lists)), sizes)
    ] * (codes.max(initial=0) + 1)
    hits = np.isin(codes[: ranked.size], codes[ranked.size :]).reshape(ranked.shape)[sizes > 0]
    sizes = sizes[sizes > 0]
    out: dict[str, float] = {}
    for cut in cuts:
        here = hits[:, :cut]
        found = here.sum(1)
        gains = 1 / np.log2(np.arange(2, cut + 2))
        ideal = np.cumsum(gains)[np.minimum(sizes, cut) - 1]
        first = np.where(found > 0, here.argmax(1) + 1, np.inf)
        precisions = np.cumsum(here, 1) / np.arange(1, cut + 1)
        each = {
            "recall": found / sizes,
            "ndcg": (here * gains).sum(1) / ideal,
            "hr": found > 0,
            "mrr": 1 / first,
            "precision": found / cut,
            "map": (precisions * here).sum(1) / sizes,
        }
        out |= {
            f"{name}@{cut}": float(np.mean(values)) if len(sizes) else float("nan") for name, values in each.items()
        }
    return {**out, "users": float(len(sizes))}


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)
