"""When gradients are pushed: once per step, all of them or none, as torch's own tools for optimizers expect."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sanderling
from sanderling.torch import EmbeddingCollection, FeatureSpec, Spec, TableSpec

KEYS = np.arange(6, dtype=np.uint64)
DIM = 3


def collection(optimizer: str = "sgd", **options: Any) -> EmbeddingCollection:
    """Two features that share a table; the tables of two calls start alike."""
    table = TableSpec(DIM, optimizer={"type": optimizer, "lr": 0.1}, init={"type": "normal", "std": 0.5})
    return EmbeddingCollection(Spec({"t": table}, [FeatureSpec("a", "t"), FeatureSpec("b", "t")]), **options)


def batch(*rows: tuple[int, int]) -> sanderling.Batch:
    """A key of `a` and one of `b` per sample."""
    keys = np.array(rows, dtype=np.uint64)
    offsets = np.arange(len(rows) + 1, dtype=np.uint32)
    return sanderling.Batch([(name, keys[:, i].copy(), offsets, None) for i, name in enumerate("ab")])


def pushes(emb: EmbeddingCollection) -> int:
    emb.finish()
    return emb.tables["t"].stats()["pushes"]


def rows(emb: EmbeddingCollection) -> torch.Tensor:
    emb.finish()
    return torch.from_numpy(emb.tables["t"].pull(KEYS))


@pytest.mark.parametrize("push", ["backward", "step"])
def test_nothing_happens_without_a_backward_pass(push: Any) -> None:
    emb = collection(push=push)
    for _ in range(3):
        emb(batch((0, 1))).values().sum()
        with torch.no_grad():
            emb(batch((0, 1)))
    if push == "step":
        emb.step()
    else:
        with pytest.raises(sanderling.ConfigError, match="needs push='step'"):
            emb.step()
    assert pushes(emb) == 0
    assert len(emb.tables["t"]) == 0
    # What a forward pass holds goes with its output.
    output = emb(batch((2, 3))).values()
    node = output.grad_fn
    assert node is not None
    node = node.next_functions[0][0] if type(node).__name__ == "AliasBackward0" else node
    reading = weakref.ref(node.reading)
    assert reading() is not None
    del output, node
    gc.collect()
    assert reading() is None
    emb(batch((0, 1))).values().sum().backward()
    if push == "step":
        emb.step()
    assert pushes(emb) == 1
    assert len(emb.tables["t"]) == 2


def test_a_backward_pass_that_is_repeated_is_for_steps() -> None:
    emb = collection(push="step")
    before = rows(emb)
    output = emb(batch((0, 1))).values().sum()
    output.backward(retain_graph=True)
    output.backward()
    emb.step()
    assert torch.allclose(rows(emb)[:2], before[:2] - 0.1 * 2)
    pushed = collection()
    output = pushed(batch((0, 1))).values().sum()
    output.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="use push='step'"):
        output.backward()


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_gradients_of_several_batches_are_one_step(optimizer: str) -> None:
    several, whole = collection(optimizer, push="step"), collection(optimizer, push="step")
    first, second = [(0, 1), (2, 0)], [(1, 0), (5, 5)]
    for _ in range(3):
        for part in (first, second):
            several(batch(*part)).values().sin().sum().backward()
        whole(batch(*first, *second)).values().sin().sum().backward()
        several.step()
        whole.step()
        torch.testing.assert_close(rows(several), rows(whole), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("max_norm", [0.3, 1e3])
def test_clipping_is_over_rows_and_dense_parameters_together(max_norm: float, device: str) -> None:
    emb, dense = collection(push="step").to(device), nn.Linear(2 * DIM, 1).to(device)
    weight = nn.Parameter(rows(emb).clone())
    other = nn.Linear(2 * DIM, 1)
    other.load_state_dict(dense.state_dict())
    parts = [[(0, 1), (0, 0)], [(0, 4)]]
    for part in parts:
        dense(emb(batch(*part)).values()).pow(2).sum().backward()
        both = [weight[torch.tensor(part)[:, i]] for i in range(2)]
        other(torch.cat(both, 1)).pow(2).sum().backward()
    ours = emb.clip_grad_norm_(max_norm, dense.parameters())
    theirs = nn.utils.clip_grad_norm_([weight, *other.parameters()], max_norm)
    torch.testing.assert_close(ours, theirs)
    assert dense.weight.grad is not None
    torch.testing.assert_close(dense.weight.grad.cpu(), other.weight.grad)
    emb.step()
    assert weight.grad is not None
    torch.testing.assert_close(rows(emb), weight.detach() - 0.1 * weight.grad)
    emb(batch((0, 1))).values().sum().backward()
    emb.clip_grad_norm_(1.0)
    with pytest.raises(RuntimeError, match="clip after the last one"):
        emb(batch((0, 1))).values().sum().backward()


def test_mixed_precision_skips_steps_that_are_not_finite(device: str) -> None:
    emb, plain = collection("adagrad", push="step").to(device), collection("adagrad")
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    optimizer = emb.optimizer()
    for step in range(4):
        optimizer.zero_grad()
        factor = torch.inf if step == 2 else 1.0
        scaler.scale((emb(batch((0, 1), (1, 2))).values().sin() * factor).sum()).backward()
        if step == 1:
            scaler.unscale_(optimizer)
            assert float(emb.clip_grad_norm_(100.0)) < 100
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        assert (scaler.get_scale() < scale) == (step == 2)
        if step != 2:
            plain(batch((0, 1), (1, 2))).values().sin().sum().backward()
        torch.testing.assert_close(rows(emb), rows(plain), rtol=1e-5, atol=1e-6)
    emb(batch((0, 1))).values().mul(torch.nan).sum().backward()
    with pytest.raises(sanderling.GradientError):
        emb.step()
    torch.testing.assert_close(rows(emb), rows(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rates", "factor"),
    [((0.1, 0.05, 0.025), lambda step: 0.5**step), ((0.0, 0.05, 0.1), lambda step: step / 2)],
    ids=["decay", "warmup"],
)
def test_schedulers_change_the_rate_of_rows(rates: tuple[float, ...], factor: Callable[[int], float]) -> None:
    emb = collection(push="step")
    optimizer = emb.optimizer()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for rate in rates:
        before = rows(emb)
        emb(batch((0, 1))).values().sum().backward()
        optimizer.step()
        scheduler.step()
        torch.testing.assert_close(before[:2] - rows(emb)[:2], torch.full((2, DIM), rate), rtol=1e-4, atol=1e-6)


def test_gradients_can_be_forgotten() -> None:
    emb = collection(push="step")
    optimizer = emb.optimizer()
    for forget in (emb.zero_grad, emb.discard, optimizer.zero_grad):
        emb(batch((0, 1))).values().sum().backward()
        forget()
        emb.step()
    assert pushes(emb) == 0


# Dynamo looks at the gradients of what it is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_dense_part_may_be_compiled() -> None:
    emb, plain = collection("adagrad"), collection("adagrad")
    torch.manual_seed(1)
    dense = nn.Sequential(nn.Linear(2 * DIM, 4), nn.ReLU(), nn.Linear(4, 1))
    # Traced and differentiated as for any other backend; what that makes of it, in C++ or for a GPU, knows no row.
    compiled = torch.compile(dense, backend="aot_eager")
    for _ in range(2):
        compiled(emb(batch((0, 1), (1, 2))).values()).sum().backward()
        dense(plain(batch((0, 1), (1, 2))).values()).sum().backward()
        torch.testing.assert_close(rows(emb), rows(plain))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tables": {}, "features": {}}, "at least one feature"),
        ({"tables": {"t": {"dim": 2}}, "features": {"a": "u"}}, "reads table 'u'"),
        ({"tables": {"t": {"dim": 2}}, "features": {"a": {"table": "t", "pool": "sum"}}}, "unknown entries pool"),
        ({"tables": {"t": {"dim": 2}}, "features": {"a": {"table": "t", "pooling": "min"}}}, "pooling 'min'"),
        ({"tables": {"t": {"dims": 2}}, "features": {"a": "t"}}, "unknown entries dims"),
        ({"tables": {"t": {}}, "features": {"a": "t"}}, "dim"),
        ({"tables": {"t": {"dim": 2}, "u": {"dim": 2}}, "features": {"a": "t"}}, "no feature reads the tables u"),
        ({"table": {}}, "unknown entries table"),
        ({"tables": {"t": {"dim": 2}}, "features": [{"name": "a"}]}, "a dictionary by name"),
        ({"tables": {"t": 2}, "features": {"a": "t"}}, "table 't': 2 is neither"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(sanderling.ConfigError, match=message):
        EmbeddingCollection(spec)


def test_a_queue_brings_the_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,a,b\n" + "".join(f"{row % 2},{row % 6},{row % 5}\n" for row in range(40)))
    spec = {"feature": [{"name": name, "key": "raw"} for name in "ab"]}
    source = sanderling.FileSource(tmp_path / "rows.csv", spec, batch_size=40)
    queued, plain = collection("adagrad"), collection("adagrad")
    # All rows are one batch, so that nothing is looked up ahead of a push.
    batches = list(sanderling.FeedQueue(source))
    for number, brought in enumerate(sanderling.FeedQueue(source, queued.native)):
        assert brought.lookup is not None
        assert batches[number].lookup is None
        torch.testing.assert_close(queued(brought).values(), plain(batches[number]).values(), rtol=0, atol=0)
        for emb, given in ((queued, brought), (plain, batches[number])):
            emb(given).values().sin().sum().backward()
    assert pushes(queued) == pushes(plain) == len(batches) == 1
    torch.testing.assert_close(rows(queued), rows(plain), rtol=0, atol=0)
    # Of another shape, or of the same.
    for other in (EmbeddingCollection(Spec.alike(["a"], DIM)), collection("adagrad")):
        with pytest.raises(sanderling.ConfigError, match="another collection"):
            other(next(sanderling.FeedQueue(source, queued.native)))


def test_a_collection_is_no_parameter() -> None:
    emb = collection(push="step")
    assert list(emb.parameters()) == []
    assert dict(emb.state_dict()) == {}
    with pytest.raises(sanderling.ConfigError, match="push='step'"):
        collection().optimizer()
    with pytest.raises(sanderling.ConfigError, match="neither"):
        collection(push="never")
    with pytest.raises(sanderling.ConfigError, match="different widths"):
        EmbeddingCollection({"tables": {"t": {"dim": 1}, "u": {"dim": 2}}, "features": {"a": "t", "b": "u"}})(
            batch((0, 1))
        ).stacked()
