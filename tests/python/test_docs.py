"""The code of docs/python.md runs, top to bottom, and the commands of all pages have the options that they show."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.DOTALL | re.MULTILINE)
    # The last ones need servers and a second process: tests of jobs over hosts run what they show.
    *blocks, job, step = blocks
    for block in (job, step):
        compile(block, "docs/python.md", "exec")
    assert len(blocks) == 11
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("/dev/shm", str(tmp_path)), names)
    assert names["result"].auc > 0.85
    assert (tmp_path / "sanderling" / "user").is_dir()
    assert (len(names["probabilities"]), names["probabilities"].dtype) == (16281, np.float32)
    assert names["rows"].shape == (4, 8)
    assert names["bags"].shape == (2, 8)
    assert names["total"] == 32561


def _rows(path: Path, columns: list[str], seed: int) -> None:
    """Write 2,000 rows of small numbers with a label that depends on the first column."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 9, (2000, len(columns)))
    values[:, -1] = random.random(2000) < 0.1 + values[:, 0] / 12
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in values)]) + "\n")


def _block(page: str) -> str:
    (block,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    return str(block)


def test_the_week_in_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in range(1, 8):
        _rows(Path(f"day{day}.csv"), ["user", "item", "label"], day)
    Path("clicks.toml").write_text('data = { train = "day1.csv" }\n[[feature]]\neach = ["user", "item"]\n')
    names: dict[str, Any] = {}
    exec(_block("daily-training.md"), names)
    curve = names["result"].summary["progressive_curve"]
    assert [point["run"] for point in curve] == [f"day{day}" for day in range(2, 8)]
    assert all(point["auc"] > 0.6 for point in curve)


def test_the_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with a study of the calls that Optuna has, for it need not be installed."""

    class Trial:
        number = 0

        def suggest_int(self, _name: str, low: int, _high: int, *, log: bool) -> int:
            return low if log else low + 1

        def suggest_float(self, _name: str, low: float, _high: float, *, log: bool) -> float:
            return low if log else 2 * low

    class Study:
        best_params = None

        def optimize(self, objective: Callable[[Trial], float], n_trials: int) -> None:
            assert n_trials == 30
            assert objective(Trial()) > 0.6

    optuna = SimpleNamespace(Trial=Trial, create_study=lambda direction: Study() if direction == "maximize" else None)
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    monkeypatch.chdir(tmp_path)
    _rows(Path("people.csv"), ["age", "job", "education", "income"], 1)
    exec(_block("python.md"), {})
    assert Path("runs/sweep-0/report.html").exists()


# Without load and bench: they are programs of their own, which the Python package does not bring.
COMMANDS = "train|eval|predict|inspect|key|similar|export|compare|runs|download|convert|hub|ps|serve|ctl|synth"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@cache
def options(*command: str) -> frozenset[str]:
    """The options that `--help` of a command lists; empty if there is no such command."""
    listed = subprocess.run(
        [sys.executable, "-m", "sanderling", *command, "--help"], capture_output=True, text=True, check=False
    )
    return frozenset(OPTION.findall(listed.stdout)) if listed.returncode == 0 else frozenset()


def test_commands_of_the_pages_have_their_options() -> None:
    trainer = (ROOT / "python/sanderling/torch/command.py").read_text()
    deep = {f"--{name}" for name in re.findall(r'"--([a-z0-9-]+)"', trainer)}
    unknown = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text().replace("\\\n", " ")
        for command, rest in re.findall(rf"sanderling ({COMMANDS})\b([^`\n]*)", text):
            arguments = re.split(r" +#| & |&&|;|\| ", rest)[0]
            words = arguments.partition(" -")[0].split()
            for option in OPTION.findall(arguments):
                # A command may have one below it, and that another one.
                known = frozenset().union(*(options(command, *words[:depth]) for depth in range(3)))
                if option not in known and not (command == "train" and option in deep):
                    unknown.append(f"{page.name}: sanderling {command} {option}")
    assert unknown == []
