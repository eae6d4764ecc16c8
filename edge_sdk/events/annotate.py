"""Results drawn on pictures: boxes with labels, the likeliest classes, class maps as translucent colours.

Draws on copies the caller owns, never on a source's frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edge_sdk.core.frame import Classification, Detections, Image, Result, Segmentation
from edge_sdk.core.opencv import cv2

_STRENGTH = 0.4  # of the colour; the rest is the picture
_PAINTED = 255


_FONT = cv2.FONT_HERSHEY_SIMPLEX
_TOP_CLASSES = 3
_LARGEST_CLASSES = 5
_LEAST_SHARE = 0.005  # of the picture: what is smaller would be written as 0 %
_REFERENCE_PX = 720  # the shorter side at which the sizes below are right
_GOLDEN_RATIO = 0.618034  # steps of it around the colour circle keep neighbouring classes far apart

_Colour = tuple[int, int, int]


class _Pen(NamedTuple):
    """Sizes for one picture, in pixels; `scale` is OpenCV's for fonts."""

    line_px: int
    text_px: int
    scale: float
    margin_px: int


class Annotator:
    """Draws results on pictures.

    Args:
        labels: one a class, in output order.
        background_class: of a classifier: whether the first label is the background, whose class id is -1.
    """

    def __init__(self, labels: Sequence[str], *, background_class: bool = False) -> None:
        self._labels = tuple(labels)
        self._offset = int(background_class)
        self._colours = np.zeros((256, 1, 3), np.uint8)  # of classes that are painted
        self._is_painted = np.zeros(256, np.uint8)
        for class_id, label in enumerate(self._labels[:256]):
            colour = _segment_colour(class_id, label)
            if colour is not None:
                self._colours[class_id], self._is_painted[class_id] = colour, _PAINTED

    def draw(self, image: Image, result: Result) -> None:
        """Draw a result on a picture, in place."""
        pen = _pen_for(image)
        if isinstance(result, Detections):
            self._draw_detections(image, result, pen)
        elif isinstance(result, Segmentation):
            self._draw_segments(image, result, pen)
        else:
            self._draw_classes(image, result, pen)

    def _draw_detections(self, image: Image, result: Detections, pen: _Pen) -> None:
        usable = np.isfinite(result.boxes_xyxy).all(axis=1)
        # The most confident last, and the texts after the boxes, so that they lie on top.
        order = np.flatnonzero(usable)[::-1].tolist()
        corners = [[round(v) for v in result.boxes_xyxy[i].tolist()] for i in order]
        for index, (x1, y1, x2, y2) in zip(order, corners, strict=True):
            colour = class_colour(int(result.class_ids[index]))
            cv2.rectangle(image, (x1, y1), (x2, y2), colour, pen.line_px, cv2.LINE_AA)
        for index, (x1, y1, _, _) in zip(order, corners, strict=True):
            class_id = int(result.class_ids[index])
            text = f"{self._name(class_id)} {result.confidences[index]:.0%}"
            _draw_tag(image, text, (x1 - pen.line_px // 2, y1), class_colour(class_id), pen)

    def _draw_classes(self, image: Image, result: Classification, pen: _Pen) -> None:
        y = pen.margin_px
        for class_id, confidence in zip(
            result.class_ids[:_TOP_CLASSES], result.confidences[:_TOP_CLASSES], strict=True
        ):
            text = f"{self._name(int(class_id), self._offset)} {confidence:.0%}"
            y = _draw_tag(image, text, (pen.margin_px, y), class_colour(int(class_id)), pen, above=False)

    def _draw_segments(self, image: Image, result: Segmentation, pen: _Pen) -> None:
        class_map = result.to_frame()
        painted = cv2.LUT(class_map, self._is_painted)
        colours = cv2.applyColorMap(class_map, self._colours)
        cv2.copyTo(cv2.addWeighted(image, 1 - _STRENGTH, colours, _STRENGTH, 0), painted, image)
        # The largest id around a pixel less the smallest: above 0 where two classes meet, and a line is drawn.
        around = np.ones((pen.line_px + 1, pen.line_px + 1), np.uint8)
        borders = cv2.morphologyEx(class_map, cv2.MORPH_GRADIENT, around)
        cv2.copyTo(colours, cv2.bitwise_and(borders, painted), image)
        y = pen.margin_px
        for class_id in np.argsort(-result.shares, kind="stable")[:_LARGEST_CLASSES].tolist():
            share, colour = float(result.shares[class_id]), _segment_colour(class_id, self._name(class_id))
            if colour is not None and share >= _LEAST_SHARE and y < image.shape[0] // 2:
                text = f"{self._name(class_id)} {share:.0%}"
                y = _draw_tag(image, text, (pen.margin_px, y), colour, pen, above=False)

    def _name(self, class_id: int, offset: int = 0) -> str:
        index = class_id + offset
        return self._labels[index] if 0 <= index < len(self._labels) else f"class {class_id}"


def _segment_colour(class_id: int, label: str) -> _Colour | None:
    """Return a class's colour, BGR; None for the background, which is painted in no colour."""
    return None if label.strip("_ ").casefold() == "background" else class_colour(class_id)


def class_colour(class_id: int) -> tuple[int, int, int]:
    """Return the colour of a class, BGR 0-255: always the same, bright, unlike its neighbours'."""
    hue = (0.05 + class_id * _GOLDEN_RATIO) % 1.0
    hsv = np.array([[[int(hue * 180), 200, 240]]], np.uint8)
    blue, green, red = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0].tolist()
    return blue, green, red


def _pen_for(image: Image) -> _Pen:
    factor = min(image.shape[:2]) / _REFERENCE_PX
    scale = min(max(0.75 * factor, 0.45), 3.0)
    text_px = max(1, round(1.5 * scale))
    return _Pen(line_px=max(1, round(3 * factor)), text_px=text_px, scale=scale, margin_px=max(2, round(6 * scale)))


def _draw_tag(
    image: Image, text: str, at_xy: tuple[int, int], colour: _Colour, pen: _Pen, *, above: bool = True
) -> int:
    """Write a text on a filled background that stays inside the picture; returns where it ends, y in pixels."""
    height_px, width_px = int(image.shape[0]), int(image.shape[1])
    text, (text_w, text_h), below_px = _fit_text(text, width_px - 2 * pen.margin_px, pen)
    tag_w, tag_h = text_w + 2 * pen.margin_px, text_h + below_px + pen.margin_px
    y = at_xy[1] - tag_h if above and at_xy[1] >= tag_h else at_xy[1]
    x, y = max(0, min(at_xy[0], width_px - tag_w)), max(0, min(y, height_px - tag_h))
    cv2.rectangle(image, (x, y), (x + tag_w - 1, y + tag_h - 1), colour, cv2.FILLED)
    origin = (x + pen.margin_px, y + tag_h - below_px - pen.margin_px // 2)
    cv2.putText(image, text, origin, _FONT, pen.scale, _readable_on(colour), pen.text_px, cv2.LINE_AA)
    return y + tag_h


def _fit_text(text: str, room_px: int, pen: _Pen) -> tuple[str, Sequence[int], int]:
    """Shorten a text until it fits; returns it with its size (width, height above, below the line) in pixels."""
    size_wh, below_px = cv2.getTextSize(text, _FONT, pen.scale, pen.text_px)
    while size_wh[0] > room_px and len(text) > 1:
        text = text[: max(1, min(len(text) - 1, len(text) * room_px // size_wh[0]))]
        size_wh, below_px = cv2.getTextSize(text, _FONT, pen.scale, pen.text_px)
    return text, size_wh, below_px


def _readable_on(colour: _Colour) -> _Colour:
    """Return black or white, by the luma of the ground (ITU-R BT.601)."""
    blue, green, red = colour
    return (0, 0, 0) if 0.114 * blue + 0.587 * green + 0.299 * red > 128 else (255, 255, 255)
