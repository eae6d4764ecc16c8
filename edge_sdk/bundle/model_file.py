"""Check from its bytes, before anything loads it, that a model file contains all of its weights.

An ONNX model may name another file for its weights. ONNX Runtime looks for that file in the working directory; no
signature covers it, and no option of ONNX Runtime forbids it. `refuse_other_files` therefore walks the model's protobuf
messages. `fields` finds the fields of a message without parsing it, by the wire format alone
(https://protobuf.dev/programming-guides/encoding/); field numbers come from its caller.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from edge_sdk.core.errors import BundleError, SessionError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_LARGEST_TAG = 0xFFFF_FFFF  # a C++ parser drops higher bits and so finds another field


class Damaged(Exception):  # noqa: N818 - says what the bytes are
    """The bytes are no protobuf message."""


class Field(msgspec.Struct, frozen=True, gc=False):
    """One protobuf field of a message: its number, its wire type and where its bytes lie.

    Attributes:
        number: number of the field in its message.
        wire_type: protobuf's wire type; `LENGTH` for strings, messages and packed numbers.
        start: position of its tag.
        value: position of its content, after tag and length.
        end: position after the field.
    """

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Find the fields of the message in `data[start:end]`, in order.

    Raises:
        Damaged: a field has a wire type that ONNX does not use, an invalid tag or length, or no end in the message.
    """
    position = start
    while position < end:
        tag, value = _varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == LENGTH:
            length, value = _varint(data, value, end)
            after = value + length
        elif wire_type == VARINT:
            _, after = _varint(data, value, end)
        elif wire_type in (FIXED32, FIXED64):
            after = value + (4 if wire_type == FIXED32 else 8)
        else:
            raise Damaged
        if not number or tag > _LARGEST_TAG or after > end:
            raise Damaged
        yield Field(number, wire_type, position, value, after)
        position = after


def length_field(number: int, content: bytes) -> bytes:
    """Return the bytes of a field of wire type `LENGTH`."""
    return _written(number << 3 | LENGTH) + _written(len(content)) + content


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a number; return it and the position after it."""
    result = 0
    for index in range(_LONGEST_VARINT):
        if position + index >= end:
            break
        byte = data[position + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result, position + index + 1
    raise Damaged


def _written(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_ORT_FORMAT = b"ORTM"  # flatbuffer identifier at byte 4, by which ONNX Runtime recognises the format
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
"""Fields of ONNX's messages that lead to a tensor, by number."""
EXTERNAL_DATA, DATA_LOCATION = 13, 14
"""Fields of `TensorProto`: the place of external data, and whether the data is external."""


def refuse_other_files(model: bytes, where: str) -> None:
    """Refuse a model that needs other files.

    Raises:
        BundleError: the model names another file.
        SessionError: the bytes are no valid protobuf message.
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
    # A stack instead of recursion, because a model may nest graphs to any depth.
    open_messages = [("ModelProto", 0, len(model))]
    while open_messages:
        message, start, end = open_messages.pop()
        inner = PATHS.get(message, {})
        for field in fields(model, start, end):
            if message == _TENSOR:
                data = model[field.value : field.end]
                is_told = field.number == DATA_LOCATION and (field.wire_type != VARINT or data.strip(b"\x80\x00"))
                if is_told or field.number == EXTERNAL_DATA:
                    return True
            elif field.wire_type == LENGTH and field.number in inner:
                open_messages.append((inner[field.number], field.value, field.end))
    return False
