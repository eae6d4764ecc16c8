"""Protobuf's wire format, as far as it takes to find the fields of a message without parsing it.

Owns no message: field numbers come from the caller. https://protobuf.dev/programming-guides/encoding/ is the format.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_LARGEST_TAG = 0xFFFF_FFFF  # a parser in C++ drops the bits above, and so finds another field there


class Damaged(Exception):  # noqa: N818 - says what the bytes are
    """Bytes that are no protobuf message."""


class Truncated(Damaged):
    """Bytes that end within a field.

    Args:
        number: of that field in its message.
        missing: bytes of it that are not there.
    """

    def __init__(self, number: int, missing: int) -> None:
        super().__init__(number, missing)
        self.number = number
        self.missing = missing


class Field(msgspec.Struct, frozen=True, gc=False):
    """Where one field lies.

    Attributes:
        number: of the field in its message.
        wire_type: how it is written; `LENGTH` for strings, messages and packed numbers.
        start: of its tag.
        value: where its content begins, behind tag and length.
        end: behind it.
    """

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Find the fields of the message in `data[start:end]`, in order.

    Raises:
        Truncated: a field that does not end within the message.
        Damaged: one of a kind that ONNX does not use, or whose tag or length is no number.
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
        if not number or tag > _LARGEST_TAG:
            raise Damaged
        if after > end:
            raise Truncated(number, after - end)
        yield Field(number, wire_type, position, value, after)
        position = after


def length_field(number: int, content: bytes) -> bytes:
    """Write a field of wire type `LENGTH`."""
    return _written(number << 3 | LENGTH) + _written(len(content)) + content


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A number and the position behind it."""
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
