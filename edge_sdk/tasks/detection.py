"""Detection: candidate boxes -> non-maximum suppression -> boxes in the frame's own pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Detections, Inferred, Prepared, Tensor
from edge_sdk.core.opencv import cv2
from edge_sdk.tasks.boxes import MAX_CANDIDATES, NO_CANDIDATES, Candidates, Floats, strongest
from edge_sdk.tasks.spec import Thresholds

_MAX_DETECTIONS = 300
_CHECKED_A_FRAME = 4096
"""Values checked for NaN a frame, on average: a quarter of a microsecond, where decoding takes 40 to 180."""


Decode: TypeAlias = Callable[[Sequence[Tensor]], Candidates]
"""Reads the outputs of one family of detectors, batch 1, in the decoder's own order."""

Keep: TypeAlias = Callable[[Candidates, Thresholds], NDArray[np.int64]]
"""Returns the indices of candidates that no stronger one of their class hides, the most confident first."""


class Detect:
    """The decode stage of a detector; not for several threads at once.

    Confidences are checked for NaN in every frame, all other outputs in the first frame with objects and in every n-th:
    a model that gives NaN in some places gives it again and again. YOLOv8 at 640 pixels is checked in every 172nd frame
    with objects. After a frame with a fault every frame is checked, until there is none.

    Args:
        decode: reads the outputs. Where objects have keypoints or masks, its attribute `details` reads these, as in
            `tasks.instances`.
        places: indices of the model's outputs that the decoder reads, in its own order.
        keep: which of the candidates remain.
    """

    def __init__(self, decode: Decode, places: Sequence[int], thresholds: Thresholds, keep: Keep) -> None:
        self._decode = decode
        self._details = getattr(decode, "details", None)
        self._keep = keep
        self._places = tuple(places)
        self._thresholds = thresholds
        self._unchecked_left = 0  # frames until all outputs are checked again
        self.names: Mapping[int, str] = {}  # labels by class id, for the results

    def __call__(self, inferred: Inferred, /) -> Detections:
        """Read the outputs of one frame."""
        prepared = inferred.prepared
        outputs = inferred.outputs
        read = [outputs[place] for place in self._places]
        candidates = self._decode(read)
        confidences, class_ids = candidates.confidences, candidates.class_ids
        if not len(confidences):
            is_finite = self._is_finite_empty(candidates.highest, outputs)
            none = NO_CANDIDATES
            more = self._read_details(read, None, prepared)
            found = none.boxes_xywh, none.confidences, none.class_ids
            return Detections(
                prepared.frame, inferred.inference_ns, *found, is_finite=is_finite, names=self.names, **more
            )
        keep = suppress(candidates, self._thresholds, self._keep)
        boxes = candidates.boxes_xywh[keep]
        boxes[:, 2:] += boxes[:, :2]
        boxes = prepared.geometry.boxes_to_frame(boxes, prepared.frame.size_wh)
        has_area = boxes[:, 2:] > boxes[:, :2]
        if np.count_nonzero(has_area) < has_area.size:  # boxes wholly in the padding have no area in the frame
            seen = has_area.all(axis=1)
            boxes, keep = boxes[seen], keep[seen]
        return Detections(
            prepared.frame,
            inferred.inference_ns,
            boxes,
            confidences[keep],
            class_ids[keep],
            self._is_finite(confidences, outputs),
            names=self.names,
            **self._read_details(read, None if candidates.extras is None else candidates.extras[keep], prepared),
        )

    def _read_details(self, outputs: Sequence[Tensor], extras: Floats | None, prepared: Prepared) -> dict[str, Any]:
        if self._details is None:
            return {}
        none = np.empty((0, self._details.width), np.float32)
        details: dict[str, Any] = self._details(outputs, none if extras is None else extras, prepared)
        return details

    def _is_finite(self, confidences: NDArray[np.float32], outputs: Sequence[Tensor]) -> bool:
        """Tell whether the checked outputs of a frame with candidates are finite."""
        if not math.isfinite(np.vdot(confidences, confidences)):
            return False
        self._unchecked_left -= 1
        if self._unchecked_left > 0:
            return True
        is_finite = are_finite(outputs)
        self._unchecked_left = sum(output.size for output in outputs) // _CHECKED_A_FRAME if is_finite else 0
        return is_finite

    def _is_finite_empty(self, highest: float | None, outputs: Sequence[Tensor]) -> bool:
        """Tell whether the outputs of a frame without candidates are finite.

        `highest` is the largest value of the outputs that the decoder read; None: unknown.
        """
        seen = () if highest is None else self._places
        rest = [output for place, output in enumerate(outputs) if place not in seen]
        return (highest is None or math.isfinite(highest)) and are_finite(rest)


def are_finite(outputs: Sequence[Tensor]) -> bool:
    """Tell whether no value is NaN or infinite; minus infinity is allowed, because some models use it for "never"."""
    return all(math.isfinite(output.max()) for output in outputs if output.size)


def keep_all(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Keep what is confident enough, for models that have suppressed overlaps themselves."""
    order: NDArray[np.int64] = np.argsort(-candidates.confidences, kind="stable")
    return order[candidates.confidences[order] >= np.float32(thresholds.confidence)]


def keep_upright(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Keep what overlaps no stronger box by more than `thresholds.iou` of both, as OpenCV does."""
    boxes = candidates.boxes_xywh
    lowest = boxes[:, :2].min()
    if lowest < 0:
        # OpenCV separates classes by moving each behind the largest coordinate of the one before, so negative
        # coordinates would reach into another class.
        boxes = boxes.copy()
        boxes[:, :2] -= lowest
    kept = cv2.dnn.NMSBoxesBatched(
        boxes.tolist(),
        candidates.confidences.tolist(),
        candidates.class_ids.tolist(),
        # OpenCV keeps only greater float32 confidences; here equal ones count, too.
        float(np.nextafter(np.float32(thresholds.confidence), np.float32(-1))),
        thresholds.iou,
        1.0,
        MAX_CANDIDATES,
    )
    return np.asarray(kept, np.int64).reshape(-1)


def suppress(candidates: Candidates, thresholds: Thresholds, keep: Keep = keep_upright) -> NDArray[np.int64]:
    """Keep, class by class, the most confident box of each overlapping group.

    Returns:
        int64 (M,), indices of the kept candidates, most confident first.
    """
    boxes = candidates.boxes_xywh
    if not len(boxes):
        return NO_CANDIDATES.class_ids
    if not math.isfinite(boxes.sum()):
        # Infinite boxes are left out, because one would suppress all others.
        chosen = np.isfinite(boxes).all(axis=1).nonzero()[0]
        return chosen[suppress(_some_of(candidates, chosen), thresholds, keep)]
    if len(boxes) > MAX_CANDIDATES:
        # OpenCV would drop the same ones, but only after it has read them all.
        chosen = strongest(candidates.confidences)
        return chosen[suppress(_some_of(candidates, chosen), thresholds, keep)]
    return keep(candidates, thresholds)[:_MAX_DETECTIONS]


def _some_of(candidates: Candidates, chosen: NDArray[np.int64]) -> Candidates:
    extras = None if candidates.extras is None else candidates.extras[chosen]
    boxes, confidences, class_ids = candidates.boxes_xywh, candidates.confidences, candidates.class_ids
    return Candidates(boxes[chosen], confidences[chosen], class_ids[chosen], extras=extras)
