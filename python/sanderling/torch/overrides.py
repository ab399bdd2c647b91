"""Entries of a configuration that the command line sets (`--set model.dim=16`), by the rules of the native command."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import sanderling


def set_entries(config: dict[str, Any], entries: Sequence[str]) -> None:
    """Set `SECTION.ENTRY=VALUE` in a configuration, in place; a value that is no TOML is text.

    Of an array of tables, as `[[feature]]` makes it, an element is chosen by its name. Raises ConfigError for an entry
    that cannot be read or set.
    """
    for text in entries:
        name, is_there, value = text.partition("=")
        try:
            try:
                entry = tomllib.loads(f"{name} = {value}")
            except tomllib.TOMLDecodeError:
                entry = tomllib.loads(f"{name} = {json.dumps(value.strip())}")
        except tomllib.TOMLDecodeError:
            is_there = ""
        if not is_there:
            raise sanderling.ConfigError(f"--set {text}: must be ENTRY=VALUE, such as model.dim=16")
        try:
            _merge(config, entry, "")
        except ValueError as error:
            raise sanderling.ConfigError(f"--set {text}: {error}") from error


def _merge(into: dict[str, Any], entry: Mapping[str, Any], path: str) -> None:
    for name, value in entry.items():
        here = f"{path}.{name}" if path else name
        if not isinstance(value, Mapping):
            into[name] = value
            continue
        inner = into.setdefault(name, {})
        if isinstance(inner, dict):
            _merge(inner, value, here)
        elif isinstance(inner, list):
            _merge_named(inner, value, here)
        else:
            raise ValueError(f"{here} is no table")


def _merge_named(elements: list[Any], entry: Mapping[str, Any], path: str) -> None:
    for name, value in entry.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}.{name} is no table")
        found = next((one for one in elements if isinstance(one, dict) and one.get("name") == name), None)
        if found is None:
            raise ValueError(f"no [[{path}]] has the name {name!r}; members of `each` have none of their own")
        _merge(found, value, f"{path}.{name}")
