"""distill-check of detectors: objects are the pairs, with labels and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edge_sdk.errors import AccuracyGateError
from edge_sdk_tools.dataset import Dataset, find_images
from edge_sdk_tools.distill_check import distill_check
from edge_sdk_tools.evaluate import observe, open_subject, pair_up
from edge_sdk_tools.evaluate.average_precision import Boxes
from tests.device import tiny
from tests.host.images import write_pictures
from tests.host.projects import DETECTOR, write_project


def _project(folder: Path, bias: float = -10.0, *, name: str = "cells") -> Path:
    """A detector that needs more light for an object the lower its bias is."""
    proto: onnx.ModelProto = tiny.head_detector()
    for weight in proto.graph.initializer:
        if weight.name == "b":
            values = numpy_helper.to_array(weight).copy()
            values[4] = bias
            weight.CopyFrom(numpy_helper.from_array(values, "b"))
    text = DETECTOR.replace('"cells"', f'"{name}"')
    return write_project(folder, text, proto, labels="red\nblue\n", pictures=0)


def _boxes(model: Path, images: Path) -> list[Boxes]:
    observed = observe(pair_up([open_subject(model)]), Dataset(find_images([images]), None, "images"))
    return [row for row in (record.rows[0] for record in observed.records) if isinstance(row, Boxes)]


def _label(model: Path, data: Path) -> None:
    """What `model` sees becomes the truth, in YOLO's format."""
    (data / "labels").mkdir()
    for path, boxes in zip(sorted((data / "images").iterdir()), _boxes(model, data / "images"), strict=True):
        relative = boxes.boxes_xyxy / [48, 40, 48, 40]
        rows = np.concatenate([(relative[:, :2] + relative[:, 2:]) / 2, relative[:, 2:] - relative[:, :2]], axis=1)
        lines = [f"{c} {' '.join(f'{x:.6f}' for x in row)}\n" for c, row in zip(boxes.class_ids, rows, strict=True)]
        (data / "labels" / f"{path.stem}.txt").write_text("".join(lines))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "data" / "images", 40)
    return tmp_path / "data"


def test_without_labels_the_teachers_detections_are_the_truth(tmp_path: Path, data: Path) -> None:
    student, teacher = _project(tmp_path / "s", -12), _project(tmp_path / "t", name="teacher")
    report = distill_check(student, teacher, data / "images")
    mine, theirs = (sum(len(b.confidences) for b in _boxes(m, data / "images")) for m in (student, teacher))
    assert 0 < mine < theirs
    # The student needs more light for the same cells: what it finds the teacher finds too.
    assert report.verdict.value == pytest.approx(2 * mine / (mine + theirs))
    assert sum(row.lost for row in report.classes) == theirs - mine
    assert sum(row.count for row in report.classes) == theirs
    assert report.calibration is not None
    assert report.calibration.teacher is None
    assert report.worst[0].distance >= report.worst[-1].distance > 0
    assert "red" in report.worst[0].teacher or "blue" in report.worst[0].teacher
    assert report.divergences == ()


def test_with_labels_average_precision_is_judged(tmp_path: Path, data: Path) -> None:
    student, teacher = _project(tmp_path / "s", -12), _project(tmp_path / "t", name="teacher")
    _label(teacher, data)
    report = distill_check(student, teacher, data)
    assert [figure.name for figure in report.evaluation.quality] == ["mAP50-95", "mAP50"]
    [precise, _] = report.evaluation.quality
    assert precise.reference is not None
    assert precise.reference.value == pytest.approx(1, abs=1e-3)
    assert sum(row.lost for row in report.classes) > 0
    assert all(row.teacher == 1 for row in report.classes)
    assert report.p_value is not None
    assert report.p_value < 0.05
    same = distill_check(teacher, teacher, data)
    assert (same.verdict.passed, same.verdict.within_noise, same.p_value) == (True, True, 1)


def test_classes_that_only_the_teacher_knows_do_not_count(tmp_path: Path, data: Path) -> None:
    teacher = write_project(
        tmp_path / "t",
        DETECTOR.replace('"cells"', '"teacher"'),
        tiny.head_detector(classes=3),
        labels="Red\ngreen\nblue\n",
        pictures=0,
    )
    student = _project(tmp_path / "s")
    mine = _boxes(student, data / "images")
    reds, blues = (sum(int((boxes.class_ids == c).sum()) for boxes in mine) for c in (0, 1))
    assert reds
    assert blues
    report = distill_check(student, teacher, data / "images")
    # What the student calls blue is green to this teacher, a class that the student does not have.
    assert {row.label: (row.count, row.lost) for row in report.classes} == {"red": (reds, 0), "blue": (blues, -blues)}
    assert report.verdict.value == pytest.approx(2 * reds / (2 * reds + blues))


def test_a_teacher_that_finds_nothing_is_no_agreement(tmp_path: Path, data: Path) -> None:
    student, blind = _project(tmp_path / "s"), _project(tmp_path / "t", -1000, name="teacher")
    with pytest.raises(AccuracyGateError, match="teacher finds nothing on any of 40 images"):
        distill_check(student, blind, data / "images")
