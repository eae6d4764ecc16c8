"""A float model is judged by its own answers: one that sees nothing is refused, with the description that fits."""

from __future__ import annotations

from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.core.errors import ModelError
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.datasets.reading import read_dataset
from edge_sdk_tools.evaluate.evaluation import evaluate
from edge_sdk_tools.evaluate.float_model import check_float_model
from edge_sdk_tools.evaluate.model import from_checked
from tests.support import models as tiny
from tests.support.projects import DETECTOR, write_boxes, write_project

_BGR = DETECTOR.replace('resize = "stretch"', 'resize = "stretch"\ncolor = "BGR"')


def _red_detector() -> onnx.ModelProto:
    """`head_detector`, which sees red things best, and others less surely."""
    proto = tiny.head_detector()
    [weights] = [one for one in proto.graph.initializer if one.name == "w"]
    values = numpy_helper.to_array(weights).copy()
    values[4, :, 0, 0] = 14, 0, 0
    weights.CopyFrom(numpy_helper.from_array(values, "w"))
    return proto


def _red_pictures(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    for number in range(100, 112):
        red = 215 + number - 100
        cv2.imwrite(str(folder / "images" / f"{number}.png"), np.full((40, 48, 3), (171, 60, red), np.uint8))
    return folder


def _judged(folder: Path, text: str, model: onnx.ModelProto, data: Path, *, labelled: bool) -> tuple[str, ...]:
    spec = load_model_spec(write_project(folder, text, model, labels="red\nblue\n", pictures=0))
    checked = check_model(spec, None)
    dataset: Dataset = read_dataset(data, checked.labels, spec.task)
    seen = dataset if labelled else msgspec.structs.replace(dataset, truths=None)
    return check_float_model(from_checked(spec.name, spec, checked), seen)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_boxes(_red_pictures(tmp_path / "data"), "yolo", 12)


def test_what_sees_is_let_through(tmp_path: Path, data: Path) -> None:
    for labelled in (True, False):
        assert _judged(tmp_path / "right", DETECTOR, _red_detector(), data, labelled=labelled) == ()


def test_a_model_that_finds_nothing_of_the_labels_is_refused_with_what_would(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ModelError, match=r"on 12 labelled images its mAP50-95 is 0; with color = \"RGB\", mean = "):
        _judged(tmp_path / "p", _BGR, _red_detector(), data, labelled=True)


def test_exchanged_colours_are_noticed_without_labels(tmp_path: Path, data: Path) -> None:
    [line] = _judged(tmp_path / "p", _BGR, _red_detector(), data, labelled=False)
    assert 'and with color = "RGB"' in line


def test_confidences_above_one_are_none(tmp_path: Path, data: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "no"], ["nothing"]),
        helper.make_node("Add", ["rows", "nothing"], ["out"]),
    ]
    rows = {"no": np.zeros((), np.float32), "rows": np.full((1, 6, 84), 37, np.float32)}
    text = DETECTOR.replace("yolov4", "yolov8").replace("[detection]\nanchors = [[[16, 16]]]\n", "")
    with pytest.raises(ModelError, match="its confidences reach 37 on 12 images, expected 0 to 1"):
        _judged(
            tmp_path / "p", text, tiny.model(nodes, [1, 3, 64, 64], {"out": [1, 6, 84]}, rows), data, labelled=False
        )


def test_evaluate_says_it_too(tmp_path: Path, data: Path) -> None:
    model = write_project(tmp_path / "p", _BGR, _red_detector(), labels="red\nblue\n", pictures=0)
    assert any('with color = "RGB"' in line for line in evaluate(model, data).warnings)
