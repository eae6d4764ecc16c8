"""How alike the objects of one image are to others, which another model found or which are labelled.

`box_overlaps` compares boxes. `DETAILS` is the table of what some models tell beyond boxes: keypoints, masks and
oriented boxes. An entry names its metrics and has its similarity, by which detections are matched with labels, and two
models' with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk.core.frame import Detections
from edge_sdk_tools.datasets.dataset import BoxTruth, Outline, Runs
from edge_sdk_tools.evaluate.statistics import quotient

MATCH = 0.5
"""Least similarity of objects that are matched with each other, and the lowest of COCO's thresholds."""

MAX_DETECTIONS, MAX_POSES = 100, 20
"""Most detections of a class in an image that COCO evaluates, the most confident ones, by boxes or masks and by OKS."""

_COCO_SIGMAS = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)  # thousandths, of 17 keypoints
_SEEN = 0.5  # least confidence of a compared keypoint
_MOST_CROSSINGS = 20_000_000  # of a polygon's sides with rows of pixels: 10,000 points over 2,000 rows
_FILLED = 0.53  # share of a box that an object without a mask is assumed to fill, as by Ultralytics


class LabelledBoxes(NamedTuple):
    """Labelled boxes of one image, (M, 4), in its pixels, with their class ids, and whether each is a crowd, (M,)."""

    boxes_xyxy: NDArray[np.float64]
    class_ids: NDArray[np.int64]
    crowd: NDArray[np.bool_]

    @classmethod
    def of(cls, truth: BoxTruth) -> LabelledBoxes:
        """Return the boxes of all labelled objects."""
        return cls(
            np.array([one.box_xyxy for one in truth.objects], np.float64).reshape(-1, 4),
            np.array([one.class_id for one in truth.objects], np.int64),
            np.array([one.is_crowd for one in truth.objects], np.bool_),
        )


class Objects(NamedTuple):
    """The objects of one image in its pixels, with their details; None for those that are not known.

    Attributes:
        boxes_xyxy: float64 (N, 4).
        keypoints: float64 (N, K, 3), x, y and a confidence 0-1; of labels 1 for a labelled point, else 0.
        mask: (index) -> left, top and uint8 (height, width), 1 on the object.
        corners: float32 (N, 4, 2), of oriented boxes.
        areas_px: float64 (N,), of what each object fills of its box.
        crowd: bool (N,), whether a label is around many objects.
    """

    boxes_xyxy: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    keypoints: NDArray[np.float64] | None = None
    mask: Callable[[int], tuple[int, int, NDArray[np.uint8]]] | None = None
    corners: NDArray[np.float32] | None = None
    areas_px: NDArray[np.float64] | None = None

    @classmethod
    def found(cls, found: Detections) -> Objects:
        """Return what a model found."""
        masks, points = found.masks, found.keypoints
        return cls(
            found.xyxy.astype(np.float64),
            np.zeros(len(found), np.bool_),
            None if points is None else points.astype(np.float64),
            None if masks is None else lambda index: masks.within(index, found.xyxy[index]),
            found.corners,
        )

    @property
    def detail(self) -> Detail | None:
        """The detail that these objects have; None if they have boxes alone."""
        return next((detail for detail in DETAILS if getattr(self, detail.field) is not None), None)

    @classmethod
    def labelled(cls, truth: BoxTruth, size_wh: tuple[int, int], detail: Detail) -> Objects:
        """Return what is labelled on an image, with one detail; an oriented box is the smallest around the outline."""
        boxes, areas = LabelledBoxes.of(truth), [one.area_px for one in truth.objects]
        areas_px = None if None in areas else np.array(areas, np.float64)
        known = cls(boxes.boxes_xyxy, boxes.crowd, areas_px=areas_px)
        details = [getattr(one, detail.label) for one in truth.objects]
        if any(one is None for one in details):
            return known
        if detail.field == "keypoints":
            are_alike = len(set(map(len, details))) < 2
            return known._replace(keypoints=np.array(details or np.empty((0, 0, 3)))) if are_alike else known
        if detail.field == "mask":
            return known._replace(mask=lambda index: mask_of(details[index], size_wh))
        corners = [cv2.boxPoints(cv2.minAreaRect(_hull_points(outline, size_wh))) for outline in details]
        return known._replace(corners=np.array(corners, np.float32).reshape(-1, 4, 2))


class Detail(NamedTuple):
    """One detail of objects.

    Attributes:
        name: its word in the names of metrics by labels: `mask` of `mask mAP50-95`.
        field, label: where `Objects` and `LabelledObject` have it.
        needs: what a label must have, in words.
        agreement: name of the mean similarity of two models' matched objects.
        alike: (found, reference) -> similarity of each pair, float64 (N, M), 0-1; None where one side lacks the detail.
        most: most detections of a class in an image that count by labels.
    """

    name: str
    field: str
    label: str
    needs: str
    agreement: str
    alike: Callable[[Objects, Objects], NDArray[np.float64] | None]
    most: int = MAX_DETECTIONS


class Likeness(NamedTuple):
    """Similarity of N found objects to M others in one detail, float64 (N, M).

    By keypoints, objects without one (`no_points`, bool (M,)) need not be found, and one detection that is like such an
    object counts as neither right nor wrong.
    """

    detail: Detail
    values: NDArray[np.float64]
    no_points: NDArray[np.bool_] | None = None


def likeness_of(found: Objects, reference: Objects) -> Likeness | None:
    """Compare objects beyond their boxes; None if one side has only boxes, or they have not the same details."""
    compared = ((detail, detail.alike(found, reference)) for detail in DETAILS)
    no_points = None if reference.keypoints is None else np.all(reference.keypoints[:, :, 2] < _SEEN, axis=1)
    return next((Likeness(detail, values, no_points) for detail, values in compared if values is not None), None)


def _shared(a_xyxy: NDArray[np.float64], b_xyxy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the area that the boxes of each pair share, float64 (N, M)."""
    sides = np.minimum(a_xyxy[:, None, 2:], b_xyxy[None, :, 2:]) - np.maximum(a_xyxy[:, None, :2], b_xyxy[None, :, :2])
    area: NDArray[np.float64] = np.prod(np.clip(sides, 0, None), axis=2)
    return area


def box_overlaps(
    a_xyxy: NDArray[np.float64], b_xyxy: NDArray[np.float64], crowd: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Return the IoU of every pair, float64 (N, M), 0-1; for a `crowd` in `b`, intersection over the area of `a`."""
    shared = _shared(a_xyxy, b_xyxy)
    area_a, area_b = (np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (a_xyxy, b_xyxy))
    whole = area_a[:, None] + area_b - shared
    return quotient(shared, whole if crowd is None else np.where(crowd, area_a[:, None], whole), 0.0)


def _keypoints(found: Objects, reference: Objects) -> NDArray[np.float64] | None:
    """Return COCO's object keypoint similarity over the keypoints that are confident in the reference: (N, M)."""
    mine, theirs = found.keypoints, reference.keypoints
    if mine is None or theirs is None or (len(theirs) and mine.shape[1] != theirs.shape[1]):
        return None
    if not len(theirs):
        return np.zeros((len(mine), 0))
    count = theirs.shape[1]
    sigmas = np.array(_COCO_SIGMAS) / 1000 if count == len(_COCO_SIGMAS) else np.full(count, 1 / count)
    first, last = reference.boxes_xyxy[:, None, :2], reference.boxes_xyxy[:, None, 2:]
    area = _FILLED * (last - first).prod(axis=2) if reference.areas_px is None else reference.areas_px[:, None]
    is_seen = theirs[:, :, 2] >= _SEEN
    is_lost = np.logical_not(is_seen.any(axis=1, keepdims=True))
    places = mine[:, None, :, :2]  # compared with twice the box where no keypoint is confident
    beyond = np.maximum(0, np.maximum(2 * first - last - places, places - 2 * last + first))
    apart = np.where(is_lost[:, :, None], beyond, places - theirs[:, :, :2])
    likely = np.exp(-(apart**2).sum(axis=3) / (8 * sigmas**2 * np.maximum(area, 1)))
    is_seen |= is_lost
    values: NDArray[np.float64] = (likely * is_seen).sum(axis=2) / is_seen.sum(axis=1)
    return values


def _masks(found: Objects, reference: Objects) -> NDArray[np.float64] | None:
    """Return the IoU of masks, 0 where it is certainly below `MATCH`; for a crowd the share of a found mask in it."""
    if found.mask is None or reference.mask is None:
        return None
    values = np.zeros((len(found.boxes_xyxy), len(reference.boxes_xyxy)))
    touched = found.boxes_xyxy + np.array([-1, -1, 1, 1])  # a found mask does not reach beyond these pixels
    for other in range(values.shape[1]):  # one mask at a time: it may be as large as the image
        is_crowd = bool(reference.crowd[other])
        left, top, seen = theirs = reference.mask(other)
        wanted = np.count_nonzero(seen)
        around = np.array([[left, top, left + seen.shape[1], top + seen.shape[0]]], np.float64)
        near = _shared(touched, around)[:, 0] >= (1 if is_crowd else MATCH * wanted)
        for index in np.flatnonzero(near).tolist() if wanted else ():
            mine = found.mask(index)
            area, both = np.count_nonzero(mine[2]), _common(mine, theirs)
            values[index, other] = both / (area if is_crowd else area + wanted - both)
    return values


def _common(one: tuple[int, int, NDArray[np.uint8]], other: tuple[int, int, NDArray[np.uint8]]) -> int:
    """Count the pixels that two masks share."""
    left, top = max(one[0], other[0]), max(one[1], other[1])
    a, b = (seen[top - y :, left - x :] for x, y, seen in (one, other))
    rows, columns = min(len(a), len(b)), min(a.shape[1], b.shape[1])
    return int(np.count_nonzero(a[:rows, :columns] & b[:rows, :columns]))


def mask_of(outline: Outline, size_wh: tuple[int, int]) -> tuple[int, int, NDArray[np.uint8]]:
    """Return left, top and uint8 (height, width), 1 on the pixels of the image that an object fills."""
    if not isinstance(outline, Runs):
        return _union([_polygon_mask(part, size_wh) for part in outline])
    height, width = outline.size_hw
    if (width, height) != size_wh:
        raise DataError(
            f"a labelled mask has {width}x{height} pixels, "
            f"expected those of the image, {size_wh[0]}x{size_wh[1]}; export it at that size"
        )
    turns = np.arange(len(outline.counts)) & 1
    seen = np.repeat(turns.astype(np.uint8), outline.counts).reshape(width, height).T
    rows, columns = (np.flatnonzero(seen.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return 0, 0, np.zeros((0, 0), np.uint8)
    left, top = int(columns[0]), int(rows[0])
    return left, top, np.ascontiguousarray(seen[top : rows[-1] + 1, left : columns[-1] + 1])


def _union(parts: Sequence[tuple[int, int, NDArray[np.uint8]]]) -> tuple[int, int, NDArray[np.uint8]]:
    """Return the union of the masks of an object's parts."""
    if len(parts) == 1:
        return parts[0]
    left, top = min(x for x, _, _ in parts), min(y for _, y, _ in parts)
    right, bottom = (max(part[1 - axis] + part[2].shape[axis] for part in parts) for axis in (1, 0))
    whole = np.zeros((bottom - top, right - left), np.uint8)
    for x, y, seen in parts:
        whole[y - top : y - top + len(seen), x - left : x - left + seen.shape[1]] |= seen
    return left, top, whole


def _hull_points(outline: Outline, size_wh: tuple[int, int]) -> NDArray[np.float32]:
    """Return points of the image whose convex hull holds all that an object fills, float32 (N, 2)."""
    if not isinstance(outline, Runs):
        return np.concatenate(outline).astype(np.float32)
    left, top, seen = mask_of(outline, size_wh)
    columns = np.flatnonzero(seen.any(axis=0))
    ends = seen.argmax(axis=0)[columns], len(seen) - seen[::-1].argmax(axis=0)[columns]
    points = [(left + columns + side, top + end) for side in (0, 1) for end in ends]
    return np.concatenate([np.stack(pair, axis=1) for pair in points]).astype(np.float32)


def _polygon_mask(outline: NDArray[np.float64], size_wh: tuple[int, int]) -> tuple[int, int, NDArray[np.uint8]]:
    """Return left, top and uint8 (height, width): 1 where a pixel's centre lies in a polygon, by the even-odd rule."""
    # OpenCV's `fillPoly` would add the pixels under the outline.
    bounds = np.ceil([outline.min(axis=0) - 0.5, outline.max(axis=0) - 0.5]).clip(0, size_wh).astype(int)
    (left, top), (right, bottom) = bounds.tolist()
    here = outline - 0.5 - bounds[0]
    there = np.roll(here, -1, axis=0)
    is_up = here[:, 1:] > there[:, 1:]  # a way that is gone twice must cross rows at the same places
    here, there = np.where(is_up, there, here), np.where(is_up, here, there)
    first, last = (np.ceil(ends[:, 1]).clip(0, bottom - top).astype(int) for ends in (here, there))
    crossed = last - first  # rows of each side
    if crossed.sum() > _MOST_CROSSINGS:
        raise DataError(f"a polygon of {len(here)} points crosses {crossed.sum()} rows of the image; simplify it")
    side = np.repeat(np.arange(len(here)), crossed)
    row = np.arange(len(side)) + np.repeat(first - np.cumsum(crossed) + crossed, crossed)
    part = (row - here[side, 1]) / (there[side, 1] - here[side, 1])
    crossings = np.ceil(here[side, 0] + part * (there[side, 0] - here[side, 0])).clip(0, right - left).astype(int)
    turns = np.zeros((bottom - top, right - left + 1), np.uint8)
    np.bitwise_xor.at(turns, (row, crossings), 1)
    return left, top, np.bitwise_xor.accumulate(turns, axis=1)[:, :-1]


def _corners(found: Objects, reference: Objects) -> NDArray[np.float64] | None:
    """Return the intersection over union of oriented boxes, 0 where it is certainly below `MATCH`."""
    if found.corners is None or reference.corners is None:
        return None
    sides = (found.corners, reference.corners)
    areas = [np.array([cv2.contourArea(corners) for corners in of], np.float64) for of in sides]
    both = areas[0][:, None] + areas[1]
    around = [np.concatenate([of.min(axis=1), of.max(axis=1)], axis=1).astype(np.float64) for of in sides]
    least = both * MATCH / (1 + MATCH)
    least[:, reference.crowd] = MATCH * areas[0][:, None]
    near = _shared(*around) >= least * (1 - 1e-6)  # but for rounding
    values = np.zeros_like(both)
    for i, j in np.argwhere(near & (both > 0)).tolist():
        common = _common_area(found.corners[i], reference.corners[j])
        values[i, j] = common / (areas[0][i] if reference.crowd[j] else both[i, j] - common)
    return values


def _common_area(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Return the area that two convex polygons, float32 (corners, 2), share, by clipping one at each side of the other.

    So do Sutherland and Hodgman (1974). OpenCV's `intersectConvexConvex` errs for some pairs that share sides.
    """
    points, sides = a.astype(np.float64), b.astype(np.float64)
    if cv2.contourArea(b, oriented=True) < 0:
        sides = sides[::-1]
    for start, end in zip(sides, np.roll(sides, -1, axis=0), strict=True):
        (x, y), (dx, dy) = (points - start).T, end - start
        depth = dx * y - dy * x
        following, next_depth = np.roll(points, -1, axis=0), np.roll(depth, -1)
        is_inside = depth >= 0
        is_cut = is_inside != np.roll(is_inside, -1)
        part = np.divide(depth, depth - next_depth, out=np.zeros_like(depth), where=is_cut)
        cuts = points + part[:, None] * (following - points)
        points = np.stack([points, cuts], axis=1)[np.stack([is_inside, is_cut], axis=1)]
        if len(points) < 3:
            return 0.0
    (x, y), (next_x, next_y) = (points - points[0]).T, (np.roll(points, -1, axis=0) - points[0]).T
    return float(abs((x * next_y - y * next_x).sum()) / 2)


DETAILS = (
    Detail("pose", "keypoints", "keypoints", "keypoints", "keypoints of those matched (OKS)", _keypoints, MAX_POSES),
    Detail("mask", "mask", "outline", "a mask or polygon", "masks of those matched (IoU)", _masks),
    Detail("oriented", "corners", "outline", "a polygon", "oriented boxes of those matched (IoU)", _corners),
)
