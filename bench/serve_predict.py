"""Predictions over HTTP: fm in binary batches, one row of JSON, and a deep model beside ONNX Runtime alone.

    cargo build --release --locked -p sanderling-cli
    .venv/bin/python bench/serve_predict.py target/release/sanderling

The server has one scoring thread. "per core" divides by the processor time of the whole server process; the other
rates are those of the clock. Every figure is the median of five parts.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

BATCH, PARTS, PART_S = 128, 5, 2.0
FM_FEATURES, MLP_FEATURES, MLP_DIM = 39, 81, 16
VOCABULARY = 1000


def write_csv(path: Path, features: int, rows: int) -> None:
    """Write rows of random values."""
    rng = np.random.default_rng(1)
    values, labels = rng.integers(0, VOCABULARY, (rows, features)), rng.integers(0, 2, rows)
    head = ",".join(["label", *(f"f{number}" for number in range(features))])
    lines = (f"{label}," + ",".join(map(str, row)) for label, row in zip(labels, values, strict=True))
    path.write_text("\n".join([head, *lines]) + "\n")


def write_config(path: Path, name: str, model: str, features: int) -> None:
    """Write a configuration of categorical features."""
    columns = "".join(f'[[feature]]\nname = "f{number}"\n' for number in range(features))
    path.write_text(f'name = "{name}"\n[data]\ntrain = "{name}.csv"\n[model]\n{model}\n{columns}')


@contextmanager
def serve(program: str, model: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Address and process number of a server."""
    line = [program, "serve", str(model), "--listen", "127.0.0.1:0", "--threads", "1", "--timeout", "30s", *options]
    # There the server finds ONNX Runtime.
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().removeprefix("listening at http://"), process.pid
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def binary_request(features: int, rows: int, kind: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an inference request with random values, as numbers or as texts."""
    rng = np.random.default_rng(2)
    inputs, parts = [], []
    for number in range(features):
        values = rng.integers(0, VOCABULARY, rows)
        if kind == "INT64":
            part = values.astype("<i8").tobytes()
        else:
            texts = [str(value).encode() for value in values]
            part = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        size = {"binary_data_size": len(part)}
        inputs.append({"name": f"f{number}", "datatype": kind, "shape": [rows], "parameters": size})
        parts.append(part)
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(parts), {"Inference-Header-Content-Length": str(len(head))}


def rate(address: str, pid: int, path: str, body: bytes, headers: dict[str, str], connections: int) -> dict[str, float]:
    """Requests per second by the clock and per second of the server's processor time."""

    def part(_: int) -> int:
        connection, count = http.client.HTTPConnection(address), 0
        end = time.perf_counter() + PART_S
        while time.perf_counter() < end:
            connection.request("POST", path, body, headers)
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            reply.read()
            count += 1
        return count

    found = []
    with ThreadPoolExecutor(connections) as pool:
        for _ in range(PARTS):
            before, start = cpu_s(pid), time.perf_counter()
            count = sum(pool.map(part, range(connections)))
            found.append((count / (time.perf_counter() - start), count / (cpu_s(pid) - before)))
    return {"per_s": median(clock for clock, _ in found), "per_cpu_s": median(cpu for _, cpu in found)}


def latencies(address: str, path: str, body: bytes, count: int = 3000) -> dict[str, float]:
    """Microseconds of single requests over one connection, by percentile."""
    connection, took = http.client.HTTPConnection(address), []
    for _ in range(count):
        start = time.perf_counter()
        connection.request("POST", path, body)
        reply = connection.getresponse()
        reply.read()
        took.append((time.perf_counter() - start) * 1e6)
        assert reply.status == 200
    return {f"p{number}": round(float(np.percentile(took, number)), 1) for number in (50, 90, 99)}


def engine_alone(onnx: Path, rows: int) -> float:
    """Runs per second of ONNX Runtime on one thread, with all inputs in memory."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    inputs = {one.name: rng.normal(size=(rows, MLP_DIM)).astype(np.float32) for one in session.get_inputs()}
    return median(repeated(lambda: session.run(None, inputs)) for _ in range(PARTS))


def repeated(call: Callable[[], Any]) -> float:
    """Calls per second."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + PART_S:
        call()
        count += 1
    return count / (time.perf_counter() - start)


def run(program: str, *line: str) -> None:
    """Run a command to its end."""
    subprocess.run([program, *line], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Measure, and print a JSON object per figure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", help="the command, such as target/release/sanderling")
    program = str(Path(options.parse_args().program).resolve())
    print(json.dumps({"load_average": os.getloadavg()[0], "processors": os.cpu_count()}))  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        measure_fm(program)
        measure_deep(program)
    return 0


def told(what: str, **numbers: Any) -> None:  # noqa: ANN401
    """Print a figure."""
    print(json.dumps({"what": what, **numbers}), flush=True)  # noqa: T201


def measure_fm(program: str) -> None:
    """Measure fm: batches of 128 rows, one row of JSON."""
    write_csv(Path("fm.csv"), FM_FEATURES, 20_000)
    write_config(Path("fm.toml"), "fm", 'type = "fm"\nrank = 8', FM_FEATURES)
    run(program, "train", "fm.toml", "--quiet")
    with serve(program, Path("runs/fm/model")) as (address, pid):
        for kind in ("INT64", "BYTES"):
            body, headers = binary_request(FM_FEATURES, BATCH, kind)
            found = rate(address, pid, "/v2/models/fm/infer", body, headers, 2)
            told(f"fm, {kind}, batches of {BATCH}", **{name: round(value * BATCH) for name, value in found.items()})
        row = {f"f{number}": number * 7 % VOCABULARY for number in range(FM_FEATURES)}
        told("fm, one row of JSON, us", **latencies(address, "/predict", json.dumps({"rows": [row]}).encode()))


def measure_deep(program: str) -> None:
    """Measure a perceptron 1296-512-256-1 beside ONNX Runtime alone, and requests of one row in batches."""
    from sanderling.torch import command
    from sanderling.torch.onnx_export import export_onnx

    write_csv(Path("mlp.csv"), MLP_FEATURES, 2_000)
    write_config(Path("mlp.toml"), "mlp", f'type = "dnn"\ndim = {MLP_DIM}\nhidden = [512, 256]', MLP_FEATURES)
    assert command.main(["mlp.toml", "--quiet"]) == 0
    model = Path("runs/mlp/model")
    export_onnx(model)
    alone = {rows: engine_alone(model / "dense.onnx", rows) for rows in (1, 16, BATCH)}
    told("onnxruntime alone, rows/s", **{str(rows): round(runs * rows) for rows, runs in alone.items()})
    for options in ([], ["--built-in-engine"]):
        with serve(program, model, *options) as (address, pid):
            for kind in ("INT64", "BYTES"):
                body, headers = binary_request(MLP_FEATURES, BATCH, kind)
                found = rate(address, pid, "/v2/models/mlp/infer", body, headers, 2)
                ratio = round(found["per_s"] / alone[BATCH], 3)
                rates = {name: round(value * BATCH) for name, value in found.items()}
                told(f"mlp, {kind}, batches of {BATCH} {' '.join(options)}", **rates, of_engine=ratio)
    for window in ("0us", "500us", "2ms"):
        with serve(program, model, "--batch-window", window) as (address, pid):
            body, headers = binary_request(MLP_FEATURES, 1, "INT64")
            found = rate(address, pid, "/v2/models/mlp/infer", body, headers, 32)
            told(f"mlp, one row, 32 connections, window {window}", **{k: round(v) for k, v in found.items()})


if __name__ == "__main__":
    sys.exit(main())
