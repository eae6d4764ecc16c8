"""Metrics of segmentation: how far class maps overlap with the labels, or those of two models with each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import AccuracyGateError, DataError
from edge_sdk.core.frame import Segmentation
from edge_sdk_tools.datasets.dataset import MaskTruth, Truth
from edge_sdk_tools.evaluate.metrics import TaskMetrics, WorstImage, worst_images
from edge_sdk_tools.evaluate.model import Answer
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Observed, Participant
from edge_sdk_tools.evaluate.statistics import Metric, Statistic, Weights, quotient

UNKNOWN = 255
"""Class of pixels that are not labelled, or to which a model gives no class that is compared."""

_PIXELS_AT_ONCE = 250_000


class SegmentationMetrics(TaskMetrics):
    """Mean intersection over union of class maps."""

    agreement_metric = "mean_iou"
    agreement_name = "mIoU of class maps"
    noun = "class maps"

    def keep(self, answers: Answers, truth: Truth | None) -> Kept:
        """Keep the overlap of each class map with the labels, and of both maps with each other."""
        maps = [_class_map(*one) for one in answers]
        mask = _mask_of(truth, maps[0]) if isinstance(truth, MaskTruth) else None
        classes = len(answers[0][0].class_ids)
        rows = tuple(None if mask is None else overlap_of(class_map, mask, classes) for class_map in maps)
        return rows, overlap_of(maps[0], maps[1], classes) if len(maps) > 1 else None

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return the mean intersection over union with the labels."""
        overlaps = _overlaps(record.rows[which] for record in observed.records)
        if not any(overlap.either.any() for overlap in overlaps):
            raise DataError(f"nothing is labelled on {len(observed.records)} masks, expected classes and not only 255")
        return (Metric("mIoU", mean_iou(overlaps), is_gated=True),)

    def evidence(self, observed: Observed, *, labelled: bool) -> NDArray[np.float64] | None:
        """Return the mean intersection over union of each image with its labels; None without labels."""
        return _image_ious(record.rows[0] for record in observed.records) if labelled else None

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return the mean intersection over union of both models' maps."""
        between = _overlaps(record.between for record in observed.records)
        if not any(overlap.either.any() for overlap in between):
            names = " and ".join(p.subject.name for p in observed.participants)
            raise AccuracyGateError(
                f"{names} find nothing that both know on {len(between)} images, so nothing can be compared"
            )
        return (Metric(self.agreement_name, mean_iou(between)),)

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """Return the images with the lowest mIoU of both models' maps."""
        ious = _image_ious(record.between for record in observed.records)
        return worst_images(observed, 1 - ious, count, lambda i: (None, "", f"mIoU {ious[i]:.0%} with the teacher"))


def _overlaps(kept: Iterable[object]) -> list[Overlap]:
    return [one for one in kept if isinstance(one, Overlap)]


def _class_map(participant: Participant, answer: Answer) -> NDArray[np.uint8]:
    """Return the common class of every pixel, uint8 (H, W); `UNKNOWN` for classes that are not compared."""
    assert isinstance(answer.result, Segmentation)
    common = np.full(256, UNKNOWN, np.uint8)
    common[participant.class_ids] = np.arange(len(participant.class_ids))
    # Not indexing: NumPy would widen every pixel to eight bytes.
    return np.asarray(cv2.LUT(answer.result.to_frame(), common), np.uint8)


def _mask_of(truth: MaskTruth, answer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    mask = truth.read()
    if mask.shape != answer.shape:
        raise DataError(
            f"{truth.path}: mask of {mask.shape[1]}x{mask.shape[0]} pixels for an image of "
            f"{answer.shape[1]}x{answer.shape[0]}, expected the same"
        )
    return mask


def _image_ious(kept: Iterable[object]) -> NDArray[np.float64]:
    """Return the mean IoU of the classes that each image shows, 1 if it shows none: float64 (N,)."""
    one = np.ones((1, 1))
    return np.array([float(np.nan_to_num(mean_iou([overlap])(one), nan=1.0)[0]) for overlap in _overlaps(kept)])


class Overlap(msgspec.Struct, frozen=True, eq=False):
    """Numbers of pixels of one image by class, int64 (C,) each: in both maps, and in at least one of them."""

    both: NDArray[np.int64]
    either: NDArray[np.int64]


def overlap_of(answer: NDArray[np.uint8], truth: NDArray[np.uint8], classes: int) -> Overlap:
    """Count the pixels of two class maps, uint8 (H, W) each, except where the truth is `UNKNOWN`."""
    both, either = np.zeros(256, np.int64), np.zeros(256, np.int64)
    # Counting widens every pixel to eight bytes, so that a large image is counted some lines at a time.
    lines = max(1, _PIXELS_AT_ONCE // max(1, answer.shape[1]))
    for top in range(0, len(answer), lines):
        known = truth[top : top + lines] != UNKNOWN
        a, t = answer[top : top + lines][known], truth[top : top + lines][known]
        equal = np.bincount(a[a == t], minlength=256)
        both += equal
        either += np.bincount(a, minlength=256) + np.bincount(t, minlength=256) - equal
    return Overlap(both[:classes], either[:classes])


def mean_iou(overlaps: Sequence[Overlap]) -> Statistic:
    """Return the mean over the classes of their IoU over all images; classes that no image shows are left out."""
    both, either = (np.array([getattr(o, name) for o in overlaps], np.float64) for name in ("both", "either"))

    def statistic(weights: Weights) -> NDArray[np.float64]:
        ious = quotient(weights @ both, weights @ either)
        known = np.isfinite(ious)
        return quotient(np.where(known, ious, 0.0).sum(axis=1), known.sum(axis=1))

    return statistic
