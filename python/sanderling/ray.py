"""Parameter servers and hubs on Ray: detached actors, each with the server inside its own process.

Needs Ray: `pip install 'sanderling[ray]'`. An actor whose process dies is started again by Ray, and its server with it.
With `groups` the servers are replicas: training goes on while one is away.
"""

import contextlib
import os
import secrets
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sanderling._errors import ConfigError, ServerTimeoutError
from sanderling._native import cli_main

_NAMESPACE = "sanderling"
# A server of the port has its control plane at the port plus this.
_CONTROL = 100
_LOOK_EVERY_S = 0.05
_DRAIN_S = 600.0
# Time for an actor to say that it runs, before it is ended.
_ANSWER_S = 10.0


@dataclass(frozen=True)
class Cluster:
    """Addresses of servers and hubs. It may be passed to other actors and tasks, which connect by it."""

    name: str
    """Prefix of the actors' names."""
    token: str
    """Auth token of all servers and hubs."""
    servers: tuple[str, ...]
    """Address of each server, by shard."""
    hubs: tuple[str, ...]
    """Address of each hub."""
    registry: str = ""
    """Registry of groups of replicas, such as `keeper://10.0.0.5:7400/ads`; empty without groups."""

    @property
    def address(self) -> str:
        """The registry, or the addresses of the servers, as `sanderling.connect` takes them."""
        return self.registry or ",".join(self.servers)

    @property
    def hub_address(self) -> str:
        """Addresses of the hubs, as `sanderling.HubSource` takes them."""
        return "hub://" + ",".join(self.hubs)

    def shutdown(self) -> None:
        """Stop all servers and hubs: servers answer pending requests and save `latest` if they have `--data`."""
        ray = _ray()
        names = _names(self.name, len(self.servers), len(self.hubs), keepers=1 if self.registry else 0)
        actors = [actor for name in names if (actor := _actor(name))]
        # One that is being started again has nothing to save, and may wait for others to be there.
        asked = {actor.process.remote(): actor for actor in actors}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
        with contextlib.suppress(ray.exceptions.RayError):  # a process that is already gone
            ray.get([asked[answer].drain.remote() for answer in answered], timeout=_DRAIN_S)
        _kill(self.name, actors)

    def __enter__(self) -> Self:
        """Return the cluster."""
        return self

    def __exit__(self, *error: object) -> None:
        """Shut it down."""
        self.shutdown()


def start(
    servers: int = 1,
    hubs: int = 0,
    *,
    groups: int = 0,
    replicas: int = 2,
    server_options: Sequence[str] = (),
    hub_options: Sequence[str] = (),
    name: str = "sanderling",
    port: int = 7000,
    hub_port: int = 7200,
    keeper_port: int = 7400,
    keeper_data: str | None = None,
    cpus: float = 1.0,
    timeout_s: float = 60.0,
) -> Cluster:
    """Start servers and hubs on the nodes of a Ray cluster, spread over them, and wait until they are ready.

    Options are those of `sanderling ps` and `sanderling hub`, such as `["--data", "/mnt/checkpoints"]`; `{index}` in
    them stands for the number of the server or hub. Server i listens at `port` + i, hub i at `hub_port` + i. Each has
    `cpus` processors for Ray's scheduler.

    With `groups`, `servers` is not used: `groups` times `replicas` servers form a cluster (`sanderling ps --cluster`).
    The keeper of the cluster is one more actor, at `keeper_port`. `Cluster.address` is then the registry. If the
    process of a primary dies, a replica with every acknowledged push takes its place. Ray starts the process again, and
    its server becomes a replica. The keeper's records are in `keeper_data`, a folder of its node; None: a temporary
    one. A keeper that has lost them is refused by its clients.

    The actors are detached: they outlive this process, and end by `Cluster.shutdown`. Connections have a new token and
    no TLS, so the network must be trusted. Ray starts a process that has died again on its node: with
    `--kept /dev/shm/tables-{index}` a server then has its tables, with `--data` those of its last save.

    Raises ConfigError if Ray is not there or actors of this name are, ServerTimeoutError after `timeout_s`.
    """
    ray = _ray()
    if not ray.is_initialized():
        ray.init()
    if servers < 1 or hubs < 0:
        raise ConfigError(f"ray.start: {servers} servers and {hubs} hubs: must be at least 1 and 0")
    if groups < 0 or replicas < 1:
        raise ConfigError(f"ray.start: {groups} groups of {replicas} replicas: must be at least 0 and 1")
    if _actor(f"{name}-ps-0") is not None:
        raise ConfigError(f"ray.start: {name!r} runs already; shut it down, or give another name")
    token = secrets.token_hex(32)
    servers = groups * replicas or servers
    keepers = 1 if groups else 0
    group = ray.util.placement_group(
        [{"CPU": cpus}] * (servers + hubs + keepers), strategy="SPREAD", name=name, lifetime="detached"
    )
    actors: list[Any] = []

    def begin(kind: str, index: int, first_port: int, options: Sequence[str]) -> None:
        arguments = [kind, *(option.replace("{index}", str(index)) for option in options)]
        place = (group, len(actors), cpus)
        actors.append(_begin(f"{name}-{kind}-{index}", place, arguments, token, first_port + index))

    def wait() -> list[str]:
        return _wait("start", name, actors, timeout_s)

    registry = ""
    if groups:
        begin("keeper", 0, keeper_port, ["--data", keeper_data or "{temporary}"])
        registry = f"keeper://{wait()[0]}/{name}"
        layout = ["--groups", str(groups), "--replicas", str(replicas)]
        ours = ["--cluster", name, "--registry", registry.removesuffix(f"/{name}"), *layout]
    for shard in range(servers):
        begin("ps", shard, port, [*(ours if groups else ["--shard", f"{shard}/{servers}"]), *server_options])
    for index in range(hubs):
        begin("hub", index, hub_port, ["--share", f"{index}/{hubs}", *hub_options])
    addresses = wait()[keepers:]
    return Cluster(name, token, tuple(addresses[:servers]), tuple(addresses[servers:]), registry)


@dataclass(frozen=True)
class Serving:
    """Addresses of servers of predictions."""

    name: str
    """Prefix of the actors' names."""
    token: str
    """Auth token of all servers."""
    addresses: tuple[str, ...]
    """Address of each server, host:port."""

    def shutdown(self) -> None:
        """Stop all servers at once."""
        names = [f"{self.name}-serve-{index}" for index in range(len(self.addresses))]
        _kill(self.name, [actor for name in names if (actor := _actor(name))])

    def __enter__(self) -> Self:
        """Return the servers."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop them."""
        self.shutdown()


def serve_replicas(
    n: int,
    model: str | os.PathLike[str],
    *,
    cluster: Cluster | None = None,
    options: Sequence[str] = (),
    name: str = "sanderling-serve",
    port: int = 8500,
    cpus: float = 1.0,
    timeout_s: float = 60.0,
) -> Serving:
    """Start `n` servers of predictions of a saved model, each on another node if there are enough, and wait for them.

    `model` is a model directory that every node reads at this path. With `cluster`, the servers follow the rows of its
    parameter servers while these train. `options` are those of `sanderling serve`; `{index}` in them stands for the
    number of the server. Server i listens at `port` + i and needs the token of the result.

    The actors are detached, and end by `Serving.shutdown`. Ray starts a server that has died again, on another node if
    its own is gone; its address is then that of the other node.

    Raises ConfigError if Ray is not there or actors of this name are, ServerTimeoutError after `timeout_s`.
    """
    ray = _ray()
    if not ray.is_initialized():
        ray.init()
    if n < 1:
        raise ConfigError(f"ray.serve_replicas: {n} servers: must be at least 1")
    if _actor(f"{name}-serve-0") is not None:
        raise ConfigError(f"ray.serve_replicas: {name!r} runs already; shut it down, or give another name")
    token = secrets.token_hex(32)
    nodes = sum(node["Alive"] and node["Resources"].get("CPU", 0.0) >= cpus for node in ray.nodes())
    group = ray.util.placement_group(
        [{"CPU": cpus}] * n, strategy="STRICT_SPREAD" if nodes >= n else "SPREAD", name=name, lifetime="detached"
    )
    source = "" if cluster is None else cluster.registry or "ps://" + ",".join(cluster.servers)
    actors = [
        _begin(
            f"{name}-serve-{index}",
            (group, index, cpus),
            ["serve", os.fspath(model), *_followed(source), *(it.replace("{index}", str(index)) for it in options)],
            token,
            port + index,
            "" if cluster is None else cluster.token,
        )
        for index in range(n)
    ]
    addresses = _wait("serve_replicas", name, actors, timeout_s)
    return Serving(name, token, tuple(addresses))


def rows(dataset: Any, *, batch_rows: int = 4096) -> Any:  # noqa: ANN401, types of Ray and Arrow
    """Return a Ray Data dataset, or a shard of it that Ray Train gives a worker, as rows for one pass.

    The result goes where rows in memory go: `sanderling.train(..., train=rows(dataset))`, `FileSource` and `FeedQueue`.
    It is a stream: at most a few batches of `batch_rows` rows are in memory, and it can be read once.

    Raises ConfigError for a dataset without rows.
    """
    import pyarrow

    def batches() -> Iterator[Any]:
        for table in dataset.iter_batches(batch_size=batch_rows, batch_format="pyarrow"):
            yield from table.to_batches()

    each = batches()
    first = next(each, None)
    if first is None:
        raise ConfigError("ray.rows: the dataset has no rows")

    def all_of() -> Iterator[Any]:
        yield first
        yield from each

    return pyarrow.RecordBatchReader.from_batches(first.schema, all_of())


def _followed(source: str) -> list[str]:
    return ["--from", source, "--ps-token-file", "{cluster token}"] if source else []


def _begin(
    name: str,
    place: tuple[Any, int, float],
    arguments: list[str],
    token: str,
    port: int,
    cluster_token: str = "",
) -> Any:  # noqa: ANN401, handles of Ray have no type
    """Start an actor in a bundle of a placement group."""
    ray = _ray()
    group, bundle, cpus = place
    placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=bundle
    )
    actor = ray.remote(_Process).options(
        name=name,
        namespace=_NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=-1,
        num_cpus=cpus,
        scheduling_strategy=placed,
    )
    return actor.remote(arguments, token, port, cluster_token)


def _wait(what: str, name: str, actors: Sequence[Any], timeout_s: float) -> list[str]:
    """Wait until all actors answer; return their addresses."""
    ray = _ray()
    try:
        addresses: list[str] = ray.get([actor.ready.remote(timeout_s) for actor in actors], timeout=timeout_s)
    except ray.exceptions.RayError as error:
        _kill(name, actors)
        raise ServerTimeoutError(
            f"ray.{what}: servers were not ready within {timeout_s:g} s; the log of the actors has the reason"
        ) from error
    return addresses


def _ray() -> Any:  # noqa: ANN401, a module that need not be installed
    try:
        import ray
        import ray.exceptions
        import ray.util.placement_group
        import ray.util.scheduling_strategies
    except ModuleNotFoundError as error:
        raise ConfigError("sanderling.ray needs Ray: pip install 'sanderling[ray]'") from error
    return ray


def _actor(name: str) -> Any:  # noqa: ANN401, handles of Ray have no type
    """Return the actor, or None."""
    try:
        return _ray().get_actor(name, namespace=_NAMESPACE)
    except ValueError:
        return None


def _names(name: str, servers: int, hubs: int, keepers: int) -> list[str]:
    kinds = [("ps", servers), ("hub", hubs), ("keeper", keepers)]
    return [f"{name}-{kind}-{index}" for kind, count in kinds for index in range(count)]


def _kill(name: str, actors: Sequence[Any]) -> None:
    """End the actors at once, and give their processors back."""
    ray = _ray()
    for actor in actors:
        ray.kill(actor, no_restart=True)
    ray.util.remove_placement_group(ray.util.get_placement_group(name))


class _Process:
    """The actor: runs a command in a thread of its process."""

    def __init__(self, arguments: list[str], token: str, port: int, cluster_token: str = "") -> None:
        host = _ray().util.get_node_ip_address()
        self.host, self.port = host, port
        folder = Path(tempfile.mkdtemp())
        self.token_file = folder / "token"
        self.token_file.touch(0o600)
        self.token_file.write_text(token)
        of_cluster = folder / "cluster token"
        of_cluster.touch(0o600)
        of_cluster.write_text(cluster_token)
        names = {"{temporary}": str(folder / "data"), "{cluster token}": str(of_cluster)}
        kind, *options = (names.get(argument, argument) for argument in arguments)
        # Ray's nodes trust one another, as its own ports do.
        shared = ["--listen", f"{host}:{port}", "--expose", "--insecure", "--token-file", str(self.token_file)]
        self.control = f"{host}:{port + _CONTROL}" if kind == "ps" else None
        # Of a server of predictions, ready means that its model is loaded.
        self.page = {"ps": f"http://{self.control}/healthz", "serve": f"http://{host}:{port}/health"}.get(kind)
        control = ["--control", self.control] if self.control else []
        self.is_draining = False
        self.thread = threading.Thread(target=self._run, args=[[kind, *shared, *control, *options]], daemon=True)
        self.thread.start()

    def _run(self, arguments: list[str]) -> None:
        code = cli_main(["sanderling", *arguments])
        has_given_all = arguments[0] == "hub" and code == 0
        if not self.is_draining and not has_given_all:
            # The server has ended, so its process does: Ray starts both again.
            os._exit(code)

    def ready(self, timeout_s: float) -> str:
        """Wait until requests are answered; return the address."""
        end = time.monotonic() + timeout_s
        while not self._answers():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.host}:{self.port}")
            time.sleep(_LOOK_EVERY_S)
        return f"{self.host}:{self.port}"

    def _answers(self) -> bool:
        try:
            if self.page is None:
                socket.create_connection((self.host, self.port), timeout=1).close()
            else:
                # A server's port is open before it has restored its tables; then this page answers.
                urllib.request.urlopen(self.page, timeout=1).close()
        except OSError:
            return False
        return True

    def drain(self) -> None:
        """Stop the server as `sanderling ctl drain` does. A hub has its position on disk."""
        self.is_draining = True
        if self.control is not None:
            cli_main(["sanderling", "ctl", "--server", self.control, "--token-file", str(self.token_file), "drain"])
            self.thread.join()

    def process(self) -> int:
        """Return the number of the process."""
        return os.getpid()
