"""What a detector says of single objects beside their boxes: keypoints, and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_sdk.core.frame import Geometry, Masks, Prepared, Tensor
from edge_sdk.tasks.boxes import Floats


class ReadKeypoints:
    """Reads points that lie one after the other in an object's row: x, y in input pixels, and perhaps a confidence.

    Args:
        count: points of an object.
        values: numbers of a point, 2 or 3.
    """

    def __init__(self, count: int, values: int) -> None:
        self._shape = (count, values)
        self.width = count * values

    def __call__(self, _outputs: Sequence[Tensor], extras: Floats, prepared: Prepared) -> dict[str, Any]:
        """Return `keypoints` of float32 (N, `width`): all 0 where a value is no number."""
        points = np.ones((len(extras), self._shape[0], 3), np.float32)
        points[..., : self._shape[1]] = extras.reshape(-1, *self._shape)
        geometry = prepared.geometry
        points[..., 0] = (points[..., 0] - geometry.offset_x) / geometry.scale_x
        points[..., 1] = (points[..., 1] - geometry.offset_y) / geometry.scale_y
        points[~np.isfinite(points).all(axis=2)] = 0
        return {"keypoints": points}


class ReadMasks:
    """Reads masks that are sums of prototypes, float (1, M, h, w), weighted by an object's M coefficients.

    Args:
        count: M.
        input_wh: the input's width and height in pixels, which the prototypes cover.
    """

    def __init__(self, count: int, input_wh: tuple[int, int]) -> None:
        self.width, self._input_wh = count, input_wh

    def __call__(self, outputs: Sequence[Tensor], extras: Floats, prepared: Prepared) -> dict[str, Any]:
        """Return `masks` of float32 (N, M) and the prototypes, which are the second output."""
        prototypes = outputs[1][0]
        rows, columns = prototypes.shape[1:]
        values = (extras @ prototypes.reshape(len(prototypes), -1)).reshape(-1, rows, columns)
        x, y = columns / self._input_wh[0], rows / self._input_wh[1]
        own = prepared.geometry
        return {"masks": Masks(values, Geometry(own.scale_x * x, own.scale_y * y, own.offset_x * x, own.offset_y * y))}
