"""Labels in the export gate: what is known of them is said, beside whatever else is wrong, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import load_model_spec
from edge_sdk.target import load_target
from edge_sdk_tools.check import CheckReport, Finding, check_model, examine
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, DETECTOR, write_project
from tests.support.reports import only

BACKGROUND = CLASSIFIER + "[classification]\nbackground_class = true\n"
YOLOV8 = CLASSIFIER.replace("classification", "detection").replace("softmax", "yolov8").replace("16, 16", "32, 32")


def _report(
    folder: Path, model: onnx.ModelProto | None = None, labels: str = "a\nb\nc\n", text: str = CLASSIFIER
) -> CheckReport:
    report = examine(load_model_spec(write_project(folder, text, model, labels=labels, pictures=0)))
    assert all(finding.next_step for finding in report.findings)
    return report


def _of_labels(report: CheckReport) -> list[tuple[str, str]]:
    return [(finding.severity, finding.what) for finding in report.findings if finding.rule == "labels"]


def _newer_opset() -> onnx.ModelProto:
    model = tiny.classifier()
    model.opset_import[0].version = 99
    return model


@pytest.mark.parametrize("labels", ["", None, "\n\n"])
@pytest.mark.parametrize("rule", ["opset", "file"])
def test_a_labels_file_is_missed_beside_what_else_is_wrong(tmp_path: Path, rule: str, labels: str | None) -> None:
    path = write_project(tmp_path, CLASSIFIER, _newer_opset(), labels=labels or "", pictures=0)
    if rule == "file":
        (tmp_path / "model.onnx").unlink()
    if labels is None:
        (tmp_path / "labels.txt").unlink()
    report = examine(load_model_spec(path), load_target("arm64"))
    assert [finding.rule for finding in report.of("error")] == [rule, "labels"]
    assert not report.passed
    finding = only(report, "labels")
    assert finding.what.startswith(f"{tmp_path / 'labels.txt'}: ")
    assert finding.next_step == "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"


def test_an_error_about_labels_names_their_file_alone(tmp_path: Path) -> None:
    path = write_project(tmp_path, labels="", pictures=0)
    with pytest.raises(ModelError, match=rf"^{tmp_path / 'labels.txt'}: no labels in it.*; write one label a line"):
        check_model(load_model_spec(path), None)


def _other_size() -> onnx.ModelProto:
    return tiny.classifier(size=24, classes=4)


def _broken_shapes() -> onnx.ModelProto:
    model = tiny.classifier(classes=4)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((8, 27), np.float32), "w1"))
    return model


def _wrong_channels() -> onnx.ModelProto:
    model = tiny.classifier(classes=4)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((8, 5, 3, 3), np.float32), "w1"))
    return model


def _old_opset() -> onnx.ModelProto:
    return tiny.classifier(classes=4, opset=6)


def _no_opset() -> onnx.ModelProto:
    model = tiny.classifier(classes=4)
    del model.opset_import[:]
    return model


def _damaged_constant() -> onnx.ModelProto:
    model = tiny.classifier(classes=4)
    model.graph.initializer[1].raw_data = b"\0\0\0"
    return model


def _nan() -> onnx.ModelProto:
    model = tiny.classifier(classes=4)
    model.graph.initializer[0].raw_data = np.full(216, np.nan, np.float32).tobytes()
    return model


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (_other_size, "input"),
        (_broken_shapes, "shape"),
        (_wrong_channels, "run"),
        (_old_opset, "opset"),
        (_no_opset, "opset"),
        (_damaged_constant, "file"),
        (_nan, "nan-weight"),
    ],
)
def test_their_number_is_compared_behind_other_errors(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], rule: str
) -> None:
    report = _report(tmp_path, make())
    assert {finding.rule for finding in report.of("error")} == {rule, "labels"}
    assert only(report, "labels").what == "labels has 3 lines, the model has 4 classes (output 1x4)"
    assert [f.rule for f in _report(tmp_path / "fits", make(), "a\nb\nc\nd\n").findings if f.rule == "labels"] == []


def test_their_number_is_compared_where_the_number_of_boxes_depends_on_the_picture(tmp_path: Path) -> None:
    """Every value above 0 of the picture gives a box: how many is known only when it has run."""
    nodes = [
        helper.make_node("NonZero", ["images"], ["found"]),
        helper.make_node("Cast", ["found"], ["boxes"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["boxes", "axis"], ["y"]),
    ]
    model = tiny.model(nodes, [1, 3, 32, 32], {"y": [1, 4, "n"]}, {"axis": np.array([0], np.int64)})
    report = _report(tmp_path, model, "a\nb\n", YOLOV8)
    assert [finding.rule for finding in report.of("error")] == ["dynamic"]
    weight = {"axis": np.array([0], np.int64), "more": np.zeros((3, 4), np.int64)}
    nodes.insert(1, helper.make_node("MatMul", ["more", "found"], ["sums"]))
    nodes[2].input[0] = "sums"
    del weight["more"]
    weight["more"] = np.ones((7, 4), np.int64)
    model = tiny.model(nodes, [1, 3, 32, 32], {"y": [1, 7, "n"]}, weight)
    report = _report(tmp_path, model, "a\nb\n", YOLOV8)
    assert [finding.rule for finding in report.of("error")] == ["dynamic", "labels"]
    assert only(report, "labels").what == "labels has 2 lines, the model has 3 classes (output 1x7xn)"


def test_the_number_in_yolov4s_heads_is_compared_behind_other_errors(tmp_path: Path) -> None:
    report = _report(tmp_path, tiny.head_detector(size=32), "red\nblue\ngreen\n", DETECTOR)
    assert [finding.rule for finding in report.of("error")] == ["input", "labels"]
    assert only(report, "labels").what == "labels has 3 lines, the model has 2 classes (output 1x7x2x2)"
    report = _report(tmp_path, tiny.head_detector(size=32), "red\nblue\n", DETECTOR)
    assert [finding.rule for finding in report.of("error")] == ["input"]


def test_nothing_is_said_of_a_number_that_no_output_shows(tmp_path: Path) -> None:
    """Behind an input of another size the output has another rank than the decoder reads: mended, it may fit."""
    report = _report(tmp_path, tiny.segmenter(size=48))
    assert [finding.rule for finding in report.of("error")] == ["input"]


def test_the_next_step_stands_apart(tmp_path: Path) -> None:
    finding = only(_report(tmp_path, tiny.classifier(classes=4)), "labels")
    assert finding.what == "labels has 3 lines, the model has 4 classes (output 1x4)"
    assert finding.next_step.startswith('is the first class "background"? Then it needs a line of its own')
    finding = only(_report(tmp_path, tiny.classifier(classes=30)), "labels")
    assert finding.next_step == "write one line a class, in output order"
    finding = only(_report(tmp_path, tiny.classifier(size=64), "a\nb\n", DETECTOR), "labels")
    assert finding.next_step == "correct task, decoder and input.size_wh in model.toml"


@pytest.mark.parametrize(
    ("labels", "found", "severity"),
    [
        (
            "cat\ndog\nbackground\n",
            "line 1 is 'cat', expected 'background', {}; 'background' is line 3 of 3: the file looks reversed or "
            "shifted",
            "error",
        ),
        (
            "cat\n__Background__\ndog\n",
            "line 1 is 'cat', expected 'background', {}; 'background' is line 2 of 3",
            "error",
        ),
        ("cat\ndog\nbird\n", "line 1 is 'cat', expected 'background', {}; no line is 'background'", "warning"),
    ],
)
def test_a_first_line_that_is_not_the_background(tmp_path: Path, labels: str, found: str, severity: str) -> None:
    finding = only(_report(tmp_path, labels=labels, text=BACKGROUND), "labels")
    assert finding.severity == severity
    said = found.format("because background_class = true in model.toml")
    assert finding.what == f"{tmp_path / 'labels.txt'}: {said}"
    assert finding.next_step == (
        "write the lines in output order, 'background' first; if output 0 is a class, take out background_class"
    )


@pytest.mark.parametrize("first", ["background", "__background__", "Background"])
def test_a_first_line_that_is_the_background(tmp_path: Path, first: str) -> None:
    assert _report(tmp_path, labels=f"{first}\nb\nc\n", text=BACKGROUND).findings == ()
    finding = only(_report(tmp_path, labels=f"{first}\nb\nc\n"), "labels")
    assert finding.severity == "warning"
    assert finding.what.endswith("and model.toml does not say so: class_id 0 is the background")
    assert finding.next_step == "set background_class = true under [classification]: class_id then begins behind it"


def test_only_a_classifier_counts_from_behind_its_background(tmp_path: Path) -> None:
    assert _report(tmp_path, tiny.head_detector(), "background\nblue\n", DETECTOR).findings == ()


def test_labels_that_are_empty_or_there_twice(tmp_path: Path) -> None:
    report = _report(tmp_path, tiny.classifier(classes=7), "crane\n\nb\ncrane\n\ncrane\nB\n")
    assert report.passed
    where = tmp_path / "labels.txt"
    assert _of_labels(report) == [
        ("warning", f"{where}: lines 2, 5 are empty, and counted as a label"),
        ("note", f"{where}: the same label for several outputs: 'crane' in lines 1, 4, 6"),
    ]


def test_many_and_long_labels_are_cut(tmp_path: Path) -> None:
    names = [f"{'x' * 100}{number}" if number else "y" * 100 for number in range(8)]
    report = _report(tmp_path, tiny.classifier(classes=80), "\n".join(names * 10))
    finding: Finding = only(report, "labels")
    assert finding.what.endswith("and 3 more")
    assert "lines 1, 9, 17, 25, 33 and 5 more, " in finding.what
    assert "y" * 41 not in finding.what
