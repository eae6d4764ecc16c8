"""The decoding tail: what only turns the last layers' numbers into boxes and scores, and must not lose a digit."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
_CORNERS = (4, 4)

_Shapes = Mapping[str, tuple[int, ...]]


def decoding_tail(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the nodes between the last layers that learn and the outputs, in graph order.

    Boxes in pixels and scores of 0-1 that share one tensor share one scale, and INT8 turns the scores into zeros. Found
    from the structure, whatever the names and the order: a node is in the tail when no path from it to an output meets
    a layer. Two kinds of products with constants are arithmetic and no layers: the mean of a distribution (YOLOv8,
    NanoDet and others that learn by generalized focal loss), which follows a softmax and leaves one number of each; and
    the four sides of a box times 4 x 4 numbers (YOLOv7 with suppression), from its middle and size to its corners.
    """
    constants = _constants(proto)
    makers = {name: node for node in proto.graph.node for name in node.output}
    before_layer: set[str] = set()  # tensors from which a weighted layer is reached
    tail: list[str] = []
    for node in reversed(proto.graph.node):
        learns = node.op_type in WEIGHTED and not _is_arithmetic(node, constants, makers)
        reaches = learns or any(name in before_layer for name in node.output)
        if reaches:
            before_layer.update(node.input)
        else:
            tail.append(node.name)
    return tuple(reversed(tail))


def _constants(proto: onnx.ModelProto) -> _Shapes:
    shapes = {w.name: tuple(w.dims) for w in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            shapes.update((node.output[0], tuple(a.t.dims)) for a in node.attribute if a.name == "value")
    return shapes


def _is_arithmetic(node: onnx.NodeProto, constants: _Shapes, makers: Mapping[str, onnx.NodeProto]) -> bool:
    shape = constants.get(node.input[1]) if len(node.input) > 1 else None
    if shape is None:
        return False
    if node.op_type in ("MatMul", "Gemm") and shape == _CORNERS:
        return True
    return _leaves_one(node, shape) and _follows_softmax(node.input[0], makers)


def _leaves_one(node: onnx.NodeProto, shape: tuple[int, ...]) -> bool:
    """Whether a product with a constant of this shape makes one number of many."""
    if node.op_type == "Conv":
        return shape[0] == 1 and set(shape[2:]) == {1}
    is_transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return node.op_type in ("MatMul", "Gemm") and (len(shape) == 1 or shape[0 if is_transposed else -1] == 1)


def _follows_softmax(name: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a tensor holds a softmax's values, wherever they were moved since."""
    node = makers.get(name)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    return node is not None and node.op_type == "Softmax"
