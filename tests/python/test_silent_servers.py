"""Ctrl-C while a server does not answer: the call that waits ends with KeyboardInterrupt, and the process with it."""

import signal
import subprocess
import sys

import pytest
from conftest import OwnServer

# Waits for the parent's word, then asks servers that do not run for something. Without an interrupt it waits for a day.
PROGRAM = """
import sys
import numpy as np
import sanderling

connection = sanderling.connect(sys.argv[1], timeout_s=86400.0)
connection.drop("silent")
table = connection.table("silent", 2)
keys, grads = np.arange(4, dtype=np.uint64), np.ones((4, 2), np.float32)
table.push(keys, grads)
embedding = sanderling.Embedding([table], [("id", 0, "sum")], pushes=1)
batch = sanderling.Batch([("id", keys, np.arange(5, dtype=np.uint32), None)])
lookups = [embedding.lookup(batch) for _ in range(4)]
for lookup in lookups:
    lookup.add_grads(grads)


def push_many():
    for lookup in lookups:
        lookup.push()


def push_and_finish():
    lookups[0].push()
    embedding.finish()


def push_and_raise():
    lookups[0].push()
    raise KeyboardInterrupt


waits = {
    "pull": lambda: table.pull(keys),
    "push": lambda: table.push(keys, grads),
    "size": lambda: len(table),
    "save": lambda: connection.save("silent"),
    "lookup": lambda: embedding.lookup(batch),
    "pushes": push_many,
    "finish": push_and_finish,
    "between": push_and_raise,
}
print("ready", flush=True)
sys.stdin.readline()
try:
    print("waiting", flush=True)
    waits[sys.argv[2]]()
    print("answered")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("wait", ["pull", "push", "size", "save", "lookup", "pushes", "finish", "between"])
def test_a_call_that_waits_ends_with_the_interrupt(wait: str, own_server: OwnServer) -> None:
    command = [sys.executable, "-c", PROGRAM, own_server.address, wait]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        try:
            assert trainer.stdout.readline() == "ready\n"
            own_server.pause()
            trainer.stdin.write("\n")
            trainer.stdin.flush()
            assert trainer.stdout.readline() == "waiting\n"
            # The signal may come before the call has begun to wait; it ends either way. Between two calls no signal
            # can be timed: that program raises for itself what one would.
            if wait != "between":
                trainer.send_signal(signal.SIGINT)
            assert trainer.stdout.readline() == "interrupted\n"
            # The threads of the background are not waited for either.
            assert trainer.wait(timeout=60) == 0
        finally:
            trainer.kill()
            own_server.go_on()
