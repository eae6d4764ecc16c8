"""Graphs that a quantizer trips over: outputs unused, shared or constant, weights shared, no convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.device import tiny

_IMAGE = [1, 3, 16, 16]
_SCORES = {"probabilities": [1, 3]}


def _values(*shape: int, scale: float = 0.4) -> np.ndarray:
    """The same for the same shape, whatever was made before."""
    return np.random.default_rng([8, *shape]).normal(0, scale, shape).astype(np.float32)


def _with(nodes: Sequence[onnx.NodeProto], **weights: np.ndarray) -> onnx.ModelProto:
    """A classifier from what makes `features` (1, C, H, W) of three channels."""
    end = [
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model([*nodes, *end], _IMAGE, _SCORES, weights)


def _conv(inputs: list[str], output: str, name: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Conv", inputs, [output], name=name, **attributes)


def one_convolution() -> onnx.ModelProto:
    return _with([_conv(["images", "w"], "features", "only", pads=[1, 1, 1, 1])], w=_values(3, 3, 3, 3))


def depthwise() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "d"], "a", "depthwise", group=3, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        _conv(["b", "w"], "features", "pointwise"),
    ]
    return _with(nodes, d=_values(3, 1, 3, 3), w=_values(3, 3, 1, 1, scale=1.0))


def grouped() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        _conv(["a", "w2"], "b", "grouped", group=4),
        _conv(["b", "w3"], "features", "last"),
    ]
    return _with(nodes, w1=_values(8, 3, 1, 1), w2=_values(8, 2, 3, 3), w3=_values(3, 8, 1, 1, scale=1.0))


def transposed() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "w1"], "a", "down", strides=[2, 2]),
        helper.make_node("ConvTranspose", ["a", "w2"], ["b"], name="up", strides=[2, 2]),
        _conv(["b", "w3"], "features", "last"),
    ]
    return _with(nodes, w1=_values(8, 3, 2, 2), w2=_values(8, 4, 2, 2), w3=_values(3, 4, 1, 1, scale=1.0))


def shared_weights() -> onnx.ModelProto:
    nodes = [
        _conv(["images", "w"], "a", "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        _conv(["b", "w"], "features", "second", pads=[1, 1, 1, 1]),
    ]
    return _with(nodes, w=_values(3, 3, 3, 3))


def shared_by_kinds() -> onnx.ModelProto:
    """One matrix for a convolution and, reshaped, for a MatMul; and a bias that is added to a tensor as well."""
    nodes = [
        _conv(["images", "w", "b"], "a", "first"),
        helper.make_node("Reshape", ["b", "shape"], ["b4"]),
        helper.make_node("Add", ["a", "b4"], ["c"]),
        _conv(["c", "w", "b"], "features", "second"),
    ]
    return _with(nodes, w=_values(3, 3, 1, 1, scale=1.0), b=_values(3), shape=np.array([1, 3, 1, 1]))


def computed_weights() -> onnx.ModelProto:
    """The second convolution's weights come from the picture."""
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Reshape", ["g", "shape"], ["kernel"]),
        _conv(["images", "kernel"], "features", "computed"),
    ]
    return _with(nodes, w1=_values(9, 3, 1, 1, scale=1.0), shape=np.array([3, 3, 1, 1]))


def batch_normalization_first() -> onnx.ModelProto:
    """In front of the convolution, behind a branch: nothing can take it in."""
    nodes = [
        helper.make_node("BatchNormalization", ["images", "s", "o", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        _conv(["r", "w"], "a", "first"),
        helper.make_node("Add", ["a", "n"], ["sum"]),
        helper.make_node("BatchNormalization", ["sum", "s", "o", "m", "v"], ["features"]),
    ]
    weights = {
        "s": np.array([1.5, 0.5, -1.0], np.float32),
        "o": np.array([0.1, -0.2, 0.3], np.float32),
        "m": np.array([0.4, 0.5, 0.6], np.float32),
        "v": np.array([0.2, 0.3, 0.1], np.float32),
    }
    return _with(nodes, w=_values(3, 3, 1, 1, scale=1.0), **weights)


def gemm_only() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w1", "b1"], ["a"], name="wide"),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["logits"], name="narrow"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    weights = {"w1": _values(768, 16, scale=0.05), "b1": _values(16), "w2": _values(16, 3)}
    return tiny.model(nodes, _IMAGE, _SCORES, weights)


def no_weights() -> onnx.ModelProto:
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, _IMAGE, _SCORES)


def dead_channel() -> onnx.ModelProto:
    """A filter of zeros, a tensor that is zero on every picture, and one that is a constant."""
    w1 = _values(8, 3, 1, 1)
    w1[2] = 0
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        _conv(["a", "zeros"], "dead", "dead"),
        helper.make_node("Relu", ["dead"], ["nothing"]),
        _conv(["a", "zeros", "seven"], "seven_everywhere", "constant"),
        helper.make_node("Mul", ["nothing", "seven_everywhere"], ["still_nothing"]),
        helper.make_node("Add", ["a", "still_nothing"], ["b"]),
        _conv(["b", "w2"], "features", "last"),
    ]
    weights = {
        "w1": w1,
        "zeros": np.zeros((8, 8, 1, 1), np.float32),
        "seven": np.full(8, 7, np.float32),
        "w2": _values(3, 8, 1, 1, scale=1.0),
    }
    return _with(nodes, **weights)


def tiny_values() -> onnx.ModelProto:
    """An activation whose largest value is the smallest that a float can hold, or near it."""
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        _conv(["a", "little"], "c", "little"),
        helper.make_node("Add", ["a", "c"], ["b"]),
        _conv(["b", "w2"], "features", "last"),
    ]
    weights = {
        "w1": _values(3, 3, 1, 1),
        "little": np.full((3, 3, 1, 1), 1e-41, np.float32),
        "w2": _values(3, 3, 1, 1, scale=1.0),
    }
    return _with(nodes, **weights)


def old(opset: int) -> onnx.ModelProto:
    """What exporters wrote at opsets 7 to 12: bounds, pads and scales as attributes at first, and as inputs later."""
    node = helper.make_node
    weights = {
        "w1": _values(8, 3, 3, 3),
        "s": np.abs(_values(8, scale=1.0)) + 0.5,
        "o": _values(8),
        "m": _values(8),
        "v": np.abs(_values(8, scale=1.0)) + 0.5,
        "w2": _values(4, 8, 1, 1, scale=1.0),
        "w3": _values(4, 3, scale=1.0),
        "b3": _values(3),
        "shape": np.array([1, 4]),
    }
    clip, pad, twice = ["n"], ["k"], ["d"]
    bounds: dict[str, object] = {"min": 0.0, "max": 6.0}
    pads: dict[str, object] = {"pads": [0, 0, 1, 1, 0, 0, 1, 1]}
    scales: dict[str, object] = {"mode": "nearest"}
    if opset >= 11:
        weights |= {"low": np.array(0, np.float32), "high": np.array(6, np.float32), "roi": np.zeros(0, np.float32)}
        weights["pads"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
        bounds, pads, clip, pad, twice = {}, {}, ["n", "low", "high"], ["k", "pads"], ["d", "roi"]
    if opset >= 9:
        weights["scales"] = np.array([1, 1, 2, 2], np.float32)
        twice.append("scales")
    else:
        scales["scales"] = [1.0, 1.0, 2.0, 2.0]
    nodes = [
        _conv(["images", "w1"], "a", "first"),
        node("BatchNormalization", ["a", "s", "o", "m", "v"], ["n"]),
        node("Clip", clip, ["k"], **bounds),
        node("Pad", pad, ["p"], **pads),
        node("Dropout", ["p"], ["d"], **({"ratio": 0.3} if opset < 12 else {})),
        node("Resize" if opset >= 11 else "Upsample", twice, ["u"], **scales),
        _conv(["u", "w2"], "c", "second"),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Reshape", ["g", "shape"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["logits"]),
        node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, _IMAGE, _SCORES, weights, opset=opset)


def unread_nodes() -> onnx.ModelProto:
    """Two nodes whose results nobody reads, one of them a convolution; and a second result of a Split."""
    proto = tiny.classifier()
    proto.graph.node.append(helper.make_node("Conv", ["r1", "w2", "b2"], ["unread"], name="unread"))
    proto.graph.node.append(helper.make_node("Sigmoid", ["c2"], ["unread_too"], name="unread_too"))
    proto.graph.node.append(helper.make_node("Split", ["r1"], ["half", "other"], name="halves", axis=1, num_outputs=2))
    proto.opset_import[0].version = 18
    return proto


def _two_outputs(make: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    proto = tiny.classifier()
    make(proto)
    return proto


def _add_output(proto: onnx.ModelProto, name: str, shape: list[int]) -> None:
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def output_read_inside() -> onnx.ModelProto:
    """The features in the middle are an output too, and read by the rest."""
    return _two_outputs(lambda proto: _add_output(proto, "r1", [1, 8, 8, 8]))


def weight_as_output() -> onnx.ModelProto:
    return _two_outputs(lambda proto: _add_output(proto, "b1", [8]))


def input_as_output() -> onnx.ModelProto:
    return _two_outputs(lambda proto: _add_output(proto, "images", _IMAGE))


def output_twice() -> onnx.ModelProto:
    return _two_outputs(lambda proto: _add_output(proto, "probabilities", [1, 3]))


def two_inputs() -> onnx.ModelProto:
    proto = tiny.classifier()
    proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 3]))
    proto.graph.node[-1].input[0] = "sum"
    proto.graph.node.insert(len(proto.graph.node) - 1, helper.make_node("Add", ["logits", "more"], ["sum"]))
    return proto


def heads_from_one_tensor() -> onnx.ModelProto:
    """A detector with two heads that are one tensor, through an Identity each."""
    proto = tiny.head_detector()
    proto.graph.node[-1].output[0] = "raw"
    for name in ("head", "head2"):
        proto.graph.node.append(helper.make_node("Identity", ["raw"], [name]))
    _add_output(proto, "head2", [1, 7, 4, 4])
    return proto
