"""Lookup tables: what each level of 0-255 becomes, as a normalised float or as an integer of a quantized model.

Owns the arithmetic of both. Integers are made of the very floats that a device would give a model, by the definition of
ONNX's QuantizeLinear, so that leaving that operator out changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.manifest import InputTensor
from edge_sdk.model_spec import InputSpec

_HIGHEST = 255


def float_tables(spec: InputSpec) -> list[NDArray[np.float32]]:
    """One float32 (256,) table a channel, in the model's channel order, within one unit in the last place.

    Without a mean: level * (1 / std) in float32, so that a multiplication gives the very same bits as the table.
    """
    levels = np.arange(_HIGHEST + 1, dtype=np.float64)
    pairs = list(zip(spec.mean, spec.std, strict=False))[: spec.channels]
    if not any(mean for mean, _ in pairs):
        return [levels.astype(np.float32) * np.float32(1 / std) for _, std in pairs]
    return [((levels - mean) / std).astype(np.float32) for mean, std in pairs]


def integer_tables(spec: InputSpec, tensor: InputTensor) -> list[NDArray[np.uint8]]:
    """One uint8 (256,) table a channel of `spec`, in its order; the levels themselves where `tensor` has no scale."""
    if tensor.scale is None:
        return [np.arange(_HIGHEST + 1, dtype=np.uint8)] * spec.channels
    # Division of float32 and rounding to even are exact by IEEE 754: the same integers on every machine.
    steps = [np.rint(table / np.float32(tensor.scale)) for table in float_tables(spec)]
    return [np.clip(step + np.float32(tensor.zero_point), 0, _HIGHEST).astype(np.uint8) for step in steps]
