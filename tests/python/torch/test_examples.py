"""The command and the examples on rows of the census: they learn, alone and as processes."""

import gzip
import json
import os
import runpy
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from sanderling.torch import command

ROOT = Path(__file__).parents[3]


@pytest.fixture
def adult(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which has some rows of the census data where the examples read it."""
    (tmp_path / "data/adult").mkdir(parents=True)
    for name, rows in (("adult.data.gz", 4000), ("adult.test.gz", 1000)):
        with (
            gzip.open(ROOT / "data/adult" / name, "rt") as whole,
            gzip.open(tmp_path / "data/adult" / name, "wt", compresslevel=1) as part,
        ):
            part.writelines(islice(whole, rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command(adult: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # As the example says, but for its model and its steps; two passes are enough to see that it learns.
    example = str(ROOT / "examples/adult_deepfm.toml")
    of_run = ["--model", "dcnv2", "--passes", "2", "--batch-size", "32", "--json", "--tensorboard", "--name", "census"]
    assert command.main([example, *of_run]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["auc"] > 0.85
    assert "pass 2 validated: auc 0." in said.err
    assert len(list((adult / "runs/census/tensorboard").iterdir())) == 1
    assert command.main([example, "--valid", "nowhere.csv", "--passes", "1", "--quiet"]) == 1
    assert "nowhere.csv" in capsys.readouterr().err


def test_the_command_as_a_process(adult: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "sanderling", "train", *arguments]
        return subprocess.run(start, capture_output=True, text=True, check=False, cwd=adult)

    # The configuration of a built-in learner, such as `inspect --suggest` writes, is one of the rows, too.
    learner = run(str(ROOT / "examples/adult_fm.toml"), "--model", "dnn", "--passes", "1", "--max-steps", "3", "--json")
    assert learner.returncode == 0, learner.stderr
    assert json.loads(learner.stdout.splitlines()[-1])["steps"] == 3
    assert "model.rank, [optimizer], train.batch_size of a built-in learner are left out" in learner.stderr
    # Other models are still the native command's.
    native = run(str(ROOT / "examples/adult_lr.toml"), "--passes", "1", "--quiet")
    assert native.returncode == 0, native.stderr


def test_the_page_of_the_loop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train_deepfm.py"])
    runpy.run_path(str(ROOT / "examples/train_deepfm.py"), run_name="__main__")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("pass 3: auc 0.")
    assert float(last.split()[3].rstrip(",")) > 0.89


def test_the_package_does_not_need_torch() -> None:
    code = "import sys, sanderling, sanderling.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
