"""Deep runs while they go on: `run.json`, the page at an address, `sanderling watch`, and numbers of features."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
import sanderling.torch
import sanderling.torch.run_status
from sanderling._native import RunStatus


def config(folder: Path, name: str, first: int = 0) -> dict[str, Any]:
    """A run over rows whose users begin at a number."""
    rng = np.random.default_rng(1)
    users, items = rng.integers(0, 30, 6000), rng.integers(0, 8, 6000)
    lines = [f"{user % 2},{user + first},{item}\n" for user, item in zip(users, items, strict=True)]
    (folder / f"{name}.csv").write_text("label,user,item\n" + "".join(lines))
    return {
        "name": name,
        "data": {"train": str(folder / f"{name}.csv")},
        "model": {"type": "deepfm", "dim": 4, "hidden": [8]},
        "optimizer": {"type": "adam", "lr": 0.01},
        "train": {"batch_size": 64, "passes": 2, "print_every_steps": 20},
        "feature": [{"name": "user"}, {"name": "item"}],
    }


def watched(run_dir: Path) -> str:
    words = [sys.executable, "-m", "sanderling", "watch", str(run_dir)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_a_deep_run_is_shown_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    pages: list[str] = []

    def look(line: dict[str, Any]) -> None:
        record = json.loads((tmp_path / "day1/run.json").read_text())
        seen.append(record["under_way"])
        if line["step"] == 60:
            # The record is of the moment before, at most 2 s old.
            end = time.monotonic() + 60.0
            while not watched(tmp_path / "day1").startswith("day1: training, pass 1 of 2"):
                assert time.monotonic() < end, watched(tmp_path / "day1")
            with urllib.request.urlopen(f"{urls[0]}/features", timeout=30) as page:
                pages.append(page.read().decode())
            with urllib.request.urlopen(f"{urls[0]}/metrics", timeout=30) as page:
                pages.append(page.read().decode())

    urls: list[str] = []
    status = RunStatus

    class Noted:
        """Notes the address, which the system chooses."""

        def __init__(self, given: str | None) -> None:
            self.status = status(given)
            assert self.status.url is not None
            urls.append(self.status.url)
            self.url, self.note = self.status.url, self.status.note

    with monkeypatch.context() as patch:
        patch.setattr(sanderling.torch.run_status, "RunStatus", Noted)
        result = sanderling.torch.train(
            config(tmp_path, "day1"), runs_dir=tmp_path, on_line=look, status_listen="127.0.0.1:0", tensorboard=True
        )
    assert seen[0]["process"] > 0
    assert all(under_way["phase"] in ("training", "between passes") for under_way in seen)
    assert "user" in pages[0]
    assert 'sanderling_train_table_rows{table="user"}' in pages[1]
    record = json.loads((tmp_path / "day1/run.json").read_text())
    assert record["under_way"] is None
    assert watched(tmp_path / "day1").startswith("day1: ended")
    features = {feature["name"]: feature for feature in record["features"]}
    assert list(features) == ["user", "item"]
    assert features["user"]["keys"] >= 2000
    assert 0.0 < features["user"]["unseen_share"] < 0.5
    assert features["user"]["admitted"] == 30
    assert features["user"]["norm_p50"] > 0.0
    assert features["user"]["gradient_p50"] > 0.0
    assert features["user"]["drift"] < 0.1
    assert features["user"]["drift_trained"] is None
    assert "Features" in (result.run_dir / "report.html").read_text()
    events = next((tmp_path / "day1/tensorboard").iterdir()).read_bytes()
    assert b"features/user/norm_p50" in events

    # The next day has other users, and the same items.
    sanderling.torch.train(config(tmp_path, "day2", first=1000), runs_dir=tmp_path, from_model=tmp_path / "day1/model")
    record = json.loads((tmp_path / "day2/run.json").read_text())
    features = {feature["name"]: feature for feature in record["features"]}
    assert features["user"]["drift_trained"] > 0.25
    assert features["item"]["drift_trained"] < 0.1
    assert 'the keys of feature "user" are others' in watched(tmp_path / "day2")


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    def fail(line: dict[str, Any]) -> None:
        raise ValueError(f"no disk for the line of step {line['step']}")

    with pytest.raises(ValueError, match="no disk"):
        sanderling.torch.train(config(tmp_path, "bad"), runs_dir=tmp_path, on_line=fail)
    said = watched(tmp_path / "bad")
    assert said.startswith("bad: failed")
    assert "no disk for the line" in said


def test_an_address_of_other_machines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sanderling.ConfigError, match="status_listen"):
        sanderling.torch.train(config(tmp_path, "open"), runs_dir=tmp_path, status_listen="0.0.0.0:0")


def test_a_built_in_run_is_shown_at_an_address(tmp_path: Path) -> None:
    given = config(tmp_path, "plain") | {
        "model": {"type": "lr"},
        "label": {"column": "label"},
        "feature": [{"column": "user", "type": "categorical"}, {"column": "item", "type": "categorical"}],
    }
    with pytest.raises(sanderling.ConfigError, match="status_listen"):
        sanderling.train(given, runs_dir=tmp_path, status_listen="nowhere")
    result = sanderling.train(given, runs_dir=tmp_path, status_listen="127.0.0.1:0")
    assert result.auc > 0.9
