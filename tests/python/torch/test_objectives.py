"""Several labels and regression: losses and metrics against numpy, scikit-learn and torch, and whole runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error, roc_auc_score

import sanderling
import sanderling.torch
from sanderling._native import cli_main
from sanderling.torch import objective
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.labels import feed_spec, labels_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Clicks by (a + b) % 2, conversions of a third of the rows by a alone, and a number."""
    rng = np.random.default_rng(1)
    for name, rows in (("train", 2000), ("valid", 500)):
        a, b = rng.integers(0, 4, (2, rows))
        click, bought = (a + b) % 2, (a > 1).astype(int)
        known = rng.random(rows) < 0.6
        amount = (a * 2.0 - b + rng.normal(size=rows) * 0.1).round(3)
        lines = [
            f"{c},{x if k else ''},{y},{i},{j}\n"
            for c, x, k, y, i, j in zip(click, bought, known, amount, a, b, strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("click,buy,amount,a,b\n" + "".join(lines))
    return tmp_path


def config(data: Path, **more: Any) -> dict[str, Any]:
    train = {"batch_size": 64, "passes": 6, "depth": 1, "threads": 1, **more.pop("train", {})}
    return {
        "name": "run",
        "seed": 1,
        "data": {"train": str(data / "train.csv"), "valid": str(data / "valid.csv")},
        "model": {"type": "dnn", "dim": 4, "init_std": 0.1, "hidden": [16], **more.pop("model", {})},
        "optimizer": {"type": "adam", "lr": 0.02},
        "dense_optimizer": {"lr": 0.02},
        "train": train,
        "feature": [{"name": "a"}, {"name": "b"}],
        **more,
    }


def columns(data: Path) -> dict[str, Any]:
    rows = [line.split(",") for line in (data / "valid.csv").read_text().splitlines()]
    return {name: np.array([float(cell or "nan") for cell in cells]) for name, *cells in zip(*rows, strict=True)}


LABELS = [{"name": "click", "column": "click"}, {"name": "buy", "column": "buy", "weight": 0.5}]


def test_several_labels_share_a_bottom(
    data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data)
    result = sanderling.torch.train(config(data, label=LABELS, model={"head": [8]}), runs_dir=data)
    assert result.summary["auc"] > 0.95
    assert result.summary["buy.auc"] > 0.95
    found = sanderling.torch.predict("run/model", "valid.csv")
    assert found.shape == (500, 2)
    rows = columns(data)
    assert result.summary["auc"] == pytest.approx(roc_auc_score(rows["click"], found[:, 0]), abs=1e-6)
    known = ~np.isnan(rows["buy"])
    assert result.summary["buy.auc"] == pytest.approx(roc_auc_score(rows["buy"][known], found[known, 1]), abs=1e-6)
    expected = log_loss(rows["buy"][known], found[known, 1].astype(np.float64))
    assert result.summary["buy.logloss"] == pytest.approx(expected, rel=1e-3)
    capfd.readouterr()
    assert cli_main(["sanderling", "eval", "run/model", "valid.csv", "--json", "-q"]) == 0
    line = json.loads(capfd.readouterr().out)
    for name in ("auc", "logloss", "buy.auc", "buy.logloss"):
        assert line[name] == pytest.approx(result.summary[name], rel=1e-6), name
    # Files to predict need no labels.
    (data / "new.csv").write_text("a,b\n1,2\n3,3\n")
    assert sanderling.torch.predict("run/model", "new.csv").shape == (2, 2)
    assert "buy.auc" in (data / "run/metrics.jsonl").read_text()
    resumed = sanderling.torch.train(
        config(data, label=LABELS, model={"head": [8]}, train={"passes": 7}), runs_dir=data, resume=True
    )
    assert resumed.summary["passes"] == 7


def test_the_loss_of_several_labels_leaves_missing_ones_out(data: Path) -> None:
    made = DeepConfig.of(config(data, label=LABELS))
    queue = sanderling.FeedQueue(sanderling.FileSource(str(data / "valid.csv"), made.feed_spec, batch_size=500))
    batch = next(queue)
    assert queue.spec is not None
    goal = objective.objective_of(made, queue.spec["feature"])
    outputs = np.random.default_rng(2).normal(size=(500, 2))
    loss, _ = goal.loss(torch.tensor(outputs), batch)
    rows = columns(data)
    known = ~np.isnan(rows["buy"])
    of = [
        np.logaddexp(0, -(2 * rows["click"] - 1) * outputs[:, 0]).sum(),
        np.logaddexp(0, -(2 * rows["buy"][known] - 1) * outputs[known, 1]).sum(),
    ]
    assert loss.item() == pytest.approx((of[0] + 0.5 * of[1]) / 500, rel=1e-6)


def test_regression_learns_a_number(
    data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data)
    settings = config(data, label={"column": "amount"}, train={"loss": "mse"}, model={"type": "deepfm"})
    result = sanderling.torch.train(settings, runs_dir=data)
    assert result.summary["rmse"] < 0.4
    assert result.summary["auc"] is None
    found, wanted = sanderling.torch.predict("run/model", "valid.csv"), columns(data)["amount"]
    assert result.summary["mse"] == pytest.approx(mean_squared_error(wanted, found), rel=1e-4)
    assert result.summary["mae"] == pytest.approx(mean_absolute_error(wanted, found), rel=1e-4)
    capfd.readouterr()
    assert cli_main(["sanderling", "eval", "run/model", "valid.csv", "--json", "-q"]) == 0
    line = json.loads(capfd.readouterr().out)
    assert line["rmse"] == pytest.approx(result.summary["rmse"], rel=1e-6)
    assert line["examples"] == 500
    assert (data / "run/report.html").exists()


def test_weighted_metrics_of_numbers_are_scikit_learns() -> None:
    rng = np.random.default_rng(3)
    wanted, found, weights = (rng.normal(size=50).astype(np.float32) for _ in range(3))
    weights = np.abs(weights)
    line = objective.regression_metrics((wanted, found, weights))
    assert line["mse"] == pytest.approx(mean_squared_error(wanted, found, sample_weight=weights), rel=1e-6)
    assert line["mae"] == pytest.approx(mean_absolute_error(wanted, found, sample_weight=weights), rel=1e-6)
    assert line["rmse"] == pytest.approx(line["mse"] ** 0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"label": [{"name": "x"}]}, "needs a column"),
        ({"label": [{"column": "click"}]}, r"a single one is \[label\]"),
        ({"label": [{"column": "click"}, {"column": "click"}]}, "different names"),
        ({"label": [{"column": "click", "positive": ["1"]}, {"column": "buy"}]}, "label.positive"),
        ({"label": LABELS, "model": {"type": "deepfm"}}, "model.type = 'dnn'"),
        ({"label": LABELS, "train": {"loss": "mse"}}, "model.type = 'dnn'"),
        ({"model": {"head": [4]}}, "model.head"),
        ({"train": {"loss": "bpr"}}, "train.loss = 'bpr'"),
        ({"train": {"loss": "mse", "monitor": "auc"}}, "rmse or mae"),
    ],
)
def test_what_does_not_fit_is_refused(data: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(sanderling.ConfigError, match=words):
        DeepConfig.of(config(data, **more))


def test_a_feed_spec_has_the_labels_as_features() -> None:
    spec = feed_spec({"label": LABELS, "feature": [{"name": "a"}]}, is_regression=False)
    assert spec["label"] == {"column": "click", "threshold": 0.0}
    assert spec["feature"][1] == {"name": "label:buy", "column": "buy", "type": "numeric"}
    assert labels_of({"column": "click"}) == []
