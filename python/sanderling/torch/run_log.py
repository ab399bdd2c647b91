"""Output of a deep run: text lines, progress, `metrics.jsonl` as of the built-in learners, and TensorBoard events."""

import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

import sanderling
from sanderling.torch.event_file import EventFile
from sanderling.torch.pace import Pace

# Interval between updates of the progress line in a terminal, in seconds.
_PROGRESS_S = 0.2
# Interval of progress lines in a log, in seconds, when nothing else is written.
LINE_EVERY_S = 10.0

# A line of metrics.
Line = dict[str, Any]
# Labels, logits and weights, all float32 [rows].
Columns = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]

# Limit of scored rows in memory, 12 bytes each.
SCORES_MAX = 1 << 26


class Scores:
    """Labels, logits and weights of the last scored rows, about `most` at most; `forgotten` counts dropped rows."""

    def __init__(self, most: int = SCORES_MAX) -> None:
        """Begin without rows."""
        self._parts: deque[tuple[npt.NDArray[np.float32], ...]] = deque()
        self._most, self.rows, self.forgotten = most, 0, 0

    def add(
        self, labels: npt.NDArray[np.float32], logits: npt.NDArray[np.float32], weights: npt.NDArray[np.float32]
    ) -> None:
        """Add a copy of the rows of a batch, all float32 [B]; drops the oldest batches above the limit."""
        self._parts.append((labels.copy(), logits.copy(), weights.copy()))
        self.rows += len(labels)
        while self.rows > self._most and len(self._parts) > 1:
            first = len(self._parts.popleft()[0])
            self.rows -= first
            self.forgotten += first

    def take(self) -> Columns:
        """Return all rows and clear them."""
        none = (np.zeros(0, np.float32),) * 3
        labels, logits, weights = (np.concatenate(column) for column in zip(none, *self._parts, strict=True))
        self._parts, self.rows, self.forgotten = deque(), 0, 0
        return labels, logits, weights


def metrics_of(rows: Columns) -> Line:
    """Return the metrics of scored rows, as `sanderling.metrics`; DivergedError for logits that are not finite."""
    labels, logits, weights = rows
    if not np.isfinite(logits).all():
        raise sanderling.DivergedError("a prediction became infinite or undefined; lower the learning rates")
    return dict(sanderling.metrics(labels, logits, weights, from_logits=True))


class RunLog:
    """Writer of the lines, files and progress of one run."""

    def __init__(
        self,
        run_dir: Path,
        *,
        resumed_step: int | None = None,
        tensorboard: bool = False,
        quiet: bool = False,
        warns: bool = True,
        on_line: Callable[[Line], object] | None = None,
        features: Callable[[], list[Line]] | None = None,
        stream: TextIO | None = None,
        line_every_s: float = LINE_EVERY_S,
    ) -> None:
        """Open the files of a run; with `resumed_step`, keep the lines of metrics up to that step.

        `quiet` suppresses text, but not warnings; `warns=False` suppresses warnings. `on_line` is called with every
        line of metrics. `features` returns the numbers of each feature for TensorBoard. `stream` is by default standard
        error. If it is not a terminal, a thread writes a progress line after `line_every_s` seconds without other
        output.
        """
        path = run_dir / "metrics.jsonl"
        kept = _lines_until(path, resumed_step) if resumed_step is not None and path.exists() else []
        self._file = path.open("w")
        self._file.writelines(kept)
        self._file.flush()
        self._events = EventFile(run_dir / "tensorboard") if tensorboard else None
        self._stream = sys.stderr if stream is None else stream
        self._quiet, self._warns, self._on_line, self._features = quiet, warns, on_line, features
        self._terminal = not quiet and self._stream.isatty()
        self._shown, self._shown_at = "", 0.0
        # Progress of the current task. A thread reports it, because a step or the wait for a hub may take longer.
        self._pace: Pace | None = None
        self._lock, self._said_at, self._line_every_s = threading.RLock(), time.monotonic(), line_every_s
        self._ended = threading.Event()
        self._speaker: threading.Thread | None = None
        if not quiet and not self._terminal:
            self._speaker = threading.Thread(target=self._speak, name="progress", daemon=True)
            self._speaker.start()

    def line(self, kind: str, values: Line) -> None:
        """Write a line of metrics to all outputs; `kind` is "step", "valid" or "test"."""
        entry = {"kind": kind, **values}
        plain = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in entry.items()}
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()
        if self._events is not None:
            group = {"step": "train", "test": f"test/{values.get('name')}"}.get(kind, kind)
            self._events.scalars(values["step"], _scalars(group, values))
            if kind == "step" and self._features is not None:
                self._events.scalars(values["step"], _of_features(self._features()))
        scores = ", ".join(f"{name} {values[name]:.6f}" for name in shown_metrics(values))
        if kind == "step":
            speed = f"({values['steps_per_s']:.1f} it/s; {values['examples_per_s']:,.0f} examples/s)"
            over = " over training (seen) data" if values["measured_on"] == "train_seen" else ""
            self.say(f"step {values['step']}{over}, {scores} {speed}")
        elif kind == "test":
            self.say(f"test set {values['name']}: {scores}")
        else:
            best = ", best so far" if values["best"] else ""
            self.say(f"pass {values['pass']} validated: {scores}{best}")
        if self._on_line is not None:
            self._on_line(plain)

    def say(self, text: str) -> None:
        """Write a line of text unless the run is quiet."""
        if not self._quiet:
            with self._lock:
                self._clear()
                self._stream.write(text + "\n")
                self._stream.flush()
                self._said_at = time.monotonic()

    def warn(self, text: str) -> None:
        """Write a warning, also in a quiet run."""
        if self._warns:
            with self._lock:
                self._clear()
                self._stream.write(text + "\n")
                self._stream.flush()
                self._said_at = time.monotonic()

    def begin(self, pace: Pace | None) -> None:
        """Set the current task for progress lines; None: no task."""
        with self._lock:
            self._pace = pace

    def task(self) -> tuple[str, float | None, float | None] | None:
        """Return name, share done and seconds left of the current task; None: no task, or unknown."""
        with self._lock:
            pace = self._pace
        return None if pace is None else (pace.name, *pace.share_and_left())

    def progress(self) -> None:
        """Update the progress line of a terminal; called after each batch."""
        if self._terminal and self._pace is not None and time.monotonic() - self._shown_at > _PROGRESS_S:
            what = self._pace.text()
            self._clear()
            self._stream.write(what)
            self._stream.flush()
            self._shown, self._shown_at = what, time.monotonic()

    def _speak(self) -> None:
        """Write a progress line whenever nothing was written for `line_every_s` seconds; runs in its own thread."""
        wait = self._line_every_s
        while not self._ended.wait(max(wait, 0.0)):
            with self._lock:
                now = time.monotonic()
                if self._pace is not None and now - self._said_at >= self._line_every_s:
                    self.say(self._pace.text())
                wait = self._line_every_s if self._pace is None else self._said_at + self._line_every_s - now

    def close(self) -> None:
        """Stop the progress thread and close the files."""
        self._ended.set()
        if self._speaker is not None:
            self._speaker.join()
        self._clear()
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""


def shown_metrics(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics to show: those of ranked lists, of a regression, or of labels."""
    if ranking := [name for name in values if "@" in name]:
        return ranking
    first = ["rmse", "mae"] if "rmse" in values else ["auc", "logloss"]
    return [*first, *(name for name in values if "." in name), "prob_mean", "real_mean"]


def _scalars(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of a line for TensorBoard, by tag."""
    known = ("auc", "logloss", "prob_mean", "real_mean", "steps_per_s", "examples_per_s")
    names = [*known, *shown_metrics(values)]
    return {f"{group}/{name}": float(values[name]) for name in names if name in values}


def _of_features(features: list[Line]) -> dict[str, float]:
    """Return the known numbers of features for TensorBoard, by tag. Features that share a table share its counts."""
    fates = ("admitted", "rejected", "evicted", "rejected_full")

    def tag(feature: Line, name: str) -> str:
        is_shared = name in fates and feature["readers"] > 1
        return f"tables/{feature['table']}/{name}" if is_shared else f"features/{feature['name']}/{name}"

    return {
        tag(feature, name): float(value)
        for feature in features
        for name, value in feature.items()
        if name not in ("name", "table", "readers") and value is not None
    }


def _lines_until(path: Path, step: int) -> list[str]:
    """Return the complete lines up to a step. A killed run may have written later lines, and a partial one."""
    kept = []
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
            # The end of the resumed run scores the test sets again.
            if entry["step"] <= step and entry.get("kind") != "test":
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            break
    return kept
