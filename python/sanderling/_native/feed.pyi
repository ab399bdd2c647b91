"""Minibatches, their rows in tables, and the queue that prepares both ahead of the trainer.

Shapes: `n` keys of a request, `dim` weights of a row, `rows` rows of a minibatch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, final

import numpy as np
import numpy.typing as npt

from sanderling._native.arguments import _Keys, _Path, _Source
from sanderling._native.tables import RemoteTable, Table
from sanderling._sources import FileSource, Holdout, HubSource

class _Collection(Protocol):
    """An object with an Embedding, such as `sanderling.torch.EmbeddingCollection`."""

    @property
    def native(self) -> Embedding: ...

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
    def feature_stats(self) -> list[dict[str, Any]]:
        """Numbers of each feature, from sampled minibatches: unseen keys, norms, updates, drifts; None: unknown."""
    def feature_keys(self) -> dict[str, Any]:
        """Distribution of the keys of each feature so far, for a checkpoint."""
    def compare_keys(self, keys: dict[str, Any], *, resume: bool) -> None:
        """Compare further keys with those of another model, or with `resume` go on from those of the same run."""
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
class KeyNames:
    """Collector of the texts of keys while minibatches are read."""

    def __new__(cls, section: Mapping[str, Any], spec: dict[str, Any]) -> KeyNames:
        """Collect as a section `[names]` says, for the features of a `FeedQueue.spec`."""
    @property
    def is_full(self) -> bool:
        """Whether names were left out because of the memory limit."""
    def to_bytes(self) -> bytes:
        """Return the names, as `restore` takes them."""
    def restore(self, names: bytes) -> None:
        """Add names that were collected elsewhere, or earlier."""

def save_reading(
    directory: _Path,
    spec: dict[str, Any],
    names: KeyNames | None = None,
    features: dict[str, Any] | None = None,
) -> None:
    """Write a feature spec, names of keys, and `Embedding.feature_keys`, to a directory of a deep model."""

def saved_names(directory: _Path) -> bytes | None:
    """Return the names that `save_reading` wrote; None without names."""

@final
class Hubs:
    """A subscription to hubs as the source of one FeedQueue.

    `source` is a `HubSource` or an address `"hub://host:port,host:port"`. Nothing is requested before the queue exists;
    `depth` is that of the queue. Raises HubError if a hub is unreachable for too long, and ConfigError if the spec of
    the source differs from the spec of the hubs; the message names the difference.
    """

    def __new__(cls, source: HubSource | str, *, depth: int = 8) -> Hubs: ...
    @property
    def spec(self) -> dict[str, Any] | None:
        """Spec of the rows, as in `FeedQueue.spec`."""
    @property
    def served(self) -> list[dict[str, Any]]:
        """Properties of each hub, as in `FeedQueue.hubs`."""

@final
class FeedQueue:
    """An iterator of minibatches that threads read, decode and, with an Embedding, look up ahead of the trainer.

    `source` is a `FileSource` or a `HubSource`. A path, rows in memory or a list of them are a FileSource with
    defaults, and "hub://host:port" is a HubSource. `depth` and `depth_bytes` are limits on ready minibatches.

    `on_statistics` is called with a report every `statistics_every_s` seconds (0: never), before the next minibatch is
    taken. The iteration raises an error of the callback; the next call continues with that minibatch.

    With hubs, asking for the next minibatch acknowledges the previous one, after its push was applied. Hubs give
    unacknowledged minibatches of a dead trainer to others. The iteration raises the error of a thread after the
    minibatches that were read before it.
    """

    def __new__(
        cls,
        source: FileSource | HubSource | Hubs | _Source,
        embedding: Embedding | _Collection | None = None,
        *,
        depth: int = 8,
        depth_bytes: int = 1073741824,
        statistics_every_s: float = 0.0,
        on_statistics: Callable[[str], object] | None = None,
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
    def holdout(self) -> Holdout | None:
        """The holdout of the source, with the moment of a split by time."""
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
    def __enter__(self) -> FeedQueue: ...
    def __exit__(self, *error: object) -> None:
        """Close the queue; after an error, hubs give the current minibatch to other trainers."""
    def close(self, *, used: bool = True) -> None:
        """Stop reading; hubs give the minibatches that are ready to other trainers.

        The current minibatch counts as used after its push; with `used=False` it goes to other trainers.
        """
