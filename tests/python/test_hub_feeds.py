"""A hub that feeds keys to servers, and collections over them: tables and pooled rows are those of the other way."""

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import sanderling
from sanderling.torch import EmbeddingCollection

BENCH: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "bench/hub_feeds.py"))
ROWS, KEYS, DIM = 600, 200, 4
SPEC = '[[feature]]\nname = "id"\nkey = "raw"\n[[feature]]\nname = "tags"\ntype = "multi"\nkey = "raw"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows with none to four tags."""
    line = "{0},{1},{2}".format
    rows = [
        line(row % 2, row, "|".join(str((row * 7 + at * 13) % KEYS) for at in range(row % 5))) for row in range(ROWS)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["label,id,tags", *rows]) + "\n")
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


@contextmanager
def hub(folder: Path, *options: str) -> Iterator[str]:
    command = ["hub", "--listen", "127.0.0.1:0", "--spec", "spec.toml", "--batch-size", "50", "--linger", "2s"]
    with BENCH["process"]([*command, *options, "rows.csv"], folder) as address:
        yield f"hub://{address}"


def collection(address: str, run: str, pooling: str) -> EmbeddingCollection:
    connection = sanderling.connect(address)
    for name in ("id", "tags"):
        connection.drop(f"{run}/{name}")
    table: dict[str, Any] = {"dim": DIM, "optimizer": {"type": "adagrad", "lr": 0.1}, "seed": 5}
    features = {"id": f"{run}/id", "tags": {"table": f"{run}/tags", "pooling": pooling}}
    return EmbeddingCollection({"tables": {f"{run}/id": table, f"{run}/tags": table}, "features": features}, connection)


def train(hubs: str, rows: EmbeddingCollection) -> dict[int, npt.NDArray[np.float32]]:
    """Gradients that are the same for the same sample; pooled tags by the number of the row, as they were before."""
    seen: dict[int, npt.NDArray[np.float32]] = {}
    first = np.array([])
    for batch in sanderling.FeedQueue(sanderling.HubSource(hubs, threads=1), rows.native, depth=1):
        ids = batch.keys("id")
        embedded = rows(batch)
        if not len(first):
            first = ids
            seen = dict(zip(ids.tolist(), embedded["tags"].detach().numpy(), strict=True))
        factors = torch.from_numpy(((ids[:, None] + np.arange(2 * DIM, dtype=np.uint64)) % 5).astype(np.float32))
        (embedded.values() * factors).sum().backward()
    rows.native.finish()
    return seen


@pytest.mark.parametrize("place", ["one_server", "two_servers"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_collection_has_the_rows_of_the_other_way(
    place: str, pooling: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    address: str = request.getfixturevalue(place)
    fed, keyed = (collection(address, f"{run} {pooling}", pooling) for run in ("fed", "keyed"))
    with hub(folder, "--ps", address, "--feed", f"tags=fed {pooling}/tags:{pooling}") as hubs:
        there = train(hubs, fed)
    with hub(folder) as hubs:
        here = train(hubs, keyed)
    assert list(there) == list(here)
    for row, pooled in here.items():
        np.testing.assert_allclose(there[row], pooled, rtol=1e-6, atol=1e-6)
    for name, keys in (("id", ROWS), ("tags", KEYS)):
        tables = [made.tables[f"{run} {pooling}/{name}"] for run, made in (("fed", fed), ("keyed", keyed))]
        wanted = np.arange(keys, dtype=np.uint64)
        np.testing.assert_allclose(tables[0].pull(wanted), tables[1].pull(wanted), rtol=1e-6, atol=1e-6)
        assert len(tables[0]) == len(tables[1]) > 0
    assert fed.native.pooled_at["hub"]["features"] == ROWS // 50
    assert keyed.native.pooled_at["hub"] == {"features": 0, "bytes": 0}


def test_a_queue_that_cannot_take_it_says_what_to_do(folder: Path, one_server: str) -> None:
    rows = collection(one_server, "other", "sum")
    with hub(folder, "--ps", one_server, "--feed", "tags=fed/tags") as hubs:
        with pytest.raises(sanderling.ConfigError, match="give it an embedding over tables on those servers"):
            sanderling.FeedQueue(hubs)
        with pytest.raises(sanderling.ConfigError, match='reads table "other/tags"; name the same table'):
            sanderling.FeedQueue(hubs, rows.native)


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    result = BENCH["main"](["--rows", "2000", "--history", "20", "--rounds", "1"])
    told = capsys.readouterr().out
    assert "fed by hub" in told
    sizes = [result[way]["bytes_per_example"] for way in ("keys", "fed by trainer", "fed by hub")]
    assert sizes[0] > sizes[1] > sizes[2] > 0


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_a_hub_sends_is_compressed(compression: Any, tmp_path: Path) -> None:  # noqa: ANN401
    BENCH["write"](tmp_path, 1500, 30)
    rows: Any = BENCH["feed"]("keys", tmp_path, 1e12)
    packed: Any = BENCH["feed"]("keys", tmp_path, 1e12, compression)
    np.testing.assert_allclose(packed.sums, rows.sums, atol=1e-6)
    # Keys below 2^20 have five bytes of eight that are zero; rows and gradients are on the other link, as they are.
    assert rows.link_bytes - packed.link_bytes > 1500 * 30 * 3


def test_a_compression_that_there_is_not_is_named(folder: Path) -> None:
    with hub(folder) as hubs, pytest.raises(ValueError, match="'lz4', 'zstd' are"):
        sanderling.FeedQueue(sanderling.HubSource(hubs, compression="gzip"))  # type: ignore[arg-type]
