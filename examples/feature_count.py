"""How often each feature value occurs: every worker counts in its share, then each key's counts meet at one worker.

python examples/feature_count.py FILE.libsvm [WORKERS]

Its workers are threads, or processes on one host or several, each with its rank, which meet at a parameter server:

sanderling ps --listen 127.0.0.1:7000
HOSTS=127.0.0.1:7300,127.0.0.1:7301
python examples/feature_count.py FILE.libsvm --ps tcp://127.0.0.1:7000 --hosts $HOSTS --rank 0
python examples/feature_count.py FILE.libsvm --ps tcp://127.0.0.1:7000 --hosts $HOSTS --rank 1

The file may be larger than memory; the distinct keys may not. Should one of the processes die, all stop: nobody else
has what it has counted. The same in Rust: crates/job/examples/feature_count.rs.
"""

import argparse
import sys

import numpy as np
import numpy.typing as npt

import sanderling
from sanderling import FileSource, Job, Worker

BATCH = 4096
PRINTED = 10

# Keys and, in the same order, how often each occurs.
Counts = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]


def added(keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]) -> Counts:
    """Each key once."""
    unique, places = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), np.uint64)
    np.add.at(sums, places, counts)
    return unique, sums


def to_bytes(keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]) -> bytes:
    """What is sent to another worker."""
    return np.stack([keys, counts]).tobytes()


def from_bytes(parts: list[bytes]) -> Counts:
    """What several workers sent, added up."""
    keys, counts = np.concatenate([np.frombuffer(part, np.uint64).reshape(2, -1) for part in parts], axis=1)
    return added(keys, counts)


def most_frequent(keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]) -> Counts:
    """The first of them, most frequent first."""
    order = np.lexsort((keys, -counts.astype(np.int64)))[:PRINTED]
    return keys[order], counts[order]


def count(worker: Worker) -> Counts:
    """Returns the keys that occur most often, the same for all workers."""
    keys = np.zeros(0, np.uint64)
    counts = np.zeros(0, np.uint64)
    for batch in worker.batches(0, BATCH):
        new = batch.keys("features")
        keys, counts = added(np.concatenate([keys, new]), np.concatenate([counts, np.ones(len(new), np.uint64)]))
    # Each key is added up by one worker.
    owners = keys % worker.workers
    parts = [to_bytes(keys[owners == owner], counts[owners == owner]) for owner in range(worker.workers)]
    sums = from_bytes(worker.all_to_all("counts", parts))
    # The most frequent of all are among the most frequent of each.
    return most_frequent(*from_bytes(worker.all_gather("most frequent", to_bytes(*most_frequent(*sums)))))


def job_of(arguments: argparse.Namespace) -> Job:
    """By threads or by processes: what the workers do is the same."""
    source = FileSource(arguments.file, train=False)
    if arguments.hosts is None:
        return Job(source, workers=arguments.workers)
    hosts = arguments.hosts.split(",")
    connection = sanderling.connect(arguments.ps)
    return Job(source, hosts=hosts, rank=arguments.rank, connection=connection)


def main() -> None:
    """Prints the keys that occur most often."""
    parser = argparse.ArgumentParser(description="Counts how often each feature value occurs.")
    parser.add_argument("file")
    parser.add_argument("workers", nargs="?", type=int, default=2, help="threads, unless there are --hosts")
    parser.add_argument("--hosts", help="addresses of all processes, with commas between them")
    parser.add_argument("--rank", type=int, help="which of them this one is, from 0")
    parser.add_argument("--ps", help="address of the parameter servers where they meet")
    job = job_of(parser.parse_args())
    for key, times in zip(*job.run(count)[0], strict=True):
        sys.stdout.write(f"{key} {times}\n")


if __name__ == "__main__":
    main()
