"""Types of the native module that crates/python builds; `stubtest` compares the two.

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
# 64 bits; with a sign or without, the bits are the key.
_Keys: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.int64]
# Of any type of numbers or truth values.
_Numbers: TypeAlias = npt.NDArray[np.number[Any] | np.bool]
_Result = TypeVar("_Result")

class _Collection(Protocol):
    """What has an Embedding, such as `sanderling.torch.EmbeddingCollection`."""

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
    "read_once",
    "remarks_of",
    "render_report",
    "save_tables",
    "train",
    "value_key",
]

DEEP_MODELS: tuple[str, ...]
"""What `model.type` says of models that are trained in PyTorch."""

__version__: str

class Error(Exception):
    """Whatever Sanderling refuses or fails to do."""

class ConfigError(Error):
    """A configuration contradicts itself or has an unknown or impossible entry."""

class LengthError(Error):
    """Arrays of one request do not fit each other; nothing was read or applied."""

class OffsetsError(Error):
    """Offsets of a pooled pull do not ascend from 0 to the number of keys."""

class GradientError(Error):
    """A gradient or its scale is not a finite, sane number; nothing was applied."""

class TableFullError(Error):
    """New keys found no room within the table's budget; the message counts them."""

class FileError(Error):
    """A file could not be opened, read or written."""

class DamagedError(Error):
    """A file of a checkpoint is cut, changed, or not ours."""

class VersionError(Error):
    """A file of a checkpoint was written by a newer version."""

class DuplicateNameError(Error):
    """Two tables of one checkpoint have the same name."""

class NotFoundError(Error):
    """A checkpoint or a model does not hold what was asked for."""

class BadRowError(Error):
    """A row does not read as the format or the spec demand; the message names file, line and column."""

class TooManyBadRowsError(Error):
    """More rows were bad than `on_bad_row` allows."""

class BadFileError(Error):
    """A data file as a whole is not what its format says."""

class NoRowsError(Error):
    """The input had no rows."""

class ModelError(Error):
    """A saved model is there but cannot be used."""

class DivergedError(Error):
    """Training diverged: a prediction became infinite or undefined, or a weight, so that its table cannot be saved."""

class ServerError(Error):
    """A parameter server refused, did not answer in time, or was started anew; the message names it."""

class GroupError(Error):
    """Workers that go in step did not come in time, which the message names, or do not agree."""

class HubError(Error):
    """A hub refused, was not there in time, or could not read its input; the message names it."""

class StoppedError(Error):
    """Work was stopped before there was anything to save."""

@final
class Batch:
    """A minibatch of samples in columns: labels, weights, and per feature a ragged run of keys.

    The keys of sample i of a feature are `keys[offsets[i]:offsets[i + 1]]`. All arrays are views of the minibatch's
    memory, which an array keeps alive; keys, offsets and values cannot be written.
    """

    def __new__(
        cls,
        columns: Sequence[tuple[str, _Keys, npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]],
        labels: npt.NDArray[np.float32] | None = None,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> Batch:
        """From (feature, keys, offsets from 0, a value per key or None); the arrays are copied.

        Raises OffsetsError and LengthError if they do not fit, and ConfigError for a feature that is there twice.
        """
    def __len__(self) -> int: ...
    @property
    def features(self) -> list[str]:
        """Names of the columns."""
    @property
    def number(self) -> int:
        """Number of the minibatch in its source, from 0 on."""
    @property
    def pass_number(self) -> int:
        """Number of the pass over the source, from 0 on."""
    @property
    def labels(self) -> npt.NDArray[np.float32]:
        """float32 [samples]: 0 or 1, NaN where there is none."""
    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """float32 [samples]."""
    @property
    def lookup(self) -> Lookup | None:
        """The rows, if a FeedQueue with an Embedding made the batch."""
    def keys(self, feature: str) -> npt.NDArray[np.uint64]:
        """uint64 [keys], all samples one after the other."""
    def offsets(self, feature: str) -> npt.NDArray[np.uint32]:
        """uint32 [samples + 1]."""
    def values(self, feature: str) -> npt.NDArray[np.float32] | None:
        """float32 [keys], or None where every key counts as 1."""

@final
class Embedding:
    """Tables, in this process or on servers, and which feature of a minibatch reads which and how.

    `features` are (name of the feature, position of its table, pooling), where pooling is "sum" (a column's values
    weigh its keys), "mean" or "max" (values are not looked at), or "none" (a row per key). A feature may occur several
    times. `absent` says what a key without a row counts as: the row that it would start with, or zeros; with "zero"
    it is not pushed either, so that no row is made. At most `pushes` pushes are outstanding: a lookup may miss so many,
    and with 0 a push returns when it has been applied. `pool_at` says who sums the rows of tables on servers: with
    "auto" the servers where that saves more than a quarter of the bytes, by feature and minibatch, else the trainer.
    With "servers" they sum whatever they can: "sum" and "mean" of a feature that is alone to read its table, with
    `absent` "init"; all else is the trainer's, and `pooled_at` counts both. Sums of several servers may differ from the
    trainer's in the last bits.
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
        """Of tables on servers: features and bytes of minibatches that the `trainer` and the `servers` have pooled.

        `hub`: pooled by the servers from keys that a hub has fed. `late`: of those, what another trainer has pushed.
        """
    @property
    def dims(self) -> list[int]:
        """Per feature, the width of its rows."""
    @property
    def width(self) -> int:
        """Columns of `Lookup.pooled`: the widths of the pooled features, side by side in order."""
    @property
    def pushed(self) -> int:
        """Pushes that were handed over so far."""
    @property
    def applied(self) -> int:
        """Pushes that have been applied so far, or have failed."""
    def lookup(self, batch: Batch) -> Lookup:
        """Looks a minibatch up, and waits for no push: it may miss up to `pushes` of the last ones.

        After `finish` it misses none. Raises ConfigError for a feature that the batch does not have, ServerError, and
        what an earlier push went wrong with.
        """
    def finish(self) -> None:
        """Waits until everything that was pushed has been applied; raises what one of them went wrong with."""

@final
class Lookup:
    """The rows of one minibatch, and room for the gradients of its distinct rows.

    Arrays are views that keep the lookup alive: the same memory each time.
    """

    @property
    def pooled(self) -> npt.NDArray[np.float32]:
        """float32 [samples, width]: the pooled rows of all features side by side."""
    @property
    def unique_keys(self) -> int:
        """Distinct keys, over all tables."""
    @property
    def missing(self) -> int:
        """Distinct keys that had no row."""
    @property
    def staleness(self) -> int:
        """Pushes of other minibatches that were applied between this lookup and its push, or until now."""
    def rows(self, feature: int) -> npt.NDArray[np.float32]:
        """float32 [keys, dim]: a row per key of the feature at this position, if its pooling is "none"."""
    def is_of(self, embedding: Embedding) -> bool:
        """Whether the rows are those of this embedding's tables."""
    def add_grads(
        self,
        pooled: npt.NDArray[np.float32] | None = None,
        rows: dict[int, npt.NDArray[np.float32]] | None = None,
    ) -> None:
        """Adds to the gradients of the rows; nothing is pushed.

        `pooled` has the shape of `Lookup.pooled`, `rows` by position of a feature that of its `rows`; LengthError
        otherwise, and nothing is added.
        """
    def grad_norm_squared(self) -> float:
        """The sum of the squares of the gradients of all distinct rows."""
    def scale_grads(self, factor: float) -> None:
        """Multiplies the gradients."""
    def take_gradients(
        self,
    ) -> list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]]:
        """Takes the gradients away instead of a push, for workers that go in step (`SyncGroup.push_step`).

        Per table of the Embedding: distinct keys, how often each occurs, and gradients, float32 [keys, dim].
        """
    def note_applied(self) -> None:
        """Says that the gradients that were taken away have been applied.

        A hub counts a minibatch as used when the next one is asked for, or when the queue is dropped if it was pushed.
        """
    def push(
        self, *, lr: float | Sequence[float] | None = None, lr_scale: float | Sequence[float] | None = None
    ) -> None:
        """Hands the gradients over, to be applied in the background; once. Waits while too many are outstanding.

        `lr` is the learning rate of this push, `lr_scale` a factor on it; each is a number for all tables, or a list
        with one for each. Without `lr` a table learns at its own rate. FTRL has no `lr` and is not scaled. May raise
        what an earlier push went wrong with; then
        nothing of this one is pushed. A hub counts its minibatch as used when its push was applied; if it fails, the
        queue raises that, too, and ends, and the hub hands the minibatch out again to a trainer that is started anew.
        """

@final
class Hubs:
    """A subscription at hubs, `"hub://host:port,host:port"`, that says what they serve; then the source of a FeedQueue.

    Nothing is asked for before there is a queue. `threads` and `depth` are those of the queue, the other arguments as
    of one over hubs. A hub that is away for longer than `hub_patience_s` is a HubError, and a ConfigError names what a
    `spec` says otherwise than the hubs.
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
        hub_patience_s: float = 60.0,
        hub_compression: Literal["lz4", "zstd"] | None = None,
        hub_ca_file: _Path | None = None,
    ) -> Hubs: ...
    @property
    def spec(self) -> dict[str, Any] | None:
        """As `FeedQueue.spec`."""
    @property
    def served(self) -> list[dict[str, Any]]:
        """As `FeedQueue.hubs`."""

@final
class FeedQueue:
    """Minibatches in line: threads read, decode, and with an Embedding look up, ahead of whoever iterates.

    `source` is a path, a glob pattern or a list of them. `spec` has the sections `data`, `label`, `weight`, `negatives`
    and `feature` of a run's configuration (docs/configuration.md). With `ordered` minibatches come in the order of the
    input whatever the number of threads; of every `ranks` minibatches this queue takes the one numbered `rank`. The
    first `used_rows` rows of the first pass, those of all ranks, are passed over: a run before has used them. At most
    `depth` minibatches are ready, and nothing is begun while these have `depth_bytes`. `train=False` reads rows without
    labels and keeps all negatives, and a bad row that `on_bad_row` lets pass its place: no keys, and NaN as weight and
    label. `on_statistics` is told a report every `statistics_every_s` seconds (0: never), before the next minibatch is
    taken; what it raises, the iteration raises, and goes on with that minibatch if it is asked again.

    `source` may also be hubs, `"hub://host:port,host:port"` or a `Hubs`, which decide what a minibatch holds and how
    often the input is gone through; `name` is this trainer's there, the same over its restarts and no other trainer's.
    To ask for the next minibatch is to say that the one before was used up: its hub hears of that when its push, if
    there is one, has been applied, and hands out again what a trainer that died had not used up. Of a `spec` all but
    `data` is compared with the hub's: a ConfigError names what differs. A hub that is away for longer than
    `hub_patience_s` is a HubError. `hub_compression` is for slow links: how minibatches come, from other hosts.
    Hubs that speak TLS are believed if an authority of `hub_ca_file` (PEM) vouches for the host of their address.

    An error of any thread is raised by the iteration, after the minibatches that were read before it.
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
        shuffle: int = 0,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        used_rows: int = 0,
        train: bool = True,
        statistics_every_s: float = 0.0,
        on_statistics: Callable[[str], object] | None = None,
        name: str = "trainer",
        hub_token: str = "",
        hub_patience_s: float = 60.0,
        hub_compression: Literal["lz4", "zstd"] | None = None,
        hub_ca_file: _Path | None = None,
    ) -> FeedQueue: ...
    @property
    def features(self) -> list[str]:
        """Names of the columns of its minibatches."""
    @property
    def spec(self) -> dict[str, Any] | None:
        """The spec as it is used, fitted boundaries included: what another queue over the same features takes.

        With hubs it is theirs; None if they are of a version that does not say it.
        """
    @property
    def hubs(self) -> list[dict[str, Any]]:
        """What each hub serves, in the order of the addresses; empty with files.

        `address`, `stream` (another number after a start that did not know its position), `passes`, `batch_size` in
        rows, and `ranks`: of how many trainers each gets its own minibatches, 0 if any gets any.
        """
    @property
    def pass_rows(self) -> int | None:
        """Rows of the pass that is read at the moment, those of all ranks, estimated from the bytes read so far.

        None before the first minibatch, of streams and hubs, and without `ordered`.
        """
    def __iter__(self) -> FeedQueue: ...
    def __next__(self) -> Batch: ...
    def stats(self) -> dict[str, Any]:
        """What it has done so far: per stage count and percentiles in nanoseconds, and who waits for whom.

        `bad_rows` counts the rows of files that `on_bad_row` has let it leave out, and `bad_row_messages` says of the
        first ones what was wrong. Hubs account for theirs.
        """
    def report(self) -> str:
        """The same as lines of text, in microseconds."""
    def metrics(self) -> str:
        """The same in the text format of Prometheus; the label `queue` is the queue's `name`."""
    def serve_metrics(self, address: str = "127.0.0.1:0") -> str:
        """Answers `GET /metrics` at this address of this machine until the queue is gone, and returns the URL.

        An address that other machines reach is a ValueError: nothing here asks who reads.
        """
    def close(self, *, used: bool = True) -> None:
        """Reads no more; what is ready is forgotten, and hubs give it to others at once.

        The minibatch in hand counts as used up when its push, which is waited for, has been applied; with `used=False`
        it goes to others as well.
        """

@final
class Table:
    """An embedding table: rows of weights, found by 64-bit key, updated by the table's optimizer.

    `optimizer` is a type and its settings, `{"type": "adam", "lr": 1e-3}`; a bare string stands for the type with its
    defaults, which are, with what a row keeps beside its weights:

    - `sgd`: lr 0.01, l2 0; nothing
    - `momentum`: lr 0.01, momentum 0.9, l2 0; a velocity per weight
    - `adagrad`: lr 0.01, eps 1e-10, initial 0, l2 0; a sum of squares per weight
    - `row_adagrad`: as `adagrad`; one sum of mean squares per row
    - `adam`: lr 0.001, beta1 0.9, beta2 0.999, eps 1e-8, l2 0; two moments per weight, a count of pushes per row
    - `adamw`: as `adam`, with decay 0.01 in place of l2
    - `ftrl`: alpha 0.1, beta 1, l1 0, l2 0; z and n per weight

    The default is `sgd`. All are lazy: rows that are not pushed do not change. `init` says what a row starts with:
    `{"type": "zero"}`, the default, `{"type": "normal", "std": ...}` or `{"type": "uniform", "bound": ...}`.
    `budget_bytes` bounds the memory of index and rows.

    `dtype` says how weights are kept (optimizer state and all arrays are float32); `admission` which new keys get a
    row: all ("always", the default), those pushed in n requests (`{"type": "sightings", "sightings": n}`) or with a
    probability (`{"type": "probability", "probability": p}`); `eviction` which rows make room when the budget is used
    up: none ("never", the default; then a push raises TableFullError), those unused for longest ("clock"), for so many
    pushes (`{"type": "age", "pushes": n}`, n below 2^31), or small ones (`{"type": "norm", "below": x}`); `writes`
    whether an updated row stays where it is.

    Arrays must have the stated dtype (anything else is a TypeError). Contiguous ones are used in place. Several
    threads may use one table; the interpreter is released while it works.
    """

    def __new__(
        cls,
        name: str,
        dim: int,
        *,
        optimizer: dict[str, Any] | str | None = None,
        init: dict[str, Any] | str | None = None,
        seed: int = 0,
        budget_bytes: int | None = None,
        dtype: Literal["f32", "f16", "bf16"] | None = None,
        admission: dict[str, Any] | str | None = None,
        eviction: dict[str, Any] | str | None = None,
        writes: Literal["in_place", "copy_on_write"] | None = None,
    ) -> Table: ...
    @property
    def name(self) -> str:
        """The table's name in errors and checkpoints."""
    @property
    def dim(self) -> int:
        """Weights per row."""
    @property
    def lr(self) -> float | None:
        """Learning rate of the optimizer; None if it has none (FTRL), or if blocks of a row have different ones."""
    @property
    def bytes(self) -> int:
        """Bytes of memory, index and rows."""
    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What a row consists of: per block its `dims`, `init` and `optimizer`."""
    @property
    def config(self) -> dict[str, Any]:
        """All that it was made from but its name and width, defaults filled in.

        `blocks`, `seed`, `budget_bytes`, `dtype`, `admission`, `eviction`, `writes`.
        """
    def stats(self) -> dict[str, int]:
        """Sizes, and what has happened.

        `rows`, `free_rows`, `pushes`, `index_bytes`, `slab_bytes`, `huge_bytes`, `admitted`, `rejected`, `evicted`,
        `rejected_full`, `promoted`.
        """
    def reserve(self, rows: int) -> bool:
        """Makes room in the index for so many rows in all; False when there is none."""
    def maintain(self, budget: int = 4096) -> dict[str, int]:
        """Moves up to `budget` hot keys to where searches for them begin, and lets stale rows go.

        Of the next `budget` rows those go that `eviction` by age or norm finds too old or too small. Returns
        `sampled`, `promoted` and `evicted`.
        """
    def __len__(self) -> int: ...
    def __contains__(self, key: int, /) -> bool: ...
    def pull(
        self,
        keys: _Keys,
        *,
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Rows by key, float32 [n, dim]; never creates one.

        A key without a row yields what its row would start with, or zeros. `out`, C-contiguous, is filled and
        returned if given.
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
        """One row per bag of keys, float32 [len(offsets) - 1, dim].

        Bag `i` is `keys[offsets[i]:offsets[i + 1]]`, each row times its value if there are `values`; an empty bag
        yields zeros.
        """
    def push(
        self, keys: _Keys, grads: npt.NDArray[np.float32], *, lr: float | None = None, lr_scale: float = 1.0
    ) -> None:
        """Apply gradients, float32 [n, dim]; rows that do not exist are created.

        Gradients of a key that occurs several times are summed, then its row is updated once. `lr` is the
        learning rate of this push, by default the optimizer's own; `lr_scale` is a factor on it. ConfigError for an
        `lr` where the optimizer has none (FTRL) or the blocks of a row have different ones.
        """
    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of all rows, uint64 [rows].

        `keys()`, `rows()` and `frequency()` go in the same order as long as nothing is pushed or removed between them.
        """
    def rows(self) -> npt.NDArray[np.float32]:
        """Weights of all rows, float32 [rows, dim]."""
    def frequency(self) -> npt.NDArray[np.uint32]:
        """How often each key was pushed, duplicates counted, uint32 [rows]."""
    def remove(self, keys: _Keys) -> int:
        """Forget rows; returns how many there were."""
    def clear(self) -> None:
        """Forget all rows."""
    def save(self, directory: _Path) -> None:
        """Write a checkpoint that holds this table alone.

        An earlier checkpoint in the directory stays intact until the new one is complete.
        """
    @staticmethod
    def load(directory: _Path, name: str | None = None) -> Table:
        """Read a table from a checkpoint; the name may be left out if there is only one."""

@final
class RemoteTable:
    """A table on parameter servers; made by a `Connection`.

    Requests are as those of `Table`, rows as those of a `Table` with the same configuration, wherever they are.
    Several threads may use one, each gets connections of its own; the interpreter is released while servers work.
    After an error of one server others may have carried out their part of a push.
    """

    @property
    def name(self) -> str:
        """The table's name on the servers."""
    @property
    def dim(self) -> int:
        """Weights per row."""
    @property
    def lr(self) -> float | None:
        """Learning rate of the optimizer; None if it has none (FTRL), or if blocks of a row have different ones."""
    @property
    def bytes(self) -> int:
        """Bytes of memory on all servers."""
    @property
    def blocks(self) -> list[dict[str, Any]]:
        """What a row consists of: per block its `dims`, `init` and `optimizer`."""
    @property
    def config(self) -> dict[str, Any]:
        """All that it was made from but its name and width, defaults filled in.

        `blocks`, `seed`, `budget_bytes` (one server's part), `dtype`, `admission`, `eviction`, `writes`.
        """
    def stats(self) -> dict[str, int]:
        """Sizes over all servers: `rows`, `bytes`. `sanderling ctl stats` has the rest."""
    def __len__(self) -> int: ...
    def __contains__(self, key: int, /) -> bool: ...
    def pull(
        self,
        keys: _Keys,
        *,
        absent: Literal["init", "zero"] = "init",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Rows by key, float32 [n, dim]; never creates one."""
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
        """One row per bag of keys, float32 [len(offsets) - 1, dim], summed where the rows are."""
    def push(
        self, keys: _Keys, grads: npt.NDArray[np.float32], *, lr: float | None = None, lr_scale: float = 1.0
    ) -> None:
        """Apply gradients, float32 [n, dim], exactly once, even if a connection breaks meanwhile."""
    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of all rows, uint64 [rows]."""
    def rows(self) -> npt.NDArray[np.float32]:
        """Weights of all rows, float32 [rows, dim]."""
    def frequency(self) -> npt.NDArray[np.uint32]:
        """How often each key was pushed, duplicates counted, uint32 [rows]."""
    def remove(self, keys: _Keys) -> int:
        """Forget rows; returns how many there were, at least: after a lost connection a server is asked again."""
    def clear(self) -> None:
        """Forget all rows; those that others push meanwhile may stay."""

@final
class Connection:
    """Connections to the servers of a cluster; made by `connect`."""

    @property
    def servers(self) -> list[str]:
        """Addresses over which the servers are talked to, by shard."""
    def table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: dict[str, Any] | str | None = None,
        init: dict[str, Any] | str | None = None,
        seed: int = 0,
        budget_bytes: int | None = None,
        dtype: Literal["f32", "f16", "bf16"] | None = None,
        admission: dict[str, Any] | str | None = None,
        eviction: dict[str, Any] | str | None = None,
        writes: Literal["in_place", "copy_on_write"] | None = None,
    ) -> RemoteTable:
        """Make a table, or open the one that is there with the same configuration; see `Table`.

        Each server gets an equal part of `budget_bytes`.
        """
    def open(self, name: str) -> RemoteTable:
        """Open a table that is there."""
    def drop(self, name: str) -> bool:
        """Drop a table on all servers and say whether it was there."""
    def save(self, checkpoint: str, *, timeout: float = 600.0) -> int:
        """Have every server save all its tables under this name, each as of its own moment; returns the rows.

        The name is the servers': letters, digits, `.`, `_`, `-` and `/`, below their `--data`. What was saved under it
        before stays intact until the new one is complete.
        """
    def restore(self, checkpoint: str, *, timeout: float = 600.0) -> int:
        """Have every server restore all its tables from what was saved under this name; returns the rows.

        Tables must be opened again.
        """

def connect(
    address: str,
    *,
    token: str | None = None,
    ca_file: _Path | None = None,
    timeout: float = 20.0,
    prefer_local: bool = True,
    f16_rows: bool = False,
    compression: Literal["lz4", "zstd"] | None = None,
    hedge: str | int | None = None,
) -> Connection:
    """Reach all servers of a cluster, with commas between their addresses.

    An address is "tcp://host:port", "unix:PATH" or "shm:NAME".
    `token` is the servers' shared auth token; without it, the one that a server of this user and host made is used.
    `ca_file` (PEM) turns TLS on and names whom to trust. A request without an answer within `timeout` seconds fails,
    and so does all that is asked of a server that has been away for so long, until it answers again. A server that has
    not answered for a second is a warning of the logger "sanderling", and again at twice the time. With
    `prefer_local` servers of this host are talked to over the fastest way that they offer.

    Ctrl-C ends a call of the main thread that waits for servers, with KeyboardInterrupt; what was asked may be carried
    out all the same. Pushes in the background then give servers up that are silent for a second.

    For slow links: `f16_rows` has pulled rows travel in half precision, each value rounded to the nearest (relative
    error at most 2^-11; below 2^-14 an absolute one of at most 2^-25) and what is beyond 65504 to that; `compression`
    is for requests and answers of 1 KiB and more over TCP. `hedge`, "p95" or a number of microseconds, asks
    for a pull that takes longer than that once more over a second connection; at most 5 % of pulls.
    """

def save_tables(directory: _Path, tables: Sequence[Table]) -> None:
    """Write a checkpoint of several tables."""

def checkpoint_tables(directory: _Path) -> list[str]:
    """Names of a checkpoint's tables."""

@final
class Meeting:
    """Where the threads of one process meet that go in step over its tables; each has a `SyncGroup` of its own."""

    def __new__(cls, tables: Sequence[Table], workers: int) -> Meeting: ...
    @property
    def workers(self) -> int:
        """How many workers there are."""

@final
class SyncGroup:
    """One of the workers of a group that go in step: at the servers of a `Connection`, or at a `Meeting`.

    Each hands in the gradients that it has for a step, `push_step`, and says so, `wait`; when all have, the sums are
    applied once. Steps are numbered from 1 without gaps. `group` is a number chosen at random for the job, the same for
    all of its workers (a meeting ignores it); another number begins anew. What all do together must be called by all in
    the same order. Every wait ends after `step_timeout_s` with a GroupError that names who did not come. Who takes the
    place of a worker that died comes with a higher `attempt`, and goes on after the step `applied`. For one thread; the
    interpreter is released.
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
        """Which worker this is, from 0."""
    @property
    def workers(self) -> int:
        """How many workers there are."""
    @property
    def applied(self) -> int:
        """The last step that is applied, as far as this worker knows."""
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
        """Hand in gradients, float32 [n, dim]; those of a key are summed over all workers.

        All give the same `lr` and `lr_scale`, as of `Table.push`.

        `counts` says how often each key occurred, 1 unless given. A step that is applied stays as it is. After an error
        all of the step is to be handed in again.
        """
    def wait(self, step: int) -> None:
        """Say that all is handed in, which may be nothing, and wait until the step is applied everywhere."""
    def progress(self, step: int, bound: int) -> int:
        """Say that a step is finished that was pushed as ever; wait while the slowest is more than `bound` behind.

        Returns how far behind the slowest is.
        """
    def barrier(self, name: str) -> None:
        """Wait until all workers are here."""
    def all_gather(self, name: str, value: bytes) -> list[bytes]:
        """Everybody's bytes, in the order of workers.

        At most 1 MiB each, and where the workers meet at servers an equal part of not quite 16 MiB.
        """
    def broadcast(self, name: str, source: int, value: bytes) -> bytes:
        """The bytes of one worker, for all."""
    def all_reduce(
        self, name: str, values: npt.NDArray[np.float64], reduce: Literal["sum", "mean", "max"] = "sum"
    ) -> npt.NDArray[np.float64]:
        """The sum (mean, maximum) over workers of each number, float64; the same bits for all."""

@final
class Job:
    """Passes over files by several workers, who share them out; each works with a `Worker` of its own.

    They are `workers` threads, or with `hosts` as many processes, of which this is number `rank`: each makes the same
    Job but for its rank, and they find each other at these addresses (`host:port` or `unix:PATH`) and meet at the
    parameter servers of `connection`. The other options are those of `sanderling train --hosts`: all processes give the
    same `token` and `attempt`, and the paths of certificate, key and authority for TLS; `expose` lets other machines
    connect. A worker that says nothing for `worker_timeout_s` is lost: all stop, or with `on_worker_loss="redo"` the
    others take its rows over. Who cannot be reached, is turned away, slow or lost is a warning of the logger
    "sanderling".

    `source` is a path, a glob pattern or a list of them, `spec` as for a FeedQueue. `seed` is that of shuffled orders.
    Every wait for other workers ends after `timeout_s` with a GroupError that names who did not come. Of shuffled rows
    at most `shuffle_bytes_max` are kept in memory, the rest in temporary files in `scratch_dir`. `train=False` reads
    rows without labels and keeps all negatives.
    """

    def __new__(
        cls,
        source: _Path | Sequence[_Path],
        *,
        spec: dict[str, Any] | None = None,
        workers: int = 1,
        seed: int = 0,
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
        """Names of the columns of its minibatches."""
    def run(self, work: Callable[[Worker], _Result]) -> list[_Result]:
        """Call `work` with every worker of this process, each in a thread of its own; what it returned, in their order.

        With `hosts` that is one. The first error stops all and is raised. What all do together must be called by all in
        the same order. Ctrl-C ends workers that wait, or read, and the rest at the next thing they do; in other
        processes they raise StoppedError. A second Ctrl-C ends this process.
        """

@final
class Worker:
    """One of the workers of a Job, until `work` returns. The interpreter is released while it works."""

    @property
    def rank(self) -> int:
        """Which worker this is, from 0."""
    @property
    def workers(self) -> int:
        """How many workers there are."""
    def batches(
        self,
        number: int,
        batch_size: int,
        *,
        order: Literal["input", "shuffled"] = "input",
        in_step: bool = False,
    ) -> Batches:
        """Minibatches of this worker in pass `number`; all workers must call it, with the same arguments.

        Others are a GroupError where workers meet: shuffled, or `in_step`. In the order of the input they do not, and
        the rows of a worker that does not call it are nobody's.

        Together they have every row once, as it lies in the files or shuffled over all of them, anew in each pass. With
        `in_step` all have as many, some of them perhaps empty: those with the same number have `batch_size` rows
        together, the same rows however many workers there are. Gradients that were handed in for one of them and not
        ended with `end_step` are an error at the next one. With `on_worker_loss="redo"` each of them ends with
        `end_step`, before which nothing else is done together.
        """
    def sum(self, name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum over workers of each number; the same bits for all."""
    def mean(self, name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The mean over workers of each number; the same bits for all."""
    def max(self, name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The largest of all workers of each number."""
    def histogram(self, name: str, counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Counts of all workers added up, as many as the longest list has."""
    def all_to_all(self, name: str, parts: list[bytes]) -> list[bytes]:
        """Give each worker its part, `parts[n]` to worker `n`; what each gave this one, in their order.

        With `on_worker_loss="redo"` there are as many parts whoever is lost: what it gave is empty, and so its part
        must be, or it is a ConfigError that names it. An `all_gather` of the ranks tells who is there.
        """
    def all_gather(self, name: str, value: bytes) -> list[bytes]:
        """Everybody's bytes, in the order of workers.

        At most 1 MiB each, and where the workers meet at servers an equal part of not quite 16 MiB.
        """
    def broadcast(self, name: str, source: int, value: bytes) -> bytes:
        """The bytes of one worker, for all."""
    def barrier(self, name: str) -> None:
        """Wait until all workers are here."""
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
        """Hand in gradients, float32 [len(keys), dim], of the step at hand; those of a key are summed over all workers.

        Each is rounded once, to a multiple of 2^-40, and the sums are exact: with a gradient per sample they do not
        depend on who had which. Threads name the tables to their Job (`tables`). `counts` says how often each key
        occurred. Nothing is applied before `end_step`; to go on, or to return, without it is a ConfigError.
        """
    def end_step(self) -> bool:
        """Wait until all have handed in their parts of the step, which may be nothing, and it is applied, once.

        False: another worker was lost before. Nothing of the step is applied, and the next minibatch is this step once
        more, its rows shared out anew; so count what you count of a minibatch when this is true.
        """

@final
class Batches:
    """A worker's minibatches of one pass, as an iterator."""

    def __iter__(self) -> Batches: ...
    def __next__(self) -> Batch: ...

@final
class Model:
    """A trained model with its tables in this process; several threads may use it."""

    @property
    def description(self) -> str:
        """What the model is, in words."""
    @property
    def config(self) -> dict[str, Any]:
        """The configuration it was trained with, as `train` takes it."""
    @property
    def spec(self) -> dict[str, Any]:
        """How its rows are read, as `FeedQueue` takes it: `data`, `label`, `weight`, `negatives`, `feature`."""
    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
    def table(self, name: str) -> Table:
        """The table itself, not a copy: what is pushed to it changes what the model predicts."""
    def predict(self, files: _Path | Sequence[_Path], *, data: dict[str, Any] | None = None) -> npt.NDArray[np.float32]:
        """A probability per row of the files, float32 [rows], in their order.

        Files may be glob patterns, compressed, and without labels. `data` changes how they are read, entry by entry,
        from how the training data were: `{"format": "csv", "on_bad_row": "skip:100"}`. A skipped row yields NaN.

        A UserWarning names features of whose keys the model knows none.
        """
    def evaluate(
        self, files: _Path | Sequence[_Path], *, threads: int = 1, data: dict[str, Any] | None = None
    ) -> Evaluation:
        """Metrics over labelled files; `data` as in `predict`.

        A UserWarning names features of whose keys the model knows none.
        """

def load(directory: _Path) -> Model:
    """Open a saved model and verify every byte of it."""

@final
class TrainResult:
    """What a run came to.

    Metrics are those of the best validation, or without one of the training rows of the first pass, each scored before
    it was learned from. `summary["seen"]` has those of the last pass over training (seen) data, if there were several.
    """

    @property
    def auc(self) -> float:
        """Area under the ROC curve; NaN if there was only one class."""
    @property
    def logloss(self) -> float:
        """Mean logistic loss."""
    @property
    def model_dir(self) -> Path:
        """The model's directory."""
    @property
    def report(self) -> Path:
        """The HTML report."""
    @property
    def summary(self) -> dict[str, Any]:
        """Everything that `sanderling train --json` prints."""
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
    """Train as the configuration says: a dictionary, or the path of a TOML file of the same structure.

    The run's files go to `runs_dir/name` ("runs" if not given). A run with `name` replaces an earlier one of that name.
    Without it the name is that of the configuration, by default of its TOML file or first training file; an earlier run
    of another configuration is kept, and the new one is numbered (clicks-2).
    `resume` goes on from the last checkpoint there.
    `on_line` gets every line of metrics while the run goes on; an exception from it, like Ctrl-C, ends the run with
    everything saved, to be resumed.
    """

def metrics(
    labels: _Numbers,
    probabilities: _Numbers,
    weights: _Numbers | None = None,
    *,
    from_logits: bool = False,
) -> Metrics:
    """AUC, logloss and calibration of predicted probabilities against labels of 0 and 1, all numbers [rows].

    `probabilities` are what `Model.predict` and `sanderling.torch.predict` return, or logits with `from_logits=True`.
    In the loss a probability counts as at least 2^-23 and at most 1 - 2^-23, as in scikit-learn. Numbers are taken in
    single precision.

    Raises LengthError, and ValueError for other labels, for probabilities outside [0, 1], for NaN, and for weights that
    are negative or not finite: nothing is left out.
    """

def give_up_silent(told: bool) -> None:
    """Whether calls of all threads give servers up that say nothing for a second, with a ServerError.

    For who ends a run in order at a signal and has none raised; to be taken back at the end.
    """

def read_once(name: str) -> bool:
    """Whether an input gives its rows only once: standard input (`-`), a pipe, or a pattern that matches one."""

def value_key(feature: Mapping[str, Any]) -> int:
    """The key that a number of a `numeric` or `log` feature has unless it is missing; the feature as in specs."""

def remarks_of(
    labels: npt.NDArray[np.float32], logits: npt.NDArray[np.float32], weights: npt.NDArray[np.float32]
) -> list[str]:
    """What is wrong with scored rows in a few sentences: alike, worse than none, or far off; all float32 [rows]."""

def render_report(
    facts: dict[str, Any],
    labels: npt.NDArray[np.float32],
    logits: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
    tables: Sequence[Table],
) -> str:
    """The HTML report of a run that Python led; the arrays are float32 [rows], scored by the model it is about."""

def cores_usable() -> int:
    """Physical cores that this process may use, at least 1."""

def cli_main(argv: Sequence[str]) -> int:
    """Run a command line, the program's name first; returns its exit code. Takes over SIGINT while it trains."""
