"""DeepFM in a plain PyTorch loop, its embeddings in Sanderling's tables.

python examples/train_deepfm.py               the census data of this repository
python examples/train_deepfm.py CONFIG.toml   any data: [data], [label] and [[feature]] as in docs/configuration.md
"""

import sys
import tomllib
from pathlib import Path

import numpy as np
import torch

import sanderling
from sanderling.torch import EmbeddingCollection, Spec
from sanderling.torch.models import DeepFM

DIM = 8
BATCH = 512
PASSES = 3


def main() -> None:
    """Trains, and says after each pass how well each row was predicted before it taught."""
    config = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("adult_deepfm.toml")
    spec = tomllib.loads(config.read_text())
    source = spec["data"].pop("train")
    spec["data"].pop("valid", None)
    spec = {section: spec[section] for section in ("data", "label", "feature") if section in spec}
    features = [
        name
        for feature in spec["feature"]
        for name in feature.get("each", [feature.get("name", feature.get("column"))])
    ]

    torch.manual_seed(1)
    model = DeepFM(len(features), DIM, hidden=[64, 32])
    rows = {"optimizer": {"type": "adam", "lr": 1e-3}, "init": {"type": "normal", "std": 0.01}}
    emb = EmbeddingCollection(Spec.alike(features, model.row_width, **rows))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(PASSES):
        labels, scores = [], []
        rows = sanderling.FileSource(source, spec, batch_size=BATCH, shuffle_rows=100_000, seed=epoch)
        for batch in sanderling.FeedQueue(rows, emb.native):
            logits = model(emb(batch).stacked())
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
            optimizer.zero_grad()
            loss.backward()  # hands the gradients of the rows to their tables
            optimizer.step()
            labels.append(batch.labels.copy())
            scores.append(logits.detach().numpy())
        seen = sanderling.metrics(np.concatenate(labels), np.concatenate(scores), from_logits=True)
        sys.stdout.write(f"pass {epoch + 1}: auc {seen['auc']:.4f}, logloss {seen['logloss']:.4f}\n")


if __name__ == "__main__":
    main()
