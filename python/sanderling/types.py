"""Types of the dictionaries that Sanderling returns, for type checkers and readers."""

from typing import NotRequired, TypedDict

__all__ = ["Evaluation", "KnownKeys", "Metrics", "Neighbour"]


class Metrics(TypedDict):
    """Metrics over a set of rows, weighted by the row weights."""

    examples: int
    """Number of rows."""
    auc: float
    """Area under the ROC curve, ties count half; NaN with a single class."""
    logloss: float
    """Mean logistic loss, natural logarithm."""
    prob_mean: float
    """Mean predicted probability."""
    real_mean: float
    """Share of positives."""
    normalized_entropy: float
    """`logloss` divided by the logloss of predicting `real_mean` for every row (He et al. 2014).

    NaN with a single class.
    """
    auc_exact: bool
    """Whether `auc` is exact; False if it was computed from bins, because there were too many rows to keep."""
    mse: NotRequired[float]
    """Mean squared error; of a regression only, whose `auc` and `logloss` are NaN and whose means are of numbers."""
    rmse: NotRequired[float]
    """Root of `mse`."""
    mae: NotRequired[float]
    """Mean absolute error; of a regression only."""


class KnownKeys(TypedDict):
    """Coverage of one feature: how many of its keys in scored rows have a row in the model."""

    feature: str
    """Name of the feature."""
    occurrences: int
    """Number of keys in the scored rows, repeated keys included."""
    known: int
    """Number of these keys that have a row in the model; unknown keys count as zero."""


class Neighbour(TypedDict):
    """A row that is near another one, as `Model.similar` returns it."""

    key: int
    """Key of the row."""
    name: str | None
    """Value that the key stands for; None if the model has no name for it (`[names]`)."""
    score: float
    """Cosine or dot product with the row that was asked for."""
    frequency: int
    """Number of pushes of the key."""


class Evaluation(Metrics):
    """Metrics over labelled files, as `Model.evaluate` returns them."""

    auc_low: float
    """Lower bound of the 95 % confidence interval of `auc` (DeLong et al. 1988); NaN if there is none."""
    auc_high: float
    """Upper bound of the 95 % confidence interval of `auc`; NaN if there is none."""
    positives: int
    """Number of rows with a positive label."""
    bad_rows: int
    """Number of unreadable rows, skipped as `on_bad_row` allows."""
    known: list[KnownKeys]
    """Coverage of the keys, one entry per feature."""
    warnings: list[str]
    """Warnings about the predictions."""


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)
