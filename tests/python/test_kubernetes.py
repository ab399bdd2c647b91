"""The manifests of deploy/kubernetes against the schemas; their commands, probes and hooks as processes of this host.

There is no cluster: volumes are folders, and each pod has a loopback address of its own.
"""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import PATIENCE_S, command, eventually, train, write_clicks

import sanderling

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
COMPONENTS = ("tls", "kept", "autoscaler", "cluster")
TOKEN = "a token for tests"
# The oldest version with the labels and hooks that the manifests use, and the newest with a schema.
VERSIONS = ("1.32", "1.37")

Manifest = dict[str, Any]
yaml = pytest.importorskip("yaml", reason="skipped: PyYAML is not installed (requirements-dev.txt)")


def built(folder: Path) -> list[Manifest]:
    """What `kubectl apply --kustomize` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("skipped: kubectl is not installed")
    made = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert not made.stderr, "warnings count"
    return list(yaml.safe_load_all(made.stdout))


def with_components(folder: Path, *names: str) -> list[Manifest]:
    """The base with components, in a copy."""
    copy = folder / "kubernetes"
    shutil.copytree(FOLDER, copy)
    (copy / "own").mkdir()
    own = {"resources": ["../base"], "components": [f"../components/{name}" for name in names]}
    (copy / "own/kustomization.yaml").write_text(json.dumps(own))
    return built(copy / "own")


def of(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The manifest of a kind and name."""
    (found,) = (
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and re.sub(r"-[0-9a-z]{10}$", "", manifest["metadata"]["name"]) == name
    )
    return found


def pod(workload: Manifest) -> Manifest:
    """The specification of its pods."""
    template: Manifest = workload["spec"]["template"]["spec"]
    return template


@pytest.mark.parametrize("built_of", ["base", "example", *COMPONENTS])
def test_manifests_are_those_of_the_schemas(built_of: str, tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="skipped: kubernetes-validate is not installed")
    manifests = with_components(tmp_path, built_of) if built_of in COMPONENTS else built(FOLDER / built_of)
    assert len(manifests) >= 11
    for manifest in manifests:
        for version in VERSIONS:
            validate.validate(manifest, version, strict=True)
    for workload in (manifest for manifest in manifests if "template" in manifest.get("spec", {})):
        _check_references(workload, manifests)


def _check_references(workload: Manifest, manifests: list[Manifest]) -> None:
    """Everything that a pod names is there, or is what the page tells to make."""
    specification = pod(workload)
    labels = workload["spec"]["template"]["metadata"]["labels"]
    (container,) = specification["containers"]
    volumes = {volume["name"]: volume for volume in specification["volumes"]}
    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys() | claims
    made = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    to_make = {"sanderling-token", "sanderling-tls", "sanderling-input", "sanderling-models"}
    page = (ROOT / "docs/deployment.md").read_text()
    assert all(name in page for name in to_make)
    for volume in volumes.values():
        for kind, name in (
            ("ConfigMap", volume.get("configMap", {}).get("name")),
            ("Secret", volume.get("secret", {}).get("secretName")),
            ("PersistentVolumeClaim", volume.get("persistentVolumeClaim", {}).get("claimName")),
        ):
            assert name is None or name in to_make or (kind, name) in made, f"{kind} {name}"
    ports = {port["name"] for port in container["ports"]}
    for probe in (name for name in container if name.endswith("Probe")):
        of_port = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        assert of_port["port"] in ports
    services = [manifest for manifest in manifests if manifest["kind"] == "Service"]
    selected = [service for service in services if service["spec"]["selector"].items() <= labels.items()]
    assert len(selected) == 1
    numbers = {port["containerPort"] for port in container["ports"]}
    assert {port["port"] for port in selected[0]["spec"]["ports"]} == numbers
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert specification["securityContext"]["runAsNonRoot"]


def test_the_number_of_servers_is_said_three_times_alike() -> None:
    for folder in ("base", "example"):
        manifests = built(FOLDER / folder)
        said = of(manifests, "ConfigMap", "sanderling-ps")["data"]
        workload = of(manifests, "StatefulSet", "sanderling-ps")
        peers = [f"tcp://sanderling-ps-{shard}.sanderling-ps:7000" for shard in range(int(said["SHARDS"]))]
        assert workload["spec"]["replicas"] == int(said["SHARDS"])
        assert said["PEERS"].split(",") == peers


class Pod:
    """The container of a manifest as a process, with the probes and hooks that a cluster would use."""

    def __init__(self, workload: Manifest, cluster: "Cluster", index: int = 0) -> None:
        self.specification = pod(workload)
        (self.container,) = self.specification["containers"]
        self.address = cluster.address(workload["metadata"]["name"], index)
        self.folder = cluster.folder / workload["metadata"]["name"] / str(index)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cluster = cluster
        self.arguments = [self._in_place(argument, index) for argument in self.container["args"]]
        self.start()

    def _in_place(self, argument: str, index: int) -> str:
        """An argument with variables, paths and addresses of this host."""
        for source in self.container.get("envFrom", []):
            config = of(
                self.cluster.manifests, "ConfigMap", re.sub(r"-[0-9a-z]{10}$", "", source["configMapRef"]["name"])
            )
            for name, value in config["data"].items():
                argument = argument.replace(f"$({name})", value)
        for variable in self.container.get("env", []):
            assert "pod-index" in variable["valueFrom"]["fieldRef"]["fieldPath"]
            argument = argument.replace(f"$({variable['name']})", str(index))
        for mount in self.container["volumeMounts"]:
            argument = re.sub(rf"(?<![\w/]){mount['mountPath']}(?=/|$)", str(self.volume(mount["name"])), argument)
        argument = argument.replace("0.0.0.0", self.address)
        return re.sub(
            r"(sanderling-\w+)-(\d+)\.sanderling-\w+",
            lambda name: self.cluster.address(name[1], int(name[2])),
            argument,
        )

    def volume(self, name: str) -> Path:
        """The folder of a volume: what all pods share, or its own."""
        shared: Path = self.cluster.folder / "volumes" / name
        own: Path = self.folder / name
        if shared.exists():
            return shared
        own.mkdir(exist_ok=True)
        return own

    def start(self) -> None:
        """Starts the process; it need not be ready."""
        self.process = subprocess.Popen(command(*self.arguments), cwd=self.folder, stdout=subprocess.DEVNULL)

    def answers(self, probe: str) -> bool:
        """Whether a probe succeeds, as the kubelet judges it."""
        return _succeeds(self.container[probe], self.container["ports"], self.address)

    def await_ready(self) -> None:
        """Waits as the cluster does before it sends requests."""
        first = "startupProbe" if "startupProbe" in self.container else "readinessProbe"
        eventually(lambda: self.process.poll() is not None or self.answers(first))
        assert self.process.poll() is None, f"{self.arguments} ended"
        assert self.answers("readinessProbe")

    def stop(self) -> None:
        """Ends the pod as the cluster does: the hook, SIGTERM, and a limit."""
        hook = self.container.get("lifecycle", {}).get("preStop", {})
        time.sleep(min(hook.get("sleep", {}).get("seconds", 0), 0.2))
        self.process.send_signal(signal.SIGTERM)
        limit = self.specification["terminationGracePeriodSeconds"]
        assert self.process.wait(min(limit, PATIENCE_S)) == 0

    def kill(self) -> None:
        """Ends the process without warning."""
        self.process.kill()
        self.process.wait()


def _succeeds(probe: Manifest, ports: list[Manifest], host: str) -> bool:
    how = probe.get("httpGet") or probe["tcpSocket"]
    (port,) = (port["containerPort"] for port in ports if port["name"] == how["port"])
    if "tcpSocket" in probe:
        return subprocess.run(["bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}"], stderr=-3, check=False).returncode == 0
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    url = f"{how.get('scheme', 'HTTP').lower()}://{host}:{port}{how['path']}"
    try:
        with urllib.request.urlopen(url, context=trusting if url.startswith("https") else None) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Cluster:
    """Manifests, a folder for the volumes, and an address for each pod."""

    def __init__(self, manifests: list[Manifest], folder: Path) -> None:
        self.manifests, self.folder = manifests, folder
        self.pods: list[Pod] = []
        self.addresses: dict[tuple[str, int], str] = {}
        for name in ("input", "models", "token", "tls", "config"):
            (folder / "volumes" / name).mkdir(parents=True)
        write_clicks(folder)
        shutil.copytree(train(folder), folder / "volumes/models/clicks")
        shutil.move(folder / "clicks.csv", folder / "volumes/input/clicks.csv")
        secret = folder / "volumes/token/token"
        secret.write_text(TOKEN)
        secret.chmod(0o440)
        config = of(manifests, "ConfigMap", "sanderling-hub")["data"]["clicks.toml"]
        (folder / "volumes/config/clicks.toml").write_text(config.replace("/input", str(folder / "volumes/input")))

    def address(self, workload: str, index: int) -> str:
        """A loopback address that no other pod has, nor one of another test process."""
        high, low = divmod(os.getpid() % 60000, 250)
        at = self.addresses.setdefault((workload, index), f"127.{high + 1}.{low + 1}.{len(self.addresses) + 1}")
        assert len(self.addresses) < 250
        return at

    def run(self, kind: str, name: str, index: int = 0) -> Pod:
        """A pod of a workload."""
        self.pods.append(Pod(of(self.manifests, kind, name), self, index))
        return self.pods[-1]


@contextmanager
def cluster(manifests: list[Manifest], folder: Path) -> Iterator[Cluster]:
    made = Cluster(manifests, folder)
    try:
        yield made
    finally:
        for pod in made.pods:
            pod.kill()


def certify(made: Cluster) -> sanderling.Tls:
    """A certificate for all addresses of the pods, as cert-manager writes it, and the authority for clients."""
    folder = made.folder / "volumes/tls"
    names = ",".join(f"IP:{address}" for address in made.addresses.values())
    (folder / "names").write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
    new = "openssl req -newkey rsa:2048 -nodes -subj /CN=test"
    for line in (
        f"{new} -x509 -days 2 -keyout ca.key -out ca.crt",
        f"{new} -keyout tls.key -out tls.csr",
        "openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out tls.crt",
    ):
        subprocess.run(line.split(), cwd=folder, check=True, capture_output=True)
    (folder / "tls.key").chmod(0o644)  # as in a volume of a Secret
    return sanderling.Tls(str(folder / "ca.crt"))


@pytest.mark.parametrize("components", [(), ("tls", "kept", "autoscaler")], ids=["base", "components"])
def test_commands_probes_and_hooks_run(components: tuple[str, ...], tmp_path: Path) -> None:
    manifests = with_components(tmp_path, *components)
    with cluster(manifests, tmp_path / "cluster") as made, ExitStack() as stack:
        for name, index in (("ps", 0), ("ps", 1), ("hub", 0), ("serve", 0)):
            made.address(f"sanderling-{name}", index)
        tls = certify(made) if "tls" in components else None
        servers = [made.run("StatefulSet", "sanderling-ps", shard) for shard in range(2)]
        pods = [*servers, made.run("Job", "sanderling-hub"), made.run("Deployment", "sanderling-serve")]
        for each in pods:
            each.await_ready()
            assert "livenessProbe" not in each.container or each.answers("livenessProbe")
        serve = pods[-1]
        _check_tokens(servers[0], serve, is_tls=tls is not None)

        # A client that knows one server finds the other; a hub's minibatches train the table.
        connection = stack.enter_context(sanderling.connect(f"{servers[0].address}:7000", token=TOKEN, tls=tls))
        table = connection.table("user", 4, optimizer={"type": "adagrad", "lr": 0.1})
        source = sanderling.HubSource(f"hub://{pods[2].address}:7200", token=TOKEN, tls=tls)
        rows = sanderling.Embedding([table], [("user", 0, "sum")])
        for batch in sanderling.FeedQueue(source, rows, depth=2):
            assert batch.lookup is not None
            batch.lookup.add_grads(np.ones_like(batch.lookup.pooled))
            batch.lookup.push()
        rows.finish()
        assert len(table) == 97
        keys = table.keys()
        before = table.pull(keys)
        # The hub has ended, as a Job does; the others end when they are told.
        assert pods[2].process.wait(PATIENCE_S) == 0

        if "kept" in components:
            servers[1].kill()
        else:
            servers[1].stop()
        servers[1].start()
        servers[1].await_ready()
        again = stack.enter_context(sanderling.connect(f"{servers[1].address}:7000", token=TOKEN, tls=tls))
        np.testing.assert_array_equal(again.open("user").pull(keys), before)
        for each in (servers[0], servers[1], serve):
            each.stop()
            assert not each.answers("readinessProbe")


def test_a_cluster_is_updated_pod_by_pod(tmp_path: Path) -> None:
    manifests = with_components(tmp_path, "cluster")
    workload = of(manifests, "StatefulSet", "sanderling-ps")
    assert workload["spec"]["replicas"] == 4
    with cluster(manifests, tmp_path / "cluster") as made, ExitStack() as stack:
        keeper = made.run("StatefulSet", "sanderling-keeper")
        keeper.await_ready()
        servers = [made.run("StatefulSet", "sanderling-ps", index) for index in range(4)]
        for each in servers:
            eventually(lambda each=each: each.answers("readinessProbe"))  # type: ignore[misc]
        registry = f"keeper://{keeper.address}:7400/ads"
        connection = stack.enter_context(sanderling.connect(registry, token=TOKEN))
        table = connection.table("user", 2, init="zero", optimizer={"type": "sgd", "lr": 1.0})
        keys = np.arange(100, dtype=np.uint64)
        pushes = 0
        for each in servers:
            each.stop()
            table.push(keys, -np.ones((100, 2), np.float32))
            each.start()
            table.push(keys, -np.ones((100, 2), np.float32))
            pushes += 2
            eventually(lambda each=each: each.answers("readinessProbe"))  # type: ignore[misc]
        # The keeper may be away meanwhile.
        keeper.kill()
        np.testing.assert_array_equal(table.pull(keys), np.full((100, 2), pushes, np.float32))
        keeper.start()
        keeper.await_ready()
        # A killed server is replaced, too.
        servers[0].kill()
        np.testing.assert_array_equal(table.pull(keys), np.full((100, 2), pushes, np.float32))


def _check_tokens(ps: Pod, serve: Pod, *, is_tls: bool) -> None:
    """Ports that others reach want the token, also without TLS."""
    scheme = "https" if is_tls else "http"
    trusting = ssl._create_unverified_context() if is_tls else None
    for url in (f"{scheme}://{ps.address}:7100/metrics", f"{scheme}://{serve.address}:8500/metrics"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, context=trusting)
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, context=trusting) as answer:
            assert b"sanderling_" in answer.read()
