"""Shapes of the dictionaries that Sanderling returns; for type checkers and readers, no code."""

from typing import TypedDict

__all__ = ["Evaluation", "KnownKeys", "Metrics"]


class Metrics(TypedDict):
    """Metrics over a set of rows, all of them weighted."""

    examples: int
    """Rows."""
    auc: float
    """Area under the ROC curve, ties count half; NaN if there is only one class."""
    logloss: float
    """Mean logistic loss, natural logarithm."""
    prob_mean: float
    """Mean predicted probability."""
    real_mean: float
    """Share of positives."""
    normalized_entropy: float
    """`logloss` over that of predicting `real_mean` for every row (He et al. 2014); NaN if there is only one class."""
    auc_exact: bool
    """Whether `auc` is exact, or from bins because there were too many rows to keep."""


class KnownKeys(TypedDict):
    """The keys of one feature in scored rows."""

    feature: str
    """The feature."""
    occurrences: int
    """Occurrences of its keys."""
    known: int
    """Occurrences whose key has a row in the model; the others count as zero."""


class Evaluation(Metrics):
    """Metrics over files."""

    auc_low: float
    """Lower end of the 95 % confidence interval of `auc` (DeLong et al. 1988); NaN if there is none."""
    auc_high: float
    """Its upper end."""
    positives: int
    """Rows with a positive label."""
    bad_rows: int
    """Rows that could not be read and were left out, as `on_bad_row` says."""
    known: list[KnownKeys]
    """By feature, how many of its keys the model knows."""
    warnings: list[str]
    """Warnings about the predictions."""


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
