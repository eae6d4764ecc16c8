"""Metrics of classification, from the probabilities of the classes that all models have in common.

Tables of probabilities have a row per image and a column per class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.decoders import DecoderName
from edge_sdk_tools.datasets.dataset import Truth
from edge_sdk_tools.evaluate.metrics import (
    CalibrationError,
    Divergence,
    Pairs,
    TaskMetrics,
    WorstImage,
    calibration_error,
    first_name,
    other_classes,
    too_sure,
    true_classes,
)
from edge_sdk_tools.evaluate.model import Answer
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Observed, Participant
from edge_sdk_tools.evaluate.statistics import Metric, mean_of, quotient, share_metric

TOP_K = (1, 5)
_SAME = 1e-4  # relative difference below which scores count as equal

Probabilities = NDArray[np.float64]
"""float64 (N, C), a row per image, 0-1; each row sums to 1."""

_ROWS_AT_ONCE = 1024  # rows in an array: 8 MB with a thousand classes

_TINY = 1e-12  # probabilities are raised to at least this, so that divergences stay finite


class ClassificationMetrics(TaskMetrics):
    """Classes of whole images."""

    agreement_metric = "top1_agreement"
    agreement_name = "top-1 agreement"
    noun = "top-1 classes"
    certainty = "the likeliest class has a confidence of"

    def keep(self, answers: Answers, _truth: Truth | None) -> Kept:
        """Keep the probabilities of the common classes, and of the background if the model has one."""
        return tuple(_probabilities(*one) for one in answers), None

    def problem(self, observed: Observed) -> str:
        """Return that its confidences lie beyond 1; else ""."""
        return too_sure(observed.tables[0], len(observed.records))

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return top-1 accuracy, and top-5 accuracy with more than five classes."""
        places = _class_places(observed, which)
        known = [k for k in TOP_K if k == 1 or k < observed.classes]
        return tuple(share_metric(f"top-{k}", places < k, is_gated=k == 1) for k in known)

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return the share of equal top-1 classes, and the divergence of probabilities."""
        return (
            share_metric(self.agreement_name, said(observed, 0) == said(observed, 1)),
            Metric("KL divergence (nats)", mean_of(_divergence(observed)), bounds=(0.0, math.inf), unit="nats"),
        )

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """Return the images of the largest divergence; those that only the reference has right are first."""
        distance, labels = _divergence(observed), observed.answers
        answers, expected = said(observed, 0), said(observed, 1)
        rows, reference = observed.tables[0], observed.tables[1]
        lost = np.zeros(len(answers), np.bool_)
        truths: list[str | None] = [None] * len(answers)
        if observed.dataset.truths is not None:
            lost = (_class_places(observed, 0) != 0) & (_class_places(observed, 1) == 0)
            truths = [first_name(labels[class_id]) for class_id in true_classes(observed)]
        order = [i for i in np.lexsort((-distance, ~lost)) if answers[i] != expected[i]]
        return tuple(
            WorstImage(
                observed.path(i),
                truths[i],
                f"{first_name(labels[expected[i]])} {reference[i, expected[i]]:.0%}",
                f"{first_name(labels[answers[i]])} {rows[i, answers[i]]:.0%}",
                float(distance[i]),
            )
            for i in order[:count]
        )

    def evidence(self, observed: Observed, *, labelled: bool) -> NDArray[np.float64] | None:
        """Return the reciprocal rank of the labelled class, or without labels the highest probability."""
        return 1 / (1.0 + _class_places(observed, 0)) if labelled else observed.tables[0].max(axis=1)

    def doubt(self, observed: Observed) -> str:
        """Return a warning if labels and outputs seem to have their classes in different orders; else ""."""
        highest = observed.tables[0].max(axis=1)
        return other_classes("images", true_classes(observed), said(observed, 0), highest, observed.answers)

    def stands_still(self, observed: Observed, which: int) -> bool:
        """Tell whether the scores hardly change between images; in logarithms, so that small probabilities count."""
        scores = np.log(np.maximum(observed.tables[which], np.finfo(np.float64).tiny))
        return super().stands_still(observed, which) or float(np.ptp(scores, axis=0).max()) < _SAME

    def pairs(self, observed: Observed) -> Pairs | None:
        """Pair the outcomes on labelled images; without labels, pair for each class which of the models predict it."""
        if observed.dataset.truths is not None:
            student, teacher = (_class_places(observed, which) == 0 for which in (0, 1))
            return Pairs(true_classes(observed), teacher, student)
        answers, expected = said(observed, 0), said(observed, 1)
        # An image with different predictions counts for both classes: the teacher's and the student's.
        alone = answers[answers != expected]
        return Pairs(
            np.concatenate([expected, alone]),
            np.concatenate([np.ones(len(expected), np.bool_), np.zeros(len(alone), np.bool_)]),
            np.concatenate([answers == expected, np.ones(len(alone), np.bool_)]),
        )

    def calibration(self, observed: Observed) -> CalibrationError | None:
        """Return the errors of the confidence in the likeliest class."""
        labelled = observed.dataset.truths is not None
        truth = true_classes(observed) if labelled else said(observed, 1)
        errors = [
            calibration_error(observed.tables[which].max(axis=1), said(observed, which) == truth) for which in (0, 1)
        ]
        return CalibrationError(errors[0], errors[1] if labelled else None)

    def divergences(self, observed: Observed, temperatures: Sequence[float]) -> tuple[Divergence, ...]:
        """Return the divergence of all probabilities at each temperature."""
        nats = [float(_divergence(observed, temperature).mean()) for temperature in temperatures]
        return tuple(Divergence(t, value, value * t**2) for t, value in zip(temperatures, nats, strict=True))


def _probabilities(participant: Participant, answer: Answer) -> NDArray[np.float64]:
    subject = participant.subject
    row = probabilities_of(answer.outputs[0], subject.spec.decoder)
    order = participant.class_ids + subject.background
    return np.append(row[order], row[:1]) if subject.background else row[order]


def said(observed: Observed, which: int) -> NDArray[np.int64]:
    """Return the most likely common class of each image, or K for the background: int64 (N,)."""
    columns = _by_output(observed, which)
    answers: NDArray[np.int64] = columns[observed.tables[which][:, columns].argmax(axis=1)]
    return answers


def _by_output(observed: Observed, which: int) -> NDArray[np.int64]:
    """Return a table's columns in the order of the model's outputs, by which `run` breaks ties: int64 (K,)."""
    participant = observed.participants[which]
    columns = np.argsort(participant.class_ids, kind="stable")
    return np.append(len(columns), columns) if participant.subject.background else columns


def _divergence(observed: Observed, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return each image's divergence between both classifiers over their common classes: float64 (N,), nats."""
    common = np.arange(observed.classes + all(p.subject.background for p in observed.participants))
    student, teacher = (restricted(observed.tables[which], common) for which in (0, 1))
    return divergences(teacher, student, temperature)


def _class_places(observed: Observed, which: int) -> NDArray[np.int64]:
    """Return the rank of each image's true class among the probabilities, 0 for the most likely class: int64 (N,)."""
    columns = _by_output(observed, which)
    return ranks_of(observed.tables[which][:, columns], np.argsort(columns)[true_classes(observed)])


def probabilities_of(output: Tensor, decoder: DecoderName) -> NDArray[np.float64]:
    """Return the probabilities, float64 (C,), of a classifier's output, any float (1, C)."""
    scores: NDArray[np.float64] = np.asarray(output, np.float64).reshape(-1)
    if decoder == "logits":
        scores = np.exp(scores - scores.max())
        scores /= scores.sum()
    elif decoder == "sigmoid_logits":
        scores = (np.tanh(scores / 2) + 1) / 2
    return scores


def ranks_of(probabilities: Probabilities, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of the given column in each row, 0 for the highest; equal values are ranked by column.

    With columns in the order of the model's outputs, the ranking is that of `edge_sdk.tasks.classification.highest`.
    """
    rows = np.arange(len(columns))
    right = probabilities[rows, columns][:, None]
    before = np.arange(probabilities.shape[1])[None, :] < columns[:, None]
    places: NDArray[np.int64] = ((probabilities > right) | ((probabilities == right) & before)).sum(axis=1)
    return places


def restricted(probabilities: Probabilities, columns: NDArray[np.int64]) -> Probabilities:
    """Return these columns, in this order, normalised so that each row sums to 1."""
    chosen = probabilities[:, columns]
    total = chosen.sum(axis=1, keepdims=True)
    return quotient(chosen, total, 1 / chosen.shape[1])


def softened(probabilities: Probabilities, temperature: float) -> Probabilities:
    """Return softmax(logits / temperature): Hinton et al., Distilling the Knowledge in a Neural Network, 2015."""
    logits = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Probabilities = powers / powers.sum(axis=1, keepdims=True)
    return result


def divergences(reference: Probabilities, candidate: Probabilities, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return the Kullback-Leibler divergence of each row, sum of p * log(p / q) with reference p, in nats: (N,)."""
    result = np.empty(len(reference))
    for start in range(0, len(reference), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        p, q = reference[part], candidate[part]
        if temperature != 1:
            p, q = softened(p, temperature), softened(q, temperature)
        p, q = np.maximum(p, _TINY), np.maximum(q, _TINY)
        result[part] = np.maximum((p * np.log(p / q)).sum(axis=1), 0.0)  # rounding may go below
    return result
