"""Deep runs have held-out rows, test sets and names of keys as built-in runs have, here and with servers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from native_commands import last_json, run
from trainers import Forks, Trainers

import sanderling
import sanderling.torch
from sanderling.torch import checkpoint, command, deep_config

ROWS = 3000
USERS = 60
CONFIG = """
name = "clicks"
[data]
train = "rows.csv"
valid = { fraction = 0.25, by = "hash", column = "user" }
[data.test]
late = "late.csv"
both = ["late.csv", "rows.csv"]
[names]
features = ["item", "tags"]
[model]
type = "MODEL"
dim = 4
[train]
batch_size = 64
passes = 2
depth = 1
threads = 1
[[feature]]
name = "item"
[[feature]]
name = "tags"
type = "multi"
separator = "|"
table = "words"
[[feature]]
name = "x"
type = "numeric"
"""
# Of which the options are those of the test.
BUILT_IN = CONFIG.replace("dim = 4", "rank = 4").replace("depth = 1\n", "").replace("MODEL", "fm")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(3)
    for name, rows in (("rows", ROWS), ("late", 700)):
        user, item = rng.integers(0, USERS, rows), rng.integers(0, 8, rows)
        frame = pd.DataFrame(
            {
                "label": (item + (user % 2)) % 2,
                "user": user,
                "item": [f"größe {number}" for number in item],
                "tags": [f"a{number % 3}|b{number % 2}" for number in item],
                "x": rng.normal(size=rows).round(3),
                "at": np.arange(rows) + 1_000_000,
            }
        )
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    monkeypatch.chdir(tmp_path)
    write("deepfm")
    Path("built_in.toml").write_text(BUILT_IN)
    return tmp_path


def write(model: str, change: Callable[[str], str] = str) -> None:
    Path("clicks.toml").write_text(change(CONFIG.replace("MODEL", model)))


def held_out_users() -> set[int]:
    """The users that the built-in rule holds out, by a queue of its own."""
    source = sanderling.FileSource(
        "rows.csv",
        {"feature": [{"name": "user", "key": "raw"}]},
        holdout=sanderling.Holdout("hash", "user", fraction=0.25),
        held_out=True,
    )
    return {int(key) for batch in sanderling.FeedQueue(source) for key in batch.keys("user")}


@pytest.mark.parametrize(
    ("model", "where"), [("dnn", "here"), ("dcnv2", "here"), ("dnn", "servers"), ("deepfm", "servers alone")]
)
def test_the_whole_life_of_a_model(
    model: str, where: str, place: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    ps = [] if where == "here" else ["--ps", request.getfixturevalue("two_servers")]
    stays = "\ndownload = false" if "alone" in where else ""
    write(model, lambda text: text.replace("threads = 1", f"threads = 1{stays}"))
    assert command.main(["clicks.toml", "--json", *ps]) == 0
    told = capfd.readouterr()
    summary = json.loads(told.out.splitlines()[-1])
    frame = pd.read_csv("rows.csv")
    # Rows of some users are held out, and learned from in no pass.
    is_held_out = frame["user"].isin(held_out_users())
    assert 0 < is_held_out.sum() < ROWS
    assert summary["measured_examples"] == is_held_out.sum()
    assert summary["examples"] == 2 * (~is_held_out).sum()
    assert summary["measured_on"] == "valid"
    # The metrics of a test set are those of predictions of the saved model.
    assert [test["name"] for test in summary["tests"]] == ["both", "late"]
    tests = {test["name"]: test for test in summary["tests"]}
    connection = sanderling.connect(ps[1]) if "alone" in where else None
    if summary["best_pass"] == summary["passes"] or connection is None:
        for name, files in (("late", ["late.csv"]), ("both", ["late.csv", "rows.csv"])):
            predicted = sanderling.torch.predict("runs/clicks/model", files, ps=connection)
            labels = np.concatenate([pd.read_csv(file)["label"].to_numpy(np.float32) for file in files])
            expected = sanderling.metrics(labels, predicted)
            assert tests[name]["examples"] == len(labels)
            # Batches of another size round otherwise, which swaps rows of nearly equal scores: 8e-6 for each pair.
            assert tests[name]["auc"] == pytest.approx(expected["auc"], abs=1e-4)
            assert tests[name]["logloss"] == pytest.approx(expected["logloss"], abs=1e-5)
    assert tests["both"]["data"] == "late.csv, rows.csv"
    lines = [json.loads(line) for line in Path("runs/clicks/metrics.jsonl").read_text().splitlines()]
    said = [line for line in lines if line["kind"] == "test"]
    assert {line["name"]: line["auc"] for line in said} == {name: test["auc"] for name, test in tests.items()}
    assert all((line["measured_on"], line["pass"]) == ("test", summary["best_pass"]) for line in said)
    assert "test set late: auc " in told.err
    report = Path("runs/clicks/report.html").read_text()
    assert "Test sets" in report
    assert "25 % of rows.csv, held out by hash of user" in report
    assert ("größe " in report) == (where == "here")
    keys(place, capfd, has_rows="alone" not in where)


def keys(place: Path, capfd: pytest.CaptureFixture[str], *, has_rows: bool) -> None:
    """The commands that read keys: values, names and rows of the saved model."""
    wanted = int(sanderling.key("item", "größe 3"))
    code, out, err = run(capfd, "key", "runs/clicks/model", "item", "größe 3")
    assert (code, out) == (0, f"größe 3\t{wanted}\n"), err
    assert run(capfd, "key", "clicks.toml", "item", "größe 3")[1] == out
    names = [f"größe {number}" for number in range(8)]
    Path("keys.txt").write_text("".join(f"{sanderling.key('item', name)}\n" for name in names))
    code, out, err = run(capfd, "key", "runs/clicks/model", "item", "--invert", "keys.txt")
    assert code == 0, err
    assert [line.split("\t")[1] for line in out.splitlines()] == names
    if not has_rows:
        code, _, err = run(capfd, "export", "runs/clicks/model", "--table", "item", "-o", "-")
        assert code == 4
        assert "its rows are on parameter servers; copy them here: sanderling download" in err
        return
    # By feature, whose table has another name.
    for table, texts in (("item", set(names)), ("tags", {"a0", "a1", "a2", "b0", "b1"})):
        output = place / f"{table}.parquet"
        found = last_json(capfd, "export", "runs/clicks/model", "--table", table, "-o", str(output), "-q", "--force")
        assert found["named"] == found["rows"] == len(texts)
        assert set(pd.read_parquet(output)["name"]) == texts
    near = last_json(capfd, "similar", "runs/clicks/model", "item", "größe 3", "--top", "3")
    assert (near["key"], near["name"]) == (wanted, "größe 3")
    assert all(neighbour["name"] in names for neighbour in near["neighbours"])
    seen = last_json(capfd, "inspect", "runs/clicks/model")
    assert {key["name"] for table in seen["tables"] for key in table["most_frequent"]} <= {
        *names,
        "a0",
        "a1",
        "a2",
        "b0",
        "b1",
    }


def test_deep_and_built_in_runs_hold_out_the_same_rows(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    del place
    for valid in (
        '{ fraction = 0.25, by = "hash", column = "user" }',
        '{ fraction = 0.1, by = "time", column = "at" }',
        '{ fraction = 0.1, by = "time" }',
        '{ by = "time", column = "at", after = 1002500.0 }',
        '{ fraction = 0.3, by = "random" }',
    ):
        options = ["--set", f"data.valid={valid}", "--name", "same", "--quiet", "--json", "--passes", "1"]
        for file in ("clicks.toml", "built_in.toml"):
            text = re.sub(r"(?m)^valid = .*\n", "", Path(file).read_text())
            Path(file).write_text(text)
        assert command.main(["clicks.toml", *options]) == 0
        deep = json.loads(capfd.readouterr().out.splitlines()[-1])
        built_in = last_json(capfd, "train", "built_in.toml", *options[:-3], "--passes", "1", "--runs-dir", "built_in")
        for name in ("examples", "measured_examples", "real_mean", "measured_on", "valid_bad_rows"):
            assert (
                deep[name] == pytest.approx(built_in[name]) if name == "real_mean" else deep[name] == built_in[name]
            ), valid
        assert deep["tests"][0].keys() == built_in["tests"][0].keys()
        described = [
            re.search(r"[^<>]*held out by[^<>]*", Path(f"{runs}/same/report.html").read_text())
            for runs in ("runs", "built_in")
        ]
        assert described[0] is not None
        assert described[1] is not None
        assert described[0][0] == described[1][0]


def test_a_resumed_run_keeps_its_split_and_its_names(place: Path) -> None:
    del place
    write("dnn", lambda text: text.replace('by = "hash", column = "user"', 'by = "time", column = "at"'))
    whole = sanderling.torch.train("clicks.toml", name="whole").summary
    cut = sanderling.torch.train("clicks.toml", name="cut")
    assert cut.summary["tests"]
    config = deep_config.read_toml(Path("clicks.toml"))
    stopped = sanderling.torch.train({**config, "train": {**config["train"], "max_steps": 20}}, name="cut").summary
    assert (stopped["stopped"], stopped["tests"]) == (True, [])
    resumed = sanderling.torch.train("clicks.toml", name="cut", resume=True).summary
    for name in ("examples", "measured_examples", "real_mean"):
        assert resumed[name] == whole[name]
    assert [test["name"] for test in resumed["tests"]] == [test["name"] for test in whole["tests"]]
    names = checkpoint.read_names(Path("runs/cut/model"))
    assert names == checkpoint.read_names(Path("runs/whole/model"))
    again = sanderling.torch.train("clicks.toml", name="cut", resume=True).summary
    assert again["tests"] == resumed["tests"]
    lines = [json.loads(line) for line in Path("runs/cut/metrics.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines if line["kind"] == "test"] == [test["name"] for test in resumed["tests"]]
    # What it is measured on must stay.
    with pytest.raises(sanderling.ModelError, match=r"cannot resume: data\.valid changed"):
        sanderling.torch.train({**config, "data": {**config["data"], "valid": "late.csv"}}, name="cut", resume=True)


def test_trainers_share_held_out_rows_and_names(place: Path, forks: Forks, one_server: str) -> None:
    write("dnn")
    trainers = Trainers(forks, place, 2, "--json", "--ps", one_server)
    shared = json.loads(trainers.run("--name", "two").splitlines()[-1])
    alone = sanderling.torch.train("clicks.toml", name="one").summary
    for name in ("examples", "measured_examples"):
        assert shared[name] == alone[name]
    assert [test["name"] for test in shared["tests"]] == [test["name"] for test in alone["tests"]]
    names = [checkpoint.read_names(Path(f"runs/{name}/model")) for name in ("one", "two")]
    assert names[0] == names[1]


def test_users_and_items_have_held_out_pairs_and_test_sets(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    del place
    config = {
        "name": "pairs",
        "data": {"train": "rows.csv", "valid": {"by": "random", "fraction": 0.2}, "test": "late.csv"},
        "label": {"column": "none"},
        "feature": [{"name": "user"}, {"name": "item"}],
        "model": {"type": "mf", "dim": 4},
        "names": {"features": ["item"]},
        "train": {"passes": 1, "batch_size": 256},
    }
    summary = sanderling.torch.train(config).summary
    assert summary["tests"][0]["name"] == "test"
    assert "ndcg@20" in summary["tests"][0]
    assert summary["tests"][0]["ndcg@20"] == pytest.approx(
        sanderling.torch.FileScores("runs/pairs/model").ranking("late.csv")["ndcg@20"]
    )
    pd.read_csv("late.csv").assign(item="new").to_csv("new.csv", index=False)
    found = last_json(capfd, "eval", "runs/pairs/model", "new.csv", "-q")
    assert next(entry for entry in found["known"] if entry["feature"] == "item")["known"] == 0
    assert '0 of 700 ids of "item" are known to the model' in found["warnings"][0]
    code, out, err = run(capfd, "eval", "runs/pairs/model", "new.csv", "-q")
    assert code == 0
    assert re.search(r"known keys +700 of 1,400; least of item 0.0 %", out), out
    assert '0 of 700 ids of "item"' in err


def test_numbers_are_predicted_with_held_out_rows(place: Path) -> None:
    del place
    config = deep_config.DeepConfig.read(Path("clicks.toml")).to_dict()
    changed = {**config, "name": "numbers", "label": {"column": "at"}, "names": {}}
    changed["train"] = {**config["train"], "loss": "mse", "monitor": "rmse"}
    changed["data"] = {**config["data"], "valid": {"by": "hash", "column": "user", "fraction": 0.25}}
    summary = sanderling.torch.train(changed).summary
    assert summary["measured_examples"] == pd.read_csv("rows.csv")["user"].isin(held_out_users()).sum()
    assert {test["name"]: test["examples"] for test in summary["tests"]} == {"late": 700, "both": 700 + ROWS}
    assert all(test["rmse"] > 0.0 and test["auc"] is None for test in summary["tests"])


def test_predictions_of_a_frame(place: Path) -> None:
    del place
    write("dnn")
    sanderling.torch.train("clicks.toml", name="frames")
    expected = sanderling.torch.predict("runs/frames/model", "late.csv")
    frame = pd.read_csv("late.csv")
    for rows in (frame, frame.to_dict("list"), [frame[:300], frame[300:]]):
        np.testing.assert_array_equal(sanderling.torch.predict("runs/frames/model", rows), expected)
    with pytest.raises(sanderling.BadFileError, match='has no column "item"'):
        sanderling.torch.predict("runs/frames/model", frame.drop(columns="item"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"data": {"valid": {"by": "hash"}}}, 'by = "hash" needs a column'),
        ({"data": {"valid": {"fraction": 0.1}}}, "data.valid: by is missing"),
        (
            {"data": {"valid": {"by": "time", "share": 0.1}}},
            "data.valid.share is unknown; the entries are fraction, by",
        ),
        ({"data": {"valid": {"by": "random", "fraction": 1e-9}}}, "is held out; raise fraction"),
        ({"data": {"test": {"a": []}}}, "data.test: the set 'a' needs a name and a file"),
        ({"data": {"test": 3}}, "data.test: 3 is neither a path nor a list of paths"),
        ({"names": {"features": ["z"]}}, 'names.features: no feature "z"'),
        ({"names": {"features": ["x"]}}, 'names.features: keys of "x" are no hashes of texts'),
        ({"names": {"features": ["item"], "max": 3}}, "names: max: unknown field `max`"),
        ({"names": 3}, r"names = 3: must be a section, \[names\]"),
        ({"data": {"train": "hub://a:1"}}, "data.valid: rows are held out of files, and hubs serve encoded rows"),
    ],
)
def test_entries_that_do_not_fit(change: dict[str, Any], expected: str, place: Path) -> None:
    del place
    config = deep_config.read_toml(Path("clicks.toml"))
    changed = {**config, **change}
    changed["data"] = {**config["data"], **change.get("data", {})}
    with pytest.raises(sanderling.ConfigError, match=expected):
        sanderling.torch.train(changed)
    assert not Path("runs/clicks/model").exists()


def test_names_beyond_the_limit_are_left_out(place: Path) -> None:
    del place
    write("dnn", lambda text: text.replace("[names]\n", '[names]\nmax_bytes = "200B"\n'))
    summary = sanderling.torch.train("clicks.toml", name="few").summary
    assert summary["warnings"][-1] == "some keys have no names: all are more than names.max_bytes (200B)"
