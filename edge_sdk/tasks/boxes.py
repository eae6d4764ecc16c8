"""Candidate boxes, the types of box decoders, and the arithmetic that decoders share.

A detector's output has levels, each a grid of cells with one stride. Exporters flatten the levels one after the other,
each row by row. Where a stride does not divide the input, the number of cells is rounded up, as padded convolutions do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Prepared, Tensor
from edge_sdk.tasks.spec import Thresholds

Floats: TypeAlias = NDArray[np.float32]

STRIDES = (8, 16, 32)
"""Strides in pixels of the levels of most detectors."""
MAX_CANDIDATES = 1000
"""Maximum number of candidates passed to suppression, the most confident ones; bounds the cost of a frame of noise."""
MAX_SIZE_LOGIT = np.float32(20)
"""exp(20) is beyond any picture; larger logits are noise that would overflow."""

_HALF = np.float32(0.5)
_SLACK = 1e-3  # subtracted from threshold logits, so that rounding does not drop confidences equal to the threshold


class Candidates(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Boxes before overlaps and confidences below the threshold are removed.

    Attributes:
        boxes_xywh: float32 (N, 4), left, top, width, height in pixels of the model's input.
        confidences: float32 (N,), 0-1.
        class_ids: int64 (N,).
        extras: float32 (N, values), further values of each object, read by `Reader.details`; None if there are none.
        highest: the largest value of the decoder's inputs, NaN if one is NaN; None if the decoder did not read all.
    """

    boxes_xywh: Floats
    confidences: Floats
    class_ids: NDArray[np.int64]
    highest: float | None = None
    extras: Floats | None = None


NO_CANDIDATES = Candidates(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64))

Decode: TypeAlias = Callable[[Sequence[Tensor]], Candidates]
"""Function that reads the outputs of one family of detectors, batch 1, in the decoder's own order."""

Keep: TypeAlias = Callable[[Candidates, Thresholds], NDArray[np.int64]]
"""Function that suppresses overlaps within each class and returns the kept indices, the most confident first."""


class Reader(NamedTuple):
    """A decoder of objects with keypoints, masks or oriented boxes.

    Attributes:
        decode: returns candidates with `extras`.
        details: (outputs, extras of the kept objects, frame) -> fields of `Detections` by name.
        width: number of extra values of an object.
        keep: suppresses overlaps; None to suppress overlaps of the upright boxes.
    """

    decode: Decode
    details: Callable[[Sequence[Tensor], Floats, Prepared], Mapping[str, Any]]
    width: int
    keep: Keep | None = None


def level_size(size_wh: tuple[int, int], stride: int) -> tuple[int, int]:
    """Return columns and rows of the level with this stride, for an input of `size_wh` pixels."""
    return -(-size_wh[0] // stride), -(-size_wh[1] // stride)


def cell_count(size_wh: tuple[int, int], *strides: int) -> int:
    """Return how many cells the levels with these strides have together."""
    return sum(columns * rows for columns, rows in (level_size(size_wh, stride) for stride in strides))


def cells_of(size_wh: tuple[int, int], strides: Sequence[int]) -> Floats:
    """Return column, row and stride of every cell.

    Returns:
        float32 (N, 3), level by level; a cell begins at (column * stride, row * stride) pixels of the input.
    """
    levels = []
    for stride in strides:
        columns, rows = level_size(size_wh, stride)
        row, column = np.divmod(np.arange(rows * columns), columns)
        levels.append(np.stack([column, row, np.full_like(row, stride)], axis=1))
    return np.concatenate(levels).astype(np.float32)


def rows_of(counts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the indices of the rows of bool (N, classes), C-contiguous, that contain a True: int64 (M,), ascending.

    Few are True, so eight are tested at once: a tenth of the time of each row's maximum.
    """
    flat = counts.reshape(-1)
    end = len(flat) // 8 * 8
    eights = np.flatnonzero(flat[:end].view(np.uint64) != 0)
    which, place = flat[:end].reshape(-1, 8)[eights].nonzero()
    found = np.concatenate([8 * eights[which] + place, end + np.flatnonzero(flat[end:])]) // counts.shape[1]
    rows: NDArray[np.int64] = found[np.diff(found, prepend=-1) > 0]
    return rows


def best_classes(scores: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the highest score of each row of float32 (N, classes), and its column; a NaN counts as the highest.

    Picking the score by its column takes a tenth of the time of each row's maximum.
    """
    class_ids = scores.argmax(axis=1)
    return scores[np.arange(len(scores)), class_ids], class_ids


def strongest(confidences: Floats) -> NDArray[np.int64]:
    """Return the indices of the `MAX_CANDIDATES` largest of float32 (N,), ties to the first: int64 (M,), ascending."""
    order: NDArray[np.int64] = np.argsort(-confidences, kind="stable")[:MAX_CANDIDATES]
    order.sort()
    return order


def pairs_within(
    starts: NDArray[np.float64], ends: NDArray[np.float64], most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the indices of all pairs of which the second starts at or after the first and before the first's end.

    Args:
        starts: float64 (N,), N at least 1.
        ends: float64 (N,).
        most: return None if there are more pairs.
    """
    order = starts.argsort()
    in_order, places = starts[order], np.arange(len(order))
    counts = np.maximum(in_order.searchsorted(ends[order]) - places - 1, 0)  # how many follow each before its end
    stops = counts.cumsum()
    if most is not None and stops[-1] > most:
        return None
    second = np.arange(stops[-1]) + (places + 1 - stops + counts).repeat(counts)
    return order[places.repeat(counts)], order[second]


def lowest_logit(confidence: float) -> np.float32:
    """Return the logit of a confidence, lowered so that rounding loses no equal value; finite for 0 and 1 too."""
    bounded = min(max(confidence, 1e-9), 1 - 1e-9)
    logit: np.float32 = np.float32(math.log(bounded / (1 - bounded)) - _SLACK)
    return logit


def sigmoid(logits: Floats) -> Floats:
    """Return 1 / (1 + exp(-logits)), a new array; by tanh, which cannot overflow."""
    probabilities: Floats = np.tanh(logits * _HALF)
    probabilities *= _HALF
    probabilities += _HALF
    return probabilities


def softmax(logits: Floats) -> Floats:
    """Return the softmax over the last axis, a new array."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def sizes_of(logits: Floats) -> Floats:
    """Return exp(logits), with logits limited to `MAX_SIZE_LOGIT`."""
    sizes: Floats = np.exp(np.minimum(logits, MAX_SIZE_LOGIT))
    return sizes


def corner_boxes(rows: Floats) -> Floats:
    """Convert float32 (N, 4+), of which the first four are centre and size, to (N, 4): left, top, width, height."""
    boxes: Floats = rows[:, :4].copy()
    boxes[:, :2] -= boxes[:, 2:] * _HALF
    return boxes


def boxes_between(corners: Floats) -> Floats:
    """Convert float32 (N, 4) from left, top, right, bottom to left, top, width, height; return a new array."""
    boxes: Floats = corners.copy()
    boxes[:, 2:] -= boxes[:, :2]
    return boxes
