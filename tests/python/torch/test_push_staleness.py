"""Outside a queue, too, a forward pass waits for no push: it misses at most the last `pushes` ones."""

import time

import numpy as np
import pytest
import torch

import sanderling
from sanderling.torch import EmbeddingCollection, Spec

# A push of so many rows takes longer by far than the lookup of one.
MANY = 200_000
DIM = 16
PUSHES = 4


def batch(keys: int, first: int = 0) -> sanderling.Batch:
    """A sample for each key."""
    numbers = np.arange(first, first + keys, dtype=np.uint64)
    return sanderling.Batch([("a", numbers, np.arange(keys + 1, dtype=np.uint32), None)])


def collection(pushes: int) -> EmbeddingCollection:
    spec = Spec.alike(["a"], DIM, optimizer={"type": "adam", "lr": 1e-3}, init={"type": "normal", "std": 0.1})
    return EmbeddingCollection(spec, pushes=pushes)


def outstanding(emb: EmbeddingCollection) -> int:
    return emb.native.pushed - emb.native.applied


def test_a_forward_pass_waits_for_no_push() -> None:
    emb = collection(PUSHES)
    many, one = emb(batch(MANY)).values(), batch(1, first=MANY)
    for _ in range(10):
        many.sum().backward()
        emb(one)
        if outstanding(emb) > 0:
            break
        many = emb(batch(MANY)).values()
    else:
        pytest.fail("every push was applied before a lookup of one row came back")
    emb.finish()
    assert outstanding(emb) == 0


@pytest.mark.parametrize("pushes", [1, PUSHES])
def test_a_forward_pass_misses_no_more_pushes_than_it_may(pushes: int) -> None:
    emb = EmbeddingCollection(Spec.alike(["a"], 1, optimizer={"type": "sgd", "lr": 1.0}), pushes=pushes)
    late = []
    for step in range(80):
        output = emb(batch(20_000)).values()
        # Every step moves every weight by one, and rows of one lookup may be of different steps.
        seen = -output.detach()
        assert torch.equal(seen, seen.round())
        assert step - pushes <= float(seen.min()) <= float(seen.max()) <= step
        late.append(step - float(seen.min()))
        output.sum().backward()
    emb.finish()
    np.testing.assert_array_equal(emb.tables["a"].rows(), -80.0)
    assert max(late) > 0, "no step has overtaken a push"


def test_with_no_pushes_under_way_every_update_is_seen() -> None:
    emb = EmbeddingCollection(Spec.alike(["a"], 1, optimizer={"type": "sgd", "lr": 1.0}), pushes=0)
    for step in range(50):
        output = emb(batch(5_000)).values()
        assert torch.equal(output.detach(), torch.full((5_000, 1), -float(step)))
        output.sum().backward()
        assert outstanding(emb) == 0


def test_a_forward_pass_without_gradients_sees_every_update() -> None:
    emb = EmbeddingCollection(Spec.alike(["a"], 1, optimizer={"type": "sgd", "lr": 1.0}), pushes=PUSHES)
    for step in range(1, 20):
        emb(batch(20_000)).values().sum().backward()
        with torch.no_grad():
            assert torch.equal(emb(batch(20_000)).values(), torch.full((20_000, 1), -float(step)))


def test_a_push_that_failed_is_said_by_the_next_forward_pass() -> None:
    emb = EmbeddingCollection(Spec.alike(["a"], DIM, optimizer="sgd"), pushes=PUSHES)
    emb(batch(2)).values().mul(torch.inf).sum().backward()
    deadline = time.monotonic() + 20
    while outstanding(emb) > 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    with pytest.raises(sanderling.GradientError):
        emb(batch(2))
    emb(batch(2))


def test_so_many_pushes_are_refused() -> None:
    with pytest.raises(sanderling.ConfigError, match="1025 outstanding pushes: 0 to 1024"):
        collection(1025)
