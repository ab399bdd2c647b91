"""Click models with their embeddings: built from a configuration, loaded from a run, and used for prediction.

The training loop is in `sanderling.torch.deep_run`.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import sanderling
from sanderling import _native
from sanderling.torch import checkpoint, models
from sanderling.torch.deep_config import DeepConfig, with_new_names
from sanderling.torch.embedding import EmbeddingCollection
from sanderling.torch.inputs import for_scoring
from sanderling.torch.known_keys import KnownKeyCounts
from sanderling.torch.magnitude import cause
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

# Feature types whose values are dense inputs; the other types have embeddings.
_NUMBERS = ("numeric", "log")


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
        model = config.model
        names = [feature["name"] for feature in features]
        for name in (model.history, model.candidate):
            if name and name not in names:
                raise sanderling.ConfigError(f"model: there is no feature {name!r} among {', '.join(names)}")
        # Key of present values by numeric feature; a missing value has another key.
        self.numbers = {f["name"]: _native.value_key(f) for f in features if f.get("type") in _NUMBERS}
        for name in (model.history, model.candidate):
            if name in self.numbers:
                raise sanderling.ConfigError(f"model: DIN compares keys, but feature {name!r} is a number")
        keyed = [feature for feature in features if feature["name"] not in self.numbers]
        fields = [feature["name"] for feature in keyed if feature["name"] != model.history]
        if not fields:
            raise sanderling.ConfigError("a deep model needs features that are not all numeric")
        sizes: dict[str, Any] = {"dense": len(self.numbers), "dropout": model.dropout, "batch_norm": model.batch_norm}
        for name in ("hidden", "cross_layers", "bottom", "attention"):
            if getattr(model, name) is not None:
                if name not in inspect.signature(MODELS[model.type]).parameters:
                    raise sanderling.ConfigError(f"model.{name}: model.type = {model.type!r} has none; leave it out")
                sizes[name] = getattr(model, name)
        if model.type == "din":
            sizes["candidate"] = fields.index(model.candidate)
        try:
            self.model = MODELS[model.type](len(fields), model.dim, **sizes)
        except TypeError as error:
            raise sanderling.ConfigError(f"model.type = {model.type!r}: {error}") from error
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
        tables = {
            feature.table: dataclasses.replace(rows, **config.table_options(feature.table)) for feature in feature_specs
        }
        ps = sanderling.connect(ps) if isinstance(ps, str) else ps
        if ps is not None:
            # Runs share servers, so table names begin with the run's name, as with built-in learners.
            feature_specs = [dataclasses.replace(f, table=f"{config.name}/{f.table}") for f in feature_specs]
            tables = {f"{config.name}/{name}": table for name, table in tables.items()}
        spec = Spec(tables, feature_specs)
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
        """Return the logits of a batch, float32 [B]."""
        embedded = self.emb(batch)
        inputs = [embedded.stacked(), self._dense(batch)]
        if self.history:
            inputs += embedded.sequences[self.history].padded(self.history_length, keep="last")
        logits: Tensor = self.model(*inputs)
        return logits

    def local_tables(self) -> dict[str, sanderling.Table]:
        """Return the table of each feature with embeddings, of those in this process."""
        features = {feature.name: self.emb.tables[feature.table] for feature in self.emb.spec.features}
        return {name: table for name, table in features.items() if isinstance(table, sanderling.Table)}

    def _dense(self, batch: sanderling.Batch) -> Tensor | None:
        """Return the numeric features of a batch, float32 [B, N], with 0 for missing values; None without any."""
        if not self.numbers:
            return None
        columns = np.zeros((len(self.numbers), len(batch)), np.float32)
        for column, (name, key) in zip(columns, self.numbers.items(), strict=True):
            offsets, keys, values = batch.offsets(name), batch.keys(name), batch.values(name)
            # A skipped bad row has no key.
            rows = np.flatnonzero(offsets[1:] > offsets[:-1])
            rows = rows[keys[offsets[rows]] == key]
            column[rows] = 1.0 if values is None else values[offsets[rows]]
        return torch.from_numpy(np.ascontiguousarray(columns.T)).to(self.emb.device)


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


def open_model(directory: str | Path, *, device: str = "cpu") -> tuple[ClickModel, dict[str, Any]]:
    """Load a saved model in evaluation mode; returns it and the spec of its features.

    The run must have had its tables in this process. Raises ModelError for a directory without a model of
    `sanderling.torch.train`, ConfigError for an unusable device, and the errors of `sanderling.torch.load`.
    """
    directory = Path(directory)
    check_device(device)
    if not (directory / "manifest.json").exists() and (directory / "model" / "manifest.json").exists():
        raise sanderling.ModelError(
            f"{directory}: is the directory of a run and holds no model itself; did you mean {directory / 'model'}?"
        )
    extra = checkpoint.read_extra(directory)
    if missing := {"config", "spec"} - set(extra):
        raise sanderling.ModelError(
            f"{directory}: `extra` lacks {', '.join(sorted(missing))}, which sanderling.torch.train saves; open a"
            " checkpoint of your own training loop with sanderling.torch.load"
        )
    config = DeepConfig.of(with_new_names(extra["config"]))
    model = ClickModel(config, extra["spec"]["feature"]).to(device)
    checkpoint.load(directory, model, None, model.emb, map_location=device)
    return model.eval(), extra["spec"]


def predict(
    directory: str | Path, files: str | Path | list[str], *, batch_size: int = 4096, device: str = "cpu"
) -> npt.NDArray[np.float32]:
    """Predict a probability per row of the files with a saved model, float32 [rows], in file order.

    `batch_size` is in rows. A skipped bad row (`data.on_bad_row` of the run) gives NaN. A UserWarning names features
    without any known key. Errors as in `open_model`, and DivergedError for a row without a finite prediction.
    """
    model, spec = open_model(directory, device=device)
    spec = for_scoring(spec)
    known = KnownKeyCounts(model.local_tables())
    parts, done = [np.zeros(0, np.float32)], 0
    with torch.no_grad():
        for rows in sanderling.FeedQueue(files, model.emb.native, spec=spec, batch_size=batch_size, train=False):
            scores = torch.sigmoid(model(rows)).cpu().numpy()
            # Only a skipped bad row has NaN as its weight.
            is_skipped = np.isnan(rows.weights)
            if (wrong := np.flatnonzero(np.isnan(scores) & ~is_skipped)).size:
                why = cause(rows, model.numbers) or "the model has diverged; train it with lower learning rates"
                raise sanderling.DivergedError(
                    f"{files}: the prediction of row {done + wrong[0] + 1} is undefined: {why}"
                )
            scores[is_skipped] = np.nan
            known.add(rows)
            parts.append(scores)
            done += len(rows)
    for remark in known.remarks():
        warnings.warn(remark, UserWarning, stacklevel=2)
    return np.concatenate(parts)
