"""A model chooses no files of the device: what names some is refused before ONNX Runtime sees it."""

import contextlib
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_file import (
    DATA_LOCATION,
    EXTERNAL_DATA,
    PATHS,
    Damaged,
    fields,
    length_field,
    refuse_other_files,
)
from edge_sdk.core.errors import BundleError, SessionError
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from tests.support import models as tiny
from tests.support.bundles import FILES, golden_file, make_manifest, write_bundle
from tests.support.program import Cli


def _elsewhere(name: str = "w1", file: str = "secret.bin") -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[8, 3, 3, 3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=file)
    return tensor


def _spy(classes: int = 2) -> onnx.ModelProto:
    """Its answer depends on the bytes of a file that lies in the working directory."""
    proto = tiny.classifier(classes)
    weight = next(w for w in proto.graph.initializer if w.name == "w1")
    weight.CopyFrom(_elsewhere())
    return proto


def test_a_bundle_cannot_read_the_files_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    (tmp_path / "secret.bin").write_bytes(np.ones((8, 3, 3, 3), np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    model = _spy().SerializeToString()
    # What it is about: ONNX Runtime itself takes the file.
    assert onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    image = np.zeros((16, 16, 3), np.uint8)
    golden = golden_file((image, np.array([[0.5, 0.5]], np.float32)))
    files = {**FILES, "model.int8.ort": model, "golden.npz": golden}
    manifest = msgspec.structs.replace(make_manifest(files, side=16), machine=platform.machine())
    bundle = Bundle.open(write_bundle(tmp_path / "a.edge", manifest, files))
    with pytest.raises(BundleError, match=r"model\.int8\.ort: takes weights from another file"):
        Session.open(bundle)
    with pytest.raises(BundleError, match="takes weights from another file"):
        Session(model, SessionSettings(), "m")
    refusal = cli(7, "bench", bundle.path).err.splitlines()[-1]
    assert refusal.startswith("edge-sdk: ")
    assert "model.int8.ort: takes weights from another file, which no manifest names" in refusal


def _attribute(**held: object) -> Callable[[onnx.ModelProto], object]:
    def change(proto: onnx.ModelProto) -> None:
        proto.graph.node[0].attribute.add(name="a", **held)

    return change


def _in_a_function(proto: onnx.ModelProto) -> None:
    proto.functions.add(name="f").node.add(op_type="Constant").attribute.add(name="value", t=_elsewhere())


def _sparse() -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=numpy_helper.from_array(np.ones(1, np.float32)), indices=_elsewhere())


@pytest.mark.parametrize(
    "hide",
    [
        lambda proto: proto.graph.initializer.append(_elsewhere("more")),
        _attribute(t=_elsewhere()),
        _attribute(g=helper.make_graph([], "g", [], [], [_elsewhere()])),
        _attribute(sparse_tensors=[_sparse()]),
        _in_a_function,
    ],
)
def test_wherever_it_hides(hide: Callable[[onnx.ModelProto], object]) -> None:
    proto = tiny.classifier()
    refuse_other_files(proto.SerializeToString(), "m")
    hide(proto)
    with pytest.raises(BundleError, match="takes weights from another file"):
        refuse_other_files(proto.SerializeToString(), "m")


def _with_tensor_field(field: bytes) -> bytes:
    """A model whose last weight has one more field, as bytes, in a second graph that a parser joins to the first."""
    return tiny.classifier().SerializeToString() + length_field(7, length_field(5, field))


@pytest.mark.parametrize(
    ("field", "is_refused"),
    [
        (b"\x70\x00", False),  # data_location: DEFAULT
        (b"\x70\x80\x00", False),  # the same, longer than needed
        (b"\x70\x01", True),
        (b"\x70\x81\x80\x80\x80\x10", True),  # 1 to a parser that keeps 32 bits
        (b"\xf0\x80\x80\x80\x80\x02\x01", True),  # the tag, the same way
        (length_field(13, b""), True),
    ],
)
def test_however_it_is_written(field: bytes, is_refused: bool) -> None:
    with pytest.raises((BundleError, SessionError)) if is_refused else contextlib.nullcontext():
        refuse_other_files(_with_tensor_field(field), "m")


def test_graphs_that_lie_deep_in_each_other_take_no_stack() -> None:
    graph = length_field(5, _elsewhere().SerializeToString())
    for _ in range(3000):
        graph = length_field(1, length_field(5, length_field(6, graph)))
    with pytest.raises(BundleError, match="takes weights from another file"):
        refuse_other_files(length_field(7, graph), "m")


def _paths(start: Descriptor) -> Iterator[tuple[str, int, str]]:
    todo, seen = [start], {start.name}
    while todo:
        message = todo.pop()
        for field in message.fields:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                yield message.name, field.number, field.message_type.name
                if field.message_type.name not in seen:
                    seen.add(field.message_type.name)
                    todo.append(field.message_type)


def test_no_way_to_a_tensor_is_left_out() -> None:
    edges = list(_paths(onnx.ModelProto.DESCRIPTOR))
    leading = {"TensorProto"}
    while more := {source for source, _, to in edges if to in leading} - leading:
        leading |= more
    wanted = {(source, number, to) for source, number, to in edges if to in leading and source != "TensorProto"}
    assert {(source, number, to) for source, inner in PATHS.items() for number, to in inner.items()} == wanted
    numbers = TensorProto.DESCRIPTOR.fields_by_name
    assert (numbers["external_data"].number, numbers["data_location"].number) == (EXTERNAL_DATA, DATA_LOCATION)


def test_bytes_that_are_no_message() -> None:
    for data in (
        *(b"\x08", b"\x0a\x05ab", b"\x0b", b"\x00\x00", b"\x08" + b"\x80" * 11 + b"\x01", b"\x0d\x01"),
        b"\x88\x80\x80\x80\x10\x00",  # field 1 to a parser that keeps 32 bits of a tag
    ):
        with pytest.raises(Damaged):
            list(fields(data, 0, len(data)))
