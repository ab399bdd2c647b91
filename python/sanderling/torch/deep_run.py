"""Training loop of a deep run: passes, validation, checkpoints, early stop and orderly interruption.

Minibatches come from `sanderling.torch.inputs`; output goes to `sanderling.torch.run_log`.
"""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

import sanderling
from sanderling._native import give_up_silent
from sanderling.torch import checkpoint
from sanderling.torch.click_model import ClickModel
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.inputs import FileInputs, HubInputs, no_rows
from sanderling.torch.known_keys import KnownKeyCounts
from sanderling.torch.labels import without_labels
from sanderling.torch.magnitude import Magnitudes, cause
from sanderling.torch.objective import objective_of
from sanderling.torch.pace import Pace
from sanderling.torch.run_log import SCORES_MAX, Columns, Line, RunLog, Scores
from sanderling.torch.run_progress import Progress, improves, log_bad_rows, merge_stages
from sanderling.torch.stop_signals import orderly
from sanderling.torch.validation import check_finite, score, score_together
from sanderling.torch.workers import Workers

# Default interval between two lines of metrics, in rows.
_PRINT_ROWS = 256_000
# Limit of scored rows in a checkpoint, for the plots of the report; more rows do not change the plots visibly.
_PLOTTED_MAX = 1 << 18
_DENSE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


class _ToldError(Exception):
    """Ends the loop after a signal, once the last step is saved."""


class DeepRun:
    """A run: model, optimizers, inputs and progress."""

    model_class: type[ClickModel] = ClickModel
    looks_ahead = True
    """Whether the queue looks up the rows of minibatches ahead."""

    def __init__(
        self,
        config: DeepConfig,
        run_dir: Path,
        ps: sanderling.Connection | None,
        device: str,
        inputs: FileInputs | HubInputs,
        workers: Workers | None,
        fresh: bool,
    ) -> None:
        """Build the model and its optimizers; `fresh` makes new tables on the servers.

        Raises ConfigError for an unknown `dense_optimizer.type`, and as ClickModel does.
        """
        self.config, self.run_dir, self.device = config, run_dir, device
        self.inputs, self.workers = inputs, workers
        self.spec = inputs.spec
        kind = config.dense_optimizer.type
        if kind not in _DENSE_OPTIMIZERS:
            raise sanderling.ConfigError(f"dense_optimizer.type = {kind!r}: one of {', '.join(_DENSE_OPTIMIZERS)}")
        self.model = self.model_class(config, self.spec["feature"], ps, fresh=fresh, workers=workers).to(device)
        self.objective = objective_of(config, self.spec["feature"])
        # None for a model without dense parameters.
        self.dense: torch.optim.Optimizer | None = None
        if any(True for _ in self.model.parameters()):
            self.dense = _DENSE_OPTIMIZERS[kind](
                self.model.parameters(),
                lr=config.dense_optimizer.lr,  # type: ignore[call-arg]
                weight_decay=config.dense_optimizer.weight_decay,
            )
        self.rows = self.model.emb.optimizer()
        # Factor of the schedule on all learning rates in the current pass.
        self.lr_scale = 1.0
        self.progress = Progress()
        self.magnitudes = Magnitudes(self.model.numbers)
        self.started_unix_s = int(time.time())
        self.began_s = time.perf_counter()
        # Passes that this session ended: number and seconds of training.
        self.timed_passes: list[Line] = []
        # Keys of the last validation by feature, and those with a row.
        self.known: list[Line] = []
        # Metrics of the saved model on the test sets.
        self.tests: list[Line] = []
        # Metrics of further labels in the last validation.
        self.further: dict[str, float] = {}
        # Scored rows for the plots: of the best validation, or without validation of the first pass.
        self.plotted = Scores().take()
        self.stages: list[Line] = []
        # Part of `stages` measured before the current queue was opened.
        self.stages_before: list[Line] = []
        # Reasons of the first bad rows of the last pass.
        self.bad_row_messages: list[str] = []
        # Set by a signal handler: stop after the current step.
        self.told = threading.Event()

    def resume(self) -> None:
        """Restore model, optimizers and progress from the checkpoint `last`."""
        last, first = self.run_dir / "last", self.workers is None or self.workers.rank == 0
        if not first:
            self.meet()
        # Load to the CPU: `load_state_dict` moves the state to the device, and Adam needs its step counts on the CPU.
        extra = checkpoint.load(
            last,
            self.model,
            self.dense,
            self.model.emb,
            map_location="cpu",
            restore_servers=first,
            local_names=self.model.local_names,
        )
        if first:
            self.meet()
        if self.inputs.key_names is not None and (names := checkpoint.read_names(last)) is not None:
            self.inputs.key_names.restore(names)
        self.restored(extra)

    def restored(self, extra: dict[str, Any]) -> None:
        """Take the progress from the `extra` of a checkpoint."""
        self.progress = Progress(**extra["progress"])
        if "features" in extra:
            self.model.emb.native.compare_keys(extra["features"], resume=True)
        # Checkpoints of earlier versions lack it.
        if "report" in extra:
            shown = extra["report"]
            labels, logits, weights = (column.numpy() for column in shown["plotted"])
            self.plotted = labels, logits, weights
            self.stages, self.bad_row_messages = shown["stages"], shown["bad_row_messages"]
            self.stages_before = self.stages

    def meet(self) -> None:
        """Wait for all trainers (a barrier of torch.distributed)."""
        if self.workers is not None:
            torch.distributed.barrier()

    def passes(self, log: RunLog) -> None:
        """Train and validate the remaining passes, and save after each.

        Raises KeyboardInterrupt after a signal, NoRowsError without a usable row, and the errors of inputs and servers.
        """
        config, progress = self.config, self.progress
        used = False
        try:
            with orderly(self):
                while self.is_left():
                    if not progress.unjudged:
                        before = progress.used_rows
                        steps = self.one_pass(log)
                        if self.stopped():
                            log.say(f"stopped after step {progress.step}")
                            self.save_stopped()
                            break
                        if steps == 0 and before == 0:
                            if not config.from_hubs:
                                raise no_rows(config.train_inputs, self.inputs.queue)
                            continue
                    if config.validates:
                        self.judge(log)
                    else:
                        # `unjudged` may be left from a session that had validation files.
                        progress.best_pass, progress.unjudged = progress.passes, False
                    # Save `last` after `model`: a run resumed from it must find the model of its best pass.
                    self.save(*(["model", "last"] if progress.best_pass == progress.passes else ["last"]))
                    if self.is_told():
                        raise _ToldError
            used = True
        except _ToldError:
            log.say(f"stopped after step {progress.step}, which is saved")
            used = True
            raise KeyboardInterrupt from None
        except sanderling.ServerError as error:
            if self.workers is not None or not self.is_told():
                raise
            log.say(f"stopped in step {progress.step + 1}, which is not saved: {error}")
            raise KeyboardInterrupt from error
        finally:
            self.inputs.close(used=used)
            give_up_silent(False)
        if progress.step == 0:
            raise no_rows(config.train_inputs, None)
        if self.idle():
            log.say(f"stopped early: validation was best after pass {progress.best_pass}")

    def is_told(self) -> bool:
        """Return whether a signal ends the run after this step; equal for all trainers."""
        return self.told.is_set() if self.workers is None else self.workers.stopping

    def is_left(self) -> bool:
        """Return whether a pass is left to validate or to train."""
        progress = self.progress
        more = progress.passes < self.inputs.passes and not self.stopped() and not self.idle()
        return progress.unjudged or more

    @property
    def batch_size(self) -> int:
        """Return the rows of a minibatch, by configuration or hub."""
        return self.config.train.batch_size or int(self.inputs.hubs[0]["batch_size"])

    def idle(self) -> bool:
        """Return whether early stopping applies: `early_stop` validations without improvement."""
        return 0 < self.config.train.early_stop <= self.progress.idle

    def stopped(self) -> bool:
        """Return whether the run has reached `max_steps`."""
        return 0 < self.config.train.max_steps <= self.progress.step

    def one_pass(self, log: RunLog) -> int:
        """Train one pass; returns the number of steps, which may be 0 with hubs."""
        config, progress, workers = self.config, self.progress, self.workers
        print_steps = config.train.print_every_steps or max(_PRINT_ROWS // self.batch_size, 1)
        whole, recent = Scores(), Scores()
        began = line_began = time.perf_counter()
        train_s_before = progress.train_s
        line_step, line_examples, steps = progress.step, progress.examples, 0

        def say() -> None:
            nonlocal line_began, line_step, line_examples
            seconds = time.perf_counter() - line_began
            speed = {
                "steps_per_s": (progress.step - line_step) / seconds,
                "examples_per_s": (progress.examples - line_examples) / seconds,
            }
            measured_on = {"measured_on": "train" if progress.passes == 0 else "train_seen"}
            log.line(
                "step",
                {**self.place(progress.passes + 1), **measured_on, **self.objective.metrics(recent.take()), **speed},
            )
            line_began, line_step, line_examples = time.perf_counter(), progress.step, progress.examples

        self.model.train()
        self.set_rates()
        # Prefetched rows would miss updates, which synchronous trainers do not allow.
        in_step = workers is not None and workers.in_step
        ahead = self.model.emb.native if self.looks_ahead and not in_step else None
        batches = self.inputs.one_pass(progress.passes, ahead, progress.used_rows)
        log.begin(
            Pace(
                f"pass {progress.passes + 1}/{self.inputs.passes}",
                lambda: progress.used_rows,
                lambda: progress.pass_rows or (self.inputs.queue and self.inputs.queue.pass_rows),
                lambda: f"step {progress.step}, {progress.examples:,} examples",
            )
        )
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            progress.wait_s += time.perf_counter() - asked
            if batch is None:
                break
            samples = len(batch) if workers is None else workers.samples
            progress.used_rows += samples
            if (len(batch) if workers is None else workers.samples_min) < 2 and config.model.batch_norm:
                continue  # batch norm needs the variance of at least two samples
            for warning in self.magnitudes.add(batch):
                log.warn(warning)
            rows = self.learn(batch)
            if rows is None:
                continue
            steps += 1
            progress.step += 1
            progress.examples += samples
            for scores in (whole, recent):
                scores.add(*rows)
            log.progress()
            if progress.step - line_step >= print_steps:
                say()
            if self.stopped():
                break
            told = self.is_told()
            if told:
                progress.measure(self.objective.metrics(whole.take()))
            if told or (config.train.save_every_steps and progress.step % config.train.save_every_steps == 0):
                progress.train_s, began = progress.train_s + time.perf_counter() - began, time.perf_counter()
                self.save_stopped() if told else self.save("last")
                # Exclude the time of saving from the speed.
                line_began, began = line_began + time.perf_counter() - began, time.perf_counter()
            if told:
                raise _ToldError
        for warning in self.magnitudes.large():
            log.warn(warning)
        if progress.step > line_step:
            say()
        log.begin(None)
        self.model.emb.finish()
        progress.train_s += time.perf_counter() - began
        if steps > 0:
            assert self.inputs.queue is not None
            stats = self.inputs.queue.stats()
            self.stages = merge_stages(self.stages_before, stats["stages"])
            if not config.from_hubs:
                # The next pass has its own queue, which starts at 0.
                self.stages_before = self.stages
            self.bad_row_messages = stats["bad_row_messages"]
            progress.bad_rows = log_bad_rows(log, stats)
            if whole.forgotten:
                log.say(f"metrics of this pass cover its last {whole.rows:,} rows: at most {SCORES_MAX:,} are kept")
            columns = whole.take()
            if not config.validates and progress.passes == 0 and self.objective.has_plots:
                self.plotted = columns
            progress.measure(self.objective.metrics(columns))
        if not self.stopped():
            self.timed_passes.append({"pass": progress.passes + 1, "seconds": progress.train_s - train_s_before})
            progress.passes += 1
            progress.used_rows, progress.pass_rows = 0, progress.used_rows
        return steps

    def loss_of(self, batch: sanderling.Batch) -> tuple[Tensor, Columns] | None:
        """Return the loss of a batch, and its scored rows; None for a batch without a row to learn from."""
        return self.objective.loss(self.model(batch), batch)

    def learn(self, batch: sanderling.Batch) -> Columns | None:
        """Train one step; returns the rows as scored before the update, or None if there was none."""
        if self.dense is not None:
            self.dense.zero_grad()
        found = self.loss_of(batch)
        if found is None:
            return None
        loss, rows = found
        (loss if self.workers is None else loss * self.workers.share).backward()
        if self.workers is not None:
            self.average()
        if self.config.train.clip_norm > 0.0:
            self.model.emb.clip_grad_norm_(self.config.train.clip_norm, self.model.parameters())
        if self.dense is not None:
            self.dense.step()
        try:
            self.rows.step()
        except sanderling.GradientError as error:
            if (why := cause(batch, self.model.numbers)) is None:
                raise
            raise sanderling.GradientError(f"{error}; {why}") from error
        if self.config.train.l2_idle:
            self.model.emb.push_idle(batch, lr_scale=self.lr_scale)
        check_finite(rows[1], batch, self.model, f"training diverged at step {self.progress.step + 1}")
        return rows

    def average(self) -> None:
        """Average the gradients of the dense parameters over the trainers (all-reduce)."""
        assert self.workers is not None
        grads = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        torch.distributed.all_reduce(flat)
        flat /= self.workers.size
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def judge(self, log: RunLog) -> None:
        """Validate the last pass and update the best validation."""
        progress, monitor = self.progress, self.config.train.monitor
        began = time.perf_counter()
        metrics, columns = self.validated_or_saved(log)
        best = progress.best is None or improves(monitor, metrics, progress.best)
        if best:
            progress.best, progress.best_pass, progress.idle = metrics, progress.passes, 0
            self.plotted = columns if self.objective.has_plots else self.plotted
        else:
            progress.plateaus += 1
            progress.idle += 1
        seconds = time.perf_counter() - began
        log.line(
            "valid",
            {**self.place(progress.passes), "measured_on": "valid", **metrics, "best": best, "seconds": seconds},
        )

    def tell_known(self, known: KnownKeyCounts, log: RunLog) -> None:
        """Keep how many keys of a validation have rows, and log features of which none has."""
        counts = known.counts.items()
        self.known = [{"feature": name, "occurrences": keys, "known": found} for name, (keys, found) in counts]
        for remark in known.remarks():
            log.say(remark)

    def validated_or_saved(self, log: RunLog) -> tuple[Line, Columns]:
        """Validate the last pass; after an error, save the run so that resuming it begins with the validation."""
        self.progress.unjudged = True
        try:
            validated = self.validate(log)
        except sanderling.DivergedError:
            raise  # keep the previous checkpoint, which is better
        except Exception as error:
            number = self.progress.passes
            try:
                self.save_stopped()
            except sanderling.Error as unsaved:
                log.say(f"pass {number} could not be validated, and is not saved: {unsaved}")
            else:
                log.say(f"pass {number} could not be validated; it is saved, and validated first when resumed: {error}")
            raise
        self.progress.unjudged = False
        return validated

    def validate(self, log: RunLog) -> tuple[Line, Columns]:
        """Return the metrics over the validation files and the scored rows; each trainer scores its share."""
        if self.workers is not None:
            self.meet()
            for buffer in self.model.buffers():
                if buffer.numel() > 0:
                    torch.distributed.broadcast(buffer, src=0)
        columns = score(self, log) if self.workers is None else score_together(self, log, self.workers)
        return {**self.objective.metrics(columns), **self.further}, columns

    def set_rates(self) -> None:
        """Set the learning rates of tables and dense optimizer by the schedule."""
        schedule, factor = self.config.train.schedule, 1.0
        if schedule["type"] == "exponential":
            factor = float(schedule["factor"]) ** self.progress.passes
        elif schedule["type"] == "plateau":
            least = float(schedule.get("min", 0.0))
            factor = max(float(schedule.get("factor", 0.1)) ** self.progress.plateaus, least)
        for group in () if self.dense is None else self.dense.param_groups:
            group["lr"] = self.config.dense_optimizer.lr * factor
        rates = self.model.emb.rates()
        for group in self.rows.param_groups:
            group["lr"] = rates[group["table"]] * factor
        self.lr_scale = factor

    def place(self, of_pass: int) -> Line:
        """Return step, pass and trained examples for a line of metrics."""
        return {"step": self.progress.step, "pass": of_pass, "trained_examples": self.progress.examples}

    def save_stopped(self) -> None:
        """Save a run that stops: `last`, and before the first validation also `model`, as the best so far."""
        self.save(*(["model", "last"] if self.progress.best is None else ["last"]))

    def save(self, *names: str) -> None:
        """Save the run as checkpoints of these names; rank 0 saves, the other trainers wait."""
        extra = self.extra()
        self.model.emb.finish()
        self.gather_names()
        self.meet()
        if self.workers is None or self.workers.rank == 0:
            for name in names:
                more = {"report": self.shown()} if name == "last" else {}
                # `model` is used without servers, and so is `last` once the run has ended. Until then the servers save
                # `last`, which takes less time than a download.
                downloads = self.config.train.download and (name == "model" or not self.is_left())
                checkpoint.save(
                    self.run_dir / name,
                    self.model,
                    self.dense,
                    self.model.emb,
                    extra={**extra, **more},
                    description=f"{self.config.model.type} in PyTorch",
                    local_names=self.model.local_names if downloads else None,
                    on_servers=name == "last" or not downloads,
                    spec=without_labels(self.spec),
                    key_names=self.inputs.key_names,
                )
        self.meet()

    def gather_names(self) -> None:
        """Gather the names of keys that all trainers have read at rank 0, which saves them."""
        names = self.inputs.key_names
        if names is None or self.workers is None:
            return
        told: list[Any] | None = [None] * self.workers.size if self.workers.rank == 0 else None
        torch.distributed.gather_object(names.to_bytes(), told)
        for of_one in told or ():
            names.restore(of_one)

    def extra(self) -> dict[str, Any]:
        """Return the state of the run for a checkpoint."""
        return {
            "progress": dataclasses.asdict(self.progress),
            "spec": self.spec,
            "config": self.config.to_dict(),
            "hubs": self.inputs.hubs,
            "features": self.model.emb.native.feature_keys(),
            "holdout": None if self.inputs.holdout is None else dataclasses.asdict(self.inputs.holdout),
        }

    def shown(self) -> dict[str, Any]:
        """Return the state of the report that a resumed run needs."""
        # Sample evenly: rows close to each other in the input may be similar.
        stride = len(self.plotted[0]) // _PLOTTED_MAX + 1
        return {
            "plotted": [torch.from_numpy(column[::stride].copy()) for column in self.plotted],
            "stages": self.stages,
            "bad_row_messages": self.bad_row_messages,
        }
