"""Trainer of deep click models: trains a `DeepConfig` and writes model, metrics and report to a run directory.

    runs/<name>/model/         checkpoint of the best validated pass; without validation, of the last pass
    runs/<name>/last/          checkpoint to resume from: the last one saved, after a pass, a stop or an interval
    runs/<name>/metrics.jsonl  lines of metrics, in the format of the built-in learners
    runs/<name>/run.json       state of the run while it goes on, for `sanderling watch`
    runs/<name>/summary.json   summary of the run
    runs/<name>/config.json    configuration as it ran, defaults filled in
    runs/<name>/report.html    HTML report: summary, curves, tables and keys
    runs/<name>/trainer-1/     lines of metrics of the second of several trainers, and so on

The training loop is in `sanderling.torch.deep_run`, the command line in `sanderling.torch.command`.
"""

import dataclasses
import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed

import sanderling
from sanderling.torch import checkpoint, compute_threads
from sanderling.torch.click_model import ClickModel, check_device
from sanderling.torch.deep_config import DeepConfig, read_toml
from sanderling.torch.deep_report import summary_of, write_report
from sanderling.torch.deep_run import DeepRun
from sanderling.torch.input_names import HUBS
from sanderling.torch.inputs import FileInputs, HubInputs, check_fields, check_files, check_valid
from sanderling.torch.retrieval_run import RetrievalRun
from sanderling.torch.run_log import Line, RunLog
from sanderling.torch.run_name import named, replaces
from sanderling.torch.run_status import RunRecord
from sanderling.torch.test_sets import score_tests
from sanderling.torch.warm_start import saved_model, warm_start, with_saved_features
from sanderling.torch.workers import Workers, bound_of, join

# Time of waiting before a notice is written, in seconds.
_NOTICE_S = 2.0
# Time limit of trainers under torchrun for each other, in seconds; it includes saving.
_STEP_TIMEOUT_S = 300.0


@dataclass
class DeepResult:
    """Result of a run."""

    summary: dict[str, Any]
    """Content of `summary.json`."""
    run_dir: Path
    """Directory of the run, `runs_dir/name`."""
    model: ClickModel
    """Model after the last step; the best one is the checkpoint `runs/<name>/model`."""


def train(
    config: DeepConfig | Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    ps: sanderling.Connection | str | None = None,
    runs_dir: str | Path = "runs",
    resume: bool = False,
    from_model: str | Path | None = None,
    device: str = "cpu",
    tensorboard: bool = False,
    quiet: bool = True,
    on_line: Callable[[Line], object] | None = None,
    mode: str = "sync",
    hubs: sanderling.HubSource | None = None,
    torch_threads: int | None = None,
    status_listen: str | None = None,
) -> DeepResult:
    """Train a deep model; `config` is a `DeepConfig`, a dictionary, or a TOML file of that structure.

    A run with `name` replaces an earlier run of that name. Without it, the name comes from the configuration; an
    earlier run of another configuration is kept, and the new one is numbered (clicks-2). Under torchrun, the name is
    always that of the configuration, because all trainers must have an equal one.

    `from_model`, the directory of a saved model, is what a new run begins with: its embeddings, dense parameters and
    optimizer state; new features may come. `resume` continues from the last checkpoint. `on_line` is called with every
    line of metrics. The device of the dense part is `device`. `torch_threads` is the number of torch
    threads during the run; by default torch's own number if OMP_NUM_THREADS is set, else the physical cores without
    `train.threads`, at least 1.

    Several trainers, started by torchrun, share the input and the tables on the servers of `ps`; `mode` selects when
    gradients of rows are applied, see `Workers`. SIGINT or SIGTERM stops the run after the current step, which is
    saved, and raises KeyboardInterrupt. A signal to one of several trainers stops all after the same step. They then
    ignore both signals, because torchrun sends them to the others when the first trainer has ended.

    A server that is unreachable for longer than `train.ps_timeout` raises ServerError. The logger "sanderling" warns
    after one second, and then with growing intervals. A `Connection` passed as `ps` keeps its own timeout.

    `status_listen`, such as "127.0.0.1:9400", shows the run at this address of the machine while it goes on: its page,
    status pages and `/metrics`; of several trainers, that of rank 0.

    `hubs` replaces `data.train` and says how hubs are reached: token, TLS, timeout and compression. Its other entries
    are those of the run.
    """
    config = _config(config, hubs)
    check_device(device)
    # Checked here, because a single trainer does not use `mode`.
    bound_of(mode)
    threads = compute_threads.choose(torch_threads, config.train.threads)
    check_files(config)
    if config.train.l2_idle and ps is not None:
        # Checked before a new run drops the tables of an earlier one on the servers.
        raise sanderling.ConfigError(
            "train.l2_idle passes over whole tables, which must be in this process: leave it out, or train without"
            " parameter servers (--ps)"
        )
    if "://" in str(runs_dir):
        raise sanderling.ConfigError(
            f"{runs_dir}: only input is read by url; name a local folder, and copy it from there"
        )
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) < 2
    if name is not None:
        config = dataclasses.replace(config, name=name)
    elif is_alone:
        given = config.name
        config = named(config, Path(runs_dir), resume=resume)
        if config.name != given:
            sys.stderr.write(
                f"a run of another configuration is in {given} and is kept: this one is {config.name} (--name {given}"
                " would replace it)\n"
            )
    run_dir = Path(runs_dir) / config.name
    if not resume and is_alone and not quiet and replaces(run_dir):
        sys.stderr.write(f"this run replaces the earlier one in {run_dir}; another name would keep both\n")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise sanderling.FileError(f"{run_dir}: cannot be the run's folder: {error.strerror or error}") from error
    ps = sanderling.connect(ps, timeout_s=config.train.ps_timeout_s) if isinstance(ps, str) else ps
    workers = _workers(config, ps, mode)
    first = workers is None or workers.rank == 0
    with _claimed(run_dir if first else None), compute_threads.torch_threads(threads):
        torch.manual_seed(config.seed)
        extra = checkpoint.read_extra(run_dir / "last") if resume else None
        earlier = None
        if from_model is not None and not resume:
            earlier = Path(from_model)
            if earlier.resolve().is_relative_to(run_dir.resolve()):
                raise sanderling.ModelError(
                    f"{run_dir}: --from names the model of this run, which the run would replace; give the run another"
                    " name"
                )
            saved_spec = saved_model(config, earlier)["spec"]
        if first and not resume:
            checkpoint.check_replaceable(run_dir / "model")
        if extra is not None:
            _check_unchanged(config, run_dir / "last", extra)
        inputs: FileInputs | HubInputs
        if config.from_hubs:
            source = hubs or sanderling.HubSource(config.train_inputs[0])
            names, wait_s = ", ".join(config.train_inputs), source.timeout_s
            waiting = f"waiting for {names} to answer, for up to {wait_s:g} s (--hub-timeout); are they running?"
            with _notice(None if quiet or not first else waiting):
                inputs = HubInputs(config, workers, source, _of_hubs(run_dir, extra))
        else:
            waiting = f"reading {', '.join(config.train_inputs)} once, to fit the features to it"
            with _notice(None if quiet or not first else waiting):
                inputs = FileInputs(config, workers, extra)
        if earlier is not None:
            inputs.spec = with_saved_features(inputs.spec, earlier, saved_spec)
        check_fields(config, inputs.spec)
        check_valid(config, inputs.spec, inputs.holdout)
        run_class = RetrievalRun if config.is_retrieval else DeepRun
        run = run_class(config, run_dir, ps, device, inputs, workers, fresh=not resume)
        notes: list[str] = []
        if resume:
            run.resume()
        if earlier is not None:
            notes = warm_start(run, earlier)
            run.progress.begun_from = str(earlier)
        if not resume and first and (run_dir / "last").exists():
            # Remove the checkpoint of an earlier run of this name, from which this run cannot be resumed.
            shutil.rmtree(run_dir / "last")
        if ps is not None and not resume:
            # Save before training, so that a server without a folder for checkpoints, or with a full one, fails now.
            run.save("last")
        if workers is not None:
            # Initial parameters are equal on all trainers; dropout differs from here on.
            torch.manual_seed((config.seed + workers.rank) % (1 << 64))
        log = RunLog(
            run_dir if workers is None or first else _made(run_dir / f"trainer-{workers.rank}"),
            resumed_step=run.progress.step if resume else None,
            tensorboard=tensorboard and first,
            quiet=quiet or not first,
            warns=first,
            on_line=on_line,
            features=lambda: run.model.emb.native.feature_stats(),
        )
        record: RunRecord | None = None
        for note in notes:
            log.say(note)
        if (warning := compute_threads.overcommitment(threads, config.train.threads)) is not None:
            log.say(warning)
        try:
            if first:
                record = RunRecord(run, log, status_listen)
            run.passes(log)
            score_tests(run, log)
        except BaseException as error:
            if record is not None:
                record.fail(str(error) or type(error).__name__)
            raise
        finally:
            if record is not None:
                record.finish()
            log.close()
        summary = summary_of(run)
        for warning in summary["warnings"] if first else ():
            sys.stderr.write(f"warning: {warning}\n")
        if first:
            (run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
            (run_dir / "config.json").write_text(json.dumps(config.to_dict(), indent=1) + "\n")
            write_report(run, summary)
        return DeepResult(summary, run_dir, run.model)


def _config(given: DeepConfig | Mapping[str, Any] | str | Path, hubs: sanderling.HubSource | None) -> DeepConfig:
    """Return the checked configuration, which reads from `hubs` if they are given."""
    address = "" if hubs is None else HUBS + hubs.address.removeprefix(HUBS)
    if isinstance(given, DeepConfig):
        return dataclasses.replace(given, train_inputs=[address]) if address else given
    if isinstance(given, Mapping):
        config, name = dict(given), None
    else:
        config, name = read_toml(Path(given)), Path(given).stem
    if address:
        config["data"] = {**config.get("data", {}), "train": address}
    return DeepConfig.of(config, name)


@contextmanager
def _claimed(run_dir: Path | None) -> Iterator[None]:
    """Lock the run directory inside the `with` block (flock), as built-in runs do; FileError if it is locked.

    Two runs of one name would overwrite each other's files. None locks nothing.
    """
    if run_dir is None:
        yield
        return
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(directory)
        raise sanderling.FileError(
            f"{run_dir}: another process trains a run of this name here; wait for it, or give this one another name"
        ) from error
    except OSError:
        pass  # a file system without locks: the user must avoid two runs of one name
    try:
        yield
    finally:
        os.close(directory)


@contextmanager
def _notice(text: str | None) -> Iterator[None]:
    """Write `text` to standard error if the `with` block takes longer than `_NOTICE_S`; None writes nothing."""
    timer = threading.Timer(_NOTICE_S, lambda: sys.stderr.write(f"{text}\n"))
    timer.daemon = True
    if text is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _workers(config: DeepConfig, ps: sanderling.Connection | None, mode: str) -> Workers | None:
    """Join the trainers that torchrun started; None for a single trainer. ConfigError without servers."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if ps is None:
        raise sanderling.ConfigError("several trainers share their rows on parameter servers: name them (--ps)")
    if config.labels:
        raise sanderling.ConfigError("several [[label]]: one trainer only; train without torchrun")
    if config.train.clip_norm > 0.0:
        raise sanderling.ConfigError(
            "train.clip_norm: not with several trainers: each has the norm of its own rows only, and would clip the"
            " dense part differently; leave it out"
        )
    return join(ps, mode, step_timeout_s=_STEP_TIMEOUT_S)


def _check_unchanged(config: DeepConfig, last: Path, extra: Mapping[str, Any]) -> None:
    """Raise ModelError for a changed configuration that the saved run cannot be resumed with."""
    changed = config.changed_since(extra["config"], judged=extra["progress"]["best"] is not None)
    if changed is not None:
        raise sanderling.ModelError(
            f"{last}: cannot resume: {changed} changed since this run was saved; put it back, or start anew without"
            " resuming"
        )


def _of_hubs(run_dir: Path, extra: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the saved spec and hubs of a resumed run, None for a new one; ModelError if the run read files."""
    if extra is None:
        return None
    if not extra.get("hubs"):
        raise sanderling.ModelError(f"{run_dir / 'last'}: that run read files; resume it with them, or start anew")
    return {"spec": extra["spec"], "hubs": extra["hubs"]}


def _made(directory: Path) -> Path:
    """Create a directory unless it exists; returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    return directory
