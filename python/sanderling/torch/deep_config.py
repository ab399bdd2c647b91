"""Configuration of a deep run: the TOML of `sanderling train` with a deep `model.type`, as checked dataclasses.

`sanderling.FeedQueue` checks the sections of the input: `data`, `label`, `weight`, `negatives` and `feature`. This
module does not import torch.
"""

import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

import sanderling
from sanderling._native import DEEP_MODELS, RENAMED_ENTRIES, RETRIEVAL_MODELS
from sanderling.torch.config_sections import (
    PS_TIMEOUT_S,
    DenseOptimizerConfig,
    ModelConfig,
    SamplingConfig,
    TrainConfig,
)
from sanderling.torch.input_names import HUBS, held_out, joined_hubs, paths, run_name, test_sets
from sanderling.torch.labels import LabelConfig, feed_spec, labels_of
from sanderling.torch.quantity import seconds, size_bytes
from sanderling.torch.table_options import check_tables

RETRIEVAL_LOSS = {"mf": "bpr", "two_tower": "softmax"}
"""Default loss of models with users and items."""

RANKING_METRICS = ("recall", "ndcg", "hr", "mrr", "precision", "map")
"""Metrics of ranked lists, as `sanderling.ranking_metrics` names them."""

_PER_POSITIVE_MAX = 1 << 16

_Section = TypeVar("_Section")

RENAMED = {
    section: {old: new for of, old, new in RENAMED_ENTRIES if of == section} for section, _, _ in RENAMED_ENTRIES
}
"""New names of renamed entries, by section and old name.

An old name is an error in a configuration, and accepted in the configuration of a saved run.
"""

_MAY_CHANGE = {
    "name",
    *(f"train.{key}" for key in ("passes", "threads", "depth", "schedule", "early_stop", "max_steps")),
    "train.print_every_steps",
    "train.save_every_steps",
    "train.ps_timeout",
    "train.download",
    "data.test",
    "names.features",
    "names.max_bytes",
}
"""Entries that may differ between a saved run and its resumption."""


@dataclass
class DeepConfig:
    """Configuration of a run."""

    name: str
    train_inputs: list[str]
    """Files, glob patterns and URLs; or hubs, as one entry `hub://host:port,host:port`."""
    valid_inputs: list[str]
    spec: dict[str, Any]
    """Spec for `sanderling.FeedQueue`: `data`, `label`, `weight`, `negatives`, `feature`."""
    seed: int = 42
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: dict[str, Any] = field(default_factory=lambda: {"type": "adam", "lr": 1e-3})
    """Optimizer of the embedding tables, as `sanderling.Table` takes it."""
    dense_optimizer: DenseOptimizerConfig = field(default_factory=DenseOptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    table: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of tables by name, `*` for every other table; see docs/configuration.md."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    holdout: sanderling.Holdout | None = None
    """Rows of the training files that are held out for validation, in place of `valid_inputs`."""
    tests: dict[str, list[str]] = field(default_factory=dict)
    """Test sets by name, on which the saved model is scored at the end of the run."""
    names: dict[str, Any] = field(default_factory=dict)
    """Section `[names]`: features whose keys keep their texts."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a TOML file; the default run name is the stem of the file name."""
        return cls.of(read_toml(path), path.stem)

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str | None = None) -> Self:
        """Check a dictionary of this structure; the default run name comes from the first training file.

        Raises ConfigError, which names the wrong entry.
        """
        config = dict(config)
        for part in ("data", "table"):
            if not isinstance(section := config.get(part, {}), Mapping):
                raise sanderling.ConfigError(f"{part} = {section!r}: must be a section, [{part}]")
        data = dict(config.pop("data", {}))
        train_inputs, valid, tests = paths("train", data.pop("train", [])), data.pop("valid", []), data.pop("test", {})
        seed = _seed(config.pop("seed", 42))
        config = {"name": name or run_name(train_inputs), **config}
        train_inputs, train = joined_hubs(train_inputs), config.pop("train", {})
        if train_inputs and train_inputs[0].startswith(HUBS):
            # 0: the hubs decide.
            train = {"batch_size": 0, "passes": 0, **train}
        spec: dict[str, Any] = {
            key: config.pop(key) for key in ("label", "weight", "negatives", "feature") if key in config
        }
        optimizer, model = config.pop("optimizer", None), config.pop("model", {})
        if isinstance(model, Mapping) and model.get("type") in RETRIEVAL_MODELS and isinstance(train, Mapping):
            top_k = train.get("top_k") or [20]
            if not (isinstance(top_k, list) and all(type(k) is int for k in top_k)):
                raise sanderling.ConfigError(f"train.top_k = {top_k!r}: must be a list of whole numbers")
            largest = max(top_k)
            train = {"loss": RETRIEVAL_LOSS[model["type"]], "monitor": f"ndcg@{largest}", **train}
        elif isinstance(train, Mapping) and train.get("loss") == "mse":
            train = {"monitor": "rmse", **train}
        made = cls(
            name=str(config.pop("name")),
            train_inputs=train_inputs,
            valid_inputs=[] if isinstance(valid, Mapping) else paths("valid", valid),
            spec={"data": data, **spec},
            seed=seed,
            holdout=held_out(valid, seed) if isinstance(valid, Mapping) else None,
            tests=test_sets(tests),
            names=_names(config.pop("names", {})),
            model=_section(ModelConfig, "model", model),
            dense_optimizer=_section(DenseOptimizerConfig, "dense_optimizer", config.pop("dense_optimizer", {})),
            train=_section(TrainConfig, "train", train),
            table={name: dict(options) for name, options in config.pop("table", {}).items()},
            sampling=_section(SamplingConfig, "sampling", config.pop("sampling", {})),
        )
        if optimizer is not None:
            if not isinstance(optimizer, str | Mapping):
                raise sanderling.ConfigError(f"optimizer = {optimizer!r}: must be a section, [optimizer]")
            made.optimizer = {"type": optimizer} if isinstance(optimizer, str) else dict(optimizer)
        if config:
            raise sanderling.ConfigError(f"unknown sections: {', '.join(sorted(config))}")
        made.check()
        return made

    def check(self) -> None:
        """Raise ConfigError for values out of range and entries that contradict each other."""
        model, train = self.model, self.train
        if not re.fullmatch(r"[\w-][\w.-]*", self.name):
            raise sanderling.ConfigError(f"name = {self.name!r}: letters, digits, '-', '_' and '.' only")
        if not self.train_inputs:
            raise sanderling.ConfigError("data.train: must have at least one file, pattern or hub")
        if model.type not in DEEP_MODELS:
            raise sanderling.ConfigError(
                f"model.type = {model.type!r}: a deep model is one of {', '.join(DEEP_MODELS)}"
            )
        least: dict[str, tuple[float, int]] = {
            "model.dim": (model.dim, 1),
            "model.history_length": (model.history_length, 1),
            "model.table_budget": (model.table_budget_bytes, 0),
            **{f"train.{key}": (getattr(train, key), 1) for key in ("threads", "depth")},
            **{f"train.{key}": (getattr(train, key), 0) for key in ("shuffle_rows", "early_stop", "print_every_steps")},
            **{f"train.{key}": (getattr(train, key), 0) for key in ("max_steps", "save_every_steps", "clip_norm")},
        }
        if not (self.from_hubs and train.batch_size == 0):
            least["train.batch_size"] = (train.batch_size, 2)
        if not (self.from_hubs and train.passes == 0):
            least["train.passes"] = (train.passes, 1)
        for name, (value, minimum) in least.items():
            if not minimum <= value < 1 << 63:
                raise sanderling.ConfigError(f"{name} = {value}: must be at least {minimum}, and below 2^63")
        for key in ("hidden", "bottom", "attention", "head"):
            widths = getattr(model, key)
            whole = isinstance(widths, list | tuple) and all(type(width) is int and width > 0 for width in widths)
            if widths is not None and not whole:
                raise sanderling.ConfigError(f"model.{key} = {widths!r}: must be a list of whole numbers from 1 on")
        for key in ("user", "item"):
            names = getattr(model, key)
            if names and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
                raise sanderling.ConfigError(f"model.{key} = {names!r}: must be a list of features")
        layers = model.cross_layers
        if layers is not None and not (type(layers) is int and layers > 0):
            raise sanderling.ConfigError(f"model.cross_layers = {layers!r}: must be a whole number from 1 on")
        for name, rate in (("lr", self.dense_optimizer.lr), ("weight_decay", self.dense_optimizer.weight_decay)):
            if not 0.0 <= rate < math.inf:
                raise sanderling.ConfigError(f"dense_optimizer.{name} = {rate}: must be finite and not negative")
        seconds("train.ps_timeout", train.ps_timeout, *PS_TIMEOUT_S)
        if self.table and self.is_retrieval:
            raise sanderling.ConfigError(f"[table]: a {model.type} has no options of tables; leave them out")
        check_tables(self.table, self.spec.get("feature", []))
        if not 0.0 <= model.dropout < 1.0:
            raise sanderling.ConfigError(f"model.dropout = {model.dropout}: must be at least 0 and below 1")
        if self.is_retrieval:
            self._check_retrieval()
        else:
            self._check_labels()
        if (model.type == "din") != bool(model.history and model.candidate):
            raise sanderling.ConfigError(
                "model.history and model.candidate: din needs both, and no other model has them"
            )
        if model.history and model.history == model.candidate:
            raise sanderling.ConfigError(
                f"model.history and model.candidate are both {model.history!r}: name two features"
            )
        kinds: dict[Any, set[str]] = {"constant": set(), "exponential": {"factor"}, "plateau": {"factor", "min"}}
        kind = train.schedule.get("type")
        if kind not in kinds or set(train.schedule) - {"type"} - kinds[kind]:
            raise sanderling.ConfigError(
                f"train.schedule = {train.schedule}: constant, exponential (factor) or plateau (factor, min)"
            )
        if "factor" not in train.schedule and kind == "exponential":
            raise sanderling.ConfigError("train.schedule: exponential needs a factor, such as 0.9")
        for key, lowest, highest in (("factor", math.ulp(0.0), sys.float_info.max), ("min", 0.0, 1.0)):
            number = train.schedule.get(key, highest)
            if not isinstance(number, int | float) or not lowest <= number <= highest:
                wanted = "a number above 0" if key == "factor" else "a number from 0 to 1"
                raise sanderling.ConfigError(f"train.schedule.{key} = {number!r}: must be {wanted}")
        if any(name.startswith(HUBS) for name in self.valid_inputs):
            raise sanderling.ConfigError(
                "data.valid: a hub hands each row out once per pass, but validation reads equal rows after each pass;"
                " name files or URLs"
            )
        if self.from_hubs and (self.holdout is not None or self.names):
            what = "data.valid: rows are held out of files" if self.holdout is not None else "names: texts are in files"
            raise sanderling.ConfigError(f"{what}, and hubs serve encoded rows; name files in data.train")
        if not self.validates and (train.early_stop > 0 or kind == "plateau"):
            raise sanderling.ConfigError("early_stop and the plateau schedule need data.valid")

    def _check_labels(self) -> None:
        """Raise ConfigError for wrong entries of a model with labels."""
        train, model = self.train, self.model
        monitors = ("rmse", "mae", "mse") if self.is_regression else ("auc", "logloss")
        if train.monitor not in monitors:
            raise sanderling.ConfigError(f"train.monitor = {train.monitor!r}: {' or '.join(monitors[:2])}")
        if train.loss not in ("", "logloss", "mse"):
            raise sanderling.ConfigError(f"train.loss = {train.loss!r}: logloss or mse")
        if model.user or model.item:
            raise sanderling.ConfigError(
                f"model.user and model.item: only for {', '.join(RETRIEVAL_MODELS)}; leave them out"
            )
        if (self.labels or self.is_regression) and self.from_hubs:
            raise sanderling.ConfigError("several [[label]], and train.loss = 'mse': read files, not hubs; name files")
        if self.labels and (model.type != "dnn" or self.is_regression):
            raise sanderling.ConfigError(
                "several [[label]]: model.type = 'dnn' shares its layers, with train.loss = 'logloss'"
            )
        if model.head is not None and not self.labels:
            raise sanderling.ConfigError("model.head: only for several [[label]]; leave it out")

    def _check_retrieval(self) -> None:
        """Raise ConfigError for wrong entries of a model with users and items."""
        train, sampling = self.train, self.sampling
        if self.from_hubs:
            raise sanderling.ConfigError(f"model.type = {self.model.type!r}: reads files, not hubs; name files")
        cuts = train.top_k
        if not cuts or any(type(cut) is not int or cut < 1 for cut in cuts):
            raise sanderling.ConfigError(f"train.top_k = {cuts!r}: must be a list of whole numbers from 1 on")
        monitors = [f"{name}@{cut}" for name in RANKING_METRICS for cut in cuts]
        for name, value, allowed in (
            ("train.loss", train.loss, ("bpr", "softmax", "logloss")),
            ("train.monitor", train.monitor, monitors),
            ("sampling.by", sampling.by, ("uniform", "popularity", "in_batch")),
        ):
            if value not in allowed:
                raise sanderling.ConfigError(f"{name} = {value!r}: one of {', '.join(allowed)}")
        if sampling.by == "in_batch" and train.loss != "softmax":
            raise sanderling.ConfigError('sampling.by = "in_batch": only with train.loss = "softmax"')
        if not 1 <= sampling.per_positive <= _PER_POSITIVE_MAX:
            raise sanderling.ConfigError(f"sampling.per_positive = {sampling.per_positive}: 1 to {_PER_POSITIVE_MAX}")
        for name, number in (("sampling.power", sampling.power), ("model.temperature", self.model.temperature)):
            if not 0.0 <= number < math.inf or (number == 0.0 and name == "model.temperature"):
                raise sanderling.ConfigError(f"{name} = {number}: must be finite and positive")

    @property
    def validates(self) -> bool:
        """Return whether passes are validated."""
        return self.holdout is not None or bool(self.valid_inputs)

    @property
    def validation_files(self) -> list[str]:
        """Return the files with the rows of a validation; with a holdout, the training files."""
        return self.valid_inputs if self.holdout is None else self.train_inputs

    @property
    def validation_rows(self) -> str:
        """Return the rows of a validation in words."""
        names = ", ".join(self.validation_files)
        if self.holdout is None:
            return names
        by = {"random": "chance"}.get(self.holdout.by, self.holdout.by)
        column = f" of {self.holdout.column}" if self.holdout.column else ""
        return f"{100 * self.holdout.fraction:.4g} % of {names}, held out by {by}{column}"

    @property
    def labels(self) -> list[LabelConfig]:
        """Return the labels of several `[[label]]`; none for a single `[label]`."""
        return labels_of(self.spec.get("label"))

    @property
    def is_regression(self) -> bool:
        """Return whether the model predicts numbers."""
        return self.train.loss == "mse"

    @property
    def reads_classes(self) -> bool:
        """Return whether the feed queue reads labels of 0 or 1; otherwise rows need none."""
        return not (self.is_retrieval or self.is_regression)

    @property
    def feed_spec(self) -> dict[str, Any]:
        """Return the spec for a feed queue over training files."""
        return feed_spec(self.spec, is_regression=self.is_regression)

    @property
    def is_retrieval(self) -> bool:
        """Return whether the model has vectors of users and items, and learns from pairs without labels."""
        return self.model.type in RETRIEVAL_MODELS

    @property
    def from_hubs(self) -> bool:
        """Return whether training rows come from hubs."""
        return bool(self.train_inputs) and self.train_inputs[0].startswith(HUBS)

    def changed_since(self, saved: Mapping[str, Any], *, judged: bool) -> str | None:
        """Return the first entry that differs from the `saved` configuration but must not, or None.

        `saved` is a `to_dict`. With `judged` (a pass was validated), `data.valid` and `train.monitor` must agree, too.
        """
        now: dict[str, Any] = json.loads(json.dumps(self.to_dict()))
        may_change = _MAY_CHANGE if judged else _MAY_CHANGE | {"data.valid", "train.monitor"}
        if self.from_hubs:
            # Addresses of hubs may change; hubs are recognized by their streams.
            may_change = may_change | {"data.train"}
        before: dict[str, Any] = with_new_names(json.loads(json.dumps(saved)))
        # A run of an earlier version lacks entries that are new.
        for section, kind in (("train", TrainConfig), ("model", ModelConfig)):
            new = {name: value for name, value in asdict(kind()).items() if value is not None}
            before[section] = {**new, **before.get(section, {})}
        for section in {**before, **now}:
            entries, here = before.get(section), now.get(section)
            pairs = [(section, entries, here)]
            if isinstance(entries, dict | None) and isinstance(here, dict | None):
                entries, here = entries or {}, here or {}
                pairs = [(f"{section}.{key}", entries.get(key), here.get(key)) for key in {**entries, **here}]
            for name, one, other in pairs:
                if name == "model.table_budget":
                    one, other = (size_bytes(name, size) if size else 0 for size in (one, other))
                if name not in may_change and one != other:
                    return name
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dictionary for `of`, with defaults filled in."""
        model = {name: value for name, value in asdict(self.model).items() if value is not None}
        valid: list[str] | dict[str, Any] = self.valid_inputs
        if self.holdout is not None:
            entries = {**asdict(self.holdout), "seed": None}
            valid = {name: value for name, value in entries.items() if value is not None}
        tests = {"test": self.tests} if self.tests else {}
        return {
            "name": self.name,
            "seed": self.seed,
            **self.spec,
            "data": {**self.spec["data"], "train": self.train_inputs, "valid": valid, **tests},
            "model": model,
            "optimizer": self.optimizer,
            "dense_optimizer": asdict(self.dense_optimizer),
            "train": asdict(self.train),
            **({"table": self.table} if self.table else {}),
            **({"sampling": asdict(self.sampling)} if self.is_retrieval else {}),
            **({"names": self.names} if self.names else {}),
        }


def with_new_names(saved: dict[str, Any]) -> dict[str, Any]:
    """Update the configuration of a saved run to the current names and units, in place; returns it."""
    for section, names in RENAMED.items():
        entries = saved.get(section, {})
        for old, new in names.items():
            if old in entries:
                value = entries.pop(old)
                entries[new] = f"{value:f}s" if new == "ps_timeout" else value
    model = saved.get("model", {})
    if model.get("table_budget") == 0:
        model["table_budget"] = ""
    return saved


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; FileError if it is unreadable, ConfigError if it is not TOML, both with its name."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise sanderling.FileError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if path.suffix != ".toml":
            raise sanderling.ConfigError(
                f"{path} is no configuration (TOML); if it is data, type: sanderling inspect {path} --suggest >"
                f" {path.stem}.toml, and train that"
            ) from error
        raise sanderling.ConfigError(f"{path}: {error}") from error


def _seed(value: object) -> int:
    """Check a seed, an unsigned 64-bit integer."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise sanderling.ConfigError(f"seed = {value!r}: must be a whole number from 0 to 2^64 - 1")
    return value


def _names(section: object) -> dict[str, Any]:
    """Check that `[names]` is a section; its entries are checked with the features."""
    if not isinstance(section, Mapping):
        raise sanderling.ConfigError(f"names = {section!r}: must be a section, [names]")
    return dict(section) if section.get("features") else {}


def _section(kind: type[_Section], name: str, entries: Mapping[str, Any]) -> _Section:
    """Make the dataclass of a section; ConfigError for unknown entries and types other than the default's."""
    assert isinstance(kind, type)
    if not isinstance(entries, Mapping):
        raise sanderling.ConfigError(f"{name} = {entries!r}: must be a section, [{name}]")
    defaults = {entry.name: getattr(kind(), entry.name) for entry in fields(kind)}  # type: ignore[arg-type]
    for key, value in entries.items():
        if key in RENAMED.get(name, {}):
            raise sanderling.ConfigError(f"[{name}] `{key}` is now `{RENAMED[name][key]}`")
        if key not in defaults:
            raise sanderling.ConfigError(f"{name}.{key} is unknown; the entries are {', '.join(defaults)}")
        default = defaults[key]
        fits = (
            default is None
            or key == "table_budget"
            or isinstance(value, type(default))
            or (type(default), type(value)) == (float, int)
        )
        if not fits or (isinstance(value, bool) and not isinstance(default, bool)):
            raise sanderling.ConfigError(f"{name}.{key} = {value!r}: must be of type {type(default).__name__}")
    return kind(**entries)
