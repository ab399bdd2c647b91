"""Threads of torch beside those of the feed queue, and whether the machine has cores for both. Knows no model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import sanderling
from sanderling._native import cores_usable

# More than any machine has cores.
TORCH_THREADS_MAX = 4096


def trainers_here() -> int:
    """Trainers that torchrun has started on this machine."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(int(count), 1) if count.isdecimal() else 1


def choose(asked: int | None, feed_threads: int, cores: int | None = None) -> int:
    """Threads for torch: what was asked, what OMP_NUM_THREADS says, or this trainer's cores that the feed leaves."""
    if asked is not None:
        if not 1 <= asked <= TORCH_THREADS_MAX:
            raise sanderling.ConfigError(f"torch threads: {asked}: must be from 1 to {TORCH_THREADS_MAX}")
        return asked
    if os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()
    cores = cores_usable() if cores is None else cores
    return max(cores // trainers_here() - feed_threads, 1)


def overcommitment(torch_threads: int, feed_threads: int, cores: int | None = None) -> str | None:
    """Warning for more threads than cores, or None."""
    cores, trainers = cores_usable() if cores is None else cores, trainers_here()
    if (torch_threads + feed_threads) * trainers <= cores:
        return None
    each = f" of each of {trainers} trainers" if trainers > 1 else ""
    threads = f"{torch_threads} of torch and {feed_threads} of the feed queue{each}"
    return f"warning: more threads than cores: {threads} on {cores} cores; lower --torch-threads or train.threads"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Has torch compute with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
