"""The record of a build: what it refuses, what of it is JSON, and what a real build fills it with."""

import json
import math
import re
from pathlib import Path

import cv2
import jsonschema
import msgspec
import numpy as np
import pytest
from onnx import helper, numpy_helper

from edge_sdk.core.frame import Detections, Frame, Result
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.prove import parity
from edge_sdk_tools.report import collect, schema
from tests.support import models as tiny
from tests.support.models import changed
from tests.support.projects import CLASSIFIER, write_labelled, write_project
from tests.support.reports import empty_report, from_json, full_report
from tests.support.results import make_classification, make_detections, make_segmentation


def _without_pictures(report: schema.BuildReport) -> schema.BuildReport:
    bare = tuple(msgspec.structs.replace(worst, picture=b"") for worst in report.worst_images)
    return msgspec.structs.replace(report, worst_images=bare)


@pytest.mark.parametrize("report", [full_report(), empty_report()])
def test_json_comes_back_as_it_was_but_for_the_pictures(report: schema.BuildReport) -> None:
    data = schema.to_json(report)
    assert data == schema.to_json(report)
    assert from_json(data) == _without_pictures(report)
    assert b"picture" not in data


def test_json_of_a_later_version_is_read_and_another_meaning_is_not() -> None:
    document = json.loads(schema.to_json(full_report()))
    document["steps"][0]["colour"] = "new"
    assert from_json(json.dumps(document).encode()) == _without_pictures(full_report())
    document["schema_version"] = 2
    with pytest.raises(msgspec.ValidationError):
        from_json(json.dumps(document).encode())
    for wrong in (b'"size_mb": -1', b'"macs_share": 1.5', b'"least_change": 0.01', b'"fp32_bytes": -1'):
        name = wrong.partition(b":")[0]
        with pytest.raises(msgspec.ValidationError, match=r"Expected `(float|int)` [<>]= "):
            from_json(re.sub(name + rb": [-+.0-9e]+", wrong, schema.to_json(full_report()), count=1))


def test_names_that_no_file_can_hold_are_made_writable() -> None:
    worst = schema.WorstImage(image="caf\udce9\x00\x1b.jpg", truth=None, fp32="é\n", int8="\ud800")
    assert (worst.image, worst.fp32, worst.int8) == ("caf\ufffd\ufffd\ufffd.jpg", "é\n", "\ufffd")
    report = msgspec.structs.replace(
        empty_report(), command=("a\udcff",), libraries={"b\udcff": "\udcff"}, worst_images=(worst,)
    )
    assert from_json(schema.to_json(report)) == report
    assert report.command == ("a\ufffd",)


def test_bytes_of_weights_belong_to_the_operator_that_reads_them() -> None:
    assert collect.size_by_operator(tiny.classifier(classes=3)) == {"Conv": 4 * (8 * 27 + 8 + 3 * 8 * 9 + 3)}
    weights: dict[str, np.ndarray] = {
        "w": np.zeros((4, 3, 1, 1), np.int8), "ws": np.ones(4, np.float32), "wz": np.zeros(4, np.int8),
        "s": np.array(0.1, np.float32), "z": np.array(0, np.uint8), "unread": np.zeros(99, np.float32),
    }  # fmt: skip
    text = """q = QuantizeLinear(images, s, z) x = DequantizeLinear(q, s, z) wf = DequantizeLinear<axis=0>(w, ws, wz)
        c = Conv(x, wf) k = Constant<value = int64[2] {0, 0}>() y = Reshape(c, k)"""
    proto = tiny.parsed(text, {"y": [1, 4, 8, 8]}, weights, shape=[1, 3, 8, 8])
    assert collect.size_by_operator(proto) == {"Conv": 12 + 16 + 4, "Reshape": 16, "QuantizeLinear": 5}
    floats = {"w": np.zeros((4, 3, 1, 1), np.float32)}
    float_proto = tiny.parsed("y = Conv(images, w)", {"y": [1, 4, 8, 8]}, floats, shape=[1, 3, 8, 8])
    assert collect.operator_sizes(float_proto, proto) == (
        schema.OperatorSize("Conv", 48, 32),
        schema.OperatorSize("Reshape", 0, 16),
        schema.OperatorSize("QuantizeLinear", 0, 5),
    )


def test_weights_in_control_flow_count() -> None:
    then = helper.make_graph(
        [helper.make_node("Add", ["images", "w"], ["y"])], "then", [], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.zeros(10, np.float16), "w")],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["images"], ["y"])], "else", [], [helper.make_tensor_value_info("y", 1, None)]
    )
    node = helper.make_node("If", ["c"], ["out"], then_branch=then, else_branch=other)
    proto = tiny.model([node], [1, 10], {"out": [1, 10]}, {"c": np.array(True)})
    assert collect.size_by_operator(proto) == {"Add": 20, "If": 1}


def test_the_schema_fits_a_record() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(schema.report_schema()))
    for report in (full_report(), empty_report()):
        document = json.loads(schema.to_json(report))
        validator.validate(document)
        assert not validator.is_valid({**document, "steps": [{"kind": "fp32", "name": "FP32", "size_mb": -1}]})
        assert not validator.is_valid({**document, "steps": [{"kind": "magic", "name": "FP32"}]})


@pytest.mark.parametrize(
    ("fp32", "int8", "size_wh"),
    [
        (make_detections(3), make_detections(0), (640, 480)),
        (make_classification([0, 1]), make_classification([1, 0]), (2000, 3)),
        (make_segmentation([0.4, 0.6]), make_segmentation([1.0, 0.0]), (1, 1)),
    ],
)
def test_both_results_side_by_side(fp32: Result, int8: Result, size_wh: tuple[int, int]) -> None:
    image = np.full((size_wh[1], size_wh[0], 3), 60, np.uint8)
    before = image.copy()
    names = {0: "cat", 1: "<script>é"}
    fp32, int8 = (msgspec.structs.replace(result, names=names) for result in (fp32, int8))
    data = collect.side_by_side(image, fp32, int8)
    assert data == collect.side_by_side(image, fp32, int8)
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert max(picture.shape[0], picture.shape[1]) >= collect.PANEL_PX
    np.testing.assert_array_equal(image, before)


def test_boxes_land_where_they_belong_and_each_on_its_half() -> None:
    image = np.full((960, 1920, 3), 255, np.uint8)
    box = Detections(
        Frame.of(image), 0, np.array([[960, 480, 1900, 950]], np.float32), np.array([0.9], np.float32), np.array([0])
    )
    nothing = msgspec.structs.replace(box, xyxy=box.xyxy[:0], confidence=box.confidence[:0], class_id=box.class_id[:0])
    data = np.frombuffer(collect.side_by_side(image, nothing, box), np.uint8)
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
    below_caption = picture[-collect.PANEL_PX // 2 :]
    coloured = below_caption.min(axis=2) < 200
    left, right = coloured[:, : collect.PANEL_PX], coloured[:, -collect.PANEL_PX :]
    assert not left.any()
    rows, columns = np.nonzero(right)
    assert columns.min() == pytest.approx(240, abs=3)
    assert columns.max() == pytest.approx(475, abs=3)
    assert rows.max() == pytest.approx(237, abs=3)


def _recorded(bundle: Path) -> schema.BuildReport:
    return from_json((bundle / "report.json").read_bytes())


def test_a_build_is_recorded_step_by_step(tmp_path: Path) -> None:
    write_project(tmp_path / "teacher", CLASSIFIER.replace('"tiny"', '"teacher"'), pictures=0)
    model = write_project(tmp_path / "p", CLASSIFIER + '[teacher]\nmodel = "../teacher/model.toml"\n', pictures=16)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 40, wrong=4)
    result = build(model, "x86_64", tmp_path / "a.edge", evaluation=[data], bundle_version=1)
    report = _recorded(tmp_path / "a.edge")
    assert [step.kind for step in report.steps] == ["teacher", "fp32", "simplified", "int8", "ort"]
    assert (report.name, report.target, report.images, report.verdict.carries) == ("tiny", "x86_64", 40, "int8")
    shipped = report.shipped
    assert (shipped.kind, shipped.size_mb, shipped.change) == (
        "ort",
        report.variants[0].model_mb,
        result.quality[0].difference,
    )
    [candidate] = report.candidates
    assert (candidate.chosen, candidate.held) == (True, True)
    assert report.libraries["onnxruntime"]
    assert len(report.local_noise) == 2
    steps = {step.kind: step for step in report.steps}
    teacher, fp32 = steps["teacher"], steps["fp32"]
    assert teacher.size_mb == pytest.approx((tmp_path / "teacher" / "model.onnx").stat().st_size / 1e6, rel=0.1)
    assert teacher.latency_ratio > 0
    # The same model under another name: nothing is lost, and the interval says how little 40 images tell.
    assert (fp32.against, fp32.change and fp32.change.value) == ("teacher", 0.0)
    assert fp32.change.low < 0 < fp32.change.high
    assert [(figure.name, figure.unit) for figure in steps["ort"].further] == [("KL divergence (nats)", "nats")]


def test_each_step_is_compared_with_the_one_before_and_their_errors_add_up(tmp_path: Path) -> None:
    build(write_project(tmp_path, pictures=40), "x86_64", tmp_path / "a.edge", bundle_version=1)
    steps = {step.kind: step for step in _recorded(tmp_path / "a.edge").steps}
    changes = {kind: step.outputs for kind, step in steps.items() if step.outputs}
    assert {kind: change.against for kind, change in changes.items()} == {
        "simplified": "fp32",
        "int8": "simplified",
        "ort": "int8",
    }
    assert all((change.images, change.inputs) == (8, 8) for change in changes.values())
    own = [change.relative_error or 0.0 for change in changes.values()]
    total = changes["ort"].total_error
    assert own[0] < 1e-6  # folding constants rounds in another order at most
    assert 1e-4 < own[1] < 0.5
    assert total == pytest.approx(math.sqrt(sum(error**2 for error in own)), rel=0.05)
    assert all(step.peak_memory_mb is not None for step in steps.values())
    page = (tmp_path / "a.edge" / "report.html").read_text()
    assert "measured in all" in page
    assert "The bundle carries INT8" in page
    assert str(tmp_path) not in page
    document = json.loads((tmp_path / "a.edge" / "report.json").read_bytes())
    jsonschema.Draft202012Validator(json.loads(schema.report_schema())).validate(document)


def test_images_on_which_the_two_differ_are_shown(tmp_path: Path) -> None:
    model = write_project(tmp_path / "p", model=changed(5, 0.1), pictures=16)
    data = write_labelled(tmp_path / "data", changed(5, 0.1), 60)
    build(model, "x86_64_avx2", tmp_path / "a.edge", evaluation=[data], bundle_version=1)
    report = _recorded(tmp_path / "a.edge")
    page = (tmp_path / "a.edge" / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == len(report.worst_images)
    for worst in report.worst_images:
        assert worst.fp32 != worst.int8


def test_a_fallback_is_recorded_with_what_int8_would_have_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "interleaved_latency_ms", lambda *_: [20.0, 10.0])
    result = build(write_project(tmp_path, pictures=16), "x86_64", tmp_path / "a.edge", bundle_version=1)
    report = _recorded(tmp_path / "a.edge")
    steps = {step.kind: step for step in report.steps}
    assert (report.verdict.carries, report.verdict.why) == ("fp32", result.fallback_reason)
    assert report.verdict.next_steps != ()
    assert (steps["int8"].shipped, steps["ort"].shipped) == (False, True)
    assert steps["int8"].latency_ratio == 2.0
    assert steps["ort"].outputs.against == "simplified"
    assert (steps["ort"].size_mb, steps["int8"].size_mb) == (report.variants[0].model_mb, result.int8_mb)
    assert "The bundle carries FP32" in (tmp_path / "a.edge" / "report.html").read_text()
