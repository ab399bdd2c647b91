"""Sources of samples and TLS settings: plain objects that queues, jobs and connections take."""

import math
import operator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from sanderling._errors import ConfigError

if TYPE_CHECKING:
    from sanderling._native import KeyNames
    from sanderling._native.arguments import _Path, _Source

# Numbers of rows, passes and threads are below it.
_COUNT_END = 1 << 63
_SEED_END = 1 << 64


@dataclass(frozen=True)
class Tls:
    """TLS settings of a connection; files are PEM.

    A connection to servers and hubs needs `ca` alone. Workers of a `Job` on several hosts verify each other: they need
    `ca`, `cert` and `key`.
    """

    ca: "_Path"
    """CA bundle to verify the other side."""
    _: KW_ONLY
    cert: "_Path | None" = None
    """Certificate chain of this side."""
    key: "_Path | None" = None
    """Private key of `cert`."""
    token: str | None = None
    """Auth token; the argument `token` in its place serves connections without TLS, too."""


@dataclass(frozen=True)
class Holdout:
    """A share of the rows of a `FileSource` that is held out for validation, as `data.valid` of a configuration."""

    by: Literal["hash", "time", "random"]
    """`hash`: by the hash of `column`; `time`: the latest rows by `column`, or by position; `random`: by chance."""
    column: str | None = None
    _: KW_ONLY
    fraction: float = 0.1
    """Share of the rows, above 0 and below 1."""
    after: float | None = None
    """`time`: rows with a larger number are held out; by default it is fitted to the input."""
    seed: int = 42
    """Seed of `random`."""

    def __post_init__(self) -> None:
        """Check the seed; the queue checks the rest."""
        _check_count("Holdout", "seed", self.seed, 0, _SEED_END)


@dataclass(frozen=True, eq=False)
class FileSource:
    """Files, or rows in memory, and how a `FeedQueue` or a `Job` makes minibatches of them.

    `inputs` is a path, a glob pattern, a URL, rows in memory (an Arrow table or stream, a frame of pandas or polars, a
    relation of duckdb, a dictionary of columns, a Batch), or a list of these. `spec` has the sections `data`, `label`,
    `weight`, `negatives` and `feature` of a run configuration (docs/configuration.md).

    A job uses `spec`, `seed`, `train` and the holdout; the other entries are arguments of its minibatches.
    """

    inputs: "_Source"
    spec: dict[str, Any] | None = None
    _: KW_ONLY
    batch_size: int = 1024
    """Rows per minibatch."""
    passes: int = 1
    threads: int = 2
    """Threads that read, decode and look up; if `ordered`, as many more decode."""
    ordered: bool = True
    """Whether minibatches come in a fixed order for any number of threads."""
    shuffle_rows: int = 0
    """Rows in the shuffle buffer; 0: input order."""
    seed: int = 42
    rank: int = 0
    """Of every `ranks` minibatches, the queue takes number `rank`."""
    ranks: int = 1
    used_rows: int = 0
    """Rows of the first pass to skip, counted over all ranks, because an earlier run has used them."""
    train: bool = True
    """Whether rows are for training.

    With False, rows without labels are accepted, all negatives are kept, and a skipped bad row keeps its place with no
    keys and NaN as label and weight.
    """
    holdout: Holdout | None = None
    """Rows that are held out; the queue has the other rows, or with `held_out` these."""
    held_out: bool = False
    name: str = "trainer"
    """Label of the queue in its metrics."""
    key_names: "KeyNames | None" = None
    """Collector of the texts of keys; used by `sanderling.torch.train`."""

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range."""
        for name, least in _FILE_COUNTS.items():
            end = _SEED_END if name == "seed" else _COUNT_END
            _check_count("FileSource", name, getattr(self, name), least, end)
        if self.held_out and self.holdout is None:
            raise ConfigError("FileSource: held_out without holdout, which says what rows are held out")


_FILE_COUNTS = {
    "batch_size": 1,
    "passes": 1,
    "threads": 1,
    "shuffle_rows": 0,
    "seed": 0,
    "rank": 0,
    "ranks": 1,
    "used_rows": 0,
}


@dataclass(frozen=True)
class HubSource:
    """Hubs that serve minibatches, and how a `FeedQueue` takes them. Hubs decide on batch size, passes and order.

    `address` is "hub://host:port,host:port". `spec` is compared with the spec of the hubs, except for `data`;
    ConfigError names a difference.
    """

    address: str
    spec: dict[str, Any] | None = None
    _: KW_ONLY
    name: str = "trainer"
    """Name of this trainer: keep it over restarts and use it once."""
    threads: int = 2
    """Threads that receive minibatches and look up."""
    rank: int = 0
    """Number of this trainer, with hubs that serve `ranks` trainers in turn."""
    ranks: int = 1
    timeout_s: float = 60.0
    """A hub that is unreachable for more seconds is an error."""
    compression: Literal["lz4", "zstd"] | None = None
    """Compression of minibatches, for slow links."""
    token: str | None = None
    """Auth token of the hubs."""
    tls: Tls | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range."""
        for name, least in (("threads", 1), ("rank", 0), ("ranks", 1)):
            _check_count("HubSource", name, getattr(self, name), least, _COUNT_END)
        if not isinstance(self.timeout_s, int | float) or not 0.0 <= self.timeout_s < math.inf:
            raise ConfigError(f"HubSource: timeout_s = {self.timeout_s!r}: must be a finite number from 0 on")


def _check_count(owner: str, name: str, value: object, least: int, end: int) -> None:
    """Raise ConfigError unless `value` is a whole number from `least` on and below `end`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number < end:
        raise ConfigError(
            f"{owner}: {name} = {value!r}: must be a whole number from {least} on, below 2^{end.bit_length() - 1}"
        )
