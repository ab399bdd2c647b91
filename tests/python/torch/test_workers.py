"""Several trainers of one model: in step they are one with the whole batch, and who does not come is named."""

import gzip
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import in_threads, servers
from torch import nn
from trainers import Forks, rest

import sanderling
from sanderling import Meeting, SyncGroup
from sanderling.torch import EmbeddingCollection, Spec, Workers

ROOT = Path(__file__).parents[3]
KEYS = np.arange(20, dtype=np.uint64)
DIM = 3
BATCH = 24
STEPS = 6

# A collection that takes part as this worker, over tables that all of them share.
Take = Callable[[Workers], EmbeddingCollection]
Place = tuple[Take, Callable[..., Workers]]
Start = Callable[[int, str, str], Place]


def spec(optimizer: str) -> Spec:
    """Features of three poolings from two tables."""
    lr = {"sgd": 1.0, "adagrad": 0.1}[optimizer]
    table = {"dim": DIM, "optimizer": {"type": optimizer, "lr": lr}, "init": {"type": "uniform", "bound": 0.5}}
    features = {"a": {"table": "t"}, "b": {"table": "t", "pooling": "mean"}, "c": {"table": "u", "pooling": "none"}}
    return Spec.of({"tables": {"t": table, "u": {**table, "dim": 2}}, "features": features})


@pytest.fixture(params=["here", "two servers"])
def start(request: pytest.FixtureRequest) -> Start:
    """Gives tables that several trainers share, in this process or on servers, and makes the workers over them."""

    def here(size: int, optimizer: str, mode: str) -> Place:
        tables = EmbeddingCollection(spec(optimizer)).tables
        meeting = Meeting(list(tables.values()), size)  # type: ignore[arg-type]

        def take(workers: Workers) -> EmbeddingCollection:
            emb = EmbeddingCollection(spec(optimizer), push="step", workers=workers)
            emb.use_tables(tables)
            return emb

        return take, lambda rank, **more: Workers(SyncGroup(meeting, 0, rank, size, **more), mode)

    def remote(size: int, optimizer: str, mode: str) -> Place:
        address = request.getfixturevalue("two_servers")
        connection = sanderling.connect(address)
        for name in "tu":
            connection.drop(name)
        group = secrets.randbits(64)

        def take(workers: Workers) -> EmbeddingCollection:
            return EmbeddingCollection(spec(optimizer), connection, push="step", workers=workers)

        return take, lambda rank, **more: Workers(SyncGroup(connection, group, rank, size, **more), mode)

    return here if request.param == "here" else remote


def batch(step: int, first: int = 0, end: int = BATCH) -> sanderling.Batch:
    """Samples `first` to `end` of a step's batch; one to three keys per feature and sample."""
    random = np.random.default_rng(step)
    columns: list[Any] = []
    for name in "abc":
        lengths = random.integers(1, 4, BATCH)
        keys = random.integers(0, len(KEYS), int(lengths.sum())).astype(np.uint64)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.uint32)
        mine = offsets[first : end + 1]
        columns.append((name, keys[mine[0] : mine[-1]].copy(), mine - mine[0], None))
    return sanderling.Batch(columns)


def rows(emb: EmbeddingCollection) -> list[np.ndarray]:
    emb.finish()
    return [table.pull(KEYS) for table in emb.tables.values()]


class Dense(nn.Module):
    """A perceptron over what the rows give."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(2 * DIM + 2, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, emb: EmbeddingCollection, samples: sanderling.Batch) -> torch.Tensor:
        read = emb(samples)
        padded, _ = read.sequences["c"].padded(3)
        logits: torch.Tensor = self.layers(torch.cat([read.values(), padded.sum(1)], 1))
        return logits.squeeze(1)


def train(emb: EmbeddingCollection, dense: Dense, optimizer: str, rank: int = 0, size: int = 1) -> None:
    """Takes the steps of one of `size` trainers, each with its part of every batch."""
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    of_dense = kinds[optimizer](dense.parameters(), lr=0.1)
    share = BATCH // size
    for step in range(STEPS):
        of_dense.zero_grad()
        # A mean over the trainer's own samples.
        dense(emb, batch(step, rank * share, (rank + 1) * share)).sub(1.0).pow(2).mean().backward()
        if emb.workers is not None:
            emb.workers.average_gradients(dense.parameters())
        of_dense.step()
        emb.step()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_in_step_they_are_one_with_the_whole_batch(start: Start, optimizer: str, size: int) -> None:
    alone, expected = EmbeddingCollection(spec(optimizer), push="step", pushes=0), Dense()
    before = rows(alone)
    train(alone, expected, optimizer)
    take, join = start(size, optimizer, "sync")
    models = [Dense() for _ in range(size)]
    collections: list[Any] = [None] * size

    def work(rank: int) -> None:
        collections[rank] = take(join(rank))
        train(collections[rank], models[rank], optimizer, rank, size)

    in_threads(size, work)
    for found, right, first in zip(rows(collections[0]), rows(alone), before, strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)
        assert np.abs(right - first).max() > 0.01
    for model in models:
        torch.testing.assert_close(dict(model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-5)
        for one, first_one in zip(model.parameters(), models[0].parameters(), strict=True):
            assert torch.equal(one, first_one)


def test_all_end_together_and_short_batches_weigh_less(start: Start) -> None:
    """The last step has 8 samples of one trainer and 4 of the other; one has a batch more than that."""
    alone = EmbeddingCollection(spec("adagrad"), push="step", pushes=0)
    for step, end in enumerate([24, 12]):
        alone(batch(step, 0, end)).values().pow(2).mean().backward()
        alone.step()
    take, join = start(2, "adagrad", "sync")
    parts = [[batch(0, 0, 12), batch(1, 0, 8), batch(2)], [batch(0, 12, 24), batch(1, 8, 12)]]
    taken = [0, 0]
    collections: list[Any] = [None, None]

    def work(rank: int) -> None:
        workers = join(rank)
        emb = collections[rank] = take(workers)
        for samples in workers.batches(parts[rank]):
            (emb(samples).values().pow(2).mean() * workers.share).backward()
            emb.step()
            taken[rank] += 1
        # Who has nothing takes part with nothing.
        emb.step()

    in_threads(2, work)
    assert taken == [2, 2]
    for found, right in zip(rows(collections[0]), rows(alone), strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)


def one_step(emb: EmbeddingCollection, step: int = 0) -> None:
    emb(batch(step)).values().sum().backward()
    emb.step()


def test_nobody_is_further_ahead_than_the_bound(start: Start) -> None:
    take, join = start(2, "sgd", "bounded:3")
    fast, slow = (take(join(rank, step_timeout_s=0.2)) for rank in range(2))
    for _ in range(2):
        one_step(slow)
    for _ in range(5):
        one_step(fast)
    with pytest.raises(sanderling.GroupError, match=r"step 6, more than 3 ahead: worker 1 did not come"):
        one_step(fast)
    # Gradients are applied as they come, those of the step that was one too far as well.
    alone = EmbeddingCollection(spec("sgd"), push="step", pushes=0)
    for _ in range(2 + 6):
        one_step(alone)
    for found, right in zip(rows(fast), rows(alone), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
    assert slow.workers is not None
    slow.workers.leave()
    for _ in range(5):
        one_step(fast)


def test_who_stops_coming_is_named_and_the_tables_go_on(start: Start) -> None:
    take, join = start(2, "sgd", "sync")
    left: list[Any] = [None, None]

    def work(rank: int) -> None:
        left[rank] = take(join(rank, step_timeout_s=60.0))
        for step in range(2):
            one_step(left[rank], step)

    in_threads(2, work)
    before = rows(left[0])
    # The same worker, less patient; it is told how far the group is.
    impatient = take(join(0, step_timeout_s=0.2, attempt=1))
    assert impatient.workers is not None
    assert impatient.workers.step == 2
    with pytest.raises(sanderling.GroupError, match="step 3: worker 1 did not come"):
        one_step(impatient, 2)
    with pytest.raises(sanderling.GroupError, match="step 3 failed before"):
        one_step(impatient, 2)
    for now, then in zip(rows(impatient), before, strict=True):
        np.testing.assert_array_equal(now, then)
    samples = batch(5)
    np.testing.assert_array_equal(impatient(samples).values().detach(), left[1](samples).values().detach())
    # The other comes after all: the step is that of one part each.
    left[0] = take(join(0, attempt=2))
    in_threads(2, lambda rank: one_step(left[rank], 2))
    alone = EmbeddingCollection(spec("sgd"), push="step", pushes=0)
    for step in range(3):
        one_step(alone, step)
    for found, right in zip(rows(left[1]), rows(alone), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_what_would_not_be_in_step_is_refused(start: Start) -> None:
    take, join = start(1, "sgd", "sync")
    emb = take(join(0))
    output = emb(batch(0)).values().sum()
    one_step(emb)
    with pytest.raises(RuntimeError, match="before the last step"):
        output.backward()
    with pytest.raises(sanderling.ConfigError, match="clip_grad_norm_"):
        emb.clip_grad_norm_(1.0)
    for mode in ("", "synchronous", "bounded", "bounded:-1"):
        with pytest.raises(sanderling.ConfigError, match="mode"):
            start(1, "sgd", mode)[1](0)


def test_rows_that_were_looked_up_ahead_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("y,a\n1,2\n0,3\n")
    reading = {"data": {"format": "csv"}, "label": {"column": "y"}, "feature": [{"name": "a"}]}
    emb = EmbeddingCollection({"tables": {"t": {"dim": 2}}, "features": {"a": "t"}}, push="step")
    meeting = Meeting(list(emb.tables.values()), 1)  # type: ignore[arg-type]
    in_step = EmbeddingCollection(emb.spec, push="step", workers=Workers(SyncGroup(meeting, 0, 0, 1)))
    in_step.use_tables(emb.tables)
    samples = next(sanderling.FeedQueue(sanderling.FileSource(tmp_path / "rows.csv", reading), in_step.native))
    with pytest.raises(sanderling.ConfigError, match="looked up ahead"):
        in_step(samples)
    with torch.no_grad():
        assert in_step(samples).values().shape == (2, 2)


def test_torchrun_trains_as_one_process_does(tmp_path: Path, forks: Forks) -> None:
    with gzip.open(ROOT / "data/adult/adult.data.gz", "rt") as whole:
        (tmp_path / "rows.csv").write_text("".join(line for _, line in zip(range(4000), whole, strict=False)))
    config = (ROOT / "examples/adult_deepfm.toml").read_text()
    (tmp_path / "config.toml").write_text(config.replace("data/adult/adult.data.gz", str(tmp_path / "rows.csv")))
    example = str(ROOT / "examples/train_distributed.py")
    said = []
    for ranks in (1, 2):
        folder = tmp_path / f"{ranks}"
        folder.mkdir()
        with (
            servers(folder, 1) as address,
            forks.start(folder, ranks, [address, str(tmp_path / "config.toml")], {}, program=example) as process,
        ):
            code, out, err = rest(process)
        assert code == 0, err
        said.append([line.replace(":", "").replace(",", "").split() for line in sorted(out.splitlines())])
    one, two = said
    # process 0 of 2 pass 1 loss 0.6 dense parameters 0123abcd
    losses = [float(line[7]) for line in one]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert [line[1] for line in two] == ["0", "0", "0", "1", "1", "1"]
    assert [line[4:] for line in two[:3]] == [line[4:] for line in two[3:]]
    np.testing.assert_allclose([float(line[7]) for line in two[:3]], losses, atol=1e-4)
