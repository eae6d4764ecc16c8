"""Detection: candidate boxes -> non-maximum suppression -> boxes in the frame's pixels, and their messages."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Detections, Image, Inferred, Prepared, Result, Tensor
from edge_sdk.tasks.anomaly import ANOMALY
from edge_sdk.tasks.boxes import (
    MAX_CANDIDATES,
    NO_CANDIDATES,
    Candidates,
    Decode,
    Floats,
    Keep,
    Reader,
    pairs_within,
    strongest,
)
from edge_sdk.tasks.classification import CLASSIFICATION
from edge_sdk.tasks.embedding import EMBEDDING
from edge_sdk.tasks.entry import (
    NestedResult,
    ResultItem,
    ResultMessage,
    StageParts,
    TaskEntry,
    Unit,
    nested_type,
    rounded,
)
from edge_sdk.tasks.segmentation import SEGMENTATION
from edge_sdk.tasks.spec import Task, Thresholds
from edge_sdk.tasks.text import TEXT

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Colour, Drawing

    AnyNested: TypeAlias = NestedResult

_MAX_DETECTIONS = 300
_FAR_PX = 1e9  # beyond any picture
_MANY, _MOST_PAIRS = 64, 1 << 16  # number of boxes, and of pairs of them, between which numpy is faster than OpenCV
_NOTHING = NO_CANDIDATES.boxes_xywh, NO_CANDIDATES.confidences, NO_CANDIDATES.class_ids
_CHECKED_A_FRAME = 4096
"""Values checked for NaN in each frame, on average: 0.25 us, beside the 40 to 180 us that decoding takes."""


class Detect:
    """Decode stage of a detector; not thread-safe.

    Confidences are checked for NaN in every frame; all other outputs only in every n-th frame with objects, because a
    model that returns NaN does so repeatedly. For YOLOv8 at 640 pixels n is 172. After a frame with NaN, every frame is
    checked until one is finite again.

    Args:
        reader: reads the outputs.
        places: indices of the model's outputs that the reader takes, in the reader's order.
        keep: suppresses overlapping candidates.
    """

    def __init__(
        self,
        reader: Decode | Reader,
        places: Sequence[int],
        thresholds: Thresholds,
        keep: Keep,
        names: Mapping[int, str],
    ) -> None:
        self._reader = reader if isinstance(reader, Reader) else None
        self._decode = reader.decode if isinstance(reader, Reader) else reader
        self._keep, self._names = keep, names
        self._places = tuple(places)
        self._thresholds = thresholds
        self._unchecked_left = 0  # frames until all outputs are checked again

    def __call__(self, inferred: Inferred, /) -> Detections:
        """Read the outputs of one frame."""
        prepared, outputs = inferred.prepared, inferred.outputs
        read = [outputs[place] for place in self._places]
        candidates = self._decode(read)
        if len(candidates.confidences):
            keep, boxes = self._kept(candidates, prepared)
            is_finite = self._is_finite(candidates.confidences, outputs)
            confidences, class_ids = candidates.confidences[keep], candidates.class_ids[keep]
        else:
            boxes, confidences, class_ids = _NOTHING
            keep, is_finite = class_ids, self._is_finite_empty(candidates.highest, outputs)
        found = Detections(
            prepared.frame, inferred.inference_ns, boxes, confidences, class_ids, is_finite=is_finite, names=self._names
        )
        if self._reader is None:
            return found
        extras = candidates.extras
        own = np.empty((0, self._reader.width), np.float32) if extras is None else extras[keep]
        return msgspec.structs.replace(found, **self._reader.details(read, own, prepared))

    def _kept(self, candidates: Candidates, prepared: Prepared) -> tuple[NDArray[np.int64], Floats]:
        """Return the indices of the kept candidates, and their boxes in pixels of the frame."""
        keep = suppress(candidates, self._thresholds, self._keep)
        boxes = candidates.boxes_xywh[keep]
        boxes[:, 2:] += boxes[:, :2]
        boxes = prepared.geometry.boxes_to_frame(boxes, prepared.frame.size_wh)
        has_area = boxes[:, 2:] > boxes[:, :2]
        if np.count_nonzero(has_area) < has_area.size:  # boxes wholly in the padding have no area in the frame
            seen = has_area.all(axis=1)
            boxes, keep = boxes[seen], keep[seen]
        return keep, boxes

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

        `highest` is the largest value of the outputs that the decoder read; None if the decoder did not compute it.
        """
        seen = () if highest is None else self._places
        rest = [output for place, output in enumerate(outputs) if place not in seen]
        return (highest is None or math.isfinite(highest)) and are_finite(rest)


def are_finite(outputs: Sequence[Tensor]) -> bool:
    """Tell whether no value is NaN or infinite; minus infinity is allowed, because some models use it for "never"."""
    return all(math.isfinite(output.max()) for output in outputs if output.size)


def _by_confidence(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Return the indices of the candidates with at least the least confidence, the most confident first."""
    order: NDArray[np.int64] = np.argsort(-candidates.confidences, kind="stable")
    return order[: np.count_nonzero(candidates.confidences >= np.float32(thresholds.confidence))]


def keep_all(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Keep candidates by confidence alone, for models that suppress overlaps in their graph."""
    return _by_confidence(candidates, thresholds)


@functools.cache
def _opencv_suppression() -> Callable[..., Any] | None:
    """Return OpenCV's function; None of an OpenCV without its engine for networks (`edge-sdk runtime minimal`)."""
    from edge_sdk.core.opencv import cv2  # imported late: reading manifests and messages needs no OpenCV

    return getattr(getattr(cv2, "dnn", None), "NMSBoxesBatched", None)


def keep_upright(candidates: Candidates, thresholds: Thresholds) -> NDArray[np.int64]:
    """Keep boxes whose IoU with every stronger kept box of their class is at most `thresholds.iou`.

    OpenCV compares each box with all that are kept: fast for few boxes or few survivors, slow for hundreds of objects.
    From `_MANY` boxes on, numpy compares only those that can overlap enough; both give the same result.
    """
    order = _by_confidence(candidates, thresholds)
    by_opencv = _opencv_suppression()
    if len(order) < _MANY and by_opencv:
        return _keep_by_opencv(by_opencv, candidates, thresholds)
    if not len(order):
        return order
    x, y, width, height = np.ascontiguousarray(candidates.boxes_xywh[order].T, np.float64)
    left = x + candidates.class_ids[order] * (np.ptp(x) + width.max() + 1)  # classes lie side by side
    # An IoU above the limit needs this part of the larger width and of the larger height in common.
    part = thresholds.iou * (1 - 1e-6)
    # At most a thousand candidates come here, few enough to compare all pairs where there is no other way.
    found = pairs_within(left, left + width * (1 - part), _MOST_PAIRS if by_opencv else None)
    if found is None:
        assert by_opencv is not None  # only `_MOST_PAIRS` makes it None
        return _keep_by_opencv(by_opencv, candidates, thresholds)
    one, other = found
    common = np.minimum(y[one] + height[one], y[other] + height[other]) - np.maximum(y[one], y[other])
    near = np.flatnonzero(common > part * np.maximum(height[one], height[other]))
    one, other = one[near], other[near]
    common = common[near] * (np.minimum(x[one] + width[one], x[other] + width[other]) - x[other])
    ious = common / (width[one] * height[one] + width[other] * height[other] - common)
    overlap = ious.astype(np.float32) > np.float32(thresholds.iou)
    one, other = one[overlap], other[overlap]
    return order[~_hidden(len(order), np.minimum(one, other), np.maximum(one, other))]


def _hidden(count: int, stronger: NDArray[np.int64], weaker: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which of `count` boxes, the strongest first, a kept one hides; pairs of boxes that overlap are given."""
    order = stronger.argsort(kind="stable")
    stronger, weaker = stronger[order], weaker[order]
    starts = np.flatnonzero(np.diff(stronger, prepend=-1)).tolist()
    is_hidden = np.zeros(count, np.bool_)
    for box, start, end in zip(stronger[starts].tolist(), starts, [*starts[1:], len(order)], strict=False):
        if not is_hidden[box]:
            is_hidden[weaker[start:end]] = True
    return is_hidden


def _keep_by_opencv(
    suppression: Callable[..., Any], candidates: Candidates, thresholds: Thresholds
) -> NDArray[np.int64]:
    boxes = candidates.boxes_xywh
    lowest = boxes[:, :2].min()
    if lowest < 0:
        # OpenCV separates classes by moving each behind the largest coordinate of the one before, so negative
        # coordinates would reach into another class.
        boxes = boxes.copy()
        boxes[:, :2] -= lowest
    kept = suppression(
        boxes.tolist(),
        candidates.confidences.tolist(),
        candidates.class_ids.tolist(),
        # OpenCV keeps only confidences above the threshold; this function also keeps those equal to it.
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
    if not (np.abs(boxes).max() < _FAR_PX and boxes[:, 2:].min() > 0):  # also true if a coordinate is NaN
        # Drop boxes without an area, and those beyond any picture: an infinite box would suppress all others.
        chosen = ((np.abs(boxes) < _FAR_PX).all(axis=1) & (boxes[:, 2:] > 0).all(axis=1)).nonzero()[0]
        return chosen[suppress(_some_of(candidates, chosen), thresholds, keep)]
    if len(boxes) > MAX_CANDIDATES:
        # OpenCV would drop the same candidates, but only after reading all of them.
        chosen = strongest(candidates.confidences)
        return chosen[suppress(_some_of(candidates, chosen), thresholds, keep)]
    return keep(candidates, thresholds)[:_MAX_DETECTIONS]


def _some_of(candidates: Candidates, chosen: NDArray[np.int64]) -> Candidates:
    extras = None if candidates.extras is None else candidates.extras[chosen]
    boxes, confidences, class_ids = candidates.boxes_xywh, candidates.confidences, candidates.class_ids
    return Candidates(boxes[chosen], confidences[chosen], class_ids[chosen], extras=extras)


class DetectionItem(ResultItem, frozen=True, gc=False):
    """One object; box_xyxy is left, top, right, bottom in pixels of the original frame, to 0.1.

    `track_id` is present if objects are tracked, `zones` if zones are configured. Pose models give `keypoints`: x and y
    in pixels to 0.1, and a confidence; all three are 0 for an unknown point. Models with masks give `polygons`:
    outlines of the object's parts, the largest first, in whole pixels. Models of oriented boxes give `corners`: x and y
    in pixels to 0.1, clockwise from the object's own top left; `box_xyxy` encloses the corners. `then` is the result of
    a second model on the object.
    """

    class_id: int
    confidence: Unit
    box_xyxy: tuple[float, float, float, float]
    track_id: int | msgspec.UnsetType = msgspec.UNSET
    zones: list[str] | msgspec.UnsetType = msgspec.UNSET
    keypoints: list[tuple[float, float, float]] | msgspec.UnsetType = msgspec.UNSET
    polygons: list[list[tuple[int, int]]] | msgspec.UnsetType = msgspec.UNSET
    corners: list[tuple[float, float]] | msgspec.UnsetType = msgspec.UNSET
    then: AnyNested | msgspec.UnsetType = msgspec.UNSET


class DetectionMessage(ResultMessage, frozen=True, gc=False, kw_only=True, tag="detection"):
    """Objects found in one frame, most confident first."""

    detections: list[DetectionItem]


_POINT_STEPS = np.array([10.0, 10.0, 100.0])  # keypoints to 0.1 px, their confidences to 0.01
_MOST_OUTLINES = 8  # of one object, which other objects may cover in part


def _items(result: Detections, label: Callable[[int], str]) -> list[DetectionItem]:
    if not len(result):
        return []
    given = np.column_stack((result.xyxy, result.confidence))
    rows, ids = rounded(given, result.class_id)
    items = list(map(DetectionItem, map(label, ids), ids, rows[:, 4].tolist(), rows[:, :4].tolist()))
    details = (result.keypoints, result.masks, result.corners, result.then)
    if all(detail is None for detail in details):
        return items
    places = np.flatnonzero(np.isfinite(given).all(axis=1)).tolist()
    return [_with_details(item, result, place) for item, place in zip(items, places, strict=True)]


def _with_details(item: DetectionItem, result: Detections, place: int) -> DetectionItem:
    """Add the keypoints, outlines and corners of one object, and the second model's result for this object."""
    if result.then is not None and (then := result.then[place]) is not None:
        item = msgspec.structs.replace(item, then=_nested(then))
    if result.keypoints is not None:
        points = np.rint(result.keypoints[place].astype(np.float64) * _POINT_STEPS) / _POINT_STEPS
        item = msgspec.structs.replace(item, keypoints=points.tolist())
    if result.masks is not None:
        outlines = [outline.astype(int).tolist() for outline in result.polygons(place)[:_MOST_OUTLINES]]
        item = msgspec.structs.replace(item, polygons=outlines)
    if result.corners is not None:
        corners = np.rint(result.corners[place].astype(np.float64) * _POINT_STEPS[:2]) / _POINT_STEPS[:2]
        item = msgspec.structs.replace(item, corners=corners.tolist())
    return item


def _draw(drawing: Drawing, result: Detections) -> None:
    usable = np.isfinite(result.xyxy).all(axis=1)
    # The most confident objects are drawn last, and texts after all boxes, so that both lie on top.
    order = np.flatnonzero(usable)[::-1].tolist()
    colours = {index: drawing.colour(int(result.class_id[index])) for index in order}
    corners = {index: [round(v) for v in result.xyxy[index].tolist()] for index in order}
    for index in order if result.masks is not None else ():
        drawing.fill(result.polygons(index), colours[index])
    for index in order:
        if result.keypoints is not None:
            _draw_keypoints(drawing, result.keypoints[index], colours[index])
        if result.corners is not None:
            drawing.outline(result.corners[index], colours[index])
        else:
            drawing.box(corners[index], colours[index])
    for index in reversed(order):  # the most confident have the first choice of places
        x1, y1, _, _ = corners[index]
        text = f"{drawing.name(int(result.class_id[index]))} {result.confidence[index]:.0%}"
        if result.then is not None and (then := result.then[index]) is not None:
            text += "".join(
                f" ({label} {sure:.0%})" for label, sure in zip(then.labels[:1], then.confidence, strict=False)
            )
        drawing.tag(text, (x1 - drawing.line_px // 2, y1), colours[index])


_FAR_DRAWN_PX = 1e5  # OpenCV takes whole numbers of 32 bits
_LEAST_SURE = 0.5  # least confidence of a drawn keypoint
_PERSON = 17  # keypoints of COCO's persons: nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles
_BONES = np.reshape(
    (0, 1, 0, 2, 1, 3, 2, 4, 5, 6, 5, 7, 7, 9, 6, 8, 8, 10, 5, 11, 6, 12, 11, 12, 11, 13, 13, 15, 12, 14, 14, 16),
    (-1, 2),
).tolist()


def _draw_keypoints(drawing: Drawing, points: NDArray[np.float32], colour: Colour) -> None:
    near = points.clip(-_FAR_DRAWN_PX, _FAR_DRAWN_PX).tolist()
    places = [(round(x), round(y)) if sure >= _LEAST_SURE else None for x, y, sure in near]
    for one, other in _BONES if len(places) == _PERSON else ():
        if (start := places[one]) is not None and (end := places[other]) is not None:
            drawing.line(start, end, colour)
    for place in places:
        if place is not None:
            drawing.dot(place, colour)


def _stage(parts: StageParts) -> Detect:
    own = parts.read.keep if isinstance(parts.read, Reader) else None
    keep = (own or keep_upright) if parts.decoder.suppresses else keep_all
    return Detect(parts.read, parts.places, parts.spec.thresholds, keep, parts.names)


DETECTION = TaskEntry("detection", Detections, DetectionMessage, _items, _draw, _stage)

TASKS: dict[Task, TaskEntry] = {
    entry.task: entry for entry in (DETECTION, CLASSIFICATION, SEGMENTATION, EMBEDDING, TEXT, ANOMALY)
}
"""Entries of all tasks; a second model of any task may run on a detector's objects."""

_ENTRIES = {entry.result: entry for entry in TASKS.values()}
_NESTED = {entry.result: nested_type(entry) for entry in TASKS.values()}

if not TYPE_CHECKING:
    AnyNested = functools.reduce(operator.or_, _NESTED.values())


def entry_of(result: Result) -> TaskEntry:
    """Return the entry of a result's task."""
    return _ENTRIES[type(result)]


def draw(image: Image, result: Result) -> None:
    """Draw a result on a picture, uint8 (H, W, 3), BGR, in place, with the class names of the result."""
    from edge_sdk.core.drawing import Drawing  # it loads OpenCV

    entry_of(result).draw(Drawing(image, result.label), result)


def _nested(result: Result) -> NestedResult:
    """Return the second model's result in the form that an item of the first model's message holds."""
    return _NESTED[type(result)](
        infer_ms=result.inference_ns // 1000 / 1000,
        not_finite=msgspec.UNSET if result.is_finite else True,
        **entry_of(result).payload(result, result.label),
    )
