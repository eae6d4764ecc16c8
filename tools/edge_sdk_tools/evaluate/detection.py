"""Metrics of detection: boxes in images, and the keypoints, masks and oriented boxes of the objects in them.

Against labels, boxes and details have a mean average precision each. Two models' objects match if both are alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import AccuracyGateError, DataError
from edge_sdk.core.frame import Detections
from edge_sdk_tools.datasets.dataset import BoxTruth, Truth
from edge_sdk_tools.evaluate.average_precision import IOUS, AveragePrecision, Boxes, Judged, judge
from edge_sdk_tools.evaluate.likeness import MATCH, LabelledBoxes, Likeness, Objects, box_overlaps, likeness_of
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
    too_sure,
    worst_images,
)
from edge_sdk_tools.evaluate.model import Answer
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Observed, Participant
from edge_sdk_tools.evaluate.statistics import Metric, ratio_of

_TINY = 0.01  # share of the frame's longer side; a smaller median box suggests values that were not decoded
_NOTHING = 0.9  # largest share of images on which a detector may find nothing


class DetectionMetrics(TaskMetrics):
    """Boxes in images."""

    agreement_metric = "detection_f1"
    agreement_name = "detections matched (F1)"
    noun = "detections"
    certainty = "the confidences of the objects in an image add up to"
    advice = "check decoder, input.std, input.color and detection.anchors in model.toml"

    def keep(self, answers: Answers, truth: Truth | None) -> Kept:
        """Keep the boxes of the common classes, and how alike details are to those of the labels and of both models."""
        between = likeness_of(*(_confident(*one) for one in answers)) if len(answers) > 1 else None
        return tuple(_boxes(*one, truth) for one in answers), between

    def problem(self, observed: Observed) -> str:
        """Return why its answers cannot be right: confidences beyond 1, most images empty, raw boxes; else ""."""
        boxes, count, has_labels = _found_boxes(observed, 0), len(observed.records), observed.dataset.truths is not None
        if beyond := too_sure(np.concatenate([found.confidences for found in boxes]), count):
            return beyond
        empty = sum(not len(found.confidences) for found in boxes)
        if empty > _NOTHING * count:
            least = observed.threshold()
            said = f"it finds nothing on {empty} of {count} images with a confidence of {least:g} or more"
            return said if has_labels else f"{said}; give images that show what it knows, if these do not"
        if not has_labels and (size := _median_size(observed)) < _TINY:
            return f"half of its boxes are smaller than {size:.2%} of the picture, as if they were not decoded"
        return ""

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return mean average precision, also of details that are labelled, and F1 at the model's own threshold."""
        metrics = _mean_average_precision("", _judged_boxes(observed, which))
        if not metrics:
            raise DataError(f"nothing is labelled on {len(observed.records)} images, expected boxes on some of them")
        pairs = list(_with_truths(observed, which))
        alike = [boxes.likeness for boxes, _ in pairs if boxes.likeness is not None]
        if len(alike) == len(pairs):
            judged = [judge(*pair, likeness) for pair, likeness in zip(pairs, alike, strict=True)]
            metrics += _mean_average_precision(f"{alike[0].detail.name} ", judged)
        confident = _judged_boxes(observed, which, confident=True)
        counts = [(j.right[:, 0].sum(), (~j.ignored[:, 0]).sum() + len(j.wanted_class_ids)) for j in confident]
        right, all_of_both = np.array(counts, np.float64).T
        return (*metrics, Metric("F1", ratio_of(2 * right, all_of_both)))

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return the F1 of matched detections, and the similarity of the matched keypoints, masks or oriented boxes."""
        found = _pair_counts(observed)
        if not found[:, 2].any():
            raise AccuracyGateError(
                f"{observed.participants[1].subject.name} finds nothing on {len(observed.records)} evaluation images, "
                "so nothing can be compared; give images that show what it detects, or lower its thresholds.confidence"
            )
        matched = Metric(self.agreement_name, ratio_of(2 * found[:, 0], found[:, 1] + found[:, 2]))
        pairs = _found_pairs(observed)
        alike = [likeness for *_, likeness in pairs if likeness is not None]
        if len(alike) < len(pairs):
            return (matched,)
        sums = [sum(one.values[i] for i in match(*pair)) for one, pair in zip(alike, pairs, strict=True)]
        return matched, Metric(alike[0].detail.agreement, ratio_of(np.array(sums, np.float64), found[:, 0]))

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
        pairs = [(boxes.above(observed.threshold()), truth) for boxes, truth in _with_truths(observed, 0)]
        met = np.concatenate([_met(boxes, truth) for boxes, truth in pairs])
        true, found, confidences = met[:, 0].astype(np.int64), met[:, 1].astype(np.int64), met[:, 2]
        return other_classes("objects", true, found, confidences, observed.answers) or _other_sizes(pairs)

    def unmeasured(self, observed: Observed) -> str:
        """Return which mean average precision of the first model needs labels that some objects lack; else ""."""
        seen = [(boxes.detail, boxes.likeness, i) for i, boxes in enumerate(_all_boxes(observed, 0)) if boxes.detail]
        lacking = [(detail, index) for detail, likeness, index in seen if likeness is None]
        if lacking:
            detail, index = lacking[0]
            truth = (observed.dataset.truths or ())[index]
            objects = enumerate(truth.objects, start=1) if isinstance(truth, BoxTruth) else ()
            number = next((n for n, one in objects if getattr(one, detail.label) is None), 0)
            first = observed.path(index).name + (f" (its object {number})" if number else "")
            lack = f"which objects in {len(lacking)} of {len(seen)} images lack, first in {first}"
            return f"{detail.name} mAP is not measured: it needs {detail.needs} for each labelled object, {lack}"
        no_points = [one.no_points for _, one, _ in seen if one is not None and one.no_points is not None]
        if no_points and np.concatenate(no_points).all():
            return "pose mAP is not measured, because not one keypoint is labelled"
        return ""

    def compared(self, observed: Observed) -> int:
        """Count the reference's detections."""
        return int(_pair_counts(observed)[:, 2].sum())

    def finds_nothing(self, observed: Observed, which: int) -> bool:
        """Tell whether a model has no detection on any image, whatever its confidence."""
        return not any(len(boxes.confidences) for boxes in _all_boxes(observed, which))

    def pairs(self, observed: Observed) -> Pairs | None:
        """Pair the outcomes on labelled objects; without labels, pair for each detection which models find it."""
        if observed.dataset.truths is not None:
            # At IoU .5, of detections above the model's own threshold.
            judged = [_judged_boxes(observed, which, confident=True) for which in (0, 1)]
            student, teacher = (np.concatenate([one.found[:, 0] for one in of]) for of in judged)
            return Pairs(np.concatenate([one.wanted_class_ids for one in judged[0]]), teacher, student)
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


def _mean_average_precision(name: str, judged: Sequence[Judged]) -> list[Metric]:
    """Return mAP50-95 and mAP50 with a name before theirs; none if there is nothing to find."""
    curve = AveragePrecision(judged)
    if not len(curve.class_ids):
        return []
    # The mean over classes is as noisy as its rarest class: one curve over all detections is a sharper test.
    pooled = AveragePrecision([one.pooled for one in judged])
    return [
        Metric(f"{name}mAP{of}", curve.mean(ious), is_gated=True, test=pooled.mean(ious))
        for of, ious in (("50-95", len(IOUS)), ("50", 1))
    ]


def _error_of_boxes(observed: Observed, which: int) -> float:
    judged = [(j, ~j.ignored[:, 0]) for j in _judged_boxes(observed, which, confident=True)]
    confidences = np.concatenate([j.confidences[counted] for j, counted in judged])
    return calibration_error(confidences, np.concatenate([j.right[counted, 0] for j, counted in judged]))


def _common(participant: Participant, answer: Answer) -> tuple[Detections, NDArray[np.int64]]:
    """Return the detections of the common classes, and the common class of each."""
    assert isinstance(answer.result, Detections)
    common = np.full(len(participant.subject.class_labels), -1)
    common[participant.class_ids] = np.arange(len(participant.class_ids))
    class_ids = common[answer.result.class_id]
    return answer.result[class_ids >= 0], class_ids[class_ids >= 0]


def _confident(participant: Participant, answer: Answer) -> Objects:
    """Return the detections above the model's threshold, in the order of `_found_boxes`."""
    found, _ = _common(participant, answer)
    return Objects.found(found[found.confidence.astype(np.float64) >= participant.subject.spec.thresholds.confidence])


def _boxes(participant: Participant, answer: Answer, truth: Truth | None) -> Boxes:
    found, class_ids = _common(participant, answer)
    objects, likeness = Objects.found(found), None
    if objects.detail is not None and isinstance(truth, BoxTruth):
        likeness = likeness_of(objects, Objects.labelled(truth, answer.result.frame.size_wh, objects.detail))
    return Boxes(objects.boxes_xyxy, found.confidence.astype(np.float64), class_ids, likeness, objects.detail)


def _all_boxes(observed: Observed, which: int) -> list[Boxes]:
    rows = [record.rows[which] for record in observed.records]
    return [row for row in rows if isinstance(row, Boxes)]


def _median_size(observed: Observed) -> float:
    """Return the median of the boxes' longer sides, as a share of the longer side of their image."""
    sizes = [
        np.ptp(boxes.boxes_xyxy.reshape(-1, 2, 2), axis=1).max(axis=1) / max(image.size_wh)
        for image, boxes in zip(observed.dataset.images.images, _all_boxes(observed, 0), strict=True)
    ]
    return float(np.median(np.concatenate(sizes)))


def _found_boxes(observed: Observed, which: int) -> list[Boxes]:
    return [boxes.above(observed.threshold(which)) for boxes in _all_boxes(observed, which)]


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
    overlaps = box_overlaps(got.boxes_xyxy, expected.boxes_xyxy)
    overlaps[got.class_ids[:, None] != expected.class_ids[None, :]] = 0.0
    if alike is not None:
        overlaps[alike.values < MATCH] = 0.0
    pairs = []
    for index, row in enumerate(overlaps):
        best = int(row.argmax())
        if row[best] >= MATCH:
            pairs.append((index, best))
            overlaps[:, best] = 0.0
    return pairs


def _with_truths(observed: Observed, which: int) -> Iterator[tuple[Boxes, LabelledBoxes]]:
    """Yield the detections and the labelled boxes of each image."""
    for record, truth in zip(observed.records, observed.dataset.truths or (), strict=True):
        boxes = record.rows[which]
        if isinstance(boxes, Boxes) and isinstance(truth, BoxTruth):
            yield boxes, LabelledBoxes.of(truth)


def _judged_boxes(observed: Observed, which: int, *, confident: bool = False) -> list[Judged]:
    least = observed.threshold(which) if confident else 0.0
    return [judge(boxes.above(least), labelled) for boxes, labelled in _with_truths(observed, which)]


def _precision_of(judged: Judged) -> float:
    """Return the mean, over the labelled objects, of the precision down to the detection that finds each; 0 if none."""
    right = judged.right[~judged.ignored[:, 0], 0]
    precisions = (np.cumsum(right) / np.arange(1, len(right) + 1))[right]
    return float(precisions.sum() / max(1, len(judged.wanted_class_ids)))


def _met(boxes: Boxes, labelled: LabelledBoxes) -> NDArray[np.float64]:
    """Return class, detected class and confidence of each labelled object with a detection at its place: (M, 3)."""
    is_there = (box_overlaps(boxes.boxes_xyxy, labelled.boxes_xyxy) >= MATCH) & ~labelled.crowd
    confidences = np.where(is_there, boxes.confidences[:, None], 0.0)
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
