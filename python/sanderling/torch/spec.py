"""Spec of an embedding collection: tables, and the features that read them.

Plain data that a person writes and a TOML file can say; knows neither torch nor how rows are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any, Literal, Self, TypeVar

import sanderling

POOLINGS = ("sum", "mean", "max", "none")
"""How the rows of a sample's keys become one: "none" keeps a row per key, for sequences."""

_Entry = TypeVar("_Entry", "TableSpec", "FeatureSpec")


@dataclass(frozen=True)
class TableSpec:
    """A table of embedding rows; the arguments of `sanderling.Table`, which explains them."""

    dim: int
    optimizer: dict[str, Any] | str | None = None
    init: dict[str, Any] | str | None = None
    seed: int = 42
    budget_bytes: int | None = None
    dtype: Literal["f32", "f16", "bf16"] | None = None
    admission: dict[str, Any] | str | None = None
    eviction: dict[str, Any] | str | None = None

    def options(self) -> dict[str, Any]:
        """Everything but the width, as keyword arguments of `sanderling.Table`."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "dim"}


@dataclass(frozen=True)
class FeatureSpec:
    """A feature of the batches, the table that has its rows, and how several rows of a sample become one."""

    name: str
    table: str = ""
    """Features that name the same table share its rows; empty: a table of the feature's own name."""
    pooling: Literal["sum", "mean", "max", "none"] = "sum"

    def __post_init__(self) -> None:
        """Fills in the table's name and refuses an unknown pooling."""
        if not self.table:
            object.__setattr__(self, "table", self.name)
        if self.pooling not in POOLINGS:
            raise sanderling.ConfigError(
                f"feature {self.name!r}: pooling {self.pooling!r} is none of {', '.join(POOLINGS)}"
            )


@dataclass(frozen=True)
class Spec:
    """Tables by name, and features in the order of their columns."""

    tables: Mapping[str, TableSpec]
    features: Sequence[FeatureSpec]
    names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """Refuses tables without a width or a feature, features without a table, and the same reading twice."""
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
            raise sanderling.ConfigError(f"features {', '.join(sorted(repeated))} are there twice")
        if idle := set(self.tables) - {feature.table for feature in self.features}:
            raise sanderling.ConfigError(f"no feature reads the tables {', '.join(sorted(idle))}")

    @classmethod
    def alike(cls, features: Sequence[str], dim: int, **options: Any) -> Self:  # noqa: ANN401, those of TableSpec
        """A table for each feature, all of the same width and with the same options of `TableSpec`."""
        return cls({name: TableSpec(dim, **options) for name in features}, [FeatureSpec(name) for name in features])

    @classmethod
    def of(cls, spec: "Spec | Mapping[str, Any]") -> "Spec":
        """The spec itself, or what a dictionary says.

        The dictionary is `{"tables": {name: {"dim": 16, "optimizer": "adagrad", ...}}, "features": {name: {"table":
        ..., "pooling": ...} | table's name}}`.
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
    """An entry of a dictionary as the dataclass it stands for; names what is misspelt."""
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
