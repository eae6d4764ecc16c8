"""Finite: whether a detector's outputs are numbers, in frames in which something was found.

Grid: the cells of a detector's levels, in the order in which exporters flatten them.

Level by level, in each row by row. A stride that does not divide the input is rounded up, as convolutions with padding
do it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Tensor

_A_FRAME = 4096
"""Values that may be looked at for a frame, on average: a quarter of a microsecond, where decoding takes 40 to 180."""


class Finite:
    """Looks at confidences in every frame, and at all else in the first and in every n-th.

    A model that gives NaN for some places gives it again and again: YOLOv8 at 640 pixels is looked at in every 172nd
    frame with objects. After one with a fault every frame is, until there is none.
    """

    def __init__(self) -> None:
        self._left = 0

    def __call__(self, confidences: NDArray[np.float32], outputs: Sequence[Tensor]) -> bool:
        """Whether these are numbers, as far as it looks.

        Args:
            confidences: float32 (N,), of what was found.
            outputs: all of the model's.
        """
        if not math.isfinite(np.vdot(confidences, confidences)):
            return False
        self._left -= 1
        return self._left > 0 or self._look(outputs)

    def _look(self, outputs: Sequence[Tensor]) -> bool:
        is_finite = are_finite(outputs)
        self._left = sum(output.size for output in outputs) // _A_FRAME if is_finite else 0
        return is_finite


def are_finite(outputs: Sequence[Tensor]) -> bool:
    """Whether all values are numbers: a maximum hands a NaN on. Minus infinity is how some models say "never"."""
    return all(math.isfinite(output.max()) for output in outputs if output.size)


def level_size(size_wh: tuple[int, int], stride: int) -> tuple[int, int]:
    """Columns and rows of one level."""
    return -(-size_wh[0] // stride), -(-size_wh[1] // stride)


def cell_count(size_wh: tuple[int, int], *strides: int) -> int:
    """Cells of all these levels."""
    return sum(columns * rows for columns, rows in (level_size(size_wh, stride) for stride in strides))


def cells_of(size_wh: tuple[int, int], strides: Sequence[int]) -> NDArray[np.float32]:
    """Float32 (N, 3): column, row and stride of every cell; a cell begins at column * stride, row * stride pixels."""
    levels = []
    for stride in strides:
        columns, rows = level_size(size_wh, stride)
        row, column = np.divmod(np.arange(rows * columns), columns)
        levels.append(np.stack([column, row, np.full_like(row, stride)], axis=1))
    return np.concatenate(levels).astype(np.float32)
