"""Tables here and on servers against float64 numpy: pull, pooled pull, push with every optimizer, checkpoints."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from conftest import Make
from optimizers import Adagrad, Adam, Ftrl, Row, Sgd, Vector

import sanderling
from sanderling import Table

DIM = 5
KEYS = np.array([0, 1, 2, 7, 2**32, 2**63, 2**64 - 2, 2**64 - 1], dtype=np.uint64)

OPTIMIZERS: list[tuple[Callable[..., Row], dict[str, Any]]] = [
    (Sgd, {"type": "sgd", "lr": 0.1}),
    (Sgd, {"type": "sgd", "lr": 0.1, "l2": 0.2}),
    (Adagrad, {"type": "adagrad", "lr": 0.05}),
    (Adagrad, {"type": "adagrad", "lr": 0.05, "eps": 1e-3, "initial": 0.1, "l2": 0.1}),
    (Adam, {"type": "adam", "lr": 0.01}),
    (Adam, {"type": "adam", "lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "l2": 0.1}),
    (Ftrl, {"type": "ftrl", "alpha": 0.1}),
    (Ftrl, {"type": "ftrl", "alpha": 0.2, "beta": 0.5, "l1": 0.3, "l2": 0.1}),
]
INITS: list[dict[str, Any]] = [{"type": "zero"}, {"type": "normal", "std": 0.1}, {"type": "uniform", "bound": 0.5}]


def uint64(*keys: int) -> npt.NDArray[np.uint64]:
    return np.array(keys, dtype=np.uint64)


@pytest.mark.parametrize("init", INITS, ids=lambda init: str(init["type"]))
@pytest.mark.parametrize(("reference", "optimizer"), OPTIMIZERS, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_push_follows_the_paper(
    make: Make, reference: Callable[..., Row], optimizer: dict[str, Any], init: dict[str, Any]
) -> None:
    table = make("t", DIM, optimizer=optimizer, init=init, seed=3)
    settings = {name: value for name, value in optimizer.items() if name != "type"}
    first = table.pull(KEYS).astype(np.float64)
    rows = {int(key): reference(first[at], **settings) for at, key in enumerate(KEYS)}
    random = np.random.default_rng(1)
    pushed: set[int] = set()
    for push in range(40):
        # Requests repeat keys, leave others out, and are now and then empty.
        keys = random.choice(KEYS, size=random.integers(0, 24))
        grads = random.normal(size=(len(keys), DIM)).astype(np.float32)
        scale = 0.5 if push % 3 == 0 and optimizer["type"] != "ftrl" else 1.0
        table.push(keys, grads, lr_scale=scale)
        for key in set(keys.tolist()):
            rows[key].step(grads[keys == key].astype(np.float64).sum(axis=0), scale)
            pushed.add(key)
        wanted = np.stack([rows[int(key)].weights for key in KEYS])
        np.testing.assert_allclose(table.pull(KEYS), wanted, rtol=2e-4, atol=2e-5)
    assert pushed == {int(key) for key in KEYS}
    assert len(table) == len(KEYS)


def test_ftrl_l1_gives_exact_zeros(make: Make) -> None:
    table = make("t", 2, optimizer={"type": "ftrl", "alpha": 0.1, "l1": 1.0})
    table.push(uint64(1), np.array([[0.9, 1.5]], dtype=np.float32))
    weights = table.pull(uint64(1))[0]
    assert weights[0] == 0.0
    assert weights[1] < 0.0


def test_a_pull_creates_nothing_and_first_weights_do_not_depend_on_order(make: Make) -> None:
    a = make("a", DIM, init={"type": "normal", "std": 0.1}, seed=1)
    b = make("b", DIM, init={"type": "normal", "std": 0.1}, seed=1)
    c = make("c", DIM, init={"type": "normal", "std": 0.1}, seed=2)
    np.testing.assert_array_equal(a.pull(KEYS), b.pull(KEYS[::-1])[::-1])
    assert not np.array_equal(a.pull(KEYS), c.pull(KEYS))
    assert len(a) == 0
    assert not a.pull(KEYS, absent="zero").any()
    a.push(KEYS, np.zeros((len(KEYS), DIM), dtype=np.float32))
    np.testing.assert_array_equal(a.pull(KEYS, absent="zero"), b.pull(KEYS))


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_pull_is_a_sum_over_bags(make: Make, pooling: Literal["sum", "mean"], weighted: bool) -> None:
    table = make("t", DIM, init={"type": "uniform", "bound": 1.0})
    table.push(KEYS[:4], np.ones((4, DIM), dtype=np.float32))
    keys = np.concatenate([KEYS, KEYS[:3], KEYS[:1]])
    offsets = np.array([0, 3, 3, 8, 12], dtype=np.uint32)
    values = np.linspace(-1, 2, len(keys), dtype=np.float32)
    got = table.pull_pooled(keys, offsets, values=values if weighted else None, pooling=pooling)
    rows = table.pull(keys).astype(np.float64) * (values[:, None] if weighted else 1.0)
    for bag, (begin, end) in enumerate(itertools.pairwise(offsets)):
        wanted: Vector = rows[begin:end].sum(axis=0)
        if pooling == "mean" and end > begin:
            wanted = wanted / float(end - begin)
        np.testing.assert_allclose(got[bag], wanted, rtol=1e-5, atol=1e-6)


def test_arrays_are_used_in_place_or_copied_as_they_lie(make: Make) -> None:
    table = make("t", DIM, optimizer="sgd")
    grads = np.asfortranarray(np.random.default_rng(0).normal(size=(8, DIM)).astype(np.float32))
    table.push(KEYS, grads)
    apart = np.zeros(16, dtype=np.uint64)
    apart[::2] = KEYS
    np.testing.assert_allclose(table.pull(apart[::2]), -0.01 * grads, rtol=1e-6)
    odd = np.frombuffer(b"x" + KEYS.tobytes(), dtype=np.uint8)[1:].view(np.uint64)
    assert not odd.flags.aligned
    np.testing.assert_array_equal(table.pull(odd), table.pull(KEYS))
    out = np.full((8, DIM), np.nan, dtype=np.float32)
    assert table.pull(KEYS, out=out) is out
    np.testing.assert_array_equal(out, table.pull(KEYS))
    bags = np.full((2, DIM), np.nan, dtype=np.float32)
    assert table.pull_pooled(KEYS, np.array([0, 4, 8], dtype=np.uint32), out=bags) is bags
    np.testing.assert_allclose(bags[0], out[:4].sum(axis=0), rtol=1e-5)


def test_keys_may_have_a_sign(make: Make) -> None:
    table = make("t", 2, optimizer={"type": "sgd", "lr": 1.0})
    signed = np.array([7, -1, 7, -(2**63)], dtype=np.int64)
    table.push(signed[::2], np.full((2, 2), 0.5, dtype=np.float32))
    table.push(signed[1::2], np.ones((2, 2), dtype=np.float32))
    assert set(table.keys().tolist()) == {7, 2**64 - 1, 2**63}
    assert table.pull(signed).tolist() == table.pull(signed.view(np.uint64)).tolist() == [[-1.0, -1.0]] * 4
    assert table.remove(signed) == 3


def test_rows_keys_and_frequency_belong_together(make: Make) -> None:
    table = make("t", DIM, optimizer="adagrad", init={"type": "normal", "std": 0.1})
    keys = np.repeat(KEYS, np.arange(1, len(KEYS) + 1))
    table.push(keys, np.ones((len(keys), DIM), dtype=np.float32))
    assert sorted(table.keys().tolist()) == sorted(KEYS.tolist())
    np.testing.assert_array_equal(table.rows(), table.pull(table.keys()))
    frequency = dict(zip(table.keys().tolist(), table.frequency().tolist(), strict=True))
    assert frequency == {int(key): at + 1 for at, key in enumerate(KEYS)}
    names = [table.keys().dtype.name, table.rows().dtype.name, table.frequency().dtype.name]
    assert names == ["uint64", "float32", "uint32"]


def test_empty_tables_have_empty_arrays(make: Make) -> None:
    table = make("t", DIM)
    assert table.keys().shape == (0,)
    assert table.rows().shape == (0, DIM)
    assert table.pull(uint64()).shape == (0, DIM)
    assert table.pull_pooled(uint64(), np.zeros(1, dtype=np.uint32)).shape == (0, DIM)
    assert uint64(1)[0] not in table


def test_a_single_key_is_found_by_its_bits_as_in_an_array(make: Make) -> None:
    table = make("t", DIM)
    table.push(np.array([-1, 7], dtype=np.int64), np.ones((2, DIM), dtype=np.float32))
    found: list[tuple[Any, bool]] = [
        (-1, True),
        (2**64 - 1, True),
        (np.int64(-1), True),
        (7, True),
        (-2, False),
        (-(2**63), False),
        # No 64 bits: no key, and so not there.
        (2**64, False),
        (-(2**63) - 1, False),
    ]
    for key, there in found:
        assert (key in table) == there, key
    with pytest.raises(TypeError):
        assert "7" in table  # type: ignore[operator]


def test_remove_and_clear(make: Make) -> None:
    table = make("t", DIM)
    table.push(KEYS, np.ones((len(KEYS), DIM), dtype=np.float32))
    assert table.bytes > 0
    assert 7 in table
    assert table.remove(uint64(7, 7, 12345)) == 1
    assert 7 not in table
    assert len(table) == len(KEYS) - 1
    table.clear()
    assert len(table) == 0


def test_properties_say_what_the_table_is_made_of(make: Make) -> None:
    table = make("user", 3, optimizer={"type": "adam", "lr": 0.1}, init={"type": "normal", "std": 0.1}, seed=9)
    assert (table.name, table.dim) == ("user", 3)
    assert 'Table("user", dim=3' in repr(table)
    (block,) = table.blocks
    assert block["dims"] == 3
    assert block["init"] == {"type": "normal", "std": 0.1}
    assert block["optimizer"] == {"type": "adam", "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "l2": 0.0}
    defaults = {"admission": {"type": "always"}, "eviction": {"type": "never"}}
    places = {"writes": "in_place", "packing": "fast"}
    assert table.config == {"blocks": [block], "seed": 9, "budget_bytes": None, "dtype": "f32", **defaults, **places}
    assert make("dense", 3, packing="compact").config["packing"] == "compact"


def test_threads_share_a_table(make: Make) -> None:
    table = make("t", DIM, optimizer={"type": "sgd", "lr": 1.0})
    keys = np.arange(1000, dtype=np.uint64)
    grads = np.full((1000, DIM), -1.0, dtype=np.float32)

    def work() -> None:
        for _ in range(20):
            table.push(keys, grads)
            table.pull(keys)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(table.pull(keys), np.full((1000, DIM), 80.0, dtype=np.float32))


@pytest.mark.parametrize(
    ("reference", "optimizer"), OPTIMIZERS[::2], ids=lambda x: str(x) if isinstance(x, dict) else ""
)
def test_a_loaded_table_goes_on_as_the_saved_one(tmp_path: Path, reference: object, optimizer: dict[str, Any]) -> None:
    del reference
    random = np.random.default_rng(2)
    table = Table("t", DIM, optimizer=optimizer, init={"type": "normal", "std": 0.1}, seed=5)
    for _ in range(3):
        table.push(KEYS[:6], random.normal(size=(6, DIM)).astype(np.float32))
    table.save(tmp_path / "checkpoint")
    loaded = Table.load(tmp_path / "checkpoint")
    assert (loaded.name, len(loaded), loaded.blocks) == (table.name, len(table), table.blocks)
    grads = random.normal(size=(len(KEYS), DIM)).astype(np.float32)
    table.push(KEYS, grads)
    loaded.push(KEYS, grads)
    np.testing.assert_array_equal(loaded.pull(KEYS), table.pull(KEYS))


def test_deltas_add_what_changed_to_a_checkpoint(tmp_path: Path) -> None:
    table = Table("t", DIM, optimizer="adam")
    for push in range(4):
        table.push(KEYS[push:], np.ones((len(KEYS) - push, DIM), dtype=np.float32))
        table.remove(KEYS[:push])
        table.save(tmp_path, delta=True)
        loaded = Table.load(tmp_path)
        assert len(loaded) == len(table)
        np.testing.assert_array_equal(loaded.pull(KEYS), table.pull(KEYS))
        assert len(list(tmp_path.glob("*.delta"))) == push
    table.save(tmp_path)
    assert not list(tmp_path.glob("*.delta"))


def test_a_checkpoint_holds_several_tables_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    user, item = Table("user", 2), Table("item", 4)
    user.push(KEYS, np.ones((len(KEYS), 2), dtype=np.float32))
    sanderling.save_tables(tmp_path, [user, item])
    assert sanderling.checkpoint_tables(tmp_path) == ["user", "item"]
    assert len(Table.load(tmp_path, "user")) == len(KEYS)
    assert Table.load(str(tmp_path), "item").dim == 4
    user.clear()
    sanderling.save_tables(tmp_path, [user])
    assert sanderling.checkpoint_tables(tmp_path) == ["user"]
    assert len(Table.load(tmp_path)) == 0


def test_a_bounded_table_admits_and_evicts() -> None:
    table = Table(
        "clicks",
        4,
        dtype="bf16",
        budget_bytes=4 << 20,
        admission={"type": "sightings", "sightings": 2, "filter_bytes": 1 << 20},
        eviction="clock",
    )
    assert table.reserve(1000)
    grads = np.ones((1000, 4), dtype=np.float32)
    for first in range(0, 100_000, 1000):
        keys = np.arange(first, first + 1000, dtype=np.uint64)
        table.push(keys, grads)
        table.push(keys, grads)
    stats = table.stats()
    assert stats["rows"] == len(table) == stats["admitted"] - stats["evicted"]
    assert stats["evicted"] > 0
    assert stats["rejected_full"] == 0
    assert table.bytes <= 4 << 20
    assert stats["rejected"] >= 90_000  # the first sighting of nearly all
    assert set(table.maintain(100)) == {"sampled", "promoted", "evicted", "moved"}


def test_new_keys_are_admitted_as_the_table_says(make: Make) -> None:
    admission = {"type": "sightings", "sightings": 3, "filter_bytes": 1 << 20}
    table = make("t", 2, optimizer={"type": "sgd", "lr": 1.0}, dtype="f16", admission=admission)
    for rows in [0, 0, len(KEYS)]:
        table.push(KEYS, np.full((len(KEYS), 2), -1.0, dtype=np.float32))
        assert len(table) == table.stats()["rows"] == rows
    assert 7 in table
    assert np.all(table.pull(KEYS) >= 1.0)


def test_a_table_in_a_fixed_amount_of_memory_forgets(make: Make) -> None:
    table = make("t", 4, budget_bytes=4 << 20, eviction="clock")
    for first in range(0, 200_000, 10_000):
        table.push(np.arange(first, first + 10_000, dtype=np.uint64), np.ones((10_000, 4), dtype=np.float32))
    assert 10_000 < len(table) < 200_000
    assert table.bytes <= 4 << 20
    with pytest.raises(sanderling.TableFullError):
        make("t", 4, budget_bytes=1 << 20).push(
            np.arange(100_000, dtype=np.uint64), np.ones((100_000, 4), dtype=np.float32)
        )


def test_rows_may_move_on_every_update(make: Make) -> None:
    tables = [make("a", 3, optimizer="adam"), make("b", 3, optimizer="adam", writes="copy_on_write")]
    keys = np.array([5, 6, 5], dtype=np.uint64)
    for table in tables:
        for step in range(10):
            table.push(keys, np.full((3, 3), step, dtype=np.float32))
    in_place, moved = (table.pull(keys) for table in tables)
    assert np.array_equal(in_place, moved)
