"""The ready trainer: it learns, says what the built-in one says, can be watched, stopped and resumed."""

import fcntl
import gzip
import json
import os
import runpy
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import await_server

import sanderling
import sanderling.torch
from sanderling.__main__ import _is_deep
from sanderling.torch import checkpoint, command
from sanderling.torch.event_file import EventFile
from sanderling.torch.run_log import Scores, metrics_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rows whose label is in no column alone, but in a pair; a number that says a little, and a history."""
    rng = np.random.default_rng(1)
    for name, rows in (("train", 1500), ("valid", 400)):
        a, b = rng.integers(0, 4, (2, rows))
        label = (a + b) % 2
        noise = rng.normal(size=rows).round(3)
        history = ["|".join(map(str, rng.integers(0, 4, rng.integers(0, 4)))) for _ in range(rows)]
        lines = [
            f"{y},{i},{j},{x},{h}\n" for y, i, j, x, h in zip(label, a, b, noise + label / 2, history, strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("label,a,b,x,seen\n" + "".join(lines))
    return tmp_path


def config(data: Path, model: str, **train: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {"type": model, "dim": 4, "init_std": 0.1, "hidden": [16]}
    if model == "din":
        sizes.update(candidate="a", history="seen", history_length=2)
    return {
        "name": "run",
        "seed": 1,
        "data": {"train": str(data / "train.csv"), "valid": str(data / "valid.csv")},
        "model": sizes,
        "optimizer": {"type": "adam", "lr": 0.02},
        "dense_optimizer": {"lr": 0.02},
        # One minibatch ahead: how old rows are is not a matter of time then.
        "train": {"batch_size": 64, "passes": 6, "print_every_steps": 8, "depth": 1, **train},
        "feature": [
            {"name": "a", "table": "item"},
            {"name": "b"},
            {"name": "x", "type": "numeric"},
            {"name": "seen", "type": "multi", "separator": "|", "table": "item"},
        ],
    }


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("model", ["dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm", "din"])
def test_every_model_learns_what_is_in_pairs(model: str, device: str, data: Path, tmp_path: Path) -> None:
    result = sanderling.torch.train(config(data, model), runs_dir=tmp_path / "runs", device=device)
    assert result.summary["auc"] > 0.95
    assert result.summary["rows"] > 0
    # Where it was trained does not matter to who scores with it.
    probabilities = sanderling.torch.predict(result.run_dir / "model", data / "valid.csv")
    there = sanderling.torch.predict(result.run_dir / "model", data / "valid.csv", device=device)
    np.testing.assert_allclose(probabilities, there, atol=1e-4)
    labels = np.loadtxt(data / "valid.csv", delimiter=",", skiprows=1, usecols=0, dtype=np.float32)
    # AUC knows only the order.
    assert sanderling.metrics(labels, probabilities)["auc"] == pytest.approx(result.summary["auc"], abs=1e-3)


@pytest.mark.parametrize("number", ["numeric", "log"])
def test_a_missing_number_is_zero(number: str, data: Path, tmp_path: Path) -> None:
    deep = config(data, "dnn", passes=1)
    deep["feature"][2] = {"name": "x", "type": number, "table": "numbers"}
    model = sanderling.torch.train(deep, runs_dir=tmp_path / "runs").run_dir / "model"
    scores = []
    # As a text 1 and as one that is its own logarithm, where a missing one would be taken for a one.
    for text in ("", "0", "1", str(np.expm1(1.0))):
        (tmp_path / "one.csv").write_text(f"label,a,b,x,seen\n1,0,1,{text},\n0,2,1,5,1\n")
        scores.append(sanderling.torch.predict(model, tmp_path / "one.csv")[0])
    assert scores[0] == scores[1]
    assert scores[0] not in scores[2:]


def test_its_lines_are_those_of_the_built_in_learners(data: Path, tmp_path: Path) -> None:
    # A pass is 24 steps, so that its last line is of three.
    deep = config(data, "deepfm", passes=2, print_every_steps=7)
    seen: list[dict[str, Any]] = []
    result = sanderling.torch.train(deep, runs_dir=tmp_path / "deep", on_line=seen.append)
    built_in = {key: deep[key] for key in ("name", "data", "feature")}
    built_in["train"] = {"batch_size": 64, "passes": 2, "print_every_steps": 7}
    native = sanderling.train(built_in, runs_dir=tmp_path / "native")
    ours, theirs = lines(result.run_dir), lines(tmp_path / "native" / "run")
    with pytest.raises(sanderling.ModelError, match=r"model: holds no deep model, but .* built-in learner"):
        sanderling.torch.train(deep, name="run", runs_dir=tmp_path / "native")
    with pytest.raises(sanderling.ModelError, match="model: is a deep model, of an earlier run of this name"):
        sanderling.train(built_in, name="run", runs_dir=tmp_path / "deep")
    assert seen == ours
    assert [(line["kind"], line["pass"], line["step"]) for line in ours] == [
        (line["kind"], line["pass"], line["step"]) for line in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        assert one["examples"] == other["examples"]
        assert {type(value) for value in one.values()} == {type(value) for value in other.values()}
    assert set(result.summary) - {"wait_share"} <= set(native.summary)
    assert json.loads((result.run_dir / "summary.json").read_text()) == result.summary
    report = (result.run_dir / "report.html").read_text()
    rows = len((data / "valid.csv").read_text().splitlines()) - 1
    for shown in ("<h1>run</h1>", "deepfm in PyTorch", f"{result.summary['auc']:.4f}", f"valid.csv: {rows} examples"):
        assert shown in report, shown
    assert report.count("<svg") >= 5, "curves of AUC and logloss, ROC, calibration, tables"


def test_a_deep_configuration_is_known_by_what_it_says(tmp_path: Path) -> None:
    for name, text, expected in [
        ("deep.conf", '[model]\ntype = "dnn"\n', True),
        ("fm.toml", '[model]\ntype = "fm"\n', False),
        ("clicks.csv", "label,a\n1,2\n", False),
        ("large.toml", '[model]\ntype = "dnn"\n' + "#" * (1 << 20), False),
    ]:
        (tmp_path / name).write_text(text)
        assert _is_deep(["--quiet", str(tmp_path / name)]) == expected, name


def test_a_name_is_one_run_s_at_a_time(data: Path, tmp_path: Path) -> None:
    # The next pass has the next seed.
    settings = {**config(data, "dnn", passes=2), "seed": (1 << 64) - 1}
    run_dir = sanderling.torch.train(settings, runs_dir=tmp_path / "runs").run_dir
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with pytest.raises(sanderling.FileError, match="another process trains a run of this name here"):
            sanderling.torch.train(settings, runs_dir=tmp_path / "runs")
    finally:
        os.close(directory)


def test_times_are_those_of_all_passes(data: Path, tmp_path: Path) -> None:
    settings = config(data, "dnn", passes=1)
    counts = []
    for passes in (1, 2):
        settings["train"]["passes"] = passes
        run_dir = sanderling.torch.train(settings, runs_dir=tmp_path / "runs", resume=passes > 1).run_dir
        stages = checkpoint.read_extra(run_dir / "last")["report"]["stages"]
        assert sum(stage["share"] for stage in stages) == pytest.approx(1.0)
        counts.append(sum(stage["count"] for stage in stages))
    assert counts[1] > 1.5 * counts[0]


def test_bad_rows_are_in_the_summary_and_in_the_report(data: Path, tmp_path: Path) -> None:
    with (data / "train.csv").open("a") as file:
        file.write("1,0,0,no number,1\n1,0,0,none either,1\n")
    with (data / "valid.csv").open("a") as file:
        file.write("1,0,0,no number,1\n")
    settings = config(data, "dnn", passes=2)
    settings["data"]["on_bad_row"] = "skip:2"
    result = sanderling.torch.train(settings, runs_dir=tmp_path / "runs")
    assert (result.summary["bad_rows"], result.summary["valid_bad_rows"]) == (2, 1)
    report = (result.run_dir / "report.html").read_text()
    assert "train.csv:1502" in report
    assert "2 bad rows" in report
    assert "Bad rows of the validation data" in report
    (tmp_path / "ask.csv").write_text("label,a,b,x,seen\n1,0,0,1,1\n1,0,0,no number,1\n1,0,0,1,1\n")
    probabilities = sanderling.torch.predict(result.run_dir / "model", tmp_path / "ask.csv")
    assert np.isnan(probabilities).tolist() == [False, True, False], "a line for each row"
    assert probabilities[0] == pytest.approx(probabilities[2], rel=1e-5), "one row, twice"


def test_a_device_that_is_not_there_is_refused(data: Path, tmp_path: Path) -> None:
    for name in ("gpu0", "cuda:99", "meta"):
        with pytest.raises(sanderling.ConfigError, match=f"device = '{name}': "):
            sanderling.torch.train(config(data, "dnn"), runs_dir=tmp_path, device=name)
    assert not list(tmp_path.glob("run")), "nothing has begun"


def test_servers_that_cannot_save_are_found_out_before_a_pass(data: Path, tmp_path: Path) -> None:
    place = f"unix:{tmp_path}/ps"
    start = [sys.executable, "-m", "sanderling", "ps", "--threads", "1", "--listen", place]
    lines_seen: list[dict[str, Any]] = []
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as server:
        try:
            await_server(server)
            with pytest.raises(sanderling.Error, match="start it with --data"):
                sanderling.torch.train(config(data, "dnn"), ps=place, runs_dir=tmp_path, on_line=lines_seen.append)
        finally:
            server.kill()
    assert not lines_seen


def test_what_cannot_be_validated_or_learned_from_costs_no_pass(data: Path, tmp_path: Path) -> None:
    kept = sanderling.torch.train(config(data, "dnn", passes=1), runs_dir=tmp_path).run_dir
    before = sanderling.torch.predict(kept / "model", data / "valid.csv")
    (data / "none.csv").write_text("label,a,b,x,seen\n")
    (data / "bad.csv").write_text("label,a,b,x,seen\n1,0,0,no number,1\n")
    os.mkfifo(data / "pipe.csv")
    nowhere = str(data / "nowhere.csv")
    once = r"can be read only once; write its rows to a file"
    for key, name, error, message in (
        ("valid", nowhere, sanderling.FileError, "nowhere"),
        ("valid", str(data / "none.csv"), sanderling.NoRowsError, r"none\.csv: no rows to work on$"),
        ("valid", str(data / "bad.csv"), sanderling.NoRowsError, r"all 1 were bad, the first: .*bad\.csv:2"),
        ("train", str(data / "none.csv"), sanderling.NoRowsError, r"none\.csv: no rows to work on$"),
        ("train", "-", sanderling.ConfigError, rf"data\.train: - {once}; or let `sanderling hub`"),
        ("valid", "-", sanderling.ConfigError, rf"data\.valid: - {once}$"),
        ("train", str(data / "p*.csv"), sanderling.ConfigError, once),
        ("valid", str(data / "pipe.csv"), sanderling.ConfigError, once),
    ):
        settings = config(data, "dnn", passes=1)
        settings["data"].update({key: name, "on_bad_row": "skip:9"})
        lines_seen: list[dict[str, Any]] = []
        with pytest.raises(error, match=message):
            sanderling.torch.train(settings, runs_dir=tmp_path, on_line=lines_seen.append)
        assert not lines_seen
        assert (kept / "last").exists()
    np.testing.assert_array_equal(sanderling.torch.predict(kept / "model", data / "valid.csv"), before)
    # A row on its own has no variance, so that nothing is learned from it.
    (data / "one.csv").write_text("label,a,b,x,seen\n1,0,0,1,1\n")
    settings = {**config(data, "dnn"), "data": {"train": str(data / "one.csv")}, "name": "alone"}
    settings["model"]["batch_norm"] = True
    with pytest.raises(sanderling.NoRowsError, match=r"one\.csv: no rows to work on"):
        sanderling.torch.train(settings, runs_dir=tmp_path)


def test_a_pass_that_cannot_be_validated_is_not_lost(data: Path, tmp_path: Path) -> None:
    settings = config(data, "dnn", passes=2)
    # Only the beginning of the first one is looked at before there is a pass to validate.
    second = data / "second.csv"
    settings["data"]["valid"] = [settings["data"]["valid"], str(second)]
    second.write_text("label,a,b,x,seen\n1,0,1,1,1\n")
    expected = sanderling.torch.train({**settings, "name": "whole"}, runs_dir=tmp_path).summary
    rows = second.read_text()
    second.write_text(rows + "1,0,0,no number,1\n")
    lines_seen: list[dict[str, Any]] = []
    with pytest.raises(sanderling.BadRowError, match=r"second\.csv:3"):
        sanderling.torch.train(settings, runs_dir=tmp_path, on_line=lines_seen.append)
    assert lines_seen[-1]["step"] == 24
    with pytest.raises(sanderling.BadRowError, match=r"second\.csv:3"):
        sanderling.torch.train(settings, runs_dir=tmp_path, resume=True)
    # Who gives validation up goes on without.
    shutil.copytree(tmp_path / "run", tmp_path / "runs/run")
    without = config(data, "dnn", passes=2)
    del without["data"]["valid"]
    assert sanderling.torch.train(without, runs_dir=tmp_path / "runs", resume=True).summary["passes"] == 2
    second.write_text(rows)
    result = sanderling.torch.train(settings, runs_dir=tmp_path, resume=True)
    for name in ("steps", "passes", "examples", "best_pass", "measured_examples"):
        assert result.summary[name] == expected[name], name
    assert result.summary["auc"] == pytest.approx(expected["auc"], abs=0.05)
    assert [(line["step"], line["pass"]) for line in lines(tmp_path / "run") if line["kind"] == "valid"] == [
        (24, 1),
        (48, 2),
    ]


def test_a_resumed_run_has_each_pass_once(device: str, data: Path, tmp_path: Path) -> None:
    def interrupt(line: dict[str, Any]) -> None:
        if line["kind"] == "step" and line["pass"] == 3:
            raise KeyboardInterrupt

    settings = config(data, "dnn", passes=4, schedule={"type": "plateau", "factor": 0.5})
    with pytest.raises(KeyboardInterrupt):
        sanderling.torch.train(settings, runs_dir=tmp_path, device=device, on_line=interrupt)
    result = sanderling.torch.train(settings, runs_dir=tmp_path, device=device, resume=True)
    dense = torch.load(next((tmp_path / "run/last").glob("dense-*.pt")), weights_only=True)["optimizer"]["state"]
    assert {entry["step"].device.type for entry in dense.values()} == {"cpu"}, "where Adam counts its steps"
    steps = -(-1500 // 64)
    assert result.summary["steps"] == 4 * steps
    assert result.summary["examples"] == 4 * 1500
    found = [(line["kind"], line["step"]) for line in lines(tmp_path / "run")]
    assert len(set(found)) == len(found)
    assert [step for kind, step in found if kind == "valid"] == [steps * number for number in (1, 2, 3, 4)]
    assert [step for kind, step in found if kind == "step"] == [8 * number for number in range(1, 4 * steps // 8 + 1)]
    # A run that is over has nothing to go on with, be it by its last pass or by early stopping.
    assert sanderling.torch.train(settings, runs_dir=tmp_path, resume=True).summary["steps"] == 4 * steps
    early = config(data, "dnn", passes=9, early_stop=1, schedule={"type": "exponential", "factor": 0.01})
    ended = sanderling.torch.train(early, name="early", runs_dir=tmp_path).summary
    plots = (tmp_path / "early/report.html").read_text().count("<svg")
    again = sanderling.torch.train(early, name="early", runs_dir=tmp_path, resume=True)
    assert again.summary["steps"] == ended["steps"] < 9 * steps
    assert (tmp_path / "early/report.html").read_text().count("<svg") == plots, "those of its passes are still there"
    # Before the first validation what was learned so far is the best model there is.
    stopped = sanderling.torch.train({**config(data, "dnn", max_steps=5), "name": "short"}, runs_dir=tmp_path)
    assert (stopped.summary["steps"], stopped.summary["stopped"]) == (5, True)
    assert len(sanderling.torch.predict(stopped.summary["model"], data / "valid.csv")) == 400


def test_a_run_goes_on_only_as_it_began(data: Path, tmp_path: Path) -> None:
    def go_on(**changed: Any) -> dict[str, Any]:
        settings = config(data, "dnn", max_steps=5)
        for section, entries in changed.items():
            settings[section] = {**settings.get(section, {}), **entries} if isinstance(entries, dict) else entries
        return sanderling.torch.train(settings, runs_dir=tmp_path, resume=True).summary

    sanderling.torch.train(config(data, "dnn", max_steps=5), runs_dir=tmp_path)
    changes: dict[str, dict[str, Any]] = {
        "seed": {"seed": 2},
        "train.batch_size": {"train": {"batch_size": 32}},
        "train.shuffle_rows": {"train": {"shuffle_rows": 10}},
        "optimizer.lr": {"optimizer": {"lr": 0.5}},
        "dense_optimizer.lr": {"dense_optimizer": {"lr": 0.5}},
        "model.hidden": {"model": {"hidden": [8]}},
        "model.table_budget": {"model": {"table_budget": 1 << 20}},
        "negatives.keep": {"negatives": {"keep": 0.5}},
        "weight.column": {"weight": {"column": "x"}},
        "label.threshold": {"label": {"threshold": 0.5}},
        "data.train": {"data": {"train": str(data / "valid.csv")}},
        "feature": {"feature": [{"name": "a"}]},
    }
    for what, changed in changes.items():
        with pytest.raises(sanderling.ModelError, match=rf"last: cannot resume: {what} changed"):
            go_on(**changed)
    # Features that the files themselves implied are others when they are named.
    (data / "implied.libsvm").write_text("".join(f"{row % 2} {row}:1\n" for row in range(200)))
    settings = {**config(data, "dnn", max_steps=2), "data": {"train": str(data / "implied.libsvm")}, "name": "implied"}
    del settings["feature"]
    sanderling.torch.train(settings, runs_dir=tmp_path)
    settings["feature"] = [{"name": "features", "type": "sparse", "table": "other"}]
    with pytest.raises(sanderling.ModelError, match=r"last: cannot resume: feature changed"):
        sanderling.torch.train(settings, runs_dir=tmp_path, resume=True)
    # What does not matter to what was learned may change, and until a pass is judged, how that is done.
    more = {"max_steps": 30, "threads": 1, "print_every_steps": 4, "monitor": "logloss"}
    assert go_on(train=more)["steps"] == 30
    with pytest.raises(sanderling.ModelError, match=r"cannot resume: train\.monitor changed"):
        go_on(train={"max_steps": 40})
    # A new run leaves nothing of an earlier one to go on with.
    sanderling.torch.train(config(data, "dnn", passes=1), runs_dir=tmp_path, name="run")
    last = tmp_path / "run" / "last"
    assert last.exists()

    def kill(_: dict[str, Any]) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        sanderling.torch.train(config(data, "dnn"), runs_dir=tmp_path, name="run", on_line=kill)
    assert not last.exists()
    with pytest.raises(sanderling.NotFoundError, match="last: no checkpoint"):
        go_on()


def test_of_one_class_the_loss_says_which_pass_is_best(data: Path, tmp_path: Path) -> None:
    rows = (data / "valid.csv").read_text().splitlines(keepends=True)
    (data / "valid.csv").write_text("".join(row for row in rows if not row.startswith("0")))
    result = sanderling.torch.train(config(data, "dnn", passes=4), runs_dir=tmp_path)
    valid = [line["logloss"] for line in lines(tmp_path / "run") if line["kind"] == "valid"]
    assert result.summary["best_pass"] == 1 + int(np.argmin(valid))
    assert min(valid) < valid[0]


def test_rows_on_servers(data: Path, tmp_path: Path, two_servers: str) -> None:
    settings = config(data, "deepfm", passes=4, clip_norm=10.0)
    result = sanderling.torch.train(settings, runs_dir=tmp_path, ps=two_servers)
    assert result.summary["auc"] > 0.9
    assert sanderling.connect(two_servers).open("run/item").dim == 5
    # Another run of the name does not go on with the rows of the first.
    sanderling.torch.train(config(data, "deepfm", passes=1), runs_dir=tmp_path, ps=two_servers)
    assert lines(tmp_path / "run")[0]["auc"] < 0.7
    # One that cannot begin leaves them.
    connection = sanderling.connect(two_servers)
    keys = connection.open("run/item").keys()
    rows = connection.open("run/item").pull(keys)
    assert rows.any()
    for change in (
        {"optimizer": {"type": "lion"}},
        {"optimizer": {"type": "adam", "lr": -1.0}},
        {"dense_optimizer": {"type": "lion"}},
        {"train": {"batch_size": 64, "l2_idle": True}},
    ):
        with pytest.raises(sanderling.ConfigError):
            sanderling.torch.train({**config(data, "deepfm"), **change}, runs_dir=tmp_path, ps=two_servers)
    np.testing.assert_array_equal(connection.open("run/item").pull(keys), rows)


def test_event_files_are_tensorboards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1700000000.25)
    events = EventFile(tmp_path)
    events.scalars(300, {"train/auc": 0.75, "valid/logloss": 0.1})
    events.close()
    # What TensorBoard 2.21.0 writes for the same: RecordWriter with Event(...).SerializeToString().
    expected = (
        "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9"
        "36000000000000004f578cef0900001040fc54d94110ac022a280a100a09747261696e2f617563150000403f"
        "0a140a0d76616c69642f6c6f676c6f737315cdcccc3dc420b2de"
    )
    assert events.path.read_bytes().hex() == expected
    assert events.path.name.startswith("events.out.tfevents.")


def test_scores_that_are_not_finite_end_the_run() -> None:
    scores = Scores()
    scores.add(*(np.array([value], np.float32) for value in (1.0, np.nan, 1.0)))
    with pytest.raises(sanderling.DivergedError):
        metrics_of(scores.take())


def test_scores_are_bounded() -> None:
    scores = Scores(most=5)
    for label in (0.0, 1.0, 1.0):
        scores.add(*(np.full(2, value, np.float32) for value in (label, 0.0, 1.0)))
    assert (scores.rows, scores.forgotten) == (4, 2)
    assert metrics_of(scores.take())["real_mean"] == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "resnet"}}, "one of dnn, wide_deep"),
        ({"model": {"type": "dnn", "dims": 3}}, "model.dims is unknown"),
        ({"model": {"type": "dnn", "dim": "x"}}, "model.dim = 'x': must be of type int"),
        ({"model": {"type": "dnn", "cross_layers": 3}}, "cross_layers"),
        ({"model": 3}, "must be a section"),
        ({"seed": -1}, "seed = -1"),
        ({"dense_optimizer": {"lr": -0.1}}, "dense_optimizer.lr = -0.1"),
        ({"model": {"type": "din"}}, "model.history and model.candidate"),
        ({"model": {"type": "din", "history": "seen", "candidate": "b"}}, "must name the same table"),
        ({"model": {"type": "din", "history": "seen", "candidate": "c"}}, "no feature 'c'"),
        ({"dense_optimizer": {"type": "lion"}}, "one of adam"),
        ({"train": {"schedule": {"type": "cosine"}}}, "train.schedule"),
        ({"train": {"schedule": {"type": "exponential"}}}, "exponential needs a factor"),
        ({"data": {"train": "t.csv"}, "train": {"early_stop": 1}}, "need data.valid"),
        ({"data": {}}, "data.train"),
        ({"extras": {}}, "unknown sections: extras"),
        ({"feature": [{"name": "x", "type": "numeric"}]}, "not all numeric"),
        (
            {"feature": [{"name": "a", "dim": 8}]},
            "feature 'a': dim = 8, but all rows of a deep model are of model.dim = 4",
        ),
        ({"model": {"type": "din", "history": "seen", "candidate": "x"}}, "feature 'x' is a number"),
        ({"model": {"type": "din", "history": "x", "candidate": "a"}}, "feature 'x' is a number"),
        ({"model": {"type": "din", "history": "a", "candidate": "a"}}, "are both 'a'"),
        ({"train": {"threads": -1}}, "train.threads = -1: must be at least 1"),
        ({"train": {"depth": -1}}, "train.depth = -1: must be at least 1"),
        ({"train": {"shuffle_rows": -1}}, "train.shuffle_rows = -1: must be at least 0"),
        ({"train": {"shuffle_rows": 1 << 64}}, "and below 2"),
        ({"train": {"clip_norm": float("nan")}}, "train.clip_norm = nan"),
        ({"train": {"schedule": {"type": "exponential", "factor": "x"}}}, "train.schedule.factor = 'x'"),
        ({"train": {"schedule": {"type": "exponential", "factor": -0.5}}}, "train.schedule.factor = -0.5"),
        ({"train": {"schedule": {"type": "plateau", "min": 2}}}, "train.schedule.min = 2"),
        ({"model": {"table_budget": -1}}, "model.table_budget = -1"),
        ({"model": {"hidden": [-1]}}, r"model.hidden = \[-1\]: must be a list of whole numbers"),
        ({"model": {"type": "dcn", "cross_layers": 0}}, "model.cross_layers = 0"),
        ({"model": {"type": "dnn", "cross_layers": 2}}, "model.cross_layers: model.type = 'dnn' has none"),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong(
    change: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(sanderling.ConfigError, match=message):
        sanderling.torch.train({**config(data, "dnn"), **change}, runs_dir=tmp_path)


@pytest.fixture
def adult(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which has some rows of the census data where the examples read it."""
    (tmp_path / "data/adult").mkdir(parents=True)
    for name, rows in (("adult.data.gz", 4000), ("adult.test.gz", 1000)):
        with (
            gzip.open(ROOT / "data/adult" / name, "rt") as whole,
            gzip.open(tmp_path / "data/adult" / name, "wt", compresslevel=1) as part,
        ):
            part.writelines(islice(whole, rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command(adult: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # As the example says, but for its model and its steps; two passes are enough to see that it learns.
    example = str(ROOT / "examples/adult_deepfm.toml")
    of_run = ["--model", "dcnv2", "--passes", "2", "--batch-size", "32", "--json", "--tensorboard", "--name", "census"]
    assert command.main([example, *of_run]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["auc"] > 0.85
    assert "pass 2 validated: auc 0." in said.err
    assert len(list((adult / "runs/census/tensorboard").iterdir())) == 1
    assert command.main([example, "--valid", "nowhere.csv", "--passes", "1", "--quiet"]) == 1
    assert "nowhere.csv" in capsys.readouterr().err


def test_the_command_as_a_process(adult: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "sanderling", "train", *arguments]
        return subprocess.run(start, capture_output=True, text=True, check=False, cwd=adult)

    # The configuration of a built-in learner, such as `inspect --suggest` writes, is one of the rows, too.
    learner = run(str(ROOT / "examples/adult_fm.toml"), "--model", "dnn", "--passes", "1", "--max-steps", "3", "--json")
    assert learner.returncode == 0, learner.stderr
    assert json.loads(learner.stdout.splitlines()[-1])["steps"] == 3
    assert "model.rank, [optimizer], train.batch_size of a built-in learner are left out" in learner.stderr
    # Other models are still the native command's.
    native = run(str(ROOT / "examples/adult_lr.toml"), "--passes", "1", "--quiet")
    assert native.returncode == 0, native.stderr


def test_the_page_of_the_loop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train_deepfm.py"])
    runpy.run_path(str(ROOT / "examples/train_deepfm.py"), run_name="__main__")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("pass 3: auc 0.")
    assert float(last.split()[3].rstrip(",")) > 0.89


def test_the_package_does_not_need_torch() -> None:
    code = "import sys, sanderling, sanderling.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
