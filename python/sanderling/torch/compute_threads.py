"""Number of torch threads beside those of the feed queue, and a warning for more threads than cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import sanderling
from sanderling._native import cores_usable

# Upper limit of an explicit thread count; above the cores of any machine.
TORCH_THREADS_MAX = 4096


def trainers_here() -> int:
    """Return the number of trainers that torchrun started on this machine (LOCAL_WORLD_SIZE), at least 1."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(int(count), 1) if count.isdecimal() else 1


def choose(asked: int | None, feed_threads: int, cores: int | None = None) -> int:
    """Return the number of torch threads.

    It is `asked`, else torch's own number if OMP_NUM_THREADS is set, else this trainer's share of the cores minus the
    feed threads, at least 1. Raises ConfigError for an `asked` out of range.
    """
    if asked is not None:
        if not 1 <= asked <= TORCH_THREADS_MAX:
            raise sanderling.ConfigError(f"torch threads: {asked}: must be from 1 to {TORCH_THREADS_MAX}")
        return asked
    if os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()
    cores = cores_usable() if cores is None else cores
    return max(cores // trainers_here() - feed_threads, 1)


def overcommitment(torch_threads: int, feed_threads: int, cores: int | None = None) -> str | None:
    """Return a warning if all trainers here have more threads than there are cores, else None."""
    cores, trainers = cores_usable() if cores is None else cores, trainers_here()
    if (torch_threads + feed_threads) * trainers <= cores:
        return None
    each = f" of each of {trainers} trainers" if trainers > 1 else ""
    threads = f"{torch_threads} of torch and {feed_threads} of the feed queue{each}"
    return f"warning: more threads than cores: {threads} on {cores} cores; lower --torch-threads or train.threads"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads inside the `with` block, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
