"""A run with three faults, for people who try to find them from the pages alone.

    python bench/bad_run.py --sanderling target/debug/sanderling

Starts processes below a folder and prints their pages, until Ctrl-C:

- a cluster of two groups, one of which gets most of the load, through a few keys;
- a training whose feature `session` has another key in each row;
- a server of predictions whose requests spell the feature `city` in another way than the training did;
- a deep training that reads from a hub, whose input comes slowly (with --hub; needs PyTorch).

docs/results/2026-11-29-newcomer.md tells of a try.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import sanderling

_ROWS = 3_000_000
_FM = """
[label]
column = "label"
[[feature]]
column = "user"
type = "categorical"
[[feature]]
column = "item"
type = "categorical"
[[feature]]
column = "city"
type = "categorical"
[[feature]]
column = "session"
type = "categorical"
[model]
type = "fm"
rank = 8
[train]
batch_size = 256
"""
_DEEP = _FM.replace('type = "fm"\nrank = 8', 'type = "deepfm"\ndim = 8')


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _row(number: int, draw: random.Random) -> str:
    user, item, city = draw.randrange(5000), draw.randrange(800), draw.randrange(40)
    return f"{int(draw.random() < 0.1 + 0.4 * (item % 2))},u{user},i{item},c{city},s{number}\n"


def _write_rows(path: Path, rows: int) -> None:
    draw = random.Random(1)
    with path.open("w") as file:
        file.write("label,user,item,city,session\n")
        file.writelines(_row(number, draw) for number in range(rows))


class _Processes:
    """Processes below a folder; their output is in files there."""

    def __init__(self, folder: Path, program: str, stack: ExitStack) -> None:
        self.folder, self.program, self.stack = folder, program, stack

    def start(self, name: str, words: str, command: list[str] | None = None, **more: object) -> subprocess.Popen[bytes]:
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        line = [*(command or [self.program]), *words.split()]
        process: subprocess.Popen[bytes] = subprocess.Popen(line, cwd=self.folder, stdout=log, stderr=log, **more)  # type: ignore[call-overload]
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def run(self, words: str) -> None:
        subprocess.run([self.program, *words.split()], cwd=self.folder, check=True, capture_output=True)


def _wait(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens at port {port}")


def _load(registry: str, stopped: threading.Event) -> None:
    """Pulls and pushes a few keys again and again."""
    connection = sanderling.connect(registry)
    table = connection.table("load", 8)
    keys = np.array([7] * 1500 + list(range(100, 120)), np.uint64)
    while not stopped.is_set():
        table.pull(keys)
        time.sleep(0.008)


def _predict(address: str, stopped: threading.Event) -> None:
    """Asks for predictions of rows whose cities are upper case."""
    draw, number = random.Random(2), 0
    while not stopped.is_set():
        rows = []
        for _ in range(64):
            number += 1
            _, user, item, city, session = _row(number, draw).strip().split(",")
            rows.append({"user": user, "item": item, "city": city.upper(), "session": session})
        body = json.dumps({"rows": rows}).encode()
        try:
            urllib.request.urlopen(f"http://{address}/predict", body).close()
        except urllib.error.HTTPError:
            # It is overloaded.
            time.sleep(0.5)
        time.sleep(0.02)


def _trickle(process: subprocess.Popen[bytes], stopped: threading.Event) -> None:
    """Gives a hub some rows a second."""
    draw, number, out = random.Random(3), 0, process.stdin
    assert out is not None
    out.write(b"label,user,item,city,session\n")
    while not stopped.is_set():
        for _ in range(2000):
            number += 1
            out.write(_row(number % 20_000, draw).encode())
        out.flush()
        time.sleep(0.5)


def main() -> int:
    """Start everything, and wait for Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanderling", default="sanderling", help="the command to run")
    parser.add_argument("--hub", action="store_true", help="train from a slow hub, too")
    parser.add_argument("--minutes", type=float, default=30, help="time after which it ends (30)")
    options = parser.parse_args()
    program, stopped = str(Path(options.sanderling).resolve()), threading.Event()
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        all_of = _Processes(folder, program, stack)
        (folder / "fm.toml").write_text(_FM)
        (folder / "deep.toml").write_text(_DEEP)
        _write_rows(folder / "day1.csv", _ROWS)
        ports = [_free_port() for _ in range(9)]
        keeper, first, second, status, serve, hub, hub_pages, deep, _ = ports
        all_of.start("keeper", f"keeper --data keeper --listen 127.0.0.1:{keeper}")
        _wait(keeper)
        registry = f"keeper://127.0.0.1:{keeper}/ads"
        for number, port in enumerate((first, second)):
            words = f"ps --cluster ads --registry {registry} --groups 2 --replicas 1 --data ps{number} --no-local"
            words += f" --listen 127.0.0.1:{port} --control 127.0.0.1:{port + 1} --no-token --sample-every 50"
            all_of.start(f"ps{number}", words)
            _wait(port + 1)
        threads = [threading.Thread(target=_load, args=(registry, stopped))]
        words = f"train fm.toml --train day1.csv --name clicks --passes 1 --ps {registry}"
        all_of.start("train", f"{words} --status-listen 127.0.0.1:{status}")
        all_of.run("train fm.toml --train day1.csv --name served --quiet --set train.max_steps=500")
        all_of.start("serve", f"serve runs/served/model --listen 127.0.0.1:{serve}")
        _wait(serve)
        threads.append(threading.Thread(target=_predict, args=(f"127.0.0.1:{serve}", stopped)))
        pages = {"keeper": keeper, "training": status, "predictions": serve, "ps": first + 1, "other ps": second + 1}
        if options.hub:
            words = f"hub --config deep.toml --format csv --listen 127.0.0.1:{hub} --metrics 127.0.0.1:{hub_pages} -"
            fed = all_of.start("hub", words, stdin=subprocess.PIPE)
            threads.append(threading.Thread(target=_trickle, args=(fed, stopped)))
            words = f"train deep.toml --train hub://127.0.0.1:{hub} --name deep --status-listen 127.0.0.1:{deep}"
            all_of.start("deep", words, [sys.executable, "-m", "sanderling"])
            pages |= {"hub": hub_pages, "deep training": deep}
        for thread in threads:
            thread.daemon = True
            thread.start()
        print("\n".join(f"http://127.0.0.1:{port}/  {what}" for what, port in pages.items()), flush=True)
        with suppress(KeyboardInterrupt):
            time.sleep(60 * options.minutes)
        stopped.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
