"""Self-contained: whether a model is all in its own bytes, found out before anything loads it.

Owns the rule that a model chooses no files of the device. ONNX Runtime looks for weights that an ONNX model says to be
elsewhere in the working directory, of which no signature knows; no option of it forbids that.
"""

from __future__ import annotations

from edge_sdk.errors import BundleError, SessionError
from edge_sdk.wire import LENGTH, VARINT, Damaged, Field, fields

_ORT_FORMAT = b"ORTM"  # a flatbuffer's identifier, at byte 4: by it ONNX Runtime tells the formats apart
_TENSOR = "TensorProto"
PATHS = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: _TENSOR, 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: _TENSOR,
        6: "GraphProto",
        10: _TENSOR,
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: _TENSOR, 2: _TENSOR},
}
"""Of ONNX's messages the fields that lead to a tensor, by number."""
EXTERNAL_DATA, DATA_LOCATION = 13, 14
"""Of `TensorProto`: where else its data is, and whether it is elsewhere."""


def refuse_other_files(model: bytes, where: str) -> None:
    """Refuse a model that names other files.

    Args:
        model: the bytes of a model; ORT format has no place for the name of a file.
        where: what to call it in errors.

    Raises:
        BundleError: it does.
        SessionError: it is no message that could be looked through.
    """
    if model[4:8] == _ORT_FORMAT:
        return
    try:
        names_others = _names_others(model)
    except Damaged as cause:
        raise SessionError(f"{where}: cannot load it: neither in ORT format nor ONNX; build it again") from cause
    if names_others:
        raise BundleError(
            f"{where}: takes weights from another file, which no manifest names; a bundle's model holds its own: build "
            "the bundle again"
        )


def _names_others(model: bytes) -> bool:
    # Not by recursion: a model chooses how deep its graphs lie in each other.
    open_messages = [("ModelProto", 0, len(model))]
    while open_messages:
        message, start, end = open_messages.pop()
        inner = PATHS.get(message, {})
        for field in fields(model, start, end):
            if message == _TENSOR:
                if _is_elsewhere(model, field):
                    return True
            elif field.wire_type == LENGTH and field.number in inner:
                open_messages.append((inner[field.number], field.value, field.end))
    return False


def _is_elsewhere(model: bytes, field: Field) -> bool:
    if field.number == DATA_LOCATION:
        return field.wire_type != VARINT or model[field.value : field.end].strip(b"\x80\x00") != b""
    return field.number == EXTERNAL_DATA
