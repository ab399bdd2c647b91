"""The clients under clients/, and those of Redis, read rows and scores of a process that runs `sanderling serve`."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CLIENTS = Path(__file__).parents[2] / "clients"
COMMAND = [sys.executable, "-m", "sanderling"]
TOKEN = "0123456789abcdef-of-a-test"
VALUES = ["u17", "nobody", 'ü "1"', "u3"]
ROW = {"user": "u17", "genres": ["a", "b"]}


@dataclass
class Served:
    """A server, and the answers that its clients must have."""

    host: str
    port: str
    resp_port: int
    rows: list[list[float] | None]
    score: float

    @property
    def dim(self) -> int:
        return next(len(row) for row in self.rows if row is not None)


def ask(url: str, body: dict[str, object]) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a small model, version 12, with a token."""
    folder = tmp_path_factory.mktemp("served")
    users = ["u17", "u3", 'ü ""1""', "u4"]
    rows = [f'"{users[row % 4]}",{"abc"[row % 3]}|b,{int(row % 7 > 3)}\n' for row in range(400)]
    (folder / "clicks.csv").write_text("user,genres,label\n" + "".join(rows))
    (folder / "clicks.toml").write_text(
        'data = { train = "clicks.csv" }\nmodel = { type = "fm" }\n[[feature]]\nname = "user"\n'
        '[[feature]]\nname = "genres"\ntype = "multi"\n'
    )
    subprocess.run([*COMMAND, "train", "clicks.toml"], cwd=folder, check=True, capture_output=True)
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    options = ["--name", "clicks@12", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--token-file", str(token)]
    process = subprocess.Popen(
        [*COMMAND, "serve", "runs/clicks/model", *options], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        url = lines[0].strip().removeprefix("listening at ")
        host, _, port = url.removeprefix("http://").partition(":")
        assert port, lines
        found = ask(f"{url}/tables/user/rows", {"values": VALUES})
        score = ask(f"{url}/predict", {"rows": [ROW]})["scores"][0]
        weights = [row["weights"] for row in found["rows"]]
        yield Served(host, port, int(lines[1].rpartition(":")[2]), weights, score)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def find(program: str, *folders: str) -> str:
    """The path of a program; without it the test is skipped."""
    found = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if found is None:
        pytest.skip(f"skipped: no {program}")
    return found


def build(command: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check(served: Served, command: list[str]) -> None:
    """Runs a client's example, which prints version, absent rows, rows, sum and score, and compares all."""
    arguments = ["user", json.dumps(ROW), *VALUES]
    refused = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "SANDERLING_TOKEN": "wrong"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the token is missing or wrong" in refused.stderr
    assert "401" in refused.stderr
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "SANDERLING_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["version", "absent", *["row"] * len(VALUES), "sum", "score"]
    absent = [str(place) for place, row in enumerate(served.rows) if row is None]
    assert lines[0] == ["version", "12"]
    assert lines[1] == ["absent", *absent]
    expected = np.array([row or [0.0] * served.dim for row in served.rows])
    found = np.array([[float(word) for word in line[1:]] for line in lines[2:-1]])
    np.testing.assert_allclose(found[:-1], expected, rtol=1e-6)
    np.testing.assert_allclose(found[-1], expected.sum(axis=0), rtol=1e-5, atol=1e-7)
    assert abs(float(lines[-1][1]) - served.score) < 1e-6


def test_go(served: Served, tmp_path: Path) -> None:
    go = find("go", "/usr/local/go/bin")
    example = str(tmp_path / "example")
    offline = {"GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOCACHE": str(tmp_path / "cache"), "GOTOOLCHAIN": "local"}
    build([go, "build", "-o", example, "./example"], CLIENTS / "go", **offline)
    check(served, [example, f"http://{served.host}:{served.port}"])


def test_java(served: Served, tmp_path: Path) -> None:
    java, javac = find("java"), find("javac")
    sources = ["Sanderling.java", "Example.java"]
    build([javac, "-Xlint:all", "-Werror", "-d", str(tmp_path), *sources], CLIENTS / "java")
    check(served, [java, "-cp", str(tmp_path), "Example", f"http://{served.host}:{served.port}"])


def test_c(served: Served, tmp_path: Path) -> None:
    example = str(tmp_path / "example")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]
    build([find("cc"), *flags, "sanderling.c", "example.c", "-o", example], CLIENTS / "c")
    check(served, [example, served.host, served.port])


def test_redis_py(served: Served) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(port=served.resp_port, password=TOKEN) as client:
        assert client.ping()
        found = client.mget([f"user:{value}" for value in VALUES])
        rows = [None if row is None else np.frombuffer(row, "<f4") for row in found]
        for row, expected in zip(rows, served.rows, strict=True):
            assert (row is None) == (expected is None)
            if row is not None and expected is not None:
                np.testing.assert_allclose(row, expected, rtol=1e-6)
        assert client.get("user:nobody") is None
        with client.pipeline(transaction=False) as pipeline:
            pipeline.get("user:u17")
            pipeline.mget(["user:u3", "genres:a"])
            single, several = pipeline.execute()
        assert (single, several[0]) == (found[0], found[3])
        with pytest.raises(redis.ResponseError, match='no table "nowhere"'):
            client.get("nowhere:1")
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.set("user:u17", "x")
    with redis.Redis(port=served.resp_port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.get("user:u17")


def test_redis_cli(served: Served) -> None:
    cli = [find("redis-cli"), "-p", str(served.resp_port), "--no-raw"]
    environment = {**os.environ, "REDISCLI_AUTH": TOKEN}
    done = subprocess.run(
        [*cli, "MGET", "user:u17", "user:nobody"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith('1) "'), done.stdout + done.stderr
    assert "2) (nil)" in done.stdout
    benchmark = [find("redis-benchmark"), "-p", str(served.resp_port), "-a", TOKEN, "-n", "200", "-c", "4", "-q"]
    done = subprocess.run([*benchmark, "MGET", *["user:u17"] * 64], capture_output=True, text=True, check=True)
    assert "requests per second" in done.stdout, done.stdout + done.stderr
