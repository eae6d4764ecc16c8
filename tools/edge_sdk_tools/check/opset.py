"""The model's opset and IR version: what the runtime reads, and raising what quantization needs raised.

Owns the limits and the conversion, with what onnx's converter leaves out of it. `trial.py` compares the results.
"""

from __future__ import annotations

import onnx

from edge_sdk.core.errors import first_line
from edge_sdk_tools.check.refusal import RefusedModelError
from edge_sdk_tools.check.report import Finding

LOWEST_OPSET = 7
"""The lowest opset that ONNX Runtime promises to run, and from which a conversion can be held against the original."""

QUANTIZABLE_OPSET = 13
"""The lowest opset whose QuantizeLinear has an axis, which per-channel weights need."""

_LOWEST_IR_VERSION = 4  # from here on weights need not be inputs too
_RESIZE_MODES = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_FAR = 2**31 - 1  # a file may write 64 bits, onnx takes 32
_DEFAULT_DOMAINS = ("", "ai.onnx")


def opsets_of(proto: onnx.ModelProto) -> dict[str, int]:
    """The version of every domain that a model imports, the default one as an empty name."""
    return {
        "" if o.domain in _DEFAULT_DOMAINS else o.domain: max(-_FAR, min(_FAR, int(o.version)))
        for o in proto.opset_import
    }


def check_opset(opset: int | None, highest: int, runtime: str) -> list[Finding]:
    """Hold a model's opset against what a runtime runs.

    Args:
        opset: of ai.onnx; None when the model names none.
        highest: that the runtime runs.
        runtime: what to call it.
    """
    if opset is None:
        return [Finding(severity="error", rule="opset", what="names no ai.onnx opset", next_step="export it again")]
    if opset < LOWEST_OPSET:
        what = (
            f"opset {opset}, expected {LOWEST_OPSET} or higher: what older operators compute is not defined well enough"
        )
        return [Finding(severity="error", rule="opset", what=what, next_step="export it with opset 17")]
    if opset > highest:
        what = f"opset {opset}, but {runtime} runs up to {highest}"
        return [Finding(severity="error", rule="opset", what=what, next_step="export it with a lower opset")]
    return []


def lower_ir_version(proto: onnx.ModelProto, highest: int, runtime: str) -> list[Finding]:
    """Set an IR version that a runtime reads, in place.

    The number says which features a file may use. What has been added since 10 (types of 2 bits, devices) either is
    found by other checks or is no part of what edge-sdk keeps.
    """
    found = proto.ir_version
    proto.ir_version = max(_LOWEST_IR_VERSION, min(found, highest))
    if not 1 <= found <= onnx.IR_VERSION:
        what = (
            f"IR version {found}, expected 1 to {onnx.IR_VERSION}, which are those that onnx {onnx.__version__} knows"
        )
        return [Finding(severity="error", rule="ir-version", what=what, next_step="export it again")]
    if found <= highest:
        return []
    what = f"IR version {found}, but {runtime} reads up to {highest}; the bundle's model gets {highest}"
    step = f"nothing to do; to use the file elsewhere, set model.ir_version = {highest} and save it"
    return [Finding(severity="note", rule="ir-version", what=what, next_step=step)]


def raise_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a model of a lower opset to `QUANTIZABLE_OPSET`.

    Raises:
        RefusedModelError: the converter cannot.
    """
    resized = {node.output[0] for node in proto.graph.node if _is_old_resize(node, opsets_of(proto)[""])}
    try:
        converted = onnx.version_converter.convert_version(proto, QUANTIZABLE_OPSET)
    except Exception as cause:  # the converter raises RuntimeError and its own C++ types alike
        raise RefusedModelError(
            f"opset could not be raised to {QUANTIZABLE_OPSET}: {first_line(cause)}", "export it with opset 17"
        ) from cause
    for node in converted.graph.node:
        if node.op_type == "Resize" and node.output[0] in resized:
            _keep_meaning(node)
    return converted


def _is_old_resize(node: onnx.NodeProto, opset: int) -> bool:
    return node.op_type == "Upsample" or (node.op_type == "Resize" and opset <= 10)


def _keep_meaning(resize: onnx.NodeProto) -> None:
    """Say what Upsample and Resize of opset 10 meant: onnx's converter leaves it at opset 11's other defaults."""
    given = {attribute.name for attribute in resize.attribute}
    for name, value in _RESIZE_MODES.items():
        if name not in given:
            resize.attribute.append(onnx.helper.make_attribute(name, value))
