"""Runs of models with users and items: they learn, rank, are stopped and resumed, and are applied by the commands."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sanderling
import sanderling.torch
from sanderling._native import cli_main
from sanderling.torch.models import MF, TwoTower
from sanderling.torch.negatives import NegativeSampler
from sanderling.torch.ragged import Ragged

USERS, ITEMS, GROUPS = 60, 40, 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users who choose items of their group, most of them for training, the rest for validation; also as lists."""
    folder = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(1)
    parts: dict[str, list[tuple[int, int]]] = {"train": [], "valid": []}
    for user in range(USERS):
        items = rng.permutation([item for item in range(ITEMS) if item % GROUPS == user % GROUPS])
        parts["train"] += [(user, int(item)) for item in items[:7]]
        parts["valid"] += [(user, int(item)) for item in items[7:9]]
    for name, pairs in parts.items():
        rows = [f"u{user}\ti{item}\tk{item % GROUPS}\t{item / ITEMS}\n" for user, item in pairs]
        (folder / f"{name}.tsv").write_text("user\titem\tkind\tprice\n" + "".join(rows))
        lists = [f"u{user}\t" + " ".join(f"i{item}" for of, item in pairs if of == user) for user in range(USERS)]
        (folder / f"{name}_lists.tsv").write_text("user\titem\n" + "\n".join(lists) + "\n")
    return folder


@pytest.fixture(autouse=True)
def in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def config(kind: str = "mf", **more: Any) -> dict[str, Any]:
    two = {"user": ["user"], "item": ["item", "kind", "price"], "hidden": [16, 8]} if kind == "two_tower" else {}
    features: list[dict[str, Any]] = [{"name": "user"}, {"name": "item"}]
    if kind == "two_tower":
        features += [{"name": "kind"}, {"name": "price", "type": "numeric"}]
    return {
        "name": kind,
        "seed": 1,
        "data": {"train": "train.tsv", "valid": "valid.tsv"},
        "model": {"type": kind, "dim": 8, "init_std": 0.1, **two, **more.pop("model", {})},
        "optimizer": {"type": "adam", "lr": 0.02},
        "dense_optimizer": {"lr": 0.01},
        "train": {"batch_size": 64, "passes": 15, "threads": 1, "top_k": [2, 10], **more.pop("train", {})},
        "feature": features,
        **more,
    }


@pytest.mark.parametrize(
    ("kind", "loss", "sampling"),
    [
        ("mf", "bpr", {}),
        ("mf", "logloss", {"by": "popularity", "per_positive": 3}),
        ("mf", "softmax", {"per_positive": 8}),
        ("two_tower", "softmax", {"by": "in_batch"}),
        ("two_tower", "bpr", {"per_positive": 2}),
    ],
)
def test_every_loss_learns_whose_items_are_whose(
    kind: str, loss: str, sampling: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(kind, train={"loss": loss, "passes": 25}, sampling=sampling)
    summary = sanderling.torch.train(settings, runs_dir=tmp_path).summary
    # Of 33 items that a user has not seen in training, three are of its group, and two of these are relevant.
    assert summary["recall@10"] > 0.9
    assert summary["ndcg@2"] > 0.5
    assert summary["auc"] is None
    assert summary["measured_on"] == "valid"


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return sanderling.torch.train(config(), runs_dir="runs").run_dir


def by_hand(model: sanderling.torch.RetrievalModel) -> dict[str, float]:
    """Metrics of the validation pairs from all scores, in float64."""
    table = {name: model.emb.tables[name] for name in ("user", "item")}
    pairs = {
        name: [line.split("\t")[:2] for line in Path(f"{name}.tsv").read_text().splitlines()[1:]]
        for name in ("train", "valid")
    }
    queue = sanderling.FeedQueue(
        sanderling.FileSource("train.tsv", {"feature": [{"name": "user"}, {"name": "item"}]}, train=False)
    )
    keys: dict[str, dict[str, np.uint64]] = {"user": {}, "item": {}}
    row = 0
    for batch in queue:
        for at in range(len(batch)):
            for name, text in zip(("user", "item"), pairs["train"][row + at], strict=True):
                keys[name][text] = batch.keys(name)[at]
        row += len(batch)
    names = sorted(keys["item"])
    items = table["item"].pull(np.array([keys["item"][name] for name in names])).astype(np.float64)
    ranked, relevant = [], []
    for user in sorted(keys["user"]):
        scores = items @ table["user"].pull(np.array([keys["user"][user]]))[0].astype(np.float64)
        for of, item in pairs["train"]:
            if of == user:
                scores[names.index(item)] = -np.inf
        ranked.append(np.argsort(-scores)[:10])
        relevant.append([names.index(item) for of, item in pairs["valid"] if of == user])
    return sanderling.ranking_metrics(np.stack(ranked), relevant, [2, 10])


def test_validation_ranks_all_items_that_were_not_seen(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, _ = sanderling.torch.open_model(trained / "model")
    assert isinstance(model, sanderling.torch.RetrievalModel)
    expected = by_hand(model)
    summary = json.loads((trained / "summary.json").read_text())
    for name in ("recall@2", "ndcg@10", "hr@2", "mrr@10", "precision@10", "map@10"):
        assert summary[name] == pytest.approx(expected[name], abs=1e-9), name
    capfd.readouterr()
    assert cli_main(["sanderling", "eval", str(trained / "model"), "valid.tsv", "--json", "-q"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [entry["known"] == entry["occurrences"] for entry in found.pop("known")] == [True, True]
    assert found.pop("warnings") == []
    assert found == pytest.approx(expected, abs=1e-9)
    assert cli_main(["sanderling", "predict", str(trained / "model"), "valid.tsv", "-q"]) == 0
    scores = np.array(capfd.readouterr().out.split(), np.float32)
    np.testing.assert_allclose(scores, sanderling.torch.predict(trained / "model", "valid.tsv"), rtol=1e-6)
    assert cli_main(["sanderling", "inspect", str(trained / "model"), "--json"]) == 0
    assert {table["rows"] for table in json.loads(capfd.readouterr().out)["tables"]} == {USERS, ITEMS}


def test_lists_of_items_are_pairs(trained: Path, tmp_path: Path) -> None:
    settings = config(data={"train": "train_lists.tsv", "valid": "valid_lists.tsv"}, train={"batch_size": 9})
    settings["feature"][1] |= {"type": "multi", "separator": " "}
    summary = sanderling.torch.train(settings, runs_dir=tmp_path).summary
    # The rows of a minibatch are users here, of seven pairs each.
    assert summary["recall@10"] > 0.9
    lists, _ = sanderling.torch.open_model(tmp_path / "mf/model")
    pairs, _ = sanderling.torch.open_model(trained / "model")
    assert isinstance(lists, sanderling.torch.RetrievalModel)
    assert isinstance(pairs, sanderling.torch.RetrievalModel)
    for name in ("counts", "users"):
        np.testing.assert_array_equal(getattr(lists.catalogue, name).shape, getattr(pairs.catalogue, name).shape)
    assert len(lists.catalogue.codes) == len(pairs.catalogue.codes) == USERS * 7


def test_a_resumed_run_goes_on_as_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    draw = NegativeSampler.draw

    def seen(*arguments: Any) -> Any:
        found = draw(*arguments)
        drawn.append((arguments[1].tolist(), arguments[2].tolist(), found.tolist()))
        return found

    monkeypatch.setattr(NegativeSampler, "draw", seen)
    whole = sanderling.torch.train(config(train={"passes": 4}), runs_dir=tmp_path / "whole")
    of_whole, drawn[:] = list(drawn), []
    sanderling.torch.train(config(train={"passes": 4, "max_steps": 9}), runs_dir=tmp_path / "parts")
    assert len(drawn) == 9
    parts = sanderling.torch.train(config(train={"passes": 4}), runs_dir=tmp_path / "parts", resume=True)
    assert parts.summary["steps"] == whole.summary["steps"] == len(of_whole)
    assert drawn == of_whole, "equal pairs and negatives in every step"
    # A lookup may miss the last pushes, so the scores are not equal bit by bit.
    assert parts.summary["ndcg@10"] == pytest.approx(whole.summary["ndcg@10"], abs=0.05)


def test_rows_may_be_on_servers(two_servers: str, tmp_path: Path) -> None:
    here = sanderling.torch.train(config(train={"passes": 3}), runs_dir=tmp_path / "here").summary
    away = sanderling.torch.train(config(train={"passes": 3}), runs_dir=tmp_path / "away", ps=two_servers).summary
    assert away["ndcg@10"] == pytest.approx(here["ndcg@10"], abs=0.05)
    model, _ = sanderling.torch.open_model(tmp_path / "away/mf/model")
    assert len(model.emb.tables["item"]) == ITEMS


def test_unknown_users_and_items(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("user\titem\nnobody\ti3\nu0\tnothing\nu1\ti1\n")
    found = sanderling.torch.FileScores(trained / "model").ranking(tmp_path / "new.tsv", [10])
    # An unknown item is never found; u1 may have seen i1 in training, and is then left out.
    assert found["users"] in (2.0, 3.0)
    assert found["recall@10"] <= 2 / 3


def test_lists_that_run_out_of_items_end_with_none(trained: Path) -> None:
    model, _ = sanderling.torch.open_model(trained / "model")
    assert isinstance(model, sanderling.torch.RetrievalModel)
    users = {"user": Ragged.single(model.catalogue.users[:3])}
    ((ids, scores),) = model.ranked(users, ITEMS + 5)
    assert ((ids >= 0).sum(1) == ITEMS - 7).all()
    assert np.isneginf(scores[ids < 0]).all()
    (kept,) = [ids for ids, _ in model.ranked(users, ITEMS, exclude_seen=False)]
    assert (np.sort(kept, 1) == np.arange(ITEMS)).all()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"data": {"train": "hub://a:1"}}, "reads files, not hubs"),
        ({"train": {"top_k": []}}, "train.top_k"),
        ({"train": {"loss": "mse"}}, "train.loss = 'mse'"),
        ({"train": {"monitor": "ndcg@7"}}, "train.monitor"),
        ({"sampling": {"by": "luck"}}, "sampling.by"),
        ({"sampling": {"by": "in_batch"}}, "only with train.loss"),
        ({"sampling": {"per_positive": 0}}, "sampling.per_positive"),
        ({"sampling": {"power": float("nan")}}, "sampling.power"),
        ({"model": {"item": ["user"]}}, "none in common"),
        ({"model": {"item": ["nothing"]}}, "no feature 'nothing'"),
        ({"model": {"hidden": [4]}}, "model.hidden"),
        ({"model": {"dropout": 0.5}}, "mf has none"),
    ],
)
def test_what_does_not_fit_is_refused(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(sanderling.ConfigError, match=words):
        sanderling.torch.train(config(**more), runs_dir=tmp_path)


def test_vectors_of_both_sides_are_those_of_the_equations() -> None:
    torch.manual_seed(1)
    model = TwoTower((1, 2), 3, dense=(0, 1), hidden=[5, 4], normalize=True)
    rows, dense = torch.randn(6, 2, 3), torch.randn(6, 1)
    tower: Any = model.towers[1]
    hidden = torch.relu(torch.cat([rows.flatten(1), dense], 1) @ tower.layers[0].weight.T + tower.layers[0].bias)
    vectors = hidden @ tower.vector.weight.T + tower.vector.bias
    torch.testing.assert_close(model(1, rows, dense), vectors / vectors.norm(dim=1, keepdim=True))
    torch.testing.assert_close(MF((1, 1), 3)(0, rows[:, :1], None), rows[:, 0])
    with pytest.raises(ValueError, match="take two_tower"):
        MF((1, 2), 3)
