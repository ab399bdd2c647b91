"""The ready trainer over hubs, which are processes: the same model as from files, and who is told to stop goes on."""

import http.server
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainers import Forks, Trainers

import sanderling
import sanderling.torch
from sanderling.torch import checkpoint, command, trainer

ROWS = 600
BATCH = 50
PASSES = 3
CONFIG = f"""
[data]
train = "train.csv"
valid = "valid.csv"
[model]
type = "deepfm"
dim = 4
hidden = [8]
[train]
batch_size = {BATCH}
passes = {PASSES}
shuffle_rows = 0
threads = 1
depth = 1
print_every_steps = 4
[[feature]]
each = ["a", "b"]
[[feature]]
name = "x"
type = "quantile"
buckets = 6
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows, and the configuration of trainer and hub alike."""
    rng = np.random.default_rng(3)
    for name, rows in (("train", ROWS), ("valid", 200)):
        a, b = rng.integers(0, 5, (2, rows))
        x = rng.normal(size=rows).round(3)
        lines = [f"{(i + j) % 2},{i},{j},{z}\n" for i, j, z in zip(a, b, x, strict=True)]
        (tmp_path / f"{name}.csv").write_text("label,a,b,x\n" + "".join(lines))
    (tmp_path / "clicks.toml").write_text(CONFIG)
    return tmp_path


@contextmanager
def hub(folder: Path, *options: str, name: str = "hub", config: str = "clicks.toml", listen: str = "") -> Iterator[str]:
    """A hub over the configuration's training data, until the block ends; gives `hub://ADDRESS`."""
    address = listen or f"unix:{folder}/{name}"
    start = [sys.executable, "-m", "sanderling", "hub", "--config", config, "--listen", address, "--linger", "2s"]
    with subprocess.Popen([*start, *options], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("listening at ")
            yield f"hub://{said.removeprefix('listening at ').strip()}"
        finally:
            process.kill()


def train(folder: Path, *inputs: str, name: str = "clicks", max_steps: int = 0, **options: Any) -> dict[str, Any]:
    """What the command does, in this process: trains from these inputs, or from the configuration's; the summary."""
    config = tomllib.loads((folder / "clicks.toml").read_text())
    data = config["data"]
    for kind, inputs_of in (("train", list(inputs) or data.get("train")), ("valid", data.get("valid"))):
        names = [inputs_of] if isinstance(inputs_of, str) else inputs_of
        data[kind] = [each if "://" in each else str(folder / each) for each in names]
    if max_steps:
        config["train"]["max_steps"] = max_steps
    return sanderling.torch.train({"name": name, **config}, runs_dir=folder / "runs", **options).summary


def dense(directory: Path) -> torch.Tensor:
    """The dense parameters of a checkpoint, one after the other."""
    manifest = json.loads((directory / "manifest.json").read_text())
    state = torch.load(directory / manifest["dense"]["file"], weights_only=True)["model"]
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


def test_a_hub_in_order_gives_the_model_that_files_give(folder: Path) -> None:
    # One minibatch ahead, so that how old rows are does not depend on time: none is looked up before the push before.
    of_files = train(folder, name="files")
    with hub(folder) as address:
        of_hub = train(folder, address, name="hub")
    assert (of_hub["steps"], of_hub["examples"], of_hub["passes"]) == (PASSES * ROWS // BATCH, PASSES * ROWS, PASSES)
    assert of_hub["auc"] == pytest.approx(of_files["auc"], abs=0.02)
    # The hub's boundaries are in the model, which scores files by them.
    spec = checkpoint.read_extra(folder / "runs/hub/model")["spec"]
    assert spec == checkpoint.read_extra(folder / "runs/files/model")["spec"]
    assert len(sanderling.torch.predict(folder / "runs/hub/model", folder / "valid.csv")) == 200


def test_it_is_the_same_bit_by_bit_where_no_row_is_read_twice(folder: Path) -> None:
    """Every key occurs once per pass, so that how far a queue looks ahead does not matter."""
    for name in ("train", "valid"):
        lines = [f"{row % 3 % 2},{row},{row + ROWS},{row % 7}\n" for row in range(ROWS)]
        (folder / f"{name}.csv").write_text("label,a,b,x\n" + "".join(lines))
    text = CONFIG.partition("[[feature]]\nname")[0].replace(f"passes = {PASSES}", "passes = 1")
    (folder / "clicks.toml").write_text(text)
    of_files = train(folder, name="files")
    with hub(folder) as address:
        of_hub = train(folder, address, name="hub")
    assert of_hub["auc"] == of_files["auc"]
    assert of_hub["logloss"] == of_files["logloss"]
    assert torch.equal(dense(folder / "runs/hub/last"), dense(folder / "runs/files/last"))


def test_a_run_that_is_told_to_stop_goes_on_with_the_rest(folder: Path) -> None:
    def tell(line: dict[str, Any]) -> None:
        if line["step"] == 11:
            signal.raise_signal(signal.SIGTERM)

    with hub(folder, "--shuffle-rows", "200") as address:
        stopped = train(folder, address, max_steps=7)
        assert (stopped["steps"], stopped["stopped"], stopped["passes"]) == (7, True, 0)
        # Told by a signal, in the middle of things.
        with pytest.raises(KeyboardInterrupt):
            train(folder, address, resume=True, on_line=tell)
        assert checkpoint.read_extra(folder / "runs/clicks/last")["progress"]["step"] == 11
        summary = train(folder, address, resume=True)
        assert summary["steps"] == PASSES * ROWS // BATCH
        assert summary["examples"] == PASSES * ROWS, "each row once per pass"
    # It is over, and so it needs no hub to say so.
    assert train(folder, address, resume=True)["steps"] == summary["steps"]


def test_a_run_that_was_killed_goes_on_from_its_last_save_with_what_was_not_acknowledged(
    folder: Path, forks: Forks
) -> None:
    config = CONFIG.replace("print_every_steps = 4", "print_every_steps = 1\nsave_every_steps = 5")
    (folder / "clicks.toml").write_text(config)
    with hub(folder) as address:
        assert Trainers(forks, folder, 1, "--train", address).end(killed_at=8)[0] == -signal.SIGKILL
        at = checkpoint.read_extra(folder / "runs/clicks/last")["progress"]
        assert at["step"] == 5
        summary = train(folder, address, resume=True)
    # What was acknowledged after the last save is lost, as the documentation says; no row comes twice.
    assert at["step"] < summary["steps"] <= PASSES * ROWS // BATCH
    assert summary["passes"] == PASSES


def test_two_hubs_share_the_input(folder: Path) -> None:
    with hub(folder, "--share", "0/2", name="one") as one, hub(folder, "--share", "1/2", name="two") as two:
        # The file is one block, so that one of the hubs has nothing.
        assert train(folder, one, two)["examples"] == PASSES * ROWS


def test_a_hub_that_is_not_there_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = f"hub://unix:{folder}/nobody"
    monkeypatch.chdir(folder)
    arguments = ["clicks.toml", "--train", gone, "--hub-timeout"]
    expected = rf"error: hub unix:{re.escape(str(folder))}/nobody has been unreachable for \d+ s: "
    monkeypatch.setattr(trainer, "_NOTICE_S", 60.0)
    assert command.main([*arguments, "100ms"]) == 1
    assert re.match(expected, capsys.readouterr().err)
    # Who waits for longer is told what for.
    monkeypatch.setattr(trainer, "_NOTICE_S", 0.0)
    assert command.main([*arguments, "2s"]) == 1
    notice, error = capsys.readouterr().err.splitlines()
    assert notice == f"waiting for {gone} to answer, for up to 2 s (--hub-timeout); are they running?"
    assert re.match(expected, error)
    with pytest.raises(sanderling.ConfigError, match="files or hubs, not both"):
        train(folder, gone, "train.csv")
    (folder / "clicks.toml").write_text(CONFIG.replace("valid.csv", gone))
    with pytest.raises(sanderling.ConfigError, match=r"data\.valid: a hub hands each row out once"):
        train(folder, gone)


def test_what_hub_and_configuration_disagree_on_is_named(folder: Path) -> None:
    with hub(folder) as address:
        for changed, expected in (
            (CONFIG.replace('"a", "b"', '"b", "a"'), "the names of features is b, a, x here and a, b, x there"),
            (CONFIG.replace("buckets = 6", "buckets = 7"), 'buckets of feature "x" is 7 here and 6 there'),
            (CONFIG + '[label]\ncolumn = "click"\n', "label is"),
            (CONFIG.replace(f"batch_size = {BATCH}", "batch_size = 7"), "train.batch_size = 7, but hub"),
            (CONFIG.replace(f"passes = {PASSES}", "passes = 9"), "start it with --passes 9"),
        ):
            (folder / "clicks.toml").write_text(changed)
            with pytest.raises(sanderling.ConfigError, match=re.escape(expected)) as raised:
                train(folder, address)
            assert f"{folder}/hub" in str(raised.value)
        (folder / "clicks.toml").write_text(CONFIG.replace('"a", "b"]', '"a", "b"]\ndim = 3'))
        with pytest.raises(sanderling.ConfigError, match=r"dim = 3, but all rows of a deep model"):
            train(folder, address)
        # What is left out is as the hub has it.
        short = '[data]\nvalid = "valid.csv"\n[model]\ntype = "dnn"\ndim = 4\nhidden = [8]\n'
        (folder / "clicks.toml").write_text(short)
        assert train(folder, address)["examples"] == PASSES * ROWS


def test_a_hub_that_does_not_know_where_it_was_is_not_gone_on_with(folder: Path) -> None:
    with hub(folder) as address:
        train(folder, address, max_steps=3)
    with hub(folder) as address, pytest.raises(sanderling.HubError, match=r"anew without its position.*without --res"):
        train(folder, address, resume=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes a certificate, is not there")
def test_over_tls_with_a_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key.pem"]
    made = ["openssl", "req", "-x509", *key, "-out", "cert.pem", "-days", "2", *names]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    (folder / "token").write_text("secret\n")
    options = ["--cert-file", "cert.pem", "--key-file", "key.pem", "--token-file", "token"]
    with hub(folder, *options, listen="127.0.0.1:0") as address:
        for ways, text in [
            ({"token": "secret"}, "talks TLS"),
            ({"token": "other", "tls": sanderling.Tls(folder / "cert.pem")}, "token"),
            ({"tls": sanderling.Tls(folder / "cert.pem", token="other")}, "token"),
            ({"tls": sanderling.Tls(folder / "cert.pem", token="secret"), "token": "secret"}, "given twice"),
            ({"tls": sanderling.Tls(folder / "cert.pem", cert=folder / "cert.pem")}, "leave out cert and key"),
            ({"tls": sanderling.Tls(folder / "key.pem")}, "key.pem"),
        ]:
            with pytest.raises(sanderling.Error, match=text):
                sanderling.FeedQueue(sanderling.HubSource(address, **ways))  # type: ignore[arg-type]
        monkeypatch.chdir(folder)
        of_hub = ["--train", address, "-q", "--json", "--hub-ca-file", "cert.pem", "--hub-token-file", "token"]
        assert command.main(["clicks.toml", *of_hub]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == PASSES * ROWS


def test_torchrun_trains_from_a_hub_in_step(folder: Path, forks: Forks, one_server: str) -> None:
    trainers = Trainers(forks, folder, 2, "--json", "--ps", one_server)
    with hub(folder, "--batch-size", "25", "--assign", "strided:2") as address:
        text = CONFIG.replace(f"batch_size = {BATCH}", "batch_size = 25")
        (folder / "clicks.toml").write_text(text)
        summary = json.loads(trainers.run("--train", address, "--name", "step").splitlines()[-1])
        # The hub's passes are of one stream of minibatches, so that none is left over between them.
        assert (summary["steps"], summary["examples"]) == (PASSES * ROWS // 50, PASSES * ROWS)
    # One trainer with twice the batch takes the same steps.
    (folder / "clicks.toml").write_text(CONFIG)
    with hub(folder) as address:
        alone = train(folder, address, name="alone", ps=one_server)
    assert summary["auc"] == pytest.approx(alone["auc"], abs=0.02)
    # Files are shared out as well; a hub that hands minibatches to anybody would keep them waiting for each other.
    assert json.loads(trainers.run("--name", "files").splitlines()[-1])["examples"] == PASSES * ROWS
    with hub(folder) as address:
        code, _, err = trainers.end("--train", address, "--name", "any")
    assert code != 0
    assert "--assign strided:2" in err


def test_steps_are_traced_with_their_minibatches(folder: Path) -> None:
    spans: list[dict[str, Any]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            for of in json.loads(self.rfile.read(int(self.headers["content-length"])))["resourceSpans"]:
                service = of["resource"]["attributes"][0]["value"]["stringValue"]
                spans.extend({**span, "service": service} for of in of["scopeSpans"] for span in of["spans"])
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with hub(folder, "--otlp", url) as address:
            sanderling.export_traces(url, every=1, name="clicks")
            try:
                steps = train(folder, address)["steps"]
            finally:
                sanderling.export_traces(None)
            end = time.monotonic() + 60.0
            while sum(span["name"] == "minibatch" for span in spans) < steps:
                assert time.monotonic() < end, spans
                time.sleep(0.05)
        server.shutdown()
    of_steps = {span["spanId"]: span for span in spans if span["name"] == "step"}
    assert len(of_steps) == steps
    for span in spans:
        if span["name"] == "minibatch":
            step = of_steps[span["parentSpanId"]]
            assert (step["service"], span["service"]) == ("sanderling-trainer", "sanderling-hub")
            assert step["traceId"] == span["traceId"]
    stages = {span["name"] for span in spans if span.get("parentSpanId") in of_steps}
    assert stages >= {"lookup", "queue", "train", "push", "minibatch"}
    with pytest.raises(sanderling.ConfigError, match="url: "):
        sanderling.export_traces("ftp://nowhere")
