"""Reads of many rows by key: Sanderling by frames, gRPC and RESP against Redis and memcached, on the same processors.

    python bench/lookup_vs_redis.py                               5 M rows of 32 floats, 512 keys per read
    python bench/lookup_vs_redis.py --rows 200000 --seconds 1 --rounds 1

One client program, `sanderling-bench lookup`, reads from all servers; `redis-benchmark` reads from Redis and from the
RESP front as well. Servers run all the time, each filled with the same rows, and turns are interleaved: in each round
every server is asked once for every distribution of keys. Processor time of a server is that of its process over the
turn.

Needs target/release/sanderling and sanderling-bench (cargo build --release -p sanderling-cli -p sanderling-bench), and
from Debian redis-server, redis-tools and memcached; a server that is not installed is left out, and a line says so.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# How long a server may take to begin, and a model to load.
_PATIENCE_S = 600.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB = 1024


@dataclass
class Server:
    """A process that has the rows."""

    name: str
    process: "subprocess.Popen[bytes]"
    empty_bytes: int

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def bytes(self) -> int:
        """Resident memory."""
        return resident(self.process.pid)


@dataclass
class Cell:
    """A way to read from a server, and what was measured."""

    name: str
    server: Server
    target: str
    by_redis_benchmark: bool = False
    turns: dict[str, list[dict[str, float]]] = field(default_factory=dict)


def resident(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * _KIB
    return 0


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=Path(__file__).parents[1] / "target/release")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--keys", type=int, default=512, help="keys per read")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--dists", default="zipf0.99,uniform")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder for the model and sockets, kept [default: temporary]")
    parser.add_argument("--json", type=Path, help="file to write all turns to")
    return parser.parse_args()


@contextmanager
def running(name: str, command: list[str], log: Path) -> Iterator[Server]:
    """A server while the block runs; its output goes to a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        time.sleep(0.5)
        yield Server(name, process, resident(process.pid))
    finally:
        process.terminate()
        process.wait()


def wait_for(log: Path, text: str, server: Server) -> str:
    """The rest of the line with a text that a server has printed."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        for line in log.read_text(errors="replace").splitlines():
            if text in line:
                return line.partition(text)[2].strip()
        if server.process.poll() is not None:
            sys.exit(f"{server.name} has ended:\n{log.read_text(errors='replace')}")
        time.sleep(0.1)
    sys.exit(f"{server.name} did not start in time: {log}")


def train(args: argparse.Namespace, folder: Path) -> Path:
    """A model whose table `user` has the keys 0 to rows - 1."""
    model = folder / "runs/rows/model"
    if model.exists():
        return model
    with (folder / "rows.csv").open("w") as rows:
        rows.write("user,label\n")
        for first in range(0, args.rows, 100_000):
            keys = range(first, min(first + 100_000, args.rows))
            rows.write("".join(f"{key},{key % 2}\n" for key in keys))
    # Plain gradient descent has no state beside the weights.
    (folder / "rows.toml").write_text(
        f'name = "rows"\ndata = {{ train = "rows.csv" }}\nmodel = {{ type = "fm", rank = {args.dim - 1} }}\n'
        'optimizer = { type = "sgd", lr = 0.01 }\nfactor_optimizer = { type = "sgd", lr = 0.01 }\n'
        '[[feature]]\nname = "user"\nkey = "raw"\n'
    )
    subprocess.run([args.programs / "sanderling", "train", "rows.toml", "--quiet"], cwd=folder, check=True)
    (folder / "rows.csv").unlink()
    return model


def lookup(args: argparse.Namespace, target: str, *options: str) -> dict[str, Any]:
    """Runs the client; its report if `--json` is among the options."""
    command = [
        str(args.programs / "sanderling-bench"),
        "lookup",
        target,
        "--rows",
        str(args.rows),
        "--dim",
        str(args.dim),
    ]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    return json.loads(done.stdout) if "--json" in options else {}


def turn(args: argparse.Namespace, cell: Cell, dist: str, seed: int) -> dict[str, float]:
    """One measurement of a cell."""
    cpu = cell.server.cpu_s()
    if cell.by_redis_benchmark:
        return redis_benchmark(args, cell, cpu)
    report = lookup(
        args, cell.target, "--batch-size", str(args.keys), "--connections", str(args.connections), "--dist", dist,
        "--duration", f"{int(args.seconds * 1000)}ms", "--seed", str(seed), "--json", "-",
    )  # fmt: skip
    if report["absent"]:
        sys.exit(f"{cell.name}: {report['absent']} keys had no row")
    return {
        "per_s": report["requests_per_s"],
        "p50_us": report["latency"]["p50_ns"] / 1e3,
        "p99_us": report["latency"]["p99_ns"] / 1e3,
        "client_us": report["client_us_per_request"],
        "server_us": (cell.server.cpu_s() - cpu) * 1e6 / report["requests"],
    }


def redis_benchmark(args: argparse.Namespace, cell: Cell, cpu: float) -> dict[str, float]:
    """Reads by redis-benchmark, whose keys are uniform; its number of reads is chosen for the time of a turn."""
    address = cell.target.removeprefix("redis:")
    where = ["-s", address] if "/" in address else ["-p", address.rpartition(":")[2]]
    base = ["redis-benchmark", *where, "-c", str(args.connections), "-r", str(args.rows), "--csv"]
    keys = ["MGET", *["user:__rand_int__"] * args.keys]

    def run(count: int) -> tuple[dict[str, str], float]:
        before = os.times()
        done = subprocess.run([*base, "-n", str(count), *keys], check=True, capture_output=True, text=True)
        after = os.times()
        lines = [line.split(",") for line in done.stdout.splitlines() if line.startswith('"')]
        names, values = ([word.strip('"') for word in line] for line in lines[-2:])
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        return dict(zip(names, values, strict=True)), cpu_s

    rate = float(run(400)[0]["rps"])
    cpu, count = cell.server.cpu_s(), max(400, int(rate * args.seconds))
    found, client_s = run(count)
    return {
        "per_s": float(found["rps"]),
        "p50_us": float(found["p50_latency_ms"]) * 1e3,
        "p99_us": float(found["p99_latency_ms"]) * 1e3,
        "client_us": client_s * 1e6 / count,
        "server_us": (cell.server.cpu_s() - cpu) * 1e6 / count,
    }


def start(args: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Cell]:
    """Starts all servers and fills them."""

    def begin(name: str, command: list[str]) -> tuple[Server, Path]:
        log = folder / f"{name.replace(' ', '-')}.log"
        return stack.enter_context(running(name, command, log)), log

    cells, program = [], str(args.programs / "sanderling")
    # A server listens at a socket and in shared memory beside its port.
    ps, log = begin("ps", [program, "ps", "--listen", "127.0.0.1:0", "--no-token"])
    wait_for(log, "listening at ", ps)
    for line in log.read_text().splitlines():
        _, found, address = line.partition("listening at ")
        if found:
            kind = {"tcp": "TCP", "shm": "shared memory"}.get(address.partition(":")[0], "unix")
            cells.append(Cell(f"frames, {kind}", ps, f"ps:{address.strip()}"))
    lookup(args, cells[-1].target, "--fill")
    model = train(args, folder)
    serve, log = begin("serve", [program, "serve", str(model), "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
    address = wait_for(log, "listening at http://", serve)
    resp = wait_for(log, "resp at ", serve)
    cells.append(Cell("gRPC Lookup", serve, f"grpc:{address}"))
    cells.append(Cell("RESP", serve, f"redis:{resp}"))
    if shutil.which("redis-server"):
        socket = f"{folder}/redis.sock"
        options = ["--port", "7379", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
        redis, log = begin("redis", ["redis-server", *options])
        wait_for(log, "Ready to accept connections", redis)
        cells += [Cell("Redis, unix", redis, f"redis:{socket}"), Cell("Redis, TCP", redis, "redis:127.0.0.1:7379")]
        lookup(args, cells[-1].target, "--fill")
    else:
        print("redis-server is not installed: left out")
    if shutil.which("redis-benchmark"):
        cells += [
            Cell(f"{cell.name}, redis-benchmark", cell.server, cell.target, by_redis_benchmark=True)
            for cell in cells
            if cell.target.startswith("redis:")
        ]
    if shutil.which("memcached"):
        mib = args.rows * (args.dim * 4 + 128) >> 19
        options = ["-u", "root", "-t", "2", "-m", str(mib), "-l", "127.0.0.1", "-p", "7211"]
        memcached, log = begin("memcached", ["memcached", *options])
        cells.append(Cell("memcached, TCP", memcached, "memcached:127.0.0.1:7211"))
        lookup(args, cells[-1].target, "--fill")
    else:
        print("memcached is not installed: left out")
    return cells


def show(args: argparse.Namespace, cells: list[Cell]) -> None:
    """Prints the medians of all cells."""
    by_name = {cell.name: cell for cell in cells}
    for dist in args.dists.split(","):
        base = by_name.get("Redis, TCP")
        redis = statistics.median(turn["per_s"] for turn in base.turns[dist]) if base else 0.0
        print(f"\n{args.keys} keys of {args.rows}, {args.dim} floats, {dist}, {args.connections} connections")
        print(f"{'':34} {'reads/s':>9} {'/ Redis':>8} {'p50 us':>8} {'p99 us':>8} {'server us':>9} {'client us':>9}")
        for cell in cells:
            middle = {name: statistics.median(turn[name] for turn in cell.turns[dist]) for name in cell.turns[dist][0]}
            ratio = f"{middle['per_s'] / redis:.2f}" if redis else "-"
            print(
                f"{cell.name:34} {middle['per_s']:9.0f} {ratio:>8} {middle['p50_us']:8.0f} {middle['p99_us']:8.0f} "
                f"{middle['server_us']:9.0f} {middle['client_us']:9.0f}"
            )
    print()
    for server in {cell.server.name: cell.server for cell in cells}.values():
        print(f"{server.name}: {(server.bytes() - server.empty_bytes) / args.rows:.0f} bytes per row")


def main() -> int:
    """Measures and prints."""
    args = arguments()
    with ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        cells = start(args, folder.absolute(), stack)
        for number in range(args.rounds):
            for dist in args.dists.split(","):
                for at in range(len(cells)):
                    # The order is another one in every round.
                    cell = cells[(at + number) % len(cells)]
                    cell.turns.setdefault(dist, []).append(turn(args, cell, dist, number))
        show(args, cells)
        if args.json:
            args.json.write_text(json.dumps({cell.name: cell.turns for cell in cells}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
