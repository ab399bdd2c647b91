"""What a deep run and its predictions tell of keys that no model knows, and of the value that made a run diverge."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
import sanderling.torch


def write(path: Path, rows: int, change: Callable[[int, list[str]], list[str]] = lambda _, cells: cells) -> Path:
    """Write rows of a label, two ids, a number and a weight; `change` changes the cells of a row."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 4, (2, rows))
    cells = [[str((i + j) % 2), f"u{i}", f"v{j}", "0.5", "1"] for i, j in zip(a, b, strict=True)]
    lines = [",".join(change(number, row)) for number, row in enumerate(cells)]
    path.write_text("\n".join(["label,a,b,x,w", *lines]) + "\n")
    return path


def config(train: Path, **change: Any) -> dict[str, Any]:
    return {
        "name": "run",
        "data": {"train": str(train)},
        "weight": {"column": "w"},
        "model": {"type": "deepfm", "dim": 4, "hidden": [8]},
        "train": {"batch_size": 64},
        "feature": [{"name": "a"}, {"name": "b"}, {"name": "x", "type": "numeric"}],
        **change,
    }


def test_keys_that_no_model_knows_are_named(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", 300)
    sanderling.torch.train(config(train), runs_dir=tmp_path)
    model = tmp_path / "run" / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sanderling.torch.predict(model, train)
    # The ids of one column as another program wrote them.
    changed = write(tmp_path / "changed.csv", 200, lambda _, cells: [*cells[:2], f"id-{cells[2]}", *cells[3:]])
    with pytest.warns(UserWarning, match='^0 of 200 ids of "b" are known to the model') as told:
        scores = sanderling.torch.predict(model, changed)
    assert len(told) == 1
    assert len(scores) == 200
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (3, "1e14", 'feature "x" has the value 1.0e\\+14: set its type to "log"'),
        (4, "1e12", "a row has the weight 1.0e\\+12: bound the weights"),
    ],
)
def test_a_run_that_diverges_names_the_likely_cause(tmp_path: Path, column: int, value: str, message: str) -> None:
    train = write(
        tmp_path / "train.csv",
        1000,
        lambda number, cells: [value if at == column and number % 5 == 0 else cell for at, cell in enumerate(cells)],
    )
    sgd = {"type": "sgd", "lr": 10.0}
    with pytest.raises((sanderling.DivergedError, sanderling.GradientError), match=message):
        sanderling.torch.train(config(train, optimizer=sgd, dense_optimizer=sgd), runs_dir=tmp_path)


def test_a_name_that_nobody_gave_keeps_a_run_of_the_other_kind(tmp_path: Path) -> None:
    deep = config(write(tmp_path / "train.csv", 300))
    built_in = {**deep, "model": {"type": "lr"}}
    names = [
        sanderling.torch.train(deep, runs_dir=tmp_path).summary["name"],
        sanderling.train(built_in, runs_dir=tmp_path).summary["name"],
        sanderling.torch.train({**deep, "seed": 2}, runs_dir=tmp_path).summary["name"],
        sanderling.train(built_in, runs_dir=tmp_path).summary["name"],
    ]
    assert names == ["run", "run-2", "run-3", "run-2"]
