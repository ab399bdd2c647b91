"""Deep runs that begin with a saved model: everything is carried, and what does not fit is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sanderling
import sanderling.torch
from sanderling.torch import checkpoint, command


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two days of rows of the same law."""
    rng = np.random.default_rng(1)
    lines = [
        f"{(a + b) % 2},a{a},b{b},{a}c,{x:.3f}\n"
        for a, b, x in zip(*rng.integers(0, 4, (2, 1280)), rng.normal(size=1280), strict=True)
    ]
    for name, part in (("day1", lines[:640]), ("day2", lines[640:]), ("both", lines)):
        (tmp_path / f"{name}.csv").write_text("label,a,b,c,x\n" + "".join(part))
    return tmp_path


def config(data: Path, day: str, **more: Any) -> dict[str, Any]:
    return {
        "name": day,
        "seed": 1,
        "data": {"train": str(data / f"{day}.csv")},
        "model": {"type": "deepfm", "dim": 4, "init_std": 0.1, "hidden": [8]},
        "optimizer": {"type": "adam", "lr": 0.02},
        "dense_optimizer": {"lr": 0.01},
        "train": {"batch_size": 64, "threads": 1, "depth": 1, "shuffle_rows": 0},
        "feature": [{"name": "a"}, {"name": "b"}, {"name": "x", "type": "numeric"}],
        **more,
    }


def run(data: Path, day: str, **more: Any) -> sanderling.torch.trainer.DeepResult:
    given = {name: more.pop(name) for name in ("ps", "from_model", "on_line") if name in more}
    return sanderling.torch.train(config(data, day, **more), runs_dir=data / "runs", **given)


@pytest.mark.parametrize("remote", [False, True])
def test_what_a_day_does_not_touch_is_carried_bit_for_bit(data: Path, remote: bool, two_servers: str) -> None:
    ps = {"ps": two_servers} if remote else {}
    # Other values than on the first day, and a dense part that does not learn.
    header, *rows = (data / "day2.csv").read_text().splitlines()
    rows = [row.replace(",a", ",new_a").replace(",b", ",new_b") for row in rows]
    (data / "day2.csv").write_text("\n".join([header, *rows]) + "\n")
    run(data, "day1", **ps)
    run(data, "day2", from_model=data / "runs/day1/model", dense_optimizer={"lr": 0.0}, **ps)
    before, after = (sanderling.torch.open_model(data / "runs" / day / "model")[0] for day in ("day1", "day2"))
    for (name, one), two in zip(before.state_dict().items(), after.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, msg=name)
    for name, table in before.emb.tables.items():
        keys, now = table.keys(), after.emb.tables[name]
        assert (len(table), len(now)) == (4, 8)
        np.testing.assert_array_equal(now.pull(keys), table.pull(keys))
        frequency = dict(zip(now.keys().tolist(), now.frequency().tolist(), strict=True))
        assert [frequency[key] for key in keys.tolist()] == table.frequency().tolist()


def test_two_days_are_one_run_over_both(data: Path) -> None:
    whole = run(data, "both")
    run(data, "day1")
    second = run(data, "day2", from_model=data / "runs/day1/model")
    assert second.summary["steps"] == 10
    for (name, one), other in zip(whole.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        # A queue may look a row up before the last push to it.
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.01, msg=name)
    models = [sanderling.torch.open_model(data / "runs" / name / "model")[0] for name in ("both", "day2")]
    tables = [model.emb.tables["a"] for model in models]
    keys = np.sort(tables[0].keys())
    np.testing.assert_array_equal(keys, np.sort(tables[1].keys()))
    np.testing.assert_allclose(tables[0].pull(keys), tables[1].pull(keys), rtol=0.05, atol=0.01)
    assert tables[1].frequency().sum() == tables[0].frequency().sum()
    states = [torch.load(next((data / "runs" / name / "model").glob("dense-*.pt"))) for name in ("both", "day2")]
    steps = [{int(entry["step"]) for entry in state["optimizer"]["state"].values()} for state in states]
    assert steps == [{20}, {20}]


def test_the_first_line_is_of_the_earlier_model(data: Path) -> None:
    run(data, "day1", train={"batch_size": 64, "passes": 6})
    seen: list[dict[str, Any]] = []
    fine = {"batch_size": 64, "print_every_steps": 1}
    run(data, "day2", from_model=data / "runs/day1/model", train=fine, on_line=seen.append)
    assert seen[0]["auc"] > 0.95
    seen.clear()
    run(data, "day2", train=fine, on_line=seen.append)
    assert seen[0]["auc"] < 0.8


def test_a_new_feature_may_come(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(data, "day1", train={"batch_size": 64, "passes": 4})
    more = [*config(data, "day2")["feature"], {"name": "c"}]
    second = sanderling.torch.train(
        config(data, "day2", feature=more), runs_dir=data / "runs", from_model=data / "runs/day1/model", quiet=False
    )
    said = capsys.readouterr().err
    assert "new tables: c" in said
    assert "model.deep.0.weight of the dense part begin anew" in said
    old, new = first.model.emb.tables["a"], second.model.emb.tables["a"]
    assert set(old.keys().tolist()) <= set(new.keys().tolist())
    assert new.frequency().sum() == old.frequency().sum() + 640
    assert len(second.model.emb.tables["c"]) == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": {"type": "deepfm", "dim": 8, "hidden": [8]}}, "model.dim is 4 there and 8"),
        ({"model": {"type": "dnn", "dim": 4, "hidden": [8]}}, "model.type is 'deepfm' there"),
        ({"feature": [{"name": "a"}, {"name": "b", "table": "a"}]}, "feature 'b' has table"),
    ],
)
def test_what_has_changed_is_named(data: Path, more: dict[str, Any], words: str) -> None:
    run(data, "day1", train={"batch_size": 64, "max_steps": 1})
    with pytest.raises(sanderling.ModelError, match=words):
        run(data, "day2", from_model=data / "runs/day1/model", **more)


def test_a_table_of_another_optimizer_is_refused(data: Path) -> None:
    run(data, "day1", train={"batch_size": 64, "max_steps": 1})
    with pytest.raises(sanderling.ConfigError, match="was made with optimizer"):
        run(data, "day2", from_model=data / "runs/day1/model", optimizer={"type": "sgd"})


def test_fitted_boundaries_are_those_of_the_saved_model(data: Path) -> None:
    fitted = [{"name": "a"}, {"name": "b"}, {"name": "x", "type": "quantile", "buckets": 4}]
    run(data, "day1", feature=fitted)
    run(data, "day2", feature=fitted, from_model=data / "runs/day1/model")
    specs = [checkpoint.read_extra(data / "runs" / name / "model")["spec"] for name in ("day1", "day2")]
    assert specs[0]["feature"] == specs[1]["feature"]
    assert specs[0]["feature"][2]["boundaries"]


def test_the_command_has_it(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(data)
    (data / "c.toml").write_text(
        '[data]\ntrain = "day1.csv"\n[model]\ntype = "dnn"\ndim = 2\nhidden = [4]\n[train]\nmax_steps = 2\n'
        'batch_size = 64\n[[feature]]\nname = "a"\n'
    )
    assert command.main(["c.toml", "-q", "--name", "one"]) == 0
    assert command.main(["c.toml", "-q", "--name", "two", "--from", "runs/one/model", "--train", "day2.csv"]) == 0
    assert command.main(["c.toml", "-q", "--name", "three", "--from", "nowhere"]) == 4
    assert "nowhere: no checkpoint" in capsys.readouterr().err
