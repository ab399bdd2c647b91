"""Click models with their embeddings, built from a configuration.

The training loop is in `sanderling.torch.deep_run`; saved models are opened by `sanderling.torch.saved_model`.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sanderling
from sanderling import _native
from sanderling.torch import models
from sanderling.torch.deep_config import DeepConfig
from sanderling.torch.embedding import EmbeddingCollection
from sanderling.torch.labels import is_label
from sanderling.torch.spec import FeatureSpec, Spec, TableSpec
from sanderling.torch.workers import Workers

MODELS: dict[str, type[nn.Module]] = {
    "dnn": models.DNN,
    "wide_deep": models.WideDeep,
    "deepfm": models.DeepFM,
    "dcn": models.DCN,
    "dcnv2": models.DCNv2,
    "dlrm": models.DLRM,
    "din": models.DIN,
}

NUMBERS = ("numeric", "log")
"""Feature types whose values are dense inputs; the other types have embeddings."""


class ClickModel(nn.Module):
    """A model of `sanderling.torch.models` with its embedding collection; maps batches to logits."""

    def __init__(
        self,
        config: DeepConfig,
        features: list[dict[str, Any]],
        ps: sanderling.Connection | str | None = None,
        *,
        fresh: bool = False,
        workers: Workers | None = None,
    ) -> None:
        """Build the model for `features`, in the form of `FeedQueue.spec`.

        `fresh` drops tables that an earlier run of this name left on the servers. Raises ConfigError for settings and
        features that do not fit the model.
        """
        super().__init__()
        self.config = config
        model = config.model
        features = [feature for feature in features if not is_label(feature)]
        names = [feature["name"] for feature in features]
        for name in (model.history, model.candidate):
            if name and name not in names:
                raise sanderling.ConfigError(f"model: there is no feature {name!r} among {', '.join(names)}")
        # Key of present values by numeric feature; a missing value has another key.
        self.numbers = {f["name"]: _native.value_key(f) for f in features if f.get("type") in NUMBERS}
        for name in (model.history, model.candidate):
            if name in self.numbers:
                raise sanderling.ConfigError(f"model: DIN compares keys, but feature {name!r} is a number")
        keyed = [feature for feature in features if feature["name"] not in self.numbers]
        fields = [feature["name"] for feature in keyed if feature["name"] != model.history]
        if not fields:
            raise sanderling.ConfigError("a deep model needs features that are not all numeric")
        self.model = self._dense_part(config, fields)
        rows = TableSpec(
            int(self.model.row_width),  # type: ignore[arg-type]
            optimizer=config.optimizer,
            init={"type": "normal", "std": model.init_std},
            seed=config.seed,
            budget_bytes=model.table_budget_bytes or None,
        )
        feature_specs = [_feature(feature, model.history) for feature in keyed]
        if len({feature.table for feature in feature_specs if feature.name in (model.history, model.candidate)}) > 1:
            raise sanderling.ConfigError(
                f"model: DIN compares {model.candidate!r} with the rows of {model.history!r}: both features must name"
                " the same table"
            )
        ps = sanderling.connect(ps) if isinstance(ps, str) else ps
        self.local_names: dict[str, str] | None = None
        """Name of each table without the name of the run, by its name on servers; None for tables in this process."""
        if ps is not None:
            self.local_names = {f"{config.name}/{f.table}": f.table for f in feature_specs}
            # Runs share servers, so table names begin with the run's name, as with built-in learners.
            feature_specs = [dataclasses.replace(f, table=f"{config.name}/{f.table}") for f in feature_specs]
        spec = Spec({feature.table: rows for feature in feature_specs}, feature_specs)
        if ps is not None:
            # Raises for options that servers would refuse, before their existing tables are dropped.
            for name, table in spec.tables.items():
                sanderling.Table(name, table.dim, **table.options())
            first = workers is None or workers.rank == 0
            for name in spec.tables if fresh and first else ():
                ps.drop(name)
            if workers is not None:
                workers.group.barrier("tables")
        self.emb = EmbeddingCollection(spec, ps, push="step", workers=workers)
        self.history, self.history_length = model.history, model.history_length

    def forward(self, batch: sanderling.Batch) -> Tensor:
        """Return the outputs of a batch, float32 [B]; several labels, [B, labels]."""
        embedded = self.emb(batch)
        inputs = [embedded.stacked(), self.dense(batch)]
        if self.history:
            inputs += embedded.sequences[self.history].padded(self.history_length, keep="last")
        logits: Tensor = self.model(*inputs)
        return logits

    def _dense_part(self, config: DeepConfig, fields: list[str]) -> nn.Module:
        """Return the module over the rows of `fields`; ConfigError for settings that it does not have."""
        model = config.model
        sizes: dict[str, Any] = {"dense": len(self.numbers), "dropout": model.dropout, "batch_norm": model.batch_norm}
        kind = models.SharedBottom if config.labels else MODELS[model.type]
        sizes |= sizes_of(kind, config)
        if config.labels:
            sizes["labels"] = len(config.labels)
        if model.type == "din":
            sizes["candidate"] = fields.index(model.candidate)
        try:
            return kind(len(fields), model.dim, **sizes)
        except TypeError as error:
            raise sanderling.ConfigError(f"model.type = {model.type!r}: {error}") from error

    def local_tables(self) -> dict[str, sanderling.Table]:
        """Return the table of each feature with embeddings, of those in this process."""
        features = {feature.name: self.emb.tables[feature.table] for feature in self.emb.spec.features}
        return {name: table for name, table in features.items() if isinstance(table, sanderling.Table)}

    def dense(self, batch: sanderling.Batch, names: Sequence[str] | None = None) -> Tensor | None:
        """Return numeric features of a batch, by default all, float32 [B, N], 0 if missing; None without any."""
        numbers = self.numbers if names is None else {name: self.numbers[name] for name in names}
        if not numbers:
            return None
        columns = np.zeros((len(numbers), len(batch)), np.float32)
        for column, (name, key) in zip(columns, numbers.items(), strict=True):
            offsets, keys, values = batch.offsets(name), batch.keys(name), batch.values(name)
            # A skipped bad row has no key.
            rows = np.flatnonzero(offsets[1:] > offsets[:-1])
            rows = rows[keys[offsets[rows]] == key]
            column[rows] = 1.0 if values is None else values[offsets[rows]]
        return torch.from_numpy(np.ascontiguousarray(columns.T)).to(self.emb.device)


def sizes_of(kind: type[nn.Module], config: DeepConfig) -> dict[str, Any]:
    """Return the sizes of the configuration for a module; ConfigError for one that it does not have."""
    sizes = {}
    for name in ("hidden", "cross_layers", "bottom", "attention", "head"):
        if (size := getattr(config.model, name)) is not None:
            if name not in inspect.signature(kind).parameters:
                raise sanderling.ConfigError(f"model.{name}: model.type = {config.model.type!r} has none; leave it out")
            sizes[name] = size
    return sizes


def _feature(feature: Mapping[str, Any], history: str) -> FeatureSpec:
    """Return the collection's spec of a feature; a history has pooling "none"."""
    pooling: Any = "none" if feature["name"] == history else feature.get("pooling", "sum")
    return FeatureSpec(feature["name"], feature.get("table") or "", pooling)


def check_device(device: str) -> None:
    """Raise ConfigError unless torch can compute on `device`, such as "cuda:1"."""
    try:
        # A valid name may be of an absent device, or of one without data, such as `meta`.
        torch.zeros((), device=device).item()
    except (RuntimeError, AssertionError) as error:
        what = str(error).partition("\n")[0]
        raise sanderling.ConfigError(f"device = {device!r}: {what}; use cpu, which always works") from error
