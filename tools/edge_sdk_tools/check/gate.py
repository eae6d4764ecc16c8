"""The export gate: an ONNX file in, a model of fixed shapes that the target's runtime can load out.

Requires a file; ensures one float32 image input of the size that model.toml names, an opset that quantization and the
target both take, operators that ONNX Runtime knows, and no data outside the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed

from edge_sdk.errors import ModelError, SessionError
from edge_sdk.model_spec import ModelSpec, read_labels
from edge_sdk.session import Session, SessionSettings
from edge_sdk.target import Target
from edge_sdk.tasks import make_task

QUANTIZABLE_OPSET = 13
"""The lowest opset whose QuantizeLinear has an axis, which per-channel weights need."""


class CheckedModel(msgspec.Struct, frozen=True, eq=False):
    """A model that passed the gate.

    Attributes:
        proto: with fixed shapes, inferred throughout.
        sha256: of the file it came from, in hex.
        labels: one an output class.
        opset: of ai.onnx, raised where it was too low.
    """

    proto: onnx.ModelProto
    sha256: str
    labels: tuple[str, ...]
    opset: int


def check_model(spec: ModelSpec, target: Target) -> CheckedModel:
    """Load, check and fix the model of `spec` for `target`.

    Raises:
        ModelError: with what is wrong, where, what was expected and got.
    """
    path = Path(spec.model)
    labels = read_labels(Path(spec.labels))
    data = _read(path)
    proto = _parse(data, path)
    _refuse_external_data(proto, path)
    opset = _opset(proto, path)
    if opset > target.max_opset:
        raise ModelError(
            f"{path}: opset {opset}, but ONNX Runtime {target.min_onnxruntime} on {target.name} runs up to "
            f"{target.max_opset}; export it with a lower opset"
        )
    if opset < QUANTIZABLE_OPSET:
        proto, opset = _raise_opset(proto, path), QUANTIZABLE_OPSET
    proto = _fix_shapes(proto, spec, path)
    _run_once(proto, spec, labels, path)
    return CheckedModel(proto, hashlib.sha256(data).hexdigest(), labels, opset)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such model file") from None
    except OSError as cause:
        raise ModelError(f"{path}: model cannot be read: {cause.strerror}") from cause


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError:
        raise ModelError(
            f"{path}: not an ONNX model, or truncated ({len(data)} bytes); export or copy it again"
        ) from None
    if not proto.graph.node:
        raise ModelError(f"{path}: not an ONNX model: there are no nodes in it")
    return proto


def _refuse_external_data(proto: onnx.ModelProto, path: Path) -> None:
    external = next((t.name for t in _tensors(proto.graph) if t.data_location == onnx.TensorProto.EXTERNAL), None)
    if external is not None:
        raise ModelError(
            f"{path}: weight {external!r} lies in another file, expected all weights inside; save it with "
            "onnx.save(onnx.load(path), path, save_as_external_data=False)"
        )


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every constant: initializers, attributes of nodes, and those of the graphs inside them."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _tensors(inner)


def _opset(proto: onnx.ModelProto, path: Path) -> int:
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        raise ModelError(f"{path}: names no ai.onnx opset")
    return int(versions[0])


def _raise_opset(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(proto, QUANTIZABLE_OPSET)
    except Exception as cause:  # the converter raises RuntimeError and its own C++ types alike
        detail = str(cause).splitlines()[0]
        raise ModelError(
            f"{path}: opset could not be raised to {QUANTIZABLE_OPSET}: {detail}; export it with opset 17"
        ) from cause


def _fix_shapes(proto: onnx.ModelProto, spec: ModelSpec, path: Path) -> onnx.ModelProto:
    weights = {w.name for w in proto.graph.initializer}
    inputs = [i for i in proto.graph.input if i.name not in weights]
    if len(inputs) != 1:
        raise ModelError(f"{path}: has {len(inputs)} inputs, expected one image input")
    [image] = inputs
    tensor = image.type.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise ModelError(f"{path}: input {image.name!r} is {kind}, expected FLOAT; export it in float32")
    expected = spec.input.tensor_shape
    found = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    if len(found) != 4 or any(f not in (None, e) for f, e in zip(found, expected, strict=False)):
        shown = "x".join("?" if d is None else str(d) for d in found)
        raise ModelError(
            f"{path}: input {image.name!r} has shape {shown}, model.toml says {'x'.join(map(str, expected))} "
            f"({spec.input.layout}, {spec.input.color}); correct input.size_wh, input.color or input.layout"
        )
    make_input_shape_fixed(proto.graph, image.name, list(expected))
    try:
        del proto.graph.value_info[:]
        proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
        fix_output_shapes(proto)
        _name_nodes(proto)
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as cause:
        raise ModelError(f"{path}: {_checker_line(cause)}") from cause
    return proto


def _name_nodes(proto: onnx.ModelProto) -> None:
    """Give every node a name of its own: quantization leaves nodes out by name."""
    taken: set[str] = set()
    for index, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}"
        taken.add(node.name)


def _run_once(proto: onnx.ModelProto, spec: ModelSpec, labels: tuple[str, ...], path: Path) -> None:
    try:
        session = Session(proto.SerializeToString(), SessionSettings(), str(path))
        session.run(np.zeros(session.input_shape, np.float32))
    except SessionError as cause:
        raise ModelError(str(cause)) from cause
    try:
        make_task(spec, len(labels), session.output_shapes)
    except ModelError as cause:
        raise ModelError(f"{path}: {cause}") from cause


def _checker_line(cause: Exception) -> str:
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    telling = [line for line in lines if "No Op registered" in line or "Error" in line]
    return (telling or lines or [type(cause).__name__])[0]
