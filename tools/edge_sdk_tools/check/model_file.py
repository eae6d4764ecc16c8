"""ModelFile: a model as it lies on disk, read once: its skeleton, its large weights, its hash.

Owns the reading and putting together. What is hashed is what is used: no file is read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from edge_sdk.bundle.model_file import Damaged
from edge_sdk.core.errors import ModelError
from edge_sdk_tools.check.external_data import MAX_BYTES, external_part, open_model, read_external, read_opened
from edge_sdk_tools.check.foreign import no_model
from edge_sdk_tools.check.functions import nodes_of
from edge_sdk_tools.check.refusal import RefusedModelError
from edge_sdk_tools.check.report import show_shape
from edge_sdk_tools.check.skeleton import cut, put_weights, take_weights, tensors
from edge_sdk_tools.check.values import element_count
from edge_sdk_tools.check.weight import DTYPES, Weight

_AGAIN = "export or copy it again"
_LONGEST_NAME = 2000  # exporters join the names of modules, a few hundred characters


class ModelFile(msgspec.Struct, frozen=True, eq=False):
    """What a file holds.

    Attributes:
        proto: the model, its large weights replaced by inputs.
        weights: these weights.
        files: bytes of the model, under an empty name, and of each other file that it names.
        sha256: of the model, in hex; with other files, of the model's digest and theirs, see `digest`.
    """

    proto: onnx.ModelProto
    weights: tuple[Weight, ...]
    files: dict[str, bytes]
    sha256: str


def read_model(path: Path) -> ModelFile:
    """Read a model and the files that it names.

    Raises:
        RefusedModelError: it is missing, no ONNX model, damaged, too large, or names a file that it must not.
    """
    data = _read(path)
    try:
        parts = cut(data)
        proto = onnx.ModelProto.FromString(parts.skeleton)
    except (Damaged, DecodeError):
        raise no_model(data) from None
    if not proto.graph.node:
        raise RefusedModelError("not an ONNX model: there are no nodes in it", _AGAIN)
    if proto.graph.sparse_initializer:
        raise RefusedModelError("holds sparse weights, which are not quantized", "save it with dense ones")
    if not all(_is_name(name) for name in _names(proto)):
        raise RefusedModelError("damaged: it holds names that are no printable text", _AGAIN)
    idle = next((node for node in _nodes(proto) if not node.output), None)
    if idle is not None:
        raise RefusedModelError(f"damaged: node {idle.name!r} ({idle.op_type}) has no output", _AGAIN)
    files = {"": data}
    weights = [
        _checked(proto.graph.initializer[index], "", offset, length) for index, (offset, length) in parts.spans.items()
    ]
    weights += _read_external(proto, path.parent, files)
    take_weights(proto, weights)
    return ModelFile(proto, tuple(weights), files, digest(files))


def assemble(
    path: Path, names: Sequence[str], skeleton: bytes, weights: Sequence[Weight], sha256: str
) -> onnx.ModelProto:
    """Put a checked skeleton and its weights together.

    Args:
        path: of the model that it came from.
        names: the other files that the model names.
        skeleton: serialised, as the check left it.
        weights: what `skeleton` lacks.
        sha256: of the files when they were checked.

    Raises:
        ModelError: a file has changed since.
    """
    files = {"": _read(path), **{name: read_external(path.parent, name, MAX_BYTES) for name in names}}
    if digest(files) != sha256:
        raise ModelError(f"{path}: changed while it was checked; check it again")
    proto: onnx.ModelProto = onnx.ModelProto.FromString(skeleton)
    put_weights(proto, weights, files)
    return proto


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of a model, in hex.

    With other files it is that of a text: the model's own digest, then a line `DIGEST NAME` for each file by name.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    if len(digests) == 1:
        return digests[""]
    return hashlib.sha256("".join(f"{d} {name}\n" for name, d in digests.items()).encode()).hexdigest()


def _read(path: Path) -> bytes:
    with open_model(path) as file:
        return read_opened(file, MAX_BYTES)


def _read_external(proto: onnx.ModelProto, folder: Path, files: dict[str, bytes]) -> list[Weight]:
    """Read what lies in other files; large weights are returned, everything else is put into the model."""
    weights = [
        _checked(tensor, *_span(tensor, folder, files))
        for tensor in proto.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL and tensor.data_type in DTYPES
    ]
    large = {weight.name for weight in weights}
    for tensor in tensors(proto.graph):
        if tensor.data_location == TensorProto.EXTERNAL and tensor.name not in large:
            file, offset, length = _span(tensor, folder, files)
            tensor.raw_data = files[file][offset : offset + length]
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return weights


def _is_name(name: object) -> bool:
    """Protobuf gives bytes for what is no UTF-8; what cannot be printed would end up in a terminal."""
    return isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_NAME


def _names(proto: onnx.ModelProto) -> Iterator[object]:
    """Every name that the checks go by."""
    yield from (opset.domain for opset in proto.opset_import)
    for tensor in tensors(proto.graph):
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    functions = [(function.name, function.domain) for function in proto.functions]
    yield from (name for names in functions for name in names)
    nodes = list(_nodes(proto))
    attributes = [attribute for node in nodes for attribute in node.attribute]
    inner = [graph for a in attributes for graph in (*a.graphs, *([a.g] if a.HasField("g") else []))]
    for graph in (proto.graph, *inner):
        for value in (*graph.input, *graph.output):
            yield from (value.name, *(side.dim_param for side in value.type.tensor_type.shape.dim))
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
    yield from (attribute.name for attribute in attributes)


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of functions and of the graphs inside nodes included."""
    return nodes_of((*proto.graph.node, *(node for function in proto.functions for node in function.node)))


def _span(tensor: onnx.TensorProto, folder: Path, files: dict[str, bytes]) -> tuple[str, int, int]:
    """File, offset and length of an external tensor; the file is read when it is the first in it."""
    part = external_part(tensor)
    if part.file not in files:
        files[part.file] = read_external(folder, part.file, MAX_BYTES - sum(map(len, files.values())))
    size = len(files[part.file])
    length = size - part.offset if part.length is None else part.length
    if part.offset > size or length < 0 or part.offset + length > size:
        raise RefusedModelError(
            f"weight {tensor.name!r} lies in bytes {part.offset} to {part.offset + length} of {part.file!r}, which has "
            f"{size}",
            "copy the files again",
        )
    return part.file, part.offset, length


def _checked(tensor: onnx.TensorProto, file: str, offset: int, length: int) -> Weight:
    """A weight whose data has the size that its shape says."""
    dims = tuple(tensor.dims)
    expected = 0 if min(dims, default=0) < 0 else element_count(dims) * DTYPES[tensor.data_type].itemsize
    if min(dims, default=0) < 0 or expected != length:
        raise RefusedModelError(
            f"weight {tensor.name!r} has shape {show_shape(dims)} and holds {length} bytes, expected {expected}",
            "export the model again",
        )
    return Weight(tensor.name, tensor.data_type, dims, file, offset, length)
