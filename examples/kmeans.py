"""k-means over the embeddings of a table: sums over all workers are the next centroids, until nothing moves any more.

python examples/kmeans.py FILE.libsvm [CLUSTERS] [WORKERS]

The file's keys say which rows of the table are clustered. The table is made up here, with rows around three points; it
could as well be on servers (`sanderling.connect`). `crates/job/examples/kmeans.rs` is the same in Rust.
"""

import sys

import numpy as np
import numpy.typing as npt

import sanderling
from sanderling import Table, Worker

POINTS = np.array([[1, 1], [5, 1], [1, 5]], np.float32)
KEYS = 100_000
BATCH = 1024
ROUNDS = 100

# Centroids, and how many keys each has.
Clusters = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def made_up() -> Table:
    """A table with a row for every key: one of the points, by the key, and a little noise."""
    table = Table("items", 2, optimizer={"type": "sgd", "lr": 1.0}, init={"type": "zero"})
    keys = np.arange(KEYS, dtype=np.uint64)
    noise = np.random.default_rng(1).random((KEYS, 2), dtype=np.float32) - 0.5
    table.push(keys, -(POINTS[keys % 3] + noise))
    return table


def cluster(worker: Worker, table: Table, clusters: int) -> Clusters:
    """The same for all workers."""
    # The rows of the first keys that worker 0 has are where all begin.
    first = next(worker.batches(0, clusters), None)
    rows = np.zeros((clusters, 2)) if first is None else table.pull(first.keys("features"))[:clusters]
    begin = worker.broadcast("first centroids", 0, rows.astype(np.float64).tobytes())
    centroids = np.frombuffer(begin).reshape(clusters, 2)
    for round_ in range(1, ROUNDS):
        # Of every centroid the sum of its rows, then their number.
        sums = np.zeros((clusters, 3))
        for batch in worker.batches(round_, BATCH):
            rows = table.pull(batch.keys("features"))
            nearest = ((rows[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
            np.add.at(sums, nearest, np.column_stack([rows, np.ones(len(rows))]))
        sums = worker.sum("sums", sums.ravel()).reshape(clusters, 3)
        counts = sums[:, 2]
        before = centroids
        centroids = np.where(counts[:, None] > 0, sums[:, :2] / np.maximum(counts, 1)[:, None], before)
        # All have the same bits, so all stop together.
        if (centroids == before).all():
            return centroids, counts
    raise RuntimeError(f"the centroids still move after {ROUNDS} rounds")


def main() -> None:
    """Prints the centroids and how many keys each has."""
    clusters = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    table = made_up()
    job = sanderling.Job(sanderling.FileSource(sys.argv[1], train=False), workers=workers)
    centroids, counts = job.run(lambda worker: cluster(worker, table, clusters))[0]
    for centroid, keys in zip(centroids, counts, strict=True):
        sys.stdout.write(f"{keys:.0f} keys around {centroid.round(1).tolist()}\n")


if __name__ == "__main__":
    main()
