"""Outputs that are no numbers: every task says so, and of a model that says "never" by minus infinity none does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from edge_sdk.frame import Frame, Geometry, Inferred, Prepared, Result
from edge_sdk.model_spec import DECODERS, ModelSpec
from edge_sdk.tasks import make_task
from tests.device.decoding import SPEC, detect, spec_of

SHAPES = {"yolov5": (1, 126, 7), "yolov8": (1, 6, 126), "yolox": (1, 126, 7)}


@pytest.mark.parametrize("decoder", list(SHAPES))
@pytest.mark.parametrize(
    ("value", "is_finite"), [(np.nan, False), (np.inf, False), (-np.inf, False), (0.0, True), (-1e30, True)]
)
def test_a_detector_that_finds_nothing_says_why(decoder: str, value: float, is_finite: bool) -> None:
    outputs = np.full(SHAPES[decoder], value, np.float32)
    with np.errstate(all="ignore"):
        found = detect(spec_of(decoder), 2, outputs)
    assert found.is_finite is is_finite


def test_one_nan_among_numbers_is_seen_where_nothing_is_found() -> None:
    outputs = np.zeros(SHAPES["yolov8"], np.float32)
    outputs[0, 5, 13] = np.nan
    found = detect(spec_of("yolov8"), 2, outputs)
    assert (len(found.confidences), found.is_finite) == (0, False)


@pytest.mark.parametrize("row", range(6))
def test_a_nan_is_seen_in_a_box_and_in_every_class(row: int) -> None:
    outputs = np.zeros(SHAPES["yolov8"], np.float32)
    outputs[0, row, 77] = np.nan
    assert not detect(spec_of("yolov8"), 2, outputs).is_finite


@pytest.mark.parametrize("decoder", list(SHAPES))
def test_a_nan_is_seen_in_an_output_that_nothing_reads(decoder: str) -> None:
    read, other = np.zeros(SHAPES[decoder], np.float32), np.zeros((1, 3), np.float32)
    assert detect(spec_of(decoder), 2, other, read).is_finite
    other[0, 1] = np.nan
    assert not detect(spec_of(decoder), 2, other, read).is_finite


def test_minus_infinity_among_numbers_is_no_fault() -> None:
    outputs = np.zeros(SHAPES["yolov8"], np.float32)
    outputs[0, 4] = -np.inf
    assert detect(spec_of("yolov8"), 2, outputs).is_finite


def test_a_confidence_that_is_infinite_is_no_detection_to_rely_on() -> None:
    outputs = np.ones(SHAPES["yolov8"], np.float32)
    assert detect(spec_of("yolov8"), 2, outputs).is_finite
    outputs[0, 4, 0] = np.inf
    assert not detect(spec_of("yolov8"), 2, outputs).is_finite


def _result(spec: ModelSpec, output: np.ndarray) -> Result:
    frame = Frame(np.zeros((8, 8, 3), np.uint8), 0, 0.0, 0, "camera")
    prepared = Prepared(np.empty(0, np.float32), Geometry(1.0, 1.0, 0.0, 0.0), frame)
    with np.errstate(all="ignore"):
        return make_task(spec, 3, [output.shape])(Inferred((output,), 0, prepared))


@pytest.mark.parametrize("decoder", DECODERS["classification"])
@pytest.mark.parametrize("place", range(3))
def test_a_classifier_says_so_wherever_the_nan_is(decoder: str, place: int) -> None:
    spec = msgspec.structs.replace(SPEC, task="classification", decoder=decoder)
    scores = np.array([[0.5, 0.3, 0.2]], np.float32)
    assert _result(spec, scores).is_finite
    scores[0, place] = np.nan
    assert not _result(spec, scores).is_finite


def test_a_segmenter_says_so_of_a_single_cell() -> None:
    size = msgspec.structs.replace(SPEC.input, size_wh=(8, 8))
    spec = msgspec.structs.replace(SPEC, task="segmentation", decoder="logits", input=size)
    scores = np.zeros((1, 3, 8, 8), np.float32)
    assert _result(spec, scores).is_finite
    scores[0, 1, 3, 3] = np.nan
    assert not _result(spec, scores).is_finite


def test_an_unknown_class_id_is_a_number() -> None:
    size = msgspec.structs.replace(SPEC.input, size_wh=(8, 8))
    spec = msgspec.structs.replace(SPEC, task="segmentation", decoder="argmax", input=size)
    assert _result(spec, np.full((1, 8, 8), 77, np.int64)).is_finite
