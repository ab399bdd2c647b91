"""Workers that are threads of this process and go in step, at a meeting of theirs and at parameter servers."""

import secrets
from collections.abc import Callable

import numpy as np
import pytest
from conftest import in_threads

import sanderling
from sanderling import Connection, Meeting, RemoteTable, SyncGroup, Table

DIM = 4
KEYS = np.arange(30, dtype=np.uint64)

# Given how many workers there are: their table, and a function that makes the group of each.
Job = tuple[Table | RemoteTable, Callable[..., SyncGroup]]
Start = Callable[[int], Job]


@pytest.fixture(params=["embedded", "two servers"])
def start(request: pytest.FixtureRequest) -> Start:
    def words() -> dict[str, object]:
        return {"optimizer": {"type": "adagrad", "lr": 0.1}, "init": {"type": "uniform", "bound": 0.5}}

    def embedded(workers: int) -> Job:
        table = Table("steps", DIM, **words())  # type: ignore[arg-type]
        meeting = Meeting([table], workers)
        assert meeting.workers == workers
        return table, lambda worker, **more: SyncGroup(meeting, 0, worker, workers, **more)

    def remote(workers: int) -> Job:
        connection: Connection = sanderling.connect(request.getfixturevalue("two_servers"))
        group = secrets.randbits(64)
        table = connection.table(f"steps {group}", DIM, **words())  # type: ignore[arg-type]
        return table, lambda worker, **more: SyncGroup(connection, group, worker, workers, **more)

    return embedded if request.param == "embedded" else remote


def gradients(step: int, rows: np.ndarray) -> np.ndarray:
    """One per sample: each draws its key's row to its target."""
    targets = np.sin(np.arange(len(rows), dtype=np.float32) * step)[:, None]
    return (rows - targets).astype(np.float32)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_steps_are_those_of_one_worker_with_the_whole_batch(start: Start, workers: int) -> None:
    samples = np.arange(60) * 7 % len(KEYS)
    expected = Table("expected", DIM, optimizer={"type": "adagrad", "lr": 0.1}, init={"type": "uniform", "bound": 0.5})
    table, join = start(workers)

    def work(worker: int) -> None:
        group = join(worker)
        assert (group.worker, group.workers, group.applied) == (worker, workers, 0)
        mine = np.array_split(np.arange(len(samples)), workers)[worker]
        for step in range(1, 6):
            keys = KEYS[samples]
            grads = gradients(step, table.pull(keys))
            group.push_step(table, step, keys[mine], grads[mine], lr_scale=0.5)
            group.wait(step)
            assert group.applied == step

    in_threads(workers, work)
    for step in range(1, 6):
        expected.push(KEYS[samples], gradients(step, expected.pull(KEYS[samples])), lr_scale=0.5)
    np.testing.assert_allclose(table.pull(KEYS), expected.pull(KEYS), atol=1e-5)
    np.testing.assert_array_equal(np.sort(table.frequency()), np.sort(expected.frequency()))


def test_who_does_not_come_is_named_and_can_be_replaced(start: Start) -> None:
    table, join = start(2)
    grads = np.ones((len(KEYS), DIM), dtype=np.float32)
    before = table.pull(KEYS)
    one = join(0, step_timeout_s=0.2)
    with pytest.raises(sanderling.GroupError, match=r"meeting \"barrier begin\": worker 1 did not come"):
        one.barrier("begin")
    one.push_step(table, 1, KEYS, grads)
    with pytest.raises(sanderling.GroupError, match="step 1: worker 1 did not come"):
        one.wait(1)
    with pytest.raises(sanderling.GroupError, match="step 5"):
        one.progress(5, bound=2)
    np.testing.assert_array_equal(table.pull(KEYS), before)
    other = join(1, attempt=3)
    assert other.applied == 0
    other.wait(1)
    one.wait(1)
    assert (table.pull(KEYS) < before).all()
    assert (one.applied, other.applied) == (1, 1)


def test_what_is_gathered_is_the_same_for_all(start: Start) -> None:
    _, join = start(3)

    def work(worker: int) -> None:
        group = join(worker)
        group.barrier("begin")
        assert group.all_gather("names", bytes([worker] * worker)) == [b"", b"\1", b"\2\2"]
        assert group.broadcast("seed", 2, b"abc" if worker == 2 else b"") == b"abc"
        mine = np.array([worker, 1.0])
        assert group.all_reduce("sum", mine).tolist() == [3.0, 3.0]
        assert group.all_reduce("mean", mine, "mean").tolist() == [1.0, 1.0]
        assert group.all_reduce("largest", mine, reduce="max").tolist() == [2.0, 1.0]
        for step in range(1, 10):
            assert group.progress(step, bound=1) <= 1

    in_threads(3, work)


def test_what_makes_no_sense_is_refused(start: Start) -> None:
    table, join = start(1)
    group = join(0)
    grads = np.ones((len(KEYS), DIM), dtype=np.float32)
    with pytest.raises(sanderling.LengthError, match="grads"):
        group.push_step(table, 1, KEYS, grads[:, 1:])
    with pytest.raises(sanderling.LengthError, match="counts"):
        group.push_step(table, 1, KEYS, grads, counts=np.ones(2, dtype=np.uint32))
    with pytest.raises(sanderling.GradientError, match="key 0"):
        group.push_step(table, 1, KEYS, grads * np.nan)
    with pytest.raises(sanderling.GroupError, match=r'table "elsewhere": .*tables=\[table\].*connection.table'):
        group.push_step(Table("elsewhere", DIM), 1, KEYS, grads)
    with pytest.raises(ValueError, match='"median"'):
        group.all_reduce("median", np.zeros(1), "median")  # type: ignore[arg-type]
    with pytest.raises(sanderling.GroupError, match="worker 1 of 1"):
        join(1)
    with pytest.raises(TypeError, match="Connection"):
        SyncGroup(table, 0, 0, 1)  # type: ignore[arg-type]
