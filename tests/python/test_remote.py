"""What only tables on servers have: connections and their options, checkpoints by name, servers that go away."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from conftest import servers

import sanderling

KEYS = np.arange(1000, dtype=np.uint64)


def weights() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(4).normal(size=(len(KEYS), 4)).astype(np.float32)


@pytest.mark.parametrize("place", ["one_server", "two_servers"])
def test_rows_in_half_precision_are_those_of_numpy(place: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(place)
    rows = weights()
    exact = sanderling.connect(address, compression="zstd").table("halves", 4, optimizer={"type": "sgd", "lr": 1.0})
    exact.clear()
    exact.push(KEYS, -rows)
    np.testing.assert_array_equal(exact.pull(KEYS), rows)
    halves = sanderling.connect(address, f16_rows=True, compression="lz4", hedge="p95").open("halves")
    np.testing.assert_array_equal(halves.pull(KEYS), rows.astype(np.float16).astype(np.float32))
    bags = halves.pull_pooled(KEYS, np.array([0, 500, 1000], dtype=np.uint32))
    # Each server rounds its part of a sum, which may be larger than the sum.
    parts = 2 * np.abs(rows).reshape(2, 500, 4).sum(axis=1) / 2**11
    assert np.all(np.abs(bags - rows.astype(np.float64).reshape(2, 500, 4).sum(axis=1)) <= parts)


def test_options_that_are_none_are_refused(one_server: str) -> None:
    for options, text in [
        ({"compression": "gzip"}, "'lz4', 'zstd'"),
        ({"hedge": "p12"}, "p95"),
        ({"hedge": "0s"}, "p95"),
        ({"hedge": "500"}, "p95"),
        ({"pull_from": "backup"}, "must be primary or any"),
        ({"timeout_s": -1.0}, "timeout_s"),
    ]:
        with pytest.raises(ValueError, match=text):
            sanderling.connect(one_server, **cast("dict[str, Any]", options))
    for wrong in (1.5, True):
        with pytest.raises(TypeError, match='such as "500us", not'):
            sanderling.connect(one_server, hedge=cast("Any", wrong))
    for hedge in ("p95", "500us", "2ms"):
        assert sanderling.connect(one_server, hedge=hedge).servers == [one_server]


def test_a_checkpoint_has_a_name_and_brings_rows_back(two_servers: str) -> None:
    connection = sanderling.connect(two_servers)
    connection.drop("saved")
    options = {"optimizer": "adagrad", "dtype": "bf16", "eviction": "clock", "budget_bytes": 1 << 24}
    table = connection.table("saved", 4, **cast("dict[str, Any]", options))
    table.push(KEYS, weights())
    before = table.pull(KEYS)
    assert connection.save("tests/first") >= len(KEYS)
    table.push(KEYS, weights())
    assert not np.array_equal(table.pull(KEYS), before)
    assert connection.restore("tests/first") >= len(KEYS)
    table = connection.open("saved")
    np.testing.assert_array_equal(table.pull(KEYS), before)
    assert connection.table("saved", 4, **cast("dict[str, Any]", options)).stats()["rows"] == len(KEYS)
    with pytest.raises(sanderling.ConfigError, match="another configuration"):
        connection.table("saved", 4, optimizer="adagrad")
    with pytest.raises(sanderling.NotFoundError, match="tests/second"):
        connection.restore("tests/second")


def test_tables_of_two_clusters_are_not_used_together(one_server: str, tmp_path: Path) -> None:
    with servers(tmp_path, 1) as address:
        here, there = sanderling.connect(one_server), sanderling.connect(address)
        tables = [here.table("first", 4), there.table("second", 4)]
        with pytest.raises(
            sanderling.ServerError, match=f'"second" is in the cluster of {address}, and not in that of'
        ):
            sanderling.Embedding(tables, [("a", 0, "sum"), ("b", 1, "sum")])
        # The same table, from two connections.
        sanderling.Embedding([tables[0], sanderling.connect(one_server).open("first")], [("a", 1, "sum")])
        group = sanderling.SyncGroup(here, 7, 0, 1)
        with pytest.raises(sanderling.ServerError, match='"second" is in the cluster of'):
            group.push_step(tables[1], 1, KEYS, weights())


def test_a_server_that_is_gone_is_named(tmp_path: Path) -> None:
    with servers(tmp_path, 1) as address:
        sanderling.connect(address).table("t", 4).push(KEYS, weights())
        # How long it is waited for below; what goes well before takes as long as it takes.
        table = sanderling.connect(address, timeout_s=2.0).open("t")
    with pytest.raises(sanderling.ServerError, match=address):
        table.pull(KEYS)
    with pytest.raises(sanderling.ServerError, match=address):
        sanderling.connect(address, timeout_s=0.5)
