"""Field-aware factorization machines against numpy in float64: the definition pair by pair, over several steps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import sanderling

FIELDS, RANK, LR, BATCH = 4, 3, 0.3, 8

Floats = npt.NDArray[np.float64]
Pair = tuple[int, int, float]


def rows_of(count: int, seed: int) -> list[tuple[float, list[Pair]]]:
    """Return labels and (field, key, value) of rows; a field has up to three keys."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        pairs = [
            (field, int(key), int(random.integers(1, 16)) / 8)
            for field in range(FIELDS)
            for key in np.unique(random.integers(0, 6, random.integers(0, 4)))
        ]
        rows.append((float(random.random() < 0.3), pairs))
    return rows


class Reference:
    """Weights in float64: by (field, key) a weight and a factor of RANK numbers per field."""

    def __init__(self, model: sanderling.Model, normalizes: bool) -> None:
        self.normalizes = normalizes
        self.bias = float(model.table("(bias)").rows()[0, 0])
        self.rows: dict[tuple[int, int], Floats] = {}
        for field in range(FIELDS):
            table = model.table(f"field_{field}")
            for key, row in zip(table.keys(), table.rows(), strict=True):
                self.rows[field, int(key)] = row.astype(np.float64)

    def values(self, pairs: list[Pair]) -> list[tuple[int, Floats, float, int]]:
        """Return field, row, value and key of each pair."""
        norm = np.sqrt(sum(x * x for *_, x in pairs)) if self.normalizes and pairs else 1.0
        return [(field, self.rows[field, key], x / norm, key) for field, key, x in pairs]

    def logit(self, pairs: list[Pair]) -> float:
        found = self.values(pairs)
        logit = self.bias + sum(row[0] * x for _, row, x, _ in found)
        for at, (field, row, x, _) in enumerate(found):
            for other_field, other, y, _ in found[:at]:
                logit += factor(row, other_field) @ factor(other, field) * x * y
        return float(logit)

    def step(self, batch: list[tuple[float, list[Pair]]]) -> list[float]:
        """Make one step of gradient descent on the mean loss; return the losses before it."""
        gradients: dict[tuple[int, int], Floats] = {}
        bias, losses = 0.0, []
        for label, pairs in batch:
            logit = self.logit(pairs)
            losses.append(float(np.logaddexp(0.0, logit if label == 0 else -logit)))
            error = (1.0 / (1.0 + np.exp(-logit)) - label) / len(batch)
            bias += error
            found = self.values(pairs)
            for at, (field, row, x, key) in enumerate(found):
                gradient = gradients.setdefault((field, key), np.zeros_like(row))
                gradient[0] += error * x
                for other_at, (other_field, other, y, _) in enumerate(found):
                    if other_at != at:
                        factor(gradient, other_field)[:] += error * x * y * factor(other, field)
        self.bias -= LR * bias
        for place, gradient in gradients.items():
            self.rows[place] = self.rows[place] - LR * gradient
        return losses


def factor(row: Floats, field: int) -> Floats:
    """Return the factor for a field, a view."""
    return row[1 + field * RANK : 1 + (field + 1) * RANK]


@pytest.mark.parametrize("normalizes", [True, False])
def test_several_steps_are_those_of_numpy(normalizes: bool, tmp_path: Path) -> None:
    rows = rows_of(200, 5)
    lines = [f"{label:.0f}" + "".join(f" {f}:{k}:{x}" for f, k, x in pairs) for label, pairs in rows]
    (tmp_path / "rows.ffm").write_text("\n".join([*lines, ""]))
    config: dict[str, Any] = {
        "data": {"train": tmp_path / "rows.ffm"},
        "model": {"type": "ffm", "rank": RANK, "init_std": 0.3, "normalize": normalizes},
        "optimizer": {"type": "sgd", "lr": LR},
        "train": {"batch_size": BATCH, "shuffle_rows": 0},
        "feature": [{"each": [f"field_{field}" for field in range(FIELDS)], "type": "sparse"}],
    }
    first = sanderling.train(config, name="first", runs_dir=tmp_path)
    reference = Reference(first.load(), normalizes)
    second = sanderling.train(config, name="second", runs_dir=tmp_path, from_model=first.model_dir)
    losses = [loss for start in range(0, len(rows), BATCH) for loss in reference.step(rows[start : start + BATCH])]
    trained = Reference(second.load(), normalizes)
    assert set(trained.rows) == set(reference.rows)
    for place, row in reference.rows.items():
        np.testing.assert_allclose(trained.rows[place], row, atol=1e-5)
    assert trained.bias == pytest.approx(reference.bias, abs=1e-5)
    assert second.logloss == pytest.approx(np.mean(losses), abs=1e-6)
    # A row by itself, and rows of a file.
    model = second.load()
    expected = [1.0 / (1.0 + np.exp(-reference.logit(pairs))) for _, pairs in rows]
    np.testing.assert_allclose(model.predict(tmp_path / "rows.ffm"), expected, atol=1e-5)
    assert json.loads((tmp_path / "second/summary.json").read_text())["importance"]["rows"] == len(rows)


def test_a_row_by_itself_and_rows_in_memory(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    columns = {name: random.integers(0, 9, 500).astype(str) for name in ("user", "item", "place")}
    label = (np.char.add(columns["user"], columns["item"]).astype(int) % 3 == 0).astype(np.int64)
    config: dict[str, Any] = {
        "data": {"train": {"label": label, **columns}},
        "model": {"type": "ffm", "rank": 4, "init_std": 0.1},
        "optimizer": {"type": "adagrad", "lr": 0.2},
        "train": {"batch_size": 8, "passes": 3},
        "feature": [{"each": list(columns)}],
    }
    config["data"]["valid"] = config["data"]["train"]
    found = sanderling.train(config, name="memory", runs_dir=tmp_path)
    model = found.load()
    assert model.description == "field-aware factorization machine, rank 4"
    assert found.auc > 0.8
    together = model.predict(columns)
    alone = [model.predict({name: str(column[row]) for name, column in columns.items()}) for row in range(20)]
    np.testing.assert_allclose(together[:20], alone, atol=1e-7)
    assert model.table("user").dim == 1 + 3 * 4
