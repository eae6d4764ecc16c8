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
"""So many classes are named in a line."""

CALIBRATION_BINS = 15
"""Bins of the expected calibration error (Guo et al., On Calibration of Modern Neural Networks, 2017)."""

ENOUGH = 10
"""Images or objects from which a doubt is raised."""

_SEVERAL, _HARDLY = 5, 0.1  # objects of a class, and the share that may get it, where two such classes are exchanged
_SURELY = 0.3  # by which the mean confidence is above the share of right answers, where classes are exchanged


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
    def keep(self, answers: Answers, truth: Truth | None) -> Kept:
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
        """Return whether a model found nothing on any image."""
        return False

    def stands_still(self, observed: Observed, which: int) -> bool:
        """Return whether a model gives the same result for all images."""
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


def worst_images(
    observed: Observed, distance: NDArray[np.float64], count: int, words: Callable[[int], tuple[str | None, str, str]]
) -> tuple[WorstImage, ...]:
    """Return at most `count` images, those of the largest `distance` first, float64 (N,); none at a distance of 0.

    `words` has what the label, the teacher and the student say of an image, by its index.
    """
    order = [int(i) for i in np.argsort(-distance, kind="stable")[:count] if distance[i] > 0]
    return tuple(WorstImage(observed.path(i), *words(i), float(distance[i])) for i in order)


def true_classes(observed: Observed) -> NDArray[np.int64]:
    """Return the labelled class of each image, int64 (N,)."""
    return np.array([t.class_id for t in observed.dataset.truths or () if isinstance(t, ClassTruth)], np.int64)


def first_name(label: str) -> str:
    """Return the first of the names in a label, which commas separate."""
    return label.split(",")[0]


def calibration_error(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Expected calibration error: how far confidences (N,) and the share of right answers lie apart, both 0-1."""
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
    """Tell that a model is sure of other classes than the labelled ones, of all or of some; or "".

    All int64 (N,) but the confidences, float64 (N,).
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
