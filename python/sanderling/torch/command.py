"""`sanderling train` for deep models: parses the command line, runs the trainer and prints the result.

The options are those of the built-in trainer that apply to deep models, and a few more.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed

import sanderling
from sanderling._native import DEEP_MODELS, RENAMED_OPTIONS, set_entries
from sanderling.torch import exit_codes
from sanderling.torch.config_sections import PS_TIMEOUT_S
from sanderling.torch.deep_config import DeepConfig, read_toml
from sanderling.torch.quantity import seconds
from sanderling.torch.run_log import shown_metrics
from sanderling.torch.trainer import train

# Exit code of a program that was ended by Ctrl-C, as in a shell.
_INTERRUPTED = 130
_RENAMED = dict(RENAMED_OPTIONS)
# Bytes of a KiB, and KiB of a MiB.
_UNIT = 1024
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
    add("--from", dest="from_model", type=Path, metavar="MODEL", help="model directory that the new run begins with")
    add("--resume", action="store_true", help="continue from the last checkpoint of the run")
    add("--runs-dir", default="runs", help="parent directory of runs (runs)")
    add("--json", action="store_true", help="print the result as a JSON object on the last line of standard output")
    add("--quiet", "-q", action="store_true", help="suppress progress and metric lines")
    add("--tensorboard", action="store_true", help="write TensorBoard event files to runs/NAME/tensorboard")
    add(
        "--status-listen",
        metavar="HOST:PORT",
        help="address on this machine of the run's page and /metrics, such as 127.0.0.1:9400 (none)",
    )
    add(
        "--otlp",
        metavar="URL",
        help="collector of OpenTelemetry (OTLP over HTTP) for traces of requests, such as 127.0.0.1:4318 (none)",
    )
    add("--otlp-every", type=int, default=1000, metavar="N", help="trace one in so many requests (1000)")
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
        help="entry of the configuration, such as model.dim=16; may be repeated",
    )
    add("--seed", type=int, help="random seed of initial weights and shuffles (42)")
    _refuse_old(parser, arguments)
    options = parser.parse_args(arguments)
    try:
        with _of_options():
            config = _config(options)
            if options.otlp:
                sanderling.export_traces(options.otlp, every=options.otlp_every, name=options.name or config.name)
            hubs = _hubs(options, config)
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
            hubs=hubs,
            torch_threads=options.torch_threads,
            status_listen=options.status_listen,
        )
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; --resume goes on from the last checkpoint\n")
        return _INTERRUPTED
    except sanderling.Error as error:
        words, code = exit_codes.told(error)
        sys.stderr.write(f"error: {words}\n")
        return code
    if torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
        torch.distributed.destroy_process_group()
        if rank > 0:
            return 0
    if options.json:
        sys.stdout.write(json.dumps(result.summary) + "\n")
    else:
        sys.stdout.write(_for_people(result.summary))
    return 0


def _for_people(summary: dict[str, Any]) -> str:
    """Return the summary as lines of text, in the form of the built-in trainer."""
    on = {
        "valid": f"the validation data, after pass {summary['best_pass']}",
        "train": "training data of pass 1, each row before it was learned from",
        "train_seen": f"training (seen) data of pass {summary['passes']}",
    }[summary["measured_on"]]
    speed = f"{summary['examples']:,} in {summary['train_s']:.2f} s, {summary['examples_per_s']:,.0f} examples/s"
    means = f"predicted {_metric(summary['prob_mean'])}, real {_metric(summary['real_mean'])}"
    rows = {
        "AUC": _metric(summary["auc"]),
        "logloss": _metric(summary["logloss"]),
        "calibration": means,
    }
    if "rmse" in summary or any("@" in name for name in summary):
        del rows["AUC"], rows["logloss"]
    if summary["prob_mean"] is None:
        del rows["calibration"]
    further = {name: value for name, value in summary.items() if "@" in name or "." in name or name in ("rmse", "mae")}
    rows |= {name: _metric(value) for name, value in further.items()}
    rows["measured on"] = on
    if (seen := summary["seen"]) is not None:
        scores = f"AUC {_metric(seen['auc'])}, logloss {_metric(seen['logloss'])}"
        rows["seen rows"] = f"{scores} over training (seen) data of pass {seen['pass']}"
    # Several test sets make several lines of one name.
    tests = [("test set", _test(test)) for test in summary["tests"]]
    rows |= {
        "examples": speed,
        "waiting": f"{100 * summary['wait_share']:.1f} % of that, for minibatches",
        "table rows": f"{summary['rows']:,}",
        "memory": f"{_size(summary['table_bytes'])} in tables, {_size(summary['memory_peak_bytes'])} in all",
        "bad rows": f"{summary['bad_rows']:,}",
    }
    if summary["valid_bad_rows"]:
        rows["bad valid rows"] = f"{summary['valid_bad_rows']:,}"
    rows |= {"model": summary["model"], "report": summary["report"]}
    if summary["stopped"]:
        rows = {"stopped": f"after step {summary['steps']}; go on with --resume", **rows}
    width = max(len(name) for name in rows)
    at = list(rows).index("examples")
    lines = [*list(rows.items())[:at], *tests, *list(rows.items())[at:]]
    return "".join(f"{name:{width}}  {value}\n" for name, value in lines)


def _test(test: Mapping[str, Any]) -> str:
    """Return the metrics of a test set, in the form of the built-in trainer."""
    names = [name for name in shown_metrics(test) if name not in ("prob_mean", "real_mean")]
    metrics = ", ".join(f"{'AUC' if name == 'auc' else name} {_metric(test[name])}" for name in names)
    return f"{test['name']}: {metrics}, {test['examples']:,} examples"


def _size(count: int) -> str:
    """Return a size in bytes as the built-in trainer prints it, such as "1.5 MiB"."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < _UNIT:
            break
        size, unit = size / _UNIT, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _metric(value: float | None) -> str:
    """Return a metric as the built-in trainer prints it."""
    return "undefined" if value is None else f"{value:.6f}"


def _refuse_old(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Exit with a message that has the new name of a renamed option."""
    for argument in arguments:
        if (old := argument.partition("=")[0]) in _RENAMED:
            parser.error(f"`{old}` is now `{_RENAMED[old]}`")


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
    return sanderling.connect(options.ps, token=token, tls=_tls(options.ps_ca_file), timeout_s=timeout_s)


def _hubs(options: argparse.Namespace, config: DeepConfig) -> sanderling.HubSource | None:
    timeout_s = seconds("--hub-timeout", options.hub_timeout, 0.0, _HUB_TIMEOUT_MAX_S)
    token = _text("--hub-token-file", options.hub_token_file)
    _check_readable("--hub-ca-file", options.hub_ca_file)
    if not config.from_hubs:
        return None
    return sanderling.HubSource(
        config.train_inputs[0],
        timeout_s=timeout_s,
        compression=options.hub_compression,
        token=token,
        tls=_tls(options.hub_ca_file),
    )


def _tls(ca_file: Path | None) -> sanderling.Tls | None:
    return None if ca_file is None else sanderling.Tls(ca_file)


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
    text = read_toml(options.config)
    text.setdefault("name", options.config.stem)
    if options.set:
        text = set_entries(text, options.set)
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
    of_learner = [name for name in ("rank", "normalize") if name in model]
    left_out = [f"model.{name}" for name in of_learner] + left_out
    train = text.get("train")
    if isinstance(train, dict) and "batch_size" in train:
        text["train"] = {name: value for name, value in train.items() if name != "batch_size"}
        left_out.append("train.batch_size")
    if left_out and not options.quiet:
        what = f"{', '.join(left_out)} of a built-in learner are left out: --model {options.model} has its own"
        sys.stderr.write(f"{options.config}: {what}\n")
    return {name: value for name, value in model.items() if name not in of_learner}
