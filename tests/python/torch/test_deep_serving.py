"""`sanderling serve` gives for deep models the scores of `sanderling predict`, alone and in batches of requests."""

import gzip
import json
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import sanderling
import sanderling.torch
from sanderling._native import cli_main
from sanderling.torch import command

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
from sanderling.torch.onnx_export import export_onnx

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from sanderling._native import cli_main; sys.exit(cli_main(['sanderling', *sys.argv[1:]]))",
]
ROWS = 300
BASE = """
name = "clicks"
data = { train = "train.csv" }
[model]
dim = 4
init_std = 0.3
hidden = [8, 5]
batch_norm = true
%s
[dense_optimizer]
lr = 0.02
[train]
batch_size = 64
depth = 1
threads = 1
%s
[[feature]]
name = "user"
[[feature]]
name = "item"
[[feature]]
name = "genres"
type = "multi"
pooling = "%s"
[[feature]]
name = "seen"
type = "multi"
table = "item"
[[feature]]
name = "age"
type = "numeric"
[[feature]]
name = "price"
type = "log"
"""
LABELS = '[[label]]\ncolumn = "label"\n[[label]]\ncolumn = "bought"\n'
# Each type of model, every pooling, a regression and several labels.
CONFIGS = {
    "dnn": BASE % ('type = "dnn"', 'loss = "mse"', "mean"),
    "wide_deep": BASE % ('type = "wide_deep"', "", "sum"),
    "deepfm": BASE % ('type = "deepfm"', "", "sum"),
    "dcn": BASE % ('type = "dcn"', "", "sum"),
    "dcnv2": BASE % ('type = "dcnv2"', "", "mean"),
    "dlrm": BASE % ('type = "dlrm"', "", "mean"),
    "din": BASE % ('type = "din"\nhistory = "seen"\ncandidate = "item"\nhistory_length = 3', "", "sum"),
    "labels": BASE % ('type = "dnn"', "", "sum") + LABELS,
}


def rows() -> list[dict[str, Any]]:
    """Rows with unknown and missing values, no and several genres, long histories."""
    rng = np.random.default_rng(3)
    return [
        {
            "user": f"u{rng.integers(40)}",
            "item": f"i{rng.integers(20)}",
            "genres": [f"g{number}" for number in rng.integers(0, 9, rng.integers(0, 4))],
            "seen": [f"i{number}" for number in rng.integers(0, 20, rng.integers(0, 6))],
            "age": None if at % 7 == 0 else round(float(rng.normal()), 3),
            "price": None if at % 5 == 0 else int(rng.integers(0, 1000)),
        }
        for at in range(ROWS)
    ]


def write_csv(path: Path, found: list[dict[str, Any]], labels: bool) -> None:
    def text(value: Any) -> str:
        return "" if value is None else "|".join(value) if isinstance(value, list) else str(value)

    rng = np.random.default_rng(4)
    names = list(found[0])
    lines = [",".join(names + ["label", "bought"] * labels)]
    for row in found:
        answers = [str(rng.integers(2)) for _ in range(2)] if labels else []
        lines.append(",".join([text(row[name]) for name in names] + answers))
    path.write_text("\n".join(lines) + "\n")


@contextmanager
def serve(model: Path, *options: str) -> Iterator[str]:
    """The URL of a running server."""
    line = [*COMMAND, "serve", str(model), "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("listening at "), first
            yield first.removeprefix("listening at ").strip()
        finally:
            process.terminate()


def ask(url: str, path: str, body: Mapping[str, Any]) -> Any:
    with urllib.request.urlopen(f"{url}{path}", json.dumps(body).encode()) as reply:
        return json.load(reply)


def scores(url: str, found: list[dict[str, Any]]) -> npt.NDArray[np.float32]:
    return np.array(ask(url, "/predict", {"rows": found})["scores"], np.float32)


def drift_of(url: str) -> dict[str, float]:
    """The keys of requests against those of the training, by feature."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        lines = [line for line in reply.read().decode().splitlines() if "_feature_drift{" in line]
    return {line.split('feature="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each configuration, not exported."""
    folder = tmp_path_factory.mktemp("serving")
    write_csv(folder / "train.csv", rows(), labels=True)
    new = rows()[::-1]
    for at, row in enumerate(new):
        row["user"] = f"new{at}" if at % 9 == 0 else row["user"]
    write_csv(folder / "new.csv", new, labels=False)
    (folder / "new.json").write_text(json.dumps(new))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, config in CONFIGS.items():
            (folder / f"{name}.toml").write_text(config.replace('"clicks"', f'"{name}"'))
            assert command.main([f"{name}.toml", "--quiet"]) == 0
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_those_of_predict(trained: Path, name: str) -> None:
    model = trained / f"runs/{name}/model"
    exported = export_onnx(model)
    assert Path(exported["output"]).stat().st_size == exported["bytes"]
    new = json.loads((trained / "new.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = sanderling.torch.predict(model, trained / "new.csv")
    expected = expected[:, 0] if expected.ndim > 1 else expected
    with serve(model) as url:
        np.testing.assert_allclose(scores(url, new), expected, rtol=1e-5, atol=1e-5)
        one = [scores(url, [row])[0] for row in new[:5]]
        np.testing.assert_allclose(one, expected[:5], rtol=1e-5, atol=1e-5)
    with serve(model, "--built-in-engine") as url:
        np.testing.assert_allclose(scores(url, new), expected, rtol=1e-5, atol=1e-5)
    with serve(model, "--batch-window", "5ms", "--batch-rows-max", "50", "--threads", "2") as url:
        with ThreadPoolExecutor(16) as pool:
            parts = [new[at : at + at % 4 + 1] for at in range(100)]
            found = list(pool.map(lambda part: scores(url, part), parts))
        for at, part in enumerate(found):
            np.testing.assert_allclose(part, expected[at : at + at % 4 + 1], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scores(url, new), expected, rtol=1e-5, atol=1e-5)
        with urllib.request.urlopen(f"{url}/metrics") as reply:
            metrics = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if "batch" in line)
        labels = f'{{model="{name}",version="1"}}'
        batches, joined = (int(metrics[f"sanderling_serve_batch{what}_total{labels}"]) for what in ("es", "_requests"))
        assert joined == 100
        assert 0 < batches <= 100


def test_a_model_that_cannot_be_served_says_what_to_do(trained: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained / "runs/deepfm/model", model)
    for name in ("dense.onnx", "serving.json"):
        (model / name).unlink(missing_ok=True)

    def check(expected: str) -> None:
        done = subprocess.run([*COMMAND, "serve", str(model)], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 4, done.stderr
        assert expected in done.stderr

    check("was not exported: run sanderling export")
    assert cli_main(["sanderling", "export", str(model), "--onnx", "--quiet"]) == 0
    onnx = (model / "dense.onnx").read_bytes()
    (model / "dense.onnx").write_bytes(onnx[:-1] + bytes([onnx[-1] ^ 1]))
    check("dense.onnx: is damaged, or not of this model")
    (model / "dense.onnx").write_bytes(onnx)
    serving = json.loads((model / "serving.json").read_text())
    (model / "serving.json").write_text(json.dumps({**serving, "checkpoint": "0"}))
    check("belongs to an earlier state of the model")
    (model / "serving.json").write_text(json.dumps({**serving, "format": 9}))
    check("has format 9, this version reads 1")
    (model / "serving.json").write_text(json.dumps(serving))
    done = subprocess.run(
        [*COMMAND, "serve", str(model), "--onnxruntime", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "no libonnxruntime.so in this directory" in done.stderr


def test_contributions_are_refused_and_rows_are_looked_up(trained: Path) -> None:
    model = trained / "runs/deepfm/model"
    export_onnx(model)
    row = {"user": "u1", "item": "i1", "genres": ["g1"], "seen": None, "age": 1.0, "price": 2}
    with serve(model) as url:
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(url, "/predict", {"rows": [row], "explain": True})
        assert "only scores of lr, fm and ffm models are explained" in refused.value.read().decode()
        found = ask(url, "/tables/user/rows", {"values": ["u1"]})
        assert found["dim"] == 5
        assert found["rows"][0]["found"]
        with urllib.request.urlopen(f"{url}/v2/models/deepfm") as reply:
            metadata = json.load(reply)
        assert [entry["name"] for entry in metadata["inputs"]] == ["user", "item", "genres", "seen", "age", "price"]
        assert [entry["name"] for entry in metadata["outputs"]] == ["score"]
        for count in (0, 600, 4096):
            assert len(scores(url, [row] * count)) == count


def test_scores_of_the_bundled_data_are_those_of_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[3]
    config = (root / "examples/adult_deepfm.toml").read_text().replace("data/adult", str(root / "data/adult"))
    (tmp_path / "adult.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    assert command.main(["adult.toml", "--quiet", "--passes", "1", "--name", "adult"]) == 0
    model = tmp_path / "runs/adult/model"
    export_onnx(model)
    expected = sanderling.torch.predict(model, root / "data/adult/adult.test.gz")
    with gzip.open(root / "data/adult/adult.test.gz", "rt") as text:
        lines = [[field.strip() for field in line.split(",")] for line in text if "," in line]
    names = tomllib.loads(config)["data"]["columns"]
    with serve(model, "--batch-window", "1ms") as url:
        with urllib.request.urlopen(f"{url}/v2/models/adult") as reply:
            taken = {entry["name"] for entry in json.load(reply)["inputs"]}
        found = [{name: field for name, field in zip(names, line, strict=True) if name in taken} for line in lines]
        served = np.concatenate([scores(url, found[at : at + 4000]) for at in range(0, len(found), 4000)])
        # The server looks at one group of rows in 16, and compares 2,000 keys and more.
        for at in range(16 * 40):
            some = [found[(at * 64 + row) % len(found)] for row in range(64)]
            scores(url, [{**row, "occupation": row["occupation"].upper()} for row in some])
        drift = drift_of(url)
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-5)
    assert drift["occupation"] > 0.25
    assert drift["sex"] < 0.25
