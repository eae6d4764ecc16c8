"""Intersection over union of class maps, image by image, so that it can be resampled.

The module computes the counts and their mean; the caller gives the class maps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.evaluate.statistics import Statistic, Weights

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
