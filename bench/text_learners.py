"""The text learners on one core and on two: FTRL and FM of rank 8 from libsvm text, beside Vowpal Wabbit and the floor.

    python bench/text_learners.py --write

makes the rows that `bench/ftrl_vs_vw.py` makes, uses what that has for VW, which is left out where it is not installed
(`pip install vowpalwabbit`), and measures in interleaved rounds. The floor is an example: `cargo build --release -p
sanderling-bench --example text_floor`. Every run is a process of its own: one thread pinned to one core, without a
thread that decodes ahead, two threads on two cores. Rates are rows over seconds of training, as the program says;
beside them is the processor time of the whole process, which other load on the machine disturbs less. Of xLearn,
which is not run, what it reached on the reference machine is a constant here.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import ftrl_vs_vw
from ftrl_vs_vw import ROOT, RUN_S_MAX, last_json, machine, say, version

# Name, model, minibatch (1: row by row), threads.
LEARNERS = [
    ("ftrl", "lr", 1, 1),
    ("ftrl, two threads", "lr", 1, 2),
    ("ftrl, batch 256", "lr", 256, 1),
    ("fm", "fm", 1, 1),
    ("fm, two threads", "fm", 1, 2),
]
RANK = 8

# xLearn's FM of rank 8 inside its epoch on the same rows, one thread, rows/s, as measured on the reference machine.
XLEARN_ROWS_PER_S = 185_000


@dataclasses.dataclass
class Timing:
    """One run: seconds of training, and of processor time of the whole process, if it does nothing else."""

    train_s: float
    cpu_s: float | None


@dataclasses.dataclass
class Row:
    """A learner's median rates, and what it is worth on held-out rows."""

    name: str
    rate: float
    rate_min: float
    rate_max: float
    cpu_rate: float | None
    logloss: float | None
    auc: float | None


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sanderling", type=Path, default=ROOT / "target/release/sanderling", help="the binary to measure")
    add("--before", type=Path, help="another binary, in the same rounds: ratios to it are printed")
    add("--floor", type=Path, default=ROOT / "target/release/examples/text_floor", help="the floor's binary")
    add("--rows", type=int, default=1_000_000, help="training rows (1,000,000)")
    add("--held-out", type=int, default=100_000, help="held-out rows (100,000)")
    add("--rounds", type=int, default=5, help="interleaved rounds (5)")
    add("--seed", type=int, default=42, help="of the rows and of sanderling (42)")
    add("--alpha", type=float, default=0.05, help="FTRL learning rate (0.05)")
    add("--beta", type=float, default=1.0, help="FTRL beta (1)")
    add("--l1", type=float, default=0.0, help="L1 (0)")
    add("--l2", type=float, default=0.0, help="L2 (0)")
    add("--bits", type=int, default=26, help="VW's hash bits (26)")
    add("--batch-size", type=int, default=1, help=argparse.SUPPRESS)
    add("--core", type=int, default=0, help="the core of the pinned runs (0)")
    add("--data", type=Path, help="a folder with train.libsvm and test.libsvm, instead of synthetic rows")
    add("--learners", nargs="*", help="only those whose names begin so")
    add("--no-peers", action="store_true", help="no other programs")
    add("--write", action="store_true", help="write docs/results/DATE-text-learners.md")
    add("--json", action="store_true", help="end with one line of JSON")
    return parser.parse_args(arguments)


def main(command_line: list[str] | None = None) -> int:
    """Measures, prints, and writes if asked."""
    arguments = parse_arguments(command_line)
    if not arguments.sanderling.exists():
        say(f"{arguments.sanderling} is missing: cargo build --release --bin sanderling, or name it by --sanderling")
        return 2
    with tempfile.TemporaryDirectory(prefix="text_learners_") as folder:
        bench = Bench(arguments, Path(folder))
        try:
            rows = bench.measure()
        except subprocess.CalledProcessError as error:
            say(f"failed: {error}\n{error.stderr}")
            return 1
    report = markdown(arguments, rows, bench.features)
    print(report)
    if arguments.write:
        path = ROOT / "docs/results" / f"{datetime.now(UTC):%Y-%m-%d}-text-learners.md"
        path.write_text(report)
        say(f"written to {path}")
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    return 0


class Bench:
    """The files of one comparison and the runs over them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        """Everything is made below `folder`, but for rows that are already there."""
        self.arguments, self.folder = arguments, folder
        self.rows_of = ftrl_vs_vw.Bench(arguments, folder)
        has = importlib.util.find_spec
        self.with_vw = not arguments.no_peers and has("vowpalwabbit") is not None
        self.rows_of.prepare(["vw"] if self.with_vw else [])
        self.timings: dict[str, list[Timing]] = {}
        self.quality: dict[str, tuple[float, float]] = {}
        self.features = features(self.rows_of.train)

    def measure(self) -> list[Row]:
        """Interleaved rounds, every other one in reverse."""
        plan = [(name, binary, learner) for learner in self.learners() for name, binary in self.binaries(learner[0])]
        for number in range(self.arguments.rounds):
            for name, binary, learner in plan if number % 2 == 0 else reversed(plan):
                self.note(number, name, self.train(name, binary, *learner[1:]))
            if self.with_vw:
                begin = cpu_s()
                timing = self.rows_of.run_vw(pinned=True)
                self.note(number, "VW --ftrl", Timing(timing.train_s, cpu_s() - begin))
            if self.arguments.floor.exists():
                self.floor(number)
        if self.with_vw:
            quality = self.rows_of.score(self.rows_of.scores_vw())
            self.quality["VW --ftrl"] = (quality.logloss, quality.auc)
        return [self.row(name) for name in self.timings]

    def learners(self) -> list[tuple[str, str, int, int]]:
        """Those that were asked for."""
        asked = self.arguments.learners
        return [one for one in LEARNERS if not asked or any(one[0].startswith(prefix) for prefix in asked)]

    def binaries(self, name: str) -> list[tuple[str, Path]]:
        """The name of a run by each binary."""
        before = self.arguments.before
        return [(name, self.arguments.sanderling)] + ([(f"{name}, before", before)] if before else [])

    def note(self, number: int, name: str, timing: Timing) -> None:
        """Keeps a timing."""
        self.timings.setdefault(name, []).append(timing)
        processor = "" if timing.cpu_s is None else f", processor {timing.cpu_s:6.2f} s"
        say(f"round {number + 1}: {name:28} training {timing.train_s:6.2f} s{processor}")

    def train(self, name: str, binary: Path, model: str, batch: int, threads: int) -> Timing:
        """Trains once, pinned to as many cores as threads."""
        config = self.folder / "learner.toml"
        config.write_text(self.config(model, batch, threads))
        cores = {self.arguments.core + number for number in range(threads)} & os.sched_getaffinity(0)
        begin = cpu_s()
        output = subprocess.run(
            [str(binary), "train", str(config), "--json", "--quiet"],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        ).stdout
        report = last_json(output)
        self.quality[name] = (report["logloss"], report["auc"])
        return Timing(float(report["train_s"]), cpu_s() - begin)

    def config(self, model: str, batch: int, threads: int) -> str:
        """The learner as VW's command line asks for it."""
        a, rank = self.arguments, f"rank = {RANK}" if model == "fm" else ""
        return f"""
name = "learner"
seed = {a.seed}
[data]
train = {json.dumps(str(self.rows_of.train))}
valid = {json.dumps(str(self.rows_of.test))}
format = "libsvm"
[model]
type = "{model}"
{rank}
[optimizer]
type = "ftrl"
alpha = {a.alpha}
beta = {a.beta}
l1 = {a.l1}
l2 = {a.l2}
[train]
batch_size = {batch}
passes = 1
threads = {threads}
shuffle_rows = 0
decode_ahead = false
"""

    def floor(self, number: int) -> None:
        """Reading alone, and with a table that is indexed by the key."""
        command = [str(self.arguments.floor), str(self.rows_of.train), "1"]
        lines = ftrl_vs_vw.run(command, self.folder, self.arguments.core).strip().splitlines()
        for line in lines:
            name, rate = line.split("rows/s")[0].strip().rsplit(None, 1)
            train_s = self.rows_of.rows / float(rate.replace(",", ""))
            self.note(number, f"floor: {name.strip()}", Timing(train_s, None))

    def row(self, name: str) -> Row:
        """Medians of a learner."""
        rows, timings = self.rows_of.rows, self.timings[name]
        rates = [rows / timing.train_s for timing in timings]
        seconds = [timing.cpu_s for timing in timings if timing.cpu_s is not None]
        cpu_rate = rows / max(statistics.median(seconds), 1e-9) if seconds else None
        logloss, auc = self.quality.get(name, (None, None))
        return Row(name, statistics.median(rates), min(rates), max(rates), cpu_rate, logloss, auc)


def cpu_s() -> float:
    """Processor time of all processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


def features(libsvm: Path) -> float:
    """Features per row, by the first thousand rows."""
    counts = []
    with libsvm.open() as source:
        for line, _ in zip(source, range(1000), strict=False):
            counts.append(line.count(":"))
    return statistics.mean(counts) if counts else 0.0


def markdown(arguments: argparse.Namespace, rows: list[Row], features_per_row: float) -> str:
    """The result as a page for docs/results."""
    rate = {row.name: row.rate for row in rows}
    floor = rate.get("floor: parse and learn")
    vw = rate.get("VW --ftrl")
    lines = [
        f"<!-- One dated run of bench/text_learners.py on {machine()['cpu']}. -->",
        "# The text learners on one core and on two",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine()['cpu']}, {os.cpu_count()} cores, "
        f"vowpalwabbit {version('vowpalwabbit')}.",
        "",
        f"    python bench/text_learners.py {' '.join(sys.argv[1:])}".rstrip(),
        "",
        f"Libsvm text, {features_per_row:.1f} features a row, one pass, alpha {arguments.alpha}, "
        f"beta {arguments.beta}; medians of {arguments.rounds} interleaved rounds. FM of rank {RANK}.",
        "",
        "| learner | rows/s of training (min to max) | ns per feature | of the floor | to VW "
        "| rows per processor second, whole process | held-out logloss | AUC |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ns = 1e9 / row.rate / features_per_row if features_per_row else 0.0
        of_floor = f"{row.rate / floor:.2f}" if floor else ""
        to_vw = f"{row.rate / vw:.2f}" if vw else ""
        cpu_rate = f"{row.cpu_rate:,.0f}" if row.cpu_rate is not None else ""
        logloss = f"{row.logloss:.6f}" if row.logloss is not None else ""
        auc = f"{row.auc:.5f}" if row.auc is not None else ""
        lines.append(
            f"| {row.name} | {row.rate:,.0f} ({row.rate_min:,.0f} to {row.rate_max:,.0f}) | {ns:.1f} | {of_floor} "
            f"| {to_vw} | {cpu_rate} | {logloss} | {auc} |"
        )
    for name in [row.name for row in rows if f"{row.name}, before" in rate]:
        lines += ["", f"{name}: {rate[name] / rate[f'{name}, before']:.2f} times the speed before."]
    for name in ("ftrl", "fm"):
        if name in rate and f"{name}, two threads" in rate:
            lines += ["", f"{name}: two threads are {rate[f'{name}, two threads'] / rate[name]:.2f} times one."]
    if "fm" in rate:
        lines += ["", f"fm: {rate['fm'] / XLEARN_ROWS_PER_S:.2f} times xLearn's epoch on the reference machine."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
