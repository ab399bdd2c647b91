"""Export of a deep model for `sanderling serve`: the dense part as an ONNX file, and the list of its inputs.

Both are written beside the checkpoint, whose tables and feature spec the server reads as they are:

    dense.onnx        the dense part, from pooled rows and numbers to predictions
    serving.json      its inputs: features, tables, poolings; hashes of the ONNX file and of the checkpoint

Each input has the name of its feature. An embedding is float32 [B, D], a number float32 [B], the history of DIN float32
[B, L, D] with a mask `NAME:mask`, float32 [B, L]. The output is float32 [B], of several labels [B, labels].
"""

import hashlib
import json
import logging
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sanderling
from sanderling.torch import checkpoint
from sanderling.torch.click_model import ClickModel
from sanderling.torch.objective import objective_of
from sanderling.torch.retrieval_model import RetrievalModel
from sanderling.torch.saved_model import open_model

ONNX, SERVING = "dense.onnx", "serving.json"
_FORMAT = 1
# Sizes of the inputs by which the model is traced; any other size runs, too.
_ROWS, _STEPS = 3, 5


def export_onnx(directory: str | Path) -> dict[str, Any]:
    """Write the dense part of a saved model into its directory; returns its file, its size and its inputs.

    Raises ConfigError for a model of users and items and where the package onnxscript is missing, and the errors of
    `open_model`.
    """
    directory = Path(directory)
    if find_spec("onnxscript") is None:
        raise sanderling.ConfigError("export --onnx needs onnxscript: pip install 'sanderling[onnx]'")
    model, spec = open_model(directory)
    if isinstance(model, RetrievalModel):
        raise sanderling.ConfigError(
            f"{directory}: a model of users and items has no dense part over rows; its vectors are in its tables"
        )
    part = _DensePart(model, spec)
    path = directory / ONNX
    part_path = path.with_suffix(".onnx.part")
    _write(part, part_path)
    manifest = checkpoint.read_dense(directory, "meta")[0]
    described = {
        "format": _FORMAT,
        "checkpoint": manifest["dense"]["sha256"],
        "onnx": {"file": ONNX, "bytes": part_path.stat().st_size, "sha256": _sha256(part_path)},
        "name": model.config.name,
        "description": manifest.get("description", model.config.model.type),
        **part.described(),
    }
    # An interruption between the two leaves a description whose hash does not match, which the server says.
    part_path.replace(path)
    serving = directory / f"{SERVING}.part"
    serving.write_text(json.dumps(described, indent=1))
    serving.replace(directory / SERVING)
    return {"output": str(path), "bytes": path.stat().st_size, "inputs": part.names()}


class _DensePart(nn.Module):
    """The dense part with an input per feature, and predictions as its output."""

    def __init__(self, model: ClickModel, spec: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.objective = model.model, objective_of(model.config, spec["feature"])
        self.config, self.history, self.history_length = model.config, model.history, model.history_length
        self.embeddings = [feature for feature in model.emb.spec.features if feature.name != model.history]
        self.sequences = [feature for feature in model.emb.spec.features if feature.name == model.history]
        self.numbers = list(model.numbers)
        self.width = int(model.model.row_width)  # type: ignore[arg-type]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return predictions from the inputs in the order of `names`."""
        fields, numbers = len(self.embeddings), len(self.numbers)
        rows = torch.stack(inputs[:fields], 1)
        dense = torch.stack(inputs[fields : fields + numbers], 1) if numbers else None
        return self.objective.predictions(self.model(rows, dense, *inputs[fields + numbers :]))

    def names(self) -> list[str]:
        """Return the names of the inputs."""
        names = [feature.name for feature in self.embeddings] + self.numbers
        return names + [name for feature in self.sequences for name in (feature.name, f"{feature.name}:mask")]

    def output(self) -> str:
        """Return the name of the output: `score`, unless a feature has it."""
        return "score" if "score" not in self.names() else "score:"

    def described(self) -> dict[str, Any]:
        """Return the inputs and the output for the server."""
        history = None
        for feature in self.sequences:
            history = {"feature": feature.name, "table": feature.table, "length": self.history_length}
        return {
            "is_regression": self.config.is_regression,
            "labels": max(1, len(self.config.labels)),
            "width": self.width,
            "embeddings": [
                {"feature": feature.name, "table": feature.table, "pooling": feature.pooling}
                for feature in self.embeddings
            ],
            "numbers": self.numbers,
            "history": history,
            "output": self.output(),
        }

    def traced(self) -> tuple[list[Tensor], list[dict[int, Any]]]:
        """Return inputs to trace the model by, and their dimensions of any size."""
        rows, steps = torch.export.Dim("rows"), torch.export.Dim("steps")
        inputs = [torch.randn(_ROWS, self.width) for _ in self.embeddings]
        inputs += [torch.randn(_ROWS) for _ in self.numbers]
        sizes: list[dict[int, Any]] = [{0: rows} for _ in inputs]
        for _ in self.sequences:
            inputs += [torch.randn(_ROWS, _STEPS, self.width), torch.ones(_ROWS, _STEPS)]
            sizes += [{0: rows, 1: steps}, {0: rows, 1: steps}]
        return inputs, sizes


def _write(part: _DensePart, path: Path) -> None:
    """Write the ONNX file, and flush it (fsync)."""
    inputs, sizes = part.traced()
    # The exporter tells of packages that are not there, and of names of sizes.
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                part.eval(),
                tuple(inputs),
                input_names=part.names(),
                output_names=[part.output()],
                dynamic_shapes=(tuple(sizes),),
                dynamo=True,
                verbose=False,
            )
    finally:
        log.setLevel(level)
    assert program is not None
    program.save(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
