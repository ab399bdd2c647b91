"""Models that learn how fields interact: they need rows with fields, such as those of libffm, and learn from these."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
import sanderling.torch

MODELS_OF_FIELDS = ["deepfm", "dcn", "dcnv2", "dlrm"]


def write(folder: Path, name: str, pair: str) -> Path:
    """Rows whose label is in no field alone, but in a pair; `pair` says how a field and an index are written."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 4, (2, 1500))
    lines = [f"{(i + j) % 2} {pair.format(0, i + 1)} {pair.format(1, j + 11)}\n" for i, j in zip(a, b, strict=True)]
    (folder / name).write_text("".join(lines))
    return folder / name


def config(path: Path, model: str, *features: dict[str, Any]) -> dict[str, Any]:
    hidden = {} if model == "dlrm" else {"hidden": [16]}
    return {
        "name": "run",
        "data": {"train": str(path), "valid": str(path)},
        "model": {"type": model, "dim": 4, "init_std": 0.1, **hidden},
        "optimizer": {"type": "adam", "lr": 0.02},
        "dense_optimizer": {"lr": 0.02},
        "train": {"batch_size": 64, "passes": 6, "depth": 1},
        "feature": list(features),
    }


@pytest.mark.parametrize("model", MODELS_OF_FIELDS)
@pytest.mark.parametrize("form", ["rows.svm", "rows.ffm"])
def test_models_of_fields_are_refused_over_rows_without(form: str, model: str, tmp_path: Path) -> None:
    path = write(tmp_path, form, "{1}:1" if form == "rows.svm" else "{0}:{1}:1")
    refused = r"learns how fields interact, and libsvm has none: take CSV, Parquet, or libffm with each"
    with pytest.raises(sanderling.ConfigError, match=refused) as found:
        sanderling.torch.train(config(path, model), runs_dir=tmp_path / "runs")
    assert len(str(found.value)) <= 200
    assert not (tmp_path / "runs/run/model").exists()


@pytest.mark.parametrize("model", ["dnn", "wide_deep"])
def test_models_that_need_no_fields_take_rows_without(model: str, tmp_path: Path) -> None:
    path = write(tmp_path, "rows.svm", "{1}:1")
    summary = sanderling.torch.train(config(path, model), runs_dir=tmp_path / "runs").summary
    assert summary["examples"] == 6 * 1500
    assert summary["auc"] > 0.9


def test_a_single_column_is_no_more_than_one_field(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,a\n" + "".join(f"{row % 2},a{row % 3}\n" for row in range(40)))
    refused = r"these rows have one, 'a': name more features, or take dnn or wide_deep"
    with pytest.raises(sanderling.ConfigError, match=refused):
        sanderling.torch.train(config(tmp_path / "rows.csv", "dlrm", {"name": "a"}), runs_dir=tmp_path / "runs")


@pytest.mark.parametrize("model", MODELS_OF_FIELDS)
def test_models_of_fields_learn_from_libffm(model: str, tmp_path: Path) -> None:
    path = write(tmp_path, "rows.ffm", "{0}:{1}:1")
    fields = {"each": ["field_0", "field_1"], "type": "sparse"}
    result = sanderling.torch.train(config(path, model, fields), runs_dir=tmp_path / "runs")
    assert result.summary["auc"] > 0.95
    assert result.model.emb.spec.names == ("field_0", "field_1")
    labels = np.array([int(line[0]) for line in path.read_text().splitlines()])
    probabilities = sanderling.torch.predict(result.run_dir / "model", path)
    assert sanderling.metrics(labels, probabilities)["auc"] == pytest.approx(result.summary["auc"], abs=1e-3)
