"""Deep models on Sanderling's tables: embedding collections, checkpoints, models and a trainer for PyTorch.

This package needs torch (`pip install 'sanderling[torch]'`); `import sanderling` does not import it. See docs/torch.md.
"""

from sanderling.torch.checkpoint import load, save
from sanderling.torch.click_model import ClickModel
from sanderling.torch.embedding import EmbeddingCollection, RowOptimizer, SequenceCollection
from sanderling.torch.file_scores import FileScores, predict
from sanderling.torch.jagged import Embedded, JaggedRows, KeyedJagged, to_batch
from sanderling.torch.retrieval_model import RetrievalModel
from sanderling.torch.saved_model import download, open_model
from sanderling.torch.spec import FeatureSpec, Spec, TableSpec
from sanderling.torch.trainer import train
from sanderling.torch.workers import Workers, join

__all__ = [
    "ClickModel",
    "Embedded",
    "EmbeddingCollection",
    "FeatureSpec",
    "FileScores",
    "JaggedRows",
    "KeyedJagged",
    "RetrievalModel",
    "RowOptimizer",
    "SequenceCollection",
    "Spec",
    "TableSpec",
    "Workers",
    "download",
    "join",
    "load",
    "open_model",
    "predict",
    "save",
    "to_batch",
    "train",
]


def __dir__() -> list[str]:
    """List the public names only; the submodules are internal."""
    return sorted(__all__)
