"""One trainer fed by one hub and by two, where reading is the bottleneck: each hub's link gives a fixed rate.

    python bench/two_hubs.py                            8 MiB over links of 2 MiB/s, three rounds in turns
    python bench/two_hubs.py --mib 64 --rate-mib 16

The input is two files on a web server. Each hub has a server of its own, whose connections together give so many bytes
per second: its link. One hub reads both files over one link; two hubs read a file each, over two. So no schedule makes
two more than twice as fast as one. The time is that of the trainer, from the first byte that a link gives to the last
minibatch. Nothing is trained: what a step costs is not asked here.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sanderling

# Bytes that a link gives at a time.
_PIECE_BYTES = 16 << 10
# A row's bytes: what nobody asks for makes them long, so that decoding costs next to nothing.
_ROW_BYTES = 1024
# How long a hub may take to begin.
_PATIENCE_S = 60.0


@dataclass
class Link:
    """A rate in bytes per second that all connections of a server share, and what went over it when."""

    bytes_per_s: float
    opened: threading.Event
    """Before it is set nothing goes over the link."""
    given: list[tuple[float, int]] = field(default_factory=list)
    """Moments (seconds of the monotonic clock) and bytes, in order."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Whether anything has wanted to go over it."""
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def give(self, count: int) -> None:
        """Returns when so many bytes may go."""
        self.asked.set()
        self.opened.wait()
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + count / self.bytes_per_s
            free_at = self._free_at
        time.sleep(max(free_at - time.monotonic(), 0.0))
        with self._lock:
            self.given.append((time.monotonic(), count))

    def bytes_between(self, first_s: float, last_s: float) -> int:
        """Bytes that went over it in that time."""
        return sum(count for moment, count in self.given if first_s <= moment <= last_s)


@contextmanager
def web_server(files: dict[str, bytes], link: Link) -> Iterator[str]:
    """Serves these files over the link; gives the URL that their names follow. It knows no ranges."""

    class Handler(BaseHTTPRequestHandler):
        """Answers HEAD and GET."""

        def do_HEAD(self) -> None:
            """The length, or 404."""
            self._begin()

        def do_GET(self) -> None:
            """The file, piece by piece."""
            body = self._begin()
            for at in range(0, len(body), _PIECE_BYTES):
                piece = body[at : at + _PIECE_BYTES]
                link.give(len(piece))
                try:
                    self.wfile.write(piece)
                except OSError:
                    return  # the hub wants no more

        def _begin(self) -> bytes:
            body = files.get(self.path.removeprefix("/"))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            return body or b""

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        link.opened.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Fed:
    """One trainer, fed."""

    seconds: float
    rows: int
    links: list[Link]


def feed(file_bytes: int, bytes_per_s: float, hubs: int, folder: Path) -> Fed:
    """Feeds a trainer with two files of so many bytes from one hub or from two, each behind a link of that rate."""
    rows = file_bytes // _ROW_BYTES
    files = {f"{name}.csv": _file(name, rows) for name in (0, 1)}
    (folder / "spec.toml").write_text('[[feature]]\nname = "id"\nkey = "raw"\n')
    opened = threading.Event()
    links = [Link(bytes_per_s, opened) for _ in range(hubs)]
    with ExitStack() as stack:
        addresses = []
        for number, link in enumerate(links):
            url = stack.enter_context(web_server(files, link))
            address = f"unix:{folder}/hub{hubs}{number}"
            options = ["--listen", address, "--spec", str(folder / "spec.toml"), "--share", f"{number}/{hubs}"]
            command = [sys.executable, "-m", "sanderling", "hub", *options, "--batch-size", "256", "--linger", "2s"]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, *(url + name for name in files)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            if not process.stdout.readline().startswith("listening at "):
                raise sanderling.HubError(f"the hub at {address} did not start")
            addresses.append(address)
        # How long processes take to start is not asked, nor how long to ask for the first bytes.
        for link in links:
            if not link.asked.wait(_PATIENCE_S):
                raise sanderling.HubError("a hub does not read its input")
        opened.set()
        seen = sum(len(batch) for batch in sanderling.FeedQueue("hub://" + ",".join(addresses)))
        ended = time.monotonic()
    began = min(link.given[0][0] for link in links)
    return Fed(ended - began, seen, links)


def _file(number: int, rows: int) -> bytes:
    lines = [f"{row % 2},{number * rows + row},".encode().ljust(_ROW_BYTES - 1, b"x") for row in range(rows)]
    return b"\n".join([b"label,id,padding", *lines, b""])


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measures, prints, and returns seconds per round and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=8.0, help="MiB of both files together (8)")
    parser.add_argument("--rate-mib", type=float, default=2.0, help="MiB per second of a hub's link (2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, one hub and two in turns (3)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args(arguments)
    file_bytes, rate = int(options.mib * (1 << 20) / 2), options.rate_mib * (1 << 20)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(options.rounds):
        for hubs, taken in seconds.items():
            with TemporaryDirectory() as folder:
                fed = feed(file_bytes, rate, hubs, Path(folder))
            taken.append(fed.seconds)
            print(f"round {number + 1}, hubs {hubs}: {fed.seconds:.2f} s, {fed.rows / fed.seconds:,.0f} rows/s")
    one, two = statistics.median(seconds[1]), statistics.median(seconds[2])
    schedule = {hubs: options.mib / options.rate_mib / hubs for hubs in seconds}
    print(f"the links alone take {schedule[1]:.2f} s and {schedule[2]:.2f} s")
    print(f"medians {one:.2f} s and {two:.2f} s: two hubs feed {one / two:.2f} times as fast as one")
    result = {"one_hub_s": seconds[1], "two_hubs_s": seconds[2], "ratio": one / two}
    if options.json:
        print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
