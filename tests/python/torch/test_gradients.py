"""Embedding collections against `torch.nn.EmbeddingBag` and `torch.nn.Embedding` with torch's own optimizers.

The references start with the rows of the tables and see the same batches; after every step outputs and rows must
agree to 1e-6.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

import sanderling
from sanderling.torch import (
    EmbeddingCollection,
    FeatureSpec,
    KeyedJagged,
    SequenceCollection,
    Spec,
    TableSpec,
    to_batch,
)

KEYS = 12
DIM = 4
SAMPLES = 7
STEPS = 5
INIT = {"type": "normal", "std": 0.5}

# Key `i` of a test is this one: 64 bits wide, some with the highest one set.
WIDE = (np.arange(KEYS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(0xABCDEF)

# Adagrad makes sparse tensors without saying whether they are to be checked, which torch warns of.
torch.sparse.check_sparse_tensor_invariants.enable()

Column = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]


def column(rng: np.random.Generator, weighted: bool, keys: int = KEYS, longest: int = 4) -> Column:
    """Small keys, offsets and values; with empty bags, and duplicates within a bag."""
    lengths = rng.integers(0, longest + 1, SAMPLES)
    lengths[0] = 0
    small = rng.integers(0, keys, lengths.sum())
    if lengths[1] > 1:
        begin = lengths[0]
        small[begin : begin + 2] = small[begin]
    values = rng.normal(size=len(small)).astype(np.float32) if weighted else None
    return small, np.concatenate([[0], lengths.cumsum()]), values


def batch_of(columns: dict[str, Column]) -> sanderling.Batch:
    return sanderling.Batch(
        [(name, WIDE[keys], offsets.astype(np.uint32), values) for name, (keys, offsets, values) in columns.items()]
    )


class RowsOptimizer:
    """torch's Adam with a step count per row, as if lazy: each row is a parameter, idle ones without gradient."""

    def __init__(self, weight: nn.Parameter, **options: Any) -> None:
        self.weight = weight
        self.rows = [nn.Parameter(row.clone()) for row in weight.detach()]
        self.adam = torch.optim.Adam(self.rows, **options)

    def step(self) -> None:
        grad = self.weight.grad
        assert grad is not None
        grad = grad.coalesce()
        for row in self.rows:
            row.grad = None
        for index, values in zip(grad.indices()[0].tolist(), grad.values(), strict=True):
            self.rows[index].grad = values
        self.adam.step()
        with torch.no_grad():
            self.weight.copy_(torch.stack(list(self.rows)))


# Ours beside torch's.
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[nn.Parameter], Any]]] = {
    "sgd": ({"type": "sgd", "lr": 0.1}, lambda w: torch.optim.SGD([w], lr=0.1)),
    "adagrad": (
        {"type": "adagrad", "lr": 0.1, "eps": 1e-10, "initial": 0.0},
        lambda w: torch.optim.Adagrad([w], lr=0.1),
    ),
    "adam": ({"type": "adam", "lr": 0.01}, lambda w: RowsOptimizer(w, lr=0.01)),
}


class Bags:
    """What torch has: one weight for the table, a bag per feature."""

    def __init__(self, rows: npt.NDArray[np.float32], poolings: dict[str, str]) -> None:
        self.weight = nn.Parameter(torch.from_numpy(rows.copy()))
        self.poolings = poolings

    def forward(self, columns: dict[str, Column]) -> Tensor:
        outputs = []
        for name, pooling in self.poolings.items():
            keys, offsets, values = columns[name]
            outputs.append(
                nn.functional.embedding_bag(
                    torch.from_numpy(keys),
                    self.weight,
                    torch.from_numpy(offsets),
                    mode=pooling,
                    # torch knows no sparse gradient of the maximum.
                    sparse=pooling != "max",
                    per_sample_weights=torch.from_numpy(values) if values is not None and pooling == "sum" else None,
                    include_last_offset=True,
                )
            )
        return torch.cat(outputs, 1)

    def make_sparse(self, columns: dict[str, Column]) -> None:
        """A gradient over the keys of the batch, whatever torch made of it."""
        grad = self.weight.grad
        assert grad is not None
        touched = torch.from_numpy(np.unique(np.concatenate([columns[name][0] for name in self.poolings])))
        dense = grad.to_dense()
        self.weight.grad = torch.sparse_coo_tensor(touched.unsqueeze(0), dense[touched], dense.shape)


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(ours).detach(), torch.as_tensor(theirs).detach(), rtol=1e-6, atol=1e-6)


def check(
    poolings: dict[str, str],
    optimizer: str,
    *,
    weighted: bool = False,
    ps: sanderling.Connection | None = None,
    push: str = "backward",
) -> None:
    """Several steps over features that share one table."""
    ours, theirs = OPTIMIZERS[optimizer]
    name = f"{'_'.join(poolings.values())}_{optimizer}"
    spec = Spec(
        {name: TableSpec(DIM, optimizer=ours, init=INIT, seed=3)},
        [FeatureSpec(feature, name, pooling) for feature, pooling in poolings.items()],  # type: ignore[arg-type]
    )
    emb = EmbeddingCollection(spec, ps, push=push)  # type: ignore[arg-type]
    table = emb.tables[name]
    bags = Bags(table.pull(WIDE), poolings)
    reference = theirs(bags.weight)
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        columns = {feature: column(rng, weighted) for feature in poolings}
        target = torch.from_numpy(rng.normal(size=(SAMPLES, DIM * len(poolings))).astype(np.float32))
        out, expected = emb(batch_of(columns)).values(), bags.forward(columns)
        assert_close(out, expected)
        bags.weight.grad = None
        for result in (out, expected):
            ((result - target) ** 2).sum().backward()
        bags.make_sparse(columns)
        reference.step()
        if push == "step":
            emb.step()
        emb.finish()
        assert_close(table.pull(WIDE), bags.weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
def test_every_pooling_and_optimizer(pooling: str, optimizer: str) -> None:
    check({"a": pooling}, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weighted_sums(optimizer: str) -> None:
    check({"a": "sum"}, optimizer, weighted=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_features_share_a_table(optimizer: str) -> None:
    check({"a": "sum", "b": "mean", "c": "max"}, optimizer, push="step")


def test_tables_on_a_server(one_server: str) -> None:
    check({"a": "sum", "b": "mean"}, "adagrad", ps=sanderling.connect(one_server))


def test_sparse_adam_where_every_step_touches_every_row() -> None:
    spec = Spec.alike(["a"], DIM, optimizer={"type": "adam", "lr": 0.01}, init=INIT)
    emb = EmbeddingCollection(spec)
    bag = nn.EmbeddingBag(KEYS, DIM, mode="sum", sparse=True, include_last_offset=True)
    bag.weight.data = torch.from_numpy(emb.tables["a"].pull(WIDE))
    reference = torch.optim.SparseAdam(bag.parameters(), lr=0.01)
    rng = np.random.default_rng(2)
    offsets = np.arange(0, 2 * KEYS + 1, 3)
    for _ in range(STEPS):
        keys = rng.permutation(np.repeat(np.arange(KEYS), 2))
        out = emb(batch_of({"a": (keys, offsets, None)})).values()
        expected = bag(torch.from_numpy(keys), torch.from_numpy(offsets))
        assert_close(out, expected)
        reference.zero_grad()
        for result in (out, expected):
            result.sin().sum().backward()
        reference.step()
        emb.finish()
        assert_close(emb.tables["a"].pull(WIDE), bag.weight)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_sequences(keep: str) -> None:
    length = 3
    spec = {"tables": {"item": {"dim": DIM, "optimizer": OPTIMIZERS["adagrad"][0], "init": INIT}}}
    features = {"seen": {"table": "item", "pooling": "none"}, "bought": {"table": "item", "pooling": "none"}}
    emb = SequenceCollection({**spec, "features": features}, length=length, keep=keep)  # type: ignore[arg-type]
    weight = nn.Parameter(torch.from_numpy(emb.tables["item"].pull(WIDE)))
    reference = torch.optim.Adagrad([weight], lr=0.1)
    rng = np.random.default_rng(3)
    for _ in range(STEPS):
        columns = {name: column(rng, weighted=False, longest=5) for name in features}
        sequences = emb(batch_of(columns))
        loss, expected_loss = torch.zeros(()), torch.zeros(())
        for name, (keys, offsets, _values) in columns.items():
            rows, mask = sequences[name]
            assert rows.shape == (SAMPLES, length, DIM)
            for sample in range(SAMPLES):
                own = keys[offsets[sample] : offsets[sample + 1]]
                own = own[:length] if keep == "first" else own[-length:]
                expected = nn.functional.embedding(torch.from_numpy(own), weight, sparse=True)
                assert mask[sample].tolist() == [step < len(own) for step in range(length)]
                assert_close(rows[sample, : len(own)], expected)
                assert not rows[sample, len(own) :].any()
                expected_loss = expected_loss + (expected.sum(0) ** 2).sum()
            loss = loss + (rows.sum(1) ** 2).sum()
        reference.zero_grad()
        loss.backward()
        expected_loss.backward()
        reference.step()
        emb.finish()
        assert_close(emb.tables["item"].pull(WIDE), weight)


def test_jagged_sequences_and_pooled_features_in_one_collection() -> None:
    spec = Spec(
        {"item": TableSpec(DIM, optimizer={"type": "sgd", "lr": 0.5}, init=INIT)},
        [FeatureSpec("target", "item"), FeatureSpec("seen", "item", "none")],
    )
    emb = EmbeddingCollection(spec)
    weight = nn.Parameter(torch.from_numpy(emb.tables["item"].pull(WIDE)))
    rng = np.random.default_rng(4)
    columns = {"target": column(rng, weighted=False), "seen": column(rng, weighted=False)}
    embedded = emb(batch_of(columns))
    seen = embedded.sequences["seen"]
    assert embedded.keys() == ["target"]
    assert seen.lengths().tolist() == np.diff(columns["seen"][1]).tolist()
    assert_close(seen.values, weight[torch.from_numpy(columns["seen"][0])])
    (embedded["target"].sum() + seen.values.pow(2).sum()).backward()
    rows = weight[torch.from_numpy(np.concatenate([columns["target"][0]]))]
    (rows.sum() + weight[torch.from_numpy(columns["seen"][0])].pow(2).sum()).backward()
    assert weight.grad is not None
    emb.finish()
    assert_close(emb.tables["item"].pull(WIDE), weight - 0.5 * weight.grad)


def test_a_missing_key_yields_zeros_and_makes_no_row_if_asked() -> None:
    spec = Spec.alike(["a"], DIM, optimizer={"type": "sgd", "lr": 0.1}, init=INIT)
    emb = EmbeddingCollection(spec, absent="zero")
    table, known = emb.tables["a"], KEYS // 2
    table.push(WIDE[:known], np.zeros((known, DIM), np.float32))
    rows = table.pull(WIDE, absent="zero")
    bags = Bags(rows, {"a": "sum"})
    columns = {"a": column(np.random.default_rng(5), weighted=False)}
    out, expected = emb(batch_of(columns)).values(), bags.forward(columns)
    assert_close(out, expected)
    for result in (out, expected):
        result.sin().sum().backward()
    assert bags.weight.grad is not None
    emb.finish()
    assert len(table) == known
    stepped = bags.weight.detach() - 0.1 * bags.weight.grad.to_dense()
    assert_close(table.pull(WIDE[:known]), stepped[:known])
    assert not table.pull(WIDE[known:], absent="zero").any()


class Kjt:
    """The methods of a KeyedJaggedTensor that are asked for, and no other."""

    def __init__(self, jagged: KeyedJagged) -> None:
        self._jagged = jagged

    def keys(self) -> list[str]:
        return self._jagged.keys()

    def values(self) -> Tensor:
        return self._jagged.values()

    def lengths(self) -> Tensor:
        return self._jagged.offsets().diff()

    def weights_or_none(self) -> Tensor | None:
        return self._jagged.weights_or_none()


def test_ragged_tensors_in_and_out() -> None:
    rng = np.random.default_rng(6)
    columns = {"a": column(rng, weighted=True), "b": column(rng, weighted=False)}
    batch = batch_of(columns)
    jagged = KeyedJagged.from_batch(batch)
    assert (jagged.keys(), jagged.stride()) == (["a", "b"], SAMPLES)
    again = to_batch(Kjt(jagged))
    for name, (keys, offsets, values) in columns.items():
        assert (again.keys(name) == WIDE[keys]).all()
        assert (again.offsets(name) == offsets).all()
        weights = again.values(name)
        assert weights is not None
        assert (weights == (np.ones(len(keys)) if values is None else values)).all()
    emb = EmbeddingCollection(Spec.alike(["a", "b"], DIM, init=INIT))
    assert_close(emb(Kjt(jagged)).stacked(), emb(batch).stacked())


@pytest.mark.parametrize(
    ("values", "lengths", "error", "match"),
    [
        (torch.arange(3), torch.tensor([1, 1]), sanderling.LengthError, "add up to 2, but there are 3 keys"),
        (torch.arange(3), torch.tensor([1, 1, 1]), sanderling.LengthError, "3 lengths .* each of 2 features"),
        (torch.arange(4).reshape(2, 2), torch.tensor([2, 2]), sanderling.LengthError, "keys are in one dimension"),
        (torch.tensor([1.5, 2.0]), torch.tensor([1, 1]), TypeError, "keys are whole numbers.*float32"),
        (torch.arange(2), torch.tensor([True, True]), TypeError, "lengths are whole numbers.*bool"),
        (torch.arange(3), torch.tensor([4, -1]), sanderling.OffsetsError, "from 0 to the number of keys, 3"),
        # In 32 bits these are 1, 1, 1 and 0; the sum of the last ones wraps around 64.
        (torch.arange(3), torch.tensor([2**32 + 1, 1 - 2**32, 1, 0]), sanderling.OffsetsError, "number of keys, 3"),
        (torch.arange(3), torch.tensor([*[2**62] * 3, 2**62 + 3]), sanderling.OffsetsError, "number of keys, 3"),
    ],
)
def test_ragged_tensors_that_are_none(values: Tensor, lengths: Tensor, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        to_batch(KeyedJagged(["a", "b"], values, lengths))


def test_a_feature_that_is_there_twice_is_refused() -> None:
    with pytest.raises(sanderling.ConfigError, match='feature "a" is there twice'):
        to_batch(KeyedJagged(["a", "b", "a"], torch.arange(3), torch.tensor([1, 1, 1])))


def test_weights_of_keys_that_would_get_no_gradient_are_refused() -> None:
    emb = EmbeddingCollection(Spec.alike(["a"], DIM))
    weights = torch.ones(2, requires_grad=True)
    jagged = KeyedJagged(["a"], torch.arange(2), torch.tensor([2]), weights)
    with pytest.raises(sanderling.ConfigError, match=r"no gradient.*weights\.detach\(\)"):
        emb(jagged)
    with torch.no_grad():
        expected = emb(jagged).values()
    jagged = KeyedJagged(["a"], torch.arange(2), torch.tensor([2]), weights.detach())
    assert_close(emb(jagged).values(), expected)


def test_what_is_no_batch_is_refused_by_its_type() -> None:
    emb = EmbeddingCollection(Spec.alike(["a"], DIM))
    with pytest.raises(TypeError, match=r"has the methods keys, values, lengths, weights_or_none.*a list"):
        emb([1, 2, 3])
    for dim in (0, "x", 1.5):
        with pytest.raises(sanderling.ConfigError, match=f"table 'a': dim {dim!r} is no whole number"):
            Spec.alike(["a"], dim)  # type: ignore[arg-type]


def test_outputs_are_where_the_collection_is(device: str) -> None:
    emb = EmbeddingCollection(Spec.alike(["a"], DIM, optimizer={"type": "sgd", "lr": 0.1}, init=INIT)).to(device)
    columns = {"a": column(np.random.default_rng(7), weighted=False)}
    bags = Bags(emb.tables["a"].pull(WIDE), {"a": "sum"})
    out, expected = emb(batch_of(columns)).values(), bags.forward(columns)
    assert out.device.type == device
    assert_close(out.cpu(), expected)
    for result in (out, expected):
        result.sin().sum().backward()
    assert bags.weight.grad is not None
    emb.finish()
    assert_close(emb.tables["a"].pull(WIDE), bags.weight.detach() - 0.1 * bags.weight.grad.to_dense())
