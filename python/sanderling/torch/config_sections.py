"""Sections of the configuration of a deep run, as dataclasses; `sanderling.torch.deep_config` checks their values.

This module does not import torch.
"""

from dataclasses import dataclass, field
from typing import Any

from sanderling.torch.quantity import seconds, size_bytes

PS_TIMEOUT_S = (0.01, 86_400.0)
"""Smallest and largest `train.ps_timeout`, in seconds."""


@dataclass
class ModelConfig:
    """Section `[model]`: type and sizes of the model. An entry that the model does not have is an error."""

    type: str = "dnn"
    dim: int = 16
    init_std: float = 0.01
    """Standard deviation of initial embeddings."""
    table_budget: str | int = ""
    """Memory limit per table, such as "4GiB"; empty: no limit. A loaded table keeps its saved limit."""
    hidden: list[int] | None = None
    dropout: float = 0.0
    batch_norm: bool = False
    cross_layers: int | None = None
    bottom: list[int] | None = None
    attention: list[int] | None = None
    head: list[int] | None = None
    """Several labels: widths of the layers of each label's own part."""
    candidate: str = ""
    """DIN: name of the candidate feature, which attends to the history; both features read one table."""
    history: str = ""
    """DIN: name of the history feature, a sequence of keys with the most recent last."""
    history_length: int = 50
    """DIN: maximum length of a history in keys; longer ones keep the last keys."""
    user: list[str] | None = None
    """MF, two towers: features of the user; the first one identifies it. By default the first feature."""
    item: list[str] | None = None
    """MF, two towers: features of the item; the first one identifies it. By default the second feature."""
    normalize: bool = False
    """Two towers: whether vectors have length 1, so that the score is a cosine."""
    temperature: float = 1.0
    """MF, two towers: divisor of the scores in training."""

    @property
    def table_budget_bytes(self) -> int:
        """Return `table_budget` in bytes; 0: no limit."""
        return size_bytes("model.table_budget", self.table_budget) if self.table_budget else 0


@dataclass
class SamplingConfig:
    """Section `[sampling]`: negative items of models with users and items."""

    by: str = "uniform"
    """`uniform`; `popularity`: by an item's number of pairs to the power `power`; `in_batch`: items of the others."""
    per_positive: int = 1
    """Number of negatives per pair; without effect for `in_batch`."""
    power: float = 0.75
    exclude_seen: bool = True
    """Whether items that the user has in the training data are no negatives; without effect for `in_batch`."""
    correct: bool = True
    """Softmax: whether scores are corrected by the logarithm of the chance of their items (logQ)."""


@dataclass
class DenseOptimizerConfig:
    """Section `[dense_optimizer]`: torch's optimizer of the dense parameters, that is of all but embedding rows."""

    type: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0


@dataclass
class TrainConfig:
    """Section `[train]`; see docs/configuration.md for the entries that built-in learners have, too."""

    batch_size: int = 1024
    passes: int = 1
    threads: int = 2
    """Number of threads of the feed queue."""
    depth: int = 4
    """Number of minibatches read and looked up ahead; embeddings may be stale by as many steps."""
    shuffle_rows: int = 100_000
    schedule: dict[str, Any] = field(default_factory=lambda: {"type": "constant"})
    early_stop: int = 0
    monitor: str = "auc"
    """Metric of the best pass: `auc`, `logloss`; of a regression `rmse`, `mae`; of users and items `ndcg@20`."""
    loss: str = ""
    """`logloss` or `mse`; of models with users and items `bpr`, `softmax` or `logloss`; empty: by the model."""
    top_k: list[int] = field(default_factory=lambda: [20])
    """Lengths of the ranked lists that validation measures, for models with users and items."""
    print_every_steps: int = 0
    max_steps: int = 0
    l2_idle: bool = False
    """Whether `l2` acts on all rows in every step, as with a dense gradient, and not only on rows of the minibatch.

    Each step then passes over whole tables, which must be in this process.
    """
    clip_norm: float = 0.0
    """Maximum norm of the gradients of a step, embedding rows and dense parameters together; 0: no limit."""
    save_every_steps: int = 0
    """Checkpoint interval within a pass, in steps; 0: only after each pass and when the run is stopped."""
    download: bool = True
    """Whether the model gets its rows from the servers, so that it is used without them; false: they stay there."""
    ps_timeout: str = "20s"
    """Request timeout of parameter servers, also while a server is unreachable."""

    @property
    def ps_timeout_s(self) -> float:
        """Return `ps_timeout` in seconds."""
        return seconds("train.ps_timeout", self.ps_timeout, *PS_TIMEOUT_S)
