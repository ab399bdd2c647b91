"""Jobs of several threads: who is given which rows, what they agree on, how they fail, and the examples."""

import math
import runpy
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import sanderling
from sanderling import FileSource, Job, Table, Worker

ROOT = Path(__file__).parents[2]
ROWS = 3000


def flat(lists: Iterable[Iterable[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Row `n` has the key `n`; the first half has label 0."""
    path = tmp_path / "rows.libsvm"
    path.write_text("".join(f"{int(row >= ROWS // 2)} {row}:1\n" for row in range(ROWS)))
    return path


@pytest.mark.parametrize("order", ["input", "shuffled"])
@pytest.mark.parametrize("in_step", [False, True])
def test_every_row_is_given_once(
    rows: Path, tmp_path: Path, order: Literal["input", "shuffled"], in_step: bool
) -> None:
    def given(workers: int, number: int) -> list[list[list[int]]]:
        job = Job(FileSource(rows, seed=7), workers=workers, shuffle_bytes_max=0, scratch_dir=tmp_path)
        assert job.features == ["features"]

        def work(worker: Worker) -> list[list[int]]:
            assert worker.workers == workers
            minibatches = []
            for at, batch in enumerate(worker.batches(number, 64, order=order, in_step=in_step)):
                assert (batch.pass_number, batch.number) == (number, at if in_step else 0)
                keys = batch.keys("features")
                assert (batch.labels == (keys >= ROWS // 2)).all()
                minibatches.append(keys.tolist())
            return minibatches

        return job.run(work)

    one = given(1, 0)
    for workers in (2, 3):
        many = given(workers, 0)
        assert len(many) == workers
        assert sorted(flat(flat(minibatches) for minibatches in many)) == list(range(ROWS))
        if in_step:
            steps = [sorted(flat(step)) for step in zip(*many, strict=True)]
            assert steps == [sorted(step) for step in one[0]]
    assert (given(1, 1) == one) == (order == "input")
    assert (flat(one[0]) == list(range(ROWS))) == (order == "input" and not in_step)


def test_workers_agree(rows: Path) -> None:
    def work(worker: Worker) -> int:
        mine = np.array([worker.rank, 1.5])
        assert worker.sum("sum", mine).tolist() == [3, 4.5]
        assert worker.mean("mean", mine).tolist() == [1, 1.5]
        assert worker.max("max", mine).tolist() == [2, 1.5]
        counts = worker.histogram("counts", np.ones(worker.rank + 1, np.uint64))
        assert counts.dtype == np.uint64
        assert counts.tolist() == [3, 2, 1]
        parts = worker.all_to_all("parts", [bytes([worker.rank, to]) for to in range(3)])
        assert parts == [bytes([source, worker.rank]) for source in range(3)]
        assert worker.all_gather("all", b"abc"[worker.rank :]) == [b"abc", b"bc", b"c"]
        assert worker.broadcast("one", 2, bytes([worker.rank])) == b"\x02"
        worker.barrier("end")
        return worker.rank

    assert Job(rows, workers=3).run(work) == [0, 1, 2]


def test_the_first_error_stops_all(rows: Path) -> None:
    def work(worker: Worker) -> None:
        if worker.rank == 1:
            raise KeyError("mine")
        worker.barrier("never")

    def only_the_first(worker: Worker) -> None:
        if worker.rank == 0:
            worker.barrier("a door")

    with pytest.raises(KeyError, match="mine"):
        Job(rows, workers=3).run(work)
    with pytest.raises(sanderling.ConfigError, match="take 4"):
        Job(rows, workers=3).run(lambda worker: worker.batches(0, 3, in_step=True))
    with pytest.raises(sanderling.GroupError, match="worker 1 did not come"):
        Job(rows, workers=2, timeout_s=0.2).run(only_the_first)
    unnamed, key, grad = Table("unnamed", 1), np.ones(1, np.uint64), np.ones((1, 1), np.float32)
    with pytest.raises(sanderling.GroupError, match=r'table "unnamed": .*Job\(..., tables=\[table\]\)'):
        Job(rows).run(lambda worker: worker.push_step(unnamed, key, grad))
    with pytest.raises(ValueError, match='"other"'):
        Job(rows).run(lambda worker: worker.batches(0, 1, order="other"))  # type: ignore[arg-type]
    with pytest.raises(sanderling.FileError):
        Job(rows.with_name("nothing.libsvm")).run(lambda worker: list(worker.batches(0, 1)))


@pytest.mark.parametrize(
    ("gradient", "words"),
    [(math.nan, "NaN is no number"), (1e30, "1e30 is too large"), (-math.inf, "-inf is too large")],
)
def test_a_gradient_that_no_sum_can_hold_is_named(rows: Path, gradient: float, words: str) -> None:
    table = Table("weights", 2)

    def work(worker: Worker) -> None:
        grads = np.zeros((3, 2), np.float32)
        grads[1, 1] = gradient
        worker.push_step(table, np.array([5, 6, 7]), grads)

    with pytest.raises(sanderling.GradientError, match=f'table "weights": key 6: .*{words}.*clip gradients'):
        Job(rows, tables=[table]).run(work)


def test_a_job_refuses_what_its_workers_decide(rows: Path) -> None:
    with pytest.raises(sanderling.ConfigError, match="FileSource: batch_size is not used by a Job"):
        Job(FileSource(rows, batch_size=7))
    with pytest.raises(sanderling.ConfigError, match="a job divides files, not hubs"):
        Job("hub://127.0.0.1:1")
    with pytest.raises(TypeError, match=r"`seed` is now `FileSource\(inputs, spec, seed=\)`"):
        Job(rows, seed=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("source", "workers", "words"),
    [([], 1, "source: an empty list"), (None, 0, "a job of 0 workers"), (None, 1025, "a job of 1025 workers")],
)
def test_a_job_of_nothing_or_nobody_is_refused(rows: Path, source: object, workers: int, words: str) -> None:
    with pytest.raises(sanderling.ConfigError, match=words):
        Job(rows if source is None else source, workers=workers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"batch_size": 64}, {"batch_size": 128}, "steps of 64 rows|steps of 128 rows"),
        ({"number": 0}, {"number": 1}, "pass 0|pass 1"),
        ({"order": "input"}, {"order": "shuffled"}, "in the order of the input|shuffled"),
        (
            {"number": 2, "order": "shuffled", "in_step": False},
            {"number": 3, "order": "shuffled", "in_step": False},
            "exchanged in pass 2|exchanged in pass 3",
        ),
    ],
)
def test_workers_that_go_over_different_steps_are_told_what_differs(
    rows: Path, one: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    def work(worker: Worker) -> int:
        given = {"number": 0, "batch_size": 64, "in_step": True, **(one, other)[worker.rank]}
        return sum(len(batch) for batch in worker.batches(**given))

    first, second = words.split("|")
    with pytest.raises(sanderling.GroupError, match=f"(?=.*{first})(?=.*{second})"):
        Job(rows, workers=2).run(work)


@pytest.mark.parametrize("ended", [0, 1])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_handed_in_is_applied_or_an_error(rows: Path, ended: int, goes_on: bool, workers: int) -> None:
    table = Table("weights", 1, optimizer={"type": "sgd", "lr": 1.0})

    def work(worker: Worker) -> None:
        batches = worker.batches(0, 256, in_step=True)
        for number in range(ended + 1):
            keys = next(batches).keys("features")
            worker.push_step(table, keys, np.ones((len(keys), 1), np.float32))
            worker.barrier("in the middle of a step")
            if number < ended:
                assert worker.end_step()
        if goes_on:
            next(batches)

    with pytest.raises(sanderling.ConfigError, match=rf"step {ended + 1} would be lost.*call end_step\(\)"):
        Job(rows, workers=workers, tables=[table]).run(work)
    assert len(table) == 256 * ended


@pytest.mark.parametrize(
    ("example", "text", "expected"),
    [
        (
            # Key n occurs in the rows from n on.
            "feature_count",
            "".join("0" + "".join(f" {key}:1" for key in range(1, min(row, 20) + 1)) + "\n" for row in range(1, 501)),
            [f"{key} {501 - key}" for key in range(1, 11)],
        ),
        (
            "kmeans",
            "".join(f"0 {key}:1\n" for key in range(3000)),
            [f"1000 keys around {point}" for point in ([1.0, 1.0], [5.0, 1.0], [1.0, 5.0])],
        ),
    ],
)
def test_the_example_runs(
    example: str,
    text: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "rows.libsvm"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", [example, str(path)])
    runpy.run_path(str(ROOT / f"examples/{example}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == expected
