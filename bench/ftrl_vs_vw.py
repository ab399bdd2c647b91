"""FTRL logistic regression: `sanderling train` against Vowpal Wabbit on the same synthetic rows, in the same run.

    python bench/ftrl_vs_vw.py --write

makes 1,000,000 training and 100,000 held-out rows with `sanderling synth`, converts them once to VW's text (not
timed), trains with both in interleaved rounds, each run a process of its own, pinned to one core and not pinned, and
scores both models on the held-out rows with the same float64 code. It builds nothing, and knows nothing of either
program but its command line.

VW is driven through its Python package (`pip install vowpalwabbit`), whose native driver reads the file itself. Two
times are taken of every run: of the *whole process*, and of *training alone*, which for VW is the constructor of
`Workspace` (no start of Python, no saving), and for sanderling what it reports itself.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent

# VW in a process of its own: the constructor reads the whole file, `finish` saves the model.
VW_CHILD = """
import json, sys, time
import vowpalwabbit
begin = time.perf_counter()
workspace = vowpalwabbit.Workspace(sys.argv[1])
trained = time.perf_counter()
workspace.finish()
print(json.dumps({"train_s": trained - begin, "finish_s": time.perf_counter() - trained}))
"""

# A run that takes longer than this hangs.
RUN_S_MAX = 1800
# Probabilities are kept this far from 0 and 1 in the logloss.
CLIP = 1e-15

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass
class Timing:
    """One run: seconds of the whole process and of training alone."""

    process_s: float
    train_s: float


@dataclasses.dataclass
class Quality:
    """A model on the held-out rows."""

    auc: float
    logloss: float


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sanderling", type=Path, default=ROOT / "target/release/sanderling", help="the binary to measure")
    add("--rows", type=int, default=1_000_000, help="training rows (1,000,000)")
    add("--held-out", type=int, default=100_000, help="held-out rows (100,000)")
    add("--rounds", type=int, default=5, help="interleaved rounds (5)")
    add("--seed", type=int, default=42, help="of the rows and of sanderling (42)")
    add("--alpha", type=float, default=0.05, help="FTRL learning rate of both (0.05)")
    add("--beta", type=float, default=1.0, help="FTRL beta of both (1)")
    add("--l1", type=float, default=0.0, help="L1 of both (0)")
    add("--l2", type=float, default=0.0, help="L2 of both (0)")
    add("--bits", type=int, default=26, help="VW's hash bits (26)")
    add("--batch-size", type=int, default=1, help="sanderling's minibatch; 1: row by row, as VW does (1)")
    add("--core", type=int, default=0, help="the core of the pinned runs (0)")
    add("--data", type=Path, help="a folder with train.libsvm and test.libsvm, instead of synthetic rows")
    add("--only", choices=["vw", "sanderling"], help="measure one of the two")
    add("--write", action="store_true", help="write docs/results/DATE-ftrl-vs-vw.md")
    add("--json", action="store_true", help="end with one line of JSON")
    return parser.parse_args()


def main() -> int:
    """Measures, prints, and writes if asked; 0 also when there is nothing to compare with."""
    arguments = parse_arguments()
    engines = [arguments.only] if arguments.only else ["vw", "sanderling"]
    if "vw" in engines and importlib.util.find_spec("vowpalwabbit") is None:
        say("skipped: vowpalwabbit is not installed (pip install vowpalwabbit)")
        return 0
    if not arguments.sanderling.exists() and ("sanderling" in engines or arguments.data is None):
        say(f"{arguments.sanderling} is missing: cargo build --release --bin sanderling, or name it by --sanderling")
        return 2
    with tempfile.TemporaryDirectory(prefix="ftrl_vs_vw_") as folder:
        bench = Bench(arguments, Path(folder))
        try:
            bench.prepare(engines)
            result = bench.measure(engines)
        except subprocess.CalledProcessError as error:
            say(f"failed: {error}\n{error.stderr}")
            return 1
    report = markdown(arguments, result)
    print(report)
    if arguments.write:
        path = ROOT / "docs/results" / f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}-ftrl-vs-vw.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report)
        say(f"written to {path}")
    if arguments.json:
        print(json.dumps(result))
    return 0


class Bench:
    """The files of one comparison and the runs over them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        """Everything is made below `folder`, but for rows that are already there."""
        self.arguments = arguments
        self.folder = folder
        data = arguments.data or folder
        self.train, self.test = data / "train.libsvm", data / "test.libsvm"
        self.train_vw, self.test_vw = folder / "train.vw", folder / "test.vw"
        self.best: dict[str, float] | None = None
        self.model_path = folder / "unset"

    def prepare(self, engines: list[str]) -> None:
        """Makes the rows, and VW's text of them."""
        arguments = self.arguments
        if arguments.data is None:
            say(f"making {arguments.rows:,} + {arguments.held_out:,} rows")
            self.synth(self.train, 0, arguments.rows)
            self.best = self.synth(self.test, arguments.rows, arguments.held_out)
        if "vw" in engines:
            convert(self.train, self.train_vw)
            convert(self.test, self.test_vw)
        self.labels, self.rows = labels(self.test), count_lines(self.train)

    def synth(self, path: Path, first_row: int, rows: int) -> dict[str, float]:
        """Rows of the endless stream of the seed; the held-out ones follow the training rows."""
        seed = str(self.arguments.seed)
        command = [self.arguments.sanderling, "synth", path, "--rows", str(rows), "--first-row", str(first_row)]
        return last_json(run([*map(str, command), "--seed", seed, "--json"], self.folder))

    def measure(self, engines: list[str]) -> dict[str, object]:
        """Interleaved rounds, every other one in reverse, then both models on the held-out rows."""
        timings: dict[str, list[Timing]] = {}
        for round_number in range(self.arguments.rounds):
            plan = [(engine, pinned) for pinned in (True, False) for engine in engines]
            for engine, pinned in plan if round_number % 2 == 0 else reversed(plan):
                timing = self.run_vw(pinned) if engine == "vw" else self.run_sanderling(pinned)
                timings.setdefault(f"{engine} {'pinned' if pinned else 'unpinned'}", []).append(timing)
                say(
                    f"round {round_number + 1}: {engine:10} {'pinned' if pinned else 'unpinned':8} "
                    f"process {timing.process_s:6.2f} s, training {timing.train_s:6.2f} s"
                )
            if "vw" in engines:
                timings.setdefault("vw parsing only, pinned", []).append(self.parse_vw())
        quality = {
            engine: dataclasses.asdict(self.score(self.scores_vw() if engine == "vw" else self.scores_sanderling()))
            for engine in engines
        }
        return {"rows": self.rows, "speeds": speeds(timings, self.rows), "quality": quality, "best": self.best}

    def run_vw(self, pinned: bool) -> Timing:
        """Trains VW once and leaves its model in the folder."""
        a = self.arguments
        return self.vw(
            f"--ftrl -b {a.bits} --ftrl_alpha {a.alpha} --ftrl_beta {a.beta} --l1 {a.l1} --l2 {a.l2} "
            f"--loss_function logistic -d {self.train_vw} -f {self.folder / 'vw.model'} --quiet",
            pinned,
        )

    def parse_vw(self) -> Timing:
        """VW reads the rows and learns nothing."""
        return self.vw(f"--noop -b {self.arguments.bits} -d {self.train_vw} --quiet", pinned=True)

    def vw(self, options: str, pinned: bool) -> Timing:
        """One process of VW."""
        begin = time.perf_counter()
        output = run([sys.executable, "-c", VW_CHILD, options], self.folder, self.arguments.core if pinned else None)
        process_s = time.perf_counter() - begin
        return Timing(process_s, float(last_json(output)["train_s"]))

    def scores_vw(self) -> Floats:
        """Probabilities of VW's last model; with logistic loss it predicts log-odds."""
        scores = self.folder / "vw.scores"
        model = self.folder / "vw.model"
        self.vw(f"-t -i {model} -d {self.test_vw} -p {scores} --loss_function logistic --quiet", pinned=False)
        return 1.0 / (1.0 + np.exp(-np.loadtxt(scores, dtype=np.float64)))

    def run_sanderling(self, pinned: bool) -> Timing:
        """Trains sanderling once."""
        config = self.folder / "ftrl_vs_vw.toml"
        config.write_text(self.config())
        begin = time.perf_counter()
        core = self.arguments.core if pinned else None
        output = run([str(self.arguments.sanderling), "train", str(config), "--json", "--quiet"], self.folder, core)
        process_s = time.perf_counter() - begin
        report = last_json(output)
        self.model_path = self.folder / str(report.get("model", "runs/ftrl_vs_vw/model"))
        return Timing(process_s, self.rows / float(report["examples_per_s"]))

    def config(self) -> str:
        """The same learner as VW's command line asks for."""
        a = self.arguments
        return f"""
name = "ftrl_vs_vw"
seed = {a.seed}
[data]
train = {json.dumps(str(self.train))}
format = "libsvm"
[model]
type = "lr"
[optimizer]
type = "ftrl"
alpha = {a.alpha}
beta = {a.beta}
l1 = {a.l1}
l2 = {a.l2}
[train]
batch_size = {a.batch_size}
passes = 1
threads = 1
shuffle_rows = 0
"""

    def scores_sanderling(self) -> Floats:
        """Probabilities of sanderling's last model: the last column of what `predict` writes."""
        scores = self.folder / "sanderling.csv"
        command = [self.arguments.sanderling, "predict", self.model_path, self.test, "--output", scores]
        run([str(part) for part in command], self.folder)
        lines = scores.read_text().splitlines()
        cells = [line.rsplit(",", 1)[-1] for line in lines if line]
        return np.array(cells[len(cells) - len(self.labels) :], dtype=np.float64)

    def score(self, probabilities: Floats) -> Quality:
        """AUC and logloss, the same code for both."""
        if len(probabilities) != len(self.labels):
            raise ValueError(f"{len(probabilities)} scores for {len(self.labels)} held-out rows")
        return Quality(auc(self.labels, probabilities), logloss(self.labels, probabilities))


def run(command: list[str], folder: Path, core: int | None = None) -> str:
    """Runs a command in `folder`, on one core if told; returns its standard output."""

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    done = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=RUN_S_MAX, preexec_fn=pin
    )
    return done.stdout


def last_json(output: str) -> dict[str, float]:
    """The object on the last line of an output."""
    found: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return found


def convert(libsvm: Path, vw: Path) -> None:
    """VW's text of the same features: a value of 1 is VW's default and is left out."""
    with libsvm.open() as source, vw.open("w") as target:
        for line in source:
            label, _, features = line.rstrip("\n").partition(" ")
            features = f"{features} ".replace(":1 ", " ").rstrip(" ")
            target.write(f"{'1' if label == '1' else '-1'} | {features}\n")


def labels(libsvm: Path) -> npt.NDArray[np.bool_]:
    """The labels of a file."""
    with libsvm.open() as source:
        return np.array([line.startswith("1") for line in source], dtype=np.bool_)


def count_lines(path: Path) -> int:
    """Lines of a file, each ended by a line feed."""

    def blocks() -> Iterator[bytes]:
        with path.open("rb") as source:
            while block := source.read(1 << 20):
                yield block

    return sum(block.count(b"\n") for block in blocks())


def auc(truth: npt.NDArray[np.bool_], scores: Floats) -> float:
    """The chance that a positive is scored above a negative, ties counting one half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2.0
    positives = int(truth.sum())
    wins = float(mean_rank[place][truth].sum()) - positives * (positives + 1) / 2.0
    return wins / (positives * (len(truth) - positives))


def logloss(truth: npt.NDArray[np.bool_], probabilities: Floats) -> float:
    """Mean cost of the labels in nats."""
    clipped = np.clip(probabilities, CLIP, 1.0 - CLIP)
    return float(-np.where(truth, np.log(clipped), np.log1p(-clipped)).mean())


def speeds(timings: dict[str, list[Timing]], rows: int) -> dict[str, dict[str, float]]:
    """Median examples per second by both clocks, and the spread of the first."""
    table = {}
    for name, runs in timings.items():
        processes = [rows / timing.process_s for timing in runs]
        table[name] = {
            "process": statistics.median(processes),
            "process_min": min(processes),
            "process_max": max(processes),
            "training": statistics.median(rows / timing.train_s for timing in runs),
        }
    return table


def markdown(arguments: argparse.Namespace, result: dict[str, object]) -> str:
    """The result as a page for docs/results."""
    table: dict[str, dict[str, float]] = result["speeds"]  # type: ignore[assignment]
    quality: dict[str, dict[str, float]] = result["quality"]  # type: ignore[assignment]
    best: dict[str, float] | None = result["best"]  # type: ignore[assignment]
    a = arguments
    lines = [
        f"<!-- One dated run of bench/ftrl_vs_vw.py on {machine()['cpu']}. -->",
        "# FTRL logistic regression against Vowpal Wabbit",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {machine()['cpu']}, {os.cpu_count()} cores, "
        f"{platform.platform()}, vowpalwabbit {version('vowpalwabbit')}.",
        "",
        f"    python bench/ftrl_vs_vw.py {' '.join(sys.argv[1:])}".rstrip(),
        "",
        f"{result['rows']:,} rows of libsvm text, one pass, alpha {a.alpha}, beta {a.beta}, L1 {a.l1}, L2 {a.l2}; "
        f"VW `-b {a.bits}`, updates row by row; sanderling one thread, batch {a.batch_size}. Medians of {a.rounds} "
        "interleaved rounds, examples/s.",
        "",
        "| run | whole process (min to max) | training alone |",
        "|---|---|---|",
    ]
    for name, speed in sorted(table.items()):
        spread = f"{speed['process_min']:,.0f} to {speed['process_max']:,.0f}"
        lines.append(f"| {name} | {speed['process']:,.0f} ({spread}) | {speed['training']:,.0f} |")
    for how in ("pinned", "unpinned"):
        ours, theirs = table.get(f"sanderling {how}"), table.get(f"vw {how}")
        if ours and theirs:
            whole, alone = ours["process"] / theirs["process"], ours["training"] / theirs["training"]
            lines.append(f"| **ratio, {how}** | **{whole:.2f}** | **{alone:.2f}** |")
    lines += ["", "| held-out rows | logloss | AUC |", "|---|---|---|"]
    lines += [f"| {name} | {on['logloss']:.5f} | {on['auc']:.5f} |" for name, on in quality.items()]
    if best:
        lines.append(f"| true probabilities | {best['best_logloss']:.5f} | {best['best_auc']:.5f} |")
    return "\n".join(lines) + "\n"


def machine() -> dict[str, str]:
    """What ran it."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {"cpu": cpu}


def version(package: str) -> str:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def say(line: str) -> None:
    """Progress goes to standard error, as it happens."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
