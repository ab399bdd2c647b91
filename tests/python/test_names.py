"""Names of keys: keys of values and values of keys, exported rows with names, neighbours by name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import sanderling

MOVIES = [f"Movie {number}" for number in range(60)] + ["Tab\tand \\", "größe", "Heat"]
ROWS = 4000


def run(*arguments: object, code: int = 0, given: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sanderling", *map(str, arguments)], capture_output=True, text=True, input=given
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def config_of(**names: object) -> dict[str, Any]:
    return {
        "name": "movies",
        "model": {"type": "fm", "rank": 5, "init_std": 0.1},
        "optimizer": {"type": "adagrad", "lr": 0.2},
        "feature": [{"name": "user"}, {"name": "movie"}, {"name": "tags", "type": "multi", "separator": "|"}],
        "train": {"batch_size": 32, "passes": 2, "threads": 1},
        "names": names or {"features": ["movie", "tags"]},
    }


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    random = np.random.default_rng(11)
    movie = random.integers(0, len(MOVIES), ROWS)
    user = random.integers(0, 30, ROWS)
    return {
        "label": (random.random(ROWS) < 1 / (1 + np.exp(-np.sin(user) - np.cos(movie)))).astype(np.int64),
        "user": [f"u{number}" for number in user],
        "movie": [MOVIES[number] if at % 50 else None for at, number in enumerate(movie)],
        "tags": [["old", "new"][number % 2] for number in movie],
    }


@pytest.fixture(scope="module")
def model_dir(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    result = sanderling.train(config_of(), train=data, runs_dir=folder / "runs")
    report = result.report.read_text()
    assert "Movie " in report
    return result.model_dir


def test_a_key_is_that_of_the_documentation() -> None:
    # From docs/keys.md, which has them from another implementation of XXH3.
    assert sanderling.key("t", "2023-11-14") == 0xC5C3DB80BC4A1B07
    assert sanderling.key("t", True) == 0x933E0A84FD3CE258
    np.testing.assert_array_equal(
        sanderling.key("t", [42, 42.0, "42"]), np.full(3, 0x1FD9F236339FFADF, dtype=np.uint64)
    )
    raw = {"feature": [{"name": "t", "key": "raw"}]}
    assert sanderling.key("t", "-1", spec=raw) == 2**64 - 1
    assert sanderling.key("t", np.array([3, 4]), spec=raw).tolist() == [3, 4]
    quantile = {"feature": [{"name": "t", "type": "quantile", "boundaries": [1, 2, 5]}]}
    assert sanderling.key("t", 1.5, spec=quantile) == 0x300D47F93B7B0078
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ("x", raw, "expected a 64-bit integer"),
        (["a|b"], {"feature": [{"name": "t", "type": "multi"}]}, "has 2 keys"),
    ]
    for value, spec, text in cases:
        with pytest.raises(sanderling.BadRowError, match=text):
            sanderling.key("t", value, spec=spec)
    with pytest.raises(sanderling.ConfigError, match='no feature "x"; the features are t'):
        sanderling.key("x", 1, spec=raw)
    cross = {"feature": [{"name": "t", "type": "cross", "columns": ["a", "b"]}]}
    with pytest.raises(sanderling.ConfigError, match="made of the columns a, b"):
        sanderling.key("t", "1", spec=cross)


def test_the_command_shows_keys_and_their_values(model_dir: Path, data: dict[str, Any], tmp_path: Path) -> None:
    model = sanderling.load(model_dir)
    keys = {name: model.key("movie", name) for name in MOVIES}
    assert keys["Heat"] == sanderling.key("movie", "Heat")
    assert run("key", model_dir, "movie", "Heat", "größe") == f"Heat\t{keys['Heat']}\ngröße\t{keys['größe']}\n"
    (tmp_path / "movies.toml").write_text('[data]\ntrain = "x.csv"\n[[feature]]\nname = "movie"\n')
    got = json.loads(run("key", tmp_path / "movies.toml", "movie", "Heat", "--json"))
    assert got["keys"] == [{"value": "Heat", "key": keys["Heat"], "hex": f"{keys['Heat']:016x}"}]
    (tmp_path / "keys.txt").write_text(f"{keys['größe']}\n\n{keys['Heat']:#x}\n7\n")
    lines = f"{keys['größe']}\tgröße\n{keys['Heat']}\tHeat\n7\t\n"
    assert run("key", model_dir, "movie", "--invert", tmp_path / "keys.txt") == lines
    assert run("key", model_dir, "movie", "--invert", "-", given=(tmp_path / "keys.txt").read_text()) == lines
    rows = [
        "label,movie,user",
        *(
            f"0,{movie or ''},{user}"
            for movie, user in zip(data["movie"], data["user"], strict=True)
            if not movie or "\t" not in movie
        ),
    ]
    (tmp_path / "rows.csv").write_text("\n".join([*rows, ""]))
    search = ("--invert", tmp_path / "keys.txt", "--data", tmp_path / "rows.csv")
    assert run("key", tmp_path / "movies.toml", "movie", *search) == lines
    user = model.key("user", "u3")
    (tmp_path / "keys.txt").write_text(f"{user}\n")
    assert run("key", model_dir, "user", *search) == f"{user}\tu3\n"
    assert "has no names of" in run("key", model_dir, "user", "--invert", tmp_path / "keys.txt", code=2)
    assert 'no feature "x"' in run("key", model_dir, "x", "1", code=2)
    (tmp_path / "keys.txt").write_text("seven\n")
    assert 'keys.txt:1: "seven" is no key' in run("key", model_dir, "movie", "--invert", tmp_path / "keys.txt", code=2)


def test_exported_rows_are_those_of_the_table(model_dir: Path, tmp_path: Path) -> None:
    model = sanderling.load(model_dir)
    table = model.table("movie")
    names = {model.key("movie", name): name for name in MOVIES}
    wanted = {
        int(key): (names.get(int(key), "(missing)"), int(frequency), row.tolist())
        for key, frequency, row in zip(table.keys(), table.frequency(), table.rows(), strict=True)
    }
    assert len(wanted) == len(MOVIES) + 1
    run("export", model_dir, "--table", "movie", "-o", tmp_path / "movies.parquet")
    parquet = pyarrow.parquet.read_table(tmp_path / "movies.parquet").to_pylist()
    assert {row["key"]: (row["name"], row["frequency"], row["weights"]) for row in parquet} == wanted
    got = json.loads(run("export", model_dir, "--table", "movie", "-o", tmp_path / "movies.npy", "--json"))
    assert (got["rows"], got["dim"], got["named"]) == (len(wanted), 6, len(wanted))
    rows = np.load(tmp_path / "movies.npy")
    assert got["bytes"] == (tmp_path / "movies.npy").stat().st_size
    assert {int(row["key"]): (int(row["frequency"]), row["weights"].tolist()) for row in rows} == {
        key: row[1:] for key, row in wanted.items()
    }
    lines = run("export", model_dir, "--table", "movie", "--top", "5", "-o", "-").splitlines()
    assert lines[0] == "key\tname\tfrequency\tw0\tw1\tw2\tw3\tw4\tw5"
    ranked = sorted(wanted.items(), key=lambda item: (-item[1][1], item[0]))[:5]
    for line, (key, (name, frequency, weights)) in zip(lines[1:], ranked, strict=True):
        fields = line.split("\t")
        assert fields[:3] == [str(key), name.replace("\t", " "), str(frequency)]
        assert [np.float32(weight) for weight in fields[3:]] == [np.float32(weight) for weight in weights]
    user = run("export", model_dir, "--table", "user", "-o", "-").splitlines()
    assert all(line.split("\t")[1] == "" for line in user[1:])
    for arguments, text in [
        (("-o", tmp_path / "x.parquet"), "name one of its tables: user, movie, tags"),
        (("--table", "x", "-o", tmp_path / "x.parquet"), 'no table or feature "x"; the tables are user, movie, tags'),
        (("--table", "user", "-o", tmp_path / "x.csv"), "end the name in .parquet, .npy or .tsv"),
        (("--table", "user", "-o", tmp_path / "movies.npy"), "exists already; replace it with --force"),
        (("--table", "user", "-o", "-", "--json"), "--json needs --output FILE"),
    ]:
        code = 4 if "table" in text and "json" not in text else 2
        assert text in run("export", model_dir, *arguments, code=code)
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize("by", ["cosine", "dot"])
def test_neighbours_are_those_of_a_full_comparison(model_dir: Path, by: str) -> None:
    model = sanderling.load(model_dir)
    table = model.table("movie")
    keys, rows = table.keys(), table.rows()[:, 1:].astype(np.float64)
    key = model.key("movie", "Heat")
    [heat] = rows[keys == key]
    scores = rows @ heat
    if by == "cosine":
        scores /= np.linalg.norm(rows, axis=1) * np.linalg.norm(heat)
    order = [at for at in np.argsort(-scores, kind="stable") if keys[at] != key][:7]
    found = model.similar("movie", "Heat", top=7, by="cosine" if by == "cosine" else "dot")
    assert [near["key"] for near in found] == [int(keys[at]) for at in order]
    np.testing.assert_allclose([near["score"] for near in found], scores[order], rtol=1e-5, atol=1e-6)
    frequency = dict(zip(keys.tolist(), table.frequency().tolist(), strict=True))
    names = {model.key("movie", name): name for name in MOVIES}
    for near in found:
        assert near["name"] == names.get(near["key"], "(missing)")
        assert near["frequency"] == frequency[near["key"]]
    assert model.similar("movie", key=key, top=7, by="cosine" if by == "cosine" else "dot") == found
    got = json.loads(run("similar", model_dir, "movie", "Heat", "--top", "7", "--by", by, "--json"))
    assert (got["name"], [near["key"] for near in got["neighbours"]]) == ("Heat", [near["key"] for near in found])
    shown = run("similar", model_dir, "movie", "--key", key, "--top", "7", "--by", by).splitlines()
    assert [line.split("  ")[0].strip() for line in shown[1:]] == [
        str(near["name"]).replace("\t", " ") for near in found
    ] or any("\\" in line or "\t" in line for line in shown)


def test_a_row_that_is_not_there_is_named(model_dir: Path, data: dict[str, Any], tmp_path: Path) -> None:
    model = sanderling.load(model_dir)
    with pytest.raises(sanderling.NotFoundError, match='table "movie" has no row of key') as raised:
        model.similar("movie", "never seen")
    assert isinstance(raised.value, KeyError)
    assert str(raised.value).startswith("table"), "a KeyError alone would quote it"
    with pytest.raises(sanderling.NotFoundError, match='no table or feature "x"'):
        model.similar("x", key=1)
    with pytest.raises(sanderling.ConfigError, match="give a value or key="):
        model.similar("movie")
    with pytest.raises(ValueError, match="must be cosine or dot"):
        model.similar("movie", "Heat", by="l2")  # type: ignore[arg-type]
    assert 'no row of "never seen"' in run("similar", model_dir, "movie", "never seen", code=4)
    config = {**config_of(), "model": {"type": "lr"}}
    linear = sanderling.train(config, train=data, runs_dir=tmp_path).load()
    with pytest.raises(sanderling.ConfigError, match="has one weight per key"):
        linear.similar("movie", "Heat")


def test_names_go_on_with_a_resumed_run_and_stay_within_their_limit(data: dict[str, Any], tmp_path: Path) -> None:
    def stop(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    config = config_of()
    config["train"]["print_every_steps"] = 20
    with pytest.raises(KeyboardInterrupt):
        sanderling.train(config, train=data, runs_dir=tmp_path, on_line=stop)
    result = sanderling.train(config, train=data, runs_dir=tmp_path, resume=True)
    lines = run("export", result.model_dir, "--table", "movie", "-o", "-").splitlines()
    assert all(line.split("\t")[1] for line in lines[1:])
    small = sanderling.train(
        config_of(features=["movie"], max_bytes="1KiB"), train=data, runs_dir=tmp_path / "small", name="small"
    )
    lines = run("export", small.model_dir, "--table", "movie", "-o", "-").splitlines()
    assert 0 < sum(bool(line.split("\t")[1]) for line in lines[1:]) <= 1024 // 64
    assert any("all are more than names.max_bytes" in warning for warning in small.summary["warnings"])


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"features": ["x"]}, 'names.features: no feature "x"'),
        ({"features": ["price"]}, 'keys of "price" are no hashes of texts'),
        ({"features": ["movie"], "max_bytes": "many"}, r"names\.max_bytes"),
    ],
)
def test_wrong_names_are_refused(names: dict[str, Any], text: str, data: dict[str, Any]) -> None:
    config = {**config_of(**names)}
    config["feature"] = [*config["feature"], {"name": "price", "type": "numeric"}]
    with pytest.raises(sanderling.ConfigError, match=text):
        sanderling.train(config, train=data)


def test_inspect_shows_names(model_dir: Path) -> None:
    got = json.loads(run("inspect", model_dir, "--json"))
    [movie] = [table for table in got["tables"] if table["name"] == "movie"]
    model = sanderling.load(model_dir)
    names = {model.key("movie", name): name for name in MOVIES}
    for key in movie["most_frequent"] + movie["largest_norms"]:
        assert key["name"] == names.get(key["key"], "(missing)")
    assert "Movie " in run("inspect", model_dir)
