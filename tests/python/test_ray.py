"""Servers and hubs on a local Ray of this host: training, a killed server, and the end, which leaves no process."""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import eventually, free_port, write_clicks

import sanderling
import sanderling.ray

ROOT = Path(__file__).parents[2]
# Ray takes the loopback address then, as it does on macOS, and calls no other host.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
ray: Any = pytest.importorskip("ray", reason="skipped: Ray is not installed (pip install '.[ray]')")
# Warnings of Ray's own code.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module", autouse=True)
def _local_ray() -> Iterator[None]:
    """A Ray of this host alone."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": environment},
    )
    try:
        yield
    finally:
        ray.shutdown()


def processes(cluster: sanderling.ray.Cluster) -> list[int]:
    """The processes of all actors."""
    found: list[int] = ray.get(
        [ray.get_actor(name, namespace="sanderling").process.remote() for name in names(cluster)]
    )
    return found


def names(cluster: sanderling.ray.Cluster) -> list[str]:
    kinds = [("ps", len(cluster.servers)), ("hub", len(cluster.hubs)), ("keeper", 1 if cluster.registry else 0)]
    return [f"{cluster.name}-{kind}-{index}" for kind, count in kinds for index in range(count)]


def is_running(process: int) -> bool:
    """Whether it runs; one that has ended and is not awaited does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_server_is_back_with_its_tables_and_the_end_leaves_nothing(tmp_path: Path) -> None:
    write_clicks(tmp_path)
    options = ["--kept", f"{tmp_path}/kept-{{index}}", "--data", f"{tmp_path}/data", "--threads", "1"]
    hub = [f"{tmp_path}/clicks.csv", "--config", f"{tmp_path}/clicks.toml", "--batch-size", "100"]
    for index in range(2):
        (tmp_path / f"kept-{index}").mkdir()
    started: dict[str, Any] = {"name": "test", "port": free_port(), "hub_port": free_port()}
    with sanderling.ray.start(2, 1, server_options=options, hub_options=hub, **started) as cluster:
        with pytest.raises(sanderling.ConfigError, match="runs already"):
            sanderling.ray.start(name="test")
        assert all(address.startswith("127.0.0.1:") for address in (*cluster.servers, *cluster.hubs))
        before = processes(cluster)
        table = sanderling.connect(cluster.address, token=cluster.token).table("user", 4)
        rows = sanderling.Embedding([table], [("user", 0, "sum")])
        source = sanderling.HubSource(cluster.hub_address, token=cluster.token)
        for batch in sanderling.FeedQueue(source, rows):
            assert batch.lookup is not None
            batch.lookup.add_grads(np.ones_like(batch.lookup.pooled))
            batch.lookup.push()
        rows.finish()
        keys = table.keys()
        weights = table.pull(keys)
        assert len(keys) == 97

        os.kill(before[1], signal.SIGKILL)
        eventually(lambda: not is_running(before[1]))
        ray.get(ray.get_actor("test-ps-1", namespace="sanderling").ready.remote(60.0))
        again = sanderling.connect(cluster.address, token=cluster.token).open("user")
        np.testing.assert_array_equal(again.pull(keys), weights)
        after = processes(cluster)
        assert after[0] == before[0]
        assert after[1] != before[1]
    eventually(lambda: not any(map(is_running, [*before, *after])))
    assert (tmp_path / "data/latest/shard-0-of-2/manifest.json").exists()
    with pytest.raises(ValueError, match="test-ps-0"):
        ray.get_actor("test-ps-0", namespace="sanderling")


def test_replicas_take_over_from_killed_servers(capfd: pytest.CaptureFixture[str]) -> None:
    started: dict[str, Any] = {"port": free_port(), "keeper_port": free_port(), "server_options": ["--threads", "1"]}
    with sanderling.ray.start(groups=1, replicas=2, name="pair", **started) as cluster:
        assert cluster.address == cluster.registry
        assert cluster.registry.startswith("keeper://127.0.0.1:")
        table = sanderling.connect(cluster.address, token=cluster.token).table(
            "user", 4, init="zero", optimizer={"type": "sgd", "lr": 1.0}
        )
        keys = np.arange(50, dtype=np.uint64)
        pushes = 0
        for _ in range(2):
            before = processes(cluster)
            servers = cluster_view(cluster, 2)
            primary = next(server for server in servers if server["role"] == "primary")
            at = cluster.servers.index(primary["address"].removeprefix("tcp://"))
            for step in range(20):
                if step == 10:
                    os.kill(before[at], signal.SIGKILL)
                table.push(keys, -np.ones((50, 4), np.float32))
                pushes += 1
            # Ray starts the process again, and it becomes a replica.
            after = cluster_view(cluster, 2)
            assert {server["address"] for server in after} == {server["address"] for server in servers}
            assert next(server for server in after if server["role"] == "primary")["server"] != primary["server"]
        np.testing.assert_array_equal(table.pull(keys), np.full((50, 4), pushes, np.float32))
        last = processes(cluster)
    eventually(lambda: not any(map(is_running, [*before, *last])))
    assert "Traceback" not in capfd.readouterr().err


def cluster_view(cluster: sanderling.ray.Cluster, in_sync: int) -> list[dict[str, Any]]:
    """The servers as `ctl cluster` shows them, when so many are in sync."""
    found: list[dict[str, Any]] = []

    def is_in_sync() -> bool:
        words = ["ctl", "--json", "cluster", "--registry", cluster.registry]
        said = subprocess.run(
            [sys.executable, "-m", "sanderling", *words, "--token-file", token_file],
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode == 0:
            found[:] = json.loads(said.stdout)["servers"]
        return sum(server["role"] in {"primary", "in sync"} for server in found) == in_sync

    with tempfile.NamedTemporaryFile("w") as file:
        file.write(cluster.token)
        file.flush()
        token_file = file.name
        eventually(is_in_sync)
    return found


def test_a_server_that_cannot_start_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    options = ["--data", f"{tmp_path}/none", "--restore", "missing"]
    with pytest.raises(sanderling.ServerTimeoutError, match="not ready within 5 s"):
        sanderling.ray.start(server_options=options, name="broken", port=free_port(), timeout_s=5.0)
    with pytest.raises(ValueError, match="broken-ps-0"):
        ray.get_actor("broken-ps-0", namespace="sanderling")


def test_the_example_learns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = ROOT / "examples/ray_train.py"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    said = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("trainer ")]
    assert sum(int(words[2]) for words in said) == 3 * 32561
    # A model of the mean alone has a logloss of 0.55.
    assert all(float(words[-1]) < 0.45 for words in said)
