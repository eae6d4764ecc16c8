"""Agreement: how far one model finds what another finds, on the same images.

Owns the metric and its arithmetic. A reference that finds nothing is a failure, never an agreement of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import AccuracyGateError
from edge_sdk.frame import Classification, Detections, Frame, Result
from edge_sdk.manifest import Agreement
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session
from edge_sdk.tasks import Task
from edge_sdk_tools.dataset import ImageSet

MATCH_IOU = 0.5
_DESCRIBED = 3


class Model:
    """A session with its prepare and decode stages: image in, result out."""

    def __init__(self, session: Session, prepare: Prepare, task: Task) -> None:
        self._session, self._prepare, self._task = session, prepare, task

    def __call__(self, image: NDArray[np.uint8]) -> Result:
        """Run one uint8 (H, W, 3) BGR image."""
        return self._task(self._session(self._prepare(Frame(image, 0, 0.0, 0, "evaluation"))))


def measure_agreement(
    candidate: Model, reference: Model, images: ImageSet, on_image: Callable[[int], None] = lambda _: None
) -> Agreement:
    """Run both models on every image and compare.

    Args:
        candidate: the model in question.
        reference: what it is measured against.
        images: not used for calibration.
        on_image: called after each image with the number done.

    Returns:
        For classifiers the share of equal top-1 classes; for detectors the F1 score of detections of the same class,
        matched one to one at IoU .5: 2 * matched / (candidate's + reference's).

    Raises:
        AccuracyGateError: when the reference finds nothing on any image.
    """
    matched = found = wanted = 0
    detector = False
    for number, file in enumerate(images.images, start=1):
        image = file.read()
        expected, got = reference(image), candidate(image)
        if isinstance(expected, Detections) and isinstance(got, Detections):
            detector = True
            matched += match_detections(got, expected)
            found += len(got.confidences)
            wanted += len(expected.confidences)
        elif isinstance(expected, Classification) and isinstance(got, Classification):
            matched += int(got.class_ids[0] == expected.class_ids[0])
            found, wanted = found + 1, wanted + 1
        on_image(number)
    if wanted == 0:
        raise AccuracyGateError(
            f"the FP32 model finds nothing on {len(images)} evaluation images, so nothing can be compared; "
            "give images that show what it detects, or lower thresholds.confidence"
        )
    value = 2 * matched / (found + wanted)
    metric = "detection_f1" if detector else "top1_agreement"
    return Agreement(metric, value, len(images), wanted)  # type: ignore[arg-type]


def describe(result: Result, labels: Sequence[str], *, background_class: bool = False) -> str:
    """What a result says, for people: the strongest three, by the first of their names."""
    shift = 1 if background_class else 0
    named = [
        f"{labels[class_id + shift].split(',')[0]} {confidence:.0%}"
        for class_id, confidence in zip(result.class_ids[:_DESCRIBED], result.confidences, strict=False)
    ]
    more = len(result.class_ids) - len(named)
    found = ", ".join(named) or "nothing"
    return f"{found} and {more} more" if more > 0 and isinstance(result, Detections) else found


def match_detections(got: Detections, expected: Detections, iou: float = MATCH_IOU) -> int:
    """How many detections match one to one: same class, IoU at least `iou`, most confident of `got` first."""
    if not len(got.confidences) or not len(expected.confidences):
        return 0
    overlaps = box_iou(got.boxes_xyxy, expected.boxes_xyxy)
    overlaps[got.class_ids[:, None] != expected.class_ids[None, :]] = 0.0
    matched = 0
    for row in overlaps:
        best = int(row.argmax())
        if row[best] >= iou:
            matched += 1
            overlaps[:, best] = 0.0
    return matched


def box_iou(a_xyxy: NDArray[np.float32], b_xyxy: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intersection over union of every pair: float32 (N, 4) and (M, 4) -> (N, M), 0-1."""
    top_left = np.maximum(a_xyxy[:, None, :2], b_xyxy[None, :, :2])
    bottom_right = np.minimum(a_xyxy[:, None, 2:], b_xyxy[None, :, 2:])
    overlap = np.prod(np.clip(bottom_right - top_left, 0, None), axis=2)
    area_a = np.prod(a_xyxy[:, 2:] - a_xyxy[:, :2], axis=1)
    area_b = np.prod(b_xyxy[:, 2:] - b_xyxy[:, :2], axis=1)
    union = area_a[:, None] + area_b[None, :] - overlap
    result: NDArray[np.float32] = np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)
    return result
