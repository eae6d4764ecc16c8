"""Old opsets are raised, and compute the same; where they would not, the model is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edge_sdk_tools.check.skeleton import put_weights
from tests.support import models as tiny
from tests.support.reports import SIZE, examined, only, report_on

_RANDOM = np.random.default_rng(3)
_Weights = dict[str, np.ndarray]


def _floats(*shape: int) -> np.ndarray:
    return _RANDOM.normal(size=shape).astype(np.float32)


def _one(opset: int, operator: str, weights: _Weights | None = None, **attributes: object) -> onnx.ModelProto:
    """One node on the image; an opset that takes its parameters as inputs gets them as weights."""
    node = helper.make_node(operator, ["images", *(weights or {})], ["y"], **attributes)
    return _free(tiny.model([node], [1, 3, SIZE, SIZE], {"y": []}, weights, opset=opset))


def _free(model: onnx.ModelProto) -> onnx.ModelProto:
    """Say nothing of the output's shape: inference has to find it, or the trial run."""
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def _softmax(opset: int, axis: int) -> onnx.ModelProto:
    return _one(opset, "Softmax", axis=axis)


def _batch_normalization(opset: int) -> onnx.ModelProto:
    weights = {"scale": _floats(3), "bias": _floats(3), "mean": _floats(3), "variance": np.abs(_floats(3))}
    return _one(opset, "BatchNormalization", weights, epsilon=1e-3)


def _upsample(opset: int, mode: str, factor: float) -> onnx.ModelProto:
    scales = [1.0, 1.0, factor, factor]
    if opset < 9:
        return _one(opset, "Upsample", mode=mode, scales=scales)
    weights = {"scales": np.array(scales, np.float32)}
    return _one(opset, "Upsample" if opset == 9 else "Resize", weights, mode=mode)


def _resize_11(mode: str, coordinates: str) -> onnx.ModelProto:
    weights = {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 1.5, 0.5], np.float32)}
    return _one(11, "Resize", weights, mode=mode, coordinate_transformation_mode=coordinates)


def _reshape(opset: int) -> onnx.ModelProto:
    return _one(opset, "Reshape", {"shape": np.array([1, -1], np.int64)})


def _dropout(opset: int) -> onnx.ModelProto:
    return _one(opset, "Dropout", **({"ratio": 0.4} if opset < 12 else {}))


def _clip(opset: int) -> onnx.ModelProto:
    if opset < 11:
        return _one(opset, "Clip", min=-0.5, max=0.5)
    return _one(opset, "Clip", {"low": np.array(-0.5, np.float32), "high": np.array(0.5, np.float32)})


def _pad(opset: int) -> onnx.ModelProto:
    return _one(opset, "Pad", mode="reflect", pads=[0, 0, 1, 2, 0, 0, 3, 1])


def _squeeze(opset: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceSum", ["images"], ["sum"], axes=[2, 3]),
        helper.make_node("Squeeze", ["sum"], ["flat"], axes=[2, 3]),
        helper.make_node("Unsqueeze", ["flat"], ["y"], axes=[0]),
    ]
    return _free(tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": []}, opset=opset))


def _layers(opset: int) -> onnx.ModelProto:
    """Weights that are large enough to be cut out, and a free batch."""
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "m", "b"], ["y"], transB=1),
    ]
    weights = {"w": _floats(64, 3, 3, 3), "m": _floats(32, 64), "b": _floats(32)}
    return tiny.model(nodes, ["N", 3, SIZE, SIZE], {"y": ["N", 32]}, weights, opset=opset)


_SOFTMAX = {f"softmax {o} axis {a}": partial(_softmax, o, a) for o in (7, 10, 11, 12) for a in range(4)}
_UPSAMPLE = {
    f"upsample {o} {mode} {factor}": partial(_upsample, o, mode, factor)
    for o, mode, factor in itertools.product((7, 9, 10), ("nearest", "linear"), (2.0, 1.5))
}
_OTHERS = {
    f"{make.__name__} {opset}": partial(make, opset)
    for make in (_batch_normalization, _reshape, _dropout, _clip, _squeeze, _layers)
    for opset in (7, 9, 11, 12)
}
_OLD: dict[str, Callable[[], onnx.ModelProto]] = {
    **_SOFTMAX,
    **_UPSAMPLE,
    **_OTHERS,
    "pad 7": partial(_pad, 7),
    "resize 10 nearest down": partial(_upsample, 10, "nearest", 0.5),
    "resize 10 linear down": partial(_upsample, 10, "linear", 0.5),
    "resize 11 half pixel": partial(_resize_11, "linear", "half_pixel"),
    "resize 11 corners": partial(_resize_11, "linear", "align_corners"),
    "resize 11 nearest": partial(_resize_11, "nearest", "half_pixel"),
}


def _run(model: onnx.ModelProto, image: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": image})[0])


@pytest.mark.parametrize("name", _OLD)
def test_an_old_opset_computes_the_same_after_raising(tmp_path: Path, name: str) -> None:
    original = _OLD[name]()
    found = examined(tmp_path, original)
    assert found.report.passed, found.report.findings
    assert found.report.used_opset == 13
    raised = onnx.ModelProto.FromString(found.skeleton)
    put_weights(raised, found.weights, {"": (tmp_path / "model.onnx").read_bytes()})
    image = np.random.default_rng(1).normal(size=(1, 3, SIZE, SIZE)).astype(np.float32)
    before, after = _run(original, image), _run(raised, image)
    assert found.report.outputs[0].shape == before.shape
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_the_note_says_what_was_raised(tmp_path: Path) -> None:
    found = only(report_on(tmp_path, _layers(11)), "opset")
    assert (found.severity, found.what) == ("note", "opset 11 was raised to 13, which per-channel weights need")


def test_a_conversion_that_changes_the_result_is_refused(tmp_path: Path) -> None:
    """onnx's converter leaves Hardmax alone, which meant all axes from the given one on before opset 13."""
    report = report_on(tmp_path, _one(11, "Hardmax", axis=1))
    assert not report.passed
    [finding] = report.of("error")
    assert finding.what == "raising opset 11 to 13 changes what it computes: output 'y' is off by up to 1"


@pytest.mark.parametrize(
    ("opset", "expected"),
    [
        (6, "opset 6, expected 7 or higher"),
        (1, "opset 1, expected 7 or higher"),
        (-3, "opset -3, expected 7 or higher"),
        (22, "opset 22, but ONNX Runtime 1.20.1 on arm64 runs up to 21"),
        (2**62, "runs up to 21"),
    ],
)
def test_an_opset_outside_the_range(tmp_path: Path, opset: int, expected: str) -> None:
    model = _layers(13)
    model.opset_import[0].version = opset
    [finding] = report_on(tmp_path, model).of("error")
    assert expected in finding.what
    assert finding.next_step.startswith("export it with")


def test_a_model_that_names_no_opset(tmp_path: Path) -> None:
    model = _layers(13)
    del model.opset_import[:]
    assert "names no ai.onnx opset" in only(report_on(tmp_path, model), "opset").what


@pytest.mark.parametrize(
    ("version", "highest"), [("1.20.1", 21), ("1.22.1", 22), ("1.23.2", 23), ("1.24.4", 25), ("1.25.1", 26)]
)
def test_the_highest_opset_of_every_runtime(tmp_path: Path, version: str, highest: int) -> None:
    """onnx itself may be older than the newest of them."""
    model = _layers(13)
    for opset in (highest, highest + 1):
        model.opset_import[0].version = opset
        told = [f.what for f in report_on(tmp_path, model, version=version).findings if f.rule == "opset"]
        expected = min(highest, onnx.defs.onnx_opset_version())
        assert told == ([] if opset <= expected else [told[0]])
        assert all(f"runs up to {expected}" in line for line in told)


def test_a_newer_ir_version_is_lowered_and_said(tmp_path: Path) -> None:
    model = _layers(17)
    model.ir_version = 11 if onnx.IR_VERSION >= 11 else 10
    found = examined(tmp_path, model)
    assert found.report.passed
    assert onnx.ModelProto.FromString(found.skeleton).ir_version == 10
    assert found.report.ir_version == model.ir_version
    said = [f.what for f in found.report.findings if f.rule == "ir-version"]
    assert (len(said) == 1) == (model.ir_version > 10)


@pytest.mark.parametrize("version", [0, -1, onnx.IR_VERSION + 1, 99])
def test_an_ir_version_that_nobody_knows(tmp_path: Path, version: int) -> None:
    model = _layers(17)
    model.ir_version = version
    [finding] = report_on(tmp_path, model).findings
    assert f"IR version {version}, expected 1 to {onnx.IR_VERSION}" in finding.what


def test_weights_of_a_very_old_file_are_no_inputs_any_more(tmp_path: Path) -> None:
    """Before IR version 4 every weight was an input too; then it could not be folded."""
    model = _layers(9)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims)))
    found = examined(tmp_path, model)
    assert found.report.passed, found.report.findings
    raised = onnx.ModelProto.FromString(found.skeleton)
    put_weights(raised, found.weights, {"": (tmp_path / "model.onnx").read_bytes()})
    assert [i.name for i in raised.graph.input] == ["images"]
