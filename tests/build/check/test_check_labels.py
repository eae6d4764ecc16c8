"""Labels in the export gate: what is known of them is said, beside whatever else is wrong, with what to do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx
import pytest

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import ModelError
from edge_sdk.tasks.spec import ClassificationSpec
from edge_sdk_tools.check.gate import check_model, examine
from edge_sdk_tools.check.labels import COCO80, check_labels
from edge_sdk_tools.check.report import CheckReport, Costs, Finding, TensorInfo
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, DETECTOR, write_project
from tests.support.reports import only

BACKGROUND = CLASSIFIER + "[classification]\nbackground_class = true\n"
YOLOV8 = CLASSIFIER.replace("classification", "detection").replace("softmax", "yolov8").replace("16, 16", "8, 8")
ONE_A_CLASS = "write one line a class, in output order"
TAKE_OUT = 'is the first line "background", or another one empty or there twice? Then take it out'
SHIFTED = "the file looks reversed or shifted"
TEN = [f"class {number}" for number in range(10)]


def _findings(
    folder: Path, labels: list[str], classes: int, *, flag: bool = False, text: str = CLASSIFIER
) -> list[Finding]:
    """Of a model that declares so many classes."""
    path = write_project(folder, text, labels="\n".join(labels) + "\n", pictures=0)
    spec = msgspec.structs.replace(load_model_spec(path), classification=ClassificationSpec(background_class=flag))
    output = TensorInfo("y", "float", (1, classes))
    report = CheckReport(
        name="m", model="m.onnx", target=None, onnxruntime="", costs=Costs(0, 0, 0, 0, "", 0), outputs=(output,)
    )
    return check_labels(spec, report)


@pytest.mark.parametrize(
    ("labels", "classes", "flag", "expected"),
    [
        ([*TEN[:5], "", *TEN[5:]], 10, False, [("error", "11 lines, the model has 10", TAKE_OUT)]),
        (["a", "", "b", "c", "d"], 3, False, [("error", "5 lines", ONE_A_CLASS)]),
        (TEN, 11, True, [("error", "10 lines", "is the line for output 0 missing?")]),
        (["background", *TEN], 10, False, [("error", "11 lines", TAKE_OUT)]),
        (
            ["a", "background", "b"],
            3,
            False,
            [("warning", "line 2 of 3 is 'background', and model.toml does not say so", "nothing to do, ")],
        ),
    ],
)
def test_what_the_lines_show(
    tmp_path: Path, labels: list[str], classes: int, flag: bool, expected: list[tuple[str, str, str]]
) -> None:
    for finding, (severity, what, step) in zip(_findings(tmp_path, labels, classes, flag=flag), expected, strict=True):
        assert finding.severity == severity
        assert what in finding.what
        assert finding.next_step
        assert finding.next_step.startswith(step)


def _report(
    folder: Path, model: onnx.ModelProto | None = None, labels: str = "a\nb\nc\n", text: str = CLASSIFIER
) -> CheckReport:
    report = examine(load_model_spec(write_project(folder, text, model, labels=labels, pictures=0)))
    assert all(finding.next_step for finding in report.findings)
    return report


def _errors(report: CheckReport) -> list[str]:
    return [finding.rule for finding in report.of("error")]


@pytest.mark.parametrize("labels", [None, "\n\n"])
@pytest.mark.parametrize("rule", ["opset", "file"])
def test_a_labels_file_is_missed_beside_what_else_is_wrong(tmp_path: Path, rule: str, labels: str | None) -> None:
    path = write_project(tmp_path, model=tiny.classifier(opset=99), labels=labels or "", pictures=0)
    if rule == "file":
        (tmp_path / "model.onnx").unlink()
    if labels is None:
        (tmp_path / "labels.txt").unlink()
    report = examine(load_model_spec(path), load_target("arm64"))
    assert _errors(report) == [rule, "labels"]
    finding = only(report, "labels")
    assert finding.what.startswith(f"{tmp_path / 'labels.txt'}: ")
    assert finding.next_step == "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"


def test_an_error_about_labels_names_their_file_alone(tmp_path: Path) -> None:
    path = write_project(tmp_path, labels="", pictures=0)
    with pytest.raises(ModelError, match=rf"^{tmp_path / 'labels.txt'}: no labels in it.*; write one label a line"):
        check_model(load_model_spec(path), None)


def test_nothing_is_said_of_a_number_that_no_output_shows(tmp_path: Path) -> None:
    assert _errors(_report(tmp_path, tiny.segmenter(size=48))) == ["input"]


@pytest.mark.parametrize(
    ("labels", "found", "severity"),
    [
        ("cat\ndog\nbackground\n", f"'background' is line 3 of 3: {SHIFTED}", "error"),
        ("cat\n__Background__\ndog\n", "'background' is line 2 of 3", "error"),
        ("cat\ndog\nbird\n", "no line is 'background'", "warning"),
    ],
)
def test_a_first_line_that_is_not_the_background(tmp_path: Path, labels: str, found: str, severity: str) -> None:
    finding = only(_report(tmp_path, labels=labels, text=BACKGROUND), "labels")
    assert finding.severity == severity
    said = f"line 1 is 'cat', expected 'background', because background_class = true in model.toml; {found}"
    assert finding.what == f"{tmp_path / 'labels.txt'}: {said}"


@pytest.mark.parametrize("first", ["background", "__background__", "Background"])
def test_a_first_line_that_is_the_background(tmp_path: Path, first: str) -> None:
    assert _report(tmp_path, labels=f"{first}\nb\nc\n", text=BACKGROUND).findings == ()
    finding = only(_report(tmp_path, labels=f"{first}\nb\nc\n"), "labels")
    assert finding.severity == "warning"
    assert finding.what.endswith("and model.toml does not say so")


def test_only_a_classifier_counts_from_behind_its_background(tmp_path: Path) -> None:
    assert _report(tmp_path, tiny.head_detector(), "background\nblue\n", DETECTOR).findings == ()


def test_labels_that_are_empty_or_there_twice(tmp_path: Path) -> None:
    report = _report(tmp_path, tiny.classifier(classes=7), "crane\n\nb\ncrane\n\ncrane\nB\n")
    where = tmp_path / "labels.txt"
    assert [(finding.severity, finding.what) for finding in report.findings] == [
        ("warning", f"{where}: lines 2, 5 are empty, and counted as a label"),
        ("note", f"{where}: the same label for several outputs: 'crane' in lines 1, 4, 6"),
    ]
    assert report.findings[0].next_step == "write the label of that output"


@pytest.mark.parametrize(
    ("decoder", "operator", "step"),
    [
        ("logits", "Softmax", 'set decoder = "softmax"'),
        ("softmax", "Gemm", 'set decoder = "logits"'),
        ("softmax", "Softmax", None),
        ("logits", "GlobalAveragePool", None),
    ],
)
def test_probabilities_and_logits_are_told_by_the_operator(
    tmp_path: Path, decoder: str, operator: str, step: str | None
) -> None:
    spec = load_model_spec(write_project(tmp_path, CLASSIFIER.replace("softmax", decoder), pictures=0))
    output = TensorInfo("y", "float", (1, 3), operator)
    found = check_labels(spec, CheckReport(name="m", model="m.onnx", target=None, onnxruntime="", outputs=(output,)))
    assert [one.next_step for one in found if one.severity == "error"] == ([step] if step else [])


def test_the_operator_of_an_output_is_the_one_that_computes_it(tmp_path: Path) -> None:
    model = write_project(tmp_path, CLASSIFIER.replace("softmax", "logits"), pictures=0)
    assert [error.next_step for error in examine(load_model_spec(model)).of("error")] == ['set decoder = "softmax"']


def test_cocos_classes_in_another_order_are_doubted(tmp_path: Path) -> None:
    names = [f"class {n}" for n in range(80)]
    for labels, count in ((COCO80, 0), (sorted(COCO80), 1), (names, 0)):
        assert len(_findings(tmp_path / labels[0], list(labels), 80, flag=False)) == count
    [finding] = _findings(tmp_path / "again", sorted(COCO80), 80, flag=False)
    assert finding.severity == "warning"
    assert "line 1 is 'airplane', and COCO, whose classes these are, has 'person' there" in finding.what
