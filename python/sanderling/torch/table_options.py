"""Options of tables in a configuration, `[table.NAME]`, as arguments of `sanderling.Table`; does not import torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import sanderling
from sanderling.torch.quantity import size_bytes

EVERY_TABLE = "*"
"""Name of the options of every table without options of its own."""

_AFTER = (2, 255)


def check_tables(tables: Mapping[str, Mapping[str, Any]], features: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for options of a table that no feature has, and for wrong options."""
    known = {_table_of(feature) for feature in expanded(features)}
    for name in tables:
        if known and name not in known and name != EVERY_TABLE:
            raise sanderling.ConfigError(f"table.{name}: no feature has this table")
        table_options(tables, features, name)


def table_options(
    tables: Mapping[str, Mapping[str, Any]], features: Sequence[Mapping[str, Any]], name: str
) -> dict[str, Any]:
    """Return the options of a table as arguments of `sanderling.Table`; ConfigError names a wrong entry."""
    options = dict(tables.get(name, tables.get(EVERY_TABLE, {})))
    made: dict[str, Any] = {}
    counts = {feature.get("min_count", 1) for feature in expanded(features) if _table_of(feature) == name}
    if len(counts) > 1:
        raise sanderling.ConfigError(f"table {name!r}: its features count keys together: give all one min_count")
    if (count := max(counts, default=1)) > 1:
        made["admission"] = {"type": "sightings", "sightings": count}
    if "budget" in options:
        made["budget_bytes"] = size_bytes(f"table.{name}.budget", options.pop("budget"))
    admission = options.pop("admission", None)
    if isinstance(admission, Mapping) and "after" in admission:
        if unknown := set(admission) - {"after", "filter"}:
            raise sanderling.ConfigError(f"table.{name}.admission: unknown {', '.join(sorted(unknown))}")
        if not (type(after := admission["after"]) is int and _AFTER[0] <= after <= _AFTER[1]):
            raise sanderling.ConfigError(
                f"table.{name}.admission.after = {after!r}: must be a whole number from {_AFTER[0]} to {_AFTER[1]}"
            )
        size = {}
        if "filter" in admission:
            size["filter_bytes"] = size_bytes(f"table.{name}.admission.filter", admission["filter"])
        admission = {"type": "sightings", "sightings": admission["after"], **size}
    if admission is not None:
        made["admission"] = admission
    made |= {key: options.pop(key) for key in ("dtype", "eviction", "packing") if key in options}
    if "memory" in options:
        raise sanderling.ConfigError(
            f"table.{name}.memory: deep models are trained in private memory; leave it out, or use ps --kept"
        )
    if options:
        raise sanderling.ConfigError(
            f"table.{name}.{next(iter(options))} is unknown; "
            "the entries are budget, dtype, admission, eviction, packing"
        )
    return made


def expanded(features: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per feature."""
    return [{**entry, "name": name} for entry in features for name in entry.get("each") or [entry.get("name")]]


def _table_of(feature: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the name of a feature's table."""
    return feature.get("table") or feature["name"] or feature.get("column")
