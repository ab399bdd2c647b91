"""One trainer over a hub and a server, with the keys of a long history on its link or fed to the server by the hub.

    python bench/hub_feeds.py                           three rounds in turns, links as fast as this machine
    python bench/hub_feeds.py --rate-mib 8              the trainer's links give 8 MiB/s, both ways together
    python bench/hub_feeds.py --compress zstd           what the hub sends is compressed

What goes between the trainer and the hub, and between the trainer and the server, goes through relays that count it.
What goes from the hub to the server does not: that is another link. Three ways: the trainer has the keys and pools; it
has the keys and feeds them to the server; the hub feeds them. Nothing is trained but the rows, by gradients of ones.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import sanderling

_PIECE_BYTES = 64 << 10
_DIM = 16
_BATCH = 512
_SPEC = '[[feature]]\nname = "id"\nkey = "raw"\n[[feature]]\nname = "history"\ntype = "multi"\nkey = "raw"\n'
_WAYS = ("keys", "fed by trainer", "fed by hub")


@dataclass
class Link:
    """What went over the trainer's link, both ways, and how fast it may go."""

    bytes_per_s: float
    total: int = 0
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def give(self, count: int) -> None:
        """Returns when so many bytes may go."""
        with self._lock:
            self.total += count
            self._free_at = max(self._free_at, time.monotonic()) + count / self.bytes_per_s
            free_at = self._free_at
        time.sleep(max(free_at - time.monotonic(), 0.0))


@contextmanager
def relay(to: str, link: Link) -> Iterator[str]:
    """Forwards connections to host:port over the link; gives its own address."""
    host, port = to.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(_PIECE_BYTES):
                link.give(len(piece))
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side is gone, and so is this one soon

    def carry(near: socket.socket) -> None:
        with near, socket.create_connection((host, int(port))) as far:
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=pump, args=(far, near), daemon=True)
            back.start()
            pump(near, far)
            back.join()

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=carry, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@contextmanager
def process(command: Sequence[str], folder: Path) -> Iterator[str]:
    """A `sanderling` that listens; gives its address."""
    line = [sys.executable, "-m", "sanderling", *command]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(line, cwd=folder, **pipes) as running:
        try:
            assert running.stdout is not None
            said = running.stdout.readline()
            if not said.startswith("listening at "):
                raise sanderling.HubError(f"{' '.join(command)} did not start")
            yield said.removeprefix("listening at ").strip().removeprefix("tcp://")
        finally:
            running.kill()


@dataclass
class Fed:
    """One run of a trainer."""

    seconds: float
    rows: int
    link_bytes: int
    sums: npt.NDArray[np.float32]
    """The rows of some keys afterwards."""


def write(folder: Path, rows: int, history: int) -> None:
    """So many rows with a history of so many keys each."""
    draw = random.Random(3)
    lines = ["label,id,history"]
    for row in range(rows):
        lines.append(f"{row % 2},{row},{'|'.join(str(draw.randrange(1 << 20)) for _ in range(history))}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "spec.toml").write_text(_SPEC)


def feed(way: str, folder: Path, bytes_per_s: float, compression: Literal["lz4", "zstd"] | None = None) -> Fed:
    """Trains on all rows, the history's keys going one way."""
    link = Link(bytes_per_s)
    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(process(["ps", "--listen", "127.0.0.1:0", "--no-local", "--threads", "1"], folder))
        options = ["--listen", "127.0.0.1:0", "--spec", "spec.toml", "--batch-size", str(_BATCH), "--linger", "2s"]
        if way == "fed by hub":
            options += ["--ps", server, "--feed", "history=history:sum"]
        hub = enter(process(["hub", *options, "rows.csv"], folder))
        connection = sanderling.connect(enter(relay(server, link)))
        tables = [connection.table(name, _DIM, optimizer={"type": "sgd", "lr": 1.0}) for name in ("id", "history")]
        # By the bytes the id stays with the trainer, and the history goes to the server.
        pool_at: Literal["trainer", "auto"] = "auto" if way == "fed by trainer" else "trainer"
        embedding = sanderling.Embedding(tables, [("id", 0, "sum"), ("history", 1, "sum")], pool_at=pool_at)
        start = time.monotonic()
        rows = 0
        hubs = f"hub://{enter(relay(hub, link))}"
        for batch in sanderling.FeedQueue(sanderling.HubSource(hubs, compression=compression), embedding):
            assert batch.lookup is not None
            batch.lookup.add_grads(np.ones((len(batch), 2 * _DIM), np.float32))
            batch.lookup.push()
            rows += len(batch)
        embedding.finish()
        seconds = time.monotonic() - start
        used = embedding.pooled_at
        expected = {"keys": "trainer", "fed by trainer": "servers", "fed by hub": "hub"}[way]
        if used[expected]["features"] == 0:
            raise sanderling.ConfigError(f"nothing was pooled by way of {expected}: {used}")
        link_bytes = link.total
        sums = tables[1].pull(np.arange(1 << 12, dtype=np.uint64))
    return Fed(seconds, rows, link_bytes, sums)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints, and gives the medians by way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--history", type=int, default=50, help="keys per row")
    parser.add_argument("--rate-mib", type=float, default=0.0, help="of the trainer's links; 0: any")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compress", choices=("lz4", "zstd"), help="what the hub sends")
    options = parser.parse_args(arguments)
    bytes_per_s = options.rate_mib * (1 << 20) or 1e12
    runs: dict[str, list[Fed]] = {way: [] for way in _WAYS}
    with TemporaryDirectory() as folder:
        write(Path(folder), options.rows, options.history)
        for _ in range(options.rounds):
            for way in _WAYS:
                runs[way].append(feed(way, Path(folder), bytes_per_s, options.compress))
    for way in _WAYS:
        if not np.allclose(runs[way][0].sums, runs["keys"][0].sums, atol=1e-6):
            raise sanderling.Error(f"{way}: the rows are other ones")
    result: dict[str, Any] = {"rows": options.rows, "history": options.history, "rate_mib": options.rate_mib}
    result["compress"] = options.compress
    for way in _WAYS:
        fed = runs[way]
        result[way] = {
            "bytes_per_example": round(statistics.median(run.link_bytes / run.rows for run in fed)),
            "examples_per_s": round(statistics.median(run.rows / run.seconds for run in fed)),
        }
        print(
            f"{way:15} {result[way]['bytes_per_example']:6} bytes per example on the trainer's links, "
            f"{result[way]['examples_per_s']:7} examples/s"
        )
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
