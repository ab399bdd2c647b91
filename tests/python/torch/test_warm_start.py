"""A deep run that begins from a saved model goes on with its parameters, its rows and the state of its optimizers."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
import sanderling.torch
from sanderling.torch import command

ROWS = 2048


def _day(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, 40, ROWS), rng.integers(0, 30, ROWS)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(-np.sin(users * 3.0 + items)))
    lines = [f"{int(label)},{user},{item}" for label, user, item in zip(labels, users, items, strict=True)]
    path.write_text("label,user,item\n" + "\n".join(lines) + "\n")


def _config(name: str, train: str | list[str], **sections: Any) -> dict[str, Any]:
    return {
        "name": name,
        "data": {"train": train},
        "feature": [{"name": "user"}, {"name": "item"}],
        "model": {"type": "dnn", "dim": 4, "hidden": [8]},
        "train": {"batch_size": 64, "threads": 1, "depth": 1, "shuffle_rows": 0},
        **sections,
    }


@pytest.fixture(autouse=True)
def _days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in (1, 2):
        _day(Path(f"{day}.csv"), day)


def test_two_days_are_about_one_run_over_both() -> None:
    sanderling.torch.train(_config("both", ["1.csv", "2.csv"]))
    sanderling.torch.train(_config("one", "1.csv"))
    sanderling.torch.train(_config("two", "2.csv"), from_model="runs/one/model")
    sanderling.torch.train(_config("fresh", "2.csv"))
    scores = {
        name: np.asarray(sanderling.torch.predict(f"runs/{name}/model", "2.csv")) for name in ("both", "two", "fresh")
    }
    # A queue looks rows up ahead of the steps, so that the border of the days leaves a trace.
    assert np.abs(scores["two"] - scores["both"]).max() < 0.01
    assert np.abs(scores["fresh"] - scores["both"]).max() > 0.05


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"feature": [{"name": "user"}]}, "feature 'item' is missing"),
        ({"feature": [{"name": "user"}, {"name": "item", "key": "raw"}]}, "feature 'item' changed"),
        ({"model": {"type": "dnn", "dim": 8, "hidden": [8]}}, "model.dim is 8 now, and was 4"),
        ({"label": {"threshold": 0.5}}, "label.threshold is 0.5 now"),
    ],
)
def test_what_cannot_be_continued(sections: dict[str, Any], expected: str) -> None:
    sanderling.torch.train(_config("one", "1.csv"))
    with pytest.raises(sanderling.ModelError, match=expected):
        sanderling.torch.train(_config("two", "2.csv", **sections), from_model="runs/one/model")
    with pytest.raises(sanderling.ModelError, match="names the model of this run"):
        sanderling.torch.train(_config("one", "2.csv"), name="one", from_model="runs/one/model")
    with pytest.raises(sanderling.ConfigError, match="give one of them"):
        sanderling.torch.train(_config("one", "1.csv"), resume=True, from_model="runs/one/model")


def test_entries_and_tables_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text(
        'data = { train = "1.csv" }\nmodel = { type = "dnn", hidden = [8] }\n[[feature]]\nname = "user"\n'
        '[[feature]]\nname = "item"\nmin_count = 3\n[table.user]\nadmission = { after = 4 }\ndtype = "f16"\n'
    )
    options = ["--json", "--quiet"]
    assert (
        command.main(["c.toml", *options, "--name", "one", "--set", "model.dim=4", "--set", "train.batch_size=64"]) == 0
    )
    tables = {
        name: sanderling.Table.load(next(Path("runs/one/model").glob("rows-*")), name) for name in ("user", "item")
    }
    assert (tables["user"].dim, tables["user"].config["dtype"]) == (4, "f16")
    assert tables["user"].config["admission"]["sightings"] == 4
    assert tables["item"].config["admission"]["sightings"] == 3
    more = ["--set", "model.dim=4", "--set", "train.batch_size=64", "--train", "2.csv", "--from", "runs/one/model"]
    assert command.main(["c.toml", *options, "--name", "two", *more]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == ROWS
    for entry, expected in [
        ("model.dmi=4", "model.dmi is unknown"),
        ("model", "is not ENTRY=VALUE"),
        ("table.usr.dtype=f16", "table.usr: no feature has this table"),
        ("table.user.dtyp=f16", "table.user.dtyp is unknown"),
        ("data.valid={ by = 'random' }", "rows are held out for lr and fm alone"),
    ]:
        assert command.main(["c.toml", *options, "--set", entry]) == 2
        assert expected in capsys.readouterr().err, entry


def test_a_deep_type_that_is_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from sanderling.__main__ import _is_deep

    for arguments, expected in [
        (["c.toml", "--set", "model.type=deepfm"], True),
        (["c.toml", '--set=model.type="dcn"'], True),
        (["c.toml", "--set", "model.type=lr"], False),
        (["c.toml", "--set", "model.rank=3"], False),
    ]:
        monkeypatch.setattr(sys, "argv", ["sanderling", "train", *arguments])
        assert _is_deep(arguments) == expected
