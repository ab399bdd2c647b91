"""What was made before a fork says in the child that it is the parent's, and goes on for the parent."""

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import sanderling

PATIENCE_S = 60


def in_child(work: Callable[[], object]) -> str:
    """What a forked child is told when it does this."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Newer interpreters warn of forks beside threads, which are what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            work()
        except sanderling.Error as error:
            said = str(error)
        except BaseException as error:
            said = repr(error)
        finally:
            # Or the child would go on with the tests, whatever it was.
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    # A child that hangs is the defect.
    timer = threading.Timer(PATIENCE_S, os.kill, (child, 9))
    timer.start()
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    timer.cancel()
    return said


def test_a_connection_is_its_process(two_servers: str) -> None:
    keys, ones = np.arange(100, dtype=np.uint64), np.ones((100, 2), np.float32)
    connection = sanderling.connect(two_servers)
    table = connection.table("forked", 2, optimizer={"type": "sgd", "lr": 1.0})
    table.push(keys, ones)
    for work in (lambda: table.pull(keys), lambda: table.push(keys, ones), lambda: connection.open("forked")):
        assert "before this process was forked" in in_child(work)
    assert in_child(lambda: sanderling.connect(two_servers).open("forked").push(keys, ones)) == "nothing"
    table.push(keys, ones)
    start = table.pull(np.array([10**6], dtype=np.uint64))
    assert np.all(np.abs(table.pull(keys) + 3.0) <= 1.0 + np.abs(start))


def test_what_forked_siblings_push_is_theirs(two_servers: str) -> None:
    """Neither may be taken for the other, whose push with the same number was applied before."""
    keys, ones = np.arange(100, dtype=np.uint64), np.ones((100, 2), np.float32)
    connection = sanderling.connect(two_servers)
    table = connection.table("siblings", 2, init={"type": "zero"}, optimizer={"type": "sgd", "lr": 1.0})
    for _ in range(2):
        assert in_child(lambda: sanderling.connect(two_servers).open("siblings").push(keys, ones)) == "nothing"
    assert np.all(table.pull(keys) == -2.0)


def test_queues_and_embeddings_are_their_process(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,a\n" + "".join(f"{row % 2},{row}\n" for row in range(100)))
    embedding = sanderling.Embedding([sanderling.Table("t", 2)], [("a", 0, "sum")])
    source = sanderling.FileSource(tmp_path / "rows.csv", {"feature": [{"name": "a"}]}, batch_size=10)
    queue = sanderling.FeedQueue(source, embedding)
    batch = next(queue)

    def push() -> None:
        assert batch.lookup is not None
        batch.lookup.add_grads(np.ones((10, 2), np.float32))
        batch.lookup.push()

    for work in (lambda: next(queue), embedding.finish, push, lambda: embedding.lookup(batch)):
        assert "before the process was forked" in in_child(work)
    push()
    embedding.finish()
    assert len(list(queue)) == 9
