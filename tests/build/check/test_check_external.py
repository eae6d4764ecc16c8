"""Weights in other files: files beside the model are taken in, everything else is refused, and why."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import load_model_spec
from edge_sdk.target import load_target
from edge_sdk_tools.check import CheckedModel, check_model, external_data
from edge_sdk_tools.check.external_data import read_external
from tests.support import models as tiny
from tests.support.projects import write_project
from tests.support.reports import only, report_on


def _check(folder: Path) -> CheckedModel:
    return check_model(load_model_spec(folder / "model.toml"), load_target("arm64"))


def _split(folder: Path, location: str = "weights.bin") -> onnx.ModelProto:
    """A project whose weights all lie in one other file; returns the model as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    write_project(folder, pictures=0)
    proto = onnx.load(folder / "model.onnx")
    split = onnx.ModelProto.FromString(proto.SerializeToString())
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    external_data_helper.convert_model_to_external_data(split, location=location, size_threshold=0)
    onnx.save(split, folder / "model.onnx")
    return proto


def _edit(folder: Path, **entries: str) -> None:
    """Change what the model says of the first weight's place."""
    path = folder / "model.onnx"
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(proto.SerializeToString())


def test_a_weight_that_lies_in_both_places_is_the_one_of_the_file(tmp_path: Path) -> None:
    original = _split(tmp_path)
    split = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    expected = [onnx.numpy_helper.to_array(t) for t in original.graph.initializer]
    for tensor in split.graph.initializer:
        tensor.raw_data = bytes(8192)
    (tmp_path / "model.onnx").write_bytes(split.SerializeToString())
    found = {t.name: onnx.numpy_helper.to_array(t) for t in _check(tmp_path).proto.graph.initializer}
    for tensor, array in zip(original.graph.initializer, expected, strict=True):
        np.testing.assert_array_equal(found[tensor.name], array)


@pytest.mark.parametrize("location", ["weights.bin", "deeper/weights.bin"])
def test_weights_beside_the_model_are_taken_in(tmp_path: Path, location: str) -> None:
    original = _split(tmp_path, location)
    checked = _check(tmp_path)
    found = {t.name: onnx.numpy_helper.to_array(t) for t in checked.proto.graph.initializer}
    for tensor in original.graph.initializer:
        np.testing.assert_array_equal(found[tensor.name], onnx.numpy_helper.to_array(tensor))
    assert all(t.data_location == TensorProto.DEFAULT for t in checked.proto.graph.initializer)


def test_the_hash_covers_the_other_files(tmp_path: Path) -> None:
    _split(tmp_path)
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("model.onnx", "weights.bin")]
    text = f"{digests[0]} \n{digests[1]} weights.bin\n"
    assert _check(tmp_path).sha256 == hashlib.sha256(text.encode()).hexdigest()
    before = _check(tmp_path).sha256
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert _check(tmp_path).sha256 != before


def test_without_other_files_the_hash_is_the_models_own(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    assert _check(tmp_path).sha256 == hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()


def test_large_weights_of_both_kinds_come_back_whole(tmp_path: Path) -> None:
    """Some are cut out of the model, some lie beside it, some are written as lists of numbers."""
    random = np.random.default_rng(5)
    weights = {name: random.normal(size=(16, 16, 5, 5)).astype(np.float32) for name in ("inside", "beside", "listed")}
    nodes = [helper.make_node("Conv", ["images", "first"], ["c0"], pads=[2, 2, 2, 2])]
    nodes += [
        helper.make_node("Conv", [f"c{i}", name], [f"c{i + 1}"], pads=[2, 2, 2, 2]) for i, name in enumerate(weights)
    ]
    nodes += [
        helper.make_node("GlobalAveragePool", ["c3"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "last"], ["l"]),
        helper.make_node("Softmax", ["l"], ["probabilities"], axis=1),
    ]
    ends = {"first": np.ones((16, 3, 5, 5), np.float32), "last": np.ones((16, 3), np.float32)}
    model = tiny.model(nodes, [1, 3, 16, 16], {"probabilities": [1, 3]}, {**weights, **ends})
    write_project(tmp_path, model=model, pictures=0)
    tensors = {t.name: t for t in model.graph.initializer}
    external_data_helper.set_external_data(tensors["beside"], location="beside.bin", offset=8, length=25600)
    (tmp_path / "beside.bin").write_bytes(bytes(8) + tensors["beside"].raw_data + bytes(3))
    tensors["beside"].ClearField("raw_data")
    tensors["beside"].data_location = TensorProto.EXTERNAL
    tensors["listed"].ClearField("raw_data")
    tensors["listed"].float_data.extend(weights["listed"].reshape(-1).tolist())
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    found = {t.name: onnx.numpy_helper.to_array(t) for t in _check(tmp_path).proto.graph.initializer}
    for name, weight in {**weights, **ends}.items():
        np.testing.assert_array_equal(found[name], weight)


def _link_out(folder: Path) -> None:
    outside = folder.parent / "outside.bin"
    (folder / "weights.bin").rename(outside)
    (folder / "weights.bin").symlink_to(outside)


def _link_folder_out(folder: Path) -> None:
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    (folder / "weights.bin").rename(outside / "weights.bin")
    (folder / "linked").symlink_to(outside)
    _edit(folder, location="linked/weights.bin")


def _pipe(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    os.mkfifo(folder / "weights.bin")


def _circle(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("weights.bin")


def _folder(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").mkdir()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: _edit(f, location="../weights.bin"), "'../weights.bin', expected a file in the model's own folder"),
        (lambda f: _edit(f, location="/etc/passwd"), "'/etc/passwd', expected a file in the model's own folder"),
        (lambda f: _edit(f, location="deeper/../../x"), "expected a file in the model's own folder"),
        (lambda f: _edit(f, location="./weights.bin"), "by a plain relative path"),
        (lambda f: _edit(f, location=""), "expected a file in the model's own folder"),
        (lambda f: _edit(f, location="a\\b"), "expected a file in the model's own folder"),
        (lambda f: (f / "weights.bin").unlink(), "'weights.bin', which holds weights, is missing; copy it beside"),
        (_link_out, "is a link that leads out of the model's folder"),
        (_link_folder_out, "is a link that leads out of the model's folder"),
        (_pipe, "cannot be read: it is a pipe, expected a regular file"),
        (_folder, "cannot be read: it is a folder, expected a regular file"),
        (_circle, "cannot be read: its links lead in a circle"),
        (lambda f: _edit(f, offset="-1"), "lies at '-1' of its file, expected a number of bytes"),
        (lambda f: _edit(f, offset="1e3"), "expected a number of bytes"),
        (lambda f: _edit(f, offset="99999999999999999999999"), "expected a number of bytes"),
        (lambda f: _edit(f, offset="4000000"), "lies in bytes 4000000 to"),
        (lambda f: _edit(f, length="4000000"), "of 'weights.bin', which has"),
        (lambda f: _edit(f, length="4"), "has shape 8x3x3x3 and holds 4 bytes, expected 864"),
        (lambda f: (f / "weights.bin").write_bytes(b""), "of 'weights.bin', which has 0"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: Callable[[Path], None], expected: str) -> None:
    folder = tmp_path / "project"
    _split(folder)
    change(folder)
    line = only(report_on(folder, None, size=16), "file").line
    assert expected in line
    assert line.isprintable()


def test_a_link_inside_the_folder_is_fine(tmp_path: Path) -> None:
    _split(tmp_path)
    (tmp_path / "weights.bin").rename(tmp_path / "real.bin")
    (tmp_path / "weights.bin").symlink_to("real.bin")
    assert _check(tmp_path).labels == ("a", "b", "c")


def test_a_constant_node_in_another_file(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    proto = tiny.classifier()
    value = TensorProto(name="gain", data_type=TensorProto.FLOAT, dims=[1], raw_data=bytes(4))
    external_data_helper.set_external_data(value, location="gain.bin")
    value.data_location = TensorProto.EXTERNAL
    value.ClearField("raw_data")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["gain"], value=value))
    proto.graph.node.insert(1, helper.make_node("Add", ["images", "gain"], ["moved"]))
    proto.graph.node[2].input[0] = "moved"
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"'gain\.bin', which holds weights, is missing"):
        _check(tmp_path)
    (tmp_path / "gain.bin").write_bytes(np.array([2.5], np.float32).tobytes())
    [constant] = [n for n in _check(tmp_path).proto.graph.node if n.op_type == "Constant"]
    assert onnx.numpy_helper.to_array(constant.attribute[0].t) == [2.5]


def test_more_than_protobuf_can_hold(tmp_path: Path) -> None:
    """A sparse file: its size is seen before it is read."""
    _split(tmp_path)
    os.truncate(tmp_path / "weights.bin", external_data.MOST_BYTES)
    with pytest.raises(ModelError, match="bytes together, expected at most 2147483647"):
        _check(tmp_path)
    with pytest.raises(ModelError, match="bytes together"):
        read_external(tmp_path, "weights.bin", 1000)
    os.truncate(tmp_path / "model.onnx", external_data.MOST_BYTES + 1)
    with pytest.raises(ModelError, match="have 2147483648 bytes together"):
        _check(tmp_path)
