"""Saved deep models: which class a configuration needs, and a model loaded from the directory of a run."""

from pathlib import Path
from typing import Any

import sanderling
from sanderling.torch import checkpoint
from sanderling.torch.catalogue import Catalogue
from sanderling.torch.click_model import NUMBERS, ClickModel, check_device
from sanderling.torch.deep_config import DeepConfig, with_new_names
from sanderling.torch.labels import is_label
from sanderling.torch.retrieval_model import RetrievalModel


def model_of(config: DeepConfig) -> type[ClickModel]:
    """Return the class of models for a configuration."""
    return RetrievalModel if config.is_retrieval else ClickModel


def download(directory: str | Path, ps: sanderling.Connection | str) -> int:
    """Copy the embeddings of a saved model from servers, as they are now, into its directory; returns their number.

    Afterwards the model is opened and resumed without the servers. Nobody may train on the tables meanwhile. Raises
    ServerError for a table that is not there, and the errors of `open_model`.
    """
    directory = Path(directory)
    extra = checkpoint.read_extra(directory)
    config = DeepConfig.of(with_new_names(extra["config"]))
    ps = sanderling.connect(ps) if isinstance(ps, str) else ps
    keyed = [f for f in extra["spec"]["feature"] if f.get("type") not in NUMBERS and not is_label(f)]
    names = {feature.get("table") or feature["name"] for feature in keyed}
    tables = {name: ps.open(f"{config.name}/{name}") for name in sorted(names)}
    checkpoint.bring_home(directory, tables)
    return sum(len(table) for table in tables.values())


def open_model(
    directory: str | Path, *, device: str = "cpu", ps: sanderling.Connection | str | None = None
) -> tuple[ClickModel, dict[str, Any]]:
    """Load a saved model in evaluation mode; returns it and the spec of its features.

    With `ps`, rows are read from the tables `RUN/TABLE` on these servers as they are now, otherwise from the directory.
    Raises ModelError for a directory without a model of `sanderling.torch.train`, ConfigError for an unusable device,
    and the errors of `sanderling.torch.load`.
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
    ps = sanderling.connect(ps) if isinstance(ps, str) else ps
    if ps is not None:
        for feature in extra["spec"]["feature"]:
            if feature.get("type") not in NUMBERS and not is_label(feature):
                # A table that is not there would be made, and the model would predict from nothing.
                ps.open(f"{config.name}/{feature.get('table') or feature['name']}")
    model = model_of(config)(config, extra["spec"]["feature"], ps).to(device)
    if isinstance(model, RetrievalModel):
        model.catalogue = Catalogue.from_state(extra["catalogue"])
    checkpoint.load(directory, model, None, () if ps is not None else model.emb, map_location=device)
    return model.eval(), extra["spec"]
