"""Saving and restoring a table: sanderling's checkpoint against torch.save and torch.load of the same numbers.

    python bench/checkpoint_vs_torch.py

fills a table (dim 16, Adagrad: key, 16 weights and 16 sums of squares per row), saves and restores it in rounds that
take turns with torch.save + fsync and torch.load of three arrays with these numbers, and prints milliseconds per
million rows. Torch's file needs an index of the keys before a row can be found by its key: `with index` adds a Python
dict of them, as `torch.nn.EmbeddingBag` behind a dict would need it. Files are in the page cache. It builds nothing:
the module is the one of `pip install .` (release build).
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

DIM = 16
PUSH_KEYS = 100_000


def main() -> int:
    """Measures and prints; 0 also when there is nothing to compare with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rows", type=int, default=2_000_000, help="rows of the table (2,000,000)")
    add("--rounds", type=int, default=7, help="interleaved rounds (7)")
    add("--folder", type=Path, help="where the files go, by default a temporary folder")
    add("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed (pip install -r requirements-torch.txt)")
        return 0
    with tempfile.TemporaryDirectory(prefix="checkpoint_vs_torch_", dir=arguments.folder) as folder:
        times = measure(Path(folder), arguments.rows, arguments.rounds)
    print(f"{arguments.rows:,} rows, dim {DIM}, Adagrad; {arguments.rounds} rounds, ms per million rows:")
    medians = {}
    for name, runs in times.items():
        scaled = [run * 1e3 / (arguments.rows / 1e6) for run in runs]
        medians[name] = statistics.median(scaled)
        print(f"{name:28} {medians[name]:8.1f}   ({min(scaled):.1f} to {max(scaled):.1f})")
    if arguments.json:
        print(json.dumps(medians))
    return 0


def measure(folder: Path, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each operation, round by round."""
    import numpy as np
    import torch

    import sanderling

    random = np.random.default_rng(5)
    keys = random.permutation(rows).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table = sanderling.Table("t", DIM, optimizer="adagrad")
    table.reserve(rows)
    for first in range(0, rows, PUSH_KEYS):
        part = keys[first : first + PUSH_KEYS]
        table.push(part, random.standard_normal((len(part), DIM)).astype(np.float32))
    arrays = {
        "keys": torch.from_numpy(keys.astype(np.int64)),
        "weights": torch.from_numpy(table.pull(keys)),
        "squares": torch.rand(rows, DIM),
    }
    ours, theirs, copied = folder / "ours", folder / "theirs.pt", folder / "copy"

    def torch_save() -> None:
        with theirs.open("wb") as file:
            torch.save(arrays, file)
            file.flush()
            os.fsync(file.fileno())

    def torch_load() -> None:
        assert len(torch.load(theirs)["keys"]) == rows

    def torch_load_with_index() -> None:
        loaded = torch.load(theirs)
        index = {key: at for at, key in enumerate(loaded["keys"].tolist())}
        assert len(index) == rows

    def restore() -> None:
        assert len(sanderling.Table.load(ours)) == rows

    def copy() -> None:
        with theirs.open("rb") as source, copied.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())

    operations: dict[str, Callable[[], None]] = {
        "sanderling save": lambda: table.save(ours),
        "torch.save + fsync": torch_save,
        "copy of the file + fsync": copy,
        "sanderling restore": restore,
        "torch.load": torch_load,
        "torch.load, with index": torch_load_with_index,
    }
    times: dict[str, list[float]] = {name: [] for name in operations}
    for turn in range(rounds + 1):
        for name, operation in operations.items():
            # A virtual machine gives free memory back to its host within seconds, and to get it again costs several
            # times as much as anything measured here. So each operation uses memory that its first call gave back.
            operation()
            begin = time.perf_counter()
            operation()
            # The first round brings files into being.
            if turn > 0:
                times[name].append(time.perf_counter() - begin)
    return times


if __name__ == "__main__":
    sys.exit(main())
