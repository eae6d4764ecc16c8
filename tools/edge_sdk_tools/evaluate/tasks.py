"""What depends on a model's task when models are measured and compared: one class a task, and the table of them.

A task has what is kept of an image, figures against labels, agreement between two models, the images on which these lie
furthest apart, and what counts as a pair of outcomes. To add one, write its class and name it in `TASKS`.
A reference that finds nothing is a failure, never an agreement of 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import AccuracyGateError, DataError
from edge_sdk.core.frame import Segmentation
from edge_sdk.tasks.embedding import Embedding, Gallery
from edge_sdk.tasks.spec import AgreementMetric, Task
from edge_sdk_tools.datasets.dataset import BoxTruth, ClassTruth, MaskTruth, Truth
from edge_sdk_tools.datasets.formats import TextTruth
from edge_sdk_tools.evaluate.average_precision import (
    AveragePrecision,
    Boxes,
    Judged,
    LabelledBoxes,
    box_overlaps,
    judge,
)
from edge_sdk_tools.evaluate.model import Answer
from edge_sdk_tools.evaluate.predictions import Observed, Participant
from edge_sdk_tools.evaluate.scores import (
    UNKNOWN,
    Overlap,
    calibration_error,
    divergences,
    edit_distance,
    mean_iou,
    overlap_of,
    probabilities_of,
    ranks_of,
    restricted,
)
from edge_sdk_tools.evaluate.statistics import Metric, Statistic, Weights, mean_of, ratio_of, share_metric

MATCH_IOU = 0.5
TOP_K = (1, 5)
_SAME = 1e-4  # relative: scores that move by less are the same
_TINY = 0.01  # of the frame's longer side: boxes of this median size are numbers that were not decoded
_NOTHING = 0.9  # share of images on which a detector may find nothing
_NAMED = 3


class Pairs(msgspec.Struct, frozen=True, eq=False):
    """Outcomes of both models on the same things.

    Attributes:
        class_ids: int64 (N,), the class that each is counted for.
        teacher, student: bool (N,), who was right; without labels who said so.
    """

    class_ids: NDArray[np.int64]
    teacher: NDArray[np.bool_]
    student: NDArray[np.bool_]


class Divergence(msgspec.Struct, frozen=True):
    """Teacher to student at one temperature of both softmaxes: the mean Kullback-Leibler divergence, and a loss.

    The loss is `nats` times the temperature squared, the distillation loss of Hinton et al. (2015), in which the
    gradients of all temperatures weigh alike.
    """

    temperature: float
    nats: float
    loss: float


class CalibrationError(msgspec.Struct, frozen=True):
    """How far confidence and share of right answers lie apart, 0-1 (15 bins); the labels may be the teacher's."""

    student: float
    teacher: float | None


class WorstImage(msgspec.Struct, frozen=True):
    """One image on which the two models differ: its label, where it has one of its own, and what each says.

    The order is by distance: divergence in nats, objects that only one of both found, or 1 - mIoU.
    """

    file: Path
    truth: str | None
    teacher: str
    student: str
    distance: float


class TaskMetrics(ABC):
    """What is measured of the models of one task. Of two models the first is the student, the second its reference.

    Attributes:
        agreement_metric: the manifest's name of how far two models agree.
        agreement_name: the same for people.
        noun: what is counted for it.
        certainty: what tells without labels how well an image is understood, before its mean.
        advice: what to look at where a model's answers cannot be right.
    """

    agreement_metric: AgreementMetric
    agreement_name: str
    noun: str
    certainty: str = ""
    advice = "check input.mean, std and color in model.toml, and whether the labels are in the outputs' order"

    @abstractmethod
    def keep(
        self, participants: Sequence[Participant], answers: Sequence[Answer], truth: Truth | None
    ) -> tuple[tuple[object, ...], object]:
        """What is kept of the answers to one image: one row a model, and what lies between two models.

        Rows that are arrays become `Observed.tables`.
        """

    def strongest(self, _observed: Observed) -> NDArray[np.float64] | None:
        """The first model's highest confidence on each image, 0 where it finds nothing; None where there is none."""
        return None

    def problem(self, _observed: Observed, *, has_labels: bool) -> str:
        """Why the first model's answers cannot be right, as far as the task shows it; or ""."""
        return ""

    @abstractmethod
    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Figures of one of the models against the labels; the headline stands first, and gates judge `is_gated`.

        Raises:
            DataError: nothing is labelled.
        """

    @abstractmethod
    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """How far the first of two models agrees with the second; what a gate judges stands first.

        Raises:
            AccuracyGateError: the second finds nothing on any image, or neither finds what both know.
        """

    @abstractmethod
    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """At most `count` images on which the models differ, the worst first."""

    def evidence(self, _observed: Observed, *, labelled: bool) -> NDArray[np.float64] | None:
        """How well the first model's description fits each image: float64 (N,), more is better; None where unknown.

        By the labels how good the answer is, 0-1, whatever its confidence; or else how sure the model is.
        """
        del labelled
        return None

    def doubt(self, _observed: Observed) -> str:
        """What labels show of the first model's description that no figure says, with what to do; or ""."""
        return ""

    def compared(self, observed: Observed) -> int:
        """How many things of the reference were compared."""
        return len(observed.records)

    def finds_nothing(self, _observed: Observed, _which: int) -> bool:
        """Whether a model found nothing on any image."""
        return False

    def stands_still(self, observed: Observed, which: int) -> bool:
        """Whether a model says the same of all images."""
        return len({record.fingerprints[which] for record in observed.records}) == 1

    def pairs(self, _observed: Observed) -> Pairs | None:
        """Paired outcomes; None where they hang together, as pixels do."""
        return None

    def calibration(self, _observed: Observed) -> CalibrationError | None:
        """How honest the confidences of both models are; None where there are none."""
        return None

    def divergences(self, _observed: Observed, _temperatures: Sequence[float]) -> tuple[Divergence, ...]:
        """How far the probabilities lie apart, one a temperature; none where there are no probabilities."""
        return ()


class ClassificationMetrics(TaskMetrics):
    """Classes of whole images."""

    agreement_metric = "top1_agreement"
    agreement_name = "top-1 agreement"
    noun = "top-1 classes"
    certainty = "the likeliest class has a confidence of"

    def keep(
        self, participants: Sequence[Participant], answers: Sequence[Answer], _truth: Truth | None
    ) -> tuple[tuple[object, ...], object]:
        """Probabilities of the common classes, then of the background where there is one."""
        return tuple(_probabilities(*one) for one in zip(participants, answers, strict=True)), None

    def strongest(self, observed: Observed) -> NDArray[np.float64] | None:
        """Of the likeliest class."""
        return np.asarray(observed.tables[0].max(axis=1), np.float64)

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Top-1, and top-5 where there are more classes."""
        places = _class_places(observed, which)
        known = [k for k in TOP_K if k == 1 or k < observed.classes]
        return tuple(share_metric(f"top-{k}", places < k, is_gated=k == 1) for k in known)

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Share of equal top-1 classes, and the divergence of probabilities."""
        return (
            share_metric(self.agreement_name, said(observed, 0) == said(observed, 1)),
            Metric("KL divergence (nats)", mean_of(_divergence(observed)), bounds=(0.0, math.inf), unit="nats"),
        )

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """By divergence; with labels those come first where the reference is right and the student is not."""
        distance, labels = _divergence(observed), observed.answers
        answers, expected = said(observed, 0), said(observed, 1)
        rows, reference = observed.tables[0], observed.tables[1]
        lost = np.zeros(len(answers), np.bool_)
        truths: list[str | None] = [None] * len(answers)
        if observed.dataset.truths is not None:
            lost = (_class_places(observed, 0) != 0) & (_class_places(observed, 1) == 0)
            truths = [_first(labels[class_id]) for class_id in _true_classes(observed)]
        order = [i for i in np.lexsort((-distance, ~lost)) if answers[i] != expected[i]]
        return tuple(
            WorstImage(
                observed.path(i),
                truths[i],
                f"{_first(labels[expected[i]])} {reference[i, expected[i]]:.0%}",
                f"{_first(labels[answers[i]])} {rows[i, answers[i]]:.0%}",
                float(distance[i]),
            )
            for i in order[:count]
        )

    def evidence(self, observed: Observed, *, labelled: bool) -> NDArray[np.float64] | None:
        """One over the rank of the labelled class, or the highest probability."""
        return 1 / (1.0 + _class_places(observed, 0)) if labelled else self.strongest(observed)

    def doubt(self, observed: Observed) -> str:
        """Classes in another order."""
        highest = observed.tables[0].max(axis=1)
        return _other_classes("images", _true_classes(observed), said(observed, 0), highest, observed.answers)

    def stands_still(self, observed: Observed, which: int) -> bool:
        """Whether the scores hardly move; in logarithms, for what is nearly sure differs in what it excludes."""
        scores = np.log(np.maximum(observed.tables[which], np.finfo(np.float64).tiny))
        return super().stands_still(observed, which) or float(np.ptp(scores, axis=0).max()) < _SAME

    def pairs(self, observed: Observed) -> Pairs | None:
        """Labelled images; without labels what either model says, by whether each said it."""
        if observed.dataset.truths is not None:
            student, teacher = (_class_places(observed, which) == 0 for which in (0, 1))
            return Pairs(_true_classes(observed), teacher, student)
        answers, expected = said(observed, 0), said(observed, 1)
        # An image on which they differ counts for both classes: for the one only the teacher said, and the other.
        alone = answers[answers != expected]
        return Pairs(
            np.concatenate([expected, alone]),
            np.concatenate([np.ones(len(expected), np.bool_), np.zeros(len(alone), np.bool_)]),
            np.concatenate([answers == expected, np.ones(len(alone), np.bool_)]),
        )

    def calibration(self, observed: Observed) -> CalibrationError | None:
        """Of the likeliest class."""
        labelled = observed.dataset.truths is not None
        truth = _true_classes(observed) if labelled else said(observed, 1)
        errors = [
            calibration_error(observed.tables[which].max(axis=1), said(observed, which) == truth) for which in (0, 1)
        ]
        return CalibrationError(errors[0], errors[1] if labelled else None)

    def divergences(self, observed: Observed, temperatures: Sequence[float]) -> tuple[Divergence, ...]:
        """Of all probabilities."""
        nats = [float(_divergence(observed, temperature).mean()) for temperature in temperatures]
        return tuple(Divergence(t, value, value * t**2) for t, value in zip(temperatures, nats, strict=True))


def _probabilities(participant: Participant, answer: Answer) -> NDArray[np.float64]:
    subject = participant.subject
    row = probabilities_of(answer.outputs[0], subject.spec.decoder)
    order = participant.class_ids + subject.background
    return np.append(row[order], row[:1]) if subject.background else row[order]


def said(observed: Observed, which: int) -> NDArray[np.int64]:
    """What a classifier holds for the likeliest: a common class, or K for its background; int64 (N,)."""
    columns = _by_output(observed, which)
    answers: NDArray[np.int64] = columns[observed.tables[which][:, columns].argmax(axis=1)]
    return answers


def _by_output(observed: Observed, which: int) -> NDArray[np.int64]:
    """The columns of a classifier's table in the order of its own outputs, by which `run` breaks ties; int64 (K,)."""
    participant = observed.participants[which]
    columns = np.argsort(participant.class_ids, kind="stable")
    return np.append(len(columns), columns) if participant.subject.background else columns


def _divergence(observed: Observed, temperature: float = 1.0) -> NDArray[np.float64]:
    """Of the first classifier from the second, image by image, over what both can say; float64 (N,)."""
    common = np.arange(observed.classes + all(p.subject.background for p in observed.participants))
    student, teacher = (restricted(observed.tables[which], common) for which in (0, 1))
    return divergences(teacher, student, temperature)


def _true_classes(observed: Observed) -> NDArray[np.int64]:
    return np.array([t.class_id for t in observed.dataset.truths or () if isinstance(t, ClassTruth)], np.int64)


def _class_places(observed: Observed, which: int) -> NDArray[np.int64]:
    """The rank of each image's true class in a classifier's answer, 0 for the likeliest; int64 (N,)."""
    columns = _by_output(observed, which)
    return ranks_of(observed.tables[which][:, columns], np.argsort(columns)[_true_classes(observed)])


class DetectionMetrics(TaskMetrics):
    """Boxes in images."""

    agreement_metric = "detection_f1"
    agreement_name = "detections matched (F1)"
    noun = "detections"
    certainty = "the confidences of the objects in an image add up to"
    advice = (
        "check decoder, input.std, input.color and detection.anchors in model.toml, and give images that show what the "
        "model is to find"
    )

    def keep(
        self, participants: Sequence[Participant], answers: Sequence[Answer], _truth: Truth | None
    ) -> tuple[tuple[object, ...], object]:
        """Boxes of the common classes."""
        return tuple(_boxes(*one) for one in zip(participants, answers, strict=True)), None

    def strongest(self, observed: Observed) -> NDArray[np.float64] | None:
        """Of all objects."""
        return np.array([boxes.confidences.max(initial=0.0) for boxes in _all_boxes(observed, 0)])

    def problem(self, observed: Observed, *, has_labels: bool) -> str:
        """It finds nothing on most images, or boxes that were not decoded."""
        boxes, count = _found_boxes(observed, 0), len(observed.records)
        empty = sum(not len(found.confidences) for found in boxes)
        if empty > _NOTHING * count:
            threshold = observed.participants[0].subject.spec.thresholds.confidence
            return f"it finds nothing on {empty} of {count} images with a confidence of {threshold:g} or more"
        if not has_labels and (size := _median_size(observed)) < _TINY:
            return f"half of its boxes are smaller than {size:.2%} of the picture, as if they were not decoded"
        return ""

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Mean average precision, and F1 of what the model's own threshold lets through."""
        judged = _judged_boxes(observed, which)
        curve = AveragePrecision(judged)
        if not len(curve.class_ids):
            raise DataError(f"nothing is labelled on {len(observed.records)} images, expected boxes on some of them")
        # The mean over the classes leaves as much to chance as its rarest class: a curve of all detections tells more.
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
        """F1 of matched detections."""
        found = _pair_counts(observed)
        if not found[:, 2].any():
            raise AccuracyGateError(
                f"{observed.participants[1].subject.name} finds nothing on {len(observed.records)} evaluation images, "
                "so nothing can be compared; give images that show what it detects, or lower its thresholds.confidence"
            )
        return (Metric(self.agreement_name, ratio_of(2 * found[:, 0], found[:, 1] + found[:, 2])),)

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """By objects that only one of both found."""
        counts, labels = _pair_counts(observed), observed.answers
        distance = counts[:, 1] + counts[:, 2] - 2 * counts[:, 0]
        students, teachers = _found_boxes(observed, 0), _found_boxes(observed, 1)
        return tuple(
            WorstImage(
                observed.path(i), None, _names(teachers[i], labels), _names(students[i], labels), float(distance[i])
            )
            for i in _largest(distance, count)
        )

    def evidence(self, observed: Observed, *, labelled: bool) -> NDArray[np.float64]:
        """The average precision of one image at IoU .5, or the sum of the confidences."""
        if labelled:
            return np.array([_precision_of(judged) for judged in _judged_boxes(observed, 0)])
        return np.array([row.confidences.sum() for row in _found_boxes(observed, 0)])

    def doubt(self, observed: Observed) -> str:
        """Classes in another order, boxes of another size."""
        least = observed.participants[0].subject.spec.thresholds.confidence
        pairs = [(boxes.above(least), truth) for boxes, truth in _with_truths(observed, 0)]
        met = np.concatenate([_met(boxes, truth) for boxes, truth in pairs])
        true, found, confidences = met[:, 0].astype(np.int64), met[:, 1].astype(np.int64), met[:, 2]
        return _other_classes("objects", true, found, confidences, observed.answers) or _other_sizes(pairs)

    def compared(self, observed: Observed) -> int:
        """The reference's detections."""
        return int(_pair_counts(observed)[:, 2].sum())

    def finds_nothing(self, observed: Observed, which: int) -> bool:
        """Down to the weakest detection."""
        return not any(len(boxes.confidences) for boxes in _all_boxes(observed, which))

    def pairs(self, observed: Observed) -> Pairs | None:
        """Labelled objects; without labels what either model finds, by whether each found it."""
        if observed.dataset.truths is not None:
            truths = [t for t in observed.dataset.truths if isinstance(t, BoxTruth)]
            # At IoU .5, of what the model's own threshold lets through.
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
        for mine, theirs in _found_pairs(observed):
            matched = match(mine, theirs)
            both, seen = {i for i, _ in matched}, {j for _, j in matched}
            outcomes += [(int(c), True, j in seen) for j, c in enumerate(theirs.class_ids)]
            outcomes += [(int(c), False, True) for i, c in enumerate(mine.class_ids) if i not in both]
        table = np.array(outcomes, np.int64).reshape(-1, 3)
        return Pairs(table[:, 0], table[:, 1].astype(np.bool_), table[:, 2].astype(np.bool_))

    def calibration(self, observed: Observed) -> CalibrationError | None:
        """Of all detections that the models' own thresholds let through."""
        if observed.dataset.truths is not None:
            return CalibrationError(_error_of_boxes(observed, 0), _error_of_boxes(observed, 1))
        pairs = _found_pairs(observed)
        right = [np.isin(np.arange(len(mine.confidences)), [i for i, _ in match(mine, other)]) for mine, other in pairs]
        confidences = np.concatenate([mine.confidences for mine, _ in pairs])
        return CalibrationError(calibration_error(confidences, np.concatenate(right)), None)


def _error_of_boxes(observed: Observed, which: int) -> float:
    judged = [(j, ~j.ignored[:, 0]) for j in _judged_boxes(observed, which, confident=True)]
    confidences = np.concatenate([j.confidences[counted] for j, counted in judged])
    return calibration_error(confidences, np.concatenate([j.right[counted, 0] for j, counted in judged]))


def _boxes(participant: Participant, answer: Answer) -> Boxes:
    common = np.full(len(participant.subject.class_labels), -1)
    common[participant.class_ids] = np.arange(len(participant.class_ids))
    result = answer.result
    known = common[result.class_id]
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


def _found_pairs(observed: Observed) -> list[tuple[Boxes, Boxes]]:
    return list(zip(_found_boxes(observed, 0), _found_boxes(observed, 1), strict=True))


def _pair_counts(observed: Observed) -> NDArray[np.float64]:
    """Float64 (N, 3), of each image: detections matched, the first model's, the second's."""
    counts = [(len(match(a, b)), len(a.confidences), len(b.confidences)) for a, b in _found_pairs(observed)]
    return np.array(counts, np.float64).reshape(-1, 3)


def match(got: Boxes, expected: Boxes, iou: float = MATCH_IOU) -> list[tuple[int, int]]:
    """Pairs of detections, one to one: same class, overlap at least `iou`, most confident of `got` first."""
    if not len(got.confidences) or not len(expected.confidences):
        return []
    overlaps = box_overlaps(got.boxes_xyxy, expected.boxes_xyxy, np.zeros(len(expected.confidences), np.bool_))
    overlaps[got.class_ids[:, None] != expected.class_ids[None, :]] = 0.0
    pairs = []
    for index, row in enumerate(overlaps):
        best = int(row.argmax())
        if row[best] >= iou:
            pairs.append((index, best))
            overlaps[:, best] = 0.0
    return pairs


def _with_truths(observed: Observed, which: int) -> Iterator[tuple[Boxes, LabelledBoxes]]:
    """What a detector found in each image, beside the labels."""
    for record, truth in zip(observed.records, observed.dataset.truths or (), strict=True):
        boxes = record.rows[which]
        if isinstance(boxes, Boxes) and isinstance(truth, BoxTruth):
            yield boxes, LabelledBoxes(truth.in_pixels(record.size_wh), truth.class_ids, truth.crowd)


def _judged_boxes(observed: Observed, which: int, *, confident: bool = False) -> list[Judged]:
    least = observed.participants[which].subject.spec.thresholds.confidence if confident else 0.0
    return [judge(boxes.above(least), labelled) for boxes, labelled in _with_truths(observed, which)]


def _overlapping(boxes: Boxes, labelled: LabelledBoxes) -> NDArray[np.bool_]:
    """Which detections lie where which objects are labelled: bool (N, M); nothing lies in a group."""
    return (box_overlaps(boxes.boxes_xyxy, labelled.boxes_xyxy, labelled.crowd) >= MATCH_IOU) & ~labelled.crowd


def _precision_of(judged: Judged) -> float:
    """The mean over the labelled objects of the precision down to the detection that finds each; 0 without any."""
    right = judged.right[~judged.ignored[:, 0], 0]
    precisions = (np.cumsum(right) / np.arange(1, len(right) + 1))[right]
    return float(precisions.sum() / max(1, len(judged.wanted_class_ids)))


def _met(boxes: Boxes, labelled: LabelledBoxes) -> NDArray[np.float64]:
    """Of labelled objects where something is found: class, class and confidence of the surest there; float64 (M, 3)."""
    confidences = np.where(_overlapping(boxes, labelled), boxes.confidences[:, None], 0.0)
    found = confidences.max(axis=0, initial=0.0) > 0
    surest = confidences[:, found].argmax(axis=0) if found.any() else np.empty(0, np.int64)
    return np.stack([labelled.class_ids[found], boxes.class_ids[surest], boxes.confidences[surest]], axis=1)


_ENOUGH = 10  # images or objects from which a doubt is raised
_SURELY = 0.3  # by which the mean confidence is above the share of right answers, where classes are exchanged
_OFF = math.log(1.5)  # how far a box's sides may typically be from the label's


def _other_classes(
    what: str,
    true: NDArray[np.int64],
    said: NDArray[np.int64],
    confidences: NDArray[np.float64],
    answers: Sequence[str],
) -> str:
    """Tell that a model is sure of other classes than the labelled ones, and of which; or "".

    All int64 (N,) but the confidences, float64 (N,).
    """
    right = true == said
    if len(true) < _ENOUGH or right.mean() > confidences.mean() - _SURELY:
        return ""
    pairs, counts = np.unique(np.stack([true, said])[:, ~right], axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_NAMED]
    named = ", ".join(
        f"{_first(answers[a])!r} is called {_first(answers[b])!r} ({counts[i]} of {(true == a).sum()})"
        for i, (a, b) in zip(order, pairs.T[order], strict=True)
    )
    return (
        f"of {len(true)} labelled {what} {right.sum()} get their class, with a mean confidence of "
        f"{confidences.mean():.2f}: {named}; are the lines of the labels file in the order of the outputs, and are the "
        "labels of these images this model's?"
    )


def _other_sizes(pairs: Sequence[tuple[Boxes, LabelledBoxes]]) -> str:
    """Tell that boxes lie in the right place and have another size than the labelled ones; or ""."""
    logs = []
    for boxes, labelled in pairs:
        (ours, our_sizes), (theirs, their_sizes) = (_middles(one.boxes_xyxy) for one in (boxes, labelled))
        near = (np.abs(ours[:, None] - theirs) < their_sizes / 4).all(axis=2)
        for index, place in enumerate((near & (boxes.class_ids[:, None] == labelled.class_ids) & ~labelled.crowd).T):
            if place.any():  # the first is the surest
                logs.append(np.log(our_sizes[place.argmax()] / their_sizes[index]))
    off = float(np.median(np.abs(logs))) if len(logs) >= _ENOUGH else 0.0
    if off < _OFF:
        return ""
    return (
        f"of {len(logs)} boxes around the middle of a labelled object of their class, the sides are typically "
        f"{math.exp(off):.1f} times too long or too short; check anchors, strides and variances under [detection]"
    )


def _middles(boxes_xyxy: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The middle and the size of each box, float64 (N, 2) each; no side is shorter than a pixel."""
    first, last = boxes_xyxy[:, :2], boxes_xyxy[:, 2:]
    return (first + last) / 2, np.maximum(last - first, 1.0)


def _names(boxes: Boxes, labels: Sequence[str]) -> str:
    """`2 person, 1 car`, the most frequent first."""
    classes, counts = np.unique(boxes.class_ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    named = [f"{counts[i]} {_first(labels[classes[i]])}" for i in order[:_NAMED]]
    return ", ".join(named) + (" …" if len(order) > _NAMED else "") if named else "nothing"


class SegmentationMetrics(TaskMetrics):
    """Maps of classes."""

    agreement_metric = "mean_iou"
    agreement_name = "mIoU of class maps"
    noun = "class maps"

    def keep(
        self, participants: Sequence[Participant], answers: Sequence[Answer], truth: Truth | None
    ) -> tuple[tuple[object, ...], object]:
        """How each class map overlaps the labels, and how both overlap each other."""
        maps = [_class_map(*one) for one in zip(participants, answers, strict=True)]
        mask = _mask_of(truth, maps[0]) if isinstance(truth, MaskTruth) else None
        classes = len(participants[0].class_ids)
        rows = tuple(None if mask is None else overlap_of(class_map, mask, classes) for class_map in maps)
        return rows, overlap_of(maps[0], maps[1], classes) if len(maps) > 1 else None

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Mean intersection over union."""
        overlaps = _overlaps_with_truth(observed, which)
        if not any(overlap.either.any() for overlap in overlaps):
            raise DataError(f"nothing is labelled on {len(observed.records)} masks, expected classes and not only 255")
        return (Metric("mIoU", mean_iou(overlaps), is_gated=True),)

    def evidence(self, observed: Observed, *, labelled: bool) -> NDArray[np.float64] | None:
        """The mean intersection over union."""
        return np.array([_image_iou(overlap) for overlap in _overlaps_with_truth(observed, 0)]) if labelled else None

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Mean intersection over union of both maps."""
        between = _overlaps_between(observed)
        if not any(overlap.either.any() for overlap in between):
            names = " and ".join(p.subject.name for p in observed.participants)
            raise AccuracyGateError(
                f"{names} find nothing that both know on {len(between)} images, so nothing can be compared"
            )
        return (Metric("mIoU of both", mean_iou(between)),)

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """By 1 - mIoU of both maps."""
        ious = np.array([_image_iou(overlap) for overlap in _overlaps_between(observed)])
        return tuple(
            WorstImage(observed.path(i), None, "", f"mIoU {ious[i]:.0%} with the teacher", float(1 - ious[i]))
            for i in _largest(1 - ious, count)
        )


def _overlaps_with_truth(observed: Observed, which: int) -> list[Overlap]:
    return [row for record in observed.records if isinstance(row := record.rows[which], Overlap)]


def _overlaps_between(observed: Observed) -> list[Overlap]:
    return [between for record in observed.records if isinstance(between := record.between, Overlap)]


def _class_map(participant: Participant, answer: Answer) -> NDArray[np.uint8]:
    """The common class of every pixel, and `UNKNOWN`, which stays what it is."""
    assert isinstance(answer.result, Segmentation)
    common = np.full(256, UNKNOWN, np.uint8)
    common[participant.class_ids] = np.arange(len(participant.class_ids))
    # Not an index: numpy would widen every pixel of it to eight bytes.
    return np.asarray(cv2.LUT(answer.result.to_frame(), common), np.uint8)


def _mask_of(truth: MaskTruth, answer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    mask = truth.read()
    if mask.shape != answer.shape:
        raise DataError(
            f"{truth.path}: mask of {mask.shape[1]}x{mask.shape[0]} pixels for an image of "
            f"{answer.shape[1]}x{answer.shape[0]}, expected the same"
        )
    return mask


def _image_iou(overlap: Overlap) -> float:
    shown = overlap.either > 0
    return float((overlap.both[shown] / overlap.either[shown]).mean()) if shown.any() else 1.0


class EmbeddingMetrics(TaskMetrics):
    """Vectors of whole images, and the names that a gallery gives them."""

    agreement_metric = "vector_cosine"
    agreement_name = "cosine of vectors"
    noun = "vectors"

    def keep(
        self, participants: Sequence[Participant], answers: Sequence[Answer], _truth: Truth | None
    ) -> tuple[tuple[object, ...], object]:
        """The vectors, each of length 1."""
        return tuple(_vector(answer) for answer in answers), None

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Right names (top-1) where there is a gallery, and right pairs: same or not, at the model's threshold."""
        truths, vectors = _true_classes(observed), observed.tables[which]
        subject = observed.participants[which].subject
        least, gallery = subject.spec.thresholds.confidence, Gallery.of(subject.labels)
        same = truths[:, None] == truths[None, :]
        found = vectors @ vectors.T >= least
        pairs = [~np.eye(len(truths), dtype=np.bool_) & side for side in (same, ~same)]
        if not all(side.any() for side in pairs) and gallery is None:
            raise DataError(f"{len(truths)} images, expected two or more of one class, and others of another")
        metrics = []
        if gallery is not None:
            owners, cosines = gallery.nearest(vectors.astype(np.float32))
            metrics.append(share_metric("top-1", (owners == truths) & (cosines >= least), is_gated=True))
        if all(side.any() for side in pairs):
            metrics.append(Metric("verification accuracy", _balanced(found, *pairs), is_gated=True))
        return tuple(metrics)

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Mean cosine of both vectors of an image."""
        return (Metric(self.agreement_name, mean_of(_cosines(observed).clip(0, 1))),)

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """By 1 - cosine."""
        distance = 1 - _cosines(observed)
        return tuple(
            WorstImage(observed.path(i), None, "", f"cosine {1 - distance[i]:.3f} with the teacher", float(distance[i]))
            for i in _largest(distance, count)
        )


def _vector(answer: Answer) -> NDArray[np.float64]:
    assert isinstance(answer.result, Embedding)
    return answer.result.vector.astype(np.float64)


def _cosines(observed: Observed) -> NDArray[np.float64]:
    return np.asarray((observed.tables[0] * observed.tables[1]).sum(axis=1), np.float64)


def _balanced(found: NDArray[np.bool_], same: NDArray[np.bool_], other: NDArray[np.bool_]) -> Statistic:
    """Mean of the shares of same pairs that are found, and of others that are not; bool (N, N) each."""
    right = [(np.float64(same & found), np.float64(same)), (np.float64(other & ~found), np.float64(other))]

    def statistic(weights: Weights) -> NDArray[np.float64]:
        totals = [tuple(((weights @ pairs) * weights).sum(axis=1) for pairs in side) for side in right]
        shares = [np.divide(hits, of, out=np.full(len(weights), np.nan), where=of > 0) for hits, of in totals]
        return np.asarray(np.mean(shares, axis=0), np.float64)

    return statistic


class TextMetrics(TaskMetrics):
    """Lines of text."""

    agreement_metric = "equal_texts"
    agreement_name = "equal texts"
    noun = "texts"
    advice = "check input.mean, std and color in model.toml, and whether labels is the dictionary of its training"

    def keep(
        self, _participants: Sequence[Participant], answers: Sequence[Answer], truth: Truth | None
    ) -> tuple[tuple[object, ...], object]:
        """The texts, and the true one."""
        texts = [answer.result.labels[:1] for answer in answers]
        return tuple("".join(text) for text in texts), truth.text if isinstance(truth, TextTruth) else None

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Right characters, 1 - CER: edits over the characters of the labels; and texts that are right as a whole."""
        pairs = [(str(record.rows[which]), str(record.between)) for record in observed.records]
        edits = np.array([edit_distance(*pair) for pair in pairs], np.float64)
        lengths = np.array([len(truth) for _, truth in pairs], np.float64)
        if not lengths.any():
            raise DataError(f"nothing is labelled on {len(pairs)} images, expected texts of some of them")
        errors = ratio_of(edits, lengths)
        return (
            Metric("characters (1 - CER)", lambda weights: np.maximum(0, 1 - errors(weights)), is_gated=True),
            share_metric("whole texts", edits == 0, is_gated=True),
        )

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Share of equal texts."""
        if self.finds_nothing(observed, 1):
            raise AccuracyGateError(
                f"{observed.participants[1].subject.name} reads nothing on {len(observed.records)} evaluation images, "
                "so nothing can be compared; give pictures of lines of text, or lower its thresholds.confidence"
            )
        return (
            share_metric(
                self.agreement_name, np.array([record.rows[0] == record.rows[1] for record in observed.records])
            ),
        )

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """By edits from one text to the other."""
        pairs = [(str(record.rows[0]), str(record.rows[1])) for record in observed.records]
        distance = np.array([edit_distance(*pair) for pair in pairs], np.float64)
        truths = [record.between for record in observed.records]
        return tuple(
            WorstImage(
                observed.path(i), str(truths[i]) if truths[i] else None, pairs[i][1], pairs[i][0], float(distance[i])
            )
            for i in _largest(distance, count)
        )

    def finds_nothing(self, observed: Observed, which: int) -> bool:
        """No text on any image."""
        return not any(record.rows[which] for record in observed.records)


def _largest(distance: NDArray[np.float64], count: int) -> list[int]:
    return [int(i) for i in np.argsort(-distance, kind="stable")[:count] if distance[i] > 0]


def _first(label: str) -> str:
    return label.split(",")[0]


TASKS: dict[Task, TaskMetrics] = {
    "classification": ClassificationMetrics(),
    "detection": DetectionMetrics(),
    "segmentation": SegmentationMetrics(),
    "embedding": EmbeddingMetrics(),
    "text": TextMetrics(),
}
"""The one table of what depends on a task."""

AGREEMENTS = {entry.agreement_metric: entry for entry in TASKS.values()}
"""The same entries by the manifest's name of their agreement."""
