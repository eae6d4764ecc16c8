"""Detection: candidate boxes -> non-maximum suppression -> boxes in the frame's own pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import Thresholds
from edge_sdk.core.frame import Detections, Inferred, Tensor
from edge_sdk.core.opencv import cv2
from edge_sdk.tasks.arrays import Finite, are_finite

MAX_CANDIDATES = 1000  # the strongest go on; a frame of noise must not cost a second of suppression
_MAX_DETECTIONS = 300
_NONE = np.empty(0, np.int64)
_NO_BOXES, _NO_CONFIDENCES = np.empty((0, 4), np.float32), np.empty(0, np.float32)
# exp(20) is beyond any picture; larger logits are noise that would overflow.
MAX_SIZE_LOGIT = np.float32(20)
_HALF = np.float32(0.5)


class Candidates(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Boxes that may count: overlaps are not suppressed yet, nor are those below the confidence threshold.

    Attributes:
        boxes_xywh: float32 (N, 4), left, top, width, height in pixels of the model's input.
        confidences: float32 (N,), 0-1.
        class_ids: int64 (N,).
        highest: the largest of all numbers that the decoder was given, NaN where one of them is; None where it did not
            look at all of them.
    """

    boxes_xywh: NDArray[np.float32]
    confidences: NDArray[np.float32]
    class_ids: NDArray[np.int64]
    highest: float | None = None


NO_CANDIDATES = Candidates(_NO_BOXES, _NO_CONFIDENCES, _NONE)


class Decode(Protocol):
    """Reads one family of heads."""

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Candidates of batch 1, from the outputs in the decoder's own order."""
        ...


class Detect:
    """The decode stage of a detector; not for several threads at once.

    Args:
        decode: reads this model's heads.
        places: which of the model's outputs it reads, in its own order.
        thresholds: confidence, and iou, above which the weaker box of a class goes.
    """

    def __init__(self, decode: Decode, places: Sequence[int], thresholds: Thresholds) -> None:
        self._decode = decode
        self._places = tuple(places)
        self._thresholds = thresholds
        self._finite = Finite()

    def __call__(self, inferred: Inferred, /) -> Detections:
        """Read the heads of one frame."""
        prepared = inferred.prepared
        outputs = inferred.outputs
        candidates = self._decode([outputs[place] for place in self._places])
        if not len(candidates.confidences):
            is_finite = self._are_numbers(candidates.highest, outputs)
            return Detections(prepared.frame, inferred.inference_ns, _NO_BOXES, _NO_CONFIDENCES, _NONE, is_finite)
        keep = suppress(candidates, self._thresholds)
        boxes = candidates.boxes_xywh[keep]
        boxes[:, 2:] += boxes[:, :2]
        boxes = prepared.geometry.boxes_to_frame(boxes, prepared.frame.size_wh)
        has_area = boxes[:, 2:] > boxes[:, :2]
        if np.count_nonzero(has_area) < has_area.size:  # what lies wholly in the padding has none in the frame
            seen = has_area.all(axis=1)
            boxes, keep = boxes[seen], keep[seen]
        return Detections(
            prepared.frame,
            inferred.inference_ns,
            boxes,
            candidates.confidences[keep],
            candidates.class_ids[keep],
            self._finite(candidates.confidences, outputs),
        )

    def _are_numbers(self, highest: float | None, outputs: Sequence[Tensor]) -> bool:
        """Whether outputs in which nothing was found are numbers, as far as `highest` does not say it.

        `highest` vouches for the places that the decoder read.
        """
        seen = () if highest is None else self._places
        rest = [output for place, output in enumerate(outputs) if place not in seen]
        return (highest is None or math.isfinite(highest)) and are_finite(rest)


def rows_of(counts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Which rows of bool (N, classes), C-contiguous, hold a True.

    Its cost is that of one pass and of the Trues: in a quarter of the time of each row's maximum.
    """
    rows = np.flatnonzero(counts) // counts.shape[1]
    return rows if len(rows) < 2 else np.unique(rows)


def strongest(confidences: NDArray[np.float32]) -> NDArray[np.int64]:
    """Which of float32 (N,) suppression looks at, in their own order: int64 (M,); of equal ones the first."""
    order: NDArray[np.int64] = np.argsort(-confidences, kind="stable")[:MAX_CANDIDATES]
    order.sort()
    return order


def sizes_of(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The exponential, of what would overflow a very large number."""
    sizes: NDArray[np.float32] = np.exp(np.minimum(logits, MAX_SIZE_LOGIT))
    return sizes


def corner_boxes(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Float32 (N, 4+), centre and size first -> (N, 4), left, top, width, height."""
    boxes: NDArray[np.float32] = rows[:, :4].copy()
    boxes[:, :2] -= boxes[:, 2:] * _HALF
    return boxes


def suppress(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Class by class, keep the most confident box of each overlapping group.

    Returns:
        int64 (M,), which candidates stay, most confident first.
    """
    boxes = candidates.boxes_xywh
    if not len(boxes):
        return _NONE
    if not math.isfinite(boxes.sum()):
        return _suppress_finite(candidates, thresholds)
    if len(boxes) > MAX_CANDIDATES:
        # OpenCV would leave the same ones out, after it has read them all.
        chosen = strongest(candidates.confidences)
        return chosen[suppress(_some_of(candidates, chosen), thresholds)]
    lowest = boxes[:, :2].min()
    if lowest < 0:
        # OpenCV tells classes apart by moving each behind the largest coordinate of the one before: what is negative
        # would reach back into another class.
        boxes = boxes.copy()
        boxes[:, :2] -= lowest
    kept = cv2.dnn.NMSBoxesBatched(
        boxes.tolist(),
        candidates.confidences.tolist(),
        candidates.class_ids.tolist(),
        # OpenCV keeps what is greater, as float32; what is equal counts here too.
        float(np.nextafter(np.float32(thresholds.confidence), np.float32(-1))),
        thresholds.iou,
        1.0,
        MAX_CANDIDATES,
    )
    return np.asarray(kept, np.int64).reshape(-1)[:_MAX_DETECTIONS]


def _suppress_finite(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Leave boxes out that are no boxes: one of infinite size would suppress all others."""
    finite = np.isfinite(candidates.boxes_xywh).all(axis=1).nonzero()[0]
    return finite[suppress(_some_of(candidates, finite), thresholds)]


def _some_of(candidates: Candidates, chosen: NDArray[np.int64]) -> Candidates:
    return Candidates(candidates.boxes_xywh[chosen], candidates.confidences[chosen], candidates.class_ids[chosen])
