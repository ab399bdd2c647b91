"""Rows in memory as inputs: frames of every library give what a file with the same rows gives."""

import importlib
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import sanderling

ROWS = 5000


def columns() -> dict[str, Any]:
    """Columns of all common types; some values are missing."""
    random = np.random.default_rng(7)
    user, item = random.integers(0, 50, ROWS), random.integers(0, 40, ROWS)
    price = np.round(random.exponential(10, ROWS), 2)
    click = (random.random(ROWS) < 1 / (1 + np.exp(-np.sin(user) - np.cos(item)))).astype(np.int64)
    start = np.datetime64("2024-02-01T00:00:00", "s")
    return {
        "label": click,
        "user": [None if at % 97 == 0 else f"u{name}" for at, name in enumerate(user)],
        "item": item,
        "price": price,
        "at": start + random.integers(0, 10**6, ROWS).astype("timedelta64[s]"),
        "mobile": random.random(ROWS) < 0.5,
        "tags": [[f"t{tag}" for tag in random.integers(0, 9, count)] for count in random.integers(0, 4, ROWS)],
    }


CONFIG: dict[str, Any] = {
    "name": "frames",
    "model": {"type": "fm", "rank": 4, "init_std": 0.1},
    "optimizer": {"type": "adagrad", "lr": 0.1},
    "feature": [
        {"name": "user"},
        {"name": "item", "key": "raw"},
        {"name": "price", "type": "quantile", "buckets": 8},
        {"name": "at"},
        {"name": "mobile"},
        {"name": "tags", "type": "multi"},
    ],
    "train": {"batch_size": 64, "passes": 2, "threads": 1, "shuffle_rows": 500},
}


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return columns()


@pytest.fixture(scope="module")
def table(data: dict[str, Any]) -> pa.Table:
    return pa.table(data)


@pytest.fixture(scope="module")
def parquet(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frames") / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def model(parquet: Path) -> sanderling.Model:
    config = {**CONFIG, "data": {"train": parquet, "valid": parquet}}
    return sanderling.train(config, runs_dir=parquet.parent / "runs").load()


class Once:
    """A stream that can be read once, as a library that this one does not know may have it."""

    def __init__(self, table: pa.Table) -> None:
        self.reader = table.to_reader(max_chunksize=777)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give the capsule of the stream."""
        return self.reader.__arrow_c_stream__(requested_schema)


def polars_frame(table: pa.Table) -> Any:  # noqa: ANN401, a module that may be missing
    return pytest.importorskip("polars").from_arrow(table)


def pandas_frame(table: pa.Table) -> Any:  # noqa: ANN401, a module that may be missing
    pytest.importorskip("pandas")
    return table.to_pandas()


def duckdb_relation(table: pa.Table) -> Any:  # noqa: ANN401, a module that may be missing
    return pytest.importorskip("duckdb").from_arrow(table)


def dictionary(table: pa.Table) -> Any:  # noqa: ANN401, as the others
    texts = pa.table({name: table[name] for name in table.column_names})
    column = texts["user"].dictionary_encode()
    return texts.set_column(texts.column_names.index("user"), "user", column)


FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "chunks": lambda table: pa.concat_tables([table.slice(0, 1234), table.slice(1234)]),
    "dictionary": dictionary,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "stream": Once,
    "reader": lambda table: table.to_reader(),
    "columns": lambda _: columns(),
    "arrays": lambda table: {name: table[name].combine_chunks() for name in table.column_names},
    "rows": lambda table: table.to_pylist(),
    "list": lambda table: [table.slice(0, 2000), table.slice(2000)],
    "polars": polars_frame,
    "pandas": pandas_frame,
    "duckdb": duckdb_relation,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_is_predicted_and_evaluated_as_the_file(
    kind: str, table: pa.Table, parquet: Path, model: sanderling.Model
) -> None:
    wanted, judged = model.predict(parquet), model.evaluate(parquet)
    np.testing.assert_array_equal(model.predict(FRAMES[kind](table)), wanted)
    if kind != "rows":
        got = model.evaluate(FRAMES[kind](table))
        assert (got["auc"], got["logloss"], got["known"]) == (judged["auc"], judged["logloss"], judged["known"])


@pytest.mark.parametrize("kind", [kind for kind in FRAMES if kind != "rows"])
def test_a_frame_is_trained_on_as_the_file(kind: str, table: pa.Table, parquet: Path, tmp_path: Path) -> None:
    once = kind in {"stream", "reader"}
    config = dict(CONFIG)
    if once:
        # Several passes and the fit of boundaries read a stream again.
        config["train"] = {**CONFIG["train"], "passes": 1}
        config["feature"] = [feature for feature in CONFIG["feature"] if feature["name"] != "price"]
    by_file = sanderling.train({**config, "data": {"train": parquet}}, runs_dir=tmp_path / "file")
    by_frame = sanderling.train(config, train=FRAMES[kind](table), runs_dir=tmp_path / "frame")
    assert (by_frame.auc, by_frame.logloss) == (by_file.auc, by_file.logloss)
    np.testing.assert_array_equal(by_frame.load().predict(parquet), by_file.load().predict(parquet))


def test_frames_in_the_configuration_and_as_arguments_are_the_same(table: pa.Table, tmp_path: Path) -> None:
    inside = {**CONFIG, "data": {"train": table, "valid": table.slice(0, 100)}}
    kept = dict(inside["data"])
    first = sanderling.train(inside, runs_dir=tmp_path / "a")
    assert inside["data"] == kept, "the caller's dictionary is not changed"
    other = sanderling.train(CONFIG, train=table, valid=table.slice(0, 100), runs_dir=tmp_path / "b")
    assert first.summary["auc"] == other.summary["auc"]
    assert first.summary["measured_examples"] == 100
    assert first.load().config["data"]["train"][0].endswith(":pyarrow.Table")


def test_an_interrupted_run_over_a_frame_is_resumed(table: pa.Table, tmp_path: Path) -> None:
    whole = sanderling.train(CONFIG, train=table, runs_dir=tmp_path / "whole")
    lines = []

    def stop(line: dict[str, Any]) -> None:
        lines.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sanderling.train(
            {**CONFIG, "train": {**CONFIG["train"], "print_every_steps": 5}},
            train=table,
            runs_dir=tmp_path / "cut",
            on_line=stop,
        )
    resumed = sanderling.train(
        {**CONFIG, "train": {**CONFIG["train"], "print_every_steps": 5}},
        train=table,
        runs_dir=tmp_path / "cut",
        resume=True,
    )
    assert resumed.summary["examples"] == 2 * ROWS
    np.testing.assert_array_equal(resumed.load().predict(table), whole.load().predict(table))
    with pytest.raises(sanderling.ModelError, match=r"the size of the files of data.train changed"):
        sanderling.train(
            {**CONFIG, "train": {**CONFIG["train"], "print_every_steps": 5}},
            train=table.slice(5),
            runs_dir=tmp_path / "cut",
            resume=True,
        )


def test_test_sets_may_be_frames(parquet: Path, table: pa.Table, tmp_path: Path) -> None:
    def tests(test: Any) -> list[dict[str, Any]]:  # noqa: ANN401, all of them
        config = {**CONFIG, "data": {"train": parquet, "test": test}}
        found: list[dict[str, Any]] = sanderling.train(config, runs_dir=tmp_path / "runs").summary["tests"]
        return [{name: value for name, value in test.items() if name != "data"} for test in found]

    expected = tests({"a": str(parquet), "b": [str(parquet), str(parquet)]})
    assert tests({"a": table, "b": [table, str(parquet)]}) == expected
    assert tests({"a": str(parquet), "b": [pandas_frame(table), table]}) == expected
    assert tests({"a": table.to_pydict(), "b": [parquet, table]}) == expected
    assert tests(table) == [{**expected[0], "name": "test"}]


@pytest.mark.parametrize("kind", [kind for kind in FRAMES if kind != "rows"])
def test_a_queue_gives_the_keys_of_the_file(kind: str, table: pa.Table, parquet: Path, model: sanderling.Model) -> None:
    def read(source: Any) -> Iterator[Any]:  # noqa: ANN401, all of them
        with sanderling.FeedQueue(sanderling.FileSource(source, model.spec, batch_size=512)) as queue:
            for batch in queue:
                yield batch.labels
                for feature in batch.features:
                    yield batch.keys(feature)
                    yield batch.offsets(feature)

    for got, wanted in zip(read(FRAMES[kind](table)), read(parquet), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_minibatch_is_an_input(parquet: Path, model: sanderling.Model, tmp_path: Path) -> None:
    [batch] = sanderling.FeedQueue(sanderling.FileSource(parquet, model.spec, batch_size=ROWS))
    np.testing.assert_array_equal(model.predict(batch), model.predict(parquet))
    assert model.evaluate(batch)["auc"] == model.evaluate(parquet)["auc"]
    shuffled = sanderling.Batch(
        [(name, batch.keys(name), batch.offsets(name), batch.values(name)) for name in reversed(batch.features)],
        batch.labels,
    )
    np.testing.assert_array_equal(model.predict(shuffled), model.predict(parquet))
    features = [feature for feature in model.spec["feature"] if feature["name"] in {"user", "item"}]
    config = {**CONFIG, "feature": features}
    by_batch = sanderling.train(config, train=batch, runs_dir=tmp_path / "a")
    by_file = sanderling.train(config, train=parquet, runs_dir=tmp_path / "b")
    assert by_batch.auc == by_file.auc
    one = np.ones(1, np.uint64)
    with pytest.raises(sanderling.BadFileError, match='Batch: has no feature "item", but user'):
        model.predict(sanderling.Batch([("user", one, np.array([0, 1], np.uint32), None)]))


def test_a_job_of_threads_reads_a_frame(table: pa.Table, model: sanderling.Model) -> None:
    def count(worker: sanderling.Worker) -> int:
        return sum(len(batch) for batch in worker.batches(0, 100))

    source = sanderling.FileSource(table, model.spec)
    with sanderling.Job(source, workers=3) as job:
        assert sum(job.run(count)) == ROWS
    with pytest.raises(sanderling.ConfigError, match="processes read files"):
        sanderling.Job(source, hosts=["a:1", "b:1"], rank=0)


def row_of(table: pa.Table, at: int) -> dict[str, Any]:
    row: dict[str, Any] = table.slice(at, 1).to_pylist()[0]
    return row


def test_a_dictionary_of_values_is_one_row(table: pa.Table, parquet: Path, model: sanderling.Model) -> None:
    wanted = model.predict(parquet)
    for at in [0, 1, 97, ROWS - 1]:
        row = row_of(table, at)
        got = model.predict(row)
        assert isinstance(got, float)
        assert np.float32(got) == wanted[at]
        del row["label"]
        assert np.float32(model.predict(row)) == wanted[at], "no label is needed"
        assert np.float32(model.predict({**row, "unused": object()})) == wanted[at]
        others = {
            "item": np.int32(row["item"]),
            "price": Decimal(str(row["price"])),
            "at": np.datetime64(row["at"]),
            "tags": tuple(row["tags"]),
        }
        assert np.float32(model.predict({**row, **others})) == wanted[at]
        assert np.float32(model.predict({**row, "at": row["at"].isoformat()})) == wanted[at]
    with pytest.raises(sanderling.BadRowError, match=r'row: has no column "price"'):
        model.predict({"user": "u1", "item": 3})
    with pytest.raises(sanderling.BadRowError, match=r'row 1: column item: expected .*, found "x"'):
        model.predict([row, {**row, "item": "x"}])
    with pytest.raises(sanderling.BadRowError, match=r'column "price": expected numbers, .* found complex'):
        model.predict({**row, "price": 1j})


def test_threads_share_a_model(table: pa.Table, parquet: Path, model: sanderling.Model) -> None:
    wanted = model.predict(parquet)
    wrong: list[int] = []

    def work(start: int) -> None:
        rows = table.slice(start, 200).to_pylist()
        wrong.extend(at for at, row in enumerate(rows) if np.float32(model.predict(row)) != wanted[start + at])

    threads = [threading.Thread(target=work, args=[number * 200]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def without(table: pa.Table) -> pa.Table:
    return table.drop_columns(["item"])


WRONG: list[tuple[Callable[[pa.Table], Any], type[Exception], str]] = [
    (without, sanderling.BadFileError, r'pyarrow\.Table: has no column "item"; its columns are label, user'),
    (
        lambda table: table.set_column(2, "item", pa.array(["x"] * ROWS)),
        sanderling.BadRowError,
        r"pyarrow\.Table:1: column item: expected .* found \"x\"",
    ),
    (
        lambda table: table.set_column(2, "item", pa.array([{"a": 1}] * ROWS)),
        sanderling.BadFileError,
        r'column "item" has type Struct',
    ),
    (lambda _: {**columns(), "item": np.zeros(3)}, sanderling.BadFileError, r'dict: column "item" has 3 rows'),
    (lambda _: {**columns(), "item": np.zeros((ROWS, 2))}, sanderling.BadFileError, 'column "item".*2 dimensions'),
    (lambda _: {**columns(), "item": [1j] * ROWS}, sanderling.BadRowError, 'column "item".*found complex'),
    (
        lambda _: {**columns(), "item": np.zeros(ROWS, complex)},
        sanderling.BadFileError,
        'column "item".*found complex128',
    ),
    (lambda _: {**columns(), "item": ["a\udc80"] * ROWS}, sanderling.BadRowError, 'column "item": .*surrogates'),
    (lambda _: {**columns(), "item": [1 << 70] * ROWS}, sanderling.BadRowError, 'column "item": .*too (large|big)'),
    (lambda _: {**columns(), 3: np.zeros(ROWS)}, sanderling.BadFileError, "3 is no name of a column"),
    (lambda _: pa.array([1, 2]), sanderling.BadFileError, "expected columns with names, found Int64"),
    (lambda _: 3, TypeError, "int"),
    (lambda _: [], sanderling.ConfigError, "an empty list"),
]


@pytest.mark.parametrize(("frame", "kind", "text"), WRONG)
def test_errors_name_the_column(
    frame: Callable[[pa.Table], Any], kind: type[Exception], text: str, table: pa.Table, model: sanderling.Model
) -> None:
    with pytest.raises(kind, match=text):
        model.predict(frame(table))


def test_a_column_of_mixed_types_is_named(model: sanderling.Model, table: pa.Table) -> None:
    frame = pandas_frame(table).astype({"user": object})
    frame.loc[0, "user"] = 3.5
    with pytest.raises(sanderling.BadFileError, match=r"^pandas\.DataFrame: .*user"):
        model.predict(frame)


def test_a_stream_is_read_once(table: pa.Table, model: sanderling.Model) -> None:
    reader = table.to_reader()
    assert len(model.predict(reader)) == ROWS
    with pytest.raises(sanderling.NoRowsError):
        model.evaluate(reader)
    with pytest.raises(sanderling.ConfigError, match=r"passes > 1 .*Once can be read only once"):
        sanderling.train(CONFIG, train=Once(table))


def test_a_saved_model_does_not_look_for_its_frame(table: pa.Table, tmp_path: Path) -> None:
    result = sanderling.train(CONFIG, train=table, runs_dir=tmp_path)
    config = result.load().config
    with pytest.raises(sanderling.BadFileError, match=r"pyarrow\.Table: these rows were in the memory"):
        sanderling.train(config, runs_dir=tmp_path / "again")


def test_numbers_of_numpy_are_read_in_place_or_converted(model: sanderling.Model, data: dict[str, Any]) -> None:
    wanted = model.predict(data)
    item = data["item"]
    for kind in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", ">i8", "f2"]:
        np.testing.assert_array_equal(model.predict({**data, "item": item.astype(kind)}), wanted, kind)
    strided = np.repeat(item, 2)[::2]
    np.testing.assert_array_equal(model.predict({**data, "item": strided}), wanted)
    for kind in ["datetime64[ms]", "datetime64[us]", "datetime64[ns]"]:
        np.testing.assert_array_equal(model.predict({**data, "at": data["at"].astype(kind)}), wanted, kind)
    texts = np.array([text or "" for text in data["user"]])
    np.testing.assert_array_equal(model.predict({**data, "user": texts}), wanted)
    np.testing.assert_array_equal(model.predict({**data, "user": texts.astype(object)}), wanted)
    times = [datetime.fromisoformat(str(at)) for at in data["at"]]
    np.testing.assert_array_equal(model.predict({**data, "at": times}), wanted)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_series_is_a_column(library: str, model: sanderling.Model, data: dict[str, Any]) -> None:
    module = pytest.importorskip(library)
    series = {name: module.Series(data[name]) for name in ["item", "price", "user"]}
    np.testing.assert_array_equal(model.predict({**data, **series}), model.predict(data))


def test_pandas_without_pyarrow(
    model: sanderling.Model, table: pa.Table, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pandas_frame(table)

    def missing(_: object, requested_schema: object | None = None) -> object:
        del requested_schema
        raise ImportError("pyarrow")

    monkeypatch.setattr(importlib.import_module("pandas").DataFrame, "__arrow_c_stream__", missing)
    np.testing.assert_array_equal(model.predict(frame), model.predict(parquet))
