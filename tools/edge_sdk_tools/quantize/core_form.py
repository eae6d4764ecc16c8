"""Core form: the same quantized model, value for value, written as the kernels of one core like it best.

The search works with unsigned activations, which are fast on every workstation; the core's form is made once, of what
was chosen. docs/arm-cost.md has the counts behind the table.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from edge_sdk_tools.quantize.signed import sign_activations

_FORMS: dict[str, Callable[[onnx.ModelProto], None]] = {"cortex-a76": sign_activations}
"""By core, in qemu's spelling. The others were not counted, or gain nothing; they take the model as it is."""


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
    _FORMS[cpu](copy)
    return copy
