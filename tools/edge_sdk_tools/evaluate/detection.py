"""Metrics of detection: boxes in images, and the similarity of keypoints, masks and oriented boxes.

An object with the same box and other keypoints, another mask or another oriented box does not count as a match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import AccuracyGateError, DataError
from edge_sdk.core.frame import Detections, Masks
from edge_sdk_tools.datasets.dataset import BoxTruth, Truth
from edge_sdk_tools.evaluate.average_precision import (
    AveragePrecision,
    Boxes,
    Judged,
    LabelledBoxes,
    box_overlaps,
    judge,
)
from edge_sdk_tools.evaluate.metrics import (
    ENOUGH,
    NAMED,
    CalibrationError,
    Pairs,
    TaskMetrics,
    WorstImage,
    calibration_error,
    first_name,
    other_classes,
    worst_images,
)
from edge_sdk_tools.evaluate.model import Answer
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Observed, Participant
from edge_sdk_tools.evaluate.statistics import Metric, quotient, ratio_of

MATCH_IOU = 0.5
_TINY = 0.01  # share of the frame's longer side; a smaller median box suggests values that were not decoded
_NOTHING = 0.9  # largest share of images on which a detector may find nothing


class DetectionMetrics(TaskMetrics):
    """Boxes in images."""

    agreement_metric = "detection_f1"
    agreement_name = "detections matched (F1)"
    noun = "detections"
    certainty = "the confidences of the objects in an image add up to"
    advice = "check decoder, input.std, input.color and detection.anchors in model.toml"

    def keep(self, answers: Answers, _truth: Truth | None) -> Kept:
        """Keep the boxes of the common classes; for two models also the similarity of keypoints, masks or corners."""
        confident = [_confident(*one) for one in answers] if len(answers) > 1 else []
        return tuple(_boxes(*one) for one in answers), likeness_of(*confident[:2]) if confident else None

    def strongest(self, observed: Observed) -> NDArray[np.float64] | None:
        """Return the highest confidence of the objects in each image."""
        return np.array([boxes.confidences.max(initial=0.0) for boxes in _all_boxes(observed, 0)])

    def problem(self, observed: Observed, *, has_labels: bool) -> str:
        """Return why its answers cannot be right: most images empty, or boxes not decoded; else ""."""
        boxes, count = _found_boxes(observed, 0), len(observed.records)
        empty = sum(not len(found.confidences) for found in boxes)
        if empty > _NOTHING * count:
            threshold = observed.participants[0].subject.spec.thresholds.confidence
            said = f"it finds nothing on {empty} of {count} images with a confidence of {threshold:g} or more"
            return said if has_labels else f"{said}; give images that show what it knows, if these do not"
        if not has_labels and (size := _median_size(observed)) < _TINY:
            return f"half of its boxes are smaller than {size:.2%} of the picture, as if they were not decoded"
        return ""

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return mean average precision, and F1 at the model's own confidence threshold."""
        judged = _judged_boxes(observed, which)
        curve = AveragePrecision(judged)
        if not len(curve.class_ids):
            raise DataError(f"nothing is labelled on {len(observed.records)} images, expected boxes on some of them")
        # The mean over classes is as noisy as its rarest class: one curve over all detections is a sharper test.
        pooled = AveragePrecision([one.pooled for one in judged])
        found = np.array(
            [
                (j.right[:, 0].sum(), (~j.ignored[:, 0]).sum() + len(j.wanted_class_ids))
                for j in _judged_boxes(observed, which, confident=True)
            ],
            np.float64,
        )
        return (
            Metric("mAP50-95", curve.mean(), is_gated=True, test=pooled.mean()),
            Metric("mAP50", curve.mean(1), is_gated=True, test=pooled.mean(1)),
            Metric("F1", ratio_of(2 * found[:, 0], found[:, 1])),
        )

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return the F1 of matched detections, and the similarity of the matched keypoints, masks or oriented boxes."""
        found = _pair_counts(observed)
        if not found[:, 2].any():
            raise AccuracyGateError(
                f"{observed.participants[1].subject.name} finds nothing on {len(observed.records)} evaluation images, "
                "so nothing can be compared; give images that show what it detects, or lower its thresholds.confidence"
            )
        matched = Metric(self.agreement_name, ratio_of(2 * found[:, 0], found[:, 1] + found[:, 2]))
        alike = [(one, match(*one)) for one in _found_pairs(observed)]
        name = next((one[2].name for one, _ in alike if one[2] is not None), None)
        if name is None:
            return (matched,)
        sums = [sum(one[2].values[pair] for pair in pairs) if one[2] is not None else 0.0 for one, pairs in alike]
        return matched, Metric(name, ratio_of(np.array(sums, np.float64), found[:, 0]))

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """Return the images with the most objects that only one of the two models found."""
        counts, labels = _pair_counts(observed), observed.answers
        distance = counts[:, 1] + counts[:, 2] - 2 * counts[:, 0]
        students, teachers = _found_boxes(observed, 0), _found_boxes(observed, 1)
        return worst_images(
            observed, distance, count, lambda i: (None, _names(teachers[i], labels), _names(students[i], labels))
        )

    def evidence(self, observed: Observed, *, labelled: bool) -> NDArray[np.float64]:
        """Return the average precision of each image at IoU .5, or without labels the sum of its confidences."""
        if labelled:
            return np.array([_precision_of(judged) for judged in _judged_boxes(observed, 0)])
        return np.array([row.confidences.sum() for row in _found_boxes(observed, 0)])

    def doubt(self, observed: Observed) -> str:
        """Return a warning about classes in another order than the labels, or boxes of another size; else ""."""
        least = observed.participants[0].subject.spec.thresholds.confidence
        pairs = [(boxes.above(least), truth) for boxes, truth in _with_truths(observed, 0)]
        met = np.concatenate([_met(boxes, truth) for boxes, truth in pairs])
        true, found, confidences = met[:, 0].astype(np.int64), met[:, 1].astype(np.int64), met[:, 2]
        return other_classes("objects", true, found, confidences, observed.answers) or _other_sizes(pairs)

    def compared(self, observed: Observed) -> int:
        """Count the reference's detections."""
        return int(_pair_counts(observed)[:, 2].sum())

    def finds_nothing(self, observed: Observed, which: int) -> bool:
        """Tell whether a model has no detection on any image, whatever its confidence."""
        return not any(len(boxes.confidences) for boxes in _all_boxes(observed, which))

    def pairs(self, observed: Observed) -> Pairs | None:
        """Pair the outcomes on labelled objects; without labels, pair for each detection which models find it."""
        if observed.dataset.truths is not None:
            truths = [t for t in observed.dataset.truths if isinstance(t, BoxTruth)]
            # At IoU .5, of detections above the model's own threshold.
            student, teacher = (
                np.concatenate(
                    [
                        judged.found[~truth.crowd, 0]
                        for judged, truth in zip(_judged_boxes(observed, which, confident=True), truths, strict=True)
                    ]
                )
                for which in (0, 1)
            )
            return Pairs(np.concatenate([t.class_ids[~t.crowd] for t in truths]), teacher, student)
        outcomes: list[tuple[int, bool, bool]] = []  # class, teacher, student
        for mine, theirs, alike in _found_pairs(observed):
            matched = match(mine, theirs, alike)
            both, seen = {i for i, _ in matched}, {j for _, j in matched}
            outcomes += [(int(c), True, j in seen) for j, c in enumerate(theirs.class_ids)]
            outcomes += [(int(c), False, True) for i, c in enumerate(mine.class_ids) if i not in both]
        table = np.array(outcomes, np.int64).reshape(-1, 3)
        return Pairs(table[:, 0], table[:, 1].astype(np.bool_), table[:, 2].astype(np.bool_))

    def calibration(self, observed: Observed) -> CalibrationError | None:
        """Return the calibration errors of all detections above the models' own thresholds."""
        if observed.dataset.truths is not None:
            return CalibrationError(_error_of_boxes(observed, 0), _error_of_boxes(observed, 1))
        pairs = _found_pairs(observed)
        right = [np.isin(np.arange(len(pair[0].confidences)), [i for i, _ in match(*pair)]) for pair in pairs]
        confidences = np.concatenate([mine.confidences for mine, _, _ in pairs])
        return CalibrationError(calibration_error(confidences, np.concatenate(right)), None)


def _error_of_boxes(observed: Observed, which: int) -> float:
    judged = [(j, ~j.ignored[:, 0]) for j in _judged_boxes(observed, which, confident=True)]
    confidences = np.concatenate([j.confidences[counted] for j, counted in judged])
    return calibration_error(confidences, np.concatenate([j.right[counted, 0] for j, counted in judged]))


def _common_ids(participant: Participant, answer: Answer) -> NDArray[np.int64]:
    common = np.full(len(participant.subject.class_labels), -1)
    common[participant.class_ids] = np.arange(len(participant.class_ids))
    return common[answer.result.class_id]


def _confident(participant: Participant, answer: Answer) -> Detections:
    """Return the detections above the model's threshold, in the order of `_found_boxes`."""
    assert isinstance(answer.result, Detections)
    least = participant.subject.spec.thresholds.confidence
    return answer.result[
        (_common_ids(participant, answer) >= 0) & (answer.result.confidence.astype(np.float64) >= least)
    ]


def _boxes(participant: Participant, answer: Answer) -> Boxes:
    result = answer.result
    known = _common_ids(participant, answer)
    keep = known >= 0
    boxes = np.asarray(result.xyxy, np.float64)
    return Boxes(boxes[keep], result.confidence[keep].astype(np.float64), known[keep])


def _all_boxes(observed: Observed, which: int) -> list[Boxes]:
    rows = [record.rows[which] for record in observed.records]
    return [row for row in rows if isinstance(row, Boxes)]


def _median_size(observed: Observed) -> float:
    """Return the median of the boxes' longer sides, as a share of the longer side of their image."""
    sizes = [
        np.ptp(boxes.boxes_xyxy.reshape(-1, 2, 2), axis=1).max(axis=1) / max(record.size_wh)
        for record, boxes in zip(observed.records, _all_boxes(observed, 0), strict=True)
    ]
    return float(np.median(np.concatenate(sizes)))


def _found_boxes(observed: Observed, which: int) -> list[Boxes]:
    confidence = observed.participants[which].subject.spec.thresholds.confidence
    return [boxes.above(confidence) for boxes in _all_boxes(observed, which)]


def _found_pairs(observed: Observed) -> list[tuple[Boxes, Boxes, Likeness | None]]:
    alike = [record.between if isinstance(record.between, Likeness) else None for record in observed.records]
    return list(zip(_found_boxes(observed, 0), _found_boxes(observed, 1), alike, strict=True))


def _pair_counts(observed: Observed) -> NDArray[np.float64]:
    """Count in each image the detections matched, the first model's and the second's: float64 (N, 3)."""
    counts = [
        (len(match(*pair)), len(pair[0].confidences), len(pair[1].confidences)) for pair in _found_pairs(observed)
    ]
    return np.array(counts, np.float64).reshape(-1, 3)


def match(got: Boxes, expected: Boxes, alike: Likeness | None = None) -> list[tuple[int, int]]:
    """Pair detections one to one: same class, overlap and likeness at least .5, the most confident of `got` first."""
    if not len(got.confidences) or not len(expected.confidences):
        return []
    overlaps = box_overlaps(got.boxes_xyxy, expected.boxes_xyxy, np.zeros(len(expected.confidences), np.bool_))
    overlaps[got.class_ids[:, None] != expected.class_ids[None, :]] = 0.0
    if alike is not None:
        overlaps[alike.values < MATCH_IOU] = 0.0
    pairs = []
    for index, row in enumerate(overlaps):
        best = int(row.argmax())
        if row[best] >= MATCH_IOU:
            pairs.append((index, best))
            overlaps[:, best] = 0.0
    return pairs


def _with_truths(observed: Observed, which: int) -> Iterator[tuple[Boxes, LabelledBoxes]]:
    """Yield the detections and the labelled boxes of each image."""
    for record, truth in zip(observed.records, observed.dataset.truths or (), strict=True):
        boxes = record.rows[which]
        if isinstance(boxes, Boxes) and isinstance(truth, BoxTruth):
            yield boxes, LabelledBoxes(truth.in_pixels(record.size_wh), truth.class_ids, truth.crowd)


def _judged_boxes(observed: Observed, which: int, *, confident: bool = False) -> list[Judged]:
    least = observed.participants[which].subject.spec.thresholds.confidence if confident else 0.0
    return [judge(boxes.above(least), labelled) for boxes, labelled in _with_truths(observed, which)]


def _overlapping(boxes: Boxes, labelled: LabelledBoxes) -> NDArray[np.bool_]:
    """Tell which detections overlap which labelled objects, bool (N, M); False for crowds."""
    return (box_overlaps(boxes.boxes_xyxy, labelled.boxes_xyxy, labelled.crowd) >= MATCH_IOU) & ~labelled.crowd


def _precision_of(judged: Judged) -> float:
    """Return the mean, over the labelled objects, of the precision down to the detection that finds each; 0 if none."""
    right = judged.right[~judged.ignored[:, 0], 0]
    precisions = (np.cumsum(right) / np.arange(1, len(right) + 1))[right]
    return float(precisions.sum() / max(1, len(judged.wanted_class_ids)))


def _met(boxes: Boxes, labelled: LabelledBoxes) -> NDArray[np.float64]:
    """Return class, detected class and confidence of each labelled object with a detection at its place: (M, 3)."""
    confidences = np.where(_overlapping(boxes, labelled), boxes.confidences[:, None], 0.0)
    found = confidences.max(axis=0, initial=0.0) > 0
    surest = confidences[:, found].argmax(axis=0) if found.any() else np.empty(0, np.int64)
    return np.stack([labelled.class_ids[found], boxes.class_ids[surest], boxes.confidences[surest]], axis=1)


_OFF = math.log(1.5)  # largest typical ratio, as a logarithm, of a box's sides to the label's


def _other_sizes(pairs: Sequence[tuple[Boxes, LabelledBoxes]]) -> str:
    """Return a warning if boxes at the right place have another size than the labelled ones; else ""."""
    logs = []
    for boxes, labelled in pairs:
        (ours, our_sizes), (theirs, their_sizes) = (_middles(one.boxes_xyxy) for one in (boxes, labelled))
        near = (np.abs(ours[:, None] - theirs) < their_sizes / 4).all(axis=2)
        for index, place in enumerate((near & (boxes.class_ids[:, None] == labelled.class_ids) & ~labelled.crowd).T):
            if place.any():  # the first is the surest
                logs.append(np.log(our_sizes[place.argmax()] / their_sizes[index]))
    off = float(np.median(np.abs(logs))) if len(logs) >= ENOUGH else 0.0
    if off < _OFF:
        return ""
    return (
        f"of {len(logs)} boxes around the middle of a labelled object of their class, the sides are typically "
        f"{math.exp(off):.1f} times too long or too short; check anchors, strides and variances under [detection]"
    )


def _middles(boxes_xyxy: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the middle and the size of each box, float64 (N, 2) each; no side is shorter than a pixel."""
    first, last = boxes_xyxy[:, :2], boxes_xyxy[:, 2:]
    return (first + last) / 2, np.maximum(last - first, 1.0)


def _names(boxes: Boxes, labels: Sequence[str]) -> str:
    """Return a text such as `2 person, 1 car` for the boxes of one image, the most frequent class first."""
    classes, counts = np.unique(boxes.class_ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    named = [f"{counts[i]} {first_name(labels[classes[i]])}" for i in order[:NAMED]]
    return ", ".join(named) + (" …" if len(order) > NAMED else "") if named else "nothing"


_COCO_SIGMAS = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)  # thousandths, of 17 keypoints
_SEEN = 0.5  # least confidence of a compared keypoint
_FILLED = 0.53  # share of a box that an object without a mask is assumed to fill


class Likeness(NamedTuple):
    """Similarity of each object of one model to each of the other, float64 (N, M), and its name for people."""

    name: str
    values: NDArray[np.float64]


def likeness_of(found: Detections, reference: Detections) -> Likeness | None:
    """Compare two models' objects beyond their boxes; None if they have only boxes, or not the same details."""
    points, others = found.keypoints, reference.keypoints
    if points is not None and others is not None and points.shape[1] == others.shape[1]:
        return Likeness("keypoints of those matched (OKS)", _keypoints(points, others, reference.xyxy))
    mine, theirs = found.masks, reference.masks
    if mine is not None and theirs is not None and mine.prototypes.shape[1:] == theirs.prototypes.shape[1:]:
        return Likeness(
            "masks of those matched (IoU)", _masks(_cells(mine, found.xyxy), _cells(theirs, reference.xyxy))
        )
    if found.corners is not None and reference.corners is not None:
        return Likeness("oriented boxes of those matched (IoU)", _corners(found.corners, reference.corners))
    return None


def _keypoints(
    found: NDArray[np.float32], reference: NDArray[np.float32], boxes_xyxy: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return COCO's object keypoint similarity over the keypoints that are confident in the reference: (N, M)."""
    points = reference.astype(np.float64)
    count = points.shape[1]
    sigmas = np.array(_COCO_SIGMAS) / 1000 if count == len(_COCO_SIGMAS) else np.full(count, 1 / count)
    area = _FILLED * (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]).prod(axis=1).astype(np.float64)
    squares = ((found[:, None, :, :2] - points[None, :, :, :2]) ** 2).sum(axis=3)
    likely = np.exp(-squares / (8 * sigmas**2 * np.maximum(area, 1)[:, None]))
    is_seen = points[:, :, 2] >= _SEEN
    is_seen |= ~is_seen.any(axis=1, keepdims=True)
    values: NDArray[np.float64] = (likely * is_seen).sum(axis=2) / is_seen.sum(axis=1)
    return values


def _masks(found: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the intersection over union, (N, M), of masks float32 (N, cells) and (M, cells), 1 on the object."""
    both = (found @ reference.T).astype(np.float64)
    either = found.sum(axis=1)[:, None] + reference.sum(axis=1) - both
    return quotient(both, either, 1.0)


def _cells(masks: Masks, boxes_xyxy: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cells of masks that lie within the objects' boxes."""
    y, x = (np.arange(side) + 0.5 for side in masks.prototypes.shape[1:])
    own = masks.geometry
    x, y = (x - own.offset_x) / own.scale_x, (y - own.offset_y) / own.scale_y
    left, top, right, bottom = boxes_xyxy.T[:, :, None]
    columns, rows = (x >= left) & (x < right), (y >= top) & (y < bottom)
    inside = (masks.values > 0) & rows[:, :, None] & columns[:, None, :]
    cells: NDArray[np.float32] = inside.reshape(len(inside), -1).astype(np.float32)
    return cells


def _corners(found: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the intersection over union of float32 (N, 4, 2) and (M, 4, 2) corners of oriented boxes."""
    values = np.zeros((len(found), len(reference)))
    for i, j in np.ndindex(*values.shape):
        both, _ = cv2.intersectConvexConvex(found[i], reference[j])
        either = cv2.contourArea(found[i]) + cv2.contourArea(reference[j]) - both
        values[i, j] = both / either if either > 0 else 0.0
    return values
