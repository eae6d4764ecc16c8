"""What is measured of models, whatever their task: the interface of a task's metrics, and what several tasks share.

A task has what is kept of an image, figures against labels, agreement between two models, the images on which these lie
furthest apart, and what counts as a pair of outcomes. A reference that finds nothing is a failure, never an agreement
of 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.tasks.spec import AgreementMetric
from edge_sdk_tools.datasets.dataset import ClassTruth, Truth
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Observed
from edge_sdk_tools.evaluate.statistics import Metric

NAMED = 3
"""How many classes are named in one line."""

CALIBRATION_BINS = 15
"""Bins of the expected calibration error (Guo et al., On Calibration of Modern Neural Networks, 2017)."""

ENOUGH = 10
"""Fewest images or objects about which a doubt is raised."""

TESTABLE = 6
"""Of fewer disagreements even the most uneven split has p above 5 %: 2 / 2^5. Tarone (1990) leaves such tests out."""

_SEVERAL, _HARDLY = 5, 0.1  # a class is missed if of so many objects at most this share gets it
_SLACK = 0.01  # by which rounding may take a confidence above 1
_SURELY = 0.3  # classes look exchanged if the mean confidence is by so much above the share of right answers


class Pairs(msgspec.Struct, frozen=True, eq=False):
    """Outcomes of both models on the same things, bool (N,): whether it was right, or without labels found the thing.

    Each counts for one of the classes, `class_ids`, int64 (N,).
    """

    class_ids: NDArray[np.int64]
    teacher: NDArray[np.bool_]
    student: NDArray[np.bool_]


class Divergence(msgspec.Struct, frozen=True):
    """Divergence of the student from the teacher, with one temperature in both softmaxes.

    `nats` is the mean Kullback-Leibler divergence, in nats.
    `loss` is that times the temperature squared: the distillation loss of Hinton et al. (2015), whose gradients have
    the same size at all temperatures.
    """

    temperature: float
    nats: float
    loss: float


class CalibrationError(msgspec.Struct, frozen=True):
    """Expected calibration error of both models, 0-1, over 15 bins.

    Without labels the teacher's answers stand for them, and there is no error of the teacher.
    """

    student: float
    teacher: float | None


class WorstImage(msgspec.Struct, frozen=True):
    """One image on which the two models differ: its label, if it has one of its own, and what each model says.

    `distance` depends on the task: divergence in nats, number of objects that only one of both found, or 1 - mIoU.
    """

    file: Path
    truth: str | None
    teacher: str
    student: str
    distance: float


class TaskMetrics(ABC):
    """What is measured of models of one task. If there are two models, the second is the reference of the first.

    Attributes:
        agreement_metric: the manifest's name for the agreement of two models.
        agreement_name: the name of that metric for people.
        noun: what the agreement counts.
        certainty: words that come before the mean of the evidence without labels; "" where there is none.
        advice: what to check if a model's answers cannot be right.
    """

    agreement_metric: AgreementMetric
    agreement_name: str
    noun: str
    certainty: str = ""
    advice = "check input.mean, std and color in model.toml, and whether the labels are in the outputs' order"

    @abstractmethod
    def keep(self, answers: Answers, truth: Truth | None) -> Kept:
        """Return what is kept of the answers to one image: one row for each model, and what compares two models.

        Rows that are arrays end up in `Observed.tables`.
        """

    def problem(self, _observed: Observed) -> str:
        """Return why the first model's answers cannot be right, as far as that shows without labels; "" if they may."""
        return ""

    @abstractmethod
    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return figures of one of the models against the labels, the most important one first; a gate judges some.

        A DataError says that nothing is labelled.
        """

    @abstractmethod
    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return how far the first of two models agrees with the second; the figure that a gate judges comes first.

        An AccuracyGateError says that the second finds nothing on any image, or neither finds a class that both know.
        """

    @abstractmethod
    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """Return at most `count` images on which the models differ, the worst first."""

    def evidence(self, _observed: Observed, *, labelled: bool) -> NDArray[np.float64] | None:
        """Return how well the first model's description fits each image: float64 (N,), more is better; None if unknown.

        With `labelled` it is how good the answer is by the labels, 0-1, whatever its confidence; without it is how sure
        the model is.
        """
        del labelled
        return None

    def doubt(self, _observed: Observed) -> str:
        """Return what labels show to be wrong in the first model's description, with what to do; "" for nothing."""
        return ""

    def unmeasured(self, _observed: Observed) -> str:
        """Return which of the first model's figures the labels do not allow, and why; "" for none."""
        return ""

    def compared(self, observed: Observed) -> int:
        """Return how many things of the reference were compared."""
        return len(observed.records)

    def finds_nothing(self, _observed: Observed, _which: int) -> bool:
        """Return whether a model found nothing on any image."""
        return False

    def stands_still(self, observed: Observed, which: int) -> bool:
        """Return whether a model gives the same result for all images."""
        return len({record.fingerprints[which] for record in observed.records}) == 1

    def pairs(self, _observed: Observed) -> Pairs | None:
        """Return paired outcomes of both models; None where outcomes are not independent, as those of pixels."""
        return None

    def calibration(self, _observed: Observed) -> CalibrationError | None:
        """Return the calibration error of both models; None for tasks without confidences."""
        return None

    def divergences(self, _observed: Observed, _temperatures: Sequence[float]) -> tuple[Divergence, ...]:
        """Return the divergence of the probabilities at each temperature; none for tasks without probabilities."""
        return ()


def lost_class(pairs: Pairs, labels: Sequence[str], teacher: str) -> str:
    """Return of which class, by its id in `labels`, the student loses half or more, the worst in words; "" for none."""
    worst, least = "", 0.5
    for class_id in np.unique(pairs.class_ids):
        mask = pairs.class_ids == class_id
        found, left = int(pairs.teacher[mask].sum()), int(pairs.student[mask].sum())
        if found - left >= TESTABLE and left <= least * found:
            least = left / found
            worst = f"{first_name(labels[class_id])!r} is lost: of {found} that {teacher} finds {left} are left"
    return worst


def worst_images(
    observed: Observed, distance: NDArray[np.float64], count: int, words: Callable[[int], tuple[str | None, str, str]]
) -> tuple[WorstImage, ...]:
    """Return at most `count` images, those of the largest `distance` first, float64 (N,); none at a distance of 0.

    `words` returns for an image, by its index, its label and what the teacher and the student say.
    """
    order = [int(i) for i in np.argsort(-distance, kind="stable")[:count] if distance[i] > 0]
    return tuple(WorstImage(observed.path(i), *words(i), float(distance[i])) for i in order)


def true_classes(observed: Observed) -> NDArray[np.int64]:
    """Return the labelled class of each image, int64 (N,)."""
    return np.array([t.class_id for t in observed.dataset.truths or () if isinstance(t, ClassTruth)], np.int64)


def too_sure(confidences: NDArray[np.float64], images: int) -> str:
    """Return that confidences on so many images lie beyond 1, but for rounding; else ""."""
    highest = confidences.max(initial=0.0)
    return f"its confidences reach {highest:.3g} on {images} images, expected 0 to 1" if highest > 1 + _SLACK else ""


def first_name(label: str) -> str:
    """Return the first of the names in a label, which commas separate."""
    return label.split(",")[0]


def calibration_error(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error, 0-1, of confidences, float64 (N,), 0-1, and right answers, bool (N,)."""
    if not len(confidences):
        return 0.0
    bins = np.minimum((confidences * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=confidences - right, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def other_classes(
    what: str,
    true: NDArray[np.int64],
    said: NDArray[np.int64],
    confidences: NDArray[np.float64],
    answers: Sequence[str],
) -> str:
    """Return a warning if a model is sure of other classes than the labelled ones, of all or some; otherwise "".

    `true` and `said` are class ids, int64 (N,); `confidences` are float64 (N,), 0-1. `what` names the labelled things.
    """
    right = true == said
    missed = [c for c in np.unique(true) if (true == c).sum() >= _SEVERAL and right[true == c].mean() <= _HARDLY]
    if len(missed) < 2 and (len(true) < ENOUGH or right.mean() > confidences.mean() - _SURELY):
        return ""
    pairs, counts = np.unique(np.stack([true, said])[:, ~right], axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:NAMED]
    named = ", ".join(
        f"{first_name(answers[a])!r} is called {first_name(answers[b])!r} ({counts[i]} of {(true == a).sum()})"
        for i, (a, b) in zip(order, pairs.T[order], strict=True)
    )
    return (
        f"of {len(true)} labelled {what} {right.sum()} get their class, with a mean confidence of "
        f"{confidences.mean():.2f}: {named}; are the lines of the labels file in the order of the outputs, and are the "
        "labels of these images this model's?"
    )
