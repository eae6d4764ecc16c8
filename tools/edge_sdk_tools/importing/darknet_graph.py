"""The ONNX graph while it grows: nodes, constants, and each Darknet layer's output.

Owns names and shapes, and no meaning of layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edge_sdk_tools.importing.darknet_cfg import Section
from edge_sdk_tools.importing.darknet_weights import ConvolutionWeights

INPUT_NAME = "images"
# Per-channel QDQ needs 13 at least; 17 is run by every ONNX Runtime that a target may name.
OPSET = 17
_IR_VERSION = 8  # the one that belongs to opset 17


class Value(NamedTuple):
    """A tensor float32 (1, channels, height, width)."""

    name: str
    channels: int
    height: int
    width: int


class Head(msgspec.Struct, frozen=True):
    """One raw output, the input of a [yolo].

    Attributes:
        value: the tensor: for each anchor x, y, w, h, objectness and one score a class.
        anchors: (width, height) in input pixels.
        scale_xy: Darknet's `scale_x_y`.
        classes: number of classes.
    """

    value: Value
    anchors: tuple[tuple[float, float], ...]
    scale_xy: float
    classes: int


class Graph:
    """Collects what the layers add.

    Args:
        value: the network's input.

    Attributes:
        layers: each layer's output by Darknet's count; None where a layer has none that others may read.
        weights: what is read from the .weights file, in its order.
        heads: raw outputs in their order.
    """

    def __init__(self, value: Value) -> None:
        self.input = value
        self.layers: list[Value | None] = []
        self.weights: list[ConvolutionWeights] = []
        self.heads: list[Head] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def previous(self, section: Section) -> Value:
        """The tensor that `section` reads when it names none.

        Raises:
            ModelError: when the layer before has no output.
        """
        return self.input if section.index == 0 else self.layer(section, -1)

    def layer(self, section: Section, number: int) -> Value:
        """A layer's output; a negative number counts back from `section`.

        Raises:
            ModelError: when there is no such layer before `section`, or it has no output.
        """
        index = section.index + number if number < 0 else number
        if not 0 <= index < section.index:
            raise section.error(f"reads layer {number}, expected one from 0 to {section.index - 1} or counted back")
        value = self.layers[index]
        if value is None:
            raise section.error(f"reads layer {index}, a [yolo], which has no output to go on with")
        return value

    def node(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add one node with one output; returns its name, which is the node's too.

        The attributes are of the types that `helper.make_node` takes, which are any.
        """
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, values: list[int] | list[float]) -> str:
        """Add a small constant, int64 or float32; returns its name."""
        dtype = np.int64 if all(isinstance(v, int) for v in values) else np.float32
        self._constants.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def to_model(self, name: str, weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
        """The finished and checked ONNX model.

        Args:
            name: of the graph.
            weights: initializers by name.

        Returns:
            Opset 17, batch 1, static shapes, one output a head.
        """
        initializers = [numpy_helper.from_array(array, key) for key, array in weights.items()]
        graph = helper.make_graph(
            self._nodes,
            name,
            [_describe(self.input)],
            [_describe(head.value) for head in self.heads],
            [*self._constants, *initializers],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="edge-sdk", opset_imports=opsets, ir_version=_IR_VERSION)
        # Strict shape inference proves that the shapes computed here are those that ONNX computes.
        onnx.checker.check_model(model, full_check=True)
        return model


def _describe(value: Value) -> onnx.ValueInfoProto:
    shape = (1, value.channels, value.height, value.width)
    return helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape)
