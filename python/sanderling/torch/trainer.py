"""The ready trainer of deep click models: a `DeepConfig` becomes a directory with the best model and metrics.

    runs/<name>/model/         checkpoint of the best validated pass, or without validation of the last one
    runs/<name>/last/          checkpoint after the last whole pass, to resume from
    runs/<name>/metrics.jsonl  a line per printed line, as the built-in learners write them
    runs/<name>/summary.json   what the run came to
    runs/<name>/report.html    the same with curves, tables and keys, for a browser

Knows no command line.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import sanderling
from sanderling._native import render_report
from sanderling.torch import checkpoint
from sanderling.torch.click_model import ClickModel
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.run_log import SCORES_MAX, Columns, Line, RunLog, Scores

# Rows between two lines of metrics, where the configuration does not say.
_PRINT_ROWS = 256_000
_DENSE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


@dataclass
class Progress:
    """Where a run is; what a checkpoint keeps of it."""

    step: int = 0
    examples: int = 0
    passes: int = 0
    """Whole ones."""
    train_s: float = 0.0
    best: Line | None = None
    """The best validation."""
    best_pass: int = 0
    plateaus: int = 0
    """Validations that did not improve, in all."""
    idle: int = 0
    """Passes since the best one."""
    last: Line = field(default_factory=dict)
    """Metrics of the training rows of the last pass, each scored before it was learned from."""


@dataclass
class DeepResult:
    """What a run came to."""

    summary: dict[str, Any]
    """Also in `summary.json`."""
    run_dir: Path
    model: ClickModel
    """As it is after the last step; `runs/<name>/model` has the best one."""


def train(
    config: DeepConfig | Mapping[str, Any] | str | Path,
    *,
    ps: sanderling.Connection | str | None = None,
    runs_dir: str | Path = "runs",
    resume: bool = False,
    device: str = "cpu",
    tensorboard: bool = False,
    quiet: bool = True,
    on_line: Callable[[Line], object] | None = None,
) -> DeepResult:
    """Trains as the configuration says: a `DeepConfig`, a dictionary, or a TOML file of that structure.

    `resume` goes on after the last whole pass of a run that was interrupted. `on_line` gets every line of metrics.
    """
    if not isinstance(config, DeepConfig):
        config = DeepConfig.of(config) if isinstance(config, Mapping) else DeepConfig.read(Path(config))
    run_dir = Path(runs_dir) / config.name
    run_dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    run = _Run(config, run_dir, ps, device, fresh=not resume)
    if resume:
        run.resume()
    log = RunLog(
        run_dir,
        resumed_step=run.progress.step if resume else None,
        tensorboard=tensorboard,
        quiet=quiet,
        on_line=on_line,
    )
    try:
        run.passes(log)
    finally:
        log.close()
    summary = run.summary()
    run.report(summary)
    return DeepResult(summary, run_dir, run.model)


class _Run:
    """A run under way."""

    def __init__(
        self, config: DeepConfig, run_dir: Path, ps: sanderling.Connection | str | None, device: str, fresh: bool
    ) -> None:
        self.config, self.run_dir, self.device = config, run_dir, device
        # Quantiles are fitted once, and every queue reads by the same boundaries.
        probe = sanderling.FeedQueue(config.train_inputs, spec=config.spec, batch_size=2, threads=1, depth=1)
        spec = probe.spec
        probe.close()
        if spec is None:
            raise sanderling.ConfigError("data.train: this trainer reads files; for hubs see examples/train_deepfm.py")
        self.spec: dict[str, Any] = spec
        self.model = ClickModel(config, self.spec["feature"], ps, fresh=fresh).to(device)
        kind = config.dense_optimizer.type
        if kind not in _DENSE_OPTIMIZERS:
            raise sanderling.ConfigError(f"dense_optimizer.type = {kind!r}: one of {', '.join(_DENSE_OPTIMIZERS)}")
        self.dense: torch.optim.Optimizer = _DENSE_OPTIMIZERS[kind](
            self.model.parameters(),
            lr=config.dense_optimizer.lr,  # type: ignore[call-arg]
            weight_decay=config.dense_optimizer.weight_decay,
        )
        self.rows = self.model.emb.optimizer()
        self.progress = Progress()
        self.started_unix_s = int(time.time())
        # What the report plots: the best validation, or without one the last pass.
        self.plotted = Scores().columns()
        self.stages: list[dict[str, Any]] = []

    def resume(self) -> None:
        """Goes on where `last` was saved."""
        extra = checkpoint.load(self.run_dir / "last", self.model, self.dense, self.model.emb, map_location=self.device)
        self.progress = Progress(**extra["progress"])
        self.spec = extra["spec"]

    def passes(self, log: RunLog) -> None:
        """All passes that are left."""
        train, progress = self.config.train, self.progress
        while progress.passes < train.passes and not self.stopped() and not self.idle():
            self.one_pass(log)
            if self.stopped():
                log.say(f"stopped after step {progress.step}")
                break
            if self.config.valid_inputs:
                self.judge(log)
            else:
                progress.best_pass = progress.passes
            self.save()
        if self.idle():
            log.say(f"stopped early: validation was best after pass {progress.best_pass}")

    def idle(self) -> bool:
        """Whether validation has not improved for long enough."""
        return 0 < self.config.train.early_stop <= self.progress.idle

    def stopped(self) -> bool:
        """Whether `max_steps` ended the run."""
        return 0 < self.config.train.max_steps <= self.progress.step

    def one_pass(self, log: RunLog) -> None:
        """A pass over the training data."""
        config, progress = self.config, self.progress
        print_steps = config.train.print_every or max(_PRINT_ROWS // config.train.batch, 1)
        whole, recent = Scores(), Scores()
        began = line_began = time.perf_counter()
        line_step, line_examples = progress.step, progress.examples
        self.model.train()
        self.set_rates()
        queue = self.queue(config.train_inputs, self.spec, shuffle=config.train.shuffle)
        for batch in queue:
            if len(batch) < 2 and config.model.batch_norm:
                continue  # there is no variance of one sample
            logits = self.learn(batch)
            progress.step += 1
            progress.examples += len(batch)
            for scores in (whole, recent):
                scores.add(batch.labels, logits, batch.weights)
            log.progress(f"pass {progress.passes + 1}/{config.train.passes}, step {progress.step}")
            if progress.step % print_steps == 0:
                seconds = time.perf_counter() - line_began
                steps, examples = progress.step - line_step, progress.examples - line_examples
                speed = {"steps_per_s": steps / seconds, "examples_per_s": examples / seconds}
                log.line("step", {**self.place(progress.passes + 1), **recent.metrics(), **speed})
                line_began, line_step, line_examples = time.perf_counter(), progress.step, progress.examples
            if self.stopped():
                break
        self.model.emb.finish()
        progress.train_s += time.perf_counter() - began
        self.stages = queue.stats()["stages"]
        if not config.valid_inputs:
            self.plotted = whole.columns()
        progress.last = whole.metrics()
        if not self.stopped():
            progress.passes += 1

    def learn(self, batch: sanderling.Batch) -> npt.NDArray[np.float32]:
        """A step; returns the logits before it, [B]."""
        self.dense.zero_grad()
        logits = self.model(batch)
        labels, weights = (torch.from_numpy(array).to(self.device) for array in (batch.labels, batch.weights))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, weight=weights)
        loss.backward()
        if self.config.train.clip_norm > 0.0:
            self.model.emb.clip_grad_norm_(self.config.train.clip_norm, self.model.parameters())
        self.dense.step()
        self.rows.step()
        if self.config.train.l2_idle:
            self.model.emb.push_idle(batch, float(self.rows.param_groups[0]["lr"]))
        before: npt.NDArray[np.float32] = logits.detach().cpu().numpy()
        return before

    def judge(self, log: RunLog) -> None:
        """Validates the pass just ended, and keeps the model if it is the best."""
        progress, monitor = self.progress, self.config.train.monitor
        began = time.perf_counter()
        metrics, columns = self.validate(log)
        best = progress.best is None or (
            metrics[monitor] > progress.best[monitor] if monitor == "auc" else metrics[monitor] < progress.best[monitor]
        )
        if best:
            progress.best, progress.best_pass, progress.idle = metrics, progress.passes, 0
            self.plotted = columns
        else:
            progress.plateaus += 1
            progress.idle += 1
        seconds = time.perf_counter() - began
        log.line("valid", {**self.place(progress.passes), **metrics, "best": best, "seconds": seconds})

    def validate(self, log: RunLog) -> tuple[Line, Columns]:
        """Metrics over the validation files, and what they are of."""
        scores = Scores()
        self.model.eval()
        spec = {key: value for key, value in self.spec.items() if key != "negatives"}
        with torch.no_grad():
            for batch in self.queue(self.config.valid_inputs, spec, shuffle=0):
                scores.add(batch.labels, self.model(batch).cpu().numpy(), batch.weights)
                log.progress("validating")
        if scores.forgotten:
            raise sanderling.ConfigError(f"data.valid: more than {SCORES_MAX:,} rows; name fewer files")
        columns = scores.columns()
        return scores.metrics(), columns

    def queue(self, inputs: list[str], spec: dict[str, Any], shuffle: int) -> sanderling.FeedQueue:
        """The batches of one pass; a pass has its own order, whatever came before it."""
        train = self.config.train
        return sanderling.FeedQueue(
            inputs,
            self.model.emb.native,
            spec=spec,
            batch_size=train.batch,
            threads=train.threads,
            depth=train.depth,
            shuffle=shuffle,
            seed=self.config.seed + self.progress.passes,
        )

    def set_rates(self) -> None:
        """Learning rates of this pass, of rows and dense part alike."""
        schedule, factor = self.config.train.schedule, 1.0
        if schedule["type"] == "exponential":
            factor = float(schedule["factor"]) ** self.progress.passes
        elif schedule["type"] == "plateau":
            least = float(schedule.get("min", 0.0))
            factor = max(float(schedule.get("factor", 0.1)) ** self.progress.plateaus, least)
        for group in self.dense.param_groups:
            group["lr"] = self.config.dense_optimizer.lr * factor
        for group in self.rows.param_groups:
            group["lr"] = factor

    def place(self, of_pass: int) -> Line:
        """Where a line of metrics belongs."""
        return {"step": self.progress.step, "pass": of_pass, "trained_examples": self.progress.examples}

    def save(self) -> None:
        """Saves the pass just ended, also as the model if it is the best or nothing says which is."""
        extra = {
            "progress": dataclasses.asdict(self.progress),
            "spec": self.spec,
            "config": self.config.to_dict(),
        }
        # `last` last: a run that is resumed from it has the model of its best pass.
        for name in ("model", "last") if self.progress.best_pass == self.progress.passes else ("last",):
            checkpoint.save(self.run_dir / name, self.model, self.dense, self.model.emb, extra=extra)

    def summary(self) -> dict[str, Any]:
        """What the run came to, also written to `summary.json`."""
        progress = self.progress
        metrics = progress.last if progress.best is None else progress.best
        scores = {name: metrics.get(name) for name in ("auc", "logloss", "prob_mean", "real_mean")}
        summary = {
            "name": self.config.name,
            **{name: value if value is not None and np.isfinite(value) else None for name, value in scores.items()},
            "measured_on": "train" if progress.best is None else "valid",
            "examples": progress.examples,
            "examples_per_s": progress.examples / max(progress.train_s, 1e-9),
            "train_s": progress.train_s,
            "steps": progress.step,
            "passes": progress.passes,
            "best_pass": progress.best_pass,
            "rows": sum(len(table) for table in self.model.emb.tables.values()),
            "table_bytes": sum(table.bytes for table in self.model.emb.tables.values()),
            "stopped": self.stopped(),
            "model": str(self.run_dir / "model"),
        }
        (self.run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        return summary

    def report(self, summary: Line) -> None:
        """Writes `report.html`."""
        lines = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        names = ("step", "pass", "trained_examples", "auc", "logloss", "prob_mean", "real_mean")
        curves = {
            kind: [{name: line[name] for name in names} for line in lines if line["kind"] == kind]
            for kind in ("step", "valid")
        }
        metrics = self.progress.last if self.progress.best is None else self.progress.best
        same = ("name", "train_s", "examples", "passes", "examples_per_s")
        facts = {
            **{name: summary[name] for name in same},
            "model": f"{self.config.model.type} in PyTorch",
            "started_unix_s": self.started_unix_s,
            "threads": self.config.train.threads,
            "metrics": {name: None if np.isnan(value) else value for name, value in metrics.items()},
            "valid": None if self.progress.best is None else ", ".join(self.config.valid_inputs),
            "train_curve": curves["step"],
            "valid_curve": curves["valid"],
            "stages": self.stages,
            "model_path": summary["model"],
            "eval_command": f"sanderling.torch.checkpoint.load({summary['model']!r}, ...) in Python",
            "config": json.dumps(self.config.to_dict(), indent=1),
        }
        tables = [table for table in self.model.emb.tables.values() if isinstance(table, sanderling.Table)]
        page = render_report(facts, *self.plotted, tables)
        (self.run_dir / "report.html").write_text(page)
