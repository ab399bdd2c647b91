"""The ready trainer of deep click models: a `DeepConfig` becomes a directory with the best model and metrics.

    runs/<name>/model/         checkpoint of the best validated pass, or without validation of the last one
    runs/<name>/last/          checkpoint to resume from: after the last whole pass, or where the run was told to stop
    runs/<name>/metrics.jsonl  a line per printed line, as the built-in learners write them
    runs/<name>/summary.json   what the run came to
    runs/<name>/report.html    the same with curves, tables and keys, for a browser
    runs/<name>/trainer-1/     lines of metrics of the second of several trainers, and so on

Knows no command line, no training loop, and not where minibatches come from.
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
from typing import Any, Literal

import torch
import torch.distributed

import sanderling
from sanderling.torch import checkpoint, compute_threads
from sanderling.torch.click_model import ClickModel, check_device
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.deep_report import summary_of, write_report
from sanderling.torch.deep_run import DeepRun
from sanderling.torch.inputs import FileInputs, HubInputs, check_fields, check_files, check_valid
from sanderling.torch.run_log import Line, RunLog
from sanderling.torch.run_name import named, replaces
from sanderling.torch.workers import Workers, bound_of, join

# Seconds of waiting without a notice.
_NOTICE_S = 2.0
# How long trainers that torchrun started wait for each other, saving included.
_STEP_TIMEOUT_S = 300.0


@dataclass
class DeepResult:
    """Result of a run."""

    summary: dict[str, Any]
    """Also in `summary.json`."""
    run_dir: Path
    model: ClickModel
    """As it is after the last step; `runs/<name>/model` has the best one."""


def train(
    config: DeepConfig | Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    ps: sanderling.Connection | str | None = None,
    runs_dir: str | Path = "runs",
    resume: bool = False,
    device: str = "cpu",
    tensorboard: bool = False,
    quiet: bool = True,
    on_line: Callable[[Line], object] | None = None,
    mode: str = "sync",
    hub_token: str = "",
    hub_timeout_s: float = 60.0,
    hub_compression: Literal["lz4", "zstd"] | None = None,
    hub_ca_file: Path | None = None,
    torch_threads: int | None = None,
) -> DeepResult:
    """Trains as the configuration says: a `DeepConfig`, a dictionary, or a TOML file of that structure.

    A run with `name` replaces an earlier one of that name. Without it the name is that of the configuration; an earlier
    run of another configuration is kept, and this one is numbered (clicks-2). Of several trainers under torchrun, which
    must agree on it, the name is always that of the configuration.

    `resume` goes on where a run was told to stop (Ctrl-C, SIGTERM or `max_steps`), or was saved last. `on_line` gets
    every line of metrics. Started several times by torchrun, the trainers go through the input together, their rows on
    the servers of `ps`; `mode` says when gradients of rows are applied, as of `Workers`. A signal to any of them stops
    all after the same step, which is saved; then KeyboardInterrupt is raised, and the process ignores both signals,
    since torchrun sends them to all that are left when the first one has ended.

    A server of `ps` that is away for longer than `train.ps_timeout` ends the run with a `ServerError`. The logger
    `sanderling` warns after one second, and then more and more rarely. A `Connection` keeps the `timeout` that it was
    made with.

    Hubs that ask for one get `hub_token`; one that is away for longer than `hub_timeout_s` is a `HubError`.
    torch computes with `torch_threads` threads meanwhile: unless given, with what OMP_NUM_THREADS says, or with a
    thread for each physical core that the feed queue's `train.threads` leave, at least 1.

    For slow links `hub_compression` says how minibatches come. Hubs that speak TLS need `hub_ca_file`, as of
    `FeedQueue`.
    """
    if not isinstance(config, DeepConfig):
        config = DeepConfig.of(config) if isinstance(config, Mapping) else DeepConfig.read(Path(config))
    check_device(device)
    # A single trainer shares it with no other.
    bound_of(mode)
    threads = compute_threads.choose(torch_threads, config.train.threads)
    check_files(config)
    if config.train.l2_idle and ps is not None:
        # Before a new run gives up what servers have of the one before.
        raise sanderling.ConfigError(
            "train.l2_idle passes over whole tables, which must be in this process: leave it out, or name no parameter"
            " servers (--ps)"
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
        if first and not resume:
            checkpoint.check_replaceable(run_dir / "model")
        if extra is not None:
            _check_unchanged(config, run_dir / "last", extra)
        inputs: FileInputs | HubInputs
        if config.from_hubs:
            hubs = ", ".join(config.train_inputs)
            waiting = f"waiting for {hubs} to answer, for up to {hub_timeout_s:g} s (--hub-timeout); are they running?"
            with _notice(None if quiet or not first else waiting):
                saved = _of_hubs(run_dir, extra)
                inputs = HubInputs(config, workers, hub_token, hub_timeout_s, saved, hub_compression, hub_ca_file)
        else:
            waiting = f"reading {', '.join(config.train_inputs)} once, to fit the features to it"
            with _notice(None if quiet or not first else waiting):
                inputs = FileInputs(config, workers, None if extra is None else extra["spec"])
        check_fields(config, inputs.spec)
        check_valid(config, inputs.spec)
        run = DeepRun(config, run_dir, ps, device, inputs, workers, fresh=not resume)
        if resume:
            run.resume()
        elif first and (run_dir / "last").exists():
            # What an earlier run of this name left to resume from is not this run's.
            shutil.rmtree(run_dir / "last")
        if ps is not None and not resume:
            # That a server has no folder for checkpoints, or a full one, is found out before a pass is trained.
            run.save("last")
        if workers is not None:
            # Alike until here; what is dropped out need not be.
            torch.manual_seed((config.seed + workers.rank) % (1 << 64))
        log = RunLog(
            run_dir if workers is None or first else _made(run_dir / f"trainer-{workers.rank}"),
            resumed_step=run.progress.step if resume else None,
            tensorboard=tensorboard and first,
            quiet=quiet or not first,
            warns=first,
            on_line=on_line,
        )
        if (warning := compute_threads.overcommitment(threads, config.train.threads)) is not None:
            log.say(warning)
        try:
            run.passes(log)
        finally:
            log.close()
        summary = summary_of(run)
        for warning in summary["warnings"] if first else ():
            sys.stderr.write(f"warning: {warning}\n")
        if first:
            (run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
            write_report(run, summary)
        return DeepResult(summary, run_dir, run.model)


@contextmanager
def _claimed(run_dir: Path | None) -> Iterator[None]:
    """Locks the run's directory, as built-in runs do: two runs of one name would write over each other's files."""
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
    """Says on standard error what is waited for, if there is something to say and it takes longer than a moment."""
    timer = threading.Timer(_NOTICE_S, lambda: sys.stderr.write(f"{text}\n"))
    timer.daemon = True
    if text is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _workers(config: DeepConfig, ps: sanderling.Connection | None, mode: str) -> Workers | None:
    """The trainers that torchrun started, if there are several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if ps is None:
        raise sanderling.ConfigError("several trainers share their rows on parameter servers: name them (--ps)")
    if config.train.clip_norm > 0.0:
        raise sanderling.ConfigError(
            "train.clip_norm: each of several trainers knows the norm of its own rows alone, and would clip the dense"
            " part, which is to be the same everywhere, otherwise than the others; leave it out"
        )
    return join(ps, mode, step_timeout_s=_STEP_TIMEOUT_S)


def _check_unchanged(config: DeepConfig, last: Path, extra: Mapping[str, Any]) -> None:
    """Refuses to go on with a run whose rows, model or order of samples would be others."""
    changed = config.changed_since(extra["config"], judged=extra["progress"]["best"] is not None)
    if changed is not None:
        raise sanderling.ModelError(
            f"{last}: cannot resume: {changed} changed since this run was saved; put it back, or start anew without"
            " resuming"
        )


def _of_hubs(run_dir: Path, extra: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Saved properties of the hubs of a resumed run."""
    if extra is None:
        return None
    if not extra.get("hubs"):
        raise sanderling.ModelError(f"{run_dir / 'last'}: that run read files; go on with these, or start anew")
    return {"spec": extra["spec"], "hubs": extra["hubs"]}


def _made(directory: Path) -> Path:
    """A directory that is there from now on."""
    directory.mkdir(parents=True, exist_ok=True)
    return directory
