"""Pushes that fail at a server, as minibatches come from a hub: the loop hears why, and they are given again."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import sanderling
from sanderling.torch import EmbeddingCollection

BENCH: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "bench/hub_feeds.py"))
BATCHES, ROWS, DIM = 8, 50, 4
Push = Literal["backward", "step"]
SPEC = '[[feature]]\nname = "id"\nkey = "raw"\n'


@pytest.fixture
def hubs(tmp_path: Path) -> Iterator[str]:
    """A hub over rows in order, minibatch n with the ids from n * ROWS on."""
    rows = [f"{row % 2},{row}" for row in range(BATCHES * ROWS)]
    (tmp_path / "rows.csv").write_text("\n".join(["label,id", *rows]) + "\n")
    (tmp_path / "spec.toml").write_text(SPEC)
    command = ["hub", "--listen", "127.0.0.1:0", "--spec", "spec.toml", "--batch-size", str(ROWS), "--linger", "2s"]
    with BENCH["process"]([*command, "rows.csv"], tmp_path) as address:
        yield f"hub://{address}"


def collection(connection: sanderling.Connection, push: Push) -> EmbeddingCollection:
    connection.drop("lost/id")
    table = {"dim": DIM, "optimizer": {"type": "sgd", "lr": 0.1}}
    return EmbeddingCollection({"tables": {"lost/id": table}, "features": {"id": "lost/id"}}, connection, push=push)


def train(queue: sanderling.FeedQueue, rows: EmbeddingCollection, given: list[int], lose_at: int | None = None) -> None:
    """A loop; which minibatches it was given. Before the push of one, its table is lost at the server."""
    for batch in queue:
        number = int(batch.keys("id")[0]) // ROWS
        given.append(number)
        loss = rows(batch).values().sum()
        if number == lose_at:
            rows.finish()
            assert rows.connection is not None
            rows.connection.drop("lost/id")
        loss.backward()
        if rows.push == "step":
            rows.step()


@pytest.mark.parametrize("push", ["backward", "step"])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("lose_at", [3, BATCHES - 1])
def test_a_minibatch_that_a_server_did_not_apply_is_given_to_the_trainer_started_anew(
    lose_at: int, ahead: bool, push: Push, hubs: str, one_server: str
) -> None:
    connection = sanderling.connect(one_server)
    given: list[int] = []
    rows = collection(connection, push)
    queue = sanderling.FeedQueue(sanderling.HubSource(hubs, threads=1), rows.native if ahead else None, depth=1)
    with pytest.raises(sanderling.Error, match="lost/id") as raised:
        train(queue, rows, given, lose_at)
    assert one_server in str(raised.value)
    assert isinstance(raised.value, sanderling.NotFoundError)
    # The traceback holds the loop, and that the queue.
    del queue, raised
    again: list[int] = []
    rows = collection(connection, push)
    train(
        sanderling.FeedQueue(sanderling.HubSource(hubs, threads=1), rows.native if ahead else None, depth=1),
        rows,
        again,
    )
    assert sorted(again) == list(range(lose_at, BATCHES)), given
