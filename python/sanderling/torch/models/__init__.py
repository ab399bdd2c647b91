"""Click models as plain modules: embeddings and dense values in, logits out. They know no table and no data.

All take `rows` float32 [B, fields, row_width] and `dense` float32 [B, dense] or None; `row_width` is `dim`, or `dim +
1` for models whose rows hold a linear weight as well. DIN takes a history, too.
"""

from sanderling.torch.models.dcn import DCN
from sanderling.torch.models.dcnv2 import DCNv2
from sanderling.torch.models.deepfm import DeepFM
from sanderling.torch.models.din import DIN
from sanderling.torch.models.dlrm import DLRM
from sanderling.torch.models.dnn import DNN
from sanderling.torch.models.wide_deep import WideDeep

__all__ = ["DCN", "DIN", "DLRM", "DNN", "DCNv2", "DeepFM", "WideDeep"]


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
