"""DeepFM by several processes in step: rows on parameter servers, dense parameters by DistributedDataParallel.

sanderling ps --listen tcp://127.0.0.1:7000 &
torchrun --standalone --nproc-per-node 2 examples/train_distributed.py tcp://127.0.0.1:7000 [CONFIG.toml]

With plain `python` in place of torchrun one process does all, which comes to the same. Data as in train_deepfm.py.
"""

import sys
import tomllib
import zlib
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import sanderling
from sanderling.torch import EmbeddingCollection, Spec, join
from sanderling.torch.models import DeepFM

DIM = 8
BATCH = 512  # of all processes together
PASSES = 3


def main() -> None:
    """Trains; each process says after each pass what the loss of all was, and what its dense parameters are."""
    config = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("adult_deepfm.toml")
    spec = tomllib.loads(config.read_text())
    source = spec["data"].pop("train")
    spec["data"].pop("valid", None)
    spec = {section: spec[section] for section in ("data", "label", "feature") if section in spec}
    features = [
        name
        for feature in spec["feature"]
        for name in feature.get("each", [feature.get("name", feature.get("column"))])
    ]

    servers = sanderling.connect(sys.argv[1])
    workers = join(servers, "sync")
    torch.manual_seed(1)  # all start alike
    model = DeepFM(len(features), DIM, hidden=[64, 32])
    rows = {"optimizer": {"type": "adam", "lr": 1e-3}, "init": {"type": "normal", "std": 0.01}}
    emb = EmbeddingCollection(Spec.alike(features, model.row_width, **rows), servers, push="step", workers=workers)
    trained = DistributedDataParallel(model) if workers.size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(PASSES):
        # Without the collection: rows are looked up in the step that reads them, not ahead.
        samples_of_pass = sanderling.FileSource(
            source,
            spec,
            batch_size=BATCH // workers.size,
            shuffle_rows=100_000,
            seed=epoch,
            rank=workers.rank,
            ranks=workers.size,
        )
        seen = np.zeros(2)  # loss and samples
        for batch in workers.batches(sanderling.FeedQueue(samples_of_pass)):
            logits = trained(emb(batch).stacked())
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
            optimizer.zero_grad()
            (loss * workers.share).backward()
            optimizer.step()
            emb.step()  # waits until the rows' gradients of all processes are applied
            seen += float(loss.detach()) * len(batch), len(batch)
        total, samples = workers.group.all_reduce("loss", seen)
        dense = zlib.crc32(parameters_to_vector(model.parameters()).detach().numpy().tobytes())
        place = f"process {workers.rank} of {workers.size}, pass {epoch + 1}"
        sys.stdout.write(f"{place}: loss {total / samples:.6f}, dense parameters {dense:08x}\n")
    if workers.size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
