"""Agreement: how far one model finds what another finds, on the same images, without any label.

Owns the matching and its figures. A reference that finds nothing is a failure, never an agreement of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import AccuracyGateError
from edge_sdk.core.frame import Detections, Result, Segmentation
from edge_sdk_tools.evaluate.average_precision import Boxes, box_overlaps
from edge_sdk_tools.evaluate.classification import divergences, restricted, top_columns
from edge_sdk_tools.evaluate.observe import Observed
from edge_sdk_tools.evaluate.resampling import Metric, mean_of, ratio_of, share_metric
from edge_sdk_tools.evaluate.segmentation import mean_iou

MATCH_IOU = 0.5
_DESCRIBED = 3


def agreement_metrics(observed: Observed) -> tuple[Metric, ...]:
    """How far the first of two models agrees with the second; what a gate judges stands first.

    Raises:
        AccuracyGateError: when the second finds nothing on any image, or neither finds what both know.
    """
    if observed.task == "classification":
        rows, reference = class_rows(observed, 0), class_rows(observed, 1)
        return (
            share_metric("top-1 agreement", said(observed, 0) == said(observed, 1)),
            Metric("KL divergence (nats)", mean_of(divergences(reference, rows)), bounds=(0.0, math.inf)),
        )
    if observed.task == "detection":
        found = pair_counts(observed)
        if not found[:, 2].any():
            raise AccuracyGateError(_found_nothing(observed, "thresholds.confidence"))
        return (Metric("detections matched (F1)", ratio_of(2 * found[:, 0], found[:, 1] + found[:, 2])),)
    between = [record.between for record in observed.records if record.between is not None]
    if not any(overlap.either.any() for overlap in between):
        names = " and ".join(p.subject.name for p in observed.participants)
        raise AccuracyGateError(
            f"{names} find nothing that both know on {len(between)} images, so nothing can be compared"
        )
    return (Metric("mIoU of both", mean_iou(between)),)


def class_rows(observed: Observed, which: int) -> NDArray[np.float64]:
    """A classifier's probabilities of what both can say, each row's sum 1.

    Returns:
        float64 (N, K), of the common classes; (N, K + 1) when both have a background, which stands last.
    """
    common = observed.classes + all(p.subject.background for p in observed.participants)
    return restricted(observed.probabilities(which), np.arange(common))


def said(observed: Observed, which: int) -> NDArray[np.int64]:
    """What a classifier holds for the likeliest: a common class, or K for its background; int64 (N,)."""
    return top_columns(observed.probabilities(which))


def found_boxes(observed: Observed, which: int) -> list[Boxes]:
    """What a detector found in each image, down to the threshold of its own model.toml."""
    confidence = observed.participants[which].subject.spec.thresholds.confidence
    rows = [record.rows[which] for record in observed.records]
    return [row.above(confidence) for row in rows if isinstance(row, Boxes)]


def pair_counts(observed: Observed) -> NDArray[np.float64]:
    """Float64 (N, 3), of each image: detections matched, the first model's, the second's."""
    pairs = zip(found_boxes(observed, 0), found_boxes(observed, 1), strict=True)
    return np.array([(len(match(a, b)), len(a.confidences), len(b.confidences)) for a, b in pairs], np.float64).reshape(
        -1, 3
    )


def match(got: Boxes, expected: Boxes, iou: float = MATCH_IOU) -> list[tuple[int, int]]:
    """Pairs of detections, one to one: same class, overlap at least `iou`, most confident of `got` first."""
    if not len(got.confidences) or not len(expected.confidences):
        return []
    overlaps = box_overlaps(got.boxes_xyxy, expected.boxes_xyxy, np.zeros(len(expected.confidences), np.bool_))
    overlaps[got.class_ids[:, None] != expected.class_ids[None, :]] = 0.0
    pairs = []
    for index, row in enumerate(overlaps):
        best = int(row.argmax())
        if row[best] >= iou:
            pairs.append((index, best))
            overlaps[:, best] = 0.0
    return pairs


def describe(result: Result, labels: Sequence[str], *, background_class: bool = False) -> str:
    """What a result says, for people: the strongest three, by the first of their names."""
    shift = 1 if background_class else 0
    if isinstance(result, Segmentation):
        order = np.argsort(-result.shares, kind="stable")
        order = order[result.shares[order] > 0]
        pairs = [(int(c), float(result.shares[c])) for c in order]
    else:
        pairs = [(int(c), float(p)) for c, p in zip(result.class_ids, result.confidences, strict=True)]
    named = [f"{labels[class_id + shift].split(',')[0]} {share:.0%}" for class_id, share in pairs[:_DESCRIBED]]
    more = len(pairs) - len(named)
    found = ", ".join(named) or "nothing"
    return f"{found} and {more} more" if more > 0 and isinstance(result, Detections) else found


def _found_nothing(observed: Observed, key: str) -> str:
    name = observed.participants[1].subject.name
    return (
        f"{name} finds nothing on {len(observed.records)} evaluation images, so nothing can be compared; give "
        f"images that show what it detects, or lower its {key}"
    )
