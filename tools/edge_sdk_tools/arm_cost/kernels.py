"""What an inference takes on an ARM core that is not counted, by the cost of each of ONNX Runtime's kernels.

A build has no counter where `edge-sdk arm-cost setup` was not run, or where the target's core cannot be emulated. One
run of a file here then names its kernels and what they make, and tables say how many instructions that takes on a
Cortex-A72, without dot products of bytes, and on a Cortex-A76, which has them. Other cores are taken for the one of
these that multiplies as they do. docs/arm-cost.md compares such sums with counted networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from edge_sdk.bundle.target import Target
from edge_sdk.inference.profile import ProfileEvent
from edge_sdk_tools.arm_cost.estimate import CYCLES
from edge_sdk_tools.graph.index import GraphIndex
from edge_sdk_tools.graph.profile import ProfiledSession


class LayerCost(NamedTuple):
    """Instructions of a convolution.

    Attributes:
        mac: for each multiply-accumulate.
        value: for each value that it makes.
        tap: for each pixel and place of a kernel above 1x1 that is copied before the products.
        depthwise: for each multiply-accumulate of a convolution in which every channel is a group of its own.
    """

    mac: float
    value: float
    tap: float
    depthwise: float


# Of ONNX Runtime 1.31.1, counted kernel by kernel in MobileNetV2 and YOLOv8n.
_INTEGER_LAYERS = {
    "cortex-a72": LayerCost(mac=0.25, value=6.0, tap=33.0, depthwise=0.75),
    "cortex-a76": LayerCost(mac=0.093, value=3.2, tap=33.0, depthwise=0.7),
}
_FLOAT_LAYERS = LayerCost(mac=0.36, value=3.0, tap=20.0, depthwise=1.5)
_STRIDED_DEPTHWISE = 8.0  # in float: a matrix product of one row for each channel
_DEPTHWISE_CHANNEL = 1500  # in float: for each channel, however small it is
_DEEP = 64  # channels from which integer kernels follow pointers and copy nothing
_VALUES = {
    "QLinearSigmoid": 4.1,
    "QLinearLeakyRelu": 4.1,
    "QLinearMul": 2.9,
    "QLinearAdd": 3.1,
    "QLinearConcat": 1.2,
    "QuantizeLinear": 2.8,
    "DequantizeLinear": 1.5,
    "Split": 2.0,
    "Softmax": 18.6,
    "QuickGelu": 9.0,
    "Sigmoid": 8.1,
    "Concat": 0.6,
    "Reshape": 0.0,
    "Flatten": 0.0,
    "Squeeze": 0.0,
    "Unsqueeze": 0.0,
}
"""Instructions for each value that a kernel makes, alike on both cores."""
_OTHER = 2.0
_SCATTERED = 48.0  # of a Transpose of five axes that moves the last one, as a shuffle of channels does
_PRODUCTS = ("Gemm", "MatMul", "QGemm", "QLinearMatMul")

_WITHOUT_DOT = ("cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a73")
_CLOCK_MHZ = 1500  # of a family of cores, and of boards whose clock is not known: only the ratio counts there


def cores_of(target: Target) -> tuple[str, ...]:
    """Return the counted cores that stand for the target's: both for a family of cores."""
    if not target.cpu:
        return tuple(CYCLES)
    return ("cortex-a72",) if target.cpu in _WITHOUT_DOT else ("cortex-a76",)


def kernels_ms(model: Path, floats: onnx.ModelProto, target: Target, core: str) -> float:
    """Return what one inference takes on one thread, in milliseconds, if the target's core is like this one.

    `floats` is the simplified float model that the file was made of, because a profile does not show packed weights.
    """
    session = ProfiledSession(model, model.parent)
    session.run(np.zeros(session.input_shape, session.input_dtype))
    links = GraphIndex(floats.graph)
    weights = {n.name: shape for n in floats.graph.node if n.op_type == "Conv" and (shape := links.shape(n.input[1]))}
    cycles = sum(_cycles(event, weights, core) for event in session.stop_profile() if event.is_kernel)
    return cycles / 1e3 / (target.clock_mhz or _CLOCK_MHZ)


def _cycles(kernel: ProfileEvent, weights: Mapping[str, tuple[int, ...]], core: str) -> float:
    operator = str(kernel.args["op_name"])
    is_integer = operator.startswith(("QLinear", "QGemm"))
    each = CYCLES[core].integer if is_integer else CYCLES[core].floating
    cost = _INTEGER_LAYERS[core] if is_integer else _FLOAT_LAYERS
    read, made = (_shape(kernel, side) for side in ("input_type_shape", "output_type_shape"))
    # Fusions append to a node's name, so that the longest name wins.
    layer = max((name for name in weights if kernel.name.startswith(f"{name}_")), key=len, default="")
    if "Conv" in operator and layer:
        instructions = _instructions(cost, weights[layer], math.prod(read), math.prod(made), is_integer=is_integer)
    elif operator in _PRODUCTS:
        instructions = cost.mac * read[-1] * math.prod(made)
    elif operator == "Transpose" and len(made) > 4 and read[-1] != made[-1]:
        instructions = _SCATTERED * math.prod(made)
    else:
        instructions = _VALUES.get(operator, _OTHER) * math.prod(made)
    return each * instructions


def _instructions(cost: LayerCost, weight: tuple[int, ...], read: int, made: int, *, is_integer: bool) -> float:
    filters, channels, *kernel = weight
    taps, pixels = math.prod(kernel), made / filters
    if channels == 1 and filters > 1:
        if is_integer:
            return made * taps * cost.depthwise
        return made * taps * (_STRIDED_DEPTHWISE if read > made else cost.depthwise) + filters * _DEPTHWISE_CHANNEL
    copied = taps if taps > 1 and not (is_integer and channels >= _DEEP) else 0
    return cost.mac * made * channels * taps + cost.value * made + cost.tap * copied * pixels


def _shape(kernel: ProfileEvent, side: str) -> tuple[int, ...]:
    """Return the shape of the first tensor, which is no scale, that a kernel reads or makes; (0,) for none."""
    shapes = [tuple(shape) for types in kernel.args.get(side, []) for shape in types.values() if shape]
    return shapes[0] if shapes else (0,)
