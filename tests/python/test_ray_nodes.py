"""A Ray of two nodes on this host: a node that is killed under pushes, servers of predictions, Ray Data as a source."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from processes import eventually, free_port

import sanderling
import sanderling.ray

# Ray takes the loopback address then, as it does on macOS, and calls no other host.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
ray: Any = pytest.importorskip("ray", reason="skipped: Ray is not installed (pip install '.[ray]')")
# Warnings of Ray's own code.
pytestmark = pytest.mark.filterwarnings("default")


class Nodes(Protocol):
    """A cluster of `ray.cluster_utils`, which has no types."""

    head_node: Any

    def list_all_nodes(self) -> list[Any]: ...
    def remove_node(self, node: Any, allow_graceful: bool) -> None: ...  # noqa: ANN401


CONFIG = {
    "name": "clicks",
    "label": {"column": "label"},
    "feature": [{"column": "user", "type": "categorical"}, {"column": "item", "type": "categorical"}],
    "model": {"type": "lr"},
    "optimizer": {"type": "adagrad", "lr": 0.05},
    "train": {"batch_size": 64, "passes": 1},
}


@pytest.fixture(name="nodes", scope="module")
def _nodes() -> Iterator[Nodes]:
    """Two nodes; the second one may be killed."""
    import ray.cluster_utils

    nodes: Any = ray.cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False}
    )
    nodes.add_node(num_cpus=4)
    nodes.wait_for_nodes()
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ray.init(address=nodes.address, log_to_driver=False, runtime_env={"env_vars": environment})
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def columns(rows: int = 2000) -> dict[str, Any]:
    """Clicks that depend on the user."""
    random = np.random.default_rng(1)
    users, items = random.integers(0, 50, rows), random.integers(0, 20, rows)
    labels = (random.random(rows) < 0.2 + 0.6 * (users % 2)).astype(np.int64)
    return {"label": labels, "user": [f"u{user}" for user in users], "item": [f"i{item}" for item in items]}


def roles(cluster: sanderling.ray.Cluster, token: Path) -> list[str]:
    """The roles of all servers, as `ctl cluster` shows them."""
    words = ["ctl", "--json", "cluster", "--registry", cluster.registry, "--token-file", str(token)]
    said = subprocess.run([sys.executable, "-m", "sanderling", *words], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        return []
    return sorted(server["role"] for server in json.loads(said.stdout)["servers"])


@pytest.mark.usefixtures("nodes")
def test_rows_of_ray_data_train_the_same_model(tmp_path: Path) -> None:
    import pyarrow

    table = pyarrow.table(columns())
    dataset = ray.data.from_arrow(table)
    trained = [
        sanderling.train(CONFIG, train=source, runs_dir=tmp_path, name=name)
        for name, source in (("arrow", table), ("ray", sanderling.ray.rows(dataset, batch_rows=100)))
    ]
    assert trained[0].auc == trained[1].auc > 0.7
    with pytest.raises(sanderling.ConfigError, match="no rows"):
        sanderling.ray.rows(ray.data.from_arrow(table.slice(0, 0)))


@pytest.mark.usefixtures("nodes")
def test_a_killed_server_of_predictions_is_back(tmp_path: Path) -> None:
    model = sanderling.train(CONFIG, train=columns(), runs_dir=tmp_path).model_dir
    with sanderling.ray.serve_replicas(2, model, port=free_port(), options=["--threads", "1"]) as serving:
        with pytest.raises(sanderling.ConfigError, match="runs already"):
            sanderling.ray.serve_replicas(1, model)

        def score(address: str) -> float | None:
            body = json.dumps({"rows": [{"user": "u1", "item": "i3"}]}).encode()
            request = urllib.request.Request(f"http://{address}/predict", body)
            request.add_header("authorization", f"Bearer {serving.token}")
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    return float(json.load(answer)["scores"][0])
            except OSError:
                return None

        before = [score(address) for address in serving.addresses]
        assert before[0] is not None
        assert before[0] == before[1]
        group = ray.util.get_placement_group(serving.name)
        places = ray.util.placement_group_table(group)["bundles_to_node_id"]
        assert len(set(places.values())) == 2, "each on another node"
        actor = ray.get_actor("sanderling-serve-serve-1", namespace="sanderling")
        os.kill(ray.get(actor.process.remote()), signal.SIGKILL)
        eventually(lambda: score(serving.addresses[1]) is None)
        eventually(lambda: score(serving.addresses[1]) == before[0])
    assert score(serving.addresses[0]) is None


def test_pushes_go_on_when_a_node_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    started: dict[str, Any] = {"port": free_port(), "keeper_port": free_port(), "server_options": ["--threads", "1"]}
    with sanderling.ray.start(
        groups=1, replicas=2, name="nodes", keeper_data=str(tmp_path / "keeper"), **started
    ) as cluster:
        token.write_text(cluster.token)
        eventually(lambda: roles(cluster, token) == ["in sync", "primary"])
        table = sanderling.connect(cluster.address, token=cluster.token).table(
            "user", 4, init="zero", optimizer={"type": "sgd", "lr": 1.0}
        )
        keys = np.arange(50, dtype=np.uint64)
        second = next(node for node in nodes.list_all_nodes() if node is not nodes.head_node)
        group = ray.util.get_placement_group("nodes")
        places = ray.util.placement_group_table(group)["bundles_to_node_id"]
        lost = [bundle for bundle, node in places.items() if bundle > 0 and node == second.node_id]
        assert lost, "a server is on the second node"
        processes = [
            ray.get(ray.get_actor(f"nodes-ps-{bundle - 1}", namespace="sanderling").process.remote()) for bundle in lost
        ]
        for step in range(30):
            if step == 10:
                nodes.remove_node(second, allow_graceful=False)
            table.push(keys, -np.ones((50, 4), np.float32))
        np.testing.assert_array_equal(table.pull(keys), np.full((50, 4), 30, np.float32))
        # Nothing of the node goes on, and Ray starts its server on the other one.
        eventually(lambda: not any(Path(f"/proc/{process}/exe").exists() for process in processes))
        eventually(lambda: roles(cluster, token) == ["in sync", "primary"])
        table.push(keys, -np.ones((50, 4), np.float32))
        np.testing.assert_array_equal(table.pull(keys), np.full((50, 4), 31, np.float32))
