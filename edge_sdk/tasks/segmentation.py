"""Segmentation: class scores or class ids for every cell -> a class map and the share of each class.

OpenCV is imported only when a model runs, because reading manifests and messages does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import NO_CLASS, Geometry, Inferred, Segmentation, Tensor
from edge_sdk.core.logs import counted
from edge_sdk.tasks.entry import Count, ResultItem, ResultMessage, StageParts, TaskEntry, Unit
from edge_sdk.tasks.outputs import COLUMNS, ROWS, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Colour, Drawing

_BLOCK = 32768  # cells at a time: their 320 KB of data stay in a core's L2 cache


class Segment:
    """Decode stage of a segmentation model; not thread-safe, because the reader reuses buffers.

    The reader returns a new class map, uint8 (H, W), with `NO_CLASS` for cells without a class. Its `marks_nan` is True
    if `NO_CLASS` always means a NaN among the scores.
    """

    def __init__(
        self, read: HighestScore | ClassIds, class_count: int, input_wh: tuple[int, int], names: Mapping[int, str]
    ) -> None:
        self._read, self._names = read, names
        self._class_count = class_count
        self._input_wh = input_wh

    def __call__(self, inferred: Inferred, /) -> Segmentation:
        """Read the output of one frame; raise ModelError if its dtype is not one that the decoder reads."""
        from edge_sdk.core.opencv import cv2

        prepared = inferred.prepared
        class_map = self._read(inferred.outputs[0])
        height, width = class_map.shape
        geometry, picture = _place(prepared.geometry, prepared.frame.size_wh, self._input_wh, (width, height))
        cells = class_map[picture]
        # This takes a quarter of the time of numpy's bincount, which first converts to integers of 8 bytes.
        counts = cv2.calcHist([cells], [0], None, [256], [0, 256]).reshape(-1)
        shares = (counts[: self._class_count] / cells.size).astype(np.float32)
        is_finite = not (self._read.marks_nan and counts[NO_CLASS])
        found = prepared.frame, inferred.inference_ns, class_map, geometry, shares
        return Segmentation(*found, is_finite=is_finite, names=self._names)


class HighestScore:
    """Reads an output with one score for each class and cell; the class of a cell is the first with the highest score.

    A cell with a NaN among its scores has no class. Otherwise the result is that of numpy's argmax, in an eighth of its
    time. Over an axis that is not the last, argmax steps from plane to plane for each cell; this class compares each
    plane with the best scores so far, many cells per instruction.

    Args:
        class_axis: 1 for float (1, C, H, W), 3 for float (1, H, W, C).
    """

    marks_nan = True

    def __init__(self, class_axis: int) -> None:
        self._is_last = class_axis == 3
        self._wins = np.empty(_BLOCK, np.bool_)
        # The first output determines the type and size of these buffers.
        self._best: Tensor = np.empty(0, np.bool_)
        self._planes: Tensor = self._best

    def __call__(self, output: Tensor, /) -> NDArray[np.uint8]:
        """Read the output of one frame; raise a ModelError where it does not hold floats."""
        if output.dtype.kind != "f":
            raise ModelError(
                f"decoder logits: output 0 is {output.dtype}, expected float32, one score a class; "
                'of class ids the decoder is "argmax"'
            )
        if output.dtype != self._best.dtype:
            self._make_buffers(output)
        class_map = np.zeros(output.shape[1:3] if self._is_last else output.shape[2:], np.uint8)
        cells = class_map.reshape(-1)
        scores = output.reshape(len(cells), -1) if self._is_last else output.reshape(-1, len(cells))
        for first in range(0, len(cells), _BLOCK):
            block = slice(first, first + _BLOCK)
            self._read_block(self._as_planes(scores[block]) if self._is_last else scores[:, block], cells[block])
        return class_map

    def _make_buffers(self, output: Tensor) -> None:
        self._best = np.empty(_BLOCK, output.dtype)
        if self._is_last:
            self._planes = np.empty(output.shape[3] * _BLOCK, output.dtype)

    def _as_planes(self, scores: Tensor) -> Tensor:
        """Turn scores (N, C) into (C, N), in a quarter of the time that numpy's copy takes."""
        from edge_sdk.core.opencv import cv2

        count, classes = scores.shape
        planes = self._planes[: classes * count].reshape(classes, count)
        cv2.transpose(scores, dst=planes)
        return planes

    def _read_block(self, planes: Tensor, cells: NDArray[np.uint8]) -> None:
        """Fill uint8 (N,), which holds zeros, from scores (C, N)."""
        best, wins = self._best[: len(cells)], self._wins[: len(cells)]
        ids = wins.view(np.uint8)
        np.copyto(best, planes[0])
        for class_id, scores in enumerate(planes[1:], start=1):
            np.greater(scores, best, out=wins)
            # The id where the class wins, else 0: ids grow from class to class, so the largest is the last winner's.
            np.multiply(ids, np.uint8(class_id), out=ids)
            np.maximum(cells, ids, out=cells)
            np.maximum(best, scores, out=best)
        np.isnan(best, out=wins)  # np.maximum propagates NaN
        np.multiply(ids, np.uint8(NO_CLASS), out=ids)
        np.maximum(cells, ids, out=cells)


class ClassIds:
    """Reads an output of integer class ids; an id without a label becomes `NO_CLASS`."""

    marks_nan = False

    def __init__(self, class_count: int) -> None:
        self._known = np.arange(256, dtype=np.uint8)
        self._known[class_count:] = NO_CLASS

    def __call__(self, output: Tensor, /) -> NDArray[np.uint8]:
        """Read the output of one frame; raise a ModelError where it does not hold integers."""
        from edge_sdk.core.opencv import cv2

        if output.dtype.kind not in "iub":
            raise ModelError(
                f"decoder argmax: output 0 is {output.dtype}, expected integers, one class id a cell; if there is one "
                'score a class, the decoder is "logits"; a single score the model must compare with its threshold'
            )
        ids = output.reshape(output.shape[-2:])
        # Without the sign, negative ids are larger than any class; a bool is 0 or 1.
        positive = ids.view(f"u{ids.dtype.itemsize}")
        class_map = np.empty(ids.shape, np.uint8)
        np.minimum(positive, positive.dtype.type(NO_CLASS), out=class_map, casting="unsafe")
        cv2.LUT(class_map, self._known, dst=class_map)
        return class_map


@lru_cache(maxsize=16)  # frames rarely change their size
def _place(
    on_input: Geometry, frame_wh: tuple[int, int], input_wh: tuple[int, int], map_wh: tuple[int, int]
) -> tuple[Geometry, tuple[slice, slice]]:
    """Return the frame's position in the class map, and the slices of its rows and columns without padding."""
    on_map = on_input.in_cells(map_wh[0] / input_wh[0], map_wh[1] / input_wh[1])
    columns, rows = on_map.cells_of_picture(frame_wh, map_wh)
    return on_map, (rows, columns)


def _score_layouts(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    """Expect one score per class and cell, NCHW or NHWC; try the one with the input's aspect ratio first."""
    planes = ModelOutput((1, label_count, ROWS, COLUMNS), class_axis=1)
    cells = ModelOutput((1, ROWS, COLUMNS, label_count), class_axis=3)
    choices = [planes, cells] if spec.input.layout == "NCHW" else [cells, planes]
    first = got[0] if got else ()
    return [(output,) for output in sorted(choices, key=lambda o: not o.covers(first, spec.input.size_wh))]


def _make_scores(_spec: TaskSpec, label_count: int, layout: Layout) -> HighestScore:
    if label_count == 1:
        shown = "x".join(str(side) for side in layout[0].shape)
        raise ModelError(
            f"decoder logits: output {shown} has one value a cell, expected one a label; if it is a class id, the "
            'decoder is "argmax"; if it is a score, let the model compare it with its threshold and use "argmax" with '
            "two labels"
        )
    return HighestScore(layout[0].class_axis or 0)


_KEYPOINTS = 17  # COCO's keypoints of a person: 17 maps are mostly heatmaps of a pose model


def _are_keypoints(shape: Shape) -> bool:
    return len(shape) == 4 and any(shape[axis] == _KEYPOINTS != shape[2] for axis in (1, 3))


CELL_LOGITS = Decoder(
    name="logits",
    task="segmentation",
    layouts=_score_layouts,
    make=_make_scores,
    reads_first=True,
    is_shown=lambda seen: False if _are_keypoints(seen[0].shape or ()) else None,
)
ARGMAX = Decoder(
    name="argmax",
    task="segmentation",
    layouts=lambda _spec, _count, _got: [(ModelOutput((*ones, ROWS, COLUMNS), None),) for ones in ((1,), (1, 1))],
    make=lambda _spec, count, _layout: ClassIds(count),
    reads_first=True,
)


class SegmentItem(ResultItem, frozen=True, gc=False):
    """One class; share is the fraction of the picture that the class covers, 0-1."""

    class_id: Count
    share: Unit

    @property
    def strength(self) -> float:
        """The share, 0-1."""
        return self.share


class SegmentationMessage(ResultMessage, frozen=True, gc=False, kw_only=True, tag="segmentation"):
    """The classes that one frame shows, the largest share first."""

    news: ClassVar[int] = 3

    segments: list[SegmentItem]


_LARGEST_CLASSES = 5  # most class names drawn on a picture
_LEAST_SHARE = 0.005  # share of the picture below which a class is not named: it would be written as 0 %


def _items(result: Segmentation, label: Callable[[int], str]) -> list[SegmentItem]:
    shares = np.rint(result.shares.astype(np.float64) * 10_000) / 10_000
    ids = np.argsort(-shares, kind="stable")[: np.count_nonzero(shares)]
    return [SegmentItem(label(class_id), class_id, float(shares[class_id])) for class_id in ids.tolist()]


def _draw(drawing: Drawing, result: Segmentation) -> None:
    from edge_sdk.core.opencv import cv2

    class_map = result.to_frame()
    colours, is_painted = np.zeros((256, 1, 3), np.uint8), np.zeros(256, np.uint8)
    for class_id in range(len(result.shares)):
        colour = _colour(drawing, class_id)
        if colour is not None:
            colours[class_id], is_painted[class_id] = colour, 255
    painted, picture = np.asarray(cv2.LUT(class_map, is_painted), np.uint8), cv2.applyColorMap(class_map, colours)
    drawing.lay_over(np.asarray(picture, np.uint8), painted)
    # The gradient, largest minus smallest id around a pixel, is above 0 where classes meet: a border is drawn there.
    around = np.ones((drawing.line_px + 1, drawing.line_px + 1), np.uint8)
    borders = cv2.morphologyEx(class_map, cv2.MORPH_GRADIENT, around)
    cv2.copyTo(picture, cv2.bitwise_and(borders, painted), drawing.image)
    largest = zip(result.class_id.tolist()[:_LARGEST_CLASSES], result.confidence.tolist(), strict=False)
    drawing.column(
        (f"{drawing.name(class_id)} {share:.0%}", colour)
        for class_id, share in largest
        if (colour := _colour(drawing, class_id)) is not None and share >= _LEAST_SHARE
    )


def _colour(drawing: Drawing, class_id: int) -> Colour | None:
    """Return the colour of a class; None for a class named "background", which is not painted."""
    is_background = drawing.name(class_id).strip("_ ").casefold() == "background"
    return None if is_background else drawing.colour(class_id)


def _stage(parts: StageParts) -> Segment:
    count = len(parts.labels)
    if not 2 <= count <= NO_CLASS:
        hint = (
            'what is none of them is a class too: give it a line such as "background"'
            if count < 2
            else f"a class map has one byte a cell, and {NO_CLASS} says that there is no class"
        )
        raise ModelError(f"labels has {counted(count, 'line')}, expected 2 to {NO_CLASS} for segmentation; {hint}")
    return Segment(parts.read, count, parts.spec.input.size_wh, parts.names)


SEGMENTATION = TaskEntry("segmentation", Segmentation, SegmentationMessage, _items, _draw, _stage)
