"""Names of the inputs of a configuration: paths, hubs, and the default name of a run; does not import torch."""

import re
from collections.abc import Mapping
from pathlib import Path

import sanderling

HUBS = "hub://"
"""Prefix of hub addresses."""


def run_name(train_inputs: list[str]) -> str:
    """Return the default run name from the first training file, by the rule of the built-in learners."""
    path = train_inputs[0] if train_inputs else ""
    stem = re.split(r"[.?]", re.split(r"[/\\]", path)[-1])[0]
    # Hubs have no file name.
    is_file = not path.startswith(HUBS) and any(c.isalnum() for c in stem)
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in stem) if is_file else "run"


def paths(value: object) -> list[str]:
    """Return a path or a list of paths as a list of text; ConfigError for other types."""
    if isinstance(value, str | Path):
        return [str(value)]
    if isinstance(value, list | tuple) and all(isinstance(path, str | Path) for path in value):
        return [str(path) for path in value]
    if isinstance(value, Mapping) and "by" in value:
        raise sanderling.ConfigError(
            "data.valid: rows are held out for lr, fm and ffm alone; name a file of held-out rows for a deep model"
        )
    raise sanderling.ConfigError(f"data: {value!r} is neither a path nor a list of paths")


def joined_hubs(inputs: list[str]) -> list[str]:
    """Join several hubs to one entry; ConfigError for files and hubs together."""
    hubs = [name for name in inputs if name.startswith(HUBS)]
    if not hubs:
        return inputs
    if len(hubs) != len(inputs):
        raise sanderling.ConfigError(f"data.train: {hubs[0]!r} and files: name files or hubs, not both")
    return [HUBS + ",".join(name.removeprefix(HUBS) for name in hubs)]
