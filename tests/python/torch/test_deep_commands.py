"""The commands that apply a model do for deep models what they do for built-in ones, here and with servers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_commands import last_json, run

import sanderling
import sanderling.torch
from sanderling._native import cli_main
from sanderling.torch import command

CONFIG = """
name = "clicks"
[data]
train = "train.csv"
valid = "valid.csv"
[model]
type = "deepfm"
dim = 4
init_std = 0.1
hidden = [8]
[dense_optimizer]
lr = 0.02
[train]
batch_size = 64
passes = 2
depth = 1
threads = 1
[[feature]]
name = "a"
[[feature]]
name = "b"
[[feature]]
name = "x"
type = "numeric"
"""
BUILT_IN = CONFIG.replace('type = "deepfm"', 'type = "fm"\nrank = 4').replace(
    "dim = 4\ninit_std = 0.1\nhidden = [8]", ""
)
BUILT_IN = BUILT_IN.replace("[dense_optimizer]\nlr = 0.02\n", "").replace("depth = 1\n", "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a deep run `clicks` and a built-in run `built_in`."""
    folder = tmp_path_factory.mktemp("life")
    rng = np.random.default_rng(1)
    for name, rows in (("train", 1500), ("valid", 400)):
        a, b = rng.integers(0, 4, (2, rows))
        label, noise = (a + b) % 2, rng.normal(size=rows).round(3)
        lines = [f"{y},{i},{j},{x}\n" for y, i, j, x in zip(label, a, b, noise, strict=True)]
        (folder / f"{name}.csv").write_text("label,a,b,x\n" + "".join(lines))
    (folder / "clicks.toml").write_text(CONFIG)
    (folder / "built_in.toml").write_text(BUILT_IN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert command.main(["clicks.toml", "-q"]) == 0
        assert command.main(["clicks.toml", "-q", "--name", "longer", "--passes", "4"]) == 0
        assert cli_main(["sanderling", "train", "built_in.toml", "-q", "--name", "built_in"]) == 0
    return folder


@pytest.fixture(autouse=True)
def in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def labels() -> Any:
    return np.loadtxt("valid.csv", delimiter=",", skiprows=1, usecols=0)


def test_eval_measures_what_predict_gives(capfd: pytest.CaptureFixture[str]) -> None:
    found = last_json(capfd, "eval", "runs/clicks/model", "valid.csv", "-q")
    expected = sanderling.metrics(labels(), sanderling.torch.predict("runs/clicks/model", "valid.csv"))
    for name in ("logloss", "prob_mean", "real_mean", "normalized_entropy"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name
    # Batches of another size round otherwise, which may swap rows of nearly equal scores.
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-4)
    assert found["auc_low"] < found["auc"] < found["auc_high"]
    assert (found["examples"], found["positives"]) == (400, int(labels().sum()))
    summary = json.loads(Path("runs/clicks/summary.json").read_text())
    assert found["auc"] == pytest.approx(summary["auc"], rel=1e-6)
    built_in = last_json(capfd, "eval", "runs/built_in/model", "valid.csv", "-q")
    assert found.keys() == built_in.keys()
    assert {entry["feature"] for entry in found["known"]} == {"a", "b"}
    shown = [run(capfd, "eval", f"runs/{name}/model", "valid.csv", "-q")[1] for name in ("clicks", "built_in")]
    names = [[line.split("  ")[0] for line in text.splitlines()] for text in shown]
    assert names[0] == names[1]


def test_predict_writes_what_python_returns(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = sanderling.torch.predict("runs/clicks/model", "valid.csv")
    code, out, _ = run(capfd, "predict", "runs/clicks/model", "valid.csv", "-q")
    assert code == 0
    np.testing.assert_array_equal(np.array(out.split(), np.float32), expected)
    text, parquet = tmp_path / "scores.csv", tmp_path / "scores.parquet"
    found = last_json(capfd, "predict", "runs/clicks/model", "valid.csv", "-o", str(text))
    assert found.keys() == {"examples", "bad_rows", "output", "known"}
    assert found["examples"] == len(text.read_text().splitlines()) == 400
    assert run(capfd, "predict", "runs/clicks/model", "valid.csv", "-o", str(parquet))[0] == 0
    pq = pytest.importorskip("pyarrow.parquet")
    np.testing.assert_array_equal(pq.read_table(parquet)["score"].to_numpy(), expected)
    # A skipped row keeps its place.
    bad = tmp_path / "bad.csv"
    bad.write_text("label,a,b,x\n1,1,1,0.5\n1,1\n0,2,2,0.5\n")
    code, out, err = run(capfd, "predict", "runs/clicks/model", str(bad), "--on-bad-row", "skip")
    assert code == 0
    lines = out.splitlines()
    assert (len(lines), lines[1]) == (3, "")
    assert "1 bad rows were skipped" in err


def test_inspect_shows_the_tables(capfd: pytest.CaptureFixture[str]) -> None:
    found = last_json(capfd, "inspect", "runs/clicks/model")
    assert found["model"] == "deepfm in PyTorch"
    assert {table["name"]: table["rows"] for table in found["tables"]} == {"a": 4, "b": 4}
    model, _ = sanderling.torch.open_model("runs/clicks/model")
    assert found["dense_weights"] == sum(parameter.numel() for parameter in model.parameters())
    table = model.emb.tables["a"]
    norms = np.linalg.norm(table.rows().astype(np.float64), axis=1)
    assert found["tables"][0]["norm_max"] == pytest.approx(norms.max(), rel=1e-6)
    assert found["tables"][0]["most_frequent"][0]["frequency"] == table.frequency().max()
    code, out, _ = run(capfd, "inspect", "runs/clicks/model")
    assert code == 0
    assert "deepfm in PyTorch" in out
    assert "adam" in out


def test_compare_shows_two_deep_runs(capfd: pytest.CaptureFixture[str]) -> None:
    found = last_json(capfd, "compare", "runs/clicks", "runs/longer")
    assert [found[side]["batch_size"] for side in "ab"] == [64, 64]
    assert [found[side]["passes"] for side in "ab"] == [2, 4]
    numbers = {(row["name"], row["of"], row["number"]): (row["a"], row["b"]) for row in found["rows"]}
    summaries = [json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in ("clicks", "longer")]
    assert numbers["run", "", "auc"] == tuple(summary["auc"] for summary in summaries)
    assert any(of == "stage" for _, of, _ in numbers)
    assert any("did not do the same work" in warning for warning in found["warnings"])
    assert run(capfd, "compare", "runs/clicks", "runs/built_in")[0] == 0


def test_a_summary_has_the_entries_of_a_built_in_run() -> None:
    deep, built_in = (
        json.loads(Path(f"runs/{name}/summary.json").read_text()).keys() for name in ("clicks", "built_in")
    )
    # Deep models have no progressive validation.
    assert built_in - deep == {"zero_weights", "progressive_curve"}


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (3, "bad.csv:2", ["eval", "runs/clicks/model", "bad.csv"]),
        (3, "none.csv: no rows", ["eval", "runs/clicks/model", "none.csv"]),
        (1, "nowhere.csv", ["predict", "runs/clicks/model", "nowhere.csv"]),
        (4, "did you mean runs/clicks/model", ["eval", "runs/clicks", "valid.csv"]),
        (4, "missing or corrupted", ["eval", "damaged", "valid.csv"]),
        (2, "--columns: only for CSV and TSV", ["eval", "runs/clicks/model", "rows.svm", "--columns", "a"]),
        (2, "need --ps", ["eval", "runs/clicks/model", "valid.csv", "--ps-no-local"]),
    ],
)
def test_what_is_wrong_has_its_exit_code(
    code: int, words: str, arguments: list[str], place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "bad.csv").write_text("label,a,b,x\n1,1\n")
    (place / "none.csv").write_text("label,a,b,x\n")
    (place / "damaged").mkdir(exist_ok=True)
    (place / "damaged/manifest.json").write_text(
        (place / "runs/clicks/model/manifest.json").read_text().replace('"sha256": "', '"sha256": "0')
    )
    found, out, err = run(capfd, *arguments)
    assert (found, out) == (code, ""), err
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_model_of_servers_comes_home(
    place: Path, two_servers: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    del place
    runs = ["--runs-dir", str(tmp_path)]
    assert command.main(["clicks.toml", "-q", "--name", "away", "--ps", two_servers, *runs]) == 0
    here = last_json(capfd, "eval", str(tmp_path / "away/model"), "valid.csv", "-q")
    summary = json.loads((tmp_path / "away/summary.json").read_text())
    assert here["auc"] == pytest.approx(summary["auc"], rel=1e-6), "it is complete without the servers"
    away = last_json(capfd, "eval", str(tmp_path / "away/model"), "valid.csv", "-q", "--ps", two_servers)
    if summary["best_pass"] == summary["passes"]:
        assert away["auc"] == pytest.approx(here["auc"], rel=1e-6)
    shown = last_json(capfd, "inspect", str(tmp_path / "away/model"))
    assert {table["name"] for table in shown["tables"]} == {"a", "b"}
    assert all(table["optimizers"][0]["optimizer"]["type"] == "adam" for table in shown["tables"])
    # It goes on without them, and then on servers again, from the rows at home.
    assert command.main(["clicks.toml", "-q", "--name", "away", *runs, "--resume", "--passes", "3"]) == 0
    rows = sanderling.torch.open_model(tmp_path / "away/last")[0].emb.tables["a"].rows()
    assert len(rows) == 4
    assert (
        command.main(["clicks.toml", "-q", "--name", "away", *runs, "--resume", "--passes", "4", "--ps", two_servers])
        == 0
    )
    assert json.loads((tmp_path / "away/summary.json").read_text())["passes"] == 4


def test_rows_may_stay_on_servers(
    place: Path, one_server: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (place / "stays.toml").write_text(CONFIG.replace("[train]", "[train]\ndownload = false"))
    runs = ["--runs-dir", str(tmp_path)]
    assert command.main(["stays.toml", "-q", "--name", "stays", "--ps", one_server, *runs]) == 0
    model = str(tmp_path / "stays/model")
    code, _, err = run(capfd, "eval", model, "valid.csv")
    assert code == 4
    assert "its rows are on parameter servers" in err
    assert last_json(capfd, "inspect", model)["server_tables"] == ["stays/a", "stays/b"]
    away = last_json(capfd, "eval", model, "valid.csv", "-q", "--ps", one_server)
    assert away["examples"] == 400
    assert run(capfd, "download", model, "-q")[0] == 2
    assert run(capfd, "download", "runs/built_in/model", "--ps", one_server)[0] == 2
    code, _, err = run(capfd, "download", model, "--ps", one_server)
    assert (code, err) == (0, f"8 rows in {model}\n")
    here = last_json(capfd, "eval", model, "valid.csv", "-q")
    assert here["auc"] == pytest.approx(away["auc"], rel=1e-9)
