"""Core form: the same quantized model, value for value, written as the kernels of one core like it best.

The search works with unsigned activations, which are fast on every workstation; the core's form is made once, of what
was chosen. docs/arm-cost.md has the counts behind the table.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from edge_sdk_tools.quantize.offset_weights import offset_weights
from edge_sdk_tools.quantize.signed import sign_activations

_FORMS: dict[str, Callable[[onnx.ModelProto], bool]] = {"cortex-a72": offset_weights, "cortex-a76": sign_activations}
"""By core, in qemu's spelling. The others were not counted, or gain nothing; they take the model as it is."""


def signs_activations(cpu: str) -> bool:
    """Whether the core's form has signed activations, so that its model cannot take a picture's levels.

    Args:
        cpu: the core, in qemu's spelling.
    """
    return _FORMS.get(cpu) is sign_activations


def offsets_weights(cpu: str) -> bool:
    """Whether the core's form offsets weights, for which a recipe must leave room.

    Args:
        cpu: the core, in qemu's spelling.
    """
    return _FORMS.get(cpu) is offset_weights


def core_form(proto: onnx.ModelProto, cpu: str) -> onnx.ModelProto | None:
    """The form of a quantized model for one core.

    Args:
        proto: in QDQ form, unsigned activations and symmetric signed weights; left as it is.
        cpu: the core, in qemu's spelling.

    Returns:
        None where the model is best as it is.
    """
    if cpu not in _FORMS:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy if _FORMS[cpu](copy) else None
