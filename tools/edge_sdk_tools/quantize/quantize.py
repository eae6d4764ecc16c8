"""INT8: QuantizeLinear and DequantizeLinear around every node that a recipe does not leave float.

Requires a simplified model and the ranges of its activations; ensures a quantized ONNX file whose convolutions are all
surrounded by them, but for those of the tail and those that the recipe names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk_tools.disk import raise_if_full
from edge_sdk_tools.quantize.offset_weights import wide_weights
from edge_sdk_tools.quantize.recipe import Recipe
from edge_sdk_tools.quantize.shared_scales import share_ranges
from edge_sdk_tools.quantize.simplified import QUANTIZED_TYPES, Simplified
from edge_sdk_tools.quantize.softmax import softmax_along_last_axis
from edge_sdk_tools.quantize.upsampling import upsample_by_copies
from edge_sdk_tools.silenced import silenced


class Quantized(msgspec.Struct, frozen=True):
    """A quantized model on disk.

    Attributes:
        path: the QDQ ONNX file.
        recipe: how it was made.
        float_nodes: names of all nodes that were left float on purpose, the tail's first.
        macs: multiply-accumulates of every convolution outside the float nodes, by node name.
        has_integers: whether any tensor was quantized at all.
    """

    path: Path
    recipe: Recipe
    float_nodes: tuple[str, ...]
    macs: dict[str, int]
    has_integers: bool


def quantize(model: Simplified, ranges: Mapping[str, tuple[float, float]], recipe: Recipe, path: Path) -> Quantized:
    """Quantize by a recipe.

    Args:
        model: simplified.
        ranges: low and high of every activation, as the recipe's calibration has them.
        recipe: what to do.
        path: of the file to write.

    Raises:
        ModelError: the quantizer cannot handle the model.
        OSError: the disk is full.
    """
    float_nodes = (*model.tail, *(name for name in recipe.float_nodes if name not in set(model.tail)))
    try:
        proto = quantized_proto(model.proto, ranges, recipe, float_nodes)
        onnx.save(proto, path)
    except Exception as cause:  # the quantizer raises whatever its parts raise
        raise_if_full(path.parent, cause)
        raise ModelError(f"quantization failed: {first_line(cause)}") from cause
    macs = {name: count for name, count in model.macs.items() if name not in set(recipe.float_nodes)}
    has_integers = any(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    return Quantized(path, recipe, float_nodes, macs, has_integers)


def quantized_proto(
    proto: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], recipe: Recipe, float_nodes: Sequence[str]
) -> onnx.ModelProto:
    """The quantized graph; whatever ONNX Runtime's quantizer raises passes.

    Args:
        proto: simplified; left as it is.
        ranges: low and high of every activation.
        recipe: the integers.
        float_nodes: all nodes to leave as they are.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    if recipe.shared_scales:
        ranges = share_ranges(proto, ranges, set(float_nodes))
    as_floats = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    with silenced():  # the quantizer narrates
        quantizer = QDQQuantizer(
            copy,
            recipe.per_channel,
            recipe.reduce_range,
            QuantType[recipe.weight_type],
            QuantType[recipe.activation_type],
            TensorsData(CalibrationMethod.MinMax, as_floats),
            [],
            list(float_nodes),
            list(QUANTIZED_TYPES),
            {
                "ActivationSymmetric": recipe.is_symmetric,
                "TensorQuantOverrides": _weight_ranges(proto, recipe, float_nodes),
            },
        )
        quantizer.quantize_model()
        quantizer.model.topological_sort()  # ONNX wants nodes after what they read
    result: onnx.ModelProto = quantizer.model.model
    shapes = _shapes(proto)
    upsample_by_copies(result, shapes)
    softmax_along_last_axis(result, shapes)
    return result


def _weight_ranges(
    proto: onnx.ModelProto, recipe: Recipe, float_nodes: Sequence[str]
) -> dict[str, list[dict[str, float | int]]]:
    """Wider ranges for weights that must not reach their type's largest integer, as the quantizer takes them."""
    if not recipe.leaves_room:
        return {}
    wider = recipe.largest_weight / recipe.largest_wide_weight
    constants = {w.name: w for w in proto.graph.initializer}
    found: dict[str, list[dict[str, float | int]]] = {}
    for name in wide_weights(proto, set(float_nodes)):
        weights = np.abs(numpy_helper.to_array(constants[name]).astype(np.float64))
        if recipe.per_channel:
            peaks = weights.reshape(len(weights), -1).max(axis=1) * wider
            found[name] = [{"axis": 0, "rmin": -peak, "rmax": peak} for peak in peaks.tolist()]
        else:
            peak = float(weights.max()) * wider
            found[name] = [{"rmin": -peak, "rmax": peak}]
    return found


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    values = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    return {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in values}


# On the root logger the quantizer advises to do what was done above, says of weights of one axis that it is one, and
# that a bias does not fit where it has widened its scale so that it does, but for a rounding of .01 %.
_ADVICE = ("pre-processing before quantization", "is out-of-range for weight", "exceeds the range of a int32")
logging.getLogger().addFilter(lambda record: not any(words in record.getMessage() for words in _ADVICE))
