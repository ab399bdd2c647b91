"""Each kind of error is a class of its own below `sanderling.Error`, and says what was wrong with what."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from conftest import AnyTable, Make

import sanderling
from sanderling import Table

ONE = np.ones(1, dtype=np.uint64)
GRAD = np.ones((1, 2), dtype=np.float32)


def test_every_error_is_an_error() -> None:
    classes = [member for name, member in inspect.getmembers(sanderling) if name.endswith("Error")]
    assert len(classes) > 5
    for member in classes:
        assert issubclass(member, sanderling.Error)
        assert member.__module__ == "sanderling"
        assert member.__doc__


def bags(*offsets: int) -> Callable[[AnyTable], object]:
    return lambda table: table.pull_pooled(ONE, np.array(offsets, dtype=np.uint32))


REQUESTS: list[tuple[Callable[[AnyTable], object], type[Exception], str]] = [
    (lambda t: t.push(ONE, np.ones((1, 3), dtype=np.float32)), sanderling.LengthError, "shape"),
    (lambda t: t.push(ONE, np.ones((2, 2), dtype=np.float32)), sanderling.LengthError, "shape"),
    (lambda t: t.push(ONE, GRAD * np.nan), sanderling.GradientError, "key 1"),
    (lambda t: t.push(ONE, GRAD * np.inf), sanderling.GradientError, "key 1"),
    (lambda t: t.push(ONE, GRAD, lr_scale=-1.0), sanderling.GradientError, "learning rate"),
    (lambda t: t.push(ONE, GRAD, lr=-1.0), sanderling.ConfigError, "lr = -1: a learning rate is"),
    (lambda t: t.pull(ONE, out=np.zeros((2, 2), dtype=np.float32)), sanderling.LengthError, "out"),
    (lambda t: t.pull(ONE, out=np.zeros((2, 4), dtype=np.float32)[:, ::4].T), sanderling.LengthError, "out"),
    (bags(0, 2), sanderling.OffsetsError, "offsets"),
    (bags(1, 0), sanderling.OffsetsError, "offsets"),
    (bags(0, 0), sanderling.OffsetsError, "offsets"),
    (bags(), sanderling.Error, "offsets"),
    (
        lambda t: t.pull_pooled(ONE, np.array([0, 1], dtype=np.uint32), values=np.ones(2, dtype=np.float32)),
        sanderling.LengthError,
        "values",
    ),
    (
        lambda t: t.push(ONE, cast("Any", GRAD.astype(float))),
        TypeError,
        r"grads must be .* float32 \[n, dim\], not float64",
    ),
    (lambda t: t.pull(cast("Any", np.ones(1))), TypeError, r"keys must be .* uint64 or int64 \[n\], not float64 \[1\]"),
    (lambda t: t.remove(cast("Any", np.ones(1, np.uint32))), TypeError, "not uint32"),
    (lambda t: t.push(cast("Any", ONE.astype(">u8")), GRAD), TypeError, "not >u8"),
    (lambda t: t.pull(cast("Any", [1])), TypeError, "not list"),
    (lambda t: t.pull(ONE.reshape(1, 1)), TypeError, r"not uint64 \[1, 1\]"),
    (
        lambda t: t.pull(ONE, out=cast("Any", np.zeros((1, 2)))),
        TypeError,
        r"out must be .* float32 \[n, dim\], not float64 \[1, 2\]",
    ),
    (
        lambda t: t.pull(np.arange(3, dtype=np.uint64), out=np.zeros((3, 2), np.float32, order="F")),
        sanderling.LengthError,
        "out must be C-contiguous, .* in Fortran order",
    ),
    (
        lambda t: t.pull_pooled(ONE, cast("Any", np.array([0, 1]))),
        TypeError,
        r"offsets must be .* uint32 \[n\], not int64 \[2\]",
    ),
    (
        lambda t: t.pull_pooled(ONE, np.array([0, 1], np.uint32), values=cast("Any", [1.0])),
        TypeError,
        r"values must be .* float32 \[n\], not list",
    ),
    (lambda t: t.pull(ONE, absent=cast("Any", "maybe")), ValueError, "'init' or 'zero'"),
    (lambda t: t.pull_pooled(ONE, ONE.astype(np.uint32), pooling=cast("Any", "max")), ValueError, "'sum' or 'mean'"),
]


@pytest.mark.parametrize(("request_", "kind", "text"), REQUESTS)
def test_a_bad_request_is_refused_whole(
    make: Make, request_: Callable[[AnyTable], object], kind: type[Exception], text: str
) -> None:
    table = make("clicks", 2, optimizer="sgd")
    with pytest.raises(kind, match=text) as raised:
        request_(table)
    if issubclass(kind, sanderling.Error):
        assert "clicks" in str(raised.value)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dim": 0}, "dim 0"),
        ({"dim": -1}, "-1: must be a whole number"),
        ({"seed": 1 << 70}, "must be a whole number"),
        ({"budget_bytes": -1}, "-1: must be a whole number"),
        ({"name": ""}, "name"),
        ({"optimizer": "sgdd"}, "sgdd"),
        ({"optimizer": {"type": "sgd", "rate": 0.1}}, "rate"),
        ({"optimizer": {"type": "sgd", "lr": -0.1}}, "lr"),
        ({"optimizer": {"type": "sgd", "lr": float("nan")}}, "optimizer.lr"),
        ({"optimizer": {"type": "sgd", "lr": "fast"}}, "optimizer"),
        ({"init": {"type": "normal"}}, "std"),
    ],
)
def test_a_bad_configuration_names_the_entry(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(sanderling.ConfigError, match=text):
        Table(**{"name": "clicks", "dim": 2, **arguments})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"train": {"batch_size": "x"}}, r'config: train\.batch_size: invalid type: string "x", expected usize$'),
        ({"feature": [{"columns": ["a"]}, {"columns": 3}]}, r"config: feature\[1\]\.columns: .*integer `3`"),
        ({"train": {"batches": 1}}, r"config: train\.batches: unknown field"),
    ],
)
def test_a_value_of_another_type_is_named_by_its_entry(config: dict[str, Any], text: str) -> None:
    with pytest.raises(sanderling.ConfigError, match=text):
        sanderling.train(config)


def test_a_configuration_holds_plain_values_only() -> None:
    for lr, text in ((1j, "complex"), (1 << 70, "more than 64 bits"), ("\udc80", "is not UTF-8")):
        with pytest.raises(sanderling.ConfigError, match=rf"optimizer\.lr.*{text}"):
            Table("clicks", 2, optimizer={"type": "sgd", "lr": lr})
    with pytest.raises(sanderling.ConfigError, match="optimizer: 3 is no name"):
        Table("clicks", 2, optimizer=cast("Any", {3: "sgd"}))


def test_numbers_of_numpy_are_plain_values() -> None:
    said = {"type": "sightings", "sightings": np.int64(3), "filter_bytes": np.uint32(4096)}
    optimizer = {"type": "adam", "lr": np.float32(0.25), "beta1": np.float64(0.5)}
    config = Table("clicks", 2, optimizer=optimizer, admission=said).config
    assert config["admission"] == {"type": "sightings", "sightings": 3, "filter_bytes": 4096}
    assert (config["blocks"][0]["optimizer"]["lr"], config["blocks"][0]["optimizer"]["beta1"]) == (0.25, 0.5)
    with pytest.raises(sanderling.ConfigError, match=r"optimizer\.lr.*complex"):
        Table("clicks", 2, optimizer={"type": "sgd", "lr": np.complex64(1j)})


@pytest.mark.parametrize("as_file", [False, True])
def test_a_deep_model_is_sent_to_who_trains_it(as_file: bool, tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text('[model]\ntype = "dcnv2"\n')
    config = tmp_path / "deep.toml" if as_file else {"model": {"type": "dcnv2"}}
    with pytest.raises(sanderling.ConfigError, match=r'"dcnv2" is a deep model, which sanderling\.torch\.train trains'):
        sanderling.train(config)


def test_a_full_table_says_what_it_left_out() -> None:
    table = Table("clicks", 2, budget_bytes=1 << 20)
    keys = np.arange(1 << 20, dtype=np.uint64)
    with pytest.raises(sanderling.TableFullError, match=r"clicks.*rejected"):
        table.push(keys, np.ones((len(keys), 2), dtype=np.float32))
    assert table.bytes <= 1 << 20
    assert len(table) < len(keys)


def test_checkpoint_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(sanderling.FileError, match="nowhere"):
        Table.load(tmp_path / "nowhere")
    table = Table("clicks", 2)
    table.push(ONE, GRAD)
    table.save(tmp_path)
    with pytest.raises(sanderling.NotFoundError, match="clicks"):
        Table.load(tmp_path, "views")
    with pytest.raises(sanderling.DuplicateNameError, match="clicks"):
        sanderling.save_tables(tmp_path / "other", [table, table])
    data = max((path for path in tmp_path.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    bytes_ = bytearray(data.read_bytes())
    bytes_[len(bytes_) // 2] ^= 0xFF
    data.write_bytes(bytes_)
    with pytest.raises(sanderling.DamagedError, match=tmp_path.name):
        Table.load(tmp_path)
    sanderling.save_tables(tmp_path / "two", [table, Table("views", 2)])
    with pytest.raises(sanderling.NotFoundError, match=r"two: give the name .*\(there are: clicks, views\)"):
        Table.load(tmp_path / "two")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("ConfigError", ValueError),
        ("LengthError", ValueError),
        ("OffsetsError", ValueError),
        ("GradientError", ValueError),
        ("BadRowError", ValueError),
        ("BadFileError", ValueError),
        ("FileError", OSError),
        ("NotFoundError", KeyError),
        ("ServerError", ConnectionError),
        ("ServerTimeoutError", TimeoutError),
        ("HubError", ConnectionError),
        ("HubTimeoutError", TimeoutError),
        ("GroupTimeoutError", TimeoutError),
    ],
)
def test_an_error_is_the_built_in_one_that_fits(name: str, base: type[Exception]) -> None:
    error = getattr(sanderling, name)("a 'quoted' text")
    assert isinstance(error, base)
    assert isinstance(error, sanderling.Error)
    assert str(error) == "a 'quoted' text"


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this machine has RDMA devices")
def test_without_an_rdma_device_the_error_says_what_is_missing() -> None:
    with pytest.raises(
        sanderling.Error, match=r"rdma://127\.0\.0\.1:1: no RDMA device: .*(libibverbs|/sys/class/infiniband)"
    ):
        sanderling.connect("rdma://127.0.0.1:1")
