"""The export gate: what passes is fixed and loads, what does not is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import load_model_spec
from edge_sdk.target import load_target
from edge_sdk_tools.check import CheckedModel, check_model, examine
from edge_sdk_tools.check.limited import Limits
from edge_sdk_tools.check.model_file import assemble, digest
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, write_project


def _check(folder: Path, model: onnx.ModelProto, text: str = CLASSIFIER) -> CheckedModel:
    return check_model(load_model_spec(write_project(folder, text, model, pictures=0)), load_target("arm64"))


def test_dynamic_dimensions_are_fixed(tmp_path: Path) -> None:
    proto = _check(tmp_path, tiny.classifier(batch="N")).proto
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*proto.graph.input, *proto.graph.output)]
    assert shapes == [[1, 3, 16, 16], [1, 3]]


def test_an_old_opset_is_raised_to_what_quantization_needs(tmp_path: Path) -> None:
    checked = _check(tmp_path, tiny.classifier(opset=11))
    assert checked.opset == 13
    assert [o.version for o in checked.proto.opset_import] == [13]


def test_every_node_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = [node.name for node in _check(tmp_path, tiny.classifier()).proto.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def _unknown(domain: str) -> onnx.ModelProto:
    proto = tiny.classifier()
    proto.graph.node[1].op_type = "Frobnicate"
    proto.graph.node[1].domain = domain
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


def _newer_opset() -> onnx.ModelProto:
    proto = tiny.classifier()
    proto.opset_import[0].version = 26
    return proto


def _two_inputs() -> onnx.ModelProto:
    proto = tiny.classifier()
    proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))
    return proto


def _bytes_input() -> onnx.ModelProto:
    proto = tiny.classifier()
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    return proto


def _broken_shapes() -> onnx.ModelProto:
    proto = tiny.classifier()
    proto.graph.initializer[2].dims[1] = 7
    proto.graph.initializer[2].raw_data = proto.graph.initializer[2].raw_data[: 3 * 7 * 9 * 4]
    return proto


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: _unknown(""), "Frobnicate"),
        (lambda: _unknown("com.example"), "Frobnicate"),
        (_newer_opset, "opset 26, but ONNX Runtime 1.20.1 on arm64 runs up to 21"),
        (_two_inputs, "has 2 inputs, expected one image input"),
        (_bytes_input, "input 'images' is UINT8, expected FLOAT"),
        (_broken_shapes, "Conv"),
        (lambda: tiny.classifier(size=24), "has shape 1x3x24x24, model.toml says 1x3x16x16"),
        (lambda: tiny.classifier(batch=2), "has shape 2x3x16x16"),
        (lambda: tiny.classifier(classes=4), "labels has 3 lines, the model has 4 classes (output 1x4)"),
    ],
)
def test_what_does_not_pass_is_named(tmp_path: Path, make: Callable[[], onnx.ModelProto], expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        _check(tmp_path, make())
    assert str(tmp_path / "model.onnx") in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\x00" * 100, lambda b: b"PK"]
)
def test_a_file_that_is_no_model(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    model = write_project(tmp_path, pictures=0)
    path = tmp_path / "model.onnx"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"model\.onnx: not an ONNX model"):
        check_model(load_model_spec(model), load_target("arm64"))


def test_no_file(tmp_path: Path) -> None:
    model = write_project(tmp_path, pictures=0)
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(ModelError, match="no such model file"):
        check_model(load_model_spec(model), load_target("arm64"))


def test_only_the_first_error_stops_a_build_and_the_others_are_counted(tmp_path: Path) -> None:
    model = _newer_opset()
    model.graph.initializer[0].raw_data = np.full(216, np.nan, np.float32).tobytes()
    model.graph.node[1].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(ModelError) as caught:
        _check(tmp_path, model)
    assert "opset 26, but ONNX Runtime 1.20.1 on arm64 runs up to 21; export it with a lower opset" in str(caught.value)
    assert str(caught.value).endswith(
        "(and 2 more: `edge-sdk check MODEL.toml --target arm64 --prove-runtime 1.20.1` lists them)"
    )


def test_without_a_target_this_machines_runtime_counts(tmp_path: Path) -> None:
    spec = load_model_spec(write_project(tmp_path, pictures=0))
    assert check_model(spec, None).opset == tiny.OPSET
    report = examine(spec)
    assert (report.passed, report.target, report.onnxruntime) == (True, None, ort.__version__)


def test_what_is_checked_is_what_comes_back(tmp_path: Path) -> None:
    original = tiny.classifier()
    proto = _check(tmp_path, original).proto
    image = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    results = [
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"images": image})[0]
        for m in (original, proto)
    ]
    np.testing.assert_array_equal(*results)


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    path = tmp_path / "model.onnx"
    skeleton = tiny.classifier().SerializeToString()
    assert assemble(path, [], skeleton, [], digest({"": path.read_bytes()})).graph.node
    with pytest.raises(ModelError, match="changed while it was checked; check it again"):
        assemble(path, [], skeleton, [], digest({"": b"before"}))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("nothing.onnx", "nothing.onnx: no such model file"),
        ("folder", "folder: the model cannot be read: it is a folder, expected a regular file"),
        ("pipe", "pipe: the model cannot be read: it is a pipe, expected a regular file"),
        ("/dev/zero", "/dev/zero: the model cannot be read: it is a device, expected a regular file"),
        ("model.toml/x", "model.toml/x: the model cannot be read: Not a directory"),
        ("é" * 300, "é: the model cannot be read: File name too long"),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b: the model cannot be read: there is a NUL character in its name"),
        ("a\nb", "a b: no such model file"),
    ],
)
def test_a_path_that_leads_to_no_model(tmp_path: Path, model: str, expected: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = write_project(tmp_path, CLASSIFIER.replace('"model.onnx"', json.dumps(model)), pictures=0)
    [finding] = examine(load_model_spec(path)).findings
    assert (finding.severity, finding.rule) == ("error", "file")
    assert finding.what.endswith(expected)
    assert finding.what.count(expected) == 1


def test_a_model_in_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    assert examine(load_model_spec(write_project(folder, pictures=0))).passed


@pytest.mark.sandbox
def test_a_process_that_dies_is_an_error_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can end the process that reads it: what can be said without it is said all the same."""
    monkeypatch.setattr("edge_sdk_tools.check.gate._LIMITS", Limits(memory_mb=4096, cpu_s=60, wall_s=0))
    spec = load_model_spec(write_project(tmp_path, labels="", pictures=0))
    died, labels = examine(spec, load_target("arm64")).findings
    assert (died.rule, labels.rule) == ("file", "labels")
    assert died.what == f"{tmp_path / 'model.onnx'}: it was not examined within 0 s"
    with pytest.raises(ModelError, match=rf"^{died.what}; the file is damaged, .* \(and 1 more: "):
        check_model(spec, load_target("arm64"))
