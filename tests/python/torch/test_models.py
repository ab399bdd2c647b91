"""Click models against their equations, written out with loops, and against what every model must do."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sanderling._native import DEEP_MODELS, RETRIEVAL_MODELS
from sanderling.torch import click_model, retrieval_model
from sanderling.torch.models import DCN, DIN, DLRM, DCNv2, DeepFM, WideDeep

BATCH, FIELDS, DIM, DENSE, STEPS = 5, 3, 4, 2, 6

MODELS: list[Callable[..., nn.Module]] = list(click_model.MODELS.values())


def test_every_model_that_may_be_named_is_there() -> None:
    assert [*click_model.MODELS, *retrieval_model.MODELS] == list(DEEP_MODELS)
    assert list(retrieval_model.MODELS) == list(RETRIEVAL_MODELS)


def make(kind: Callable[..., nn.Module], dense: int, **sizes: Any) -> nn.Module:
    torch.manual_seed(1)
    extra = {"candidate": 1} if kind is DIN else {}
    return kind(FIELDS, DIM, dense=dense, hidden=[6, 5], **extra, **sizes)


def inputs(model: nn.Module, dense: int) -> list[Any]:
    """Random rows, dense values and, for DIN, histories of 0 to STEPS steps."""
    torch.manual_seed(2)
    width = model.row_width
    assert isinstance(width, int)
    rows: list[Any] = [torch.randn(BATCH, FIELDS, width), torch.randn(BATCH, dense) if dense else None]
    if isinstance(model, DIN):
        lengths = torch.tensor([0, 1, 3, STEPS, 2])
        rows += [torch.randn(BATCH, STEPS, width), torch.arange(STEPS) < lengths.unsqueeze(1)]
    return rows


@pytest.mark.parametrize("dense", [0, DENSE])
@pytest.mark.parametrize("kind", MODELS)
def test_logits_depend_on_every_input_and_parameter(kind: Callable[..., nn.Module], dense: int) -> None:
    model = make(kind, dense, dropout=0.1, batch_norm=True)
    given = inputs(model, dense)
    given[0].requires_grad_()
    if dense:
        given[1].requires_grad_()
    logits = model(*given)
    assert logits.shape == (BATCH,)
    logits.square().sum().backward()
    assert (given[0].grad.abs().sum(0) > 0).all()
    if dense:
        assert (given[1].grad.abs().sum(0) > 0).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    # Scoring does not depend on the rest of the batch.
    model.eval()
    one = [None if part is None else part[:1].detach() for part in given]
    torch.testing.assert_close(model(*one), model(*given)[:1], rtol=1e-4, atol=1e-5)


def check(kind: Callable[..., nn.Module], expected: Callable[[Any, Tensor, Tensor], Tensor], **sizes: Any) -> None:
    """The logits of a sample equal those of an equation over its rows [F, width] and dense values [N]."""
    model = make(kind, DENSE, **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
        rows, dense = inputs(model, DENSE)[:2]
        got = model(rows, dense)
        for sample in range(BATCH):
            torch.testing.assert_close(got[sample], expected(model, rows[sample], dense[sample]), rtol=1e-4, atol=1e-4)


def joined(rows: Tensor, dense: Tensor) -> Tensor:
    return torch.cat([*rows, dense])


def linear(model: Any, rows: Tensor, dense: Tensor) -> Tensor:
    score: Tensor = sum((row[0] for row in rows), model.bias)
    for weight, value in zip(model.weight, dense, strict=True):
        score = score + weight * value
    return score


def test_wide_deep() -> None:
    def expected(model: Any, rows: Tensor, dense: Tensor) -> Tensor:
        deep: Tensor = model.deep(joined(rows[:, 1:], dense)).squeeze()
        return linear(model.wide, rows, dense) + deep

    check(WideDeep, expected)


def test_deepfm() -> None:
    def expected(model: Any, rows: Tensor, dense: Tensor) -> Tensor:
        score: Tensor = linear(model.linear, rows, dense) + model.deep(joined(rows[:, 1:], dense)).squeeze()
        for one, other in itertools.combinations(rows[:, 1:], 2):
            score = score + one @ other
        return score

    check(DeepFM, expected)


def test_dcn() -> None:
    def expected(model: Any, rows: Tensor, dense: Tensor) -> Tensor:
        first = x = joined(rows, dense)
        for layer in model.cross:
            x = first * (x @ layer.weight.weight[0]) + layer.bias + x
        score: Tensor = model.score(torch.cat([x, model.deep(first)])).squeeze()
        return score

    check(DCN, expected, cross_layers=2)


def test_dcnv2() -> None:
    def expected(model: Any, rows: Tensor, dense: Tensor) -> Tensor:
        first = x = joined(rows, dense)
        for layer in model.cross:
            x = first * (layer.weight.weight @ x + layer.weight.bias) + x
        score: Tensor = model.score(torch.cat([x, model.deep(first)])).squeeze()
        return score

    check(DCNv2, expected, cross_layers=2)


def test_dlrm() -> None:
    def expected(model: Any, rows: Tensor, dense: Tensor) -> Tensor:
        below = model.bottom(dense)
        vectors = [below, *rows]
        products = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        score: Tensor = model.top(torch.cat([below, torch.stack(products)])).squeeze()
        return score

    check(DLRM, expected, bottom=[3])


def test_din() -> None:
    model: Any = make(DIN, DENSE)
    rows, dense, history, mask = inputs(model, DENSE)
    got = model(rows, dense, history, mask)
    for sample in range(BATCH):
        candidate, interest = rows[sample, 1], torch.zeros(DIM)
        for step in history[sample][mask[sample]]:
            together = torch.cat([step, candidate, step - candidate, step * candidate])
            interest = interest + model.attention.mlp(together) * step
        expected = model.mlp(torch.cat([*rows[sample], interest, dense[sample]])).squeeze()
        torch.testing.assert_close(got[sample], expected, rtol=1e-4, atol=1e-5)
    # What stands after the end of a history does not matter.
    other = torch.where(mask.unsqueeze(2), history, 99.0)
    torch.testing.assert_close(model(rows, dense, other, mask), got)
