"""Numbers of each feature: in the record of a training, against an earlier model, and in a server of predictions."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from processes import free_port, page, process

import sanderling

CONFIG = {
    "label": {"column": "label"},
    "feature": [
        {"column": "user", "type": "categorical"},
        {"column": "item", "type": "categorical", "table": "shared"},
        {"column": "seen", "type": "categorical", "table": "shared"},
        {"column": "row", "type": "categorical"},
    ],
    "model": {"type": "fm", "rank": 4},
    "train": {"batch_size": 64, "passes": 1},
}


def columns(users: str, rows: int = 6000) -> dict[str, Any]:
    """Clicks that depend on the user; the key of `row` occurs once."""
    random = np.random.default_rng(1)
    user = random.integers(0, 50, rows)
    return {
        "label": (random.random(rows) < 0.2 + 0.6 * (user % 2)).astype(np.int64),
        "user": [f"{users}{number}" for number in user],
        "item": [f"i{number}" for number in random.integers(0, 20, rows)],
        "seen": [f"i{number}" for number in random.integers(0, 20, rows)],
        "row": [f"r{number}" for number in range(rows)],
    }


def features(run_dir: Path) -> dict[str, dict[str, Any]]:
    record = json.loads((run_dir / "run.json").read_text())
    return {feature["name"]: feature for feature in record["features"]}


def test_a_broken_feature_stands_out(tmp_path: Path) -> None:
    first = sanderling.train(CONFIG, train=columns("u"), runs_dir=tmp_path, name="day1")
    of = features(tmp_path / "day1")
    assert list(of) == ["user", "item", "seen", "row"]
    assert of["row"]["unseen_share"] == 1.0
    assert of["user"]["unseen_share"] < 0.1
    assert of["user"]["hit_share"] > 0.2
    assert of["row"]["hit_share"] == 0.0
    assert [of[name]["readers"] for name in of] == [1, 2, 2, 1]
    assert (of["user"]["admitted"], of["item"]["admitted"], of["row"]["admitted"]) == (50, 20, 6000)
    assert all(feature["norm_p50"] > 0.0 for name, feature in of.items() if name != "row")
    assert all(feature["gradient_p99"] >= feature["gradient_p50"] > 0.0 for feature in of.values())
    assert all(feature["drift"] < 0.25 for name, feature in of.items() if name != "row")
    blobs = json.loads((first.model_dir / "manifest.json").read_text())["manifest"]["blobs"]
    blob = next(blob for blob in blobs if blob["name"] == "features.json")
    saved = json.loads((first.model_dir / blob["file"]["name"]).read_text())
    assert [feature["name"] for feature in saved["features"]] == list(of)

    # The next day's users are spelled in another way.
    sanderling.train(CONFIG, train=columns("U-"), runs_dir=tmp_path, name="day2", from_model=first.model_dir)
    of = features(tmp_path / "day2")
    assert of["user"]["drift_trained"] > 0.25
    assert of["item"]["drift_trained"] < 0.1
    report = (tmp_path / "day2/report.html").read_text()
    assert "from trained" in report


def test_a_server_of_predictions_compares_with_the_training(tmp_path: Path) -> None:
    sanderling.train(CONFIG, train=columns("u"), runs_dir=tmp_path, name="day1")
    address = f"127.0.0.1:{free_port()}"
    rows = columns("U-", 64)
    body = json.dumps({"rows": [dict(zip(rows, row, strict=True)) for row in _plain(rows)]}).encode()
    with process(["serve", "day1/model", "--listen", address, "--threads", "1"], tmp_path, 1):
        assert "sanderling_model_feature_drift{" not in page(f"http://{address}/metrics")
        for _ in range(16 * 40):
            urllib.request.urlopen(f"http://{address}/predict", body).close()
        said = page(f"http://{address}/metrics")
        values = {
            line.split('feature="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
            for line in said.splitlines()
            if line.startswith("sanderling_model_feature_drift{")
        }
        assert values["user"] > 0.25
        assert values["item"] < values["user"]
        assert "against those of the training" in page(f"http://{address}/tables")


def _plain(columns: dict[str, Any]) -> list[list[Any]]:
    return [list(map(str, row)) for row in zip(*columns.values(), strict=True)]
