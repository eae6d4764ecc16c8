"""LocalNoise: what quantization does to the numbers that one layer reads, and nothing of what that does to the model.

Computed from the histograms of activations and from the weights themselves: milliseconds, and for every layer. A layer
with much noise here may still matter little, because the layers after it average it away; the ranking by effect on the
outputs is the search's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edge_sdk_tools.graph.index import GraphIndex, attribute
from edge_sdk_tools.quantize.calibration import Activations, Histogram
from edge_sdk_tools.quantize.simplified import WEIGHTED, Simplified

_TINY = 1e-30
_LEVELS = {"uint8": (0, 255), "int8": (-128, 127)}


class LocalNoise(msgspec.Struct, frozen=True):
    """Quantization noise of one layer with weights.

    Attributes:
        node: its name.
        operator: its type.
        activation_noise: energy of the error over energy of the signal, of its quantized input on the calibration
            images, 0 or more; None where that is not quantized.
        weight_noise: the same of its weights.
        macs_share: of the model's multiply-accumulates, 0-1.
    """

    node: str
    operator: str
    activation_noise: float | None
    weight_noise: float | None
    macs_share: float

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise of both together, which are independent, decibels; None where there is none."""
        noise = (self.activation_noise or 0.0) + (self.weight_noise or 0.0)
        return -10 * math.log10(noise) if noise > 0 else None


def local_noise(model: Simplified, activations: Activations, quantized: onnx.ModelProto) -> tuple[LocalNoise, ...]:
    """The noise of every layer with weights that computes in integers, in graph order."""
    before, integers = GraphIndex(model.proto.graph), _Integers(quantized)
    total = max(1, sum(model.macs.values()))
    floats = {node.name: node for node in model.proto.graph.node}
    found = []
    for node in quantized.graph.node:
        original = floats.get(node.name)
        if node.op_type not in WEIGHTED or original is None or len(node.input) < 2:
            continue
        activation = integers.activation_noise(node.input[0], activations.histograms)
        weight = integers.weight_noise(node.input[1], before.value(original.input[1]))
        if activation is not None or weight is not None:
            share = model.macs.get(node.name, 0) / total
            found.append(LocalNoise(node.name, str(node.op_type), activation, weight, share))
    return tuple(found)


class _Integers:
    """The scales and integers of a QDQ graph."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._links = GraphIndex(proto.graph)

    def activation_noise(self, name: str, histograms: Mapping[str, Histogram]) -> float | None:
        """Return the noise that QuantizeLinear and DequantizeLinear add to an activation."""
        dequantize = self._links.makers.get(name)
        quantize = self._links.maker(dequantize.input[0], "QuantizeLinear") if dequantize else None
        if quantize is None or quantize.input[0] not in histograms:
            return None
        scale, zero = self._array(quantize.input[1]), self._array(quantize.input[2])
        least, most = _LEVELS[zero.dtype.name]
        offset = int(zero.item())
        step = float(scale.item())
        return _noise_of(histograms[quantize.input[0]], step, (least - offset) * step, (most - offset) * step)

    def weight_noise(self, name: str, original: NDArray[Any] | None) -> float | None:
        """Return the noise of quantized weights against the float ones."""
        dequantize = self._links.maker(name, "DequantizeLinear")
        if original is None or dequantize is None or dequantize.input[0] not in self._links.constants:
            return None
        integers, scale, zero = (self._array(part).astype(np.float32) for part in dequantize.input[:3])
        axis = attribute(dequantize, "axis", 1)
        if scale.ndim:
            shape = [-1 if place == axis % integers.ndim else 1 for place in range(integers.ndim)]
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        wanted = original.astype(np.float32, copy=False)
        if wanted.shape != integers.shape:
            return None
        error = (integers - zero) * scale - wanted
        return float(np.vdot(error, error) / (np.vdot(wanted, wanted) + _TINY))

    def _array(self, name: str) -> NDArray[np.generic]:
        return numpy_helper.to_array(self._links.constants[name])


def _noise_of(histogram: Histogram, step: float, low: float, high: float) -> float:
    """Energy of the error over that of the signal, when values are rounded to steps and cut off at low and high.

    A value inside is off by step^2 / 12 in the mean (Bennett, Spectra of quantized signals, 1948); one that rounds to
    zero by itself, which is less.
    """
    values, counts = histogram.values()
    rounding = np.minimum(values**2, step**2 / 12)
    error = np.where(values < low, (values - low) ** 2, np.where(values > high, (values - high) ** 2, rounding))
    return float((counts * error).sum() / ((counts * values**2).sum() + _TINY))
