"""Matrix factorization and two towers on MovieLens 100K as implicit feedback, beside published figures.

    python bench/implicit_feedback.py ../shared/data/ml-100k/u.data            quality, five splits
    python bench/implicit_feedback.py ../shared/data/ml-100k/u.data --speed    seconds per pass, beside plain PyTorch

Every rating is a positive pair, as in the comparison of Microsoft Recommenders, which this repeats: of each user's
pairs 75 % are for training and 25 % for testing, at random; the first 10 of all items that the user has not rated in
training are compared with the test pairs. The figures of that comparison are of one split, which was drawn by another
generator; ours are the mean and the standard deviation over splits. Settings were chosen on validation pairs taken out
of the training pairs of a further split, and no test pair was used for it.

With --speed the same minibatches (pairs, one uniform negative each) are trained by a plain PyTorch loop over
`torch.nn.Embedding`, and by `implicit` if it is installed. Rounds are interleaved; a pass is timed whole.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import sanderling
import sanderling.torch

# https://github.com/recommenders-team/recommenders, README, "Algorithm comparison", MovieLens 100K, k = 10.
PUBLISHED = {
    "BPR (cornac)": {"map@10": 0.132478, "ndcg@10": 0.441997, "precision@10": 0.388229, "recall@10": 0.212522},
    "BiVAE": {"map@10": 0.146126, "ndcg@10": 0.475077, "precision@10": 0.411771, "recall@10": 0.219145},
    "LightGCN": {"map@10": 0.088526, "ndcg@10": 0.419846, "precision@10": 0.379626, "recall@10": 0.144336},
    "NCF": {"map@10": 0.107720, "ndcg@10": 0.396118, "precision@10": 0.347296, "recall@10": 0.180775},
}
NAMES = ("recall@10", "ndcg@10", "precision@10", "map@10", "recall@20", "ndcg@20")

Pairs = npt.NDArray[np.int64]

SETTINGS: dict[str, dict[str, Any]] = {
    "mf, bpr": {
        "model": {"type": "mf", "dim": 128, "init_std": 0.1},
        "optimizer": {"type": "adagrad", "lr": 0.05, "l2": 0.002},
        "train": {"batch_size": 1024, "passes": 60, "loss": "bpr"},
        "sampling": {"by": "uniform", "per_positive": 1},
    },
    "mf, softmax": {
        "model": {"type": "mf", "dim": 128, "init_std": 0.1},
        "optimizer": {"type": "adagrad", "lr": 0.05, "l2": 0.002},
        "train": {"batch_size": 1024, "passes": 20, "loss": "softmax"},
        "sampling": {"by": "uniform", "per_positive": 64},
    },
    "two_tower, in-batch softmax": {
        "model": {"type": "two_tower", "dim": 64, "hidden": [128, 64], "init_std": 0.1},
        "optimizer": {"type": "adam", "lr": 0.003},
        "dense_optimizer": {"lr": 0.001},
        "train": {"batch_size": 1024, "passes": 20, "loss": "softmax"},
        "sampling": {"by": "in_batch"},
    },
}


def split(pairs: Pairs, rng: np.random.Generator, share: float) -> tuple[Pairs, Pairs]:
    """Divide the pairs of each user at random; the first part has `share` of them, rounded."""
    first, second = [], []
    for user in np.unique(pairs[:, 0]):
        mine = rng.permutation(pairs[pairs[:, 0] == user])
        cut = round(share * len(mine))
        first.append(mine[:cut])
        second.append(mine[cut:])
    return np.concatenate(first), np.concatenate(second)


def write(path: Path, pairs: Pairs) -> None:
    """Write pairs as TSV with a header."""
    path.write_text("user\titem\n" + "".join(f"{user}\t{item}\n" for user, item in pairs))


def configuration(folder: Path, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the configuration of a run over the files of a folder."""
    return {
        "name": "run",
        "seed": seed,
        "data": {"train": str(folder / "train.tsv")},
        "feature": [{"name": "user"}, {"name": "item"}],
        **settings,
        "train": {"threads": 1, "top_k": [10, 20], **settings["train"]},
    }


def quality(pairs: Pairs, settings: dict[str, Any], seed: int, *, validates: bool) -> dict[str, float]:
    """Train on a split and return the metrics of its test pairs, or of validation pairs of the training part."""
    train, test = split(pairs, np.random.default_rng(seed), 0.75)
    if validates:
        train, test = split(train, np.random.default_rng(seed), 0.9)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "train.tsv", train)
        write(folder / "test.tsv", test)
        config = configuration(folder, settings, seed)
        if validates:
            config["data"]["valid"] = str(folder / "test.tsv")
        result = sanderling.torch.train(config, runs_dir=folder, quiet=not validates)
        if validates:
            return {key: value for key, value in result.summary.items() if "@" in key}
        scores = sanderling.torch.FileScores(folder / "run/model")
        return scores.ranking(str(folder / "test.tsv"))


def plain_torch(pairs: Pairs, dim: int, batch_size: int) -> float:
    """Return the seconds of a pass of BPR over `torch.nn.Embedding` with sparse gradients, seen items excluded."""
    users, items = (np.unique(column, return_inverse=True)[1] for column in pairs.T)
    tables = [torch.nn.Embedding(int(ids.max()) + 1, dim, sparse=True) for ids in (users, items)]
    optimizer = torch.optim.SparseAdam([table.weight for table in tables], lr=0.003)
    count = int(items.max()) + 1
    codes, rng = np.sort(users * count + items), np.random.default_rng(1)
    began = time.perf_counter()
    order = rng.permutation(len(users))
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        drawn = rng.integers(count, size=len(rows))
        for _ in range(20):
            wanted = users[rows] * count + drawn
            seen = codes[np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)] == wanted
            if not seen.any():
                break
            drawn[seen] = rng.integers(count, size=int(seen.sum()))
        user, positive, negative = (
            table(torch.from_numpy(ids))
            for table, ids in ((tables[0], users[rows]), (tables[1], items[rows]), (tables[1], drawn))
        )
        loss = torch.nn.functional.softplus((user * (negative - positive)).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began


def speed(pairs: Pairs, rounds: int) -> None:
    """Print seconds per pass."""
    dim, batch_size, passes = 128, 1024, 5
    settings = {
        "model": {"type": "mf", "dim": dim},
        "optimizer": {"type": "adam", "lr": 0.003},
        "train": {"batch_size": batch_size, "passes": passes, "loss": "bpr"},
    }
    found: dict[str, list[float]] = {"sanderling": [], "plain PyTorch": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "train.tsv", pairs)
        for seed in range(rounds):
            result = sanderling.torch.train(configuration(folder, settings, seed), name="run", runs_dir=folder)
            found["sanderling"].append(result.summary["train_s"] / passes)
            found["plain PyTorch"].append(statistics.mean(plain_torch(pairs, dim, batch_size) for _ in range(passes)))
            try:
                from implicit.bpr import BayesianPersonalizedRanking  # type: ignore[import-not-found,unused-ignore]
                from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
            except ImportError:
                continue
            matrix = csr_matrix((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])))
            model = BayesianPersonalizedRanking(factors=dim - 1, iterations=passes, num_threads=2)
            began = time.perf_counter()
            model.fit(matrix, show_progress=False)
            found.setdefault("implicit, 2 threads", []).append((time.perf_counter() - began) / passes)
    for program, times in found.items():
        print(f"{program:22} {statistics.median(times):.3f} s per pass of {len(pairs):,} pairs")


def main() -> None:
    """Print a table of metrics, or of times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ratings", type=Path, help="u.data of MovieLens 100K")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--validate", action="store_true", help="validate on a part of the training pairs, per pass")
    parser.add_argument("--only", help="name of one of the settings")
    parser.add_argument("--speed", action="store_true", help="seconds per pass instead of quality")
    options = parser.parse_args()
    pairs = np.loadtxt(options.ratings, np.int64, usecols=(0, 1))
    if options.speed:
        speed(pairs, options.splits)
        return
    print(f"{'':28}" + "".join(f"{name:>18}" for name in NAMES))
    for name, published in PUBLISHED.items():
        print(f"{name:28}" + "".join(f"{published.get(metric, float('nan')):18.4f}" for metric in NAMES))
    for name, settings in SETTINGS.items():
        if options.only not in (None, name):
            continue
        seeds = [99] if options.validate else range(options.splits)
        found = [quality(pairs, settings, seed, validates=options.validate) for seed in seeds]
        cells = [
            f"{statistics.mean(values):.4f} +- {statistics.pstdev(values):.4f}"
            for values in ([line[metric] for line in found] for metric in NAMES)
        ]
        print(f"{name:28}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
        if options.validate:
            print(json.dumps(found[0]))


if __name__ == "__main__":
    main()
