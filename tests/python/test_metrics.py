"""`sanderling.metrics` against scikit-learn: ties, weights, extreme predictions, one class."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import sanderling


@pytest.mark.parametrize("distinct", [2, 5, 100, 10**6], ids=lambda distinct: f"{distinct}_scores")
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("positives", [0.5, 0.02])
def test_metrics_are_those_of_scikit_learn(distinct: int, weighted: bool, positives: float) -> None:
    random = np.random.default_rng(distinct)
    labels = (random.random(20_000) < positives).astype(np.float32)
    # Few distinct scores are many ties, between the classes too.
    scores = np.round((random.normal(size=20_000) + labels) * distinct / 6) * 6 / distinct
    logits = scores.astype(np.float32)
    weights = random.uniform(0.1, 3.0, 20_000).astype(np.float32) if weighted else None
    got = sanderling.metrics(labels, logits, weights, from_logits=True)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert got["examples"] == 20_000
    assert got["auc_exact"]
    assert got["auc"] == pytest.approx(roc_auc_score(labels, logits, sample_weight=weights), abs=1e-9)
    assert got["logloss"] == pytest.approx(log_loss(labels, probabilities, sample_weight=weights), rel=1e-5)
    assert got["prob_mean"] == pytest.approx(np.average(probabilities, weights=weights), rel=1e-5)
    assert got["real_mean"] == pytest.approx(np.average(labels, weights=weights), rel=1e-6)
    base = log_loss(labels, np.full(20_000, np.average(labels, weights=weights)), sample_weight=weights)
    assert got["normalized_entropy"] == pytest.approx(got["logloss"] / base, rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "logits", "auc"),
    [
        ([0, 1], [0, 0], 0.5),
        ([0, 1], [0, 1], 1.0),
        ([1, 0], [0, 1], 0.0),
        ([0, 1, 0, 1], [0, 0, 0, 1], 0.75),
        ([0, 1], [-1e30, 1e30], 1.0),
        ([0, 1], [-0.0, 0.0], 0.5),
        ([1, 1], [0, 1], math.nan),
        ([], [], math.nan),
    ],
)
def test_small_cases(labels: list[float], logits: list[float], auc: float) -> None:
    got = sanderling.metrics(np.array(labels, dtype=np.float32), np.array(logits, dtype=np.float32), from_logits=True)
    assert got["auc"] == pytest.approx(auc, nan_ok=True)
    assert not math.isinf(got["logloss"])


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_metrics_take_what_predict_gives(weighted: bool) -> None:
    random = np.random.default_rng(3)
    labels = random.random(5_000) < 0.3
    # Single precision, with many ties and with certain predictions, some of them wrong.
    probabilities = np.round(random.beta(2, 3, 5_000), 2).astype(np.float32)
    probabilities[:3] = [0.0, 1.0, 1e-30]
    weights = random.uniform(0.1, 3.0, 5_000).astype(np.float32) if weighted else None
    got = sanderling.metrics(labels.astype(np.float32), probabilities, weights)
    assert got["auc"] == pytest.approx(roc_auc_score(labels, probabilities, sample_weight=weights), abs=1e-9)
    both = np.stack([1 - probabilities.astype(np.float64), probabilities], 1)
    clipped = np.clip(both, 2.0**-23, 1 - 2.0**-23)
    loss = np.average(-np.log(clipped[np.arange(5_000), labels.astype(int)]), weights=weights)
    assert got["logloss"] == pytest.approx(loss, rel=1e-6)
    assert got["logloss"] == pytest.approx(log_loss(labels, probabilities, sample_weight=weights), rel=1e-5)
    assert got["prob_mean"] == pytest.approx(np.average(probabilities, weights=weights), rel=1e-6)


@pytest.mark.parametrize("kind", ["bool", "int64", "uint8", "float32", "float64"])
def test_labels_and_probabilities_may_be_of_any_numeric_type(kind: str) -> None:
    labels, probabilities = np.array([0, 1, 1]).astype(kind), np.array([0.1, 0.6, 0.4])
    expected = sanderling.metrics(labels.astype(np.float32), probabilities.astype(np.float32))
    assert sanderling.metrics(labels, probabilities) == expected
    # A view whose elements do not lie side by side.
    assert sanderling.metrics(np.repeat(labels, 2)[::2], probabilities) == expected


def test_logits_are_not_taken_for_probabilities() -> None:
    labels, logits = np.array([0, 1, 1]), np.array([0.3, -2.5, 4.0])
    with pytest.raises(ValueError, match=r"probabilities\[1\] = -2.5: .* say from_logits=True"):
        sanderling.metrics(labels, logits)
    assert sanderling.metrics(labels, logits, from_logits=True)["auc"] == 0.5


def test_lengths_must_agree() -> None:
    with pytest.raises(sanderling.LengthError, match="3 labels, 2 probabilities"):
        sanderling.metrics(np.zeros(3, dtype=np.float32), np.zeros(2, dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", math.nan),
        ("labels", 0.5),
        ("labels", -1.0),
        ("labels", 2.0),
        ("probabilities", math.nan),
        ("probabilities", -1e-6),
        ("probabilities", 1.0001),
        ("probabilities", math.inf),
        ("logits", math.nan),
        ("weights", -1.0),
        ("weights", math.inf),
    ],
)
def test_what_is_no_label_prediction_or_weight_is_refused(name: str, value: float) -> None:
    predictions = "logits" if name == "logits" else "probabilities"
    arrays = {which: np.ones(3, dtype=np.float32) for which in ("labels", predictions, "weights")}
    arrays[name][1] = value
    with pytest.raises(ValueError, match=rf"{name}\[1\] = "):
        sanderling.metrics(
            arrays["labels"], arrays[predictions], arrays["weights"], from_logits=predictions == "logits"
        )


@pytest.mark.parametrize("name", ["labels", "probabilities", "weights"])
@pytest.mark.parametrize(
    ("given", "found"), [(np.ones((3, 1)), r"float64 \[3, 1\]"), (np.array(["a"] * 3), "<U1"), ([1, 1, 1], "list")]
)
def test_what_is_no_vector_of_numbers_is_named(name: str, given: object, found: str) -> None:
    arrays: dict[str, Any] = {which: np.ones(3) for which in ("labels", "probabilities", "weights")}
    arrays[name] = given
    with pytest.raises(TypeError, match=rf"{name} must be a numpy array of numbers \[n\], not {found}"):
        sanderling.metrics(**arrays)
