"""Tables in this process and on parameter servers, made by the same call, so that one test checks both."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trainers import Forks

import sanderling
from sanderling import RemoteTable, Table

# One thread for torch, here and in the processes that tests start: several wait for each other actively, which makes
# small models ten times slower on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell has what it starts in the background ignore Ctrl-C, and so would whatever tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

AnyTable = Table | RemoteTable


# Makes an empty table; the arguments are those of `sanderling.Table`.
Make = Callable[..., AnyTable]


def start_server(listen: str, data: Path, *options: str) -> "subprocess.Popen[str]":
    """A server as a process, which has not come up yet."""
    command = [sys.executable, "-m", "sanderling", "ps", "--threads", "1", "--listen", listen, "--data", str(data)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)


def await_server(process: "subprocess.Popen[str]") -> None:
    """Waits until it listens."""
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening at "), "the server did not start"


@contextmanager
def servers(folder: Path, count: int) -> Iterator[str]:
    """So many shards as processes of their own; gives their address."""
    paths = [folder / f"shard{shard}" for shard in range(count)]
    processes = []
    try:
        for shard, path in enumerate(paths):
            processes.append(start_server(f"unix:{path}", folder / "data", "--shard", f"{shard}/{count}"))
        for process in processes:
            await_server(process)
        yield ",".join(f"unix:{path}" for path in paths)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def in_threads(workers: int, work: Callable[[int], None]) -> None:
    """Runs `work` for each worker; raises the first error."""
    errors: list[BaseException] = []

    def run(worker: int) -> None:
        try:
            work(worker)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[worker]) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that has all keys."""
    with servers(tmp_path_factory.mktemp("ps"), 1) as address:
        yield address


@pytest.fixture(scope="session")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of two servers that share the keys."""
    with servers(tmp_path_factory.mktemp("ps"), 2) as address:
        yield address


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Starts trainers without importing torch for each."""
    forks = Forks()
    try:
        yield forks
    finally:
        forks.close()


class OwnServer:
    """A server that a test has for itself, and may pause."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder}/ps"
        self.process = start_server(self.address, folder)
        await_server(self.process)

    def pause(self) -> None:
        """Stops it: until every thread has seen the signal, one of them may still answer."""
        self.process.send_signal(signal.SIGSTOP)
        while not self._is_stopped():
            assert self.process.poll() is None, "it has ended"
            time.sleep(0.001)

    def _is_stopped(self) -> bool:
        stats = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        try:
            return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread has just ended

    def go_on(self) -> None:
        """Ends the pause."""
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[OwnServer]:
    """A server of its own, which the test may pause."""
    server = OwnServer(tmp_path)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(params=["embedded", "one server", "two servers"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes tables here, on a server, and on two."""
    place = str(request.param)
    if place == "embedded":
        return Table
    connection = sanderling.connect(request.getfixturevalue(place.replace(" ", "_")))

    def make_remote(name: str, dim: int, **options: Any) -> RemoteTable:  # noqa: ANN401, those of Table
        connection.drop(name)
        return connection.table(name, dim, **options)

    return make_remote


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Where the dense part is: a test that takes it runs on both, and is skipped visibly where there is no GPU."""
    where: str = request.param
    if where == "cuda" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("skipped: no CUDA device")
    return where
