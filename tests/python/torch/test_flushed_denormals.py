"""Rows of f16 in a thread that takes subnormal numbers of float32 for 0, as programs with `-ffast-math` may."""

from pathlib import Path

import numpy as np
import torch

import sanderling

# Subnormal as f16, and normal as f32.
WEIGHT = 2.0**-20
KEYS = np.arange(1, 6, dtype=np.uint64)


def test_small_weights_are_pulled_and_saved(tmp_path: Path) -> None:
    for dim in (1, 3, 16, 19):
        table = sanderling.Table("small", dim, optimizer={"type": "sgd", "lr": 1.0}, dtype="f16")
        assert torch.set_flush_denormal(True)
        try:
            table.push(KEYS, np.full((len(KEYS), dim), -WEIGHT, np.float32))
            pulled = table.pull(KEYS)
            # An update that starts from such weights: it adds nothing, and rounds nothing, since they are f16 already.
            table.push(KEYS, np.zeros((len(KEYS), dim), np.float32))
            table.save(tmp_path / f"of-{dim}")
        finally:
            torch.set_flush_denormal(False)
        assert pulled.tolist() == [[WEIGHT] * dim] * len(KEYS), dim
        loaded = sanderling.Table.load(tmp_path / f"of-{dim}")
        assert loaded.pull(KEYS).tolist() == pulled.tolist(), dim
