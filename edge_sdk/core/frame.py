"""The values that pipeline stages pass to each other, with their shapes and units.

    Frame -> Prepared -> Inferred -> Result: Detections, Classification, Segmentation, or another task's

Each value contains everything that the next stage needs; `Prepared` contains the position of the frame in the model's
input (`Geometry`). `check_image` refuses arrays that are no pictures.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import CameraError, UsageError

Image: TypeAlias = NDArray[np.uint8]
"""uint8 (H, W, 3), BGR, 0-255: what cameras and OpenCV deliver."""

_EXPECTED = (
    "expected a numpy array of uint8 (height, width, 3), BGR, of 1 to 2147483647 pixels, as cv2.imread(path) gives one"
)


def check_image(image: object) -> None:
    """Raise CameraError unless `image` is uint8 (H, W, 3) of at least one pixel; any strides are accepted."""
    found = _misfit_of(image)
    if found is not None:
        raise CameraError(f"the source gave a frame whose image is {found}, {_EXPECTED}; convert it in the source")


def _misfit_of(image: object) -> str | None:
    if image is None:
        return "None, which cv2.imread gives for a file that it cannot read"
    if not isinstance(image, np.ndarray):
        return type(image).__name__
    # OpenCV counts pixels in 32 bits, and ends the process where there are more.
    is_picture = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and 0 < image.size < 3 << 31
    return None if is_picture else f"{image.dtype} {image.shape}"


Tensor: TypeAlias = NDArray[Any]
"""An input or output of a model; dtype and shape are the model's own."""


class Frame(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One picture from one camera.

    Attributes:
        image: uint8 (H, W, 3), BGR. Belongs to the source, which overwrites it after the next `latest()`: copy to keep.
        captured_ns: monotonic nanoseconds of the frame's arrival or exposure; for files, when the frame was due.
        captured_at: the same moment by the wall clock, seconds since the epoch.
        seq: 0 and up; counts every frame of the source, including dropped ones. For files, the frame's index.
        delay_ns: age in nanoseconds of every frame of this source on arrival; FFmpeg delays H.264 frames.
        file: of image files the name, below the folder that is the source; empty for cameras, streams and videos.
    """

    image: Image
    captured_ns: int
    captured_at: float
    seq: int
    camera: str
    delay_ns: int = 0
    file: str = ""

    @classmethod
    def of(cls, image: NDArray[Any] | None, *, seq: int = 0, camera: str = "camera") -> Frame:
        """Make a frame of your own picture, captured now; call it right after the grab.

        Args:
            image: uint8 (H, W, 3), BGR; kept, not copied. Other arrays are refused, and so is None, which OpenCV
                returns for a picture that it cannot read.
            seq: the frame's number, 0 and up; counts every frame of the source.
            camera: the camera's name.

        Raises:
            UsageError: `image` is no such array.
        """
        found = _misfit_of(image)
        if found is not None:
            raise UsageError(f"the picture is {found}, {_EXPECTED}")
        return cls(cast("Image", image), time.monotonic_ns(), time.time(), seq, camera)

    def __repr__(self) -> str:
        """Show the frame without its pixels, which would fill the text of every result."""
        shape = getattr(self.image, "shape", None)
        file = f", file={self.file!r}" if self.file else ""
        return f"Frame(shape={shape}, seq={self.seq}, camera={self.camera!r}, captured_at={self.captured_at}{file})"

    @property
    def size_wh(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.image.shape[1], self.image.shape[0]


@lru_cache(maxsize=16)  # frames rarely change their size, and making the arrays costs as much as using them
def _corner_arrays(
    offset_x: float, offset_y: float, scale_x: float, scale_y: float, size_wh: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return offset, scale and frame size, float32 (2,) each, for the two corners of a box."""
    return (
        np.array((offset_x, offset_y), np.float32),
        np.array((scale_x, scale_y), np.float32),
        np.array(size_wh, np.float32),
    )


class Geometry(msgspec.Struct, frozen=True, gc=False):
    """Position of the frame in the model's input: input_px = frame_px * scale + offset.

    Attributes:
        scale_x: input pixels per frame pixel, horizontally.
        scale_y: input pixels per frame pixel, vertically.
        offset_x: input pixels left of the picture (negative where it was cropped).
        offset_y: input pixels above the picture (negative where it was cropped).
    """

    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float

    def boxes_to_frame(self, boxes_xyxy: NDArray[np.float32], size_wh: tuple[int, int]) -> NDArray[np.float32]:
        """Map boxes from the model's input to the frame, in place, clipped to the picture.

        Args:
            boxes_xyxy: float32 (N, 4), C-contiguous, pixels of the model's input.
            size_wh: the frame's width and height in pixels.

        Returns:
            `boxes_xyxy` itself, now in pixels of the frame.
        """
        offset, scale, limit = _corner_arrays(self.offset_x, self.offset_y, self.scale_x, self.scale_y, size_wh)
        corners = boxes_xyxy.reshape(-1, 2, 2)
        corners -= offset
        corners /= scale
        np.maximum(corners, 0, out=corners)
        np.minimum(corners, limit, out=corners)
        return boxes_xyxy

    def on(self, x: float, y: float) -> Geometry:
        """Return the geometry of the same frame resized to `x` times its width and `y` times its height."""
        return Geometry(self.scale_x / x, self.scale_y / y, self.offset_x, self.offset_y)

    def in_cells(self, x: float, y: float) -> Geometry:
        """Return the geometry of the frame in a grid with `x` columns and `y` rows of cells per input pixel."""
        return Geometry(self.scale_x * x, self.scale_y * y, self.offset_x * x, self.offset_y * y)

    def points_to_frame(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map points, float32 (..., 2+) with x and y first, from the model's input to the frame, in place."""
        points[..., 0] = (points[..., 0] - self.offset_x) / self.scale_x
        points[..., 1] = (points[..., 1] - self.offset_y) / self.scale_y
        return points

    def cells_of_picture(self, frame_wh: tuple[int, int], cells_wh: tuple[int, int]) -> tuple[slice, slice]:
        """Return the columns and rows of the cells whose centre lies in the picture, not in its padding.

        If the picture is thinner than a cell, return the cell in its middle.

        Args:
            frame_wh: the frame's width and height in pixels.
            cells_wh: columns and rows of cells of the whole input.
        """
        return (
            _cells_between(self.offset_x, self.offset_x + frame_wh[0] * self.scale_x, cells_wh[0]),
            _cells_between(self.offset_y, self.offset_y + frame_wh[1] * self.scale_y, cells_wh[1]),
        )


def _cells_between(start: float, end: float, count: int) -> slice:
    first, last = max(0, math.ceil(start - 0.5)), min(count, math.ceil(end - 0.5))
    if first < last:
        return slice(first, last)
    middle = min(count - 1, max(0, int((start + end) / 2)))
    return slice(middle, middle + 1)


class Prepared(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A frame converted to the model's input tensor.

    Attributes:
        tensor: the model's input, batch 1. Belongs to the prepare step and is overwritten by the next frame.
        geometry: position of the frame in `tensor`.
    """

    tensor: Tensor
    geometry: Geometry
    frame: Frame


class Inferred(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What the model returned for one frame.

    Attributes:
        outputs: output tensors in the model's order. They belong to the session; its next run overwrites them.
        inference_ns: duration in nanoseconds of the session's run, without preparation and decoding.
    """

    outputs: tuple[Tensor, ...]
    inference_ns: int
    prepared: Prepared


_NO_CLASSES = np.empty(0, np.int64)
_NO_CONFIDENCES = np.empty(0, np.float32)


_SHOWN = 4  # items of a result that its text names


class _ResultBase(msgspec.Struct, frozen=True, eq=False, gc=False, kw_only=True):
    is_finite: bool = True
    names: Mapping[int, str] = {}


class Result(_ResultBase, frozen=True, eq=False, gc=False):
    """The result of a model for one frame; every task has its own subclass.

    Attributes:
        is_finite: whether all model outputs that were read are finite; if False, the result may be incomplete.
        names: labels by class id; empty if the stage was built without labels.
    """

    frame: Frame
    inference_ns: int

    @property
    def class_id(self) -> NDArray[np.int64]:
        """Class id of each item, int64 (N,): lines of labels.txt from 0, the most confident first; N may be 0."""
        return _NO_CLASSES

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Confidence of each item, float32 (N,), 0-1."""
        return _NO_CONFIDENCES

    @property
    def xyxy(self) -> NDArray[np.float32] | None:
        """Box of each item, float32 (N, 4), in pixels of the frame; None for tasks that do not find objects."""
        return None

    @property
    def labels(self) -> list[str]:
        """Label of each item, in the order of `class_id`; `class_N` for a class without a label."""
        return list(map(self.label, self.class_id.tolist()))

    def __repr__(self) -> str:
        """Show the first items, as in `Detections(1: person 0.91 at [412, 120, 530, 455])`."""
        boxes, count = self.xyxy, len(self.class_id)
        items = [f"{label} {sure:.2f}" for label, sure in zip(self.labels[:_SHOWN], self.confidence, strict=False)]
        if boxes is not None:
            rows = boxes[:_SHOWN].round().tolist()
            items = [f"{item} at [{', '.join(f'{v:.0f}' for v in row)}]" for item, row in zip(items, rows, strict=True)]
        more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
        state = [] if self.is_finite else ["some outputs of the model were no numbers"]
        shown = f"{count}: {', '.join([*items, *more, *state])}" if items or state else "nothing found"
        return f"{type(self).__name__}({shown})"

    def label(self, class_id: int) -> str:
        """Return the label of a class; `class_N` if the class has none."""
        return self.names.get(class_id) or f"class_{class_id}"

    def of_classes(self, class_ids: Collection[int], /) -> Result:
        """Return the result reduced to these classes."""
        return self

    def plot(self, image: Image | None = None) -> Image:
        """Return a copy of a picture, uint8 (H, W, 3), BGR, by default the frame's, with the result drawn on it."""
        picture: Image = (self.frame.image if image is None else image).copy()
        tasks: Any = importlib.import_module("edge_sdk.tasks.detection")  # imported late: `tasks` is a layer above
        tasks.draw(picture, self)
        return picture

    def summary(self, label: Callable[[int], str]) -> str | None:
        """Return the label of the most confident item; None if there is none."""
        return label(int(self.class_id[0])) if len(self.class_id) else None

    def on(self, image: Image) -> Result:
        """Return the same result for the same picture at another size, uint8 (H, W, 3), BGR."""
        return msgspec.structs.replace(self, frame=msgspec.structs.replace(self.frame, image=image))


class Masks(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Masks of the objects of one frame, at the model's resolution; each is computed where it is asked for.

    Attributes:
        coefficients: float32 (N, M), the weights of the prototypes in each object's mask.
        prototypes: float32 (M, h, w); cells where their weighted sum is above 0 belong to the object.
        geometry: position of the frame in the prototypes: cell = frame_px * scale + offset.
    """

    coefficients: NDArray[np.float32]
    prototypes: NDArray[np.float32]
    geometry: Geometry

    @property
    def values(self) -> NDArray[np.float32]:
        """The weighted sums of all objects over the whole input: float32 (N, h, w)."""
        values: NDArray[np.float32] = np.tensordot(self.coefficients, self.prototypes, axes=1)
        return values

    def of(self, places: NDArray[np.int64]) -> Masks:
        """Return the masks of some of the objects."""
        return msgspec.structs.replace(self, coefficients=self.coefficients[places])

    def within(self, index: int, box_xyxy: NDArray[np.float32]) -> tuple[int, int, NDArray[np.uint8]]:
        """Return left and top of one object's box in whole pixels, and uint8 (height, width): 1 on the object."""
        from edge_sdk.core.opencv import cv2  # most models have no masks

        left, top, right, bottom = np.ceil(box_xyxy).astype(int).tolist()
        if left >= right or top >= bottom:  # no pixel's centre lies in the box, and OpenCV would take another size
            return left, top, np.zeros((max(0, bottom - top), max(0, right - left)), np.uint8)
        own, (_, rows, columns) = self.geometry, self.prototypes.shape
        first_x, across = _cells_under(left, right, own.scale_x, own.offset_x, columns)
        first_y, down = _cells_under(top, bottom, own.scale_y, own.offset_y, rows)
        cells = self.prototypes[:, down, across]
        values = (self.coefficients[index] @ cells.reshape(len(cells), -1)).reshape(cells.shape[1:])
        values = cv2.warpAffine(
            values,
            np.array([[own.scale_x, 0, first_x], [0, own.scale_y, first_y]]),
            (right - left, bottom - top),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return left, top, (values > 0).astype(np.uint8)

    def outlines(self, index: int, box_xyxy: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return polygons around one object's mask within its box, the largest first: float32 (points, 2), pixels."""
        from edge_sdk.core.opencv import cv2

        left, top, seen = self.within(index, box_xyxy)
        if not seen.size:
            return []
        found, _ = cv2.findContours(seen, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top))
        outlines = [cv2.approxPolyDP(outline, _OUTLINE_PX, closed=True)[:, 0] for outline in found]
        areas = [cv2.contourArea(outline) for outline in outlines]
        order = np.argsort(areas)[::-1]
        return [outlines[place].astype(np.float32) for place in order if areas[place] > 0]


def _cells_under(start: int, stop: int, scale: float, offset: float, count: int) -> tuple[float, slice]:
    """Return the cells that pixels start..stop are interpolated from, after the first pixel's place among them."""
    low, high = ((pixel + 0.5) * scale + offset - 0.5 for pixel in (start, stop - 1))
    first = min(max(0, math.floor(low)), count - 1)
    return low - first, slice(first, max(first + 1, math.floor(high) + 2))


_OUTLINE_PX = 1.0  # largest distance in pixels of a simplified polygon from the mask's outline


class Detections(Result, frozen=True, eq=False, gc=False):
    """Objects found in one frame, most confident first.

    Attributes:
        xyxy: float32 (N, 4), clipped, in pixels of the original frame.
        confidence: float32 (N,), 0-1.
        class_id: int64 (N,), lines of labels.txt from 0.
        keypoints: float32 (N, K, 3), x and y in pixels of the original frame and a confidence 0-1; None for models
            without keypoints.
        masks: the objects' masks; None for models without masks. `mask` returns them at the frame's resolution.
        corners: float32 (N, 4, 2), x and y of the corners of oriented boxes in pixels of the original frame, clockwise
            from the object's own top left one, not clipped; `xyxy` encloses them. None for models without them.
        tracker_id: int64 (N,), ids of the objects across frames, if your program sets them with a tracker.
        data: further arrays of length N that your program sets, by name; selecting objects also selects from these.
        then: the second model's result for each object, None where it did not run; None without a second model.
    """

    xyxy: NDArray[np.float32]
    confidence: NDArray[np.float32]
    class_id: NDArray[np.int64]
    keypoints: NDArray[np.float32] | None = None
    masks: Masks | None = None
    corners: NDArray[np.float32] | None = None
    tracker_id: NDArray[np.int64] | None = None
    data: Mapping[str, NDArray[Any]] = {}
    then: tuple[Result | None, ...] | None = None

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.confidence)

    def __getitem__(self, chosen: int | slice | list[int] | NDArray[Any]) -> Detections:
        """Return the objects selected by an index, a slice, bool (N,), or integers in any order."""
        places = np.atleast_1d(np.arange(len(self))[chosen])
        names = "xyxy", "confidence", "class_id", "keypoints", "corners", "tracker_id"
        arrays = {name: values[places] for name in names if (values := getattr(self, name)) is not None}
        return msgspec.structs.replace(
            self,
            **arrays,
            masks=None if self.masks is None else self.masks.of(places),
            data={name: np.asarray(values)[places] for name, values in self.data.items()},
            then=None if self.then is None else tuple(self.then[place] for place in places.tolist()),
        )

    def __iter__(self) -> Iterator[Detections]:
        """Yield each object as `Detections` of length 1."""
        return (self[place] for place in range(len(self)))

    def of_classes(self, class_ids: Collection[int], /) -> Detections:
        """Return the objects of these classes."""
        return self[np.isin(self.class_id, list(class_ids))]

    def on(self, image: Image) -> Detections:
        """Return the same objects for the same picture at another size, uint8 (H, W, 3), BGR."""
        x, y = image.shape[1] / self.frame.image.shape[1], image.shape[0] / self.frame.image.shape[0]
        own = self.masks
        return msgspec.structs.replace(
            self,
            frame=msgspec.structs.replace(self.frame, image=image),
            xyxy=self.xyxy * np.array([x, y, x, y], np.float32),
            keypoints=None if self.keypoints is None else self.keypoints * np.array([x, y, 1], np.float32),
            masks=None if own is None else msgspec.structs.replace(own, geometry=own.geometry.on(x, y)),
            corners=None if self.corners is None else self.corners * np.array([x, y], np.float32),
        )

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the fields of each object as in messages: label, class_id, confidence, box_xyxy and optional ones."""
        rows = zip(self.labels, self.class_id.tolist(), self.confidence.tolist(), self.xyxy.tolist(), strict=True)
        keys = "label", "class_id", "confidence", "box_xyxy"
        objects = [dict(zip(keys, row, strict=True)) for row in rows]
        for key, points in ("keypoints", self.keypoints), ("corners", self.corners):
            if points is not None:
                objects = [{**one, key: own} for one, own in zip(objects, points.tolist(), strict=True)]
        for one, then in zip(objects, self.then or (), strict=False):
            if then is not None:
                one["then"] = {"labels": then.labels, "confidence": then.confidence.tolist()}
        return {"detections": objects}

    def to_supervision(self) -> Any:
        """Return a `supervision.Detections`; the package `supervision` must be installed."""
        supervision: Any = importlib.import_module("supervision")
        data = {**self.data, "class_name": np.array(self.labels, dtype=str)}
        if self.corners is not None:
            data["xyxyxyxy"] = self.corners  # the key from which supervision's annotators read oriented boxes
        return supervision.Detections(
            xyxy=self.xyxy,
            mask=self.mask,
            confidence=self.confidence,
            class_id=self.class_id,
            tracker_id=self.tracker_id,
            data=data,
        )

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Mask of each object within its box, bool (N, frame height, frame width); None for models without masks."""
        if self.masks is None:
            return None
        pixels = np.zeros((len(self.xyxy), *self.frame.image.shape[:2]), np.bool_)
        for index, box in enumerate(self.xyxy):
            left, top, seen = self.masks.within(index, box)
            pixels[index, top : top + seen.shape[0], left : left + seen.shape[1]] = seen
        return pixels

    def rle(self, index: int) -> dict[str, list[int]] | None:
        """Return an object's mask as COCO's uncompressed RLE, column by column; None for models without masks."""
        if self.masks is None:
            return None
        left, top, seen = self.masks.within(index, self.xyxy[index])
        height, width = self.frame.image.shape[:2]
        pixels = np.zeros((width, height), np.uint8)  # in the order of the runs
        pixels[left : left + seen.shape[1], top : top + seen.shape[0]] = seen.T
        changes = np.flatnonzero(np.diff(pixels.ravel(), prepend=0, append=2))  # the first run is of zeros
        return {"size": [height, width], "counts": np.diff(changes, prepend=0).tolist()}

    def polygons(self, index: int) -> list[NDArray[np.float32]]:
        """Return the outlines of an object's mask, the largest first: float32 (points, 2), pixels of the frame."""
        return [] if self.masks is None else self.masks.outlines(index, self.xyxy[index])


class Classification(Result, frozen=True, eq=False, gc=False):
    """The most likely classes of one frame, most likely first.

    Attributes:
        confidence: float32 (K,), 0-1; the confidences of all classes sum to 1.
        class_id: int64 (K,). With a background class it is the output index - 1, and -1 is the background.
    """

    confidence: NDArray[np.float32]
    class_id: NDArray[np.int64]

    def of_classes(self, class_ids: Collection[int], /) -> Classification:
        """Return the result reduced to these classes; classes that are not in the result are not added."""
        chosen = np.isin(self.class_id, list(class_ids))
        return msgspec.structs.replace(self, confidence=self.confidence[chosen], class_id=self.class_id[chosen])


NO_CLASS = 255
"""Value in a class map where no class is known; the classes themselves are 0 to 254."""


class Segmentation(Result, frozen=True, eq=False, gc=False):
    """The class of every cell of one frame.

    Attributes:
        class_map: uint8 (H, W), lines of labels.txt from 0, or `NO_CLASS`; it has the output's resolution and covers
            the model's whole input with its padding.
        geometry: position of the frame in `class_map`: map_px = frame_px * scale + offset.
        shares: float32 (C,), 0-1: share of each class in the picture's cells without padding. They sum to 1, or to less
            if cells have no class.
    """

    class_map: NDArray[np.uint8]
    geometry: Geometry
    shares: NDArray[np.float32]

    @property
    def class_id(self) -> NDArray[np.int64]:
        """The classes that the picture shows, int64 (N,), the largest first."""
        order: NDArray[np.int64] = np.argsort(-self.shares, kind="stable")
        return order[: np.count_nonzero(self.shares)]

    @property
    def confidence(self) -> NDArray[np.float32]:
        """The share of each of these classes, float32 (N,), 0-1."""
        return self.shares[self.class_id]

    def of_classes(self, class_ids: Collection[int], /) -> Segmentation:
        """Return the result reduced to these classes; cells of other classes become `NO_CLASS`."""
        chosen = np.isin(np.arange(NO_CLASS + 1), list(class_ids))
        class_map = np.where(chosen[self.class_map], self.class_map, np.uint8(NO_CLASS))
        shares = np.where(chosen[: len(self.shares)], self.shares, np.float32(0))
        return msgspec.structs.replace(self, class_map=class_map, shares=shares)

    def on(self, image: Image) -> Segmentation:
        """Return the same class map for the same picture at another size, uint8 (H, W, 3), BGR."""
        x, y = image.shape[1] / self.frame.image.shape[1], image.shape[0] / self.frame.image.shape[0]
        frame = msgspec.structs.replace(self.frame, image=image)
        return msgspec.structs.replace(self, frame=frame, geometry=self.geometry.on(x, y))

    def to_frame(self) -> NDArray[np.uint8]:
        """Return the class of every pixel of the original frame: the class of the nearest cell outside the padding.

        Returns:
            uint8 (frame height, frame width), a new array; `NO_CLASS` where the frame was cropped.
        """
        geometry, (height, width) = self.geometry, self.class_map.shape
        frame_wh = self.frame.size_wh
        picture_x, picture_y = geometry.cells_of_picture(frame_wh, (width, height))
        seen_x, columns = _cells_along(frame_wh[0], geometry.scale_x, geometry.offset_x, width, picture_x)
        seen_y, rows = _cells_along(frame_wh[1], geometry.scale_y, geometry.offset_y, height, picture_y)
        # Columns first, so that whole rows are then copied: six times as fast as one index with both.
        seen = self.class_map.take(columns, axis=1).take(rows, axis=0)
        if seen.shape == self.frame.image.shape[:2]:
            return seen
        pixels = np.full(self.frame.image.shape[:2], NO_CLASS, np.uint8)
        pixels[seen_y, seen_x] = seen
        return pixels


def _cells_along(
    length_px: int, scale: float, offset: float, count: int, picture: slice
) -> tuple[slice, NDArray[np.intp]]:
    """Return the pixels of one axis that lie on cells 0 to `count` - 1, and the nearest cell of `picture` for each."""
    cells = np.floor((np.arange(length_px) + 0.5) * scale + offset)
    first, end = np.searchsorted(cells, (0, count)).tolist()
    return slice(first, end), np.clip(cells[first:end], picture.start, picture.stop - 1).astype(np.intp)
