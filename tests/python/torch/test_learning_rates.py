"""`lr` is the learning rate and `lr_scale` a factor on it, in every push, against torch's own optimizers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sanderling
from sanderling.torch import EmbeddingCollection, FeatureSpec, Spec, TableSpec

DIM = 4
STEPS = 5
LR = 1e-3
INIT = {"type": "normal", "std": 0.5}
KEYS = np.arange(1, 9, dtype=np.uint64)
OFFSETS = np.arange(len(KEYS) + 1, dtype=np.uint32)

# What tables are made with, at rates that are not 1e-3, beside torch's own optimizer at 1e-3. Steps read every row.
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[nn.Parameter], torch.optim.Optimizer]]] = {
    "sgd": ({"type": "sgd", "lr": 0.5}, lambda w: torch.optim.SGD([w], lr=LR)),
    "momentum": ({"type": "momentum", "lr": 0.1, "momentum": 0.9}, lambda w: torch.optim.SGD([w], lr=LR, momentum=0.9)),
    "adagrad": ({"type": "adagrad", "lr": 0.05}, lambda w: torch.optim.Adagrad([w], lr=LR)),
    "adam": ({"type": "adam", "lr": 0.02}, lambda w: torch.optim.Adam([w], lr=LR)),
    "adamw": ({"type": "adamw", "lr": 0.02, "decay": 0.1}, lambda w: torch.optim.AdamW([w], lr=LR, weight_decay=0.1)),
}


def batch(*features: str) -> sanderling.Batch:
    return sanderling.Batch([(name, KEYS, OFFSETS, None) for name in features or ("a",)])


def collection(optimizer: Any, **options: Any) -> EmbeddingCollection:
    return EmbeddingCollection(Spec.alike(["a"], DIM, optimizer=optimizer, init=INIT), **options)


def by_backward(optimizer: Any) -> Callable[[], EmbeddingCollection]:
    emb = collection(optimizer, lr=LR, pushes=0)

    def step() -> EmbeddingCollection:
        emb(batch()).values().sin().sum().backward()
        return emb

    return step


def by_step(optimizer: Any) -> Callable[[], EmbeddingCollection]:
    emb = collection(optimizer, push="step", pushes=0)

    def step() -> EmbeddingCollection:
        emb(batch()).values().sin().sum().backward()
        emb.step(lr=LR)
        return emb

    return step


def by_optimizer(optimizer: Any) -> Callable[[], EmbeddingCollection]:
    emb = collection(optimizer, push="step", pushes=0)
    rows = emb.optimizer(lr=LR)

    def step() -> EmbeddingCollection:
        rows.zero_grad()
        emb(batch()).values().sin().sum().backward()
        rows.step()
        return emb

    return step


def by_lookup(optimizer: Any) -> Callable[[], EmbeddingCollection]:
    emb = collection(optimizer, pushes=0)

    def step() -> EmbeddingCollection:
        lookup = emb.native.lookup(batch())
        lookup.add_grads(np.cos(lookup.pooled))
        lookup.push(lr=LR)
        return emb

    return step


def by_table(optimizer: Any) -> Callable[[], EmbeddingCollection]:
    emb = collection(optimizer)
    table = emb.tables["a"]

    def step() -> EmbeddingCollection:
        table.push(KEYS, np.cos(table.pull(KEYS)), lr=LR)
        return emb

    return step


def by_group(optimizer: Any) -> Callable[[], EmbeddingCollection]:
    emb = collection(optimizer)
    table = emb.tables["a"]
    assert isinstance(table, sanderling.Table)
    group = sanderling.SyncGroup(sanderling.Meeting([table], 1), 1, 0, 1)

    def step() -> EmbeddingCollection:
        number = group.applied + 1
        group.push_step(table, number, KEYS, np.cos(table.pull(KEYS)), lr=LR)
        group.wait(number)
        return emb

    return step


WAYS = {
    "backward": by_backward,
    "step": by_step,
    "optimizer": by_optimizer,
    "lookup": by_lookup,
    "table": by_table,
    "group": by_group,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_learning_rate_of_a_thousandth_is_that_of_torch(way: str, optimizer: str) -> None:
    ours, theirs = OPTIMIZERS[optimizer]
    step = WAYS[way](ours)
    weight: nn.Parameter | None = None
    reference: torch.optim.Optimizer | None = None
    for _ in range(STEPS):
        if weight is None:
            weight = nn.Parameter(torch.from_numpy(collection(ours).tables["a"].pull(KEYS)))
            reference = theirs(weight)
        assert reference is not None
        reference.zero_grad()
        weight.sin().sum().backward()
        reference.step()
        rows = torch.from_numpy(step().tables["a"].pull(KEYS))
        torch.testing.assert_close(rows, weight.detach(), rtol=1e-6, atol=1e-6)


def test_a_learning_rate_of_a_thousandth_is_that_of_torch_on_servers(one_server: str) -> None:
    ours, theirs = OPTIMIZERS["adam"]
    spec = Spec.alike(["rated"], DIM, optimizer=ours, init=INIT)
    emb = EmbeddingCollection(spec, one_server, push="step", pushes=0)
    rows = emb.optimizer(lr=LR)
    weight = nn.Parameter(torch.from_numpy(emb.tables["rated"].pull(KEYS)))
    reference = theirs(weight)
    for _ in range(STEPS):
        rows.zero_grad()
        emb(batch("rated")).values().sin().sum().backward()
        rows.step()
        reference.zero_grad()
        weight.sin().sum().backward()
        reference.step()
        torch.testing.assert_close(torch.from_numpy(emb.tables["rated"].pull(KEYS)), weight.detach())


def two_tables(**options: Any) -> EmbeddingCollection:
    tables = {
        "a": TableSpec(DIM, optimizer={"type": "sgd", "lr": 0.1}),
        "b": TableSpec(DIM, optimizer={"type": "sgd", "lr": 0.4}),
    }
    return EmbeddingCollection(Spec(tables, [FeatureSpec("a"), FeatureSpec("b")]), pushes=0, **options)


def moved(emb: EmbeddingCollection) -> tuple[float, float]:
    """How far a gradient of 1 has moved the rows of each table, which started at 0."""
    a, b = (-float(emb.tables[name].pull(KEYS).mean()) for name in "ab")
    return a, b


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({}, (0.1, 0.4)),
        ({"lr": 0.2}, (0.2, 0.2)),
        ({"lr_scale": 0.5}, (0.05, 0.2)),
        ({"lr": 0.2, "lr_scale": 0.5}, (0.1, 0.1)),
    ],
)
def test_a_rate_is_of_all_tables_and_a_scale_is_a_factor_on_theirs(
    rates: dict[str, float], expected: tuple[float, float]
) -> None:
    whole, steps, rows = two_tables(**rates), two_tables(push="step"), two_tables(push="step")
    whole(batch("a", "b")).values().sum().backward()
    assert moved(whole) == pytest.approx(expected, rel=1e-6)
    steps(batch("a", "b")).values().sum().backward()
    steps.step(**rates)
    assert moved(steps) == pytest.approx(expected, rel=1e-6)
    optimizer = rows.optimizer(**rates)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected, rel=1e-6)
    rows(batch("a", "b")).values().sum().backward()
    optimizer.step()
    assert moved(rows) == pytest.approx(expected, rel=1e-6)


def test_each_table_is_a_group_of_the_optimizer() -> None:
    emb = two_tables(push="step")
    optimizer = emb.optimizer()
    optimizer.param_groups[1]["lr"] = 0.03
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    emb(batch("a", "b")).values().sum().backward()
    optimizer.step()
    assert moved(emb) == pytest.approx((0.05, 0.015), rel=1e-6)
    emb(batch("a", "b")).values().sum().backward()
    emb.step(lr={"b": 1.0})
    assert moved(emb) == pytest.approx((0.15, 1.015), rel=1e-6)
    with pytest.raises(sanderling.ConfigError, match="there is no table c"):
        emb.step(lr={"c": 1.0})


def test_a_table_without_a_learning_rate_refuses_one() -> None:
    ftrl = {"type": "ftrl", "alpha": 0.3}
    with pytest.raises(sanderling.ConfigError, match=r"table 'a': lr = 0\.1: ftrl has no lr"):
        collection(ftrl, lr=0.1)
    emb = collection(ftrl, push="step")
    with pytest.raises(sanderling.ConfigError, match="ftrl has no lr"):
        emb.step(lr=0.1)
    with pytest.raises(sanderling.ConfigError, match="ftrl has no lr"):
        emb.tables["a"].push(KEYS, np.zeros((len(KEYS), DIM), np.float32), lr=0.1)
    assert emb.tables["a"].lr is None
    # Schedulers run over it as over others; it goes on at its alpha.
    optimizer = emb.optimizer()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3)
    emb(batch()).values().sum().backward()
    optimizer.step()
    emb.finish()
    assert len(emb.tables["a"]) == len(KEYS)


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf")])
def test_what_is_no_learning_rate_is_refused(lr: float) -> None:
    with pytest.raises(sanderling.ConfigError, match="a learning rate is a finite number from 0 on"):
        collection({"type": "sgd"}, lr=lr)
    with pytest.raises(sanderling.ConfigError, match="a learning rate is a finite number from 0 on"):
        sanderling.Table("t", DIM).push(KEYS, np.zeros((len(KEYS), DIM), np.float32), lr=lr)


def test_a_list_has_a_rate_for_each_table() -> None:
    emb = two_tables()
    lookup = emb.native.lookup(batch("a", "b"))
    lookup.add_grads(np.ones_like(lookup.pooled))
    with pytest.raises(sanderling.ConfigError, match="one number for each table, 2, not 3"):
        lookup.push(lr=[1.0, 2.0, 3.0])
    lookup.push(lr=[0.3, 0.7], lr_scale=2.0)
    assert moved(emb) == pytest.approx((0.6, 1.4), rel=1e-6)
