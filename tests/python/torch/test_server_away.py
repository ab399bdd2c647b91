"""A parameter server that dies under the ready trainer: one time limit, and a warning that says who is waited for."""

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sanderling
from sanderling.torch.deep_config import DeepConfig

if TYPE_CHECKING:
    from conftest import OwnServer

LIMIT_S = 3
CONFIG = """
[data]
train = "train.csv"
[model]
type = "dnn"
dim = 4
hidden = [8]
[train]
batch_size = 20
passes = 100000
shuffle_rows = 0
print_every_steps = 20
[[feature]]
name = "a"
"""


@pytest.mark.parametrize("pauses", [False, True])
def test_a_server_that_is_away_ends_the_run_within_one_time_limit(
    tmp_path: Path, own_server: "OwnServer", pauses: bool
) -> None:
    rows = "".join(f"{row % 2},{row % 7}\n" for row in range(2000))
    (tmp_path / "train.csv").write_text("label,a\n" + rows)
    (tmp_path / "clicks.toml").write_text(CONFIG)
    options = ["--ps", own_server.address, "--ps-timeout", f"{LIMIT_S}s"]
    command = [sys.executable, "-m", "sanderling", "train", "clicks.toml", *options]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as trainer:
        assert trainer.stderr is not None
        try:
            line = "begins"
            while line and "step 40" not in line:
                line = trainer.stderr.readline()
            assert line, "it ended before"
            if pauses:
                own_server.pause()
            else:
                own_server.process.kill()
            began = time.monotonic()
            said = trainer.stderr.read()
            took_s = time.monotonic() - began
            assert trainer.wait() == 1, said
        finally:
            trainer.kill()
    cause = "it does not answer" if pauses else "connection refused"
    assert f"has not answered for 1 s (limit {LIMIT_S} s): {cause}" in said
    assert f"no answer within {LIMIT_S}s" in said
    # One limit and a last attempt, however much is asked at the end; before, it was 20 s twice.
    assert LIMIT_S - 0.5 < took_s < 4 * LIMIT_S, said


def test_the_time_limit_is_checked() -> None:
    config = {"data": {"train": "a.csv"}, "feature": [{"name": "a"}]}
    assert DeepConfig.of({**config, "train": {"ps_timeout": "2.5s"}}).train.ps_timeout_s == 2.5
    for limit in ("20", "1ms", "25h", 20.0):
        with pytest.raises(sanderling.ConfigError, match=r"train\.ps_timeout"):
            DeepConfig.of({**config, "train": {"ps_timeout": limit}})
