"""The command that pip installs: the same program, with its exit codes and its JSON line."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sanderling

SCRIPT = Path(sys.executable).with_name("sanderling")


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


def test_help_shows_an_example() -> None:
    for command in ([], ["train"], ["eval"], ["predict"], ["inspect"], ["key"], ["similar"], ["export"], ["synth"]):
        shown = run(*command, "--help")
        assert shown.returncode == 0, shown.stderr
        assert "xample" in shown.stdout


def test_it_is_the_version_of_the_package() -> None:
    assert sanderling.__version__ in run("--version").stdout
    module = subprocess.run(
        [sys.executable, "-m", "sanderling", "--version"], capture_output=True, text=True, check=True
    )
    assert module.stdout == run("--version").stdout


@pytest.mark.parametrize("arguments", [["trian"], ["train", "nowhere.toml"], ["eval", "nowhere", "nowhere.csv"]])
def test_what_fails_says_so(arguments: list[str]) -> None:
    failed = run(*arguments)
    assert failed.returncode != 0
    assert failed.stdout == ""
    assert arguments[-1] in failed.stderr or "nowhere" in failed.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small run; `passes = 1` stands in the file to be replaced."""
    rows = "".join(f"{int(row % 3 == 0)},a{row % 3},b{row % 5}\n" for row in range(600))
    (tmp_path / "rows.csv").write_text("label,a,b\n" + rows)
    (tmp_path / "rows.toml").write_text(
        'name = "rows"\n[data]\ntrain = "rows.csv"\n[train]\npasses = 1\nprint_every_steps = 1\n'
        '[[feature]]\nname = "a"\n[[feature]]\nname = "b"\n'
    )
    return tmp_path / "rows.toml"


def test_a_model_of_the_command_is_a_model_in_python(config: Path, tmp_path: Path) -> None:
    del config
    trained = run("train", "rows.toml", "--json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    summary = json.loads(trained.stdout.splitlines()[-1])
    assert summary["examples"] == 600
    model = sanderling.load(tmp_path / summary["model"])
    evaluated = run("eval", summary["model"], "rows.csv", "--json", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    line = json.loads(evaluated.stdout.splitlines()[-1])
    assert line["auc"] == pytest.approx(model.evaluate(tmp_path / "rows.csv")["auc"], abs=1e-12)


IN_PYTHON = """
import signal, sys, sanderling
# A shell that starts the tests in the background lets them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    sanderling.train("rows.toml")
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("program", [[SCRIPT, "train", "rows.toml"], [sys.executable, "-c", IN_PYTHON]])
def test_ctrl_c_ends_a_run_with_everything_saved(config: Path, tmp_path: Path, program: list[str]) -> None:
    config.write_text(config.read_text().replace("passes = 1", "passes = 1000000"))
    process = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    try:
        while not (tmp_path / "runs" / "rows" / "model" / "manifest.json").exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no model after a minute"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert len(sanderling.load(tmp_path / "runs" / "rows" / "model").table("a")) == 3
