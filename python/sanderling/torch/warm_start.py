"""Beginning a deep run from a saved model: what is loaded, and what must not have changed since."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sanderling
from sanderling.torch import checkpoint
from sanderling.torch.deep_config import DeepConfig, with_new_names
from sanderling.torch.deep_run import DeepRun

# Sections that decide the shape of the dense part, and of the rows.
_SECTIONS = ("model", "label")
_MAY_CHANGE = {"table_budget", "dropout"}


def check_continued(config: DeepConfig, directory: Path, extra: Mapping[str, Any]) -> None:
    """Raise ModelError for a configuration that the saved model cannot be continued with; names what differs.

    The dense part reads every feature at a fixed place, so no feature may come or go.
    """
    now: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    before: dict[str, Any] = with_new_names(json.loads(json.dumps(extra["config"])))
    for section in _SECTIONS:
        ours, theirs = now.get(section) or {}, before.get(section) or {}
        for entry in sorted({*ours, *theirs} - _MAY_CHANGE):
            if ours.get(entry) != theirs.get(entry):
                raise sanderling.ModelError(
                    f"{directory}: {section}.{entry} is {ours.get(entry)!r} now, and was {theirs.get(entry)!r}: put it"
                    " back, or train without --from"
                )
    ours, theirs = _features(now), _features(before)
    for name in {**theirs, **ours}:
        if ours.get(name) != theirs.get(name):
            what = "is new" if name not in theirs else "is missing" if name not in ours else "changed"
            raise sanderling.ModelError(
                f"{directory}: feature {name!r} {what}, and a deep model reads the features that it began with: put it"
                " back, or train without --from"
            )


def begin_from(run: DeepRun, directory: Path) -> None:
    """Load model and optimizers of a run from a saved model; learning rates are those of the run's configuration."""
    settings = [{key: group[key] for key in ("lr", "weight_decay")} for group in run.dense.param_groups]
    checkpoint.load(directory, run.model, run.dense, run.model.emb, map_location="cpu")
    for group, setting in zip(run.dense.param_groups, settings, strict=True):
        group.update(setting)


def _features(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features by name, one entry per feature."""
    return {
        name: {key: value for key, value in feature.items() if key not in ("each", "name", "min_count")}
        for feature in config.get("feature", [])
        for name in feature.get("each") or [feature.get("name") or feature.get("column")]
    }
