"""Regression by the built-in learners against numpy and scikit-learn, in Python and by the commands."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, mean_squared_error

import sanderling

Floats = npt.NDArray[np.float64]


def numbers(rows: int, seed: int) -> tuple[dict[str, Any], Floats]:
    """Return columns x, z and a kind, and a label that is linear in them, with noise."""
    random = np.random.default_rng(seed)
    x, z = random.normal(size=rows), random.uniform(-1, 1, size=rows)
    kind = random.integers(0, 4, rows)
    label = 5.0 + 2.0 * x - 3.0 * z + np.array([0.0, 1.0, -1.0, 4.0])[kind] + 0.1 * random.normal(size=rows)
    return {"x": x, "z": z, "kind": np.array(["a", "b", "c", "d"])[kind]}, label


def config_of(**train: object) -> dict[str, Any]:
    return {
        "label": {"column": "price"},
        "optimizer": {"type": "adagrad", "lr": 0.5},
        "train": {"loss": "mse", "batch_size": 16, "passes": 20, **train},
        "feature": [{"each": ["x", "z"], "type": "numeric"}, {"name": "kind"}],
    }


def command(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sanderling", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("model", ["lr", "fm", "ffm"])
def test_numbers_are_predicted_as_by_least_squares(model: str, tmp_path: Path) -> None:
    columns, label = numbers(2000, 1)
    held_out, wanted = numbers(500, 2)
    config = {**config_of(), "model": {"type": model, "rank": 2, "normalize": False}}
    if model != "ffm":
        del config["model"]["normalize"]
    found = sanderling.train(config, train={"price": label, **columns}, name="run", runs_dir=tmp_path)
    model_of = found.load()
    predicted = model_of.predict(held_out)

    def design(columns: dict[str, Any]) -> Floats:
        kinds = columns["kind"][:, None] == np.array(["a", "b", "c", "d"])[None, :]
        found: Floats = np.c_[columns["x"], columns["z"], kinds.astype(float)]
        return found

    least_squares = LinearRegression().fit(design(columns), label).predict(design(held_out))
    assert mean_squared_error(wanted, predicted) < mean_squared_error(wanted, least_squares) + 0.01
    metrics = model_of.evaluate({"price": wanted, **held_out})
    weights = wanted.astype(np.float32).astype(np.float64)
    assert metrics["mse"] == pytest.approx(mean_squared_error(weights, predicted), rel=1e-6)
    assert metrics["rmse"] == pytest.approx(mean_squared_error(weights, predicted) ** 0.5, rel=1e-6)
    assert metrics["mae"] == pytest.approx(mean_absolute_error(weights, predicted), rel=1e-6)
    assert np.isnan(metrics["auc"])
    assert metrics["positives"] == 0
    assert metrics["prob_mean"] == pytest.approx(predicted.mean(), rel=1e-5)
    assert metrics["real_mean"] == pytest.approx(wanted.mean(), rel=1e-5)
    assert np.isnan(found.auc)
    assert found.rmse == found.summary["rmse"]
    assert repr(found).startswith("TrainResult(rmse=")
    one = {name: column[0].item() for name, column in held_out.items()}
    assert model_of.predict(one) == pytest.approx(float(predicted[0]), abs=1e-5)


def test_the_commands_tell_of_errors(tmp_path: Path) -> None:
    columns, label = numbers(600, 3)
    lines = [
        f"{label[row]:.4f},{columns['x'][row]:.4f},{columns['z'][row]:.4f},{columns['kind'][row]}" for row in range(600)
    ]
    (tmp_path / "train.csv").write_text("\n".join(["price,x,z,kind", *lines[:500], ""]))
    (tmp_path / "valid.csv").write_text("\n".join(["price,x,z,kind", *lines[500:], ""]))
    config = """
    data = { train = "train.csv", valid = "valid.csv" }
    label = { column = "price" }
    optimizer = { type = "adagrad", lr = 0.5 }
    train = { loss = "mse", batch_size = 16, passes = 5, early_stop = 2 }
    [[feature]]
    each = ["x", "z"]
    type = "numeric"
    [[feature]]
    name = "kind"
    """
    (tmp_path / "price.toml").write_text(config)
    out = command("train", "price.toml", "--quiet", cwd=tmp_path)
    assert "rmse" in out
    assert "mae" in out
    assert "AUC" not in out
    summary = json.loads((tmp_path / "runs/price/summary.json").read_text())
    found = json.loads(command("eval", "runs/price/model", "valid.csv", "--json", cwd=tmp_path))
    for name in ("rmse", "mae", "mse"):
        assert found[name] == pytest.approx(summary[name])
    assert found["auc"] is None
    predicted = np.array(command("predict", "runs/price/model", "valid.csv", cwd=tmp_path).split(), float)
    assert mean_squared_error(np.round(label[500:], 4), predicted) == pytest.approx(summary["mse"], rel=1e-4)
    command("train", "price.toml", "--quiet", "--name", "other", "--set", "model.type=fm", cwd=tmp_path)
    runs = json.loads(command("runs", "--json", cwd=tmp_path))
    assert [run["rmse"] for run in runs if run["name"] == "price"] == [summary["rmse"]]
    listed = command("runs", cwd=tmp_path)
    assert "other metrics" in listed
    assert f"rmse {summary['rmse']:.6f}" in listed
    compared = json.loads(command("compare", "runs/price", "runs/other", "--json", cwd=tmp_path))
    rows = {row["number"]: row for row in compared["rows"] if row["name"] == "run"}
    assert rows["rmse"]["better"] == "lower"
    assert rows["rmse"]["a"] == summary["rmse"]
    assert "auc" not in rows
    assert "linear regression" in command("inspect", "runs/price/model", cwd=tmp_path)
