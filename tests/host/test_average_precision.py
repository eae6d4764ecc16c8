"""COCO's metric against COCO's own implementation, on detections made to be awkward."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from edge_sdk_tools.evaluate.average_precision import (
    AveragePrecision,
    Boxes,
    LabelledBoxes,
    box_overlaps,
    judge,
    true_positives_for,
)

IMAGES, CLASSES = 24, 5


def _labelled(random: np.random.Generator, objects: int) -> LabelledBoxes:
    top_left = random.uniform(0, 300, (objects, 2))
    boxes = np.concatenate([top_left, top_left + random.uniform(2, 120, (objects, 2))], axis=1)
    return LabelledBoxes(boxes, random.integers(0, CLASSES, objects), random.random(objects) < 0.15)


def _found(random: np.random.Generator, labelled: LabelledBoxes, noise: int) -> Boxes:
    """Labelled boxes moved about, some twice, and others out of nothing; confidences have ties."""
    index = random.integers(0, len(labelled.class_ids), 2 * len(labelled.class_ids)) if len(labelled.class_ids) else []
    moved = labelled.boxes_xyxy[index] + random.normal(0, 6, (len(index), 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    class_ids = np.where(random.random(len(index)) < 0.9, labelled.class_ids[index], 0)
    other = _labelled(random, noise)
    return Boxes(
        np.concatenate([moved, other.boxes_xyxy]),
        np.round(random.random(len(index) + noise), 2),
        np.concatenate([class_ids, other.class_ids]).astype(np.int64),
    )


def _xywh(box: np.ndarray) -> list[float]:
    return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]


def _pycocotools(labelled: Sequence[LabelledBoxes], found: Sequence[Boxes]) -> tuple[float, float]:
    """MAP50-95 and mAP50 as COCO's own tools have it."""
    annotations = [
        {
            "id": 0,
            "image_id": image,
            "category_id": int(class_id) + 1,
            "bbox": _xywh(box),
            "area": float(np.prod(_xywh(box)[2:])),
            "iscrowd": int(crowd),
        }
        for image, truth in enumerate(labelled)
        for box, class_id, crowd in zip(truth.boxes_xyxy, truth.class_ids, truth.crowd, strict=True)
    ]
    for number, annotation in enumerate(annotations, start=1):
        annotation["id"] = number
    detections = [
        {"image_id": image, "category_id": int(class_id) + 1, "bbox": _xywh(box), "score": float(confidence)}
        for image, boxes in enumerate(found)
        for box, class_id, confidence in zip(boxes.boxes_xyxy, boxes.class_ids, boxes.confidences, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": image} for image in range(len(labelled))],
            "annotations": annotations,
            "categories": [{"id": c + 1} for c in range(CLASSES)],
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(detections), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def _ours(labelled: Sequence[LabelledBoxes], found: Sequence[Boxes]) -> tuple[float, float]:
    curve = AveragePrecision([judge(f, t) for f, t in zip(found, labelled, strict=True)])
    ones = np.ones((1, len(labelled)))
    return float(curve.mean()(ones)[0]), float(curve.mean(1)(ones)[0])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("objects", "noise"), [(4, 3), (12, 40), (1, 0), (30, 200), (3, 900)])
def test_equal_to_pycocotools(seed: int, objects: int, noise: int) -> None:
    random = np.random.default_rng(seed)
    labelled = [_labelled(random, int(random.integers(0, objects + 1))) for _ in range(IMAGES)]
    found = [_found(random, truth, int(random.integers(0, noise + 1))) for truth in labelled]
    assert _ours(labelled, found) == pytest.approx(_pycocotools(labelled, found), abs=1e-6)


def test_of_two_boxes_that_overlap_alike_the_one_that_pycocotools_takes_is_taken() -> None:
    truth = LabelledBoxes(np.array([[0.0, 0, 10, 10], [2, 0, 12, 10]]), np.zeros(2, np.int64), np.zeros(2, np.bool_))
    # The first lies between both; the second overlaps the left one only.
    for second in ([-3.0, 0, 7, 10], [5.0, 0, 15, 10]):
        found = Boxes(np.array([[1.0, 0, 11, 10], second]), np.array([0.9, 0.8]), np.zeros(2, np.int64))
        assert _ours([truth], [found]) == pytest.approx(_pycocotools([truth], [found]), abs=1e-6)


def test_a_perfect_detector_has_one_and_a_blind_one_zero() -> None:
    random = np.random.default_rng(1)
    labelled = [_labelled(random, 5) for _ in range(IMAGES)]
    perfect = [Boxes(t.boxes_xyxy, np.ones(5), t.class_ids) for t in labelled]
    blind = [Boxes(np.empty((0, 4)), np.empty(0), np.empty(0, np.int64)) for _ in labelled]
    assert _ours(labelled, perfect) == pytest.approx((1.0, 1.0), abs=1e-12)
    assert _ours(labelled, blind) == (0.0, 0.0)


def test_resampled_images_count_as_if_they_were_there_so_often() -> None:
    random = np.random.default_rng(2)
    labelled = [_labelled(random, 6) for _ in range(8)]
    found = [_found(random, truth, 10) for truth in labelled]
    weights = random.multinomial(8, np.full(8, 1 / 8), size=20).astype(np.float64)
    curve = AveragePrecision([judge(f, t) for f, t in zip(found, labelled, strict=True)])
    repeated = [np.repeat(np.arange(8), row.astype(int)) for row in weights]
    expected = [_ours([labelled[i] for i in rows], [found[i] for i in rows])[0] for rows in repeated]
    # An image that counts twice is one step of the curve here, and two there.
    assert curve.mean()(weights) == pytest.approx(np.array(expected), abs=2e-3)


def test_many_rows_give_what_single_rows_give() -> None:
    random = np.random.default_rng(3)
    labelled = [_labelled(random, 6) for _ in range(10)]
    curve = AveragePrecision([judge(_found(random, truth, 20), truth) for truth in labelled])
    weights = random.multinomial(10, np.full(10, 0.1), size=50).astype(np.float64)
    single = np.concatenate([curve.mean()(row[None, :]) for row in weights])
    assert curve.mean()(weights) == pytest.approx(single, abs=1e-12)


def test_recalls_are_compared_as_floating_point_has_them() -> None:
    recalls = np.linspace(0, 1, 101)
    for wanted in range(1, 2000):
        curve = np.arange(wanted + 1) / wanted
        expected = np.searchsorted(curve, recalls, side="left")
        assert np.array_equal(true_positives_for(recalls, np.array([[float(wanted)]]))[0], expected), wanted


def test_a_class_that_no_image_shows_is_left_out() -> None:
    truth = LabelledBoxes(np.array([[0.0, 0, 10, 10]]), np.array([3]), np.array([False]))
    found = Boxes(np.array([[0.0, 0, 10, 10], [50, 50, 60, 60]]), np.array([0.9, 0.8]), np.array([3, 1]))
    assert _ours([truth], [found]) == pytest.approx((1.0, 1.0), abs=1e-12)


def test_a_class_that_a_draw_does_not_show_is_left_out_of_it() -> None:
    box, one = np.array([[0.0, 0, 10, 10]]), np.array([0.9])
    truths = [LabelledBoxes(box, np.array([c]), np.array([False])) for c in (0, 1)]
    found = [Boxes(box, one, np.array([0])), Boxes(box + 50, one, np.array([1]))]
    curve = AveragePrecision([judge(f, t) for f, t in zip(found, truths, strict=True)])
    assert curve.mean()(np.array([[1.0, 1], [2, 0], [0, 2]])) == pytest.approx([0.5, 1, 0])


def test_overlap_of_known_boxes() -> None:
    a = np.array([[0, 0, 10, 10], [0, 0, 0, 0]], np.float64)
    b = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30], [0, 0, 0, 0]], np.float64)
    no_crowd = np.zeros(4, np.bool_)
    assert box_overlaps(a, b, no_crowd) == pytest.approx(np.array([[1, 1 / 3, 0, 0], [0, 0, 0, 0]]))
    assert box_overlaps(a, b, ~no_crowd)[0] == pytest.approx(np.array([1, 1 / 2, 0, 0]))
