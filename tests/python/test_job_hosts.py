"""Jobs of several processes: they compute what threads compute, and say who is missing, wrong or gone.

Run as a program this file is one of the processes, whose arguments the tests give.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import FileSource, Job, RemoteTable, Table, Worker

AnyTable = Table | RemoteTable
ROOT = Path(__file__).parents[2]
ROWS = 3000
SEED = 7


def everything(worker: Worker) -> dict[str, Any]:
    """What a worker is given, and what all agree on."""
    first = next(worker.batches(0, 8), None)
    found: dict[str, Any] = {"first": None if first is None else first.keys("features").tolist()}
    for number, (order, in_step) in enumerate(
        [("input", False), ("shuffled", False), ("input", True), ("shuffled", True)]
    ):
        minibatches = [
            batch.keys("features").tolist()
            for batch in worker.batches(number, 64, order=order, in_step=in_step)  # type: ignore[arg-type]
        ]
        found[f"{order} {in_step}"] = minibatches if in_step else sorted(key for keys in minibatches for key in keys)
        total = worker.sum("rows", np.array([float(sum(len(keys) for keys in minibatches))]))
        assert total.tolist() == [ROWS]
    # Two passes at once, of which neither is taken to its end.
    for one, other in zip(worker.batches(8, 10), worker.batches(9, 10), strict=False):
        assert (one.pass_number, other.pass_number) == (8, 9)
        break
    mine = np.array([worker.rank, 1.5])
    found["sum"] = worker.sum("sum", mine).tolist()
    found["mean"] = worker.mean("mean", mine).tolist()
    found["max"] = worker.max("max", mine).tolist()
    found["counts"] = worker.histogram("counts", np.ones(worker.rank + 1, np.uint64)).tolist()
    # More than one message to each.
    parts = [bytes([worker.rank, to]) * 200_000 for to in range(worker.workers)]
    assert worker.all_to_all("parts", parts) == [
        bytes([source, worker.rank]) * 200_000 for source in range(worker.workers)
    ]
    found["all"] = [part.hex() for part in worker.all_gather("all", bytes([worker.rank] * (worker.rank + 1)))]
    found["one"] = worker.broadcast("one", worker.workers - 1, bytes([worker.rank])).hex()
    worker.barrier("end")
    return found


def fail(worker: Worker) -> None:
    """One raises what is its own business."""
    if worker.rank == 1:
        raise KeyError("mine")
    worker.barrier("never")


def stop(worker: Worker) -> None:
    """One stops in the middle of a pass, until it is killed; the others go on without it."""
    keys: list[int] = []
    for batch in worker.batches(0, 10):
        if worker.rank == 1:
            sys.stdout.write("stopped\n")
            sys.stdout.flush()
            signal.pause()
        keys += batch.keys("features").tolist()
    counts = worker.histogram("rows", np.bincount(np.array(keys, np.int64), minlength=ROWS).astype(np.uint64))
    assert counts.tolist() == [1] * ROWS


def shuffled(worker: Worker) -> None:
    """One stops in the middle of a shuffled pass; the others hear of that where all meet, and have none of its rows."""
    batches = worker.batches(0, 10, order="shuffled")
    next(batches)
    if worker.rank == 1:
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        signal.pause()
    worker.barrier("between")
    for _ in batches:
        pass


def meet(worker: Worker) -> None:
    """All but the last one wait for it; the last one sleeps where nobody can wake it."""
    worker.barrier("begin")
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    if worker.rank + 1 == worker.workers:
        sleep = threading.Event()
        sleep.wait(600.0)
    worker.barrier("never")


def look(worker: Worker) -> None:
    """One that does other things while it is stopped hears who was at its next call."""
    worker.barrier("begin")
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while True:
        time.sleep(0.01)
        worker.batches(0, 8)


class Learn:
    """Two passes in step over a table, each sample with a gradient that depends on the rows before the step."""

    def __init__(self, table: AnyTable, dies: tuple[int, int, int, str] | None = None) -> None:
        """`dies`: which worker kills itself, in which pass and step, and when in it."""
        self.table, self.dies = table, dies

    def __call__(self, worker: Worker) -> int:
        steps = 0
        for number, order in enumerate(("input", "shuffled")):
            for batch in worker.batches(number, 64, order=order, in_step=True):  # type: ignore[arg-type]
                keys = batch.keys("features")
                # One that the sample has alone, and one that it shares.
                for part in (keys, ROWS + keys % np.uint64(41)):
                    rows = self.table.pull(part)
                    wanted = (keys % np.uint64(7)).astype(np.float32)[:, None] * np.float32(0.3)
                    self.die(worker, number, batch.number, "before")
                    worker.push_step(self.table, part, rows - wanted, lr_scale=0.5)
                self.die(worker, number, batch.number, "after")
                steps += worker.end_step()
        worker.barrier("end")
        return steps

    def die(self, worker: Worker, *place: int | str) -> None:
        if self.dies is not None and (worker.rank, *place) == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)


WORK: dict[str, Callable[[Worker], Any]] = {
    "everything": everything,
    "fail": fail,
    "stop": stop,
    "shuffled": shuffled,
    "meet": meet,
    "look": look,
}


def main(work: str, arguments: str) -> None:
    """One of the processes."""
    # A shell that starts the tests in the background lets them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = json.loads(arguments)
    connection = sanderling.connect(options.pop("ps"))
    dies = options.pop("dies", None)
    source = FileSource(options.pop("source"), seed=SEED, train=options.pop("train", True))
    job = Job(source, **options, connection=connection, timeout_s=120.0)
    run = Learn(connection.open(work), dies and tuple(dies)) if work.startswith("learn") else WORK[work]
    json.dump(job.run(run), sys.stdout)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Row `n` has the key `n`."""
    path = tmp_path / "rows.libsvm"
    path.write_text("".join(f"{row % 2} {row}:1\n" for row in range(ROWS)))
    return path


class Site:
    """Where the processes of a test find each other."""

    def __init__(self, folder: Path, ps: str, rows: Path) -> None:
        self.folder, self.ps, self.rows = folder, ps, rows

    @contextmanager
    def start(self, work: str, rank: int, workers: int, **options: object) -> Iterator[subprocess.Popen[str]]:
        """One of the processes; killed if the test does not wait for its end."""
        hosts = [f"unix:{self.folder}/worker-{other}" for other in range(workers)]
        arguments = {"source": str(self.rows), "ps": self.ps, "hosts": hosts, "rank": rank, **options}
        command = [sys.executable, __file__, work, json.dumps(arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def site(tmp_path: Path, two_servers: str, rows: Path) -> Site:
    return Site(tmp_path, two_servers, rows)


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_compute_what_threads_compute(site: Site, workers: int) -> None:
    expected = Job(FileSource(site.rows, seed=SEED), workers=workers).run(everything)
    if workers == 1:
        with site.start("everything", 0, 1) as alone:
            ends = [alone.communicate()]
    else:
        # In any order.
        with site.start("everything", 1, 2) as second, site.start("everything", 0, 2) as first:
            ends = [first.communicate(), second.communicate()]
    for (out, err), found in zip(ends, expected, strict=True):
        assert json.loads(out) == [found], err


def test_an_error_of_one_process_ends_the_others_with_its_words(site: Site) -> None:
    with site.start("fail", 0, 2) as first, site.start("fail", 1, 2) as second:
        errors = [first.communicate()[1], second.communicate()[1]]
    assert "GroupError: worker 1 at unix:" in errors[0]
    assert "mine" in errors[0]
    assert errors[1].rstrip().endswith("KeyError: 'mine'")


@pytest.mark.parametrize("on_worker_loss", ["redo", "stop"])
def test_a_process_that_is_killed_is_named_and_its_rows_are_given_to_others(site: Site, on_worker_loss: str) -> None:
    options: dict[str, Any] = {"on_worker_loss": on_worker_loss, "worker_timeout_s": 120.0}
    with site.start("stop", 0, 2, **options) as first, site.start("stop", 1, 2, **options) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "stopped\n"
        second.kill()
        _, err = first.communicate()
    goes_on = on_worker_loss == "redo"
    assert (first.returncode == 0) == goes_on, err
    assert "worker 1 at unix:" in err
    assert ("the others take its rows over" in err) == goes_on


def test_a_shuffled_pass_does_not_end_without_the_rows_of_who_was_killed(site: Site) -> None:
    options: dict[str, Any] = {"on_worker_loss": "redo", "worker_timeout_s": 120.0}
    with site.start("shuffled", 0, 2, **options) as first, site.start("shuffled", 1, 2, **options) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "stopped\n"
        second.kill()
        _, err = first.communicate()
    assert first.returncode != 0
    assert "no other worker has its rows" in err


def test_who_has_another_token_is_turned_away_and_both_say_so(site: Site) -> None:
    with site.start("everything", 0, 2, token="right") as first:
        for options in ({"token": "wrong"}, {}, {"train": False, "token": "right"}):
            with site.start("everything", 1, 2, **options) as stranger:
                assert "GroupError: worker 0 at unix:" in stranger.communicate()[1]
        with site.start("everything", 1, 2, token="right") as second:
            assert second.communicate()[1] == ""
        err = first.communicate()[1]
    assert first.returncode == 0
    assert err.count("turned away") == 2, err
    assert "the token is missing or wrong" in err
    assert "it has another configuration" in err


def test_ctrl_c_ends_a_process_that_waits_for_others(site: Site) -> None:
    with site.start("everything", 1, 2) as second:
        assert second.stderr is not None
        assert "worker 0 at unix:" in second.stderr.readline()
        second.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in second.stderr.read()
        assert second.wait() != 0


def found(table: AnyTable) -> list[tuple[int, bytes, int]]:
    """Every row: its key, its bits, and how often it was learned from."""
    rows = zip(table.keys().tolist(), table.rows(), table.frequency().tolist(), strict=True)
    return sorted((key, row.tobytes(), count) for key, row, count in rows)


@pytest.mark.parametrize(
    "dies",
    [
        None,
        (1, 0, 5, "before"),
        (2, 0, 20, "after"),
        (1, 1, 0, "after"),
        (2, 1, 46, "before"),
    ],
)
def test_in_step_a_killed_process_leaves_no_trace_in_the_bits(
    site: Site, dies: tuple[int, int, int, str] | None
) -> None:
    connection = sanderling.connect(site.ps)
    name = f"learn-{'-'.join(map(str, dies or ()))}"
    table = connection.table(name, 2, optimizer="adagrad")
    options: dict[str, Any] = {"on_worker_loss": "redo", "worker_timeout_s": 120.0, "dies": dies}
    with (
        site.start(name, 0, 3, **options) as first,
        site.start(name, 1, 3, **options) as second,
        site.start(name, 2, 3, **options) as third,
    ):
        ends = [(process, *process.communicate()) for process in (first, second, third)]
    for workers in (1, 2):
        alone = sanderling.Table("alone", 2, optimizer="adagrad")
        steps = Job(FileSource(site.rows, seed=SEED), workers=workers, tables=[alone]).run(Learn(alone))
        assert found(alone) == found(table)
    for rank, (process, out, err) in enumerate(ends):
        if dies is not None and rank == dies[0]:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 0, err
            # Each step once: one that is made again was not made.
            assert json.loads(out) == steps[:1]
    assert (dies is None) == ("the others take its rows over" not in ends[0][2])
    assert [count for _, _, count in found(table)[:ROWS]] == [2] * ROWS


def test_in_step_nothing_else_is_agreed_on_in_a_step_that_may_be_made_again(site: Site) -> None:
    connection = sanderling.connect(site.ps)
    options: dict[str, Any] = {"hosts": [f"unix:{site.folder}/alone"], "rank": 0, "connection": connection}

    def early(worker: Worker) -> None:
        batches = worker.batches(0, 64, in_step=True)
        next(batches)
        for together in (lambda: next(batches), lambda: worker.barrier("early"), lambda: worker.batches(1, 64)):
            with pytest.raises(sanderling.ConfigError, match=r"call end_step\(\)"):
                together()
        assert worker.end_step()
        worker.barrier("late")
        assert next(batches).number == 1

    def left(worker: Worker) -> None:
        next(worker.batches(0, 64, in_step=True))
        there = connection.table("left", 2)
        worker.push_step(there, np.ones(1, np.uint64), np.ones((1, 2), np.float32))

    Job(site.rows, **options, on_worker_loss="redo").run(early)
    for on_worker_loss in ("redo", "stop"):
        with pytest.raises(sanderling.ConfigError, match="step 1 would be lost"):
            Job(site.rows, **options, on_worker_loss=on_worker_loss).run(left)
    table = sanderling.Table("mine", 2)
    for given, words in [
        ({"tables": [table], **options}, "on their servers only"),
        ({"tables": [1]}, "sanderling table"),
    ]:
        with pytest.raises((sanderling.ConfigError, TypeError), match=words):
            Job(site.rows, **given)


def begun(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"


@pytest.mark.parametrize("told", [0, 1])
def test_ctrl_c_at_any_rank_ends_all_that_wait_and_they_say_who_was_stopped(site: Site, told: int) -> None:
    """One more sleeps in its own code: it never calls its worker, so it ends when it is told twice."""
    with (
        site.start("meet", 0, 3, on_worker_loss="redo", worker_timeout_s=600.0) as first,
        site.start("meet", 1, 3, on_worker_loss="redo", worker_timeout_s=600.0) as second,
        site.start("meet", 2, 3, on_worker_loss="redo", worker_timeout_s=600.0) as last,
    ):
        for process in (first, second, last):
            begun(process)
        stopped, other = (first, second) if told == 0 else (second, first)
        stopped.send_signal(signal.SIGINT)
        assert stopped.communicate()[1].rstrip().endswith("KeyboardInterrupt")
        err = other.communicate()[1]
        assert f"StoppedError: worker {told} at unix:" in err
        assert "lost" not in err
        # The first is heard at the next look of the thread that runs the job, the second ends the process.
        last.send_signal(signal.SIGINT)
        while last.poll() is None:
            time.sleep(0.2)
            last.send_signal(signal.SIGINT)
        assert last.returncode == 130


def test_who_computes_hears_of_a_stop_at_its_next_call(site: Site) -> None:
    with site.start("look", 0, 2) as first, site.start("look", 1, 2) as second:
        begun(first)
        begun(second)
        second.send_signal(signal.SIGINT)
        assert second.communicate()[1].rstrip().endswith("KeyboardInterrupt")
        assert "StoppedError: worker 1 at unix:" in first.communicate()[1]


def test_ctrl_c_ends_threads_that_wait_for_each_other(rows: Path) -> None:
    program = f"""
import signal, sys, sanderling
signal.signal(signal.SIGINT, signal.default_int_handler)
def wait(worker):
    if worker.rank == 1:
        print("begun", flush=True)
        worker.barrier("never")
try:
    sanderling.Job({str(rows)!r}, workers=2, timeout_s=600.0).run(wait)
except KeyboardInterrupt:
    sys.exit(77)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            begun(process)
            process.send_signal(signal.SIGINT)
            assert process.wait() == 77
        finally:
            process.kill()


def test_options_that_do_not_fit(site: Site) -> None:
    connection = sanderling.connect(site.ps)
    hosts = [f"unix:{site.folder}/{name}" for name in "ab"]
    for options, words in [
        ({"hosts": hosts}, "hosts: given without rank"),
        ({"rank": 0}, "rank: given without hosts"),
        ({"token": "a"}, "hosts: left out"),
        ({"connection": connection}, "hosts: left out"),
        ({"hosts": hosts, "rank": 0}, "connection: the workers"),
        ({"hosts": hosts, "rank": 2, "connection": connection}, "rank: 2, but hosts names 2"),
        ({"hosts": hosts[0], "rank": 0, "connection": connection}, "hosts: a list of the addresses"),
        ({"hosts": hosts, "rank": 0, "connection": connection, "workers": 3}, "workers: 3, but hosts names 2"),
        ({"hosts": ["shm:a", "shm:b"], "rank": 0, "connection": connection}, "hosts: shm:a"),
        ({"hosts": hosts, "rank": 0, "connection": connection, "on_worker_loss": "a"}, 'on_worker_loss: "a"'),
        (
            {"hosts": hosts, "rank": 0, "connection": connection, "worker_timeout_s": 0.5},
            "worker_timeout_s: at least 1",
        ),
        ({"hosts": hosts, "rank": 0, "connection": connection, "token": ""}, "token: empty"),
        ({"hosts": hosts, "rank": 0, "connection": connection, "tls": sanderling.Tls("ca.pem")}, "all of ca, cert"),
    ]:
        with pytest.raises(sanderling.ConfigError) as raised:
            Job(site.rows, **options)  # type: ignore[arg-type]
        assert words in str(raised.value), options


def test_a_worker_is_there_until_its_function_returns(site: Site) -> None:
    hosts = [f"unix:{site.folder}/alone"]
    connection = sanderling.connect(site.ps)
    for options in ({}, {"hosts": hosts, "rank": 0, "connection": connection, "on_worker_loss": "redo"}):
        job = Job(site.rows, **options)  # type: ignore[arg-type]
        (worker,) = job.run(lambda worker: worker)
        with pytest.raises(sanderling.ConfigError, match="its job is over"):
            worker.barrier("late")


def test_the_example_counts_by_processes_what_it_counts_by_threads(site: Site) -> None:
    example = str(ROOT / "examples/feature_count.py")
    hosts = ",".join(f"unix:{site.folder}/count-{rank}" for rank in range(2))
    command = [sys.executable, example, str(site.rows)]
    threads = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    start = [[*command, "--ps", site.ps, "--hosts", hosts, "--rank", str(rank)] for rank in range(2)]
    with ExitStack() as stack:
        processes = []
        for line in start:
            processes.append(stack.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE, text=True)))
            stack.callback(processes[-1].kill)
        assert [process.communicate()[0] for process in processes] == [threads] * 2


if __name__ == "__main__":
    main(*sys.argv[1:])
