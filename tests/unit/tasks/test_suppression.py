"""Suppression: the greedy definition, and boxes that must not disturb others."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.tasks.boxes import Candidates
from edge_sdk.tasks.detection import suppress
from edge_sdk.tasks.spec import Thresholds
from edge_sdk.tasks.yolo import read_yolov8


def _iou(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    area = [(r[2] - r[0]) * (r[3] - r[1]) for r in (a, b)]
    return width * height / (sum(area) - width * height)


def test_suppression_equals_the_greedy_definition() -> None:
    random = np.random.default_rng(5)
    corners = random.uniform(0, 60, (200, 2))
    boxes = np.concatenate([corners, corners + random.uniform(5, 30, (200, 2))], axis=1).astype(np.float32)
    scores = random.permutation(np.linspace(0.3, 0.99, 200)).astype(np.float32)
    classes = random.integers(0, 3, 200)
    sizes = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    got = suppress(Candidates(sizes, scores, classes), Thresholds(confidence=0.4, iou=0.45))

    kept: list[int] = []
    for index in np.argsort(-scores).tolist():
        if scores[index] < 0.4:
            break
        rivals = [k for k in kept if classes[k] == classes[index]]
        if all(_iou(boxes[k].tolist(), boxes[index].tolist()) <= 0.45 for k in rivals):
            kept.append(index)
    assert got.tolist() == kept


def _noise(count: int) -> Candidates:
    """Boxes that do not overlap, of which many are equally confident."""
    random = np.random.default_rng(3)
    places = np.stack(np.divmod(np.arange(count), 100), axis=1) * 10
    boxes = np.concatenate([places, np.full((count, 2), 5)], axis=1).astype(np.float32)
    return Candidates(boxes, random.integers(50, 90, count).astype(np.float32) / 100, random.integers(0, 3, count))


def test_noise_costs_no_more_than_the_strongest_thousand() -> None:
    """Of a head that sees something in every cell it gathers those, and they are the ones that count."""
    candidates = _noise(5000)
    order = np.argsort(-candidates.confidences, kind="stable")
    assert suppress(candidates, Thresholds()).tolist() == order[:300].tolist()
    output = np.zeros((1, 4 + 3, 5000), np.float32)
    output[0, :2] = (candidates.boxes_xywh[:, :2] + candidates.boxes_xywh[:, 2:] / 2).T
    output[0, 2:4] = candidates.boxes_xywh[:, 2:].T
    output[0, 4 + candidates.class_ids, np.arange(5000)] = candidates.confidences
    read = read_yolov8(0.25, [output])
    assert len(read.confidences) == 1000
    chosen = np.sort(order[:1000])
    assert np.array_equal(read.boxes_xywh, candidates.boxes_xywh[chosen])
    assert np.array_equal(read.class_ids, candidates.class_ids[chosen])


def test_boxes_beyond_the_border_suppress_no_other_class() -> None:
    boxes = np.array([[-200, -200, 210, 210], [300, 300, 200, 200]], np.float32)
    candidates = Candidates(boxes, np.array([0.9, 0.8], np.float32), np.array([1, 0]))
    assert suppress(candidates, Thresholds()).tolist() == [0, 1]
    assert boxes[0].tolist() == [-200, -200, 210, 210]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_box_that_is_no_box_suppresses_nothing(value: float) -> None:
    for column in range(4):
        boxes = np.array([[10, 10, 20, 20], [100, 100, 20, 20], [40, 10, 20, 20]], np.float32)
        boxes[1, column] = value
        candidates = Candidates(boxes, np.array([0.5, 0.9, 0.6], np.float32), np.array([0, 0, 0]))
        assert suppress(candidates, Thresholds()).tolist() == [2, 0]
