"""Type stubs of the native module, which crates/python builds; `stubtest` compares the two.

Shapes: `n` keys of a request, `dim` weights of a row, `rows` rows of a table.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, final

import numpy as np
import numpy.typing as npt

from sanderling.types import Evaluation, Metrics

_Path: TypeAlias = str | os.PathLike[str]
# Signed or unsigned: the 64 bits are the key.
_Keys: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.int64]
# Arrays of any numeric type, or bool.
_Numbers: TypeAlias = npt.NDArray[np.number[Any] | np.bool]
_Result = TypeVar("_Result")

class _Collection(Protocol):
    """An object with an Embedding, such as `sanderling.torch.EmbeddingCollection`."""

    @property
    def native(self) -> Embedding: ...

__all__ = [
    "DEEP_MODELS",
    "BadFileError",
    "BadRowError",
    "Batch",
    "Batches",
    "ConfigError",
    "Connection",
    "DamagedError",
    "DivergedError",
    "DuplicateNameError",
    "Embedding",
    "Error",
    "FeedQueue",
    "FileError",
    "GradientError",
    "GroupError",
    "HubError",
    "Hubs",
    "Job",
    "LengthError",
    "Lookup",
    "Meeting",
    "Model",
    "ModelError",
    "NoRowsError",
    "NotFoundError",
    "OffsetsError",
    "RemoteTable",
    "ServerError",
    "StoppedError",
    "SyncGroup",
    "Table",
    "TableFullError",
    "TooManyBadRowsError",
    "TrainResult",
    "VersionError",
    "Worker",
    "__version__",
    "checkpoint_tables",
    "cli_main",
    "connect",
    "cores_usable",
    "give_up_silent",
    "load",
    "metrics",
    "parse_duration_s",
    "parse_size_bytes",
    "read_once",
    "remarks_of",
    "render_report",
    "save_tables",
    "train",
    "value_key",
]

RENAMED_OPTIONS: list[tuple[str, str]]
"""Old and new names of renamed options of the command line."""

RENAMED_ENTRIES: list[tuple[str, str, str]]
"""Sections, old and new names of renamed entries of configurations."""

DEEP_MODELS: tuple[str, ...]
"""Values of `model.type` for deep models, which are trained in PyTorch."""

__version__: str

class Error(Exception):
    """Base class of all errors of Sanderling."""

class ConfigError(Error):
    """A configuration contradicts itself or has an unknown or impossible entry."""

class LengthError(Error):
    """The lengths of the arrays of a request differ; nothing was read or applied."""

class OffsetsError(Error):
    """Offsets of a pooled pull do not ascend from 0 to the number of keys."""

class GradientError(Error):
    """A gradient or its scale is not finite or too large; nothing was applied."""

class TableFullError(Error):
    """New keys exceed the memory limit of the table; the message has their number."""

class FileError(Error):
    """A file could not be opened, read or written."""

class DamagedError(Error):
    """A checkpoint file is truncated, corrupted, or of another format."""

class VersionError(Error):
    """A file of a checkpoint was written by a newer version."""

class DuplicateNameError(Error):
    """Two tables of one checkpoint have the same name."""

class NotFoundError(Error):
    """A checkpoint or a model does not contain the requested item."""

class BadRowError(Error):
    """A row violates the format or the spec; the message names file, line and column."""

class TooManyBadRowsError(Error):
    """More rows were bad than `on_bad_row` allows."""

class BadFileError(Error):
    """A data file is not of its format."""

class NoRowsError(Error):
    """The input had no rows."""

class ModelError(Error):
    """A saved model exists but cannot be used."""

class DivergedError(Error):
    """Training diverged: a prediction or a weight is infinite or NaN."""

class ServerError(Error):
    """A parameter server refused a request, timed out, or was restarted; the message names the server."""

class GroupError(Error):
    """Workers in synchronous steps timed out or disagree; the message names missing workers."""

class HubError(Error):
    """A hub refused a request, timed out, or could not read its input; the message names the hub."""

class StoppedError(Error):
    """Work was stopped before anything was saved."""

@final
class Batch:
    """A minibatch of samples in columns: labels, weights, and a ragged list of keys per feature.

    The keys of sample i of a feature are `keys[offsets[i]:offsets[i + 1]]`. Arrays are views into the memory of the
    minibatch and keep it alive. Keys, offsets and values are read-only.
    """

    def __new__(
        cls,
        columns: Sequence[tuple[str, _Keys, npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]],
        labels: npt.NDArray[np.float32] | None = None,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> Batch:
        """Make a minibatch from columns: (feature, keys, offsets from 0, values or None); arrays are copied.

        Raises OffsetsError and LengthError for arrays of wrong sizes, and ConfigError for a repeated feature.
        """
    def __len__(self) -> int: ...
    @property
    def features(self) -> list[str]:
        """Names of the columns."""
    @property
    def number(self) -> int:
        """Number of the minibatch in its source, from 0."""
    @property
    def pass_number(self) -> int:
        """Number of the pass over the source, from 0."""
    @property
    def labels(self) -> npt.NDArray[np.float32]:
        """Labels, float32 [samples]: 0 or 1; NaN without a label."""
    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Row weights, float32 [samples]."""
    @property
    def lookup(self) -> Lookup | None:
        """Embedding rows of the batch; None unless a FeedQueue with an Embedding made it."""
    def keys(self, feature: str) -> npt.NDArray[np.uint64]:
        """Keys of a feature, uint64 [keys], sample after sample."""
    def offsets(self, feature: str) -> npt.NDArray[np.uint32]:
        """Offsets of a feature, uint32 [samples + 1]."""
    def values(self, feature: str) -> npt.NDArray[np.float32] | None:
        """Values of a feature, float32 [keys]; None if every key has the value 1."""

@final
class Embedding:
    """Tables in this process or on servers, and a mapping from features to tables and poolings.

    `features` are (feature name, index of the table, pooling). Poolings: "sum" (each row times its value), "mean" and
    "max" (values are ignored), "none" (a row per key). A feature may occur several times.

    `absent` selects the row of an unknown key: its initial row, or zeros. With "zero", unknown keys are not pushed, so
    no row is created. At most `pushes` pushes are outstanding; a lookup may miss their updates. With 0, a push returns
    after it has been applied.

    `pool_at` selects where rows of tables on servers are pooled. "auto": on the servers if this saves more than a
    quarter of the bytes, per feature and minibatch, otherwise in the trainer. "servers": on the servers if possible,
    that is for "sum" and "mean" of a feature that alone reads its table, with `absent` "init". `pooled_at` counts
    both. Sums over several servers may differ from sums in the trainer in the last bits.
    """

    def __new__(
        cls,
        tables: Sequence[Table] | Sequence[RemoteTable],
        features: Sequence[tuple[str, int, str]],
        *,
        absent: Literal["init", "zero"] = "init",
        pushes: int = 8,
        pool_at: Literal["auto", "trainer", "servers"] = "trainer",
    ) -> Embedding: ...
    @property
    def pooled_at(self) -> dict[str, dict[str, int]]:
        """Features and bytes pooled by the `trainer` and by the `servers`, for tables on servers.

        `hub`: pooled on servers from keys fed by a hub. `late`: the part of it that another trainer has pushed.
        """
    @property
    def dims(self) -> list[int]:
        """Row width of each feature."""
    @property
    def width(self) -> int:
        """Number of columns of `Lookup.pooled`: the sum of the widths of the pooled features."""
    @property
    def pushed(self) -> int:
        """Number of pushes so far."""
    @property
    def applied(self) -> int:
        """Number of pushes that were applied or failed so far."""
    def lookup(self, batch: Batch) -> Lookup:
        """Look up the rows of a minibatch without waiting for outstanding pushes.

        The rows may miss the last `pushes` pushes; after `finish` they miss none. Raises ConfigError for a feature
        that the batch lacks, ServerError, and the error of an earlier push.
        """
    def finish(self) -> None:
        """Wait until all pushes are applied; raises the error of a failed push."""

@final
class Lookup:
    """Rows of one minibatch, and the gradients of its distinct rows.

    Arrays are views that keep the lookup alive.
    """

    @property
    def pooled(self) -> npt.NDArray[np.float32]:
        """Pooled rows of all features side by side, float32 [samples, width]."""
    @property
    def unique_keys(self) -> int:
        """Number of distinct keys over all tables."""
    @property
    def missing(self) -> int:
        """Number of distinct keys without a row."""
    @property
    def staleness(self) -> int:
        """Number of pushes of other minibatches applied between this lookup and its push, or until now."""
    def rows(self, feature: int) -> npt.NDArray[np.float32]:
        """Rows of the feature at this index, float32 [keys, dim]; its pooling must be "none"."""
    def is_of(self, embedding: Embedding) -> bool:
        """Whether the rows come from the tables of this embedding."""
    def add_grads(
        self,
        pooled: npt.NDArray[np.float32] | None = None,
        rows: dict[int, npt.NDArray[np.float32]] | None = None,
    ) -> None:
        """Add to the gradients of the rows without pushing them.

        `pooled` has the shape of `Lookup.pooled`; `rows` maps the index of a feature to an array shaped like its
        `rows`. Raises LengthError for other shapes; then nothing is added.
        """
    def grad_norm_squared(self) -> float:
        """Sum of squares of the gradients of all distinct rows."""
    def scale_grads(self, factor: float) -> None:
        """Multiply the gradients by a factor."""
    def take_gradients(
        self,
    ) -> list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]]:
        """Take the gradients instead of pushing them, for synchronous steps (`SyncGroup.push_step`).

        Returns per table of the Embedding: distinct keys, count of each key, gradients float32 [keys, dim].
        """
    def note_applied(self) -> None:
        """Report that the taken gradients have been applied.

        A hub counts a pushed minibatch as used when the trainer asks for the next one, or drops the queue.
        """
    def push(
        self, *, lr: float | Sequence[float] | None = None, lr_scale: float | Sequence[float] | None = None
    ) -> None:
        """Push the gradients in the background; allowed once per lookup. Blocks while too many pushes are outstanding.

        `lr` is the learning rate of this push, `lr_scale` a factor on the learning rate: a number for all tables, or a
        list with one per table. Without `lr`, each table uses its own rate. FTRL has no `lr` and cannot be scaled. May
        raise the error of an earlier push; then nothing of this one is pushed. A hub counts the minibatch as used
        after its push was applied. If the push fails, the queue raises the error and ends, and the hub gives the
        minibatch to a restarted trainer.
        """

@final
class Hubs:
    """A subscription to hubs, `"hub://host:port,host:port"`, as the source of one FeedQueue.

    Nothing is requested before the queue exists. `threads` and `depth` are the options of the queue; the other
    arguments are as in `FeedQueue`. Raises HubError if a hub is unreachable for more than `hub_timeout_s` seconds, and
    ConfigError if `spec` differs from the spec of the hubs; the message names the difference.
    """

    def __new__(
        cls,
        address: str,
        *,
        spec: dict[str, Any] | None = None,
        threads: int = 2,
        depth: int = 8,
        rank: int = 0,
        ranks: int = 1,
        name: str = "trainer",
        hub_token: str = "",
        hub_timeout_s: float = 60.0,
        hub_compression: Literal["lz4", "zstd"] | None = None,
        hub_ca_file: _Path | None = None,
    ) -> Hubs: ...
    @property
    def spec(self) -> dict[str, Any] | None:
        """Spec of the rows, as in `FeedQueue.spec`."""
    @property
    def served(self) -> list[dict[str, Any]]:
        """Properties of each hub, as in `FeedQueue.hubs`."""

@final
class FeedQueue:
    """An iterator of minibatches that threads read, decode and, with an Embedding, look up ahead of the trainer.

    `source` is a path, a glob pattern, or a list of them. `spec` has the sections `data`, `label`, `weight`,
    `negatives` and `feature` of a run configuration (docs/configuration.md).

    - `batch_size`: rows per minibatch. `shuffle_rows`: rows in the shuffle buffer; 0: input order.
    - `ordered`: minibatches come in a fixed order for any number of threads.
    - `rank`, `ranks`: of every `ranks` minibatches, this queue takes number `rank`.
    - `used_rows`: rows of the first pass to skip, counted over all ranks, because an earlier run has used them.
    - `depth`, `depth_bytes`: limits on ready minibatches.
    - `train=False`: rows without labels are accepted, all negatives are kept, and a skipped bad row keeps its place
      with no keys and NaN as label and weight.
    - `on_statistics`: called with a report every `statistics_every_s` seconds (0: never), before the next minibatch is
      taken. The iteration raises an error of the callback; the next call continues with that minibatch.

    `source` may also be hubs, `"hub://host:port,host:port"` or a `Hubs`. Hubs decide on batch size, passes and order.
    `name` identifies this trainer: keep it over restarts and use it once. Asking for the next minibatch acknowledges
    the previous one, after its push was applied. Hubs give unacknowledged minibatches of a dead trainer to others.
    `spec` is compared with the spec of the hubs, except for `data`; ConfigError names a difference. HubError: a hub is
    unreachable for more than `hub_timeout_s` seconds. `hub_compression` helps on slow links. `hub_ca_file` is the CA
    bundle (PEM) to verify hubs with TLS.

    The iteration raises the error of a thread after the minibatches that were read before it.
    """

    def __new__(
        cls,
        source: _Path | Sequence[_Path] | Hubs,
        embedding: Embedding | _Collection | None = None,
        *,
        spec: dict[str, Any] | None = None,
        batch_size: int = 1024,
        passes: int = 1,
        threads: int = 2,
        depth: int = 8,
        depth_bytes: int = 1073741824,
        ordered: bool = True,
        shuffle_rows: int = 0,
        seed: int = 42,
        rank: int = 0,
        ranks: int = 1,
        used_rows: int = 0,
        train: bool = True,
        statistics_every_s: float = 0.0,
        on_statistics: Callable[[str], object] | None = None,
        name: str = "trainer",
        hub_token: str = "",
        hub_timeout_s: float = 60.0,
        hub_compression: Literal["lz4", "zstd"] | None = None,
        hub_ca_file: _Path | None = None,
    ) -> FeedQueue: ...
    @property
    def features(self) -> list[str]:
        """Names of the columns of the minibatches."""
    @property
    def spec(self) -> dict[str, Any] | None:
        """The spec in use, with fitted boundaries; pass it to other queues over these features.

        With hubs, their spec; None for hubs of an earlier version.
        """
    @property
    def hubs(self) -> list[dict[str, Any]]:
        """Properties of each hub, in the order of the addresses; empty with files.

        `address`, `stream` (changes when the hub starts without its position), `passes`, `batch_size` (rows), `ranks`
        (number of trainers that get minibatches in turn; 0: any trainer gets any minibatch).
        """
    @property
    def pass_rows(self) -> int | None:
        """Estimated rows of the current pass over all ranks, from the bytes read so far.

        None before the first minibatch, for streams and hubs, and without `ordered`.
        """
    def __iter__(self) -> FeedQueue: ...
    def __next__(self) -> Batch: ...
    def stats(self) -> dict[str, Any]:
        """Statistics so far: count and latency percentiles (nanoseconds) per stage, and waiting times.

        `bad_rows` counts skipped rows of files; `bad_row_messages` has the reasons of the first ones.
        """
    def report(self) -> str:
        """Statistics as lines of text, in microseconds."""
    def metrics(self) -> str:
        """Statistics in the text format of Prometheus; the label `queue` is the `name` of the queue."""
    def serve_metrics(self, address: str = "127.0.0.1:0") -> str:
        """Serve `GET /metrics` at a local address until the queue is dropped; returns the URL.

        Raises ValueError for an address that other machines can reach: the endpoint has no authentication.
        """
    def close(self, *, used: bool = True) -> None:
        """Stop reading; hubs give the minibatches that are ready to other trainers.

        The current minibatch counts as used after its push; with `used=False` it goes to other trainers.
        """

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
    `writes`: update rows in place or copy on write.

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
    ) -> Table: ...
    @property
    def name(self) -> str:
        """Name of the table in errors and checkpoints."""
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

        `blocks`, `seed`, `budget_bytes`, `dtype`, `admission`, `eviction`, `writes`.
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

        Eviction by age or norm removes rows that are too old or too small. Returns `sampled`, `promoted` and `evicted`.
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
    def save(self, directory: _Path) -> None:
        """Write a checkpoint with this table only.

        An earlier checkpoint in the directory stays intact until the new one is complete.
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

        `blocks`, `seed`, `budget_bytes` (share of one server), `dtype`, `admission`, `eviction`, `writes`.
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

def connect(
    address: str,
    *,
    token: str | None = None,
    ca_file: _Path | None = None,
    timeout_s: float = 20.0,
    prefer_local: bool = True,
    f16_rows: bool = False,
    compression: Literal["lz4", "zstd"] | None = None,
    hedge: str | None = None,
) -> Connection:
    """Connect to all servers of a cluster; addresses are separated by commas.

    An address is "tcp://host:port", "unix:PATH" or "shm:NAME". `token` is the auth token of the servers, by default
    the generated token of a server of this user and host. `ca_file` is the CA bundle (PEM) to verify servers; it
    enables TLS.

    `timeout_s` is the request timeout in seconds, also while a server is unreachable. A server that has not answered
    for a second is logged as a warning of the logger "sanderling", and again after twice the time. With
    `prefer_local`, servers of this host are reached over the fastest transport that they offer.

    Ctrl-C in the main thread raises KeyboardInterrupt in a waiting call; the servers may still carry out the request.
    Background pushes then give up servers that do not answer for a second.

    For slow links: `f16_rows` sends pulled rows in half precision (relative error at most 2^-11; below 2^-14 absolute
    error at most 2^-25; larger values become 65504). `compression` applies to requests and answers of 1 KiB and more
    over TCP. `hedge`, "p95" or a time such as "500us", repeats slower pulls over a second connection (at most 5 %).
    """

def save_tables(directory: _Path, tables: Sequence[Table]) -> None:
    """Write a checkpoint of several tables."""

def checkpoint_tables(directory: _Path) -> list[str]:
    """Return the names of the tables in a checkpoint."""

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
    equal `token` and `attempt`; `ca_file`, `cert_file` and `key_file` (PEM) enable TLS; `expose` accepts connections
    from other machines. A worker silent for `worker_timeout_s` seconds is lost: all stop, or with
    `on_worker_loss="redo"` the others take over its rows. Unreachable, refused, slow and lost workers are warnings of
    the logger "sanderling".

    `source` is a path, a glob pattern, or a list of them; `spec` is as in FeedQueue; `seed` selects shuffled orders.
    Every wait for other workers ends after `timeout_s` seconds with a GroupError that names missing workers. At most
    `shuffle_bytes_max` bytes of shuffled rows stay in memory, the rest goes to temporary files in `scratch_dir`.
    `train=False` accepts rows without labels and keeps all negatives.
    """

    def __new__(
        cls,
        source: _Path | Sequence[_Path],
        *,
        spec: dict[str, Any] | None = None,
        workers: int = 1,
        seed: int = 42,
        timeout_s: float = 60.0,
        shuffle_bytes_max: int = 100663296,
        scratch_dir: _Path | None = None,
        train: bool = True,
        hosts: list[str] | None = None,
        rank: int | None = None,
        connection: Connection | None = None,
        attempt: int = 0,
        on_worker_loss: Literal["stop", "redo"] = "stop",
        worker_timeout_s: float = 30.0,
        token: str | None = None,
        ca_file: _Path | None = None,
        cert_file: _Path | None = None,
        key_file: _Path | None = None,
        expose: bool = False,
        insecure: bool = False,
        tables: Sequence[Table | RemoteTable] = ...,
    ) -> Job: ...
    @property
    def features(self) -> list[str]:
        """Names of the columns of the minibatches."""
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

@final
class Model:
    """A trained model with tables in this process; threads may share it."""

    @property
    def description(self) -> str:
        """Description of the model."""
    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the training run, as `train` takes it."""
    @property
    def spec(self) -> dict[str, Any]:
        """Spec of its rows, as `FeedQueue` takes it: `data`, `label`, `weight`, `negatives`, `feature`."""
    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
    def table(self, name: str) -> Table:
        """Return the table itself, not a copy: pushes change the predictions of the model."""
    def predict(self, files: _Path | Sequence[_Path], *, data: dict[str, Any] | None = None) -> npt.NDArray[np.float32]:
        """Predict a probability per row of the files, float32 [rows], in file order.

        Files may be glob patterns, compressed, and without labels. `data` overrides settings of reading, for example
        `{"format": "csv", "on_bad_row": "skip:100"}`. A skipped row gives NaN. A UserWarning names features without
        any known key.
        """
    def evaluate(
        self, files: _Path | Sequence[_Path], *, threads: int = 1, data: dict[str, Any] | None = None
    ) -> Evaluation:
        """Compute metrics over labelled files; `data` as in `predict`.

        A UserWarning names features without any known key.
        """

def load(directory: _Path) -> Model:
    """Open a saved model and verify its checksums."""

@final
class TrainResult:
    """Result of a run.

    Metrics come from the best validation; without validation, from the training rows of the first pass, each scored
    before it was learned. With several passes, `summary["seen"]` has the metrics of the last pass over training (seen)
    data.
    """

    @property
    def auc(self) -> float:
        """Area under the ROC curve; NaN with a single class."""
    @property
    def logloss(self) -> float:
        """Mean logistic loss."""
    @property
    def model_dir(self) -> Path:
        """Model directory."""
    @property
    def report(self) -> Path:
        """Path of the HTML report."""
    @property
    def summary(self) -> dict[str, Any]:
        """Summary, as `sanderling train --json` prints it."""
    def load(self) -> Model:
        """Open the saved model."""

def train(
    config: dict[str, Any] | _Path,
    *,
    name: str | None = None,
    runs_dir: _Path | None = None,
    resume: bool = False,
    on_line: Callable[[dict[str, Any]], object] | None = None,
) -> TrainResult:
    """Train a model from a configuration: a dictionary, or the path of a TOML file.

    Files go to `runs_dir/name` (`runs_dir` is "runs" by default). A run with `name` replaces an earlier run of that
    name. Without it, the name comes from the configuration, its file, or its first training file; an earlier run with
    another configuration is kept, and the new one is numbered (clicks-2). `resume` continues from the last checkpoint.

    `on_line` is called with every line of metrics. An error of the callback, like Ctrl-C, ends the run after saving
    it, so it can be resumed.
    """

def metrics(
    labels: _Numbers,
    probabilities: _Numbers,
    weights: _Numbers | None = None,
    *,
    from_logits: bool = False,
) -> Metrics:
    """Compute AUC, logloss and calibration of predicted probabilities; all arrays are [rows].

    `labels` are 0 or 1. `probabilities` come from `Model.predict` or `sanderling.torch.predict`; pass logits with
    `from_logits=True`. For the loss, probabilities are clipped to [2^-23, 1 - 2^-23], as in scikit-learn. Numbers are
    converted to single precision.

    Raises LengthError for different lengths, and ValueError for other labels, for probabilities outside [0, 1], for
    NaN, and for negative or infinite weights.
    """

def give_up_silent(told: bool) -> None:
    """Make calls of all threads raise ServerError after one second without an answer; False restores the timeouts.

    Used while a run ends after a signal.
    """

def read_once(name: str) -> bool:
    """Return whether an input can be read only once: standard input (`-`), a pipe, or a pattern matching one."""

def parse_duration_s(text: str) -> float | None:
    """Parse a duration such as "20s" (us, ms, s, m, h) to seconds; None if the text is no duration."""

def parse_size_bytes(text: str) -> int | None:
    """Parse a size such as "4GiB" (B, KiB, MiB, GiB, TiB) to bytes; None if the text is no size."""

def value_key(feature: Mapping[str, Any]) -> int:
    """Return the key of all present values of a `numeric` or `log` feature, given as in specs."""

def remarks_of(
    labels: npt.NDArray[np.float32], logits: npt.NDArray[np.float32], weights: npt.NDArray[np.float32]
) -> list[str]:
    """Return warnings about scores: constant, worse than no model, or badly calibrated; all float32 [rows]."""

def render_report(
    facts: dict[str, Any],
    labels: npt.NDArray[np.float32],
    logits: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
    tables: Sequence[Table],
) -> str:
    """Render the HTML report of a run trained from Python; arrays are float32 [rows], scored by its model."""

def cores_usable() -> int:
    """Return the number of physical cores that this process may use, at least 1."""

def cli_main(argv: Sequence[str]) -> int:
    """Run a command line, program name first; returns the exit code. Handles SIGINT during training."""
