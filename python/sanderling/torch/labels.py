"""Labels of a run: one or several of clicks, conversions and the like, or numbers for a regression.

A feed queue reads one label, 0 or 1. Further labels, and numbers, are read as numeric features of reserved names, which
no model sees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

import sanderling
from sanderling import _native

# Beginning of the name of a feature that is a label.
_PREFIX = "label:"


@dataclass
class LabelConfig:
    """One of several `[[label]]`."""

    name: str
    column: str
    threshold: float = 0.0
    """A number above it is positive."""
    weight: float = 1.0
    """Factor on the loss of this label."""


def labels_of(label: object) -> list[LabelConfig]:
    """Return the labels of a list `[[label]]`, none for a single `[label]`; ConfigError for wrong entries."""
    if not isinstance(label, list | tuple):
        return []
    known, found = {entry.name for entry in fields(LabelConfig)}, []
    for entry in label:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("column"), str):
            raise sanderling.ConfigError("label: each [[label]] needs a column")
        if unknown := set(entry) - known:
            raise sanderling.ConfigError(
                f"label.{min(unknown)}: a [[label]] has {', '.join(sorted(known))}; its column holds numbers"
            )
        found.append(LabelConfig(**{"name": entry["column"], **entry}))
        numbers = (found[-1].threshold, found[-1].weight)
        if not all(isinstance(number, int | float) and np.isfinite(number) for number in numbers) or numbers[1] < 0:
            raise sanderling.ConfigError(
                f"label {found[-1].name!r}: threshold and weight are numbers, weight from 0 on"
            )
    names = [one.name for one in found]
    if len(found) < 2 or len(set(names)) < len(names):
        raise sanderling.ConfigError("label: several [[label]] need different names; a single one is [label]")
    return found


def feed_spec(spec: Mapping[str, Any], *, is_regression: bool) -> dict[str, Any]:
    """Return the spec as a feed queue takes it: with a single label, and with the further ones as features."""
    label, found = spec.get("label"), dict(spec)
    labels = labels_of(label)
    if labels:
        found["label"] = {"column": labels[0].column, "threshold": float(labels[0].threshold)}
    hidden = [(one.name, one.column) for one in labels[1:]]
    if is_regression:
        column = label.get("column", "label") if isinstance(label, Mapping) else "label"
        hidden = [("value", str(column))]
        # A feature may not read the label's column. The queue looks for a label, which need not be there, elsewhere.
        found["label"] = {"column": _PREFIX}
    features = [{"name": _PREFIX + name, "column": column, "type": "numeric"} for name, column in hidden]
    if features:
        found["feature"] = [*found.get("feature", []), *features]
    return found


def is_label(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature of a spec is a label, which models do not see."""
    return str(feature.get("name", "")).startswith(_PREFIX)


def without_labels(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec without the features that are labels, for files that lack them."""
    return {**spec, "feature": [feature for feature in spec["feature"] if not is_label(feature)]}


class Targets:
    """Reads the labels of batches."""

    def __init__(self, labels: Sequence[LabelConfig], features: Sequence[Mapping[str, Any]]) -> None:
        """Take the labels of the configuration and the features of the queue's spec."""
        self._thresholds = [label.threshold for label in labels[1:]]
        self._keys = {feature["name"]: _native.value_key(feature) for feature in features if is_label(feature)}

    def numbers(self, batch: sanderling.Batch) -> npt.NDArray[np.float32]:
        """Return the numbers of the labels that are features, float32 [B, labels]; NaN if missing."""
        columns = np.full((len(self._keys), len(batch)), np.nan, np.float32)
        for column, (name, key) in zip(columns, self._keys.items(), strict=True):
            offsets, keys, values = batch.offsets(name), batch.keys(name), batch.values(name)
            # A skipped bad row has no key.
            rows = np.flatnonzero(offsets[1:] > offsets[:-1])
            rows = rows[keys[offsets[rows]] == key]
            column[rows] = 1.0 if values is None else values[offsets[rows]]
        return np.ascontiguousarray(columns.T)

    def classes(self, batch: sanderling.Batch) -> npt.NDArray[np.float32]:
        """Return all labels as 0 or 1, float32 [B, labels]; NaN if missing."""
        further = self.numbers(batch)
        classes = np.where(np.isnan(further), np.nan, further > np.array(self._thresholds, np.float32))
        both: npt.NDArray[np.float32] = np.c_[batch.labels, classes].astype(np.float32)
        return both
