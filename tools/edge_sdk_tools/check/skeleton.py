"""The skeleton of a model: what is left when its large weights are taken out, a few hundred kilobytes.

Owns the cut, and the way back. On a skeleton checker, inference, conversion and a trial run cost next to nothing. Knows
the fields of ONNX's messages that lead to a weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import onnx
from onnx import TensorProto, helper

from edge_sdk.bundle.model_file import LENGTH, Damaged, Field, fields, length_field
from edge_sdk_tools.check.refusal import RefusedModelError
from edge_sdk_tools.check.weight import DTYPES, Weight

LARGE_BYTES = 4096
"""Smaller constants stay: shapes, axes, scales and whatever else inference and conversion have to read."""

_GRAPH, _INITIALIZER = 7, 5  # fields of ModelProto, of GraphProto
_FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA = 4, 9, 10  # fields of TensorProto
_PACKED = {_FLOAT_DATA: TensorProto.FLOAT, _DOUBLE_DATA: TensorProto.DOUBLE}
_MOST_PARTS = 500_000  # nodes, weights and declared values; the largest detectors have some thousands


class Cut(msgspec.Struct, frozen=True):
    """A model's bytes without its large weights.

    Attributes:
        skeleton: a ModelProto whose large initializers have no data.
        spans: offset and length of that data, by the initializer's index.
    """

    skeleton: bytes
    spans: dict[int, tuple[int, int]]


def cut(data: bytes) -> Cut:
    """Take the data of large initializers out of a serialised model.

    Raises:
        Damaged: it is no ModelProto, or more than one on end.
        RefusedModelError: it has more parts than any vision model.
    """
    parts: list[bytes] = []
    spans: dict[int, tuple[int, int]] = {}
    graphs = 0
    for field in fields(data, 0, len(data)):
        if len(parts) > _MOST_PARTS:
            raise Damaged
        if field.number == _GRAPH and field.wire_type == LENGTH:
            graphs += 1
            parts.append(length_field(_GRAPH, _cut_graph(data, field, spans)))
        else:
            parts.append(data[field.start : field.end])
    if graphs != 1:
        raise Damaged
    return Cut(b"".join(parts), spans)


def take_weights(proto: onnx.ModelProto, weights: Sequence[Weight]) -> None:
    """Replace initializers by inputs of the same name, type and shape, in place.

    Other initializers are no inputs any more, as files before IR version 4 have them: ONNX Runtime folds no constant
    that a caller might replace.
    """
    names = {weight.name for weight in weights}
    _take_inputs(proto, {tensor.name for tensor in proto.graph.initializer})
    # Copies first: what is deleted takes its elements along.
    kept = [TensorProto.FromString(t.SerializeToString()) for t in proto.graph.initializer if t.name not in names]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.graph.input.extend(helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights)


def put_weights(proto: onnx.ModelProto, weights: Sequence[Weight], files: Mapping[str, bytes]) -> None:
    """Undo `take_weights`: initializers that hold their data again, in place."""
    _take_inputs(proto, {weight.name for weight in weights})
    for weight in weights:
        tensor = proto.graph.initializer.add(name=weight.name, data_type=weight.data_type, dims=weight.dims)
        tensor.raw_data = files[weight.file][weight.offset : weight.offset + weight.length]


def _take_inputs(proto: onnx.ModelProto, names: set[str]) -> None:
    kept = [onnx.ValueInfoProto.FromString(i.SerializeToString()) for i in proto.graph.input if i.name not in names]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)


def _cut_graph(data: bytes, graph: Field, spans: dict[int, tuple[int, int]]) -> bytes:
    parts: list[bytes] = []
    index = 0
    for field in fields(data, graph.value, graph.end):
        if len(parts) > _MOST_PARTS:
            raise RefusedModelError(
                f"the graph has more than {_MOST_PARTS} nodes and weights, expected a vision model",
                "export the model again, without a loop that is unrolled",
            )
        if field.number != _INITIALIZER or field.wire_type != LENGTH:
            parts.append(data[field.start : field.end])
            continue
        span = _large_data(data, field)
        if span is None:
            parts.append(data[field.start : field.end])
        else:
            spans[index] = (span.value, span.end - span.value)
            kept = data[field.value : span.start] + data[span.end : field.end]
            parts.append(length_field(_INITIALIZER, kept))
        index += 1
    return b"".join(parts)


def _large_data(data: bytes, tensor: Field) -> Field | None:
    """The one field that holds a tensor's data, if it is large and of a type that is cut out."""
    if tensor.end - tensor.value < LARGE_BYTES:
        return None
    found = list(fields(data, tensor.value, tensor.end))
    held = [f for f in found if f.number in (*_PACKED, _RAW_DATA) and f.wire_type == LENGTH]
    if len(held) != 1 or held[0].end - held[0].value < LARGE_BYTES:
        return None
    header = TensorProto.FromString(data[tensor.value : held[0].start] + data[held[0].end : tensor.end])
    expected = _PACKED.get(held[0].number, header.data_type)
    is_here = header.data_location != TensorProto.EXTERNAL
    return held[0] if is_here and header.data_type in DTYPES and expected == header.data_type else None


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every constant that a graph holds: initializers, attributes of nodes, and those of the graphs inside them."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from tensors(inner)
