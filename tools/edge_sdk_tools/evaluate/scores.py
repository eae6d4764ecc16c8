"""The arithmetic of scores: rows of probabilities of classifiers, and overlaps of class maps.

Columns of probabilities are classes; the caller gives the class of each image, and the class maps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.decoders import DecoderName
from edge_sdk_tools.evaluate.statistics import Statistic, Weights

Probabilities = NDArray[np.float64]
"""float64 (N, C), a row an image, 0-1, each row's sum is 1."""

CALIBRATION_BINS = 15
"""Bins of the expected calibration error (Guo et al., On Calibration of Modern Neural Networks, 2017)."""

_ROWS_AT_ONCE = 1024  # of a thousand classes each: 8 MB an array

_TINY = 1e-12  # below this a probability counts as this, so that a divergence stays finite


def probabilities_of(output: Tensor, decoder: DecoderName) -> NDArray[np.float64]:
    """One row of probabilities, float64 (C,), from a classifier's output, any float (1, C)."""
    scores: NDArray[np.float64] = np.asarray(output, np.float64).reshape(-1)
    if decoder == "logits":
        scores = np.exp(scores - scores.max())
        scores /= scores.sum()
    elif decoder == "sigmoid_logits":
        scores = (np.tanh(scores / 2) + 1) / 2
    return scores


def ranks_of(probabilities: Probabilities, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the right column in each row, 0 for the likeliest; of equals the first column stands first.

    Where the columns are a model's outputs in their order, `edge_sdk.tasks.classification.highest` has the same order.
    """
    rows = np.arange(len(columns))
    right = probabilities[rows, columns][:, None]
    before = np.arange(probabilities.shape[1])[None, :] < columns[:, None]
    places: NDArray[np.int64] = ((probabilities > right) | ((probabilities == right) & before)).sum(axis=1)
    return places


def restricted(probabilities: Probabilities, columns: NDArray[np.int64]) -> Probabilities:
    """Only these columns, in this order, each row's sum 1 again."""
    chosen = probabilities[:, columns]
    total = chosen.sum(axis=1, keepdims=True)
    result: Probabilities = np.divide(chosen, total, out=np.full_like(chosen, 1 / chosen.shape[1]), where=total > 0)
    return result


def softened(probabilities: Probabilities, temperature: float) -> Probabilities:
    """What softmax(logits / temperature) gives: Hinton et al., Distilling the Knowledge in a Neural Network, 2015."""
    logits = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Probabilities = powers / powers.sum(axis=1, keepdims=True)
    return result


def divergences(reference: Probabilities, candidate: Probabilities, temperature: float = 1.0) -> NDArray[np.float64]:
    """Kullback-Leibler divergence of each row, sum of p * log(p / q) with p the reference, in nats; float64 (N,)."""
    result = np.empty(len(reference))
    for start in range(0, len(reference), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        p, q = reference[part], candidate[part]
        if temperature != 1:
            p, q = softened(p, temperature), softened(q, temperature)
        p, q = np.maximum(p, _TINY), np.maximum(q, _TINY)
        result[part] = np.maximum((p * np.log(p / q)).sum(axis=1), 0.0)  # rounding may go below
    return result


def calibration_error(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Expected calibration error: how far confidences (N,) and the share of right answers lie apart, both 0-1."""
    if not len(confidences):
        return 0.0
    bins = np.minimum((confidences * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=confidences - right, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


UNKNOWN = 255
"""Class of pixels that are not labelled, or for which a model gives no class."""

_PIXELS_AT_ONCE = 250_000


class Overlap(msgspec.Struct, frozen=True, eq=False):
    """Pixels of one image, by class: int64 (C,) each."""

    both: NDArray[np.int64]
    either: NDArray[np.int64]


def overlap_of(answer: NDArray[np.uint8], truth: NDArray[np.uint8], classes: int) -> Overlap:
    """Count the pixels of two uint8 (H, W) class maps of the same size; where the truth is `UNKNOWN` none counts."""
    both, either = np.zeros(256, np.int64), np.zeros(256, np.int64)
    # Counting widens every pixel to eight bytes: so many lines at once, and a large image costs no more than a small.
    lines = max(1, _PIXELS_AT_ONCE // max(1, answer.shape[1]))
    for top in range(0, len(answer), lines):
        known = truth[top : top + lines] != UNKNOWN
        a, t = answer[top : top + lines][known], truth[top : top + lines][known]
        equal = np.bincount(a[a == t], minlength=256)
        both += equal
        either += np.bincount(a, minlength=256) + np.bincount(t, minlength=256) - equal
    return Overlap(both[:classes], either[:classes])


def mean_iou(overlaps: Sequence[Overlap]) -> Statistic:
    """Mean over the classes of intersection over union, each summed over all images; classes in none are left out."""
    both = np.stack([o.both for o in overlaps]).astype(np.float64)
    either = np.stack([o.either for o in overlaps]).astype(np.float64)

    def statistic(weights: Weights) -> NDArray[np.float64]:
        ious = class_ious(weights, both, either)
        known = np.isfinite(ious)
        counts = known.sum(axis=1)
        total = np.where(known, ious, 0.0).sum(axis=1)
        result: NDArray[np.float64] = np.divide(total, counts, out=np.full(len(weights), np.nan), where=counts > 0)
        return result

    return statistic


def class_ious(weights: Weights, both: NDArray[np.float64], either: NDArray[np.float64]) -> NDArray[np.float64]:
    """Float64 (B, C), from float64 (N, C) counts; NaN for classes that no image shows."""
    below = weights @ either
    result: NDArray[np.float64] = np.divide(weights @ both, below, out=np.full_like(below, np.nan), where=below > 0)
    return result


def edit_distance(a: str, b: str) -> int:
    """Count the characters to insert, delete or replace that turn one text into the other (Levenshtein, 1966)."""
    row = list(range(len(b) + 1))
    for i, mine in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, theirs in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (mine != theirs))
    return row[-1]
