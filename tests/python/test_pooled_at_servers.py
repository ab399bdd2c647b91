"""Features whose rows the servers pool: the tables are those of a trainer that pools for itself."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

import sanderling

DIM = 4
WAYS: tuple[Literal["servers"], Literal["trainer"]] = ("servers", "trainer")


def minibatch(generator: np.random.Generator, samples: int, longest: int, keys: int) -> sanderling.Batch:
    """A feature with values and one without; some samples have no keys, and keys repeat."""
    columns: list[tuple[str, npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]] = []
    for name in ("plain", "weighted"):
        lengths = generator.integers(0, longest + 1, samples)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
        drawn = generator.integers(0, keys, int(offsets[-1])).astype(np.uint64)
        values = generator.normal(size=len(drawn)).astype(np.float32) if name == "weighted" else None
        columns.append((name, drawn, offsets, values))
    return sanderling.Batch(columns)


def tables(address: str, name: str, optimizer: dict[str, Any]) -> list[sanderling.RemoteTable]:
    connection = sanderling.connect(address)
    made = []
    for feature in ("plain", "weighted"):
        connection.drop(f"{name} {feature}")
        made.append(connection.table(f"{name} {feature}", DIM, optimizer=optimizer, seed=3))
    return made


@pytest.mark.parametrize("place", ["one_server", "two_servers"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("optimizer", [{"type": "sgd", "lr": 0.5}, {"type": "adagrad", "lr": 0.1}])
def test_tables_are_the_same_wherever_rows_are_pooled(
    place: str, pooling: str, optimizer: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue(place)
    generator = np.random.default_rng(11)
    features = [("plain", 0, pooling), ("weighted", 1, pooling)]
    there, here = (tables(address, f"at {way}", optimizer) for way in WAYS)
    both = [
        sanderling.Embedding(there, features, pool_at="servers"),
        sanderling.Embedding(here, features, pool_at="trainer"),
    ]
    for _ in range(5):
        batch = minibatch(generator, 30, 6, 40)
        grads = generator.normal(size=(30, 2 * DIM)).astype(np.float32)
        lookups = [embedding.lookup(batch) for embedding in both]
        np.testing.assert_allclose(lookups[0].pooled, lookups[1].pooled, rtol=1e-6, atol=1e-6)
        for lookup in lookups:
            lookup.add_grads(grads)
            lookup.add_grads(grads)
            lookup.scale_grads(0.25)
        norms = [lookup.grad_norm_squared() for lookup in lookups]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
        assert norms[0] > 0
        assert (lookups[0].unique_keys, lookups[0].missing) == (lookups[1].unique_keys, lookups[1].missing)
        for lookup in lookups:
            lookup.push(lr_scale=0.5)
        for embedding in both:
            embedding.finish()
    keys = np.arange(40, dtype=np.uint64)
    for fed, pulled in zip(there, here, strict=True):
        np.testing.assert_allclose(fed.pull(keys), pulled.pull(keys), rtol=1e-6, atol=1e-6)
        assert len(fed) == len(pulled)
    assert [embedding.pooled_at[way]["features"] for embedding, way in zip(both, WAYS, strict=True)] == [10, 10]


def test_the_choice_follows_the_bytes(two_servers: str) -> None:
    long, short = (minibatch(np.random.default_rng(2), 20, longest, 1 << 40) for longest in (60, 1))
    both = tables(two_servers, "chosen", {"type": "sgd", "lr": 0.5})
    embedding = sanderling.Embedding(both, [("plain", 0, "sum"), ("weighted", 1, "sum")], pool_at="auto")
    for batch, servers, trainer in [(long, 2, 0), (short, 2, 2), (long, 4, 2)]:
        embedding.lookup(batch)
        found = embedding.pooled_at
        assert (found["servers"]["features"], found["trainer"]["features"]) == (servers, trainer)
        assert found["servers"]["bytes"] > 0
    # A table that two features read has one update of both.
    shared = sanderling.Embedding(both[:1], [("plain", 0, "sum"), ("weighted", 0, "sum")], pool_at="servers")
    shared.lookup(long)
    assert shared.pooled_at["servers"] == {"features": 0, "bytes": 0}
    with pytest.raises(ValueError, match="'servers'"):
        sanderling.Embedding(both, [], pool_at="hub")  # type: ignore[arg-type]


def test_gradients_of_fed_features_can_be_taken_away(one_server: str) -> None:
    batch = minibatch(np.random.default_rng(5), 10, 5, 20)
    both = tables(one_server, "taken", {"type": "sgd", "lr": 0.5})
    taken = []
    for way in WAYS:
        lookup = sanderling.Embedding(both, [("plain", 0, "mean"), ("weighted", 1, "sum")], pool_at=way).lookup(batch)
        lookup.add_grads(np.linspace(-1, 1, 20 * DIM, dtype=np.float32).reshape(10, 2 * DIM))
        taken.append(lookup.take_gradients())
    for fed, pulled in zip(*taken, strict=True):
        for found, expected in zip(fed, pulled, strict=True):
            np.testing.assert_array_equal(found, expected)
