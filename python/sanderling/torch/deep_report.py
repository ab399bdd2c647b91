"""Summary (`summary.json`) and HTML report (`report.html`) of a deep run."""

import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

import sanderling
from sanderling._native import remarks_of, render_report
from sanderling.torch.deep_run import DeepRun
from sanderling.torch.run_log import Line

_OF_NUMBERS = ("mse", "rmse", "mae")
# Numbers that only some lines have.
_OPTIONAL = (*_OF_NUMBERS, "examples_per_s")
# A trainer that waits for minibatches for a smaller share of its time is not held up.
_WAIT_SHARE = 0.05


def measured(run: DeepRun) -> tuple[Line, str]:
    """Return the final metrics and the rows that they are measured on.

    The rows are "valid" (best validation), "train" (training rows of the first pass, each scored before it was learned
    from), or "train_seen" for a run that an earlier version began.
    """
    progress = run.progress
    if progress.best is not None:
        return progress.best, "valid"
    if progress.first:
        return progress.first, "train"
    return progress.last, "train" if progress.passes <= 1 else "train_seen"


def seen_of(run: DeepRun) -> Line | None:
    """Return the metrics of the last pass over training (seen) data; None with validation or after one pass."""
    progress = run.progress
    if progress.best is not None or progress.last is progress.first or progress.last == progress.first:
        return None
    # `first` is empty only in runs that an earlier version began.
    return {"pass": progress.passes, **progress.last} if progress.first else None


def _further(metrics: Line) -> Line:
    """Return the metrics of ranked lists, of a regression and of further labels."""
    return {name: value for name, value in metrics.items() if "@" in name or "." in name or name in _OF_NUMBERS}


def _plain(metrics: Line) -> Line:
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in metrics.items()
    }


def summary_of(run: DeepRun) -> dict[str, Any]:
    """Return the summary of a run, as `sanderling train --json` prints it; numbers that are not finite are None."""
    progress = run.progress
    metrics, measured_on = measured(run)
    seen = seen_of(run)
    scores = {name: metrics.get(name) for name in ("auc", "logloss", "prob_mean", "real_mean", "normalized_entropy")}
    tables = run.model.emb.tables.values()
    return {
        "name": run.config.name,
        "from": progress.begun_from,
        **{name: value if value is not None and np.isfinite(value) else None for name, value in scores.items()},
        **_further(metrics),
        "measured_on": measured_on,
        "measured_examples": metrics.get("examples"),
        "seen": None if seen is None else _plain(seen),
        "examples": progress.examples,
        "examples_per_s": progress.examples / max(progress.train_s, 1e-9),
        "train_s": progress.train_s,
        "wait_share": progress.wait_s / max(progress.train_s, 1e-9),
        "steps": progress.step,
        "passes": progress.passes,
        "best_pass": progress.best_pass,
        "rows": sum(len(table) for table in tables),
        "table_bytes": sum(table.bytes for table in tables),
        "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bad_rows": progress.bad_rows,
        "valid_bad_rows": progress.valid_bad_rows,
        "stopped": run.stopped(),
        "tests": [_plain(test) for test in run.tests],
        "warnings": _warnings(run),
        "known": run.known,
        "importance": None,
        "model": str(run.run_dir / "model"),
        "report": str(run.run_dir / "report.html"),
        "timing": _timing(run),
    }


def _warnings(run: DeepRun) -> list[str]:
    """Return warnings about the predictions, and about names of keys that were left out."""
    found = remarks_of(*run.plotted) if len(run.plotted[0]) else []
    if run.inputs.key_names is not None and run.inputs.key_names.is_full:
        limit = run.config.names.get("max_bytes", "256MiB")
        found.append(f"some keys have no names: all are more than names.max_bytes ({limit})")
    return found


def _timing(run: DeepRun) -> Line:
    """Return the times of this session as `sanderling compare` reads them; requests to servers are not timed."""
    connection = run.model.emb.connection
    return {
        "algorithm": None,
        "workers": 1 if run.workers is None else run.workers.size,
        "batch_size": run.batch_size,
        "transport": "embedded" if connection is None else connection.servers[0].partition(":")[0],
        "total_s": time.perf_counter() - run.began_s,
        "stages": run.stages,
        "calls": [],
        "passes": run.timed_passes,
    }


def _reported(metrics: Line) -> Line:
    """Return the metrics that a report has: without those of ranked lists and of further labels."""
    return _plain({name: metrics[name] for name in metrics if name in _OF_NUMBERS or name not in _further(metrics)})


def curves_of(run_dir: Path) -> dict[str, list[Line]]:
    """Return the points of the curves of training ("step") and validation ("valid"), from `metrics.jsonl`."""
    names = ("step", "pass", "trained_examples", "auc", "logloss", "prob_mean", "real_mean")
    curves: dict[str, list[Line]] = {"step": [], "valid": []}
    for text in (run_dir / "metrics.jsonl").read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the run is writing the last line
        if line["kind"] in curves:
            point = {name: line[name] for name in (*names, *_OPTIONAL) if name in names or name in line}
            curves[line["kind"]].append(point)
    return curves


def _why_it_waits(run: DeepRun) -> list[str]:
    """Return, for a run under way, why its trainer waits for minibatches, if it does."""
    queue = run.inputs.queue
    if queue is None:
        return []
    stats = queue.stats()
    if stats["batches"] > 0 and stats["trainer_waits"] < _WAIT_SHARE:
        return []
    hubs = ", ".join(hub["address"] for hub in queue.hubs)
    if stats["embedding_lookup"]["sum_ns"] > stats["read_sample"]["sum_ns"]:
        cause = "the tables give their rows late"
    elif hubs:
        cause = f"hub {hubs} has none ready; its page /status (hub --metrics) tells why"
    else:
        cause = "they are read and decoded late"
    waits = f"waits {stats['trainer_waits']:.0%} of its time for minibatches"
    return [f"the trainer {waits if stats['batches'] > 0 else 'waits for its first minibatch'}: {cause}"]


def facts_of(run: DeepRun, curves: dict[str, list[Line]], summary: Line | None = None) -> Line:
    """Return what `render_report` takes; without a summary, of a run under way."""
    progress = run.progress
    metrics, _ = measured(run)
    last = curves["step"][-1] if curves["step"] else {}
    now = summary or {
        "name": run.config.name,
        "stopped": False,
        "train_s": progress.train_s or time.perf_counter() - run.began_s,
        "examples": progress.examples,
        "passes": progress.passes,
        "best_pass": progress.best_pass,
        "examples_per_s": last.get("examples_per_s") or 0.0,
        "tests": [],
        "seen": None,
        "warnings": _why_it_waits(run),
        "bad_rows": progress.bad_rows,
        "valid_bad_rows": progress.valid_bad_rows,
        "model": str(run.run_dir / "model"),
    }
    same = ("name", "stopped", "train_s", "examples", "passes", "best_pass", "examples_per_s")
    none = dict.fromkeys(("auc", "logloss", "prob_mean", "real_mean", "normalized_entropy"))
    shown = metrics or {**none, "examples": 0, "auc_exact": True, **{name: last[name] for name in none if name in last}}
    return {
        **{name: now[name] for name in same},
        "model": f"{run.config.model.type} in PyTorch",
        "started_unix_s": run.started_unix_s,
        "threads": run.config.train.threads,
        "metrics": _reported(shown),
        "valid": None if progress.best is None else run.config.validation_rows,
        "tests": [_reported(test) for test in now["tests"]],
        "seen": now["seen"],
        "warnings": now["warnings"],
        "train_curve": curves["step"],
        "valid_curve": curves["valid"],
        "features": run.model.emb.native.feature_stats(),
        "stages": run.stages,
        "bad_rows": now["bad_rows"],
        "valid_bad_rows": now["valid_bad_rows"],
        "bad_row_messages": run.bad_row_messages,
        "model_path": now["model"],
        "eval_command": f"sanderling eval {now['model']} FILE",
        "config": json.dumps(run.config.to_dict(), indent=1),
    }


def write_report(run: DeepRun, summary: Line) -> None:
    """Write `report.html` to the run directory; reads the curves from `metrics.jsonl`."""
    facts = facts_of(run, curves_of(run.run_dir), summary)
    tables = [table for table in run.model.emb.tables.values() if isinstance(table, sanderling.Table)]
    page = render_report(facts, *run.plotted, tables, run.inputs.key_names)
    (run.run_dir / "report.html").write_text(page)
