"""Field-aware factorization machines: `sanderling train` beside xLearn on the same libffm rows, in the same run.

    python bench/ffm_vs_xlearn.py ../shared/data/criteo_80k/criteo_80k.tsv

writes the rows of Criteo's format as libffm text (26 ids, 13 counts as ids of log(x)^2, keys by hash). The last 20 %
validate. Both train models of rank 4 in interleaved rounds; each run is a process of its own,
pinned to one core. Rates are of passes over known keys: three times the rows over the difference between the training
times of runs of four passes and of one. The logloss is that after the first pass, or after --passes.
xLearn is left out where it is
not installed (`pip install xlearn`).
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from ftrl_vs_vw import ROOT, RUN_S_MAX, last_json, say

COUNTS, IDS, RANK = 13, 26, 4
# Beyond this a hash is folded: xLearn has an array of all keys.
KEYS = 1_000_000

XLEARN_CHILD = """
import json, sys, time
import xlearn
model = xlearn.create_ffm()
model.setTrain(sys.argv[1])
model.setValidate(sys.argv[2])
model.setQuiet()
model.disableEarlyStop()
model.disableLockFree()
begin = time.perf_counter()
model.fit(json.loads(sys.argv[3]), sys.argv[4])
seconds = time.perf_counter() - begin
model.setTest(sys.argv[2])
model.setSigmoid()
model.predict(sys.argv[4], "x.predictions")
print("\\n" + json.dumps(seconds))
"""

SANDERLING = [
    ("sanderling, adagrad, row by row", {"optimizer.type": "adagrad", "optimizer.lr": 0.1, "train.batch_size": 1}),
    (
        "sanderling, row_adagrad, row by row",
        {"optimizer.type": "row_adagrad", "optimizer.lr": 0.1, "train.batch_size": 1},
    ),
    ("sanderling, adagrad, batch 16", {"optimizer.type": "adagrad", "optimizer.lr": 0.1, "train.batch_size": 16}),
]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("criteo", type=Path, help="rows of Criteo's log: label, 13 counts, 26 ids, separated by tabs")
    add("--sanderling", type=Path, default=ROOT / "target/release/sanderling", help="the binary to measure")
    add("--rounds", type=int, default=5, help="interleaved rounds (5)")
    add("--core", type=int, default=0, help="the core of the runs (0)")
    add("--passes", type=int, default=1, help="passes before the logloss is measured (1)")
    add("--only", help="only the learners whose names begin so")
    return parser.parse_args(arguments)


def libffm(line: str) -> str:
    """A row of Criteo's log as libffm text."""
    label, *fields = line.rstrip("\n").split("\t")
    pairs = []
    for field, text in enumerate(fields):
        if field < COUNTS and text:
            count = int(text)
            text = str(int(math.log(count) ** 2)) if count > 2 else f"small {count}"
        key = zlib.crc32(f"{field} {text}".encode()) % KEYS
        pairs.append(f"{field}:{key}:1")
    return f"{label} {' '.join(pairs)}\n"


def write_rows(criteo: Path, folder: Path) -> int:
    """Writes train.ffm and valid.ffm; the number of rows to train on."""
    rows = [libffm(line) for line in criteo.read_text().splitlines()]
    cut = len(rows) * 4 // 5
    (folder / "train.ffm").write_text("".join(rows[:cut]))
    (folder / "valid.ffm").write_text("".join(rows[cut:]))
    each = ", ".join(f'"field_{field}"' for field in range(COUNTS + IDS))
    (folder / "ffm.toml").write_text(
        f"""
        data = {{ train = "train.ffm", valid = "valid.ffm" }}
        model = {{ type = "ffm", rank = {RANK}, init_std = 0.1 }}
        train = {{ shuffle_rows = 0, decode_ahead = false, reduction = "sum" }}
        [[feature]]
        each = [{each}]
        type = "sparse"
        """
    )
    return cut


def pinned(command: list[str], folder: Path, core: int) -> str:
    """What a command prints that runs on one core."""
    done = subprocess.run(
        command,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    return done.stdout


def run_sanderling(arguments: argparse.Namespace, folder: Path, settings: dict[str, object]) -> tuple[float, float]:
    """Rows per second of a pass that creates no rows, and the logloss of the validation rows after the first ones."""
    options = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    found = []
    for passes in (arguments.passes, arguments.passes + 3):
        command = [str(arguments.sanderling), "train", "ffm.toml", f"--passes={passes}", *options]
        found.append(last_json(pinned([*command, "--json", "--quiet"], folder, arguments.core)))
    few, many = (float(run["examples"]) / float(run["examples_per_s"]) for run in found)
    return float(found[1]["examples"] - found[0]["examples"]) / (many - few), float(found[0]["logloss"])


def run_xlearn(arguments: argparse.Namespace, folder: Path, rows: int) -> tuple[float, float]:
    """Rows per second of a pass, and the logloss of the validation rows after as many passes as sanderling's."""
    seconds = {}
    # Its binary copy of the text is made in the first run, which does not count.
    for passes in (1, arguments.passes + 3, arguments.passes):
        settings = {"task": "binary", "k": RANK, "lr": 0.2, "lambda": 2e-5, "epoch": passes, "nthread": 1}
        child = [sys.executable, "-c", XLEARN_CHILD, "train.ffm", "valid.ffm", json.dumps(settings), "x.model"]
        seconds[passes] = float(pinned(child, folder, arguments.core).splitlines()[-1])
    predicted = [float(line) for line in (folder / "x.predictions").read_text().split()]
    labels = [line[0] == "1" for line in (folder / "valid.ffm").read_text().splitlines()]
    losses = [-math.log(p if label else 1 - p) for p, label in zip(predicted, labels, strict=True)]
    return 3 * rows / (seconds[arguments.passes + 3] - seconds[arguments.passes]), statistics.fmean(losses)


def main(command_line: list[str] | None = None) -> int:
    """Measures and prints a table."""
    arguments = parse_arguments(command_line)
    if not arguments.sanderling.exists():
        say(f"{arguments.sanderling} is missing: cargo build --release --bin sanderling, or name it by --sanderling")
        return 2
    rates: dict[str, list[float]] = {}
    logloss: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ffm_") as place:
        folder = Path(place)
        rows = write_rows(arguments.criteo, folder)
        for number in range(arguments.rounds):
            found = {
                name: run_sanderling(arguments, folder, settings)
                for name, settings in SANDERLING
                if name.startswith(arguments.only or "")
            }
            if importlib.util.find_spec("xlearn"):
                found["xLearn"] = run_xlearn(arguments, folder, rows)
            for name, (rate, loss) in found.items():
                rates.setdefault(name, []).append(rate)
                logloss[name] = loss
                say(f"round {number + 1}: {name:36} {rate:10,.0f} rows/s, logloss {loss:.5f}")
    print("| learner | rows/s of training (min to max) | logloss of the validation rows |\n|---|---|---|")
    for name, all_rates in rates.items():
        median = statistics.median(all_rates)
        print(f"| {name} | {median:,.0f} ({min(all_rates):,.0f} to {max(all_rates):,.0f}) | {logloss[name]:.5f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
