"""Rows of a served model by `sanderling.RowsClient`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sanderling


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    folder = tmp_path_factory.mktemp("served")
    rows = "".join(f"u{at % 9},{at % 2}\n" for at in range(200))
    (folder / "clicks.csv").write_text(f"user,label\n{rows}")
    config = {
        "name": "clicks",
        "data": {"train": str(folder / "clicks.csv")},
        "model": {"type": "fm"},
        "feature": [{"name": "user"}],
    }
    sanderling.train(config, runs_dir=folder / "runs")
    return folder / "runs" / "clicks" / "model"


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    """The address of a server of it."""
    command = [sys.executable, "-m", "sanderling", "serve", str(model), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip().removeprefix("listening at http://")
        server.terminate()


def test_rows_are_those_of_the_model_and_come_from_the_cache(model: Path, address: str) -> None:
    table = sanderling.Table.load(model, "user")
    keys = np.concatenate([table.keys(), np.array([1, 2], dtype=np.uint64)])
    client = sanderling.RowsClient([address], max_age_s=60, hedge="p95")
    for user in (None, 17):
        weights, found, version = client.rows("user", keys, user=user)
        np.testing.assert_array_equal(weights, table.pull(keys, absent="zero"))
        assert (np.flatnonzero(~found).tolist(), version) == ([len(keys) - 2, len(keys) - 1], 1)
    counts = client.statistics()
    assert (counts["hits"], counts["misses"], counts["requests"]) == (len(keys), len(keys), 1)


def test_failures_have_their_exception(address: str) -> None:
    keys = np.array([1], dtype=np.uint64)
    with pytest.raises(sanderling.NotFoundError, match="no table"):
        sanderling.RowsClient([address]).rows("nothing", keys)
    with pytest.raises(sanderling.NotFoundError, match="no version"):
        sanderling.RowsClient([address], model="clicks@7").rows("user", keys)
    with pytest.raises(sanderling.ServerError):
        sanderling.RowsClient(["127.0.0.1:1"]).rows("user", keys)
    for wrong in ({"hedge": "p12"}, {"timeout_s": -1.0}):
        with pytest.raises(sanderling.ConfigError):
            sanderling.RowsClient([address], **wrong)
    with pytest.raises(sanderling.FileError, match=r"nowhere\.pem"):
        sanderling.RowsClient([address], tls=sanderling.Tls("nowhere.pem"))
    with pytest.raises(sanderling.ConfigError, match="leave out cert and key"):
        sanderling.RowsClient([address], tls=sanderling.Tls("ca.pem", cert="cert.pem", key="key.pem"))
    with pytest.raises(sanderling.ConfigError, match="given twice"):
        sanderling.RowsClient([address], token="a", tls=sanderling.Tls("ca.pem", token="b"))
    with pytest.raises(sanderling.ConfigError, match="address of a server"):
        sanderling.RowsClient([])
