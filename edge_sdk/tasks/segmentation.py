"""Decode segmentation: make a class map and the share of each class from class scores or class ids for every cell."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import NO_CLASS, Geometry, Inferred, Segmentation, Tensor
from edge_sdk.core.opencv import cv2

_BLOCK = 32768  # cells at a time: their 320 KB of data stay in a core's L2 cache


class Segment:
    """The decode stage of a segmenter; only one thread at a time may call it, because its reader has buffers.

    Its reader makes a new class map uint8 (H, W), `NO_CLASS` where a cell has no class, and says in `marks_nan` whether
    that always means a NaN among the scores.
    """

    def __init__(self, read: HighestScore | ClassIds, class_count: int, input_wh: tuple[int, int]) -> None:
        self._read = read
        self._class_count = class_count
        self._input_wh = input_wh
        self.names: Mapping[int, str] = {}  # labels by class id, for the results

    def __call__(self, inferred: Inferred, /) -> Segmentation:
        """Read the output of one frame; raise a ModelError where it has another type than the decoder reads."""
        prepared = inferred.prepared
        class_map = self._read(inferred.outputs[0])
        height, width = class_map.shape
        geometry, picture = _place(prepared.geometry, prepared.frame.size_wh, self._input_wh, (width, height))
        cells = class_map[picture]
        # This takes a quarter of the time of numpy's bincount, which first makes integers of 8 bytes.
        counts = cv2.calcHist([cells], [0], None, [256], [0, 256]).reshape(-1)
        shares = (counts[: self._class_count] / cells.size).astype(np.float32)
        is_finite = not (self._read.marks_nan and counts[NO_CLASS])
        return Segmentation(
            prepared.frame, inferred.inference_ns, class_map, geometry, shares, is_finite, names=self.names
        )


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
    """Return the position of the frame in the class map, and the rows and columns of the map without padding."""
    x, y = map_wh[0] / input_wh[0], map_wh[1] / input_wh[1]
    on_map = Geometry(on_input.scale_x * x, on_input.scale_y * y, on_input.offset_x * x, on_input.offset_y * y)
    columns, rows = on_map.cells_of_picture(frame_wh, map_wh)
    return on_map, (rows, columns)
