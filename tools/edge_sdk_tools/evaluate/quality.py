"""Quality against labels: the figures of one model, as functions of how often each image counts.

Owns which figures a task has; the arithmetic of each stands in a file of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk_tools.dataset import BoxTruth, ClassTruth
from edge_sdk_tools.evaluate.average_precision import (
    AveragePrecision,
    Boxes,
    Judged,
    LabelledBoxes,
    judge,
)
from edge_sdk_tools.evaluate.classification import ranks_of
from edge_sdk_tools.evaluate.observe import Observed
from edge_sdk_tools.evaluate.resampling import Metric, share_metric
from edge_sdk_tools.evaluate.segmentation import Overlap, mean_iou

TOP_K = (1, 5)


def quality_metrics(observed: Observed, which: int = 0) -> tuple[Metric, ...]:
    """Figures of one of the models against the labels; what a gate judges stands first.

    Raises:
        DataError: detection images or masks on which nothing is labelled.
    """
    if observed.task == "classification":
        places = class_places(observed, which)
        return tuple(share_metric(f"top-{k}", places < k) for k in TOP_K if k == 1 or k < observed.classes)
    if observed.task == "detection":
        curve = AveragePrecision(judged_boxes(observed, which))
        if not len(curve.class_ids):
            raise DataError(f"nothing is labelled on {len(observed.records)} images, expected boxes on some of them")
        return (
            Metric("mAP50-95", curve.mean()),
            Metric("mAP50", curve.mean(1)),
        )
    overlaps = [row for row in (record.rows[which] for record in observed.records) if isinstance(row, Overlap)]
    if not any(overlap.either.any() for overlap in overlaps):
        raise DataError(f"nothing is labelled on {len(observed.records)} masks, expected classes and not only 255")
    return (Metric("mIoU", mean_iou(overlaps)),)


def true_classes(observed: Observed) -> NDArray[np.int64]:
    """The class of every image, int64 (N,)."""
    return np.array([t.class_id for t in observed.dataset.truths or () if isinstance(t, ClassTruth)], np.int64)


def class_places(observed: Observed, which: int) -> NDArray[np.int64]:
    """At which place each image's class stands in a classifier's answer, 0 for the likeliest; int64 (N,)."""
    return ranks_of(observed.probabilities(which), true_classes(observed))


def judged_boxes(observed: Observed, which: int, *, confident: bool = False) -> list[Judged]:
    """A detector's boxes against the labels, image by image.

    Args:
        observed: detectors on labelled images.
        which: of the models.
        confident: only what its own model.toml lets through, and not the whole curve.
    """
    least = observed.participants[which].subject.spec.thresholds.confidence if confident else 0.0
    judged = []
    for record, truth in zip(observed.records, observed.dataset.truths or (), strict=True):
        boxes = record.rows[which]
        if isinstance(boxes, Boxes) and isinstance(truth, BoxTruth):
            labelled = LabelledBoxes(truth.in_pixels(record.size_wh), truth.class_ids, truth.crowd)
            judged.append(judge(boxes.above(least), labelled))
    return judged
