"""Parquet to batches of hashed keys: sanderling's reader against polars on the same file, in the same run.

    python bench/parquet_vs_polars.py

makes a file of 81 columns (a label, 13 counts, 67 texts of 8 hexadecimal digits with 10 to a million skewed values) and
reads it in interleaved rounds, each in a process of its own: logarithms of the counts, hashes of the texts, batches of
4096 rows. Both read with one thread and with two. It builds nothing: `cargo build --release --examples` comes first.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).resolve().parent.parent
NUMBERS, TEXTS = 13, 67
BATCH_ROWS = 4096
RUN_S_MAX = 600

Codec = Literal["snappy", "zstd", "uncompressed"]

# One warm-up and one timed pass, as the example makes them. POLARS_MAX_THREADS is read when polars is imported.
POLARS_CHILD = """
import sys, time
import polars as pl

numbers = [f"n{at}" for at in range(13)]
texts = [f"c{at}" for at in range(67)]

def read():
    rows = 0
    frame = pl.read_parquet(sys.argv[1]).select(
        pl.col("label").cast(pl.Float32),
        *((pl.col(name).fill_null(0) + 1).log().cast(pl.Float32) for name in numbers),
        *(pl.col(name).hash() for name in texts),
    )
    for batch in frame.iter_slices(int(sys.argv[2])):
        columns = [column.to_numpy() for column in batch.get_columns()]
        rows += len(columns[0])
    return rows

read()
begin = time.perf_counter()
rows = read()
print(rows / (time.perf_counter() - begin))
"""


def main() -> int:
    """Measures and prints; 0 also when there is nothing to compare with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--example", type=Path, default=ROOT / "target/release/examples/parquet_speed", help="the program to measure")
    add("--rows", type=int, default=1_000_000, help="rows of the file (1,000,000)")
    add("--rounds", type=int, default=5, help="interleaved rounds (5)")
    add("--file", type=Path, help="a file with these columns, instead of a new one")
    add("--codec", default="snappy", choices=get_args(Codec), help="compression of pages (snappy)")
    add("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    if importlib.util.find_spec("polars") is None:
        print("skipped: polars is not installed (pip install -r bench/requirements.txt)")
        return 0
    if not arguments.example.exists():
        print(f"{arguments.example} is missing: cargo build --release --examples, or name it by --example")
        return 2
    with tempfile.TemporaryDirectory(prefix="parquet_vs_polars_") as folder:
        path = arguments.file or Path(folder) / "columns.parquet"
        if arguments.file is None:
            make(path, arguments.rows, arguments.codec)
        speeds = measure(arguments.example, path, arguments.rounds)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {arguments.codec}; medians of {arguments.rounds} rounds, rows/s:")
    medians = {name: statistics.median(runs) for name, runs in speeds.items()}
    for name, median in medians.items():
        least, most = min(speeds[name]), max(speeds[name])
        print(f"{name:24} {median:12,.0f}   ({least:,.0f} to {most:,.0f})")
    for threads in ("one thread", "two threads"):
        print(f"{threads}: {medians[f'sanderling, {threads}'] / medians[f'polars, {threads}']:.2f} times polars")
    if arguments.json:
        print(json.dumps(medians))
    return 0


def make(path: Path, rows: int, codec: Codec) -> None:
    """Writes the file; the same for every run."""
    import numpy as np
    import polars as pl

    random = np.random.default_rng(7)
    columns: dict[str, pl.Series] = {"label": pl.Series(random.integers(0, 4, rows) == 0).cast(pl.Int64)}
    for at in range(NUMBERS):
        counts = pl.Series(np.exp2(random.random(rows) * 14).astype(np.int64))
        columns[f"n{at}"] = counts.set(pl.Series(random.random(rows) < 0.4), None)
    for at in range(TEXTS):
        values = 10 ** (1 + at % 6)
        texts = np.array([f"{value:08x}" for value in random.integers(0, 1 << 32, values)])
        columns[f"c{at}"] = pl.Series(texts[np.power(float(values), random.random(rows)).astype(np.int64) % values])
    pl.DataFrame(columns).write_parquet(path, compression=codec, row_group_size=256 * 1024)


def measure(example: Path, path: Path, rounds: int) -> dict[str, list[float]]:
    """The rows per second of each contestant, round by round."""
    speeds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for threads, count in (("one thread", 1), ("two threads", 2)):
            environment = os.environ | {"POLARS_MAX_THREADS": str(count)}
            command = [sys.executable, "-c", POLARS_CHILD, str(path), str(BATCH_ROWS)]
            polars = run(command, environment)
            speeds.setdefault(f"polars, {threads}", []).append(float(polars))
        ours = run([str(example), str(path), "1"], dict(os.environ))
        for threads in ("one thread", "two threads", "read only"):
            found = re.search(rf"^{threads} +([0-9]+) rows/s$", ours, re.MULTILINE)
            if found is None:
                raise SystemExit(f"{example} printed no speed with {threads}:\n{ours}")
            speeds.setdefault(f"sanderling, {threads}", []).append(float(found.group(1)))
    return speeds


def run(command: list[str], environment: dict[str, str]) -> str:
    """The output of a process that must succeed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S_MAX, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
