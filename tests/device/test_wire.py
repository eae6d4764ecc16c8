"""Fields of a message, found without parsing it."""

from __future__ import annotations

import onnx
import pytest

from edge_sdk.wire import Damaged, fields


def test_the_wire_format() -> None:
    model = onnx.ModelProto(ir_version=300, producer_name="x" * 200)
    data = model.SerializeToString()
    assert [(f.number, data[f.value : f.end]) for f in fields(data, 0, len(data))] == [
        (1, b"\xac\x02"),
        (2, b"x" * 200),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x0a\x05ab",
        b"\x0b",
        b"\x00\x00",
        b"\x08" + b"\x80" * 11 + b"\x01",
        b"\x0d\x01",
        b"\x88\x80\x80\x80\x10\x00",  # field 1 to a parser that keeps 32 bits of a tag
    ],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(Damaged):
        list(fields(data, 0, len(data)))
