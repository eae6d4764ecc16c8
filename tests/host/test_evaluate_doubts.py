"""What is no figure is no agreement: NaN, nothing labelled, files left out, and limits that are met exactly."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_sdk.cli.root import run
from edge_sdk.errors import AccuracyGateError, DataError, ModelError
from edge_sdk.model_spec import Gates
from edge_sdk_tools.distill_check import distill_check
from edge_sdk_tools.distill_check.verdict import judge
from edge_sdk_tools.evaluate import Figure, Interval, evaluate
from edge_sdk_tools.evaluate.raw_outputs import output_errors, products_of
from tests.device import tiny
from tests.host.evaluations import evaluation_of
from tests.host.images import write_pictures
from tests.host.labelled import write_labelled
from tests.host.projects import CLASSIFIER, DETECTOR, write_project
from tests.host.test_evaluate_segmentation import SEGMENTER


def _rooted(proto: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The square root of the first output: NaN where it was negative."""
    [node] = [node for node in proto.graph.node if output in node.output]
    node.output[0] = "before"
    proto.graph.node.append(helper.make_node("Sqrt", ["before"], [output], name="root"))
    return proto


@pytest.mark.parametrize("kind", ["detector", "segmenter"])
def test_outputs_that_are_no_numbers_are_named_for_every_task(tmp_path: Path, kind: str) -> None:
    text, proto, labels = {
        "detector": (DETECTOR, _rooted(tiny.head_detector(), "head"), "red\nblue\n"),
        "segmenter": (SEGMENTER, _rooted(tiny.segmenter(), "scores"), "background\nred\nblue\n"),
    }[kind]
    model = write_project(tmp_path / "p", text, proto, labels=labels, pictures=0)
    with pytest.raises(ModelError, match=r"cells: output 0 is NaN for .*\.png; check the weights"):
        evaluate(model, write_pictures(tmp_path / "data", 5), reference=model)


@pytest.mark.parametrize("verb", ["evaluate", "distill-check"])
def test_json_names_the_files_that_were_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    model = write_project(tmp_path / "p", pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 30)
    (data / "103.png").write_bytes(b"x")
    other = "--reference" if verb == "evaluate" else "--teacher"
    assert run([verb, str(model), other, str(model), "--data", str(data), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    [skipped] = (printed if verb == "evaluate" else printed["evaluation"])["skipped"]
    assert skipped["path"] == str(data / "103.png")


@pytest.mark.parametrize(("right", "passed"), [(387, True), (386, False), (400, True)])
def test_what_lies_at_the_limit_keeps_it(right: int, passed: bool) -> None:
    student, teacher = right / 650, 400 / 650
    drop = Interval(student - teacher, student - teacher - 0.01, student - teacher + 0.01)
    figure = Figure("top-1", Interval(student, 0, 1), Interval(teacher, 0, 1), drop)
    verdict = judge(evaluation_of((figure,), ()), Gates(distill_max_drop_points=2.0))
    assert verdict.passed is passed
    assert (f"{100 * verdict.value + 0.0:+.2f} points" in verdict.line) is (right == 387)
    agreement = Figure("top-1 agreement", Interval(0.1 + 0.2, 0, 1))
    assert judge(evaluation_of((), (agreement,)), Gates(distill_min_agreement=0.3)).passed


@pytest.mark.parametrize(("images", "inconclusive"), [(24, True), (25, False)])
def test_a_handful_of_images_concludes_nothing(images: int, inconclusive: bool) -> None:
    agreement = Figure("detections matched (F1)", Interval(1.0, 1.0, 1.0))
    verdict = judge(evaluation_of((), (agreement,), images), Gates(distill_min_agreement=0.9))
    assert verdict.inconclusive is inconclusive
    assert (f"{images} images tell little, 25 or more would" in verdict.line) is inconclusive


def _still(proto: onnx.ModelProto, at_least: float = 0.0) -> onnx.ModelProto:
    """The same whatever it sees: every weight is 0, and every bias at least so much."""
    for weight in proto.graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32:
            still = np.zeros_like(values) if values.ndim > 1 else np.maximum(values, at_least)
            weight.CopyFrom(numpy_helper.from_array(still.astype(np.float32), weight.name))
    return proto


@pytest.mark.parametrize("kind", ["detector", "segmenter"])
def test_models_that_do_not_look_are_noticed(tmp_path: Path, kind: str) -> None:
    text, proto, labels = {
        "detector": (DETECTOR, _still(tiny.head_detector(), 1.0), "red\nblue\n"),
        "segmenter": (SEGMENTER, _still(tiny.segmenter()), "background\nred\nblue\n"),
    }[kind]
    seeing = {"detector": tiny.head_detector, "segmenter": tiny.segmenter}[kind]()
    model = write_project(tmp_path / "p", text, proto, labels=labels, pictures=0)
    other = write_project(tmp_path / "q", text.replace('"cells"', '"other"'), seeing, labels=labels, pictures=0)
    data = write_pictures(tmp_path / "data", 30)
    found = evaluate(other, data, reference=model)
    [warning] = [line for line in found.warnings if "for all 30 images" in line]
    assert warning.startswith("cells gives the same output for all 30 images; are they all alike?")
    with pytest.raises(AccuracyGateError, match="cells gives the same output"):
        distill_check(model, other, data)


def test_masks_without_any_class_are_no_labels(tmp_path: Path) -> None:
    model = write_project(tmp_path / "p", SEGMENTER, tiny.segmenter(), labels="background\nred\nblue\n", pictures=0)
    write_pictures(tmp_path / "data" / "images", 3)
    (tmp_path / "data" / "masks").mkdir()
    for path in (tmp_path / "data" / "images").iterdir():
        cv2.imwrite(str(tmp_path / "data" / "masks" / path.name), np.full((40, 48), 255, np.uint8))
    with pytest.raises(DataError, match="nothing is labelled on 3 masks"):
        evaluate(model, tmp_path / "data")


def test_equal_images_with_other_labels_are_said(tmp_path: Path) -> None:
    model = write_project(tmp_path / "p", pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 30)
    (data / "again.png").write_bytes((data / "100.png").read_bytes())
    rows = (data / "labels.csv").read_text()
    first = int(rows.splitlines()[1].split(",")[1])
    (data / "labels.csv").write_text(rows + f"again.png,{(first + 1) % 3}\n")
    found = evaluate(model, data)
    assert (found.images, found.duplicates) == (30, 1)
    assert found.warnings == ("images of equal content with different labels: 1, the first counts",)


def test_an_empty_calibration_folder_stops_nobody_who_measures(tmp_path: Path) -> None:
    model = write_project(tmp_path / "p", pictures=0)
    (tmp_path / "p" / "pictures").mkdir()
    assert evaluate(model, write_labelled(tmp_path / "data", tiny.classifier(), 4)).images == 4


@pytest.mark.parametrize("flag", ["--max-drop-points", "--min-agreement"])
def test_a_limit_that_is_no_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    model = str(write_project(tmp_path / "p", pictures=0))
    assert run(["distill-check", model, "--teacher", model, "--data", str(tmp_path), flag, "nan"]) == 2
    assert f"{flag} is nan, expected a number" in capsys.readouterr().err


def test_outputs_in_another_order_are_not_compared_raw(tmp_path: Path) -> None:
    model = write_project(tmp_path / "p", pictures=0)
    other = write_project(tmp_path / "q", CLASSIFIER, pictures=0, labels="b\na\nc\n")
    data = write_pictures(tmp_path / "data", 4)
    assert evaluate(model, data, reference=other).outputs == ()
    assert len(evaluate(model, data, reference=model).outputs) == 1


def test_only_equal_outputs_are_called_equal() -> None:
    zeros, ones = np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)
    [equal] = output_errors([products_of([ones], [ones])])
    [lost] = output_errors([products_of([ones], [zeros])])
    assert equal.sqnr_db is None
    assert lost.sqnr_db is not None
    assert lost.sqnr_db < -100


def test_a_background_that_wins_always_agrees_with_nobody(tmp_path: Path) -> None:
    text = CLASSIFIER + "[classification]\nbackground_class = true\n"
    proto = tiny.classifier()
    bias = next(w for w in proto.graph.initializer if w.name == "b2")
    bias.raw_data = np.array([6, 0, 0], np.float32).tobytes()
    labels = "background\nb\nc\n"
    student = write_project(tmp_path / "s", text, proto, labels=labels, pictures=0)
    teacher = write_project(tmp_path / "t", text.replace('"tiny"', '"teacher"'), labels=labels, pictures=0)
    report = distill_check(student, teacher, write_pictures(tmp_path / "data", 30))
    assert report.evaluation.reference == "teacher"
    assert report.verdict.value < 0.9
    assert {row.label for row in report.classes} >= {"background"}
    assert any("background" in image.student for image in report.worst)
