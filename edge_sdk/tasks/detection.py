"""Detection: candidate boxes -> non-maximum suppression -> boxes in the frame's own pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.frame import Detections, Inferred, Tensor
from edge_sdk.model_spec import Thresholds

_MAX_CANDIDATES = 1000  # the strongest go on; a frame of noise must not cost a second of suppression
_MAX_DETECTIONS = 300


class Candidates(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Boxes above the confidence threshold, overlaps not yet suppressed.

    Attributes:
        boxes_xyxy: float32 (N, 4), pixels of the model's input.
        confidences: float32 (N,), 0-1.
        class_ids: int64 (N,).
    """

    boxes_xyxy: NDArray[np.float32]
    confidences: NDArray[np.float32]
    class_ids: NDArray[np.int64]


class Decode(Protocol):
    """Reads one family of heads."""

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Candidates of batch 1."""
        ...


class Detect:
    """The decode stage of a detector.

    Args:
        decode: reads this model's heads.
        thresholds: confidence (already applied by `decode`) and iou, above which the weaker box of a class goes.
    """

    def __init__(self, decode: Decode, thresholds: Thresholds) -> None:
        self._decode = decode
        self._iou = thresholds.iou

    def __call__(self, inferred: Inferred, /) -> Detections:
        """Read the heads of one frame."""
        prepared = inferred.prepared
        found = suppress(self._decode(inferred.outputs), self._iou)
        boxes = prepared.geometry.boxes_to_frame(found.boxes_xyxy, prepared.frame.size_wh)
        return Detections(prepared.frame, inferred.inference_ns, boxes, found.confidences, found.class_ids)


def suppress(candidates: Candidates, iou: float) -> Candidates:
    """Class by class, keep the most confident box of each overlapping group; most confident first."""
    order = np.argsort(-candidates.confidences, kind="stable")[:_MAX_CANDIDATES]
    boxes, confidences, class_ids = (
        candidates.boxes_xyxy[order],
        candidates.confidences[order],
        candidates.class_ids[order],
    )
    if len(order) > 1:
        sizes = boxes.copy()
        sizes[:, 2:] -= sizes[:, :2]
        # The score threshold lies below every score: decode has thresholded already.
        kept = cv2.dnn.NMSBoxesBatched(sizes.tolist(), confidences.tolist(), class_ids.tolist(), -1.0, iou)
        keep = np.sort(np.asarray(kept, np.int64).reshape(-1))[:_MAX_DETECTIONS]
        boxes, confidences, class_ids = boxes[keep], confidences[keep], class_ids[keep]
    return Candidates(boxes, confidences, class_ids)
