"""Read a model from disk: its own file, and the files that it names for its weights.

A model is untrusted and must not choose which files of this machine are read. It may only name existing parts of
regular files in its own folder, by plain relative paths. Every file is read once, so what is hashed is what is
used. Large weights are taken out: checker, inference and a trial run then work on a skeleton of a few hundred
kilobytes. What is no ONNX model is recognised by its first bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.bundle.model_file import Damaged, fields
from edge_sdk.core.errors import ModelError, raising
from edge_sdk.core.files import open_regular
from edge_sdk_tools.check.report import RefusedModelError
from edge_sdk_tools.graph.index import element_count, initializers_of, nodes_of, replace_all

MOST_BYTES = 2**31 - 1
"""Largest model with everything in it: protobuf's own limit for a message."""


def open_model(path: Path) -> BufferedReader:
    """Open the file of a model itself; a RefusedModelError says that it is missing or no regular file."""
    step = "put it there, or correct `model` in model.toml"
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise RefusedModelError("no such model file", step) from None
    except OSError as cause:
        raise RefusedModelError(f"the model cannot be read: {cause.strerror}", step) from cause


def read_opened(file: BufferedReader, room: int) -> bytes:
    """Read a whole regular file; a RefusedModelError says that it is larger than `room` bytes, or unreadable."""
    size = os.fstat(file.fileno()).st_size
    if size > room:
        what = f"model and weights have {MOST_BYTES + size - room} bytes together, expected at most {MOST_BYTES}"
        raise RefusedModelError(what, "choose a smaller model")
    with raising(partial(RefusedModelError, next_step="copy it again"), "it cannot be read"):
        return file.read(size)  # not all the room: so much memory would be taken before anything is read


def read_external(folder: Path, file: str, room: int) -> bytes:
    """Read one file that a model names; a RefusedModelError says why not: it must lie in the model's folder."""
    path = folder / file
    where = f"{file!r}, which holds weights,"
    try:
        resolved = path.resolve(strict=True)
        if not resolved.is_relative_to(folder.resolve()):
            raise RefusedModelError(f"{where} is a link that leads out of the model's folder", _COPY)
        with open_regular(resolved, follow_links=False) as opened:
            return read_opened(opened, room)
    except FileNotFoundError:
        raise RefusedModelError(f"{where} is missing", "copy it beside the model") from None
    except (OSError, RuntimeError) as cause:  # RuntimeError: links that lead in a circle, up to Python 3.12
        why = getattr(cause, "strerror", None) or "its links lead in a circle"
        raise RefusedModelError(f"{where} cannot be read: {why}", _COPY) from cause


_COPY = "copy the file itself there"
_AGAIN = "export or copy it again"
_IMPORT = "`edge-sdk import` makes an ONNX model of it, see docs/importing.md"

_SIGNATURES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip such as PyTorch's .pth", _IMPORT),
    (0, b"\x80\x02", "a Python pickle such as an old .pth", _IMPORT),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5 such as Keras's .h5", _IMPORT),
    (4, b"TFL3", "a .tflite", _IMPORT),
    (4, b"ORTM", "an .ort of ONNX Runtime", "take the .onnx that it was made from, and correct `model` in model.toml"),
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the model itself", "fetch it with `git lfs pull`"),
    (0, b"<", "a web page", "download the file itself, not the page that shows it"),
)
"""Offset, bytes there, what has them, next step."""


def no_model(data: bytes) -> RefusedModelError:
    """Return the refusal of a file that does not read as ONNX, in the words that fit what it looks like."""
    kind, step = next(((k, s) for at, mark, k, s in _SIGNATURES if data.startswith(mark, at)), ("", _AGAIN))
    if kind:
        return RefusedModelError(f"not an ONNX model: it looks like {kind} ({len(data)} bytes)", step)
    return RefusedModelError(f"not an ONNX model, damaged or not whole ({len(data)} bytes)", step)


DTYPES: dict[int, np.dtype[np.generic]] = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    10: np.dtype("<f2"),
    11: np.dtype("<f8"),
}
"""By TensorProto.DataType; ONNX writes little-endian. Other types are never large in a vision model."""


LARGE_BYTES = 4096  # smaller constants stay: shapes, axes, scales, whatever else inference and conversion have to read
Weights: TypeAlias = dict[str, NDArray[np.generic]]
"""The large weights of a model by name, read-only."""


def put_weights(proto: onnx.ModelProto, weights: Weights) -> None:
    """Make the inputs that stand for weights initializers that hold their data again, in place."""
    asked = [value.name for value in proto.graph.input if value.name in weights]
    replace_all(proto.graph.input, [value for value in proto.graph.input if value.name not in weights])
    proto.graph.initializer.extend(numpy_helper.from_array(weights[name], name) for name in asked)


def _take_weights(proto: onnx.ModelProto, folder: Path, files: dict[str, bytes]) -> Weights:
    """Put inputs in the place of large initializers, in place; whatever else lies in other files is put into it."""
    graph = proto.graph
    found = [(tensor, _large(tensor, folder, files)) for tensor in graph.initializer]
    weights = {tensor.name: array for tensor, array in found if array is not None}
    for tensor in tensors(graph):
        if tensor.data_location == TensorProto.EXTERNAL and tensor.name not in weights:
            file, offset, length = _span(tensor, folder, files)
            tensor.raw_data = files[file][offset : offset + length]
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    infos = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer if t.name in weights]
    constants = {tensor.name for tensor in graph.initializer}
    # Files before IR version 4 have inputs for all, and ONNX Runtime folds no constant that a caller might replace.
    replace_all(graph.input, [*(value for value in graph.input if value.name not in constants), *infos])
    replace_all(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in weights])
    return weights


def _large(tensor: onnx.TensorProto, folder: Path, files: dict[str, bytes]) -> NDArray[np.generic] | None:
    """Return the data of a tensor that is large, or lies in another file, and is as its type and shape say."""
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None or min(tensor.dims, default=0) < 0:
        return None
    count = element_count(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL:
        file, offset, length = _span(tensor, folder, files)
        flat = np.frombuffer(files[file], np.uint8, length, offset)
    elif count * dtype.itemsize < LARGE_BYTES:
        return None
    elif tensor.HasField("raw_data"):
        flat = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        held = tensor.double_data if tensor.data_type == TensorProto.DOUBLE else tensor.float_data
        flat = np.array(held, dtype).view(np.uint8)
    return flat.view(dtype).reshape(tensor.dims) if flat.size == count * dtype.itemsize else None


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every constant that a graph holds: initializers, attributes, and those of the graphs inside its nodes."""
    yield from initializers_of(graph)
    for node in nodes_of(graph.node):
        for attribute in node.attribute:
            yield from (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))


_GRAPH = 7  # field of ModelProto
_LONGEST_NAME = 2000  # exporters join the names of modules, a few hundred characters


class ModelFile(msgspec.Struct, frozen=True, eq=False):
    """One model file that was read: its graph, in which inputs stand for the large weights, and these weights.

    `sizes` has the bytes of the model, under an empty name, and of each file that it names; `sha256` is their `digest`.
    """

    proto: onnx.ModelProto
    weights: Weights
    sizes: dict[str, int]
    sha256: str


def read_model(path: Path) -> ModelFile:
    """Read a model and the files that it names; a RefusedModelError says what is wrong with them."""
    data = _read(path)
    try:
        proto = onnx.ModelProto.FromString(data)
        [_graph] = [field for field in fields(data, 0, len(data)) if field.number == _GRAPH]
    except (Damaged, DecodeError, ValueError):  # ValueError: two models in one file, which would run into each other
        raise no_model(data) from None
    if not proto.graph.node:
        raise RefusedModelError("not an ONNX model: there are no nodes in it", _AGAIN)
    if proto.graph.sparse_initializer:
        raise RefusedModelError("holds sparse weights, which are not quantized", "save it with dense ones")
    # Bytes are what protobuf gives for what is no UTF-8.
    if not all(isinstance(n, str) and n.isprintable() and len(n) <= _LONGEST_NAME for n in _names(proto)):
        raise RefusedModelError("damaged: it holds names that are no printable text", _AGAIN)
    idle = next((node for node in _nodes(proto) if not node.output), None)
    if idle is not None:
        raise RefusedModelError(f"damaged: node {idle.name!r} ({idle.op_type}) has no output", _AGAIN)
    files = {"": data}
    weights = _take_weights(proto, path.parent, files)
    skeleton = onnx.ModelProto.FromString(proto.SerializeToString())  # a message keeps the memory of what it lost
    return ModelFile(skeleton, weights, {name: len(data) for name, data in files.items()}, digest(files))


def assemble(path: Path, names: Sequence[str], skeleton: bytes, sha256: str) -> onnx.ModelProto:
    """Put a checked skeleton and its weights together; a ModelError says that a file has changed since."""
    files = {"": _read(path), **{name: read_external(path.parent, name, MOST_BYTES) for name in names}}
    if digest(files) != sha256:
        raise ModelError(f"{path}: changed while it was checked; check it again")
    # Its bytes are not needed any more when its weights are there a second time.
    weights = _take_weights(onnx.ModelProto.FromString(files.pop("")), path.parent, files)
    proto: onnx.ModelProto = onnx.ModelProto.FromString(skeleton)
    put_weights(proto, weights)
    return proto


def digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of a model, in hex.

    With other files it is that of a text: the model's own digest, then a line `DIGEST NAME` for each file by name.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    if len(digests) == 1:
        return digests[""]
    return hashlib.sha256("".join(f"{d} {name}\n" for name, d in digests.items()).encode()).hexdigest()


def _read(path: Path) -> bytes:
    with open_model(path) as file:
        return read_opened(file, MOST_BYTES)


def _names(proto: onnx.ModelProto) -> Iterator[object]:
    yield from (opset.domain for opset in proto.opset_import)
    for tensor in tensors(proto.graph):
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    yield from (name for function in proto.functions for name in (function.name, function.domain))
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
    return nodes_of((*proto.graph.node, *(node for function in proto.functions for node in function.node)))


def _span(tensor: onnx.TensorProto, folder: Path, files: dict[str, bytes]) -> tuple[str, int, int]:
    """Return file, offset and length of an external tensor; read the file where no tensor before lay in it."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = entries.get("location", "")
    path = PurePosixPath(file)
    if not file or path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file or str(path) != file:
        what = f"weight {tensor.name!r} lies in {file!r}, expected a file in the model's own folder"
        raise RefusedModelError(f"{what}, by a plain relative path", "put it there and save the model again")
    offset = _number(tensor, entries.get("offset", "0"))
    length = _number(tensor, entries["length"]) if "length" in entries else None
    if file not in files:
        files[file] = read_external(folder, file, MOST_BYTES - sum(map(len, files.values())))
    size = len(files[file])
    length = size - offset if length is None else length
    if offset > size or length < 0 or offset + length > size:
        what = f"weight {tensor.name!r} lies in bytes {offset} to {offset + length} of {file!r}, which has {size}"
        raise RefusedModelError(what, "copy the files again")
    return file, offset, length


def _number(tensor: onnx.TensorProto, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        what = f"weight {tensor.name!r} lies at {text!r} of its file, expected a number of bytes"
        raise RefusedModelError(what, "save the model again")
    return int(text)
