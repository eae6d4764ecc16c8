"""INT8: QDQ with the target's types, static calibration, the decoding tail left float.

Requires a checked model; ensures a quantized ONNX file whose convolutions are all surrounded by QuantizeLinear and
DequantizeLinear, but for those of the tail.
"""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from edge_sdk.errors import ModelError
from edge_sdk.target import Target
from edge_sdk_tools.calibration import ImageReader
from edge_sdk_tools.disk import raise_if_full

PERCENTILE = 99.999
"""Share of each activation's values that the integers span; docs/adr/0003 has what other ways cost."""

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class Quantized(msgspec.Struct, frozen=True):
    """A quantized model on disk.

    Attributes:
        path: the QDQ ONNX file.
        float_nodes: names of nodes that were left float on purpose.
        recipe: settings by name, for the manifest.
        macs: multiply-accumulates of every convolution outside the float nodes, by node name.
    """

    path: Path
    float_nodes: tuple[str, ...]
    recipe: dict[str, str | int | bool]
    macs: dict[str, int]


def quantize(
    proto: onnx.ModelProto, target: Target, reader: ImageReader, folder: Path, *, reduce_range: bool
) -> Quantized:
    """Quantize `proto` into `folder`.

    Args:
        proto: checked, with fixed shapes.
        target: whose integer types are used.
        reader: calibration images.
        folder: for the result and the steps between; must exist.
        reduce_range: 7-bit weights, where the target or this host would saturate.

    Raises:
        ModelError: when the quantizer cannot handle the model.
    """
    source, simplified, result = folder / "fp32.onnx", folder / "simplified.onnx", folder / "int8.onnx"
    onnx.save(proto, source)
    try:
        # Symbolic shape inference is for dynamic shapes, which the export gate has fixed.
        quant_pre_process(str(source), str(simplified), skip_symbolic_shape=True)
        prepared = onnx.load(simplified)
        tail = decoding_tail(prepared)
        with contextlib.redirect_stdout(io.StringIO()):  # the quantizer narrates
            quantize_static(
                prepared,
                str(result),
                reader,
                quant_format=QuantFormat.QDQ,
                per_channel=target.per_channel,
                reduce_range=reduce_range,
                activation_type=QuantType[target.activation_type],
                weight_type=QuantType[target.weight_type],
                nodes_to_exclude=list(tail),
                calibrate_method=CalibrationMethod.Percentile,
                # One image at a time, whatever the option is called: else the activations of all images are kept.
                extra_options={
                    "ActivationSymmetric": target.activation_type == "QInt8",
                    "CalibPercentile": PERCENTILE,
                    "CalibStridedMinMax": 1,
                },
            )
    except Exception as cause:  # the quantizer raises whatever its parts raise
        raise_if_full(folder)
        raise ModelError(f"quantization failed: {str(cause).splitlines()[0]}") from cause
    recipe: dict[str, str | int | bool] = {
        "format": "QDQ",
        "calibration": f"percentile {PERCENTILE}",
        "activation_type": target.activation_type,
        "weight_type": target.weight_type,
        "per_channel": target.per_channel,
        "reduce_range": reduce_range,
    }
    macs = {name: count for name, count in convolution_macs(prepared).items() if name not in tail}
    return Quantized(result, tail, recipe, macs)


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
        learns = node.op_type in _WEIGHTED and not _is_mean(node, weights)
        reaches = learns or any(name in before_layer for name in node.output)
        if reaches:
            before_layer.update(node.input)
        else:
            tail.append(node.name)
    return tuple(reversed(tail))


def convolution_macs(proto: onnx.ModelProto) -> dict[str, int]:
    """Multiply-accumulates of every Conv by node name, batch 1; shapes must have been inferred."""
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.value_info, *proto.graph.output)
    }
    weights = {w.name: list(w.dims) for w in proto.graph.initializer}
    return {
        node.name: int(np.prod(shapes[node.output[0]])) * int(np.prod(weights[node.input[1]][1:]))
        for node in proto.graph.node
        if node.op_type == "Conv" and node.output[0] in shapes and node.input[1] in weights
    }


def _is_mean(node: onnx.NodeProto, weights: dict[str, tuple[int, ...]]) -> bool:
    shape = weights.get(node.input[1], ()) if len(node.input) > 1 else ()
    return node.op_type == "Conv" and len(shape) == 4 and shape[0] == 1 and shape[2:] == (1, 1)


# What goes wrong in the pre-processing goes wrong in the next step too, and is said there in one line.
logging.getLogger("onnxruntime.quantization.shape_inference").setLevel(logging.CRITICAL)
# The quantizer advises on the root logger to do what was done above.
logging.getLogger().addFilter(lambda record: "pre-processing before quantization" not in record.getMessage())
