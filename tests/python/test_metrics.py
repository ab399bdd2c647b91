"""`sanderling.metrics` against scikit-learn: ties, weights, extreme logits, one class."""

import math

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
    got = sanderling.metrics(labels, logits, weights)
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
    got = sanderling.metrics(np.array(labels, dtype=np.float32), np.array(logits, dtype=np.float32))
    assert got["auc"] == pytest.approx(auc, nan_ok=True)
    assert not math.isinf(got["logloss"])


def test_lengths_must_agree() -> None:
    with pytest.raises(sanderling.LengthError, match="3 labels, 2 logits"):
        sanderling.metrics(np.zeros(3, dtype=np.float32), np.zeros(2, dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", math.nan),
        ("labels", 0.5),
        ("labels", -1.0),
        ("labels", 2.0),
        ("logits", math.nan),
        ("weights", -1.0),
        ("weights", math.inf),
    ],
)
def test_what_is_no_label_logit_or_weight_is_refused(name: str, value: float) -> None:
    arrays = {which: np.ones(3, dtype=np.float32) for which in ("labels", "logits", "weights")}
    arrays[name][1] = value
    with pytest.raises(ValueError, match=rf"{name}\[1\] = "):
        sanderling.metrics(**arrays)


@pytest.mark.parametrize("name", ["labels", "logits", "weights"])
def test_an_array_of_another_type_is_named(name: str) -> None:
    arrays = {which: np.ones(3, dtype=np.float32) for which in ("labels", "logits", "weights")}
    arrays[name] = np.ones(3)  # type: ignore[assignment]
    with pytest.raises(TypeError, match=rf"{name} must be .* float32 \[n\], not float64 \[3\]"):
        sanderling.metrics(**arrays)
