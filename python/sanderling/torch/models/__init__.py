"""Click models as torch modules: embeddings and dense values in, logits out, without tables.

All models take `rows` float32 [B, fields, row_width] and `dense` float32 [B, dense] or None, and return logits float32
[B]. `row_width` is `dim`, or `dim + 1` if a row also has a linear weight. DIN also takes a history. MF and TwoTower
return vectors of users and items instead.
"""

from sanderling.torch.models.dcn import DCN
from sanderling.torch.models.dcnv2 import DCNv2
from sanderling.torch.models.deepfm import DeepFM
from sanderling.torch.models.din import DIN
from sanderling.torch.models.dlrm import DLRM
from sanderling.torch.models.dnn import DNN
from sanderling.torch.models.shared_bottom import SharedBottom
from sanderling.torch.models.two_tower import MF, TwoTower
from sanderling.torch.models.wide_deep import WideDeep

__all__ = ["DCN", "DIN", "DLRM", "DNN", "MF", "DCNv2", "DeepFM", "SharedBottom", "TwoTower", "WideDeep"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)
