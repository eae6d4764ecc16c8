"""Outputs that are no numbers: every task says so, and of a model that says "never" by minus infinity none does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from edge_sdk.frame import Frame, Geometry, Inferred, Prepared, Result
from edge_sdk.model_spec import DECODERS, DetectionSpec, InputSpec, ModelSpec
from edge_sdk.tasks import make_task
from tests.device.decoding import SPEC, detect, inferred_of, spec_of

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


def _one_object(decoder: str) -> tuple[ModelSpec, list[np.ndarray], tuple[int, ...], int]:
    """What finds one object at place 5; which output has the scores, the axis of places in it, and of box values."""
    if decoder in SHAPES:
        output = np.full(SHAPES[decoder], 0.01, np.float32)
        rows = output[0].T if decoder == "yolov8" else output[0]
        rows[:, :4] = 8.0 if decoder != "yolox" else 0.0
        rows[5, 4:] = 0.9
        return spec_of(decoder), [output], (0, 4), 0
    if decoder == "yolov4":
        anchors = DetectionSpec(anchors=(((10.0, 14.0),),))
        output = np.full((1, 7, 8, 12), -9.0, np.float32)
        output[0, :, 0, 5] = 3.0
        return spec_of(decoder, detection=anchors), [output], (0, 4), 0
    if decoder == "nanodet":
        output = np.full((1, 126, 2 + 32), 0.01, np.float32)
        output[0, 5, :2] = 0.9
        return spec_of(decoder), [output], (0, 0), 2
    if decoder == "ssd":
        boxes, scores = np.tile(np.float32([0.1, 0.1, 0.4, 0.4]), (1, 126, 1)), np.full((1, 126, 3), 0.01, np.float32)
        scores[0, 5, 1:] = 0.9
        return spec_of(decoder), [boxes, scores], (1, 0), 0
    heat = np.full((1, 1, 16, 24), 0.01, np.float32)
    heat[0, 0, 0, 5] = 0.9
    return (
        spec_of("centerface"),
        [heat, np.ones((1, 2, 16, 24), np.float32), np.ones((1, 2, 16, 24), np.float32)],
        (0, 0),
        0,
    )


def _places(output: np.ndarray, decoder: str) -> np.ndarray:
    """A view of places x values."""
    values = output.reshape(output.shape[1:])
    return values.reshape(values.shape[0], -1).T if decoder in ("yolov4", "yolov8", "centerface") else values


DETECTORS = ["yolov4", "yolov5", "yolov8", "yolox", "nanodet", "ssd", "centerface"]


@pytest.mark.parametrize("decoder", DETECTORS)
@pytest.mark.parametrize("place", [0, 11, 95])
def test_a_place_that_is_no_number_is_seen_where_another_one_holds_an_object(decoder: str, place: int) -> None:
    spec, outputs, (scores, first), _ = _one_object(decoder)
    labels = 1 if decoder == "centerface" else 2
    whole = detect(spec, labels, *outputs)
    assert (len(whole.confidences) >= 1, whole.is_finite) == (True, True)
    _places(outputs[scores], decoder)[place, first:] = np.nan
    with np.errstate(all="ignore"):
        found = detect(spec, labels, *outputs)
    assert not found.is_finite
    assert found.confidences.tolist() == whole.confidences.tolist()
    assert found.boxes_xyxy.tolist() == whole.boxes_xyxy.tolist()


# Sizes of the others are exponentials, which are cut before they overflow.
@pytest.mark.parametrize(
    ("decoder", "value"),
    [*((d, np.nan) for d in DETECTORS), *((d, np.inf) for d in ("yolov5", "yolov8", "nanodet", "ssd"))],
)
def test_a_box_that_is_no_number_is_seen_where_another_one_is_a_box(decoder: str, value: float) -> None:
    spec, outputs, _, first = _one_object(decoder)
    labels = 1 if decoder == "centerface" else 2
    whole = detect(spec, labels, *outputs)
    for output in outputs:
        places = _places(output, decoder)
        places[40] = places[5]
    boxes = outputs[{"ssd": 0, "centerface": 1}.get(decoder, 0)]
    _places(boxes, decoder)[40, first] = value
    with np.errstate(all="ignore"):
        found = detect(spec, labels, *outputs)
    assert not found.is_finite
    assert len(found.confidences) == len(whole.confidences)


def test_what_begins_later_is_seen_within_some_frames_and_then_in_every_one() -> None:
    spec = msgspec.structs.replace(spec_of("yolov8"), input=InputSpec(size_wh=(640, 640)))
    output = np.zeros((1, 6, 8400), np.float32)
    output[0, :, 5] = 0.9
    task, inferred = make_task(spec, 2, [output.shape]), inferred_of(spec, output)
    assert [task(inferred).is_finite for _ in range(8)] == [True] * 8
    output[0, 5, 4000] = np.nan
    seen = [task(inferred).is_finite for _ in range(20)]  # of 50400 values each 12th frame's are looked at
    assert seen == [True] * 4 + [False] * 16
    output[0, 5, 4000] = 0.0
    assert task(inferred).is_finite


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
