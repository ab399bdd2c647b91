"""Checkpoints of dense part and rows: what is loaded is one whole save, whatever interrupted the next."""

import copy
import json
import os
import pkgutil
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sanderling
import sanderling.torch
from sanderling.torch import EmbeddingCollection, Spec
from sanderling.torch.models import DNN

KEYS = np.arange(8, dtype=np.uint64)
DIM = 2


class Training:
    """A model with rows, trained a step at a time on random samples."""

    def __init__(self, seed: int, ps: sanderling.Connection | None = None, device: str = "cpu") -> None:
        torch.manual_seed(seed)
        self.device = device
        rows = {"optimizer": {"type": "adam", "lr": 0.01}, "init": {"type": "normal", "std": 0.1}}
        self.emb = EmbeddingCollection(Spec.alike(["a", "b"], DIM, **rows), ps, pushes=0).to(device)
        self.model = DNN(2, DIM, hidden=[4], batch_norm=True).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self, number: int) -> None:
        rng = np.random.default_rng(number)
        offsets = np.arange(5, dtype=np.uint32)
        columns = [(name, rng.choice(KEYS, 4), offsets, None) for name in "ab"]
        self.optimizer.zero_grad()
        labels = torch.from_numpy(rng.integers(0, 2, 4).astype(np.float32)).to(self.device)
        logits = self.model(self.emb(sanderling.Batch(columns)).stacked())
        nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """Everything that a step depends on, but the optimizers' states, which the steps after it show."""
        self.emb.finish()
        tables = {name: torch.from_numpy(table.pull(KEYS)) for name, table in self.emb.tables.items()}
        return {**{name: value.clone() for name, value in self.model.state_dict().items()}, **tables}

    def save(self, directory: Path, **extra: Any) -> None:
        sanderling.torch.save(directory, self.model, self.optimizer, self.emb, extra=extra)

    def load(self, directory: Path) -> dict[str, Any]:
        return sanderling.torch.load(directory, self.model, self.optimizer, self.emb)


@pytest.mark.parametrize("place", ["here", "servers"])
def test_a_training_goes_on_as_if_it_had_not_stopped(
    place: str, device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ps = sanderling.connect(request.getfixturevalue("two_servers")) if place == "servers" else None
    for name in "ab":
        if ps is not None:
            ps.drop(name)
    whole = Training(1, ps, device)
    for number in range(3):
        whole.step(number)
    whole.save(tmp_path / "saved", step=3, best=[0.5, None])
    expected = whole.state()
    for number in range(3, 6):
        whole.step(number)
    goal = whole.state()
    again = Training(2, ps, device)
    assert again.load(tmp_path / "saved") == {"step": 3, "best": [0.5, None]}
    torch.testing.assert_close(again.state(), expected, rtol=0, atol=0)
    for number in range(3, 6):
        again.step(number)
    torch.testing.assert_close(again.state(), goal)


def test_rows_on_servers_are_those_of_the_directory(tmp_path: Path, two_servers: str) -> None:
    ps = sanderling.connect(two_servers)
    for name in "ab":
        ps.drop(name)
    training = Training(1, ps)
    # Runs of several names, and of one name in several places; then a copy, which goes on where it was copied from.
    places = [tmp_path / place / "last" for place in ("runs/one", "runs/other", "elsewhere/one")]
    states = {}
    for number in range(3):
        for place in places:
            training.step(number)
            training.save(place)
            states[place] = training.state()
    copy = tmp_path / "copy" / "last"
    shutil.copytree(places[0], copy)
    for number in range(3):
        training.step(number)
        training.save(copy)
    for place in places:
        training.load(place)
        torch.testing.assert_close(training.state(), states[place], rtol=0, atol=0)
    # What an earlier version saved, under a name that every `last` has, is still found and then saved under its own.
    ps.save("last-1")
    manifest = json.loads((copy / "manifest.json").read_text())
    before = {key: manifest[key] for key in ("format", "generation", "dense")}
    (copy / "manifest.json").write_text(json.dumps({**before, "servers": "last-1"}))
    for _ in range(2):
        training.load(copy)
        torch.testing.assert_close(training.state()["a"], states[places[-1]]["a"], rtol=0, atol=0)
        training.save(copy)


class Killed(BaseException):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize(
    ("where", "name", "calls_before", "step"),
    [
        ("torch", "save", 0, 1),
        ("os", "fsync", 0, 1),
        ("sanderling", "save_tables", 0, 1),
        ("json", "dump", 0, 1),
        ("os", "fsync", 1, 1),
        ("sanderling.torch.checkpoint", "_sync", 0, 1),
        ("pathlib.Path", "replace", 0, 1),
        # From the rename on, the new one is there.
        ("sanderling.torch.checkpoint", "_sync", 1, 2),
        ("sanderling.torch.checkpoint", "_remove_others", 0, 2),
    ],
)
def test_an_interrupted_save_leaves_one_whole_checkpoint(
    where: str, name: str, calls_before: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(1)
    training.step(0)
    training.save(tmp_path, step=1)
    states = {1: training.state()}
    training.step(1)
    states[2] = training.state()
    owner = pkgutil.resolve_name(where)
    original, calls = getattr(owner, name), 0

    def killed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > calls_before:
            raise Killed
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            training.save(tmp_path, step=2)
    again = Training(2)
    assert again.load(tmp_path) == {"step": step}
    torch.testing.assert_close(again.state(), states[step], rtol=0, atol=0)
    # What was left of the interrupted save does not disturb the next one, which removes it.
    training.save(tmp_path, step=3)
    assert again.load(tmp_path) == {"step": 3}
    torch.testing.assert_close(again.state(), states[2], rtol=0, atol=0)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".json", ".pt"]


def test_what_could_not_be_loaded_again_replaces_nothing(tmp_path: Path) -> None:
    training = Training(1, None)
    training.save(tmp_path, epoch=1)
    for unsaved in (np.mean([1.0, 2.0]), lambda: 1, threading.Lock()):
        with pytest.raises(sanderling.ConfigError, match="numpy's scalars"):
            training.save(tmp_path, best=unsaved)
    assert training.load(tmp_path) == {"epoch": 1}
    assert len(list(tmp_path.glob("dense-*"))) == 1


def test_tables_of_one_name_are_told_apart_or_refused(tmp_path: Path) -> None:
    spec = Spec.alike(["a"], DIM)
    one, other = EmbeddingCollection(spec), EmbeddingCollection(spec)
    with pytest.raises(sanderling.DuplicateNameError, match="table 'a': two collections have"):
        sanderling.torch.save(tmp_path, nn.Linear(1, 1), None, [one, other])
    other.use_tables(one.tables)
    sanderling.torch.save(tmp_path, nn.Linear(1, 1), None, [one, other])


def no_tables(place: str, request: pytest.FixtureRequest) -> sanderling.Connection | None:
    """Where tables are to be, none of a test before among them; here, if that is None."""
    if place == "here":
        return None
    ps = sanderling.connect(request.getfixturevalue("two_servers"))
    for name in "ab":
        ps.drop(name)
    return ps


@pytest.mark.parametrize("place", ["here", "servers"])
def test_a_dense_part_that_does_not_fit_changes_nothing(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    training = Training(1, no_tables(place, request))
    training.step(0)
    training.save(tmp_path)
    training.step(1)
    before = training.state()
    wider = DNN(2, DIM, hidden=[5], batch_norm=True)
    wider_before = copy.deepcopy(wider.state_dict())
    one_of_many = torch.optim.Adam(list(training.model.parameters())[:1])
    for model, optimizer, error in [(wider, None, RuntimeError), (training.model, one_of_many, ValueError)]:
        with pytest.raises(error, match=r"size mismatch|doesn't match the size"):
            sanderling.torch.load(tmp_path, model, optimizer, training.emb)
    torch.testing.assert_close(training.state(), before, rtol=0, atol=0)
    torch.testing.assert_close(wider.state_dict(), wider_before, rtol=0, atol=0)
    # What was learned last is still pushed to.
    training.step(2)
    assert not torch.equal(training.state()["a"], before["a"])


@pytest.mark.parametrize("place", ["here", "servers"])
def test_tables_are_loaded_as_the_spec_says_or_not_at_all(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    training = Training(1, no_tables(place, request))
    training.step(0)
    training.save(tmp_path)
    saved = training.state()

    def collection(dim: int, options: dict[str, Any]) -> EmbeddingCollection:
        return EmbeddingCollection(Spec.alike(["a", "b"], dim, **options), no_tables(place, request))

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"dim": 3}, "table 'a' has 2 weights per row, not 3"),
        ({"optimizer": "sgd"}, "made with optimizer = .*'adam'.*the spec says .*'sgd'"),
        ({"optimizer": {"type": "adam", "lr": 0.02}}, "the spec says .*0.02"),
        ({"init": "zero"}, "made with init = "),
        ({"seed": 7}, "made with seed = 42, and the spec says 7"),
        ({"dtype": "bf16"}, "made with dtype = f32, and the spec says bf16"),
        ({"admission": {"type": "sightings", "sightings": 2}}, "made with admission = "),
        ({"eviction": "clock", "budget_bytes": 1 << 24}, "made with eviction = "),
    ]
    for said, text in wrong:
        emb = collection(said.pop("dim", DIM), said)
        with pytest.raises(sanderling.ConfigError, match=text):
            sanderling.torch.load(tmp_path, training.model, None, emb)
        assert len(emb.tables["a"]) == 0, text
    fine: list[dict[str, Any]] = [{}, {"optimizer": {"type": "adam", "lr": 0.01}, "budget_bytes": 1 << 24}]
    for said in fine:
        emb = collection(DIM, said)
        sanderling.torch.load(tmp_path, training.model, None, emb)
        torch.testing.assert_close(torch.from_numpy(emb.tables["a"].pull(KEYS)), saved["a"], rtol=0, atol=0)
        with pytest.raises(sanderling.ConfigError, match="made with optimizer = "):
            EmbeddingCollection(Spec.alike(["a", "b"], DIM, optimizer="sgd")).use_tables(emb.tables)


def test_damage_is_found_before_anything_changes(tmp_path: Path) -> None:
    training = Training(1)
    training.save(tmp_path)
    other = Training(2)
    before = other.state()
    (dense,) = tmp_path.glob("dense-*.pt")
    good = dense.read_bytes()
    dense.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(sanderling.DamagedError, match="dense-"):
        other.load(tmp_path)
    dense.write_bytes(good)
    manifest = tmp_path / "manifest.json"
    text = manifest.read_text()
    for wrong, error in [
        ("{", sanderling.DamagedError),
        (text.replace('"format": 1', '"format": 2'), sanderling.VersionError),
        (text.replace("dense-1", "../dense-1"), sanderling.DamagedError),
        (text.replace('"rows"', '"other"'), sanderling.NotFoundError),
    ]:
        manifest.write_text(wrong)
        with pytest.raises(error):
            other.load(tmp_path)
    manifest.unlink()
    with pytest.raises(sanderling.NotFoundError, match="no checkpoint"):
        other.load(tmp_path)
    os.mkfifo(manifest)
    # Who opens the pipe would wait until it is closed here.
    writer = os.open(manifest, os.O_RDWR)
    closing = threading.Timer(10, os.close, [writer])
    closing.start()
    with pytest.raises(sanderling.DamagedError, match="not a regular file"):
        other.load(tmp_path)
    closing.cancel()
    closing.join()
    os.close(writer)
    torch.testing.assert_close(other.state(), before, rtol=0, atol=0)
