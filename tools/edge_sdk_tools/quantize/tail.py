"""The decoding tail: what only turns the last layers' numbers into boxes and scores, and must not lose a digit."""

from __future__ import annotations

import onnx

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def decoding_tail(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the nodes between the last layers that learn and the outputs, in graph order.

    Boxes in pixels and scores of 0-1 that share one tensor share one scale, and INT8 turns the scores into zeros. Found
    from the structure: a node is in the tail when no path from it to an output meets a weighted layer. A 1x1
    convolution with a single output channel, as YOLOv8 has to take a distribution's mean, is arithmetic, not a layer.
    """
    weights = {w.name: tuple(w.dims) for w in proto.graph.initializer}
    before_layer: set[str] = set()  # tensors from which a weighted layer is reached
    tail: list[str] = []
    for node in reversed(proto.graph.node):
        learns = node.op_type in WEIGHTED and not _is_mean(node, weights)
        reaches = learns or any(name in before_layer for name in node.output)
        if reaches:
            before_layer.update(node.input)
        else:
            tail.append(node.name)
    return tuple(reversed(tail))


def _is_mean(node: onnx.NodeProto, weights: dict[str, tuple[int, ...]]) -> bool:
    shape = weights.get(node.input[1], ()) if len(node.input) > 1 else ()
    return node.op_type == "Conv" and len(shape) == 4 and shape[0] == 1 and shape[2:] == (1, 1)
