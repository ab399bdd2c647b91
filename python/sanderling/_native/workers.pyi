"""Workers that train one model together: synchronous steps, jobs, their minibatches."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, final

import numpy as np
import numpy.typing as npt

from sanderling._native.arguments import _Keys, _Path, _Source
from sanderling._native.feed import Batch
from sanderling._native.tables import Connection, RemoteTable, Table
from sanderling._sources import FileSource, Tls

_Result = TypeVar("_Result")

@final
class Meeting:
    """Meeting point of the threads of one process for synchronous steps; each has its own `SyncGroup`."""

    def __new__(cls, tables: Sequence[Table], workers: int) -> Meeting: ...
    @property
    def workers(self) -> int:
        """Number of workers."""

@final
class SyncGroup:
    """A member of a group of workers in synchronous steps, at the servers of a `Connection` or at a `Meeting`.

    Each worker pushes its gradients of a step (`push_step`) and then waits (`wait`); when all have, the sums are
    applied once. Steps are numbered from 1 without gaps. `group` is a random number of the job, equal for all workers
    (ignored by a meeting); another number starts over. All workers make collective calls in one order. Every wait ends
    after `step_timeout_s` seconds with a GroupError that names missing workers. A replacement of a dead worker has a
    higher `attempt` and continues after the step `applied`. Use from one thread; the interpreter lock is released.
    """

    def __new__(
        cls,
        place: Connection | Meeting,
        group: int,
        worker: int,
        workers: int,
        *,
        attempt: int = 0,
        step_timeout_s: float = 60.0,
    ) -> SyncGroup: ...
    @property
    def worker(self) -> int:
        """Rank of this worker, from 0."""
    @property
    def workers(self) -> int:
        """Number of workers."""
    @property
    def applied(self) -> int:
        """Last applied step known to this worker."""
    def push_step(
        self,
        table: Table | RemoteTable,
        step: int,
        keys: _Keys,
        grads: npt.NDArray[np.float32],
        *,
        lr: float | None = None,
        lr_scale: float = 1.0,
        counts: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Add gradients, float32 [n, dim], to a step; gradients of a key are summed over all workers.

        All workers pass equal `lr` and `lr_scale`, as in `Table.push`. `counts` is the number of occurrences of each
        key, by default 1. An applied step does not change. After an error, push the whole step again.
        """
    def wait(self, step: int) -> None:
        """Finish the part of this worker, perhaps empty, and wait until the step is applied everywhere."""
    def progress(self, step: int, bound: int) -> int:
        """Report an asynchronously pushed step; wait while the slowest worker is over `bound` steps behind.

        Returns the lag of the slowest worker in steps.
        """
    def barrier(self, name: str) -> None:
        """Wait for all workers."""
    def all_gather(self, name: str, value: bytes) -> list[bytes]:
        """Gather the bytes of all workers, in the order of ranks.

        At most 1 MiB per worker; at servers, also an equal share of just under 16 MiB.
        """
    def broadcast(self, name: str, source: int, value: bytes) -> bytes:
        """Send the bytes of worker `source` to all workers."""
    def all_reduce(
        self, name: str, values: npt.NDArray[np.float64], reduce: Literal["sum", "mean", "max"] = "sum"
    ) -> npt.NDArray[np.float64]:
        """Reduce each number over all workers, float64; the result is bit-identical for all."""

@final
class Job:
    """Passes over files shared by several workers; each works with a `Worker` of its own.

    Workers are `workers` threads, or with `hosts` one process per address, of which this is number `rank`. Processes
    make equal Jobs except for `rank`, connect to each other at these addresses (`host:port` or `unix:PATH`), and meet
    at the parameter servers of `connection`. Further options are as in `sanderling train --hosts`: all processes pass
    equal `token` and `attempt`; `tls` with `ca`, `cert` and `key` enables TLS; `expose` accepts connections from other
    machines. A worker silent for `worker_timeout_s` seconds is lost: all stop, or with
    `on_worker_loss="redo"` the others take over its rows. Unreachable, refused, slow and lost workers are warnings of
    the logger "sanderling".

    `source` is a `FileSource`, or its inputs alone: a path, a glob pattern, or a list of them, with threads also rows
    in memory. Its `seed` selects shuffled orders.
    Every wait for other workers ends after `timeout_s` seconds with a GroupError that names missing workers. At most
    `shuffle_bytes_max` bytes of shuffled rows stay in memory, the rest goes to temporary files in `scratch_dir`.
    """

    def __new__(
        cls,
        source: FileSource | _Source,
        *,
        workers: int = 1,
        timeout_s: float = 60.0,
        shuffle_bytes_max: int = 100663296,
        scratch_dir: _Path | None = None,
        hosts: list[str] | None = None,
        rank: int | None = None,
        connection: Connection | None = None,
        attempt: int = 0,
        on_worker_loss: Literal["stop", "redo"] = "stop",
        worker_timeout_s: float = 30.0,
        token: str | None = None,
        tls: Tls | None = None,
        expose: bool = False,
        insecure: bool = False,
        tables: Sequence[Table | RemoteTable] = ...,
    ) -> Job: ...
    @property
    def features(self) -> list[str]:
        """Names of the columns of the minibatches."""
    def __enter__(self) -> Job: ...
    def __exit__(self, *error: object) -> None: ...
    def run(self, work: Callable[[Worker], _Result]) -> list[_Result]:
        """Call `work` with each worker of this process in its own thread; returns results in rank order.

        With `hosts` there is one. The first error stops all workers and is raised. All workers make collective calls
        in one order. Ctrl-C stops waiting or reading workers, and the others at their next call; workers in other
        processes raise StoppedError. A second Ctrl-C ends this process.
        """

@final
class Worker:
    """A worker of a Job, valid until `work` returns. The interpreter lock is released during the work."""

    @property
    def rank(self) -> int:
        """Rank of this worker, from 0."""
    @property
    def workers(self) -> int:
        """Number of workers."""
    def batches(
        self,
        number: int,
        batch_size: int,
        *,
        order: Literal["input", "shuffled"] = "input",
        in_step: bool = False,
    ) -> Batches:
        """Minibatches of this worker in pass `number`; all workers call it with equal arguments.

        Together the workers get every row once, in file order or shuffled over all workers, with a new order per pass.
        Different arguments raise GroupError if workers meet, that is when shuffled or `in_step`; in file order, the
        rows of a worker that does not call it are lost.

        With `in_step`, all workers have an equal number of minibatches, some perhaps empty; minibatches of one number
        have `batch_size` rows together, independent of the number of workers. Pushed gradients without `end_step` are
        an error at the next minibatch. With `on_worker_loss="redo"`, each minibatch ends with `end_step`, before any
        other collective call.
        """
    def sum(self, name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sum each number over all workers; the result is bit-identical for all."""
    def mean(self, name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Average each number over all workers; the result is bit-identical for all."""
    def max(self, name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the maximum of each number over all workers."""
    def histogram(self, name: str, counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Sum the counts of all workers; the result is as long as the longest list."""
    def all_to_all(self, name: str, parts: list[bytes]) -> list[bytes]:
        """Send `parts[n]` to worker `n`; returns the parts received, in the order of ranks.

        With `on_worker_loss="redo"` the number of parts stays: the part from a lost worker is empty, and the part for
        a lost worker must be empty, otherwise ConfigError names it. `all_gather` of the ranks shows the rest.
        """
    def all_gather(self, name: str, value: bytes) -> list[bytes]:
        """Gather the bytes of all workers, in the order of ranks.

        At most 1 MiB per worker; at servers, also an equal share of just under 16 MiB.
        """
    def broadcast(self, name: str, source: int, value: bytes) -> bytes:
        """Send the bytes of worker `source` to all workers."""
    def barrier(self, name: str) -> None:
        """Wait for all workers."""
    def push_step(
        self,
        table: Table | RemoteTable,
        keys: _Keys,
        grads: npt.NDArray[np.float32],
        *,
        lr: float | None = None,
        lr_scale: float = 1.0,
        counts: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Add gradients, float32 [len(keys), dim], to the current step; gradients of a key are summed over all workers.

        Each gradient is rounded once to a multiple of 2^-40, and sums are exact: with a gradient per sample they do
        not depend on the distribution of samples. Threads pass their tables to the Job (`tables`). `counts` is the
        number of occurrences of each key. Nothing is applied before `end_step`; continuing or returning without it
        raises ConfigError.
        """
    def end_step(self) -> bool:
        """Wait for the parts of all workers, perhaps empty, and until the step is applied once.

        Returns False if another worker was lost before: nothing is applied, and the next minibatch repeats this step
        with its rows redistributed. Count statistics of a minibatch only if this returns True.
        """

@final
class Batches:
    """Iterator of the minibatches of a worker in one pass."""

    def __iter__(self) -> Batches: ...
    def __next__(self) -> Batch: ...
