"""What a classifier's student took over of its teacher's probabilities, beyond the likeliest class.

Owns the divergence at several temperatures and the calibration error. A detector's calibration error is that of its
detections' confidences.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.evaluate.agreement import class_rows, found_boxes, match, said
from edge_sdk_tools.evaluate.classification import calibration_error, divergences
from edge_sdk_tools.evaluate.observe import Observed
from edge_sdk_tools.evaluate.quality import judged_boxes, true_classes

TEMPERATURES = (1.0, 2.0, 4.0)
"""Softmax temperatures that distillation commonly uses; 1 is the plain probabilities."""


class Divergence(msgspec.Struct, frozen=True):
    """Teacher to student at one temperature.

    Attributes:
        temperature: of both softmaxes.
        nats: mean Kullback-Leibler divergence.
        loss: `nats` times the temperature squared, the distillation loss of Hinton et al. (2015), in which the
            gradients of all temperatures weigh alike.
    """

    temperature: float
    nats: float
    loss: float


class CalibrationError(msgspec.Struct, frozen=True):
    """How far confidence and share of right answers lie apart, 0-1 (15 bins).

    Attributes:
        student: against the labels; without labels against what the teacher says.
        teacher: against the labels; None without labels.
    """

    student: float
    teacher: float | None


def divergences_at(observed: Observed, temperatures: tuple[float, ...] = TEMPERATURES) -> tuple[Divergence, ...]:
    """One a temperature, for classifiers; none for other tasks."""
    if observed.task != "classification":
        return ()
    student, teacher = class_rows(observed, 0), class_rows(observed, 1)
    found = []
    for temperature in temperatures:
        nats = float(divergences(teacher, student, temperature).mean())
        found.append(Divergence(temperature, nats, nats * temperature**2))
    return tuple(found)


def calibration_errors(observed: Observed) -> CalibrationError | None:
    """Of both models; None for class maps."""
    labelled = observed.dataset.truths is not None
    if observed.task == "classification":
        truth = true_classes(observed) if labelled else said(observed, 1)
        return CalibrationError(_of_rows(observed, 0, truth), _of_rows(observed, 1, truth) if labelled else None)
    if observed.task == "detection":
        if labelled:
            return CalibrationError(_of_boxes(observed, 0), _of_boxes(observed, 1))
        return CalibrationError(_of_pairs(observed), None)
    return None


def _of_rows(observed: Observed, which: int, truth: NDArray[np.int64]) -> float:
    return calibration_error(observed.probabilities(which).max(axis=1), said(observed, which) == truth)


def _of_boxes(observed: Observed, which: int) -> float:
    judged = judged_boxes(observed, which, confident=True)
    counted = [~j.ignored[:, 0] for j in judged]
    confidences = np.concatenate([j.confidences[c] for j, c in zip(judged, counted, strict=True)])
    return calibration_error(confidences, np.concatenate([j.right[c, 0] for j, c in zip(judged, counted, strict=True)]))


def _of_pairs(observed: Observed) -> float:
    pairs = list(zip(found_boxes(observed, 0), found_boxes(observed, 1), strict=True))
    right = [np.isin(np.arange(len(mine.confidences)), [i for i, _ in match(mine, theirs)]) for mine, theirs in pairs]
    return calibration_error(np.concatenate([mine.confidences for mine, _ in pairs]), np.concatenate(right))
