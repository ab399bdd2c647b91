"""The built-in models, their training and metrics, and private entry points of the package."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, final, overload

import numpy as np
import numpy.typing as npt

from sanderling._native.arguments import _Numbers, _Path, _Row, _Source, _Value
from sanderling._native.feed import KeyNames
from sanderling._native.tables import Table
from sanderling.types import Evaluation, Metrics, Neighbour

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
    @overload
    def predict(self, source: _Source, *, data: dict[str, Any] | None = None) -> npt.NDArray[np.float32]: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, source: Sequence[_Row], *, data: dict[str, Any] | None = None) -> npt.NDArray[np.float32]: ...
    @overload
    def predict(self, source: _Row, *, data: dict[str, Any] | None = None) -> float: ...
    @overload
    def predict(self, source: object, *, data: dict[str, Any] | None = None) -> npt.NDArray[np.float32] | float:
        """Predict a probability per row, of a regression a number, float32 [rows], in the order of the rows.

        `source` is a path, a glob pattern, rows in memory, or a list of these. Rows in memory are an Arrow table or
        stream, a frame of pandas or polars, a relation of duckdb, a dictionary of columns, a Batch, or a list of
        dictionaries. Labels may be missing. A dictionary with single values is one row and gives a float.

        `data` overrides settings of reading, for example `{"format": "csv", "on_bad_row": "skip:100"}`. A skipped row
        gives NaN. A UserWarning names features without any known key, except for dictionaries of single values.
        """
    def evaluate(self, source: _Source, *, threads: int = 1, data: dict[str, Any] | None = None) -> Evaluation:
        """Compute metrics over labelled rows; `source` and `data` as in `predict`.

        A UserWarning names features without any known key.
        """

    @overload
    def key(self, feature: str, value: _Value) -> int: ...
    @overload
    def key(self, feature: str, value: list[Any] | npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Return the key of a value of a feature, or the keys of several values, uint64 [n]."""
    def similar(
        self,
        feature: str,
        value: _Value = None,
        *,
        key: int | None = None,
        top: int = 10,
        by: Literal["cosine", "dot"] = "cosine",
    ) -> list[Neighbour]:
        """Return the rows nearest to that of a value, or of a key: exact, best first; every row is compared.

        Rows are compared by their factors, without the linear weight. Raises NotFoundError if the key has no row.
        """

@overload
def key(feature: str, value: _Value, *, spec: dict[str, Any] | None = None) -> int: ...
@overload
def key(
    feature: str, value: list[Any] | npt.NDArray[Any], *, spec: dict[str, Any] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the key of a value of a feature, or the keys of several values, uint64 [n].

    Without `spec` (as in FeedQueue), the feature is categorical and its keys are salted by its name, as is the default.
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
        """Mean logistic loss; NaN of a regression."""
    @property
    def rmse(self) -> float:
        """Root mean squared error of a regression; NaN of other models."""
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
    train: _Source | None = None,
    valid: _Source | None = None,
    name: str | None = None,
    runs_dir: _Path | None = None,
    resume: bool = False,
    from_model: _Path | None = None,
    forget: bool = False,
    on_line: Callable[[dict[str, Any]], object] | None = None,
    status_listen: str | None = None,
) -> TrainResult:
    """Train a model from a configuration: a dictionary, or the path of a TOML file.

    `train` and `valid` replace `data.train` and `data.valid`: paths, or rows in memory as in `Model.predict`. In a
    dictionary, these entries may be rows in memory, too. A stream can be read once, so it serves a single pass.

    Files go to `runs_dir/name` (`runs_dir` is "runs" by default). A run with `name` replaces an earlier run of that
    name. Without it, the name comes from the configuration, its file, or its first training file; an earlier run with
    another configuration is kept, and the new one is numbered (clicks-2). `resume` continues from the last checkpoint.

    `from_model` is the directory of a saved model that a new run begins with: weights, optimizer state, frequencies and
    fitted boundaries. New features may come; ModelError names a feature that changed.

    `forget` removes the rows that kept tables have (`table.NAME.memory`) before the run begins or restores its
    checkpoint.

    `on_line` is called with every line of metrics. An error of the callback, like Ctrl-C, ends the run after saving
    it, so it can be resumed.

    `status_listen`, such as "127.0.0.1:9400", shows the run at this address of the machine while it goes on: its page,
    status pages and `/metrics`.
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

def set_entries(config: dict[str, Any], entries: Sequence[str]) -> dict[str, Any]:
    """Return the configuration with entries of the command line set, each `SECTION.ENTRY=VALUE`.

    A value that is no TOML is text. Of an array of tables, as `[[feature]]` makes it, an element is chosen by its name.
    Raises ConfigError for an entry that cannot be read or set.
    """

def value_key(feature: Mapping[str, Any]) -> int:
    """Return the key of all present values of a `numeric` or `log` feature, given as in specs."""

def remarks_of(
    labels: npt.NDArray[np.float32], logits: npt.NDArray[np.float32], weights: npt.NDArray[np.float32]
) -> list[str]:
    """Return warnings about scores: constant, worse than no model, or badly calibrated; all float32 [rows]."""

@final
class RunStatus:
    """Record of a run that Python leads, while it goes on; with an address also its page there."""

    def __new__(cls, address: str | None = None) -> RunStatus: ...
    @property
    def url(self) -> str | None:
        """URL of the page; None without one."""
    def note(self, facts: dict[str, Any], tables: Sequence[Table]) -> str:
        """Take the facts of a moment, as `render_report` takes them, and return the record as JSON."""

def render_report(
    facts: dict[str, Any],
    labels: npt.NDArray[np.float32],
    logits: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
    tables: Sequence[Table],
    names: KeyNames | None = None,
) -> str:
    """Render the HTML report of a run trained from Python; arrays are float32 [rows], scored by its model.

    `names` gives the keys of tables their texts.
    """

def cores_usable() -> int:
    """Return the number of physical cores that this process may use, at least 1."""

def cli_main(argv: Sequence[str]) -> int:
    """Run a command line, program name first; returns the exit code. Handles SIGINT during training."""
