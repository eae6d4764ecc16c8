"""Detectors of several outputs in the workstation's tools: checked, counted and read whatever the outputs' order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edge_sdk.model_spec import load_model_spec
from edge_sdk_tools.check import examine
from edge_sdk_tools.dataset import Dataset, find_images
from edge_sdk_tools.evaluate import observe, open_subject, pair_up
from edge_sdk_tools.evaluate.average_precision import Boxes
from tests.host import heads
from tests.host.examining import only
from tests.host.images import write_pictures
from tests.host.projects import write_project

SSD = """
model = "model.onnx"
name = "priors"
task = "detection"
decoder = "ssd"
labels = "labels.txt"

[input]
size_wh = [8, 8]
std = [255, 255, 255]

[detection]
anchors = [[[3, 3], [4, 2]], [[5, 5], [8, 8]]]
strides = [2, 4]
"""


def _ssd(*, reverse: bool = False) -> onnx.ModelProto:
    head, outputs = heads.ssd()
    return head.model(*(reversed(outputs) if reverse else outputs))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "pictures", 6)
    return tmp_path / "pictures"


def _detections(project: Path, pictures: Path) -> list[Boxes]:
    observed = observe(pair_up([open_subject(project)]), Dataset(find_images([pictures]), None, "pictures"))
    return [row for record in observed.records for row in record.rows if isinstance(row, Boxes)]


def test_the_order_of_outputs_changes_nothing(tmp_path: Path, pictures: Path) -> None:
    rows = [
        _detections(write_project(tmp_path / str(reverse), SSD, _ssd(reverse=reverse), labels="a\nb\n"), pictures)
        for reverse in (False, True)
    ]
    assert sum(len(row.confidences) for row in rows[0]) > 20
    for mine, theirs in zip(*rows, strict=True):
        assert np.array_equal(mine.boxes_xyxy, theirs.boxes_xyxy)
        assert np.array_equal(mine.confidences, theirs.confidences)
        assert np.array_equal(mine.class_ids, theirs.class_ids)


def test_classes_are_counted_in_the_scores(tmp_path: Path) -> None:
    report = examine(load_model_spec(write_project(tmp_path, SSD, _ssd(), labels="a\nb\nc\n", pictures=0)))
    finding = only(report, "labels")
    assert finding.what == "labels has 3 lines, the model has 2 classes (output 1x40x3, 3 = 1 + 2 for ssd)"
    assert finding.next_step.startswith(
        "if no score is the background's, set background_class = false under [detection]"
    )


@pytest.mark.parametrize(("labels", "rules"), [("a\nb\n", ["input"]), ("a\nb\nc\n", ["input", "labels"])])
def test_behind_an_input_of_another_size_too(tmp_path: Path, labels: str, rules: list[str]) -> None:
    """How many boxes there will be is open then; boxes are told from scores by their four columns."""
    text = SSD.replace("[8, 8]", "[16, 16]")
    report = examine(load_model_spec(write_project(tmp_path, text, _ssd(reverse=True), labels=labels, pictures=0)))
    assert [finding.rule for finding in report.of("error")] == rules
