"""Tables that outlive their process: killed, opened again, refused."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import sanderling

KEYS = np.arange(5000, dtype=np.uint64)

CHILD = """
import os, signal, sys
import numpy as np
import sanderling

table = sanderling.Table("user", 16, optimizer="adagrad", kept=sys.argv[1])
keys = np.arange(5000, dtype=np.uint64)
table.push(keys, np.full((5000, 16), 0.5, dtype=np.float32))
print(table.attached, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def test_a_killed_process_leaves_its_table(folder: Path) -> None:
    expected = sanderling.Table("user", 16, optimizer="adagrad")
    for times in (1, 2):
        ended = subprocess.run(
            [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=False, timeout=60
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        found = "created in" if times == 1 else "attached from"
        assert ended.stdout.startswith(found), ended.stdout
        expected.push(KEYS, np.full((5000, 16), 0.5, dtype=np.float32))
        table = sanderling.Table("user", 16, optimizer="adagrad", kept=folder)
        assert len(table) == 5000
        assert table.kept == folder / "user"
        assert table.attached is not None
        assert ": 5000 rows, nothing was interrupted" in table.attached
        np.testing.assert_array_equal(table.pull(KEYS), expected.pull(KEYS))
        del table


def test_a_table_in_use_and_one_of_another_layout_are_refused(folder: Path) -> None:
    table = sanderling.Table("t", 4, kept=folder)
    with pytest.raises(sanderling.FileError, match="uses this table"):
        sanderling.Table("t", 4, kept=folder)
    del table
    with pytest.raises(sanderling.ConfigError, match="the kept table's blocks is 4 x sgd, wanted is 8 x sgd"):
        sanderling.Table("t", 8, kept=folder)
    with pytest.raises(sanderling.ConfigError, match="seed is 42, wanted is 1"):
        sanderling.Table("t", 4, seed=1, kept=folder)
    assert sanderling.Table("t", 4).kept is None
    assert sanderling.Table("t", 4).attached is None
