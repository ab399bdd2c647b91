"""Feed queues, lookups and batches from Python, against numpy."""

import dataclasses
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Make, in_threads

import sanderling
from sanderling import Batch, Embedding, FeedQueue, FileSource, Holdout, HubSource

ROWS = 1000
SPEC: dict[str, Any] = {"feature": [{"name": "id", "key": "raw"}, {"name": "tags", "type": "multi", "key": "raw"}]}


def keys(*values: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(values, np.uint64)


def offsets(*values: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.array(values, np.uint32)


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """A row has its number as `id`, and as many `tags` as the number has digits."""
    path = tmp_path / "clicks.csv"
    lines = [f"{row % 2},{row},{'|'.join(str(row))}" for row in range(ROWS)]
    path.write_text("\n".join(["label,id,tags", *lines]) + "\n")
    return path


def test_threads_read_the_same_column() -> None:
    column = np.arange(200_000, dtype=np.uint64)
    batch = Batch([("a", column, np.array([0, len(column)], np.uint32), None)])
    table = sanderling.Table("t", 4)

    def work(worker: int) -> None:
        for _ in range(20):
            assert len(table.pull(batch.keys("a"))) == len(column), worker
            assert not batch.keys("a").flags.writeable

    in_threads(3, work)


def test_a_batch_gives_back_what_it_is_made_from() -> None:
    values = np.array([0.5, 2.0], np.float32)
    batch = Batch([("a", keys(3, 4), offsets(0, 2, 2), values), ("b", keys(), offsets(0, 0, 0), None)])
    assert (len(batch), batch.features, batch.lookup) == (2, ["a", "b"], None)
    assert batch.keys("a").tolist() == [3, 4]
    assert batch.offsets("a").tolist() == [0, 2, 2]
    found = batch.values("a")
    assert found is not None
    assert found.tolist() == [0.5, 2.0]
    assert batch.values("b") is None
    assert np.isnan(batch.labels).all()
    assert not batch.keys("a").flags.writeable
    with pytest.raises(sanderling.ConfigError, match='"c"'):
        batch.keys("c")


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ([("a", keys(1, 2), offsets(0, 1), None)], sanderling.OffsetsError),
        ([("a", keys(1), offsets(1, 1), None)], sanderling.OffsetsError),
        ([("a", keys(1), offsets(), None)], sanderling.OffsetsError),
        ([("a", keys(1, 2), offsets(0, 2, 1, 2), None)], sanderling.OffsetsError),
        ([("a", keys(1), offsets(0, 1), None), ("b", keys(), offsets(0, 0, 0), None)], sanderling.LengthError),
        ([("a", keys(1), offsets(0, 1), np.zeros(2, np.float32))], sanderling.LengthError),
        ([("a", keys(1), offsets(0, 1), None), ("a", keys(2), offsets(0, 1), None)], sanderling.ConfigError),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(columns: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="feature"):
        Batch(columns)


def test_lookups_pool_and_pushes_update(make: Make) -> None:
    table = make("fed", 4, optimizer={"type": "sgd", "lr": 1.0}, init={"type": "normal", "std": 1.0})
    tables: Any = [table]
    embedding = Embedding(tables, [("a", 0, "sum"), ("a", 0, "none"), ("b", 0, "mean")])
    batch = Batch([("b", keys(7, 5), offsets(0, 2, 2), None), ("a", keys(5, 6, 5), offsets(0, 2, 3), None)])
    before = table.pull(keys(5, 6, 7))
    lookup = embedding.lookup(batch)
    assert (embedding.width, embedding.dims, lookup.unique_keys, lookup.missing) == (8, [4, 4, 4], 3, 3)
    five, six, seven = before[0], before[1], before[2]
    np.testing.assert_allclose(lookup.pooled, np.block([[five + six, (five + seven) / 2], [five, 0 * five]]), atol=1e-6)
    np.testing.assert_allclose(lookup.rows(1), [five, six, five], atol=1e-6)
    lookup.add_grads(np.ones((2, 8), np.float32), {1: np.full((3, 4), 0.5, np.float32)})
    with pytest.raises(sanderling.LengthError, match="shape"):
        lookup.add_grads(np.ones((2, 7), np.float32))
    with pytest.raises(ValueError, match="pooled"):
        lookup.rows(0)
    lookup.push()
    embedding.finish()
    expected = before - np.array([[2 + 1 + 0.5], [1 + 0.5], [0.5]])
    np.testing.assert_allclose(table.pull(keys(5, 6, 7)), expected, atol=1e-6)
    with pytest.raises(sanderling.Error, match="pushed already"):
        lookup.push()
    kept = batch.keys("a")
    del lookup, batch
    assert kept.tolist() == [5, 6, 5], "an array keeps its memory"


@pytest.mark.parametrize(
    ("grads", "error", "text"),
    [
        ({"rows": {1: np.ones((2, 3), np.float32)}}, sanderling.LengthError, r"number 1 .* \[3, 2\], found \[2, 3\]"),
        ({"rows": {1: np.ones((6, 1), np.float32)}}, sanderling.LengthError, r"number 1 .* \[3, 2\], found \[6, 1\]"),
        ({"pooled": np.ones((2, 1), np.float32)}, sanderling.LengthError, r"pooled .* \[1, 2\], found \[2, 1\]"),
        ({"rows": {0: np.ones((3, 2), np.float32)}}, sanderling.ConfigError, "feature number 0"),
        ({"rows": {9: np.ones((3, 2), np.float32)}}, sanderling.ConfigError, "feature number 9"),
        ({"rows": {"a": np.ones((3, 2), np.float32)}}, TypeError, "rows: features are numbered .* 'a'"),
        ({"rows": {1: np.ones((3, 2))}}, TypeError, r"rows\[1\] must be .* float32 .*, not float64 \[3, 2\]"),
        ({"pooled": [[1.0, 1.0]]}, TypeError, "pooled must be a numpy array of float32 .*, not list"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(grads: dict[str, Any], error: type[Exception], text: str) -> None:
    table = sanderling.Table("t", 2, optimizer={"type": "sgd", "lr": 1.0})
    embedding = Embedding([table], [("a", 0, "sum"), ("a", 0, "none")])
    lookup = embedding.lookup(Batch([("a", keys(1, 2, 3), offsets(0, 3), None)]))
    with pytest.raises(error, match=text):
        lookup.add_grads(**grads)
    lookup.push()
    embedding.finish()
    assert not table.rows().any()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_queue_reads_everything_in_order_and_looks_up(clicks: Path, threads: int) -> None:
    table = sanderling.Table("t", 2, optimizer={"type": "sgd", "lr": 1.0}, init="zero")
    embedding = Embedding([table], [("tags", 0, "sum")])
    reports: list[str] = []
    source = FileSource(clicks, SPEC, batch_size=64, passes=2, threads=threads)
    queue = FeedQueue(source, embedding, statistics_every_s=1e-6, on_statistics=reports.append)
    seen: list[int] = []
    tags = 0
    for batch in queue:
        seen += batch.keys("id").tolist()
        assert batch.labels.tolist() == [row % 2 for row in batch.keys("id").tolist()]
        assert batch.lookup is not None
        batch.lookup.add_grads(np.ones_like(batch.lookup.pooled))
        batch.lookup.push()
        tags += len(batch.keys("tags"))
    embedding.finish()
    assert seen == [*range(ROWS), *range(ROWS)]
    assert table.rows().sum() == -2 * tags
    stats = queue.stats()
    assert (stats["batches"], stats["rows"], stats["push_grad"]["count"]) == (32, 2 * ROWS, 32)
    assert (stats["bad_rows"], stats["bad_row_messages"]) == (0, [])
    assert any("ReadSample" in report and "PushGrad" in report for report in reports)
    with urllib.request.urlopen(queue.serve_metrics(), timeout=60) as page:
        metrics = page.read().decode()
    assert f'sanderling_feed_rows_total{{queue="trainer"}} {2 * ROWS}\n' in metrics
    assert 'sanderling_feed_latency_seconds_count{queue="trainer",stage="PushGrad"} 32\n' in metrics
    assert metrics.splitlines()[0] == queue.metrics().splitlines()[0]
    with pytest.raises(ValueError, match="not a loopback address"):
        queue.serve_metrics("0.0.0.0:0")
    spec = queue.spec
    assert spec is not None
    assert sum(len(batch) for batch in FeedQueue(FileSource([clicks], spec))) == ROWS


def test_what_goes_wrong_is_raised_where_it_is_waited_for(clicks: Path) -> None:
    with clicks.open("a") as file:
        file.write("1,what,1\n")
    with pytest.raises(sanderling.BadRowError, match=r"clicks\.csv:1002"):
        sum(len(batch) for batch in FeedQueue(FileSource(clicks, SPEC)))
    table = sanderling.Table("t", 2)
    with pytest.raises(sanderling.ConfigError, match="colour"):
        FeedQueue(FileSource(clicks, SPEC), Embedding([table], [("colour", 0, "sum")]))
    with pytest.raises(sanderling.ConfigError, match="rank"):
        FeedQueue(FileSource(clicks, SPEC, rank=2, ranks=2))
    with pytest.raises(sanderling.HubError, match=r"127\.0\.0\.1:1"):
        FeedQueue(HubSource("hub://127.0.0.1:1", timeout_s=0.0))


def test_an_exception_of_a_listener_loses_no_minibatch(clicks: Path) -> None:
    told: list[str] = []

    def listen(report: str) -> None:
        told.append(report)
        if len(told) % 2:
            raise LookupError

    queue = FeedQueue(FileSource(clicks, SPEC, batch_size=64), statistics_every_s=1e-9, on_statistics=listen)
    seen: list[int] = []
    for _ in range(ROWS // 64 + 1):
        with pytest.raises(LookupError):
            next(queue)
        seen += next(queue).keys("id").tolist()
    assert seen == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"embedding": 5}, TypeError, "embedding must be a sanderling.Embedding, or have one as `native`, not int"),
        ({"statistics_every_s": np.nan}, ValueError, "statistics_every_s = NaN"),
        ({"statistics_every_s": -1.0}, ValueError, "statistics_every_s = -1"),
    ],
)
def test_options_that_are_none_are_refused(
    options: dict[str, Any], error: type[Exception], text: str, clicks: Path
) -> None:
    with pytest.raises(error, match=text):
        FeedQueue(FileSource(clicks, SPEC), on_statistics=print, **options)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"shuffle_rows": 1 << 40}, "shuffle_rows: 1099511627776 rows; at most 268435456"),
        ({"batch_size": 0}, "batch_size = 0: must be a whole number from 1 on"),
        ({"batch_size": -5}, "batch_size = -5: must be a whole number from 1 on"),
        ({"passes": 1.5}, r"passes = 1\.5: must be a whole number"),
        ({"threads": True}, "threads = True: must be a whole number"),
        ({"used_rows": 1 << 70}, "used_rows = 1180591620717411303424: must be"),
        ({"seed": -1}, "seed = -1: must be a whole number from 0 on"),
        ({"held_out": True}, "held_out without holdout"),
        ({"holdout": Holdout("hash")}, 'by = "hash" needs a column'),
        ({"holdout": Holdout("time", fraction=1.5)}, "fraction = 1.5: must be above 0 and below 1"),
        ({"holdout": Holdout("day")}, "Holdout: by: unknown variant `day`"),  # type: ignore[arg-type]
    ],
)
def test_entries_of_a_source_that_are_none_are_refused(entries: dict[str, Any], text: str, clicks: Path) -> None:
    with pytest.raises(sanderling.ConfigError, match=text):
        FeedQueue(FileSource(clicks, SPEC, **entries))


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize(
    ("holdout", "is_held_out"),
    [
        (Holdout("time", fraction=0.25), lambda row: row >= 750),
        (Holdout("time", "id", after=899.0), lambda row: row > 899),
        (Holdout("random", fraction=0.5), None),
        (Holdout("hash", "id", fraction=0.5), None),
    ],
)
def test_a_source_has_one_side_of_a_holdout(
    holdout: Holdout, is_held_out: Callable[[int], bool] | None, held_out: bool, clicks: Path
) -> None:
    def rows(*, held_out: bool, seed: int = 42, threads: int = 2) -> list[int]:
        source = FileSource(
            clicks,
            SPEC,
            batch_size=64,
            shuffle_rows=100,
            seed=seed,
            threads=threads,
            holdout=holdout,
            held_out=held_out,
        )
        queue = FeedQueue(source)
        found = sorted(key for batch in queue for key in batch.keys("id").tolist())
        assert queue.holdout is not None
        assert dataclasses.replace(queue.holdout, after=holdout.after) == holdout
        assert (queue.holdout.after is None) == (holdout.by != "time")
        return found

    found, others = rows(held_out=held_out), rows(held_out=not held_out, seed=1, threads=1)
    assert sorted([*found, *others]) == list(range(ROWS))
    if is_held_out is None:
        assert 300 < len(found) < 700
    else:
        assert found == [row for row in range(ROWS) if is_held_out(row) == held_out]


def test_a_path_that_is_not_utf_8_is_named(clicks: Path) -> None:
    path = clicks.parent / os.fsdecode(b"nu\xff.csv")
    clicks.rename(path)
    for source in (path, [path]):
        with pytest.raises(sanderling.FileError, match=r"nu\\xFF\.csv. is not UTF-8"):
            FeedQueue(FileSource(source, SPEC))


def test_batch_files_say_what_a_spec_does_not(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("income,n,a\nhigh,2,x\nlow,3,y\n")
    said = '[label]\ncolumn = "income"\npositive = ["high"]\n[weight]\ncolumn = "n"\n'
    (tmp_path / "c.toml").write_text(f'[data]\ntrain = "a.csv"\n{said}[[feature]]\nname = "a"\n')
    convert = [sys.executable, "-m", "sanderling", "convert", "c.toml", "a.batch"]
    subprocess.run(convert, check=True, cwd=tmp_path)
    found = [(batch.labels.tolist(), batch.weights.tolist()) for batch in FeedQueue(tmp_path / "a.batch")]
    assert found == [([1.0, 0.0], [2.0, 3.0])]
    other = {"label": {"column": "income", "threshold": 3.0}}
    with pytest.raises(sanderling.Error, match=r"the labels: .* in the file and .* in the spec"):
        next(FeedQueue(FileSource(tmp_path / "a.batch", other)))
    built_in = {"data": {"train": str(tmp_path / "a.batch")}}
    with pytest.raises(sanderling.Error, match=r"the labels: .* in the file and .* in the spec"):
        sanderling.train(built_in | other, runs_dir=tmp_path / "runs")
    assert sanderling.train(built_in, runs_dir=tmp_path / "runs").summary["examples"] == 2


def test_trainers_share_a_hub(clicks: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('[[feature]]\nname = "id"\nkey = "raw"\n')
    address = f"unix:{tmp_path}/hub"
    options = [
        "--listen",
        address,
        "--spec",
        str(spec),
        "--batch-size",
        "32",
        "--linger",
        "2s",
        "--trainer-timeout",
        "100ms",
        str(clicks),
    ]
    command = [sys.executable, "-m", "sanderling", "hub", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hub:
        try:
            assert hub.stdout is not None
            assert hub.stdout.readline().startswith("listening at ")
            queues = [FeedQueue(HubSource(address, name=name, threads=1), depth=2) for name in ("one", "two")]
            first = [next(queue) for queue in queues]
            seen = [key for batch in first for key in batch.keys("id").tolist()]
            queues[1].close()  # what it had and had not used, the other gets
            del queues[1]
            for batch in queues[0]:
                seen += batch.keys("id").tolist()
            assert sorted(seen) == list(range(ROWS))
        finally:
            hub.kill()
