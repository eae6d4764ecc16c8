"""COCO's average precision: what pycocotools' COCOeval computes for objects of every size, resampled in one go.

The module matches detections with labelled objects, by boxes or by a detail, and computes the area under the curve. No
library is used, because an interval needs the metric a thousand times over resampled images, see docs/adr/0013.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.evaluate.likeness import MATCH, MAX_DETECTIONS, Detail, LabelledBoxes, Likeness, box_overlaps
from edge_sdk_tools.evaluate.statistics import Statistic, Weights, quotient

IOUS = np.linspace(MATCH, 0.95, 10)
"""COCO's thresholds of overlap; the first is the one of mAP50."""

_RECALLS = np.linspace(0.0, 1.0, 101)
_EPSILON = np.spacing(1.0)
_TELLING = 0.01
_CHUNK = 8_000_000  # numbers in an array: 64 MB


class Boxes(msgspec.Struct, frozen=True, eq=False):
    """Boxes that a detector found in one image, (N, 4), in its pixels, with confidences and class ids, (N,) each.

    With them is the `detail` that the detector tells of objects, and its `likeness` to that of the labelled ones.
    """

    boxes_xyxy: NDArray[np.float64]
    confidences: NDArray[np.float64]
    class_ids: NDArray[np.int64]
    likeness: Likeness | None = None
    detail: Detail | None = None

    def above(self, confidence: float) -> Boxes:
        """Return the boxes with at least this confidence."""
        keep = self.confidences >= confidence
        likeness = self.likeness and self.likeness._replace(values=self.likeness.values[keep])
        return Boxes(self.boxes_xyxy[keep], self.confidences[keep], self.class_ids[keep], likeness, self.detail)


class Judged(msgspec.Struct, frozen=True, eq=False):
    """The detections of one image, each right or wrong at every threshold of overlap.

    Attributes:
        right: bool (N, 10).
        ignored: bool (N, 10), whether the detection matched an object that need not be found, such as a crowd.
        wanted_class_ids: int64 (W,), class ids of the objects that must be found.
        found: bool (W, 10), whether a detection matched each of these.
    """

    confidences: NDArray[np.float64]
    class_ids: NDArray[np.int64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    wanted_class_ids: NDArray[np.int64]
    found: NDArray[np.bool_]

    @property
    def pooled(self) -> Judged:
        """These detections as if of one class, without the least confident ones, which change nothing but the time."""
        keep = self.confidences >= _TELLING
        return msgspec.structs.replace(
            self,
            confidences=self.confidences[keep],
            class_ids=np.zeros(int(keep.sum()), np.int64),
            right=self.right[keep],
            ignored=self.ignored[keep],
            wanted_class_ids=np.zeros_like(self.wanted_class_ids),
        )


def judge(boxes: Boxes, labelled: LabelledBoxes, likeness: Likeness | None = None) -> Judged:
    """Match the detections of one image with its labelled objects, class by class, most confident first.

    They are matched by `likeness` where it is given, else by the IoU of their boxes.
    """
    excused = labelled.crowd
    if likeness is None:
        overlaps, most = box_overlaps(boxes.boxes_xyxy, labelled.boxes_xyxy, labelled.crowd), MAX_DETECTIONS
    else:
        overlaps, most = likeness.values, likeness.detail.most
        if likeness.no_points is not None:
            excused = excused | likeness.no_points
    order = _strongest(boxes, most)
    class_ids = boxes.class_ids[order]
    right = np.zeros((len(order), len(IOUS)), np.bool_)
    ignored = np.zeros_like(right)
    found = np.zeros((len(labelled.class_ids), len(IOUS)), np.bool_)
    for class_id in np.intersect1d(class_ids, labelled.class_ids):
        mine = (class_ids == class_id).nonzero()[0]
        theirs = (labelled.class_ids == class_id).nonzero()[0]
        pairs = overlaps[np.ix_(order[mine], theirs)]
        right[mine], ignored[mine], found[theirs] = _match(pairs, excused[theirs], labelled.crowd[theirs])
    wanted = labelled.class_ids[~excused]
    return Judged(boxes.confidences[order], class_ids, right, ignored, wanted, found[~excused])


def _strongest(boxes: Boxes, most: int) -> NDArray[np.int64]:
    """Return the indices of the `most` surest boxes of each class, all in the order of their confidence."""
    order = np.argsort(-boxes.confidences, kind="stable")
    classes = boxes.class_ids[order]
    kept = [(classes == class_id).nonzero()[0][:most] for class_id in np.unique(classes)]
    strongest: NDArray[np.int64] = order[np.sort(np.concatenate([*kept, np.empty(0, np.int64)]))]
    return strongest


def _match(
    overlaps: NDArray[np.float64], excused: NDArray[np.bool_], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Match each detection, at every threshold, with the free object that it overlaps most, or else an excused one.

    Returns `right` and `ignored`, bool (N, 10), of the detections, and `found`, bool (M, 10), of the objects.
    """
    count, objects = overlaps.shape
    thresholds = np.minimum(IOUS, 1 - 1e-10)
    taken = np.zeros((objects, len(IOUS)), np.bool_)
    right, ignored = np.zeros((count, len(IOUS)), np.bool_), np.zeros((count, len(IOUS)), np.bool_)
    columns = np.arange(len(IOUS))
    for index, overlap in enumerate(overlaps):
        if not (overlap >= thresholds[0]).any():
            continue
        free = (overlap[:, None] >= thresholds) & (~taken | crowd[:, None])  # a crowd takes any number
        right[index] = (free & ~excused[:, None]).any(axis=0)
        free &= ~(excused[:, None] & right[index])
        matched = free.any(axis=0)
        ignored[index] = matched & ~right[index]
        # Of equal overlaps the last object is taken, as by COCOeval.
        best = objects - 1 - np.where(free, overlap[:, None], -1.0)[::-1].argmax(axis=0)
        taken[best[matched], columns[matched]] = True
    return right, ignored, taken


class AveragePrecision:
    """Average precision of one detector over N images, as a function of how often each image counts."""

    def __init__(self, judged: Sequence[Judged]) -> None:
        images = np.repeat(np.arange(len(judged)), [len(j.confidences) for j in judged])
        confidences = np.concatenate([j.confidences for j in judged])
        class_ids = np.concatenate([j.class_ids for j in judged])
        right = np.concatenate([j.right for j in judged])
        counts = ~np.concatenate([j.ignored for j in judged])
        wanted = [j.wanted_class_ids for j in judged]
        self.class_ids = np.unique(np.concatenate(wanted))  # int64 (K,), with a label in any image
        self._wanted = np.array([(ids == self.class_ids[:, None]).sum(axis=1) for ids in wanted], np.float64).T
        self._classes = []
        for class_id in self.class_ids:
            mine = (class_ids == class_id).nonzero()[0]
            mine = mine[np.argsort(-confidences[mine], kind="stable")]
            self._classes.append(_Class(images[mine], right[mine], counts[mine]))
        self._rows = max(1, _CHUNK // max([1, *(len(one.images) for one in self._classes)]))
        self._seen: tuple[Weights, NDArray[np.float64]] | None = None

    def mean(self, ious: int = len(IOUS)) -> Statistic:
        """Return mAP over the first `ious` thresholds of `IOUS`: 1 for mAP50, all for mAP50-95."""
        return lambda weights: self._by_iou(weights)[:, :ious].mean(axis=1)

    def _by_iou(self, weights: Weights) -> NDArray[np.float64]:
        """Return the mean over the labelled classes, float64 (B, 10), cached for both metrics and their differences."""
        if self._seen is None or self._seen[0] is not weights:
            parts = [self._chunk(weights[i : i + self._rows]) for i in range(0, len(weights), self._rows)]
            self._seen = weights, np.concatenate(parts)
        return self._seen[1]

    def _chunk(self, weights: Weights) -> NDArray[np.float64]:
        wanted = weights @ self._wanted.T
        known = wanted > 0

        def area(which: int) -> NDArray[np.float64]:
            rows = known[:, which]
            return self._classes[which].average_precision(weights[rows], wanted[rows, which])

        total = np.zeros((len(weights), len(IOUS)))
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # numpy releases the GIL
            for which, areas in enumerate(threads.map(area, range(len(self._classes)))):
                total[known[:, which]] += areas
        return quotient(total, known.sum(axis=1, keepdims=True))


class _Class(msgspec.Struct, frozen=True, eq=False):
    """All detections of one class, most confident first: image (D,), right (D, 10), counts (D, 10)."""

    images: NDArray[np.int64]
    right: NDArray[np.bool_]
    counts: NDArray[np.bool_]

    def average_precision(self, weights: Weights, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return average precision at every threshold, float64 (B, 10); `wanted` counts the objects, float64 (B,)."""
        areas = np.zeros((len(weights), len(IOUS)))
        if not self.right.any() or not len(weights):
            return areas
        table, start = _reached_by(wanted)
        of_image = weights[:, self.images]
        judged = np.cumsum(of_image, axis=1) if self.counts.all() else None
        for iou in range(len(IOUS)):
            # Precision rises only at correct detections: wrong ones are only counted and need no column.
            columns = self.right[:, iou].nonzero()[0]
            below = judged if judged is not None else np.cumsum(of_image * self.counts[:, iou], axis=1)
            found = np.cumsum(of_image[:, columns], axis=1)
            areas[:, iou] = _area(found, below[:, columns], table[start + found.astype(np.int64)])
        return areas


def _reached_by(wanted: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a table: how many of 101 recalls true positives reach; and where 0 of `wanted` is in it, int64 (B, 1)."""
    sizes, places = np.unique(wanted.astype(np.int64), return_inverse=True)
    tables = [np.searchsorted(_true_positives_for(size), np.arange(size + 1), side="right") for size in sizes]
    return np.concatenate(tables), (np.cumsum(sizes + 1) - sizes - 1)[places][:, None]


def _area(right: NDArray[np.float64], judged: NDArray[np.float64], reached: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of the precision at 101 recalls: each the best at any higher recall, 0 if none is reached.

    `right` and `judged`, float64 (B, D), are the true positives and all positives down to each correct detection;
    `reached`, int64 (B, D), says how many recalls these true positives reach.
    """
    precision = right / (judged + _EPSILON)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    newly = np.diff(reached, axis=1, prepend=0)
    area: NDArray[np.float64] = (best * newly).sum(axis=1) / len(_RECALLS)
    return area


def _true_positives_for(wanted: int) -> NDArray[np.float64]:
    """Return the least whole numbers whose floating-point share of `wanted` reaches each recall; (101,)."""
    needed: NDArray[np.float64] = np.ceil(_RECALLS * wanted)
    needed -= (needed - 1) / wanted >= _RECALLS
    needed += needed / wanted < _RECALLS
    return needed
