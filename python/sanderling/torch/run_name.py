"""Default run names, numbered so that a run with another configuration keeps its directory.

The built-in learners use equal names.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import sanderling
from sanderling.torch import checkpoint
from sanderling.torch.deep_config import DeepConfig

# Largest number appended to a name.
_NUMBER_MAX = 9999


def named(config: DeepConfig, runs_dir: Path, *, resume: bool) -> DeepConfig:
    """Return the configuration with the first free name of NAME, NAME-2 and so on.

    A name is free if its directory in `runs_dir` has no run, or a run with this configuration. With `resume`, it is the
    name of the first run that can be resumed with this configuration, otherwise NAME. Raises ConfigError without a free
    name.
    """
    for number in range(1, _NUMBER_MAX + 1):
        name = config.name if number == 1 else f"{config.name}-{number}"
        saved = _saved(runs_dir / name)
        if saved is None and resume and number > 1:
            return config
        if saved is None or _fits(config, saved, resume=resume):
            return dataclasses.replace(config, name=name)
    raise sanderling.ConfigError(
        f"{runs_dir / config.name}: {_NUMBER_MAX} runs have this name; remove some, or choose another name"
    )


def replaces(run_dir: Path) -> bool:
    """Return whether a run that begins in this directory replaces an earlier one."""
    return _saved(run_dir) is not None


def _saved(run_dir: Path) -> dict[str, Any] | None:
    """Return the configuration of the run in a directory, empty for another kind of model; None without a run."""
    for name in ("last", "model"):
        try:
            config: dict[str, Any] = checkpoint.read_extra(run_dir / name)["config"]
        except (sanderling.Error, OSError, KeyError):
            continue
        return config
    is_other = any((run_dir / name / "manifest.json").exists() for name in ("last", "model"))
    return {} if is_other else None


def _fits(config: DeepConfig, saved: dict[str, Any], *, resume: bool) -> bool:
    if not saved:
        return False
    if resume:
        return config.changed_since(saved, judged=False) is None
    plain = json.loads(json.dumps({**config.to_dict(), "name": saved.get("name")}))
    return bool(plain == json.loads(json.dumps(saved)))
