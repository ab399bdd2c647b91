"""A new run that begins with a saved model: its embeddings, dense parameters and the state of both optimizers."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sanderling
from sanderling import RemoteTable
from sanderling._native import checkpoint_tables, upload_tables
from sanderling.torch import checkpoint
from sanderling.torch.deep_config import DeepConfig, with_new_names
from sanderling.torch.table_options import expanded

if TYPE_CHECKING:
    from sanderling.torch.deep_run import DeepRun

# Entries of `[model]` that may differ from the saved model.
_MAY_CHANGE = ("table_budget", "dropout", "init_std")


def saved_model(config: DeepConfig, directory: Path) -> dict[str, Any]:
    """Return the `extra` of the saved model; ModelError for another model than the configuration's."""
    if config.is_retrieval:
        raise sanderling.ConfigError(
            f"--from: a {config.model.type} ranks the items of its training data only; train it on all of them"
        )
    extra = checkpoint.read_extra(directory)
    if missing := {"config", "spec"} - set(extra):
        raise sanderling.ModelError(f"{directory}: `extra` lacks {', '.join(sorted(missing))}: no model of a deep run")
    saved = DeepConfig.of(with_new_names(extra["config"]))
    before, now = saved.to_dict()["model"], config.to_dict()["model"]
    for name in {**before, **now}:
        if name not in _MAY_CHANGE and before.get(name) != now.get(name):
            raise sanderling.ModelError(
                f"{directory}: model.{name} is {before.get(name)!r} there and {now.get(name)!r} in the configuration:"
                " set it to the saved value, or train without --from"
            )
    if (was := _label(saved)) != (label := _label(config)):
        raise sanderling.ModelError(
            f"{directory}: the label is {was!r} there and {label!r} in the configuration: put it back, or train without"
            " --from"
        )
    buckets = _buckets(saved)
    for name, count in _buckets(config).items():
        if name in buckets and count != buckets[name]:
            raise sanderling.ModelError(
                f"{directory}: feature {name!r} has buckets = {buckets[name]!r} there and {count!r} in the"
                " configuration; name a changed feature anew"
            )
    return extra


def _label(config: DeepConfig) -> Mapping[str, Any] | list[Any]:
    label: Mapping[str, Any] | list[Any] = config.spec.get("label", {})
    return {"column": "label", **label} if isinstance(label, Mapping) else label


def _buckets(config: DeepConfig) -> dict[str, Any]:
    """Return the entry `buckets` of each feature."""
    features = expanded(config.spec.get("feature", []))
    return {str(feature["name"] or feature.get("column")): feature.get("buckets") for feature in features}


def with_saved_features(spec: dict[str, Any], directory: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with the fitted boundaries of the saved model; ModelError for a feature that has changed."""
    before = {feature["name"]: feature for feature in saved["feature"]}
    features = []
    for feature in spec["feature"]:
        name = feature["name"]
        if name in before:
            for entry in {**feature, **before[name]}:
                if entry not in ("boundaries", "buckets") and feature.get(entry) != before[name].get(entry):
                    raise sanderling.ModelError(
                        f"{directory}: feature {name!r} has {entry} = {before[name].get(entry)!r} there and"
                        f" {feature.get(entry)!r} in the configuration; name a changed feature anew"
                    )
            feature = before[name]
        features.append(feature)
    return {**spec, "feature": features}


def warm_start(run: "DeepRun", directory: Path) -> list[str]:
    """Load tables, parameters and optimizer state into a new run; returns notes on what begins anew.

    Tables that the saved model lacks are new. Dense parameters whose shape has changed, because features have come or
    gone, are new, too, and the state of their optimizer with them. Raises NotFoundError for a model whose rows are on
    servers, and ConfigError for a table that differs from the configuration.
    """
    manifest, state = checkpoint.read_dense(directory, "cpu")
    if "rows" not in manifest:
        raise sanderling.NotFoundError(
            f"{directory}: its rows are on parameter servers; copy them (sanderling download {directory} --ps ADDR)"
        )
    rows, notes = directory / manifest["rows"], []
    if run.inputs.key_names is not None and (names := checkpoint.read_names(directory)) is not None:
        run.inputs.key_names.restore(names)
    emb, local_names = run.model.emb, run.model.local_names or {name: name for name in run.model.emb.tables}
    saved = set(checkpoint_tables(rows))
    carried = {name: local for name, local in local_names.items() if local in saved}
    tables = dict(emb.tables)
    if emb.connection is not None:
        away = {local: table for name, local in carried.items() if isinstance(table := tables[name], RemoteTable)}
        if run.workers is None or run.workers.rank == 0:
            upload_tables(rows, away)
        run.meet()
    else:
        for name, local in carried.items():
            table = sanderling.Table.load(rows, local)
            emb.check_table(name, table.dim, table.config)
            tables[name] = table
        emb.use_loaded(tables)
    if (keys := state["extra"].get("features")) is not None:
        emb.native.compare_keys(keys, resume=False)
    if fresh := sorted(set(local_names.values()) - saved):
        notes.append(f"new tables: {', '.join(fresh)}")
    parameters = run.model.state_dict()
    fits = {name: value for name, value in state["model"].items() if parameters.get(name, value).shape == value.shape}
    run.model.load_state_dict({**parameters, **{name: fits[name] for name in fits if name in parameters}})
    if changed := sorted(name for name in parameters if name not in fits or name not in state["model"]):
        notes.append(f"other features than before: {', '.join(changed)} of the dense part begin anew")
    elif run.dense is not None and state["optimizer"] is not None:
        groups = run.dense.state_dict()["param_groups"]
        # Rates and decay are those of the configuration.
        run.dense.load_state_dict({**state["optimizer"], "param_groups": groups})
    return notes
