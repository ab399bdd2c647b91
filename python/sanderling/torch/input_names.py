"""Names of the inputs of a configuration: paths, hubs, and the default name of a run; does not import torch."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def paths(entry: str, value: object) -> list[str]:
    """Return a path or a list of paths of `[data]` as a list of text; ConfigError for other types."""
    if isinstance(value, str | Path):
        return [str(value)]
    if isinstance(value, list | tuple) and all(isinstance(path, str | Path) for path in value):
        return [str(path) for path in value]
    raise sanderling.ConfigError(f"data.{entry}: {value!r} is neither a path nor a list of paths")


def held_out(entries: Mapping[str, object], seed: int) -> sanderling.Holdout:
    """Return the holdout of a table `data.valid`; ConfigError for unknown and missing entries."""
    known = ("fraction", "by", "column", "after")
    for name in entries:
        if name not in known:
            raise sanderling.ConfigError(f"data.valid.{name} is unknown; the entries are {', '.join(known)}")
    if "by" not in entries:
        raise sanderling.ConfigError('data.valid: by is missing: "hash", "time" or "random"')
    given: dict[str, Any] = {**entries, "seed": seed}
    return sanderling.Holdout(**given)


def test_sets(value: object) -> dict[str, list[str]]:
    """Return the files of each set of `data.test` by its name; ConfigError for a set without a name or a file."""
    if isinstance(value, Mapping):
        found = {str(name): paths(f"test.{name}", inputs) for name, inputs in sorted(value.items())}
    else:
        # One set needs no name.
        found = {"test": paths("test", value)}
    for name, inputs in found.items():
        if not name or not all(inputs) or not inputs:
            raise sanderling.ConfigError(f"data.test: the set {name!r} needs a name and a file")
    return found


def joined_hubs(inputs: list[str]) -> list[str]:
    """Join several hubs to one entry; ConfigError for files and hubs together."""
    hubs = [name for name in inputs if name.startswith(HUBS)]
    if not hubs:
        return inputs
    if len(hubs) != len(inputs):
        raise sanderling.ConfigError(f"data.train: {hubs[0]!r} and files: name files or hubs, not both")
    return [HUBS + ",".join(name.removeprefix(HUBS) for name in hubs)]
