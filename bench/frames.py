"""Prediction of rows in memory against files of the same rows, and the latency of single rows.

    python bench/frames.py [rows]

Trains an lr and an fm model on rows made here (8 categorical columns of text, 2 numbers), then predicts them as a batch
file, a Parquet file, and frames of polars, pandas and pyarrow. Prints the best rate of five runs each, alternating, and
percentiles of `model.predict({...})` for one row.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars

import sanderling

REPEATS = 5
SINGLE_ROWS = 20_000


def rows_of(count: int) -> polars.DataFrame:
    """Make clicks of zipf-like values."""
    random = np.random.default_rng(1)
    columns: dict[str, Any] = {"label": (random.random(count) < 0.2).astype(np.int64)}
    for number in range(8):
        values = random.zipf(1.2, count) % (1000 * 4**number // 4 + 10)
        columns[f"c{number}"] = [f"value-{value}" for value in values]
    columns["x0"], columns["x1"] = random.exponential(1, count), random.normal(0, 1, count)
    return polars.DataFrame(columns)


def config_of(kind: str) -> dict[str, Any]:
    """Return a configuration of this type of model."""
    return {
        "name": kind,
        "model": {"type": kind, "rank": 8},
        "feature": [
            {"name": "c", "each": [f"c{number}" for number in range(8)]},
            {"name": "x", "type": "log", "each": ["x0", "x1"]},
        ],
        "train": {"batch_size": 256, "threads": 1},
    }


def toml_of(config: dict[str, Any], train: Path) -> str:
    """Return the same configuration for the command."""
    return (
        f'[data]\ntrain = "{train}"\n[model]\ntype = "{config["model"]["type"]}"\nrank = 8\n'
        f"[[feature]]\neach = {config['feature'][0]['each']}\n"
        f'[[feature]]\ntype = "log"\neach = {config["feature"][1]["each"]}\n'
    )


def best_rates(model: sanderling.Model, sources: dict[str, Any], rows: int) -> dict[str, float]:
    """Return rows per second of the fastest of several alternating runs."""
    best = dict.fromkeys(sources, float("inf"))
    for _ in range(REPEATS):
        for name, source in sources.items():
            start = time.perf_counter()
            model.predict(source)
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: rows / seconds for name, seconds in best.items()}


def latencies(model: sanderling.Model, frame: polars.DataFrame) -> list[float]:
    """Return the 50th, 99th and 99.9th percentile of one-row predictions in microseconds."""
    rows = frame.head(SINGLE_ROWS).drop("label").to_dicts()
    taken = []
    for row in rows:
        start = time.perf_counter_ns()
        model.predict(row)
        taken.append(time.perf_counter_ns() - start)
    return [float(np.percentile(taken, percent)) / 1000 for percent in (50, 99, 99.9)]


def main() -> None:
    """Print a table per model."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    frame = rows_of(count)
    with tempfile.TemporaryDirectory() as folder:
        parquet, batch = Path(folder) / "rows.parquet", Path(folder) / "rows.batch"
        frame.write_parquet(parquet)
        for kind in ("lr", "fm"):
            config = config_of(kind)
            config["feature"] = [{key: value for key, value in it.items() if key != "name"} for it in config["feature"]]
            toml = Path(folder) / f"{kind}.toml"
            toml.write_text(toml_of(config, parquet))
            command = [sys.executable, "-m", "sanderling", "convert", str(toml), str(batch), "--force", "--quiet"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            model = sanderling.train(config, train=frame, runs_dir=Path(folder) / "runs").load()
            categories = frame.with_columns(polars.col("^c[0-9]$").cast(polars.Categorical))
            sources = {
                "batch file": batch,
                "Parquet file": parquet,
                "polars": frame,
                "polars, categorical": categories,
                "pandas": frame.to_pandas(),
                "pyarrow": frame.to_arrow(),
            }
            rates = best_rates(model, sources, count)
            for name, rate in rates.items():
                print(f"{kind}  {name:20} {rate / 1e6:6.2f} M rows/s  {rate / rates['batch file']:5.2f}")
            print(
                f"{kind}  one row: p50 {{:.1f}} us, p99 {{:.1f}} us, p99.9 {{:.1f}} us".format(*latencies(model, frame))
            )


if __name__ == "__main__":
    main()
