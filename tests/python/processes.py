"""Processes of every kind under a little load, for tests of what operators use."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = """\
data = { train = "clicks.csv" }
model = { type = "lr" }
[[feature]]
each = ["user", "item"]
"""
PATIENCE_S = 60.0


def free_port() -> int:
    """A port of this host that no process listens at."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port


def eventually(is_so: Callable[[], bool]) -> None:
    """Waits until it is so."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.05)


def page(url: str, token: str | None = None) -> str:
    """The text of a page."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_S) as answer:
        text: bytes = answer.read()
    return text.decode()


def command(*arguments: str) -> list[str]:
    """A command line of the `sanderling` under test."""
    return [sys.executable, "-m", "sanderling", *arguments]


@contextmanager
def process(
    arguments: Sequence[str], folder: Path, lines: int, environment: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """A `sanderling` that is ready: it has printed so many lines. At the end it is told to stop."""
    started = subprocess.Popen(
        command(*arguments), cwd=folder, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {})
    )
    try:
        assert started.stdout is not None
        for _ in range(lines):
            assert started.stdout.readline(), f"{' '.join(arguments)} did not start"
        yield started
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            assert started.wait(PATIENCE_S) == 0
    finally:
        started.kill()
        started.communicate()


def write_clicks(folder: Path) -> None:
    """A log of clicks and a configuration for it."""
    rows = [f"{row % 2},u{row % 97},i{row % 31}" for row in range(4000)]
    (folder / "clicks.csv").write_text("\n".join(["label,user,item", *rows]) + "\n")
    (folder / "clicks.toml").write_text(MODEL)


def train(folder: Path, *options: str) -> Path:
    """The folder of a trained model."""
    subprocess.run(command("train", "clicks.toml", "--quiet", *options), cwd=folder, check=True, capture_output=True)
    return folder / "runs/clicks/model"


@contextmanager
def ps_hub_and_serve(folder: Path, token: str) -> Iterator[dict[str, str]]:
    """A parameter server, a hub and a server of predictions: the address of each, and those of their metrics."""
    write_clicks(folder)
    (folder / "token").write_text(token)
    (folder / "token").chmod(0o600)
    train(folder)
    ps, control, hub, metrics, serve = (f"127.0.0.1:{free_port()}" for _ in range(5))
    secret = ("--token-file", "token")
    with ExitStack() as stack:
        start = (
            (
                [
                    "ps",
                    "--listen",
                    ps,
                    "--control",
                    control,
                    "--data",
                    "saved",
                    "--log",
                    "log",
                    "--threads",
                    "1",
                    "--no-local",
                    *secret,
                ],
                2,
            ),
            (["hub", "--listen", hub, "--metrics", metrics, "--config", "clicks.toml", "--passes", "1000", *secret], 1),
            (["serve", "runs/clicks/model", "--listen", serve, "--threads", "1"], 1),
        )
        for arguments, lines in start:
            stack.enter_context(process(arguments, folder, lines))
        yield {"ps": ps, "control": control, "hub": hub, "metrics": metrics, "serve": serve}


@contextmanager
def cluster_and_run(folder: Path, token: str) -> Iterator[dict[str, str]]:
    """A keeper, a cluster of two replicas, and a training of many passes: the address of the metrics of each."""
    keeper, run, *controls = (f"127.0.0.1:{free_port()}" for _ in range(4))
    secret = ("--token-file", "token")
    cluster = ["--cluster", "ads", "--registry", f"keeper://{keeper}", "--groups", "1", "--replicas", "2"]
    more = ["--threads", "1", "--no-local", *secret]
    training = ["train", "clicks.toml", "--quiet", "--name", "long", "--passes", "100000", "--status-listen", run]
    with ExitStack() as stack:
        stack.enter_context(process(["keeper", "--data", "keeper", "--listen", keeper, *secret], folder, 1))
        for control in controls:
            stack.enter_context(process(["ps", *cluster, "--control", control, *more], folder, 3))
        trainer = subprocess.Popen(command(*training), cwd=folder, stdout=subprocess.DEVNULL)
        stack.callback(trainer.wait)
        stack.callback(trainer.kill)

        def is_ready() -> bool:
            try:
                said = page(f"http://{run}/metrics")
                roles = page(f"http://{controls[0]}/metrics", token)
            except OSError:
                return False
            return "sanderling_train_feature_drift" in said and "sanderling_group_in_sync 2" in roles

        eventually(is_ready)
        # The group has one primary, and its page alone tells of replicas in sync.
        primary = next(it for it in controls if "group_primary 1" in page(f"http://{it}/metrics", token))
        yield {"cluster": primary, "keeper": keeper, "run": run}


def predict(serve: str) -> float:
    """The score of a row."""
    body = json.dumps({"rows": [{"user": "u1", "item": "i1"}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{serve}/predict", data=body)) as answer:
        scores: list[float] = json.loads(answer.read())["scores"]
    return scores[0]
