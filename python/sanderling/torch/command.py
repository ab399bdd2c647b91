"""`sanderling train` for deep models: parses the command line, runs the trainer and prints the result.

The options are those of the built-in trainer that apply to deep models, and a few more.
"""

import argparse
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed

import sanderling
from sanderling._native import DEEP_MODELS, RENAMED_OPTIONS, set_entries
from sanderling.torch.deep_config import PS_TIMEOUT_S, DeepConfig, read_toml
from sanderling.torch.quantity import seconds
from sanderling.torch.trainer import train

# Exit code of a program that was ended by Ctrl-C, as in a shell.
_INTERRUPTED = 130
# Exit codes, equal to those of the built-in trainer (`sanderling --help`); `_FAILED` is for all other errors.
_FAILED = 1
_EXIT_CODES: dict[int, tuple[type[sanderling.Error], ...]] = {
    2: (sanderling.ConfigError,),
    3: (sanderling.BadFileError, sanderling.BadRowError, sanderling.NoRowsError, sanderling.TooManyBadRowsError),
    4: (sanderling.DamagedError, sanderling.ModelError, sanderling.NotFoundError, sanderling.VersionError),
}
_RENAMED = dict(RENAMED_OPTIONS)
# About 30 years: within the range of clocks.
_HUB_TIMEOUT_MAX_S = 1e9


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as those of the native command."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message and where to look."""
        self.exit(2, f"error: {message}; see {self.prog} --model {DEEP_MODELS[0]} --help\n")


def main(arguments: Sequence[str]) -> int:
    """Run `sanderling train` with the arguments after `train`; returns the exit code."""
    parser = _Parser(
        prog="sanderling train",
        description="Train a deep click model in PyTorch with embeddings in Sanderling tables.",
        allow_abbrev=False,
        epilog="Example: sanderling train --model deepfm examples/adult_deepfm.toml. See docs/torch.md.",
    )
    add = parser.add_argument
    add("config", type=Path, help="run configuration (TOML)")
    add("--model", choices=DEEP_MODELS, help="model type (model.type)")
    add("--resume", action="store_true", help="continue from the last checkpoint of the run")
    add("--from", dest="from_model", metavar="MODEL", help="saved model to continue on new data")
    add("--runs-dir", default="runs", help="parent directory of runs (runs)")
    add("--json", action="store_true", help="print the result as a JSON object on the last line of standard output")
    add("--quiet", "-q", action="store_true", help="suppress progress and metric lines")
    add("--tensorboard", action="store_true", help="write TensorBoard event files to runs/NAME/tensorboard")
    add("--device", default="cpu", help="device of the dense part: cpu, cuda, cuda:1 (cpu)")
    add(
        "--torch-threads",
        type=int,
        metavar="N",
        help="number of torch threads (cores not used by train.threads, at least 1)",
    )
    add("--ps", help="addresses of parameter servers, separated by commas")
    add(
        "--mode", default="sync", help="synchronization of trainers under torchrun: sync, async or bounded:STEPS (sync)"
    )
    add("--ps-token-file", type=Path, metavar="FILE", help="file with the auth token of the servers")
    add(
        "--ps-timeout",
        metavar="TIME",
        help="request timeout, also while a server is unreachable, such as 20s or 5m (train.ps_timeout, 20s)",
    )
    add("--ps-ca-file", type=Path, metavar="FILE", help="CA bundle (PEM) to verify servers; enables TLS")
    add("--hub-ca-file", type=Path, metavar="FILE", help="CA bundle (PEM) to verify hubs; enables TLS")
    add("--hub-token-file", type=Path, metavar="FILE", help="file with the auth token of the hubs")
    add("--hub-timeout", default="60s", metavar="TIME", help="time limit for an unreachable hub, such as 60s (60s)")
    add(
        "--hub-compression", choices=("lz4", "zstd"), help="compression of minibatches from hubs, for slow links (none)"
    )
    add(
        "--name",
        help="run name; replaces an earlier run of this name",
    )
    add("--train", nargs="+", metavar="FILE", help="training files, or hub://host:port,host:port (data.train)")
    add("--valid", nargs="+", metavar="FILE", help="validation files (data.valid)")
    for name in ("threads", "passes", "batch-size", "max-steps"):
        add(f"--{name}", type=int, help=f"overrides train.{name.replace('-', '_')}")
    add(
        "--set",
        action="append",
        default=[],
        metavar="ENTRY=VALUE",
        help="entry of the configuration, as TOML: model.dim=32; may be repeated",
    )
    add("--seed", type=int, help="random seed of initial weights and shuffles (42)")
    _refuse_old(parser, arguments)
    options = parser.parse_args(arguments)
    try:
        with _of_options():
            hub_timeout_s = seconds("--hub-timeout", options.hub_timeout, 0.0, _HUB_TIMEOUT_MAX_S)
            hub_token = _text("--hub-token-file", options.hub_token_file)
            _check_readable("--hub-ca-file", options.hub_ca_file)
            config = _config(options)
            ps = _servers(options, config.train.ps_timeout_s)
        result = train(
            config,
            name=options.name,
            ps=ps,
            runs_dir=options.runs_dir,
            resume=options.resume,
            from_model=options.from_model,
            device=options.device,
            tensorboard=options.tensorboard,
            quiet=options.quiet,
            mode=options.mode,
            hub_token=hub_token,
            hub_timeout_s=hub_timeout_s,
            hub_compression=options.hub_compression,
            hub_ca_file=options.hub_ca_file,
            torch_threads=options.torch_threads,
        )
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; --resume goes on from the last checkpoint\n")
        return _INTERRUPTED
    except sanderling.Error as error:
        # The command opens tables itself, so the advice to open them again becomes one to restart.
        words = str(error).replace("; open the table again", "; start this command again, with --resume")
        sys.stderr.write(f"error: {_with_advice(words)}\n")
        return _exit_code(error)
    if torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
        torch.distributed.destroy_process_group()
        if rank > 0:
            return 0
    if options.json:
        sys.stdout.write(json.dumps(result.summary) + "\n")
    else:
        summary = result.summary
        on = {
            "valid": f"the validation data, after pass {summary['best_pass']}",
            "train": "training data of pass 1, each row before it was learned from",
            "train_seen": f"training (seen) data of pass {summary['passes']}",
        }[summary["measured_on"]]
        seen = summary["seen"]
        seen_line = (
            ""
            if seen is None
            else (
                f"seen      AUC {_metric(seen['auc'])}, logloss {_metric(seen['logloss'])}\n"
                f"          over training (seen) data of pass {seen['pass']}\n"
            )
        )
        sys.stdout.write(
            f"AUC       {_metric(summary['auc'])}\nlogloss   {_metric(summary['logloss'])}\nmeasured  {on}\n{seen_line}"
            f"examples  {summary['examples']:,} in {summary['train_s']:.2f} s, "
            f"{summary['examples_per_s']:,.0f} examples/s\n"
            f"waiting   {100 * summary['wait_share']:.1f} % of that, for minibatches\nmodel     {summary['model']}\n"
        )
    return 0


# Errors of the system, from Python and from Rust, and advice as the native command gives it.
_OF_SYSTEM = {
    errno.ENOENT: "no such file or folder; check the path, and the current folder",
    errno.EACCES: "permission denied; change its mode or owner, or run as another user",
    errno.EISDIR: "is a folder; name a file",
    errno.ENOSPC: "the disk is full; free some space, or name another folder",
}


def _with_advice(words: str) -> str:
    """Return an error with advice in place of the system's words."""
    for number, advice in _OF_SYSTEM.items():
        said = os.strerror(number)
        words = words.replace(f"{said} (os error {number})", advice).replace(said, advice)
    return words


def _metric(value: float | None) -> str:
    """Return a metric as the built-in trainer prints it."""
    return "undefined" if value is None else f"{value:.6f}"


def _refuse_old(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Exit with a message that has the new name of a renamed option."""
    for argument in arguments:
        if (old := argument.partition("=")[0]) in _RENAMED:
            parser.error(f"`{old}` is now `{_RENAMED[old]}`")


def _exit_code(error: sanderling.Error) -> int:
    return next((code for code, classes in _EXIT_CODES.items() if isinstance(error, classes)), _FAILED)


@contextmanager
def _of_options() -> Iterator[None]:
    """Turn a FileError for the file of an option into a ConfigError."""
    try:
        yield
    except sanderling.FileError as error:
        raise sanderling.ConfigError(str(error)) from error


def _servers(options: argparse.Namespace, timeout_s: float) -> sanderling.Connection | None:
    if options.ps is None:
        return None
    token = _text("--ps-token-file", options.ps_token_file)
    if options.ps_timeout is not None:
        timeout_s = seconds("--ps-timeout", options.ps_timeout, *PS_TIMEOUT_S)
    return sanderling.connect(options.ps, token=token, ca_file=options.ps_ca_file, timeout_s=timeout_s)


def _check_readable(option: str, path: Path | None) -> None:
    """Raise FileError for an unreadable file without opening it: it may be a pipe, which can be read only once."""
    if path is not None and not os.access(path, os.R_OK):
        raise sanderling.FileError(f"{option} {path}: missing or unreadable")


def _text(option: str, path: Path | None) -> str:
    """Return the text of a file without surrounding whitespace, empty without a file; FileError if unreadable."""
    try:
        return "" if path is None else path.read_text().strip()
    except OSError as error:
        raise sanderling.FileError(f"{option} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise sanderling.FileError(f"{option} {path}: {error}") from error


def _config(options: argparse.Namespace) -> DeepConfig:
    """Return the configuration with the overrides of the command line."""
    text = set_entries(read_toml(options.config), options.set)
    text.setdefault("name", options.config.stem)
    if options.model:
        text["model"] = {**_without_learner(text, options), "type": options.model}
    for name in ("name", "seed"):
        if getattr(options, name) is not None:
            text[name] = getattr(options, name)
    for name in ("train", "valid"):
        if getattr(options, name):
            text["data"] = {**text.get("data", {}), name: getattr(options, name)}
    for name in ("threads", "passes", "batch_size", "max_steps"):
        if getattr(options, name) is not None:
            text["train"] = {**text.get("train", {}), name: getattr(options, name)}
    return DeepConfig.of(text)


def _without_learner(text: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the section `model` without settings of a built-in learner, for use with `--model`.

    Removes `[optimizer]`, `[factor_optimizer]` and `train.batch_size` from `text`, too: built-in learners work best
    with few rows per minibatch, and with so few a deep model would train for hours.
    """
    model: dict[str, Any] = text.get("model", {})
    if not isinstance(model, dict) or model.get("type", "fm") in DEEP_MODELS:
        return model
    left_out = [f"[{name}]" for name in ("optimizer", "factor_optimizer") if text.pop(name, None) is not None]
    if "rank" in model:
        left_out.insert(0, "model.rank")
    train = text.get("train")
    if isinstance(train, dict) and "batch_size" in train:
        text["train"] = {name: value for name, value in train.items() if name != "batch_size"}
        left_out.append("train.batch_size")
    if left_out and not options.quiet:
        what = f"{', '.join(left_out)} of a built-in learner are left out: --model {options.model} has its own"
        sys.stderr.write(f"{options.config}: {what}\n")
    return {name: value for name, value in model.items() if name != "rank"}
