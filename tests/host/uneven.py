"""A classifier whose full INT8 loses its quality."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.device import tiny


def uneven() -> onnx.ModelProto:
    """The tiny classifier with a detour: a channel of thousands shares a tensor with those of 1 that decide.

    Its integers are steps of dozens, so the layers about it must be float; `first` and `second` need not.
    """
    proto = tiny.classifier()
    random = np.random.default_rng(4)
    up = random.normal(0, 0.5, (9, 8, 1, 1)).astype(np.float32)
    up[:8, :, 0, 0] = np.eye(8)
    up[8] = 400.0
    down = np.zeros((8, 9, 1, 1), np.float32)
    down[:, :8, 0, 0] = np.eye(8)
    for name, value in (("up", up), ("down", down)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    at = next(i for i, node in enumerate(proto.graph.node) if node.name == "second")
    proto.graph.node[at].input[0] = "r3"
    proto.graph.node.insert(at, helper.make_node("Conv", ["r1", "up"], ["c3"], name="uneven"))
    proto.graph.node.insert(at + 1, helper.make_node("Conv", ["c3", "down"], ["r3"], name="even"))
    return proto
