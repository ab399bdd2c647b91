"""Default run names: an earlier run with another configuration keeps its directory.

Knows no training; the built-in learners name theirs alike.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import sanderling
from sanderling.torch import checkpoint
from sanderling.torch.deep_config import DeepConfig

# Largest number after a name.
_NUMBER_MAX = 9999


def named(config: DeepConfig, runs_dir: Path, *, resume: bool) -> DeepConfig:
    """The configuration with the first of NAME, NAME-2 and so on whose folder has no run, or one of this configuration.

    A run that is resumed gets the name of the run that it can go on from, if there is one.
    """
    for number in range(1, _NUMBER_MAX + 1):
        name = config.name if number == 1 else f"{config.name}-{number}"
        saved = _saved(runs_dir / name)
        if saved is None and resume and number > 1:
            return config
        if saved is None or _fits(config, saved, resume=resume):
            return dataclasses.replace(config, name=name)
    raise sanderling.ConfigError(
        f"{runs_dir / config.name}: {_NUMBER_MAX} runs of this name are there; remove some, or give this another name"
    )


def replaces(run_dir: Path) -> bool:
    """Whether a run that begins in this folder replaces an earlier one."""
    return _saved(run_dir) is not None


def _saved(run_dir: Path) -> dict[str, Any] | None:
    """The configuration of the run in a folder; none if there is none that can be read: the run itself says why."""
    for name in ("last", "model"):
        try:
            config: dict[str, Any] = checkpoint.read_extra(run_dir / name)["config"]
        except (sanderling.Error, OSError, KeyError):
            continue
        return config
    return None


def _fits(config: DeepConfig, saved: dict[str, Any], *, resume: bool) -> bool:
    if resume:
        return config.changed_since(saved, judged=False) is None
    plain = json.loads(json.dumps({**config.to_dict(), "name": saved.get("name")}))
    return bool(plain == json.loads(json.dumps(saved)))
