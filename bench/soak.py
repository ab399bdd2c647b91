"""A cluster, its replicas and a server of versions under load, while processes are killed, links cut, versions flipped.

    cargo build --release --locked -p sanderling-cli
    .venv/bin/python bench/soak.py --minutes 10
    .venv/bin/python bench/soak.py --minutes 1 --seed 7 --json

Six hosts are network namespaces: clients, a keeper, a group of two servers, two replicas (`serve --from keeper://...`).
A client adds 1 to keys, others read them from the replicas. Meanwhile a server or a replica is killed with SIGKILL or
stopped, or packets between two hosts are lost, in one direction or both. A further server (`serve --models`) gets new
versions under the alias `live` and answers requests all the time; each version has scores and rows of its own.

Found, and reason for exit code 1:

- a push that failed; at the end, a key whose rows on the servers or on a replica are not its number of pushes;
- a row that is torn, or has more pushes than were begun;
- a row older than `--stale-after` from a replica whose `/health` does not say stale; a cut-off replica that does not;
- a request to the server of versions that failed, an answer with numbers of two versions, or of another one than it
  says;
- a group or replica that does not recover in time; a process that ended by itself, or whose memory grows.

It needs `unshare`, `nsenter`, `ip` and /dev/net/tun, and root where users may not make namespaces. Every process ends
with it. The folder with the logs stays after problems.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import soak_checks as checks
import soak_hosts as hosts
from soak_versions import Versions

import sanderling

CLIENTS, KEEPER, SERVERS, REPLICAS = 0, 1, (2, 3), (4, 5)
REGISTRY = f"keeper://{hosts.address(KEEPER)}:7400/soak"
RUN, TABLE, DIM = "soak", "C1", 4
PER_PUSH, PER_READ = 256, 8
# A change older than this must be on a replica, or the replica must say that it is stale.
STALE_AFTER_S = 2
# Beyond that limit a cut lasts before the mark is asked for.
CUT_SLACK_S = 2.0
# Until a group, a replica or a push has recovered from what was done to it.
RECOVERY_S = 90.0
CONFIG = f"""\
name = "{RUN}"
[data]
train = "rows.csv"
[[feature]]
each = ["{TABLE}"]
[model]
type = "fm"
rank = {DIM - 1}
init_std = 0.0
[optimizer]
type = "sgd"
lr = 1.0
[factor_optimizer]
type = "sgd"
lr = 1.0
[train]
passes = 1
"""
Rows = npt.NDArray[np.float32]


class Soak:
    """All processes, and what was found."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        """Starts the processes and fills the table."""
        self.folder, self.keys, self.random = folder, options.keys, random.Random(options.seed)
        self.program = [str(options.program)] if options.program else [sys.executable, "-m", "sanderling"]
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}
        self.stops = threading.Event()
        self.ledger = checks.Ledger(options.keys, DIM)
        self.network = hosts.Network(6, folder / "switch.log")
        open_to_all = ["--expose", "--insecure"]
        keeper = ["keeper", "--listen", f"{hosts.address(KEEPER)}:7400", "--data", "keeper", *open_to_all]
        self.keeper = self.part("keeper", KEEPER, keeper)
        self.wait("the keeper answers", lambda: self.records("") is not None)
        cluster = ["--cluster", "soak", "--registry", REGISTRY, "--groups", "1", "--replicas", "2", "--threads", "1"]
        apart = ["--no-local", "--no-token", *open_to_all]
        self.servers = [
            self.part(
                f"server{at}",
                host,
                ["ps", *cluster, "--listen", f"{hosts.address(host)}:7000", *apart, "--runtime-dir", f"run{at}"],
            )
            for at, host in enumerate(SERVERS)
        ]
        self.dead: set[int] = set()
        self.wait("both servers are in sync", self.in_sync)
        (folder / "rows.csv").write_text("label,C1\n" + "".join(f"{at % 2},v{at % 97}\n" for at in range(1000)))
        (folder / "soak.toml").write_text(CONFIG)
        self.must("train", "soak.toml", "--ps", REGISTRY, "--quiet")
        follows = ["--from", REGISTRY, "--stale-after", f"{STALE_AFTER_S}s", "--threads", "1"]
        self.replicas = [
            self.part(
                f"replica{at}",
                host,
                ["serve", f"runs/{RUN}/model", *follows, "--listen", f"{hosts.address(host)}:8500", *open_to_all],
            )
            for at, host in enumerate(REPLICAS)
        ]
        self.versions = Versions(self.folder, self.count, self.problem)
        self.flipped = self.part("versions", CLIENTS, self.versions.command)
        self.wait("replicas follow", self.fresh)

    def part(self, name: str, host: int, line: list[str]) -> hosts.Part:
        """A process of Sanderling."""
        return hosts.Part(name, host, self.network, [*self.program, *line], self.folder)

    def must(self, *line: str) -> None:
        """Runs a command on the clients' host."""
        done = subprocess.run([*self.program, *line], cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(line)}: {done.stderr.strip()}")

    def parts(self) -> list[hosts.Part]:
        """All processes."""
        return [self.keeper, *self.servers, *self.replicas, self.flipped]

    def count(self, what: str, number: int = 1) -> None:
        """Adds to a count. A count belongs to one thread."""
        self.counts[what] = self.counts.get(what, 0) + number

    def problem(self, text: str) -> None:
        """Notes that something is wrong, which ends the soak."""
        self.problems.append(text)
        self.stops.set()
        print(f"PROBLEM: {text}", flush=True)

    def wait(self, what: str, is_so: Callable[[], bool]) -> bool:
        """Waits until it is so; a problem if that takes too long."""
        until = time.monotonic() + RECOVERY_S
        while time.monotonic() < until:
            if is_so():
                return True
            time.sleep(0.1)
        self.problem(f"not within {RECOVERY_S:.0f} s: {what}")
        return False

    # The group.

    def records(self, prefix: str) -> dict[str, Any] | None:
        """Records of the registry by name; none if the keeper does not answer."""
        path = f"/v1/clusters/soak/records?prefix={prefix}"
        try:
            status, listed = checks.ask(f"{hosts.address(KEEPER)}:7400", path, timeout_s=5)
        except OSError:
            return None
        return {record["name"]: record["value"] for record in listed["records"]} if status == 200 else None

    def in_sync(self) -> bool:
        """Whether both servers have every push, and are processes that live."""
        records = self.records("") or {}
        group, members = records.get("groups/0"), {name for name in records if name.startswith("members/")}
        if group is None or len(group["in_sync"]) != 1 or len(members) < 2:
            return False
        boots = {group["primary"]["boot"], group["in_sync"][0]["boot"]}
        return boots == {records[name]["boot"] for name in members} - self.dead and not boots & self.dead

    def primary(self) -> int:
        """Which of the servers is the primary."""
        while "groups/0" not in (records := self.records("groups/") or {}):
            time.sleep(0.1)
        group = records["groups/0"]
        addresses = group["addresses"][str(group["primary"]["server"])]
        return next(at for at, host in enumerate(SERVERS) if hosts.address(host) in addresses[0])

    def hand_over(self) -> None:
        """Makes the other server the primary, in order."""
        at = self.primary()
        self.must("ctl", "--server", f"{hosts.address(SERVERS[at])}:7100", "hand-over")
        # Until then the other server has the pushes alone.
        self.wait("both servers in sync after a hand-over", lambda: self.primary() != at and self.in_sync())
        self.count("hand_overs")

    def kill_server(self, at: int) -> None:
        """Kills a server and starts it again."""
        records = self.records("members/") or {}
        self.dead |= {
            record["boot"] for record in records.values() if hosts.address(SERVERS[at]) in record["addresses"][0]
        }
        self.servers[at].kill()
        self.pause(0, 2)
        self.servers[at].start()

    def kill_replica(self, at: int) -> None:
        """Kills a replica and starts it again."""
        self.replicas[at].kill()
        self.pause(0, 1)
        self.replicas[at].start()

    def pause(self, least_s: float, most_s: float) -> None:
        """Sleeps for a random time."""
        time.sleep(self.random.uniform(least_s, most_s))

    # The load.

    def push(self) -> None:
        """Adds 1 to some keys at a time."""
        table = sanderling.connect(REGISTRY, timeout_s=RECOVERY_S, prefer_local=False).open(f"{RUN}/{TABLE}")
        draw = np.random.default_rng(1)
        gradient = np.full((PER_PUSH, DIM), -1, np.float32)
        while not self.stops.is_set():
            others = checks.CLOCK + draw.choice(self.keys - checks.CLOCK, PER_PUSH - checks.CLOCK, replace=False)
            places = np.concatenate([np.arange(checks.CLOCK), others])
            self.ledger.begin(places)
            try:
                table.push(checks.keys_of(places), gradient)
            except sanderling.Error as error:
                return self.problem(f"push {self.ledger.begun}: {error}")
            self.ledger.acknowledge()
            self.count("pushes")
            time.sleep(0.002)
        return None

    def read_json(self, at: int) -> None:
        """Reads from a replica as JSON."""
        server, draw = f"{hosts.address(REPLICAS[at])}:8500", np.random.default_rng(at)
        while not self.stops.is_set():
            places = np.concatenate([draw.choice(checks.CLOCK, 2), draw.choice(self.keys, PER_READ - 2)])
            body = {"keys": [int(key) for key in checks.keys_of(places)]}
            # A row that lacks a push from long before this moment lacks it in the moment of the mark, too.
            known_since = time.monotonic() - STALE_AFTER_S
            try:
                was_stale = checks.is_stale(server)
                status, answer = checks.ask(server, f"/tables/{TABLE}/rows", body)
                if status != 200:
                    raise ConnectionError(status)
            except OSError:
                self.count(f"replica{at}_refused")
                time.sleep(0.05)
                continue
            rows = [row["weights"] or [0.0] * DIM for row in answer["rows"]]
            wrong, is_old = self.ledger.judge(np.array(rows, np.float32), places, known_since)
            self.count(f"replica{at}_reads")
            self.count(f"replica{at}_reads_old", is_old)
            if wrong or (is_old and not was_stale):
                self.problem(f"replica {at}: {wrong or 'a row is too old, and it does not say stale'}")
            time.sleep(0.01)

    def read_by_client(self) -> None:
        """Reads by the client of rows, from the replica that answers."""
        replicas = [f"{hosts.address(host)}:8500" for host in REPLICAS]
        client, draw = sanderling.RowsClient(replicas, hedge="p95"), np.random.default_rng(9)
        while not self.stops.is_set():
            places = draw.choice(self.keys, 64, replace=False)
            try:
                rows, _, _ = client.rows(TABLE, checks.keys_of(places))
            except sanderling.Error:
                self.count("client_refused")
                time.sleep(0.05)
                continue
            self.count("client_reads")
            wrong, _ = self.ledger.judge(rows, places, float("-inf"))
            if wrong:
                self.problem(f"client of rows: {wrong}")
            time.sleep(0.01)

    def has_pushed(self, least: int) -> bool:
        """Whether so many pushes were acknowledged."""
        return self.ledger.acknowledged >= least

    def fresh(self) -> bool:
        """Whether both replicas answer and are not stale."""
        try:
            return not any(checks.is_stale(f"{hosts.address(host)}:8500") for host in REPLICAS)
        except OSError:
            return False

    def watch(self) -> None:
        """Notes memory every second, and processes that end by themselves."""
        while not self.stops.wait(1):
            for part in self.parts():
                part.sample()
                status = part.has_ended()
                if status not in (None, -signal.SIGKILL):
                    self.problem(f"{part.name} has ended with status {status}")

    # Disturbances.

    def links(self, victim: int) -> tuple[str, list[tuple[int, int]]]:
        """A name, and the links that are cut: pairs of hosts."""
        primary, replica = SERVERS[self.primary()], REPLICAS[victim]
        kinds = {
            "replica and servers": [(replica, host) for host in SERVERS],
            "replica and primary": [(replica, primary)],
            "servers": [SERVERS],
            "clients and primary": [(CLIENTS, primary)],
            "primary and keeper": [(primary, KEEPER)],
            "clients and replica": [(CLIENTS, replica)],
        }
        name = self.random.choice(list(kinds))
        return name, kinds[name]

    def cut(self, victim: int) -> str:
        """Cuts links for a time; what was done."""
        name, pairs = self.links(victim)
        way = self.random.choice(["both ways", "there", "back"])
        there = pairs if way != "back" else []
        back = [(second, first) for first, second in pairs] if way != "there" else []
        done = f"cut {name}, {way}"
        self.network.cut([*there, *back])
        self.count("cuts")
        if name == "replica and servers":
            # Longer than the limit: now the replica must say so.
            time.sleep(STALE_AFTER_S + CUT_SLACK_S)
            server = f"{hosts.address(REPLICAS[victim])}:8500"
            try:
                if not checks.is_stale(server):
                    self.problem(f"replica {victim}: cut off, and /health does not say stale")
                self.count("cut_off_marked")
            except OSError as error:
                self.problem(f"replica {victim}: cut off from the servers, and does not answer: {error}")
        else:
            self.pause(0.2, 3)
        if self.random.random() < 0.4:
            if name in ("servers", "primary and keeper") or self.random.random() < 0.5:
                self.kill_replica(victim)
                done += f", replica {victim} killed"
            else:
                done += f", {'primary' if self.primary() == victim else 'follower'} {victim} killed"
                self.kill_server(victim)
            self.pause(0, 1)
        self.network.cut([])
        return done

    def disturb(self, victim: int) -> str:
        """One disturbance; what was done. One server and one replica live through each half of the time."""
        what = self.random.choice(["primary", "follower", "replica", "stop", "cut", "cut", "cut"])
        if what == "cut":
            return self.cut(victim)
        if what == "replica":
            self.kill_replica(victim)
            return f"replica {victim} killed"
        if what == "stop":
            part = self.random.choice([*self.servers, *self.replicas])
            self.count("stops")
            part.stop_for(self.random.uniform(0.1, 2))
            return f"{part.name} stopped"
        if (self.primary() == victim) != (what == "primary"):
            self.hand_over()
        self.kill_server(victim)
        return f"{what} {victim} killed"

    def run(self, minutes: float) -> None:
        """Runs for so long, then compares all rows."""
        begun = time.monotonic()
        loads = [self.push, lambda: self.read_json(0), lambda: self.read_json(1), self.read_by_client, self.watch]
        loads += [self.versions.flip, self.versions.predict, self.versions.read]
        self.versions.stops = self.stops
        threads = [threading.Thread(target=self.guarded, args=[load]) for load in loads]
        for thread in threads:
            thread.start()
        try:
            while (spent := time.monotonic() - begun) < 60 * minutes and not self.stops.is_set():
                done = self.disturb(0 if spent < 30 * minutes else 1)
                self.count("disturbances")
                until: dict[str, Callable[[], bool]] = {
                    "both servers are in sync": self.in_sync,
                    "pushes go on": partial(self.has_pushed, self.ledger.acknowledged + 10),
                    "replicas are fresh": self.fresh,
                }
                _ = all(self.wait(f"{what} after: {done}", is_so) for what, is_so in until.items())
                self.pause(0, 2)
                print(f"{time.monotonic() - begun:5.0f} s  {done}  {self.line()}", flush=True)
        finally:
            self.stops.set()
            for thread in threads:
                thread.join()
        if not self.problems:
            self.compare()
            self.problems += checks.grown([life for part in self.parts() for life in part.lives], 60 * minutes)

    def guarded(self, load: Callable[[], None]) -> None:
        """Runs a load; an exception is a problem, too."""
        try:
            load()
        except Exception as error:
            self.problem(repr(error))
            raise

    def line(self) -> str:
        """Progress."""
        reads = sum(count for name, count in self.counts.items() if name.endswith("_reads"))
        kills, counts = sum(part.kills for part in self.parts()), self.counts
        return (
            f"pushes {counts.get('pushes', 0):,}  reads {reads:,}  kills {kills}  cuts {counts.get('cuts', 0)}  "
            f"flips {counts.get('flips', 0):,}  answers {counts.get('predictions', 0) + counts.get('lookups', 0):,}"
        )

    def compare(self) -> None:
        """Every key has its number of pushes, on the primary, on any server, and on both replicas."""
        expected = self.ledger.expected()
        keys = checks.keys_of(np.arange(self.keys))

        def of_servers(pull_from: Literal["primary", "any"]) -> Rows:
            with sanderling.connect(
                REGISTRY, timeout_s=RECOVERY_S, prefer_local=False, pull_from=pull_from
            ) as connection:
                return connection.open(f"{RUN}/{TABLE}").pull(keys)

        def of_replica(host: int) -> Rows:
            client = sanderling.RowsClient([f"{hosts.address(host)}:8500"], timeout_s=20)
            # At most 4,096 rows per request.
            return np.concatenate(
                [client.rows(TABLE, part)[0] for part in np.split(keys, range(4000, self.keys, 4000))]
            )

        def is_equal(rows: Callable[[], Rows]) -> bool:
            try:
                return np.array_equal(rows(), expected)
            except sanderling.Error:
                return False

        places: dict[str, Callable[[], Rows]] = {
            "the primary": lambda: of_servers("primary"),
            "any server": lambda: of_servers("any"),
            "replica 0": lambda: of_replica(REPLICAS[0]),
            "replica 1": lambda: of_replica(REPLICAS[1]),
        }
        for name, rows in places.items():
            self.wait(f"the rows of {name} are what was pushed", partial(is_equal, rows))

    def report(self) -> dict[str, Any]:
        """The result."""
        return {
            "counts": dict(sorted(self.counts.items())),
            "kills": {part.name: part.kills for part in self.parts() if part.kills},
            "mib": {part.name: checks.memory(part.lives) for part in self.parts()},
            "problems": self.problems,
        }


def main() -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="time of the disturbances (10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the disturbances (1)")
    parser.add_argument("--keys", type=int, default=2000, help=f"keys that are counted, at least {PER_PUSH} (2000)")
    parser.add_argument("--program", type=Path, help="the program `sanderling` [default: that of the Python package]")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    if options.keys < PER_PUSH:
        parser.error(f"--keys: at least {PER_PUSH}")
    if options.program:
        options.program = options.program.resolve()
    hosts.enter()
    # The first process of a namespace ignores what it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="sanderling-soak-"))
    soak = Soak(options, folder)
    soak.run(options.minutes)
    report = soak.report()
    for name, sizes in report["mib"].items():
        print(f"{name:9} resident MiB: first {sizes['first']}, most {sizes['most']}, last {sizes['last']}")
    print(f"kills {report['kills']}\ncounts {report['counts']}")
    if options.json:
        print(json.dumps(report))
    if soak.problems:
        print(f"{len(soak.problems)} problems; logs are in {folder}\n" + "\n".join(soak.problems))
        return 1
    shutil.rmtree(folder)
    print(f"no wrong answer in {options.minutes:g} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
