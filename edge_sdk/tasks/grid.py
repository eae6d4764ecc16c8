"""Grid: the cells of a detector's levels, in the order in which exporters flatten them.

Level by level, in each row by row. A stride that does not divide the input is rounded up, as convolutions with padding
do it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
