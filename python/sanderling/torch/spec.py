"""Spec of an embedding collection: tables, and the features that read them.

Plain data, which a TOML file can express; this module does not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any, Literal, Self, TypeVar

import sanderling

POOLINGS = ("sum", "mean", "max", "none")
"""Reductions of the rows of a sample to one row; "none" keeps a row per key, for sequences."""

_Entry = TypeVar("_Entry", "TableSpec", "FeatureSpec")


@dataclass(frozen=True)
class TableSpec:
    """An embedding table; the entries are the arguments of `sanderling.Table`, described there."""

    dim: int
    optimizer: dict[str, Any] | str | None = None
    init: dict[str, Any] | str | None = None
    seed: int = 42
    budget_bytes: int | None = None
    dtype: Literal["f32", "f16", "bf16"] | None = None
    admission: dict[str, Any] | str | None = None
    eviction: dict[str, Any] | str | None = None
    packing: Literal["fast", "compact"] | None = None

    def options(self) -> dict[str, Any]:
        """Return all entries except `dim`, as keyword arguments of `sanderling.Table`."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "dim"}


@dataclass(frozen=True)
class FeatureSpec:
    """A feature of the batches, its table, and its pooling."""

    name: str
    table: str = ""
    """Name of the table; features may share one. Empty: a table with the name of the feature."""
    pooling: Literal["sum", "mean", "max", "none"] = "sum"

    def __post_init__(self) -> None:
        """Fill in the table's name; ConfigError for an unknown pooling."""
        if not self.table:
            object.__setattr__(self, "table", self.name)
        if self.pooling not in POOLINGS:
            raise sanderling.ConfigError(
                f"feature {self.name!r}: pooling {self.pooling!r} is none of {', '.join(POOLINGS)}"
            )


@dataclass(frozen=True)
class Spec:
    """Tables by name, and features in the order of their columns; `names` are the names of the features."""

    tables: Mapping[str, TableSpec]
    features: Sequence[FeatureSpec]
    names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """Raise ConfigError for a table without a width or a feature, a feature without a table, or a repeated one."""
        object.__setattr__(self, "names", tuple(feature.name for feature in self.features))
        for name, table in self.tables.items():
            try:
                has_width = index(table.dim) >= 1
            except TypeError:
                has_width = False
            if not has_width:
                raise sanderling.ConfigError(f"table {name!r}: dim {table.dim!r} is no whole number from 1 on")
        if not self.features:
            raise sanderling.ConfigError("an embedding collection needs at least one feature")
        for feature in self.features:
            if feature.table not in self.tables:
                known = ", ".join(self.tables)
                raise sanderling.ConfigError(
                    f"feature {feature.name!r} reads table {feature.table!r}, which is not among {known}"
                )
        if repeated := {name for name in self.names if self.names.count(name) > 1}:
            raise sanderling.ConfigError(f"features {', '.join(sorted(repeated))} occur twice")
        if idle := set(self.tables) - {feature.table for feature in self.features}:
            raise sanderling.ConfigError(f"no feature reads the tables {', '.join(sorted(idle))}")

    @classmethod
    def alike(cls, features: Sequence[str], dim: int, **options: Any) -> Self:  # noqa: ANN401, those of TableSpec
        """Make a spec with a table per feature; all tables have width `dim` and the `options` of `TableSpec`."""
        return cls({name: TableSpec(dim, **options) for name in features}, [FeatureSpec(name) for name in features])

    @classmethod
    def of(cls, spec: "Spec | Mapping[str, Any]") -> "Spec":
        """Return a `Spec` as it is, or make one from a dictionary; ConfigError for unknown entries.

        The dictionary is `{"tables": {name: {"dim": 16, "optimizer": "adagrad", ...}}, "features": {name: {"table":
        ..., "pooling": ...}}}`; the name of a table may stand for the entry of a feature.
        """
        if isinstance(spec, Spec):
            return spec
        if unknown := set(spec) - {"tables", "features"}:
            raise sanderling.ConfigError(f"spec: unknown entries {', '.join(sorted(map(str, unknown)))}")
        tables = {name: _entry(TableSpec, f"table {name!r}", entry) for name, entry in spec.get("tables", {}).items()}
        features = []
        named = spec.get("features", {})
        if not isinstance(named, Mapping):
            raise sanderling.ConfigError('spec: features are a dictionary by name: {"item": {"table": "item"}}')
        for name, entry in named.items():
            entry = {"table": entry} if isinstance(entry, str) else entry
            whole = entry if isinstance(entry, FeatureSpec) else {"name": name, **entry}
            features.append(_entry(FeatureSpec, f"feature {name!r}", whole))
        return cls(tables, features)


def _entry(kind: type[_Entry], what: str, entry: _Entry | Mapping[str, Any]) -> _Entry:
    """Make a `TableSpec` or `FeatureSpec` from a dictionary; ConfigError for unknown or missing entries."""
    if isinstance(entry, kind):
        return entry
    if not isinstance(entry, Mapping):
        raise sanderling.ConfigError(f"{what}: {entry!r} is neither a dictionary nor a {kind.__name__}")
    if unknown := set(entry) - {known.name for known in fields(kind)}:
        raise sanderling.ConfigError(f"{what}: unknown entries {', '.join(sorted(unknown))}")
    try:
        return kind(**entry)
    except TypeError as error:
        raise sanderling.ConfigError(f"{what}: {error}") from error
