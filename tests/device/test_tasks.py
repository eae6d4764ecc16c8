"""Tasks: each head is decoded as an independent, slow reading of its definition says."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_sdk.errors import ModelError
from edge_sdk.frame import Classification, Detections, Frame, Geometry, Inferred, Prepared
from edge_sdk.model_spec import ClassificationSpec, DetectionSpec, InputSpec, ModelSpec, Thresholds
from edge_sdk.tasks import make_task
from edge_sdk.tasks.task import WrongLabelsError

IDENTITY = Geometry(1.0, 1.0, 0.0, 0.0)
ANCHORS = (((10.0, 20.0), (30.0, 15.0)), ((40.0, 40.0),))
SPEC = ModelSpec(
    model="m.onnx",
    name="m",
    task="detection",
    decoder="yolov8",
    labels="l.txt",
    input=InputSpec(size_wh=(64, 64)),
    thresholds=Thresholds(confidence=0.3, iou=0.5),
)


def _inferred(*outputs: np.ndarray, geometry: Geometry = IDENTITY, size: int = 64) -> Inferred:
    frame = Frame(np.zeros((size, size, 3), np.uint8), 0, 0.0, 0, "camera")
    return Inferred(outputs, 0, Prepared(np.empty(0, np.float32), geometry, frame))


def _spec(**changes: Any) -> ModelSpec:
    return msgspec.structs.replace(SPEC, **changes)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _detect(spec: ModelSpec, labels: int, *outputs: np.ndarray, **kwargs: Any) -> Detections:
    result = make_task(spec, labels, [o.shape for o in outputs])(_inferred(*outputs, **kwargs))
    assert isinstance(result, Detections)
    return result


def test_yolov4_heads_equal_a_reading_cell_by_cell() -> None:
    random = np.random.default_rng(3)
    heads = [
        random.normal(-1, 2, (1, 2 * 8, 4, 4)).astype(np.float32),
        random.normal(-1, 2, (1, 1 * 8, 2, 2)).astype(np.float32),
    ]
    detection = DetectionSpec(anchors=ANCHORS, scale_xy=(1.05, 1.2))
    # No suppression (iou 1), so that every box can be compared.
    spec = _spec(decoder="yolov4", detection=detection, thresholds=Thresholds(confidence=0.3, iou=1.0))
    got = _detect(spec, 3, *heads)

    expected = []
    for head, anchors, scale in zip(heads, ANCHORS, (1.05, 1.2), strict=True):
        grid = head.shape[2]
        stride = 64 / grid
        values = head[0].reshape(len(anchors), 8, grid, grid)
        for a, (anchor_w, anchor_h) in enumerate(anchors):
            for y in range(grid):
                for x in range(grid):
                    tx, ty, tw, th, objectness, *classes = values[a, :, y, x].tolist()
                    best = max(range(3), key=lambda c: classes[c])
                    confidence = _sigmoid(objectness) * _sigmoid(classes[best])
                    if confidence < 0.3:
                        continue
                    cx = (_sigmoid(tx) * scale - (scale - 1) / 2 + x) * stride
                    cy = (_sigmoid(ty) * scale - (scale - 1) / 2 + y) * stride
                    w, h = math.exp(tw) * anchor_w, math.exp(th) * anchor_h
                    box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                    expected.append((confidence, best, [min(max(v, 0.0), 64.0) for v in box]))
    expected.sort(key=lambda e: -e[0])
    assert len(expected) > 5
    assert got.confidences == pytest.approx([e[0] for e in expected], abs=1e-5)
    assert got.class_ids.tolist() == [e[1] for e in expected]
    assert got.boxes_xyxy == pytest.approx(np.array([e[2] for e in expected]), abs=1e-3)


def _yolov8_output(rows: list[list[float]], classes: int = 2) -> np.ndarray:
    output = np.zeros((1, 4 + classes, 84), np.float32)
    for index, row in enumerate(rows):
        output[0, :, index * 5] = row
    return output


def test_yolov8_columns() -> None:
    output = _yolov8_output([[32, 32, 20, 10, 0.1, 0.9], [10, 10, 4, 4, 0.31, 0.2], [50, 50, 4, 4, 0.29, 0.1]])
    got = _detect(SPEC, 2, output)
    assert got.boxes_xyxy.tolist() == [[22, 27, 42, 37], [8, 8, 12, 12]]
    assert got.class_ids.tolist() == [1, 0]
    assert got.confidences == pytest.approx([0.9, 0.31])


def test_yolov5_rows_multiply_objectness_and_class() -> None:
    output = np.zeros((1, 252, 7), np.float32)
    output[0, 3] = [32, 32, 20, 10, 0.8, 0.5, 0.25]
    output[0, 9] = [10, 10, 4, 4, 0.5, 0.59, 0.1]  # 0.295: below the threshold
    got = _detect(_spec(decoder="yolov5"), 2, output)
    assert got.boxes_xyxy.tolist() == [[22, 27, 42, 37]]
    assert got.confidences == pytest.approx([0.4])
    assert got.class_ids.tolist() == [0]


def test_boxes_are_mapped_to_the_frame() -> None:
    output = _yolov8_output([[32, 32, 20, 10, 0.9, 0]])
    got = _detect(SPEC, 2, output, geometry=Geometry(0.5, 0.5, 0.0, 16.0), size=128)
    assert got.boxes_xyxy.tolist() == [[44, 22, 84, 42]]


@pytest.mark.parametrize("confidence", [0.0, 0.25, 0.3, 0.7])
def test_a_confidence_that_equals_the_threshold_counts(confidence: float) -> None:
    spec = _spec(thresholds=Thresholds(confidence=confidence, iou=0.5))
    output = _yolov8_output([[32, 32, 20, 10, confidence or 1e-9, 0]])
    output[0, 4, 1:] = -1
    assert len(_detect(spec, 2, output).confidences) >= 1
    assert _detect(spec, 2, output).boxes_xyxy[0].tolist() == [22, 27, 42, 37]


def test_nothing_found_is_an_empty_result() -> None:
    for decoder, output in (("yolov8", np.zeros((1, 6, 84))), ("yolov5", np.zeros((1, 252, 7)))):
        got = _detect(_spec(decoder=decoder), 2, output.astype(np.float32))
        assert got.boxes_xyxy.shape == (0, 4)
        assert len(got.confidences) == len(got.class_ids) == 0
    silent = [np.full((1, 14, 4, 4), -50, np.float32), np.full((1, 7, 2, 2), -50, np.float32)]
    got = _detect(_spec(decoder="yolov4", detection=DetectionSpec(anchors=ANCHORS)), 2, *silent)
    assert got.boxes_xyxy.shape == (0, 4)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_values_that_are_not_numbers_are_no_detections() -> None:
    got = _detect(SPEC, 2, np.full((1, 6, 84), np.nan, np.float32))
    assert len(got.confidences) == 0


def test_results_own_their_memory() -> None:
    output = _yolov8_output([[32, 32, 20, 10, 0.9, 0]])
    got = _detect(SPEC, 2, output)
    output[:] = 0
    assert got.boxes_xyxy.tolist() == [[22, 27, 42, 37]]
    assert got.confidences == pytest.approx([0.9])


def test_a_box_in_the_padding_is_none() -> None:
    output = _yolov8_output([[32, 4, 10, 6, 0.9, 0], [32, 32, 10, 10, 0.8, 0]])
    geometry = Geometry(1.0, 1.0, 0.0, 16.0)  # 16 pixels of padding above and below a frame of 64 x 32
    frame = Frame(np.zeros((32, 64, 3), np.uint8), 0, 0.0, 0, "camera")
    inferred = Inferred((output,), 0, Prepared(np.empty(0, np.float32), geometry, frame))
    result = make_task(SPEC, 2, [output.shape])(inferred)
    assert isinstance(result, Detections)
    assert result.boxes_xyxy.tolist() == [[27, 11, 37, 21]]
    assert result.confidences == pytest.approx([0.8])


def _classify(spec: ClassificationSpec, decoder: str, row: list[float]) -> Classification:
    model = _spec(task="classification", decoder=decoder, classification=spec)
    result = make_task(model, len(row), [(1, len(row))])(_inferred(np.array([row], np.float32)))
    assert isinstance(result, Classification)
    return result


def test_classification_of_probabilities_and_logits() -> None:
    got = _classify(ClassificationSpec(top_k=2), "softmax", [0.1, 0.2, 0.7])
    assert got.class_ids.tolist() == [2, 1]
    assert got.confidences == pytest.approx([0.7, 0.2])
    logits = [1000.0, 999.0, -1000.0]
    got = _classify(ClassificationSpec(top_k=5), "logits", logits)
    assert got.class_ids.tolist() == [0, 1, 2]
    assert got.confidences == pytest.approx([_sigmoid(1), _sigmoid(-1), 0.0])


def test_background_shifts_the_class_ids() -> None:
    got = _classify(ClassificationSpec(background_class=True, top_k=3), "softmax", [0.1, 0.2, 0.7])
    assert got.class_ids.tolist() == [1, 0, -1]


@pytest.mark.parametrize(
    ("decoder", "shapes", "expected"),
    [
        ("yolov8", [(1, 6, 85)], "shapes 1x6x85, expected 1x6x84"),
        ("yolov8", [(1, 84, 6)], "expected 1x6x84"),
        ("yolov8", [(1, 6)], "expected 1x6x84"),
        ("yolov8", [], "expected 1x6x84"),
        ("yolov5", [(1, 250, 8)], "expected 1x252x7 or 1x84x7; check decoder, input.size_wh and the number of"),
        ("yolov4", [(1, 14, 4, 4)], "1 outputs of shapes 1x14x4x4, expected 2 heads"),
        ("yolov4", [(1, 14, 4, 4), (1, 8, 2, 2)], "expected 1x14x4x4, 1x7x2x2"),
        ("yolov4", [(1, 14, 5, 5), (1, 7, 2, 2)], "5x5 cells does not divide input.size_wh 64x64"),
    ],
)
def test_output_shapes_that_do_not_fit_are_refused(decoder: str, shapes: list[Any], expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        make_task(_spec(decoder=decoder, detection=DetectionSpec(anchors=ANCHORS)), 2, shapes)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("decoder", "labels", "shapes", "expected"),
    [
        ("yolov8", 2, [(1, 84, 84)], "labels has 2 lines, the model has 80 classes (output 1x84x84, 84 = 4 + 80 for"),
        (
            "yolov8",
            80,
            [(1, 5, 84)],
            "labels has 80 lines, the model has 1 class (output 1x5x84, 5 = 4 + 1 for yolov8)",
        ),
        ("yolov8", 80, [(None, 5, "cells")], "labels has 80 lines, the model has 1 class "),
        (
            "yolov5",
            1,
            [(1, 252, 8)],
            "labels has 1 line, the model has 3 classes (output 1x252x8, 8 = 5 + 3 for yolov5)",
        ),
        ("yolov4", 3, [(1, 14, 4, 4), (1, 7, 2, 2)], "the model has 2 classes (output 1x14x4x4, 14 = 2 * (5 + 2) for"),
        # Heads that disagree, or that leave no class, say nothing of labels.
        (
            "yolov4",
            3,
            [(1, 14, 4, 4), (1, 9, 2, 2)],
            "decoder yolov4: the model's outputs have shapes 1x14x4x4, 1x9x2x2",
        ),
        (
            "yolov4",
            3,
            [(1, 15, 4, 4), (1, 7, 2, 2)],
            "decoder yolov4: the model's outputs have shapes 1x15x4x4, 1x7x2x2",
        ),
        ("yolov8", 2, [(1, 4, 84)], "decoder yolov8: the model's outputs have shapes 1x4x84, expected 1x6x84"),
    ],
)
def test_a_difference_in_classes_is_said_in_labels(decoder: str, labels: int, shapes: list[Any], expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        make_task(_spec(decoder=decoder, detection=DetectionSpec(anchors=ANCHORS)), labels, shapes)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (1000, '1001 classes (output 1x1001); is the first class "background"? Then it needs a line of its own and'),
        (1002, 'has 1002 lines, the model has 1001 classes (output 1x1001); is the first line "background", or'),
        (80, "labels has 80 lines, the model has 1001 classes (output 1x1001); expected one line a class, in output"),
    ],
)
@pytest.mark.parametrize("decoder", ["logits", "softmax"])
def test_a_class_more_or_less_may_be_the_background(decoder: str, labels: int, expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        make_task(_spec(task="classification", decoder=decoder), labels, [(1, 1001)])
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        (1000, 'is the line for output 0 missing? Then write "background" as line 1'),
        (1002, "is one of the lines empty, or there twice? Then take it out"),
        (999, "expected one line a class, in output order"),
    ],
)
def test_where_model_toml_says_so_the_background_is_no_question(labels: int, hint: str) -> None:
    spec = _spec(task="classification", decoder="softmax", classification=ClassificationSpec(background_class=True))
    with pytest.raises(WrongLabelsError) as caught:
        make_task(spec, labels, [(1, 1001)])
    assert caught.value.class_count == 1001
    assert str(caught.value).endswith(f"(output 1x1001); {hint}")


@pytest.mark.parametrize(
    ("decoder", "shapes", "expected"),
    [
        ("yolov8", [(1, 252, 7)], "expected 1x6x84; this looks like yolov5: correct decoder in model.toml"),
        ("yolov5", [(1, 6, 84)], "expected 1x252x7 or 1x84x7; this looks like yolov8: correct decoder in model.toml"),
        ("yolov4", [(1, 6, 84)], "this looks like yolov8: correct decoder in model.toml"),
        ("yolov8", [(1, 21, 4, 4), (1, 21, 2, 2)], "looks like yolov4: correct decoder and give detection.anchors"),
        ("yolov8", [(1, 22, 4, 4), (1, 21, 2, 2)], "expected 1x6x84; check decoder"),
        ("yolov8", [(1, 21, 5, 5)], "expected 1x6x84; check decoder"),
        ("yolov8", [(1, "rows", 7)], "expected 1x6x84; check decoder"),
    ],
)
def test_outputs_that_another_decoder_reads_name_it(decoder: str, shapes: list[Any], expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        make_task(_spec(decoder=decoder, detection=DetectionSpec(anchors=ANCHORS)), 2, shapes)
    assert expected in str(caught.value)


def test_a_dimension_without_a_number_fits() -> None:
    make_task(SPEC, 2, [("batch", 6, None)])
