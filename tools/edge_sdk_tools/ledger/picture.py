"""side_by_side: what FP32 and INT8 see in one image, as one JPEG.

Owns the sizes and the captions; the results are drawn as the device draws them.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import msgspec
import numpy as np

from edge_sdk.core.frame import Detections, Geometry, Image, Result, Segmentation
from edge_sdk.events.annotate import Annotator

PANEL_PX = 480
"""The longer side of each half: texts stay readable, and a dozen pictures are about a megabyte."""

_CAPTION_PX = 26
_GAP_PX = 8
_LEAST_WIDTH_PX = 64
_GROUND = (46, 40, 36)  # BGR, dark in a light page and in a dark one
_INK = (235, 235, 235)
_JPEG_QUALITY = 85


def side_by_side(
    image: Image, fp32_result: Result, int8_result: Result, labels: Sequence[str], *, background_class: bool = False
) -> bytes:
    """Draw both results on copies of an image, FP32 left and INT8 right.

    Args:
        image: uint8 (H, W, 3), BGR, that both were asked about; stays as it is.
        fp32_result: in pixels of `image`, drawn left.
        int8_result: the same, drawn right.
        labels: one a class, in output order.
        background_class: of a classifier: whether the first label is the background.

    Returns:
        JPEG.
    """
    annotator = Annotator(labels, background_class=background_class)
    factor = PANEL_PX / max(image.shape[:2])
    size_wh = max(1, round(image.shape[1] * factor)), max(1, round(image.shape[0] * factor))
    # Drawn after scaling: lines and letters then have the same size in every picture.
    way = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    small = cv2.resize(image, size_wh, interpolation=way).astype(np.uint8, copy=False)
    halves = [
        _half(small, image, result, annotator, name) for result, name in ((fp32_result, "FP32"), (int8_result, "INT8"))
    ]
    gap = np.full((halves[0].shape[0], _GAP_PX, 3), _GROUND, np.uint8)
    _, data = cv2.imencode(".jpg", np.hstack([halves[0], gap, halves[1]]), [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return data.tobytes()


def _half(small: Image, image: Image, result: Result, annotator: Annotator, name: str) -> Image:
    picture = small.copy()
    annotator.draw(picture, _scaled(result, image, picture))
    height_px, width_px = picture.shape[:2]
    canvas = np.full((_CAPTION_PX + height_px, max(width_px, _LEAST_WIDTH_PX), 3), _GROUND, np.uint8)
    canvas[_CAPTION_PX:, :width_px] = picture
    cv2.putText(canvas, name, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, _INK, 1, cv2.LINE_AA)
    return canvas


def _scaled(result: Result, image: Image, small: Image) -> Result:
    """The same result, in pixels of the small picture."""
    factor_x, factor_y = small.shape[1] / image.shape[1], small.shape[0] / image.shape[0]
    frame = msgspec.structs.replace(result.frame, image=small)
    if isinstance(result, Detections):
        boxes = result.boxes_xyxy * np.array([factor_x, factor_y] * 2, np.float32)
        return msgspec.structs.replace(result, frame=frame, boxes_xyxy=boxes)
    if isinstance(result, Segmentation):
        old = result.geometry
        geometry = Geometry(old.scale_x / factor_x, old.scale_y / factor_y, old.offset_x, old.offset_y)
        return msgspec.structs.replace(result, frame=frame, geometry=geometry)
    return msgspec.structs.replace(result, frame=frame)
