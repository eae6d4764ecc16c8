"""Detectors: each head is decoded as an independent reading, cell by cell, of its definition says."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from edge_sdk.model_spec import DetectionSpec, InputSpec, Thresholds
from tests.device.decoding import Found, best_of, check_found, detect, sigmoid, spec_of

SIZE = (96, 64)


def _random() -> np.random.Generator:
    return np.random.default_rng(11)


def _uniform(*shape: int) -> np.ndarray:
    return _random().uniform(0, 0.5, shape).astype(np.float32)


def _cells(size_wh: tuple[int, int], strides: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Column, row and stride of each cell, as the flattened maps of all levels have them."""
    width, height = size_wh
    return [
        (x, y, stride)
        for stride in strides
        for y, x in product(range(math.ceil(height / stride)), range(math.ceil(width / stride)))
    ]


def test_yolox_rows_lie_in_their_cells() -> None:
    output = _random().uniform(0, 1, (1, 96 + 24 + 6, 8)).astype(np.float32)
    output[0, :, :4] = _random().normal(0, 1, (126, 4))
    expected: list[Found] = []
    for row, (x, y, stride) in zip(output[0].tolist(), _cells(SIZE, (8, 16, 32)), strict=True):
        score, class_id = best_of(row[5:])
        if score * row[4] >= 0.3:
            cx, cy = (row[0] + x) * stride, (row[1] + y) * stride
            w, h = math.exp(row[2]) * stride, math.exp(row[3]) * stride
            expected.append((score * row[4], class_id, [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]))
    check_found(detect(spec_of("yolox"), 3, output), expected, SIZE)


def _sides(logits: list[float], bins: int) -> list[float]:
    """The mean of each side's distribution over 0, 1, ..., in strides."""
    means = []
    for first in range(0, 4 * bins, bins):
        powers = [math.exp(v) for v in logits[first : first + bins]]
        means.append(sum(step * power for step, power in enumerate(powers)) / sum(powers))
    return means


def _nanodet(
    scores: np.ndarray, sides: np.ndarray, strides: tuple[int, ...], middle: float, bins: int = 8
) -> list[Found]:
    expected: list[Found] = []
    rows = zip(scores.tolist(), sides.tolist(), _cells(SIZE, strides), strict=True)
    for classes, logits, (x, y, stride) in rows:
        score, class_id = best_of(classes)
        if score >= 0.3:
            left, top, right, bottom = (side * stride for side in _sides(logits, bins))
            cx, cy = (x + middle) * stride, (y + middle) * stride
            expected.append((score, class_id, [cx - left, cy - top, cx + right, cy + bottom]))
    return expected


def _nanodet_parts(cells: int, classes: int, bins: int = 8) -> tuple[np.ndarray, np.ndarray]:
    scores = _random().uniform(0, 0.5, (cells, classes)).astype(np.float32)
    return scores, _random().normal(0, 2, (cells, 4 * bins)).astype(np.float32)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5], [5, 4, 3, 2, 1, 0]])
def test_nanodet_finds_its_six_outputs_by_their_shapes(order: list[int], batched: bool) -> None:
    scores, sides = _nanodet_parts(126, 3)
    outputs = [*np.split(scores, [96, 120]), *np.split(sides, [96, 120])]
    shuffled = [outputs[i][None] if batched else outputs[i] for i in order]
    got = detect(spec_of("nanodet"), 3, *shuffled)
    check_found(got, _nanodet(scores, sides, (8, 16, 32), 0.5), SIZE)


@pytest.mark.parametrize("classes", [32, 128])
def test_nanodet_of_as_many_classes_as_bins_or_cells_takes_the_first_for_scores(classes: int) -> None:
    """128 is the number of all cells of NanoDet-Plus."""
    scores, sides = _nanodet_parts(126, classes)
    outputs = [o for pair in zip(np.split(scores, [96, 120]), np.split(sides, [96, 120]), strict=True) for o in pair]
    check_found(detect(spec_of("nanodet"), classes, *outputs), _nanodet(scores, sides, (8, 16, 32), 0.5), SIZE)


@pytest.mark.parametrize(
    ("strides", "middle", "reg_max"), [((8, 16, 32), 0.5, 7), ((8, 16, 32, 64), 0.0, 7), ((8, 16, 32, 64), 0.0, 10)]
)
def test_nanodet_in_one_output(strides: tuple[int, ...], middle: float, reg_max: int) -> None:
    """Four levels are NanoDet-Plus, which measures from the corners of its cells; 64 leaves half a cell over."""
    scores, sides = _nanodet_parts(len(_cells(SIZE, strides)), 5, reg_max + 1)
    spec = spec_of("nanodet", detection=DetectionSpec(reg_max=reg_max))
    got = detect(spec, 5, np.concatenate([scores, sides], axis=1)[None])
    check_found(got, _nanodet(scores, sides, strides, middle, reg_max + 1), SIZE)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [0, 1, 2]])
def test_centerface_has_height_and_y_first(order: list[int]) -> None:
    heat = _uniform(1, 1, 16, 24)
    scale, offset = (_random().normal(1, 0.5, (2, 1, 2, 16, 24))).astype(np.float32)
    outputs = [heat, scale, offset, _uniform(1, 10, 16, 24)]
    expected: list[Found] = []
    for y, x in product(range(16), range(24)):
        if heat[0, 0, y, x] >= 0.3:
            h, w = (math.exp(v) * 4 for v in scale[0, :, y, x].tolist())
            cy, cx = (y + offset[0, 0, y, x] + 0.5) * 4, (x + offset[0, 1, y, x] + 0.5) * 4
            expected.append((float(heat[0, 0, y, x]), 0, [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]))
    check_found(detect(spec_of("centerface"), 1, *(outputs[i] for i in order)), expected, SIZE)


def _corners(count: int) -> np.ndarray:
    first = _random().uniform(0, 0.8, (count, 2))
    return np.concatenate([first, first + _random().uniform(0.1, 0.5, (count, 2))], axis=1).astype(np.float32)


@pytest.mark.parametrize("order", ["xyxy", "yxyx"])
@pytest.mark.parametrize("unit", ["fraction", "pixel"])
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_ssd_that_decodes_its_boxes(order: Any, unit: Any, background: bool, swapped: bool) -> None:
    boxes = _corners(50) * (1 if unit == "fraction" else 60)
    scores = _uniform(50, 5)
    if background:
        scores[:, 0] = 0.9  # likelier than all others, and never reported
    expected: list[Found] = []
    for box, row in zip(boxes.tolist(), scores.tolist(), strict=True):
        score, class_id = best_of(row[1:] if background else row)
        if score >= 0.3:
            left, top, right, bottom = box if order == "xyxy" else [box[1], box[0], box[3], box[2]]
            x, y = SIZE if unit == "fraction" else (1, 1)
            expected.append((score, class_id, [left * x, top * y, right * x, bottom * y]))
    spec = spec_of("ssd", detection=DetectionSpec(box_order=order, box_unit=unit, background_class=background))
    outputs = (scores[None], boxes[None]) if swapped else (boxes[None], scores[None])
    check_found(detect(spec, 4 if background else 5, *outputs), expected, SIZE)


ANCHORS = (((10.0, 20.0), (30.0, 15.0)), ((40.0, 40.0),))


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("scores_are", ["probabilities", "logits"])
@pytest.mark.parametrize("order", ["xyxy", "yxyx"])
def test_ssd_with_priors(background: bool, scores_are: Any, order: Any) -> None:
    size = (90, 60)  # 100 leaves one cell, 16 rounds up to 6 x 4
    count = 2 * 6 * 4 + 1
    offsets = _random().normal(0, 2, (1, count, 4)).astype(np.float32)
    scores = _random().normal(0, 2, (1, count, 3)).astype(np.float32)
    if scores_are == "probabilities":
        scores = _uniform(1, count, 3)
    variances = (0.2, 0.3)
    expected: list[Found] = []
    priors = [(x, y, s, a) for s, anchors in ((16, ANCHORS[0]), (100, ANCHORS[1])) for x, y, _ in _cells(size, (s,))
              for a in anchors]  # fmt: skip
    for (x, y, stride, (aw, ah)), row, values in zip(priors, offsets[0].tolist(), scores[0].tolist(), strict=True):
        if scores_are == "logits" and background:
            values = [math.exp(v) / sum(math.exp(u) for u in values) for v in values]
        elif scores_are == "logits":
            values = [sigmoid(v) for v in values]
        score, class_id = best_of(values[1:] if background else values)
        if score < 0.3:
            continue
        dx, dy, dw, dh = row if order == "xyxy" else [row[1], row[0], row[3], row[2]]
        cx, cy = (x + 0.5) * stride + dx * 0.2 * aw, (y + 0.5) * stride + dy * 0.2 * ah
        w, h = aw * math.exp(dw * 0.3), ah * math.exp(dh * 0.3)
        expected.append((score, class_id, [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]))
    detection = DetectionSpec(
        anchors=ANCHORS,
        strides=(16, 100),
        variances=variances,
        scores=scores_are,
        background_class=background,
        box_order=order,
    )
    spec = spec_of("ssd", detection=detection, input=InputSpec(size_wh=size))
    check_found(detect(spec, 2 if background else 3, offsets, scores), expected, size)


SILENT = {
    "yolox": (np.zeros((1, 126, 7), np.float32),),
    "nanodet": (np.zeros((1, 128, 34), np.float32),),
    "centerface": tuple(np.zeros((1, n, 16, 24), np.float32) for n in (2, 2, 2)),
    "ssd": (np.zeros((1, 9, 4), np.float32), np.zeros((1, 9, 3), np.float32)),
}


@pytest.mark.parametrize("decoder", SILENT)
def test_nothing_found_is_an_empty_result(decoder: str) -> None:
    got = detect(spec_of(decoder), 2, *SILENT[decoder])
    assert got.boxes_xyxy.shape == (0, 4)
    assert len(got.confidences) == len(got.class_ids) == 0


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("decoder", SILENT)
def test_values_that_are_no_boxes_stop_nothing(decoder: str, value: float) -> None:
    """Scores that count, of boxes of no size or of any: nothing is raised, and what is found has finite numbers."""
    outputs = [np.full_like(output, value) for output in SILENT[decoder]]
    scores = {"yolox": outputs[0][..., 4:], "nanodet": outputs[0][..., :2], "centerface": outputs[0]}
    scores.get(decoder, outputs[-1])[...] = 0.9
    got = detect(spec_of(decoder), 2, *outputs)
    assert np.isfinite(got.boxes_xyxy).all()


def _lone(decoder: str, score: float) -> tuple[np.ndarray, ...]:
    """Outputs of which one cell has this score for the last of two classes, and all others -1."""
    outputs = [np.ones_like(output) for output in SILENT[decoder]]
    if decoder == "ssd":
        outputs[0] *= np.array([0.1, 0.1, 0.5, 0.5], np.float32)
    scores = {"nanodet": outputs[0][..., :2], "centerface": outputs[0]}.get(decoder, outputs[-1])
    scores[...] = -1
    scores[(0, 1, 5, 5) if decoder == "centerface" else (0, 5, -1)] = score
    return tuple(outputs)


@pytest.mark.parametrize("confidence", [0.0, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("decoder", ["nanodet", "centerface", "ssd"])
def test_a_confidence_that_equals_the_threshold_counts(decoder: str, confidence: float) -> None:
    spec = spec_of(decoder, thresholds=Thresholds(confidence, 1.0))
    got = detect(spec, 2, *_lone(decoder, confidence))
    assert got.confidences.tolist() == pytest.approx([confidence])
    assert got.class_ids.tolist() == [1]
    assert len(detect(spec, 2, *_lone(decoder, confidence - 0.001)).confidences) == 0
