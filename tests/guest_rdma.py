"""Pulls rows by RDMA from Python, for the guest of `guest_rdma.sh`: a server with a token has its card gather them.

It takes the program `sanderling`, and the address of this machine on the device: `guest_rdma.py PROGRAM HOST`.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import sanderling

KEYS, DIM, ROUNDS, BATCH = 20_000, 16, 40, 2000
TOKEN = "that of the guest"


def compare(address: str) -> None:
    """Pushes rows that tell their key, and pulls random ones, of which some are absent."""
    random = np.random.default_rng(7)
    with sanderling.connect(address, token=TOKEN) as connection:
        table = connection.table("rows", DIM, optimizer={"type": "sgd", "lr": 1.0}, init="zero", writes="copy_on_write")
        for keys in np.array_split(np.arange(KEYS, dtype=np.uint64), 8):
            table.push(keys, -np.repeat(keys.astype(np.float32)[:, None], DIM, axis=1))
        for _ in range(ROUNDS):
            keys = random.integers(0, KEYS + KEYS // 50, BATCH, dtype=np.uint64)
            expected = np.where(keys < KEYS, keys, 0).astype(np.float32)
            np.testing.assert_array_equal(table.pull(keys), np.repeat(expected[:, None], DIM, axis=1))


def main() -> None:
    """Starts the server and compares."""
    program, host = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.write_text(f"{TOKEN}\n")
        token.chmod(0o600)
        command = [program, "ps", "--listen", f"rdma://{host}:0", "--runtime-dir", folder, "--gather", "nic"]
        command += ["--no-local", "--expose", "--insecure", "--token-file", str(token)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                said = server.stdout.readline() if server.stdout else ""
                compare(said.removeprefix("listening at ").strip())
            finally:
                server.kill()
    print(f"{ROUNDS * BATCH} rows right in Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
