"""The images on which a student lies furthest from its teacher, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.evaluate.classification import divergences
from edge_sdk_tools.evaluate.evaluation import class_places, class_rows, found_boxes, pair_counts, said, true_classes
from edge_sdk_tools.evaluate.predictions import Observed
from edge_sdk_tools.evaluate.segmentation import Overlap

_NAMED = 3


class WorstImage(msgspec.Struct, frozen=True):
    """One image on which the two models differ.

    Attributes:
        file: its path.
        truth: its label; None where it has none of its own.
        teacher, student: what each says.
        distance: what the order is by: divergence in nats, objects that only one of both found, or 1 - mIoU.
    """

    file: Path
    truth: str | None
    teacher: str
    student: str
    distance: float


def worst_images(observed: Observed, labels: Sequence[str], count: int) -> tuple[WorstImage, ...]:
    """Return at most `count` images on which the models differ, the worst first.

    With labels a classifier's images come first where the teacher is right and the student is not.
    """
    if observed.task == "classification":
        return _classified(observed, labels, count)
    if observed.task == "detection":
        return _detected(observed, labels, count)
    return _segmented(observed, count)


def _classified(observed: Observed, labels: Sequence[str], count: int) -> tuple[WorstImage, ...]:
    rows, reference = class_rows(observed, 0), class_rows(observed, 1)
    distance = divergences(reference, rows)
    answers, expected = said(observed, 0), said(observed, 1)
    rows, reference = observed.probabilities(0), observed.probabilities(1)
    lost = np.zeros(len(answers), np.bool_)
    truths: list[str | None] = [None] * len(answers)
    if observed.dataset.truths is not None:
        lost = (class_places(observed, 0) != 0) & (class_places(observed, 1) == 0)
        truths = [_first(labels[class_id]) for class_id in true_classes(observed)]
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


def _detected(observed: Observed, labels: Sequence[str], count: int) -> tuple[WorstImage, ...]:
    counts = pair_counts(observed)
    distance = counts[:, 1] + counts[:, 2] - 2 * counts[:, 0]
    students, teachers = found_boxes(observed, 0), found_boxes(observed, 1)
    return tuple(
        WorstImage(observed.path(i), None, _names(teachers[i], labels), _names(students[i], labels), float(distance[i]))
        for i in _largest(distance, count)
    )


def _segmented(observed: Observed, count: int) -> tuple[WorstImage, ...]:
    ious = np.array([_image_iou(record.between) for record in observed.records if record.between is not None])
    return tuple(
        WorstImage(observed.path(i), None, "", f"mIoU {ious[i]:.0%} with the teacher", float(1 - ious[i]))
        for i in _largest(1 - ious, count)
    )


def _largest(distance: NDArray[np.float64], count: int) -> list[int]:
    return [int(i) for i in np.argsort(-distance, kind="stable")[:count] if distance[i] > 0]


def _image_iou(overlap: Overlap) -> float:
    shown = overlap.either > 0
    return float((overlap.both[shown] / overlap.either[shown]).mean()) if shown.any() else 1.0


def _names(boxes: Boxes, labels: Sequence[str]) -> str:
    """`2 person, 1 car`, the most frequent first."""
    classes, counts = np.unique(boxes.class_ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    named = [f"{counts[i]} {_first(labels[classes[i]])}" for i in order[:_NAMED]]
    return ", ".join(named) + (" …" if len(order) > _NAMED else "") if named else "nothing"


def _first(label: str) -> str:
    return label.split(",")[0]
