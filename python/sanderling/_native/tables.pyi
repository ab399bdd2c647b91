"""Tables of this process and of servers, connections, checkpoints of tables.

Shapes: `n` keys of a request, `dim` weights of a row, `rows` rows of a table.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from sanderling._native.arguments import _Keys, _Path
from sanderling._sources import Tls

@final
class Table:
    """An embedding table: rows of weights found by 64-bit key and updated by the optimizer of the table.

    `optimizer` is a type with settings, `{"type": "adam", "lr": 1e-3}`, or a type alone, `"adam"`. Types, defaults,
    and state per row:

    - `sgd`: lr 0.01, l2 0; no state
    - `momentum`: lr 0.01, momentum 0.9, l2 0; a velocity per weight
    - `adagrad`: lr 0.01, eps 1e-10, initial 0, l2 0; a sum of squares per weight
    - `row_adagrad`: settings of `adagrad`; a sum of mean squares per row
    - `adam`: lr 0.001, beta1 0.9, beta2 0.999, eps 1e-8, l2 0; two moments per weight, a count of pushes per row
    - `adamw`: settings of `adam`, with decay 0.01 in place of l2
    - `ftrl`: alpha 0.1, beta 1, l1 0, l2 0; z and n per weight

    The default is `sgd`. All optimizers are lazy: they change pushed rows only. `init` is the distribution of initial
    weights: `{"type": "zero"}` (default), `{"type": "normal", "std": ...}` or `{"type": "uniform", "bound": ...}`.
    `seed` selects them. `budget_bytes` limits the memory of index and rows.

    `dtype` is the storage type of weights; optimizer state and all arrays are float32. `admission` selects new keys
    that get a row: "always" (default), keys pushed in n requests (`{"type": "sightings", "sightings": n}`), or a
    random share (`{"type": "probability", "probability": p}`). `eviction` selects rows to remove when the budget is
    used up: "never" (default; a push then raises TableFullError), the longest unused rows ("clock"), rows unused for n
    pushes (`{"type": "age", "pushes": n}`, n below 2^31), or rows of small norm (`{"type": "norm", "below": x}`).
    `writes`: update rows in place or copy on write. `packing` is how densely rows and index are stored: "fast"
    (default), or "compact" for the fewest bytes.

    `kept` is a folder, best of a tmpfs such as /dev/shm, in which the table outlives the process: the next
    `Table(name, dim, kept=...)` finds every push that had returned, also after a kill, but not after a reboot. One
    process at a time can use it.

    Arrays must have the stated dtype; others raise TypeError. Contiguous arrays are used without a copy. Several
    threads may use a table; the interpreter lock is released during the work.
    """

    def __new__(
        cls,
        name: str,
        dim: int,
        *,
        optimizer: dict[str, Any] | str | None = None,
        init: dict[str, Any] | str | None = None,
        seed: int = 42,
        budget_bytes: int | None = None,
        dtype: Literal["f32", "f16", "bf16"] | None = None,
        admission: dict[str, Any] | str | None = None,
        eviction: dict[str, Any] | str | None = None,
        writes: Literal["in_place", "copy_on_write"] | None = None,
        packing: Literal["fast", "compact"] | None = None,
        kept: _Path | None = None,
    ) -> Table: ...
    @property
    def name(self) -> str:
        """Name of the table in errors and checkpoints."""
    @property
    def kept(self) -> Path | None:
        """Folder that keeps the table beyond the process; None for a table in private memory."""
    @property
    def attached(self) -> str | None:
        """State of that folder when it was opened: created or attached, rows, repaired changes, cost of its pages."""
    @property
    def dim(self) -> int:
        """Number of weights per row."""
    @property
    def lr(self) -> float | None:
        """Learning rate of the optimizer; None for FTRL, and for blocks with different rates."""
    @property
    def bytes(self) -> int:
        """Memory of index and rows, in bytes."""
    @property
    def blocks(self) -> list[dict[str, Any]]:
        """Blocks of a row, each with `dims`, `init` and `optimizer`."""
    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the table with defaults filled in, without name and width.

        `blocks`, `seed`, `budget_bytes`, `dtype`, `admission`, `eviction`, `writes`, `packing`.
        """
    def stats(self) -> dict[str, int]:
        """Sizes and counters.

        `rows`, `free_rows`, `pushes`, `index_bytes`, `slab_bytes`, `huge_bytes`, `admitted`, `rejected`, `evicted`,
        `rejected_full`, `promoted`.
        """
    def reserve(self, rows: int) -> bool:
        """Reserve index space for this total number of rows; returns False if the memory limit is too low."""
    def maintain(self, rows: int = 4096) -> dict[str, int]:
        """Promote up to `rows` hot keys in the index, and check the next `rows` rows for eviction.

        Eviction by age or norm removes rows that are too old or too small. Returns `sampled`, `promoted`, `evicted`,
        and `moved`: parts of a growing index that this call moved.
        """
    def __len__(self) -> int: ...
    def __contains__(self, key: int, /) -> bool: ...
    def count_known(self, keys: _Keys) -> int:
        """Return how many of the keys have a row; repeated keys count each time."""
    def pull(
        self,
        keys: _Keys,
        *,
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return rows by key, float32 [n, dim]; never creates a row.

        An unknown key gives its initial row, or zeros with `absent="zero"`. Fills and returns `out`, C-contiguous.
        """
    def pull_pooled(
        self,
        keys: _Keys,
        offsets: npt.NDArray[np.uint32],
        *,
        values: npt.NDArray[np.float32] | None = None,
        pooling: Literal["sum", "mean"] = "sum",
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return one pooled row per bag of keys, float32 [len(offsets) - 1, dim].

        Bag `i` is `keys[offsets[i]:offsets[i + 1]]`; each row is multiplied by its value if `values` is given. An
        empty bag gives zeros.
        """
    def push(
        self, keys: _Keys, grads: npt.NDArray[np.float32], *, lr: float | None = None, lr_scale: float = 1.0
    ) -> None:
        """Apply gradients, float32 [n, dim]; missing rows are created.

        Gradients of a repeated key are summed, then its row is updated once. `lr` is the learning rate of this push,
        by default the rate of the optimizer; `lr_scale` is a factor on it. Raises ConfigError for `lr` with FTRL, or
        with blocks of different rates.
        """
    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of all rows, uint64 [rows].

        `keys()`, `rows()` and `frequency()` have one order as long as no rows are pushed or removed.
        """
    def rows(self) -> npt.NDArray[np.float32]:
        """Weights of all rows, float32 [rows, dim]."""
    def frequency(self) -> npt.NDArray[np.uint32]:
        """Number of pushes of each key, duplicates included, uint32 [rows]."""
    def remove(self, keys: _Keys) -> int:
        """Remove rows; returns the number of removed rows."""
    def clear(self) -> None:
        """Remove all rows."""
    def save(self, directory: _Path, *, delta: bool = False) -> None:
        """Write a checkpoint with this table only.

        An earlier checkpoint in the directory stays intact until the new one is complete. With `delta`, what changed
        since the last save with `delta` is added to it; the first one, and one where that is not possible, is full.
        """
    @staticmethod
    def load(directory: _Path, name: str | None = None) -> Table:
        """Load a table from a checkpoint; `name` is optional if there is only one table."""

@final
class RemoteTable:
    """A table on parameter servers, made by a `Connection`; has the requests of `Table`.

    Rows equal the rows of a `Table` with this configuration. Several threads may use a table, each with connections of
    its own. The interpreter lock is released during requests. After an error of one server, other servers may have
    applied their part of a push.
    """

    @property
    def name(self) -> str:
        """Name of the table on the servers."""
    @property
    def dim(self) -> int:
        """Number of weights per row."""
    @property
    def lr(self) -> float | None:
        """Learning rate of the optimizer; None for FTRL, and for blocks with different rates."""
    @property
    def bytes(self) -> int:
        """Memory on all servers, in bytes."""
    @property
    def blocks(self) -> list[dict[str, Any]]:
        """Blocks of a row, each with `dims`, `init` and `optimizer`."""
    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the table with defaults filled in, without name and width.

        `blocks`, `seed`, `budget_bytes` (share of one server), `dtype`, `admission`, `eviction`, `writes`, `packing`.
        """
    def stats(self) -> dict[str, int]:
        """Sizes over all servers: `rows`, `bytes`. See `sanderling ctl stats` for counters."""
    def __len__(self) -> int: ...
    def __contains__(self, key: int, /) -> bool: ...
    def pull(
        self,
        keys: _Keys,
        *,
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return rows by key, float32 [n, dim]; never creates a row."""
    def pull_pooled(
        self,
        keys: _Keys,
        offsets: npt.NDArray[np.uint32],
        *,
        values: npt.NDArray[np.float32] | None = None,
        pooling: Literal["sum", "mean"] = "sum",
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return one pooled row per bag of keys, float32 [len(offsets) - 1, dim]; servers pool."""
    def push(
        self, keys: _Keys, grads: npt.NDArray[np.float32], *, lr: float | None = None, lr_scale: float = 1.0
    ) -> None:
        """Apply gradients, float32 [n, dim], exactly once, even if a connection breaks."""
    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of all rows, uint64 [rows]."""
    def rows(self) -> npt.NDArray[np.float32]:
        """Weights of all rows, float32 [rows, dim]."""
    def frequency(self) -> npt.NDArray[np.uint32]:
        """Number of pushes of each key, duplicates included, uint32 [rows]."""
    def remove(self, keys: _Keys) -> int:
        """Remove rows; returns at least the number of removed rows (a retried request counts again)."""
    def clear(self) -> None:
        """Remove all rows; rows pushed concurrently may remain."""

@final
class Connection:
    """Connections to the servers of a cluster; made by `connect`."""

    @property
    def servers(self) -> list[str]:
        """Addresses in use, by shard."""
    def __enter__(self) -> Connection: ...
    def __exit__(self, *error: object) -> None: ...
    def close(self) -> None:
        """Close the connection; its methods raise ConfigError from then on.

        Tables that it opened stay usable; the sockets close with the last of them.
        """
    def table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: dict[str, Any] | str | None = None,
        init: dict[str, Any] | str | None = None,
        seed: int = 42,
        budget_bytes: int | None = None,
        dtype: Literal["f32", "f16", "bf16"] | None = None,
        admission: dict[str, Any] | str | None = None,
        eviction: dict[str, Any] | str | None = None,
        writes: Literal["in_place", "copy_on_write"] | None = None,
        packing: Literal["fast", "compact"] | None = None,
    ) -> RemoteTable:
        """Create a table, or open an existing one with this configuration; see `Table`.

        Each server gets an equal share of `budget_bytes`.
        """
    def open(self, name: str) -> RemoteTable:
        """Open an existing table."""
    def drop(self, name: str) -> bool:
        """Drop a table on all servers; returns whether it existed."""
    def save(self, checkpoint: str, *, timeout_s: float = 600.0) -> int:
        """Save all tables of every server as a named checkpoint; returns the number of rows.

        Each server saves a state of its own moment. Names have letters, digits, `.`, `_`, `-` and `/`, below --data of
        the server. An earlier checkpoint of this name stays intact until the new one is complete.
        """
    def restore(self, checkpoint: str, *, timeout_s: float = 600.0) -> int:
        """Restore all tables of every server from a named checkpoint; returns the number of rows.

        Open tables must be opened again. `timeout_s` is in seconds.
        """

def export_traces(url: str | None, *, every: int = 1000, name: str = "") -> None:
    """Export traces of connections and hub queues that are opened from now on, by OTLP over HTTP to a collector.

    One in `every` requests and minibatches is traced, for example `export_traces("127.0.0.1:4318", every=100)`. `name`
    tells this trainer from others. None as `url` ends the export and posts what waits, as the end of the process does.
    """

def connect(
    address: str,
    *,
    token: str | None = None,
    tls: Tls | None = None,
    timeout_s: float = 20.0,
    prefer_local: bool = True,
    f16_rows: bool = False,
    compression: Literal["lz4", "zstd"] | None = None,
    hedge: str | None = None,
    pull_from: Literal["primary", "any"] = "primary",
) -> Connection:
    """Connect to all servers of a cluster; addresses are separated by commas.

    An address is "tcp://host:port", "unix:PATH" or "shm:NAME". `token` is the auth token of the servers, by default
    the generated token of a server of this user and host. `tls` enables TLS, `Tls("ca.pem")`, and may have the token.

    `timeout_s` is the request timeout in seconds, also while a server is unreachable. A server that has not answered
    for a second is logged as a warning of the logger "sanderling", and again after twice the time. With
    `prefer_local`, servers of this host are reached over the fastest transport that they offer.

    Ctrl-C in the main thread raises KeyboardInterrupt in a waiting call; the servers may still carry out the request.
    Background pushes then give up servers that do not answer for a second.

    For slow links: `f16_rows` sends pulled rows in half precision (relative error at most 2^-11; below 2^-14 absolute
    error at most 2^-25; larger values become 65504). `compression` applies to requests and answers of 1 KiB and more
    over TCP. `hedge`, "p95" or a time such as "500us", repeats slower pulls over a second connection (at most 5 %).

    In a cluster, `pull_from="any"` spreads the pulls of connections over the replicas of each group. Pulled rows may
    then lack pushes of the last moments, also own ones.
    """

def save_tables(directory: _Path, tables: Sequence[Table]) -> None:
    """Write a checkpoint of several tables."""

def download_tables(directory: _Path, tables: Mapping[str, RemoteTable]) -> None:
    """Write a checkpoint of tables on servers, given by their names in the checkpoint; do not push meanwhile.

    Rows have their optimizer state and frequency. They are written as they arrive: a table may be larger than memory.
    """

def upload_tables(directory: _Path, tables: Mapping[str, RemoteTable]) -> None:
    """Add the rows of a checkpoint to tables on servers, given by their names in the checkpoint.

    Rows that exist are replaced. Raises ServerError for a table of another width or optimizer.
    """

def checkpoint_tables(directory: _Path) -> list[str]:
    """Return the names of the tables in a checkpoint."""
