"""Logistic regression on Ray: two parameter servers, a hub that reads once, and trainers that share its minibatches.

pip install '.[ray]'
python examples/ray_train.py [CONFIG.toml FILE...]

Without arguments it trains on the census data of this repository.
"""

import sys
import tomllib
from pathlib import Path

import numpy as np
import ray

import sanderling
import sanderling.ray

TRAINERS = 2
PASSES = 3


@ray.remote
def train(cluster: sanderling.ray.Cluster, features: list[str], rank: int) -> tuple[int, float]:
    """Trains on the minibatches that the hub gives this trainer; returns its rows, and its logloss at the end."""
    connection = sanderling.connect(cluster.address, token=cluster.token)
    tables = [connection.table(name, 1, optimizer={"type": "adagrad", "lr": 0.05}) for name in features]
    weights = sanderling.Embedding(tables, [(name, at, "sum") for at, name in enumerate(features)])
    source = sanderling.HubSource(cluster.hub_address, name=f"trainer {rank}", token=cluster.token)
    rows, losses = 0, []
    for batch in sanderling.FeedQueue(source, weights):
        score = 1 / (1 + np.exp(-batch.lookup.pooled.sum(axis=1)))
        batch.lookup.add_grads(np.repeat((score - batch.labels)[:, None], len(features), axis=1) / len(batch))
        batch.lookup.push()
        losses.append(-np.log(np.where(batch.labels == 1, score, 1 - score)).mean())
        rows += len(batch)
    weights.finish()
    return rows, float(np.mean(losses[-20:]))


def main() -> None:
    """Starts the servers, trains, shuts the servers down."""
    config = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/adult_lr.toml").resolve()
    features = [
        name
        for entry in tomllib.loads(config.read_text())["feature"]
        for name in entry.get("each", [entry.get("name")])
    ]
    data = [str(Path(path).resolve()) for path in sys.argv[2:]] or [str(Path("data/adult/adult.data.gz").resolve())]
    hub = [*data, "--config", str(config), "--passes", str(PASSES), "--batch-size", "256"]
    with sanderling.ray.start(servers=2, hubs=1, hub_options=hub) as cluster:
        trained = ray.get([train.remote(cluster, features, rank) for rank in range(TRAINERS)])
        for rank, (rows, loss) in enumerate(trained):
            sys.stdout.write(f"trainer {rank}: {rows} rows, logloss {loss:.3f}\n")


if __name__ == "__main__":
    main()
