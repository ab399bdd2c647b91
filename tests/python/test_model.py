"""Training, evaluation and prediction from Python, on data made here and on the bundled Adult set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from sklearn.metrics import roc_auc_score

import sanderling

ADULT = Path(__file__).parents[2] / "data" / "adult"
ADULT_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
]


def write_clicks(path: Path, rows: int, seed: int) -> npt.NDArray[np.float32]:
    """Users and items whose pairs decide the click; returns the labels."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 40, rows), random.integers(0, 30, rows)
    logit = np.sin(user * 1.7) + np.cos(item * 2.3) + 2 * np.sin(user) * np.cos(item)
    labels: npt.NDArray[np.float32] = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    lines = [f"{label:.0f},u{u},i{i}" for label, u, i in zip(labels, user, item, strict=True)]
    path.write_text("\n".join(["label,user,item", *lines, ""]))
    return labels


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    write_clicks(folder / "train.csv", 8000, 1)
    write_clicks(folder / "valid.csv", 2000, 2)
    return folder


def config_of(clicks: Path, **train: object) -> dict[str, Any]:
    return {
        "name": "clicks",
        "data": {"train": clicks / "train.csv", "valid": clicks / "valid.csv"},
        "model": {"type": "fm", "rank": 4, "init_std": 0.1},
        "optimizer": {"type": "adagrad", "lr": 0.2},
        "feature": [{"name": "user"}, {"name": "item"}],
        "train": {"batch_size": 64, "passes": 3, "print_every_steps": 50, "shuffle_rows": 1000, "threads": 1, **train},
    }


@pytest.fixture(scope="module")
def result(clicks: Path) -> sanderling.TrainResult:
    return sanderling.train(config_of(clicks), runs_dir=clicks / "runs")


def labels_of(path: Path) -> npt.NDArray[np.float32]:
    return np.array([line[0] for line in path.read_text().splitlines()[1:]], dtype=np.float32)


def test_a_run_learns_and_leaves_model_and_report(clicks: Path, result: sanderling.TrainResult) -> None:
    assert result.auc > 0.75
    assert result.model_dir == clicks / "runs" / "clicks" / "model"
    assert "<html" in result.report.read_text()
    assert result.summary["examples"] == 3 * 8000
    assert result.summary["auc"] == result.auc
    assert not result.summary["stopped"]


def test_predictions_are_those_that_evaluation_judges(clicks: Path, result: sanderling.TrainResult) -> None:
    model = sanderling.load(result.model_dir)
    probabilities = model.predict(clicks / "valid.csv")
    assert (probabilities.dtype, probabilities.shape) == (np.dtype(np.float32), (2000,))
    got = model.evaluate(str(clicks / "valid.csv"))
    labels = labels_of(clicks / "valid.csv")
    assert got["examples"] == 2000
    assert got["bad_rows"] == 0
    assert got["auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-5)
    assert got["auc"] == pytest.approx(result.auc, abs=1e-12)
    assert got["prob_mean"] == pytest.approx(probabilities.mean(dtype=np.float64), rel=1e-5)
    twice = model.predict([clicks / "valid.csv", str(clicks / "valid.csv")])
    np.testing.assert_array_equal(twice, np.concatenate([probabilities, probabilities]))
    assert model.evaluate(clicks / "valid.csv", threads=3)["auc"] == pytest.approx(got["auc"], abs=1e-12)
    with pytest.raises(sanderling.ConfigError, match="threads = 0"):
        model.evaluate(clicks / "valid.csv", threads=0)


def test_what_one_function_gives_the_others_take(clicks: Path, result: sanderling.TrainResult) -> None:
    model = result.load()
    valid = clicks / "valid.csv"
    batches = list(sanderling.FeedQueue(sanderling.FileSource(valid, model.spec, batch_size=500)))
    labels = np.concatenate([batch.labels for batch in batches])
    scored, evaluated = sanderling.metrics(labels, model.predict(valid)), model.evaluate(valid)
    assert len(labels) == 2000
    assert scored["auc"] == pytest.approx(evaluated["auc"], abs=1e-6)
    assert scored["logloss"] == pytest.approx(evaluated["logloss"], rel=1e-5)
    assert scored["prob_mean"] == pytest.approx(evaluated["prob_mean"], rel=1e-5)


def test_parquet_and_arrow_read_as_csv_does(clicks: Path, result: sanderling.TrainResult, tmp_path: Path) -> None:
    model = result.load()
    table = pyarrow.csv.read_csv(clicks / "valid.csv")
    pyarrow.parquet.write_table(table, tmp_path / "valid.parquet", row_group_size=700, compression="zstd")
    pyarrow.feather.write_feather(table, tmp_path / "valid.arrow", compression="lz4")
    wanted = model.predict(clicks / "valid.csv")
    for file, format_ in [("valid.parquet", "parquet"), ("valid.arrow", "arrow")]:
        np.testing.assert_array_equal(model.predict(tmp_path / file), wanted)
        np.testing.assert_array_equal(model.predict(tmp_path / file, data={"format": format_}), wanted)


def test_labels_may_be_absent_from_what_is_predicted(tmp_path: Path, result: sanderling.TrainResult) -> None:
    model = result.load()
    (tmp_path / "ask.tsv").write_text("item\tuser\ni1\tu1\ni2\tu2\n")
    (tmp_path / "same.csv").write_text("label,user,item\n0,u1,i1\n1,u2,i2\n")
    np.testing.assert_array_equal(model.predict(tmp_path / "ask.tsv"), model.predict(tmp_path / "same.csv"))


def test_a_line_is_a_row_of_a_model_of_lines(tmp_path: Path) -> None:
    lines = [f"{row % 3 % 2} {row % 7}:1 {row % 5 + 10}:.5" for row in range(300)]
    file = tmp_path / "rows.svm"
    file.write_text("".join(f"{line}\n" for line in lines))
    model = sanderling.train({"data": {"train": file}, "model": {"type": "fm"}}, runs_dir=tmp_path / "runs").load()
    wanted = model.predict(file)
    np.testing.assert_array_equal(model.predict([{"line": line} for line in lines]), wanted)
    assert np.float32(model.predict({"line": lines[1].partition(" ")[2]})) == wanted[1], "no label is needed"
    with pytest.raises(sanderling.BadRowError, match=r'row: has no column "line"'):
        model.predict({"features": "3:1"})
    with pytest.raises(sanderling.BadRowError, match=r"column line: expected index:value \(word 2\)"):
        model.predict({"line": "3:1 x"})


def test_tables_are_the_model(clicks: Path, result: sanderling.TrainResult) -> None:
    model = result.load()
    assert {"user", "item"} <= set(model.tables)
    user = model.table("user")
    assert user.dim == 1 + 4
    assert len(user) == 40
    assert user.rows().shape == (40, 5)
    assert int(user.frequency().sum()) >= 8000
    # The linear weight and the factors of a machine without its tables are gone: everything is as likely as the bias.
    before = model.predict(clicks / "valid.csv")
    assert before.std() > 0.1
    for name in ("user", "item"):
        model.table(name).clear()
    with pytest.warns(UserWarning, match=r'0 of 2,000 ids of "(user|item)" are known to the model'):
        assert model.predict(clicks / "valid.csv").std() < 1e-6
    with pytest.raises(sanderling.NotFoundError, match=r"nobody.*user"):
        model.table("nobody")
    assert "rank 4" in model.description
    assert model.config["model"]["rank"] == 4


def test_one_thread_and_a_seed_give_one_model(clicks: Path, result: sanderling.TrainResult, tmp_path: Path) -> None:
    again = sanderling.train(config_of(clicks), runs_dir=tmp_path)
    other = sanderling.train({**config_of(clicks), "seed": 7}, runs_dir=tmp_path / "other")
    assert (again.auc, again.logloss) == (result.auc, result.logloss)
    assert other.logloss != result.logloss


def test_a_toml_file_says_the_same(clicks: Path, result: sanderling.TrainResult, tmp_path: Path) -> None:
    (tmp_path / "clicks.toml").write_text(f"""
        [data]
        train = "{clicks}/train.csv"
        valid = "{clicks}/valid.csv"
        [model]
        type = "fm"
        rank = 4
        init_std = 0.1
        [optimizer]
        type = "adagrad"
        lr = 0.2
        [train]
        batch_size = 64
        passes = 3
        print_every_steps = 50
        shuffle_rows = 1000
        [[feature]]
        name = "user"
        [[feature]]
        name = "item"
    """)
    again = sanderling.train(tmp_path / "clicks.toml", runs_dir=tmp_path)
    assert again.model_dir == tmp_path / "clicks" / "model"
    assert (again.auc, again.logloss) == (result.auc, result.logloss)


def test_lines_of_metrics_arrive_and_an_exception_stops_the_run(
    clicks: Path, result: sanderling.TrainResult, tmp_path: Path
) -> None:
    lines: list[dict[str, Any]] = []
    sanderling.train(config_of(clicks), runs_dir=tmp_path / "whole", on_line=lines.append)
    assert [line["step"] for line in lines if line["kind"] == "step"][:2] == [50, 100]
    assert sum(line["kind"] == "valid" for line in lines) == 3
    logged = (tmp_path / "whole" / "clicks" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in logged] == lines

    class EnoughError(Exception):
        pass

    def enough(line: dict[str, Any]) -> None:
        if line["step"] >= 100:
            raise EnoughError

    with pytest.raises(EnoughError):
        sanderling.train(config_of(clicks), runs_dir=tmp_path, on_line=enough)
    resumed = sanderling.train(config_of(clicks), runs_dir=tmp_path, resume=True)
    assert (resumed.auc, resumed.logloss) == (result.auc, result.logloss)


def test_adult_reaches_what_logistic_regression_should(tmp_path: Path) -> None:
    numbers = {"age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"}
    features = [{"name": name, "type": "quantile" if name in numbers else "categorical"} for name in ADULT_COLUMNS[:-1]]
    config = {
        "name": "adult",
        "data": {
            "train": ADULT / "adult.data.gz",
            "format": "csv",
            "columns": ADULT_COLUMNS,
            "comment": "|",
        },
        "label": {"column": "income", "positive": [">50K", ">50K."]},
        "feature": features,
        "optimizer": {"type": "ftrl", "alpha": 0.1, "l2": 1.0},
        "train": {"passes": 2, "batch_size": 32},
    }
    model = sanderling.train(config, runs_dir=tmp_path).load()
    got = model.evaluate(ADULT / "adult.test.gz")
    assert got["examples"] == 16281
    assert got["auc"] > 0.90
    assert len(model.predict(ADULT / "adult.test.gz")) == 16281


def broken(clicks: Path, **changes: object) -> dict[str, Any]:
    return {**config_of(clicks), **changes}


def test_a_bad_configuration_names_the_entry(clicks: Path, tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"modle": {}}, "modle"),
        ({"train": {"batches": 1}}, "batches"),
        ({"train": {"batch_size": 0}}, r"train\.batch_size"),
        ({"data": {"trian": "x"}}, "trian"),
        ({"optimizer": {"type": "sgd", "lr": -1.0}}, "lr"),
        ({"feature": [{"name": "user", "typ": "multi"}]}, "typ"),
    ]
    for changes, text in rows:
        with pytest.raises(sanderling.ConfigError, match=text):
            sanderling.train(broken(clicks, **changes), runs_dir=tmp_path)
    with pytest.raises(sanderling.ConfigError, match="only input is read by url"):
        sanderling.train(config_of(clicks), runs_dir="s3://bucket/runs")


def test_bad_data_name_file_and_line(clicks: Path, result: sanderling.TrainResult, tmp_path: Path) -> None:
    model = result.load()
    bad = tmp_path / "bad.csv"
    bad.write_text("label,user,item\n1,u1,i1\n0,u2\n1,u3,i3\n")
    with pytest.raises(sanderling.BadRowError, match=r"bad\.csv:3"):
        model.predict(bad)
    probabilities = model.predict(bad, data={"on_bad_row": "skip"})
    assert np.isnan(probabilities).tolist() == [False, True, False]
    assert model.evaluate(bad, data={"on_bad_row": "skip:1"})["bad_rows"] == 1
    with pytest.raises(sanderling.TooManyBadRowsError, match=r"bad\.csv:3"):
        model.evaluate(bad, data={"on_bad_row": "skip:0"})
    with pytest.raises(sanderling.ConfigError, match="on_bad"):
        model.predict(bad, data={"on_bad": "skip"})
    (tmp_path / "narrow.csv").write_text("label,user\n1,u1\n")
    with pytest.raises(sanderling.BadFileError, match="item"):
        model.predict(tmp_path / "narrow.csv")
    (tmp_path / "none.csv").write_text("label,user,item\n")
    with pytest.raises(sanderling.NoRowsError, match="none"):
        model.evaluate(tmp_path / "none.csv")
    with pytest.raises(sanderling.FileError, match="nowhere"):
        model.predict(tmp_path / "nowhere.csv")
    with pytest.raises(sanderling.FileError, match="nowhere"):
        sanderling.train(broken(clicks, data={"train": "nowhere.csv"}), runs_dir=tmp_path)
    with pytest.raises(sanderling.Error, match="nowhere"):
        sanderling.load(tmp_path / "nowhere")
