"""From a frame to the model's input tensor: resize, letterbox or crop, colour order, normalisation.

Owns its buffers: after the first frame of a size nothing is allocated. The very code that calibration uses, so that the
numbers a model was quantized with are the numbers it meets. Bit-equal on one machine; across CPUs within one level of
255, because OpenCV's bilinear resize differs by that much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import ModelError
from edge_sdk.frame import Frame, Geometry, Image, Prepared, Tensor
from edge_sdk.manifest import InputType, Manifest
from edge_sdk.model_spec import InputSpec

_Region: TypeAlias = tuple[slice, slice]
_BLOCK_BYTES = 1_000_000  # of floats that are read again at once
_WHOLE: _Region = (slice(None), slice(None))
_Fill: TypeAlias = Callable[[Image], None]


class Prepare:
    """The prepare stage of one stream; not for several threads at once.

    Args:
        spec: what the model's input wants.
        dtype: `uint8` where the model takes levels as they are; `spec.mean` and `spec.std` are its own then.

    Attributes:
        tensor: `dtype`, `spec.tensor_shape`; every call fills and returns this one array.
    """

    def __init__(self, spec: InputSpec, dtype: InputType = "float32") -> None:
        width, height = spec.size_wh
        self.spec = spec
        self.tensor: Tensor = np.zeros(spec.tensor_shape, dtype)
        # What the model takes as the camera gives it is resized straight into the tensor.
        is_whole = dtype == "uint8" and spec.layout == "NHWC" and spec.color == "BGR"
        self._canvas: Image = self.tensor[0] if is_whole else np.empty((height, width, 3), np.uint8)
        self._tables = _normalisation_tables(spec)
        self._fill_whole = self._fill_of(_WHOLE)
        self._frame_shape: tuple[int, ...] = ()
        self._source: _Region = _WHOLE
        self._inner: Image = self._canvas
        self._fill_inner = self._fill_whole
        self._geometry = Geometry(1.0, 1.0, 0.0, 0.0)

    @classmethod
    def of(cls, manifest: Manifest) -> Prepare:
        """The stage before a bundle's first variant."""
        return cls(*manifest.prepared())

    def __call__(self, frame: Frame, /) -> Prepared:
        """Fill the tensor from a frame of any size; the padding was painted with the first frame of that size."""
        self._resize_inner(frame.image)
        self._fill_inner(self._inner)
        return Prepared(self.tensor, self._geometry, frame)

    def resize(self, image: Image) -> Image:
        """Lay `image` (uint8 (H, W, 3), BGR) into the model's input size.

        Returns:
            uint8 (height, width, 3), BGR, with its padding; overwritten by the next call.
        """
        self._resize_inner(image)
        return self._canvas

    def normalise(self, resized: Image) -> Tensor:
        """Fill the whole tensor from a picture that has the model's input size: (x - mean) / std by table, or as it is.

        Raises:
            ModelError: when the picture has another size.
        """
        if resized.shape != self._canvas.shape:
            raise ModelError(f"resized image has shape {resized.shape}, expected {self._canvas.shape}")
        self._fill_whole(resized)
        self._frame_shape = ()  # the tensor's padding is no longer what the last frame left there
        return self.tensor

    def _resize_inner(self, image: Image) -> None:
        if image.shape != self._frame_shape:
            self._place(image.shape)
        inner = self._inner
        cv2.resize(image[self._source], (inner.shape[1], inner.shape[0]), dst=inner, interpolation=cv2.INTER_LINEAR)

    def _place(self, frame_shape: tuple[int, ...]) -> None:
        """Decide where frames of this shape go, and paint the padding."""
        spec = self.spec
        place = {"letterbox": _letterbox, "stretch": _stretch, "center_crop": _center_crop}[spec.resize]
        self._source, target, self._geometry = place(spec, frame_shape[1], frame_shape[0])
        self._canvas[...] = spec.pad_value
        self._fill_whole(self._canvas)
        self._inner = self._canvas[target]
        self._fill_inner = self._fill_of(target)
        self._frame_shape = frame_shape

    def _fill_of(self, region: _Region) -> _Fill:
        """What normalises a picture into this region of the tensor, with all its buffers made beforehand."""
        if self.tensor.dtype == np.uint8:
            return _levels(self.tensor, self._canvas, region, self.spec)
        spec, shape = self.spec, self._canvas[region].shape[:2]
        if spec.layout == "NHWC" and spec.color != "GRAY":
            table = np.stack(self._tables, axis=-1).reshape(1, 256, 3)
            return _interleaved(self.tensor[0][region], table, swap=spec.color == "RGB")
        width, height = spec.size_wh
        planes = self.tensor.reshape(spec.channels, height, width)[:, region[0], region[1]]
        if spec.color == "GRAY":
            return _gray(planes[0], self._tables[0], np.empty(shape, np.uint8))
        return _planes(planes, self._tables, np.empty((3, *shape), np.uint8), swap=spec.color == "RGB")


def _planes(
    outputs: NDArray[np.float32], tables: list[NDArray[np.float32]], channels: NDArray[np.uint8], *, swap: bool
) -> _Fill:
    # In the picture's order, so that they lie in the model's.
    split = list(channels[::-1] if swap else channels)
    work = tuple(zip(channels, tables, outputs, strict=True))
    factors = np.array([table[1] for table in tables]).reshape(3, 1, 1)
    # Fewer calls for a small picture, and of a large one no more than a cache holds.
    size = 3 if outputs.nbytes <= _BLOCK_BYTES else 1
    blocks = [(channels[i : i + size], factors[i : i + size], outputs[i : i + size]) for i in range(0, 3, size)]

    def fill_by_table(resized: Image) -> None:
        # One pass for all planes: three times extractChannel takes six times as long.
        cv2.split(resized, split)
        for channel, table, output in work:
            cv2.LUT(channel, table, dst=output)

    def fill_by_factor(resized: Image) -> None:
        cv2.split(resized, split)
        # In two steps: bytes that are multiplied into floats go through a buffer, which takes half as long again.
        for levels, factor, floats in blocks:
            np.copyto(floats, levels)
            np.multiply(floats, factor, out=floats)

    # Without a mean the table is level * factor, and multiplying gives the same bits in half the time. Between padding
    # at the sides it would go through a buffer that is made for every frame.
    is_factor = not any(table[0] for table in tables) and outputs[0].flags.c_contiguous
    return fill_by_factor if is_factor else fill_by_table


def _gray(output: NDArray[np.float32], table: NDArray[np.float32], plane: NDArray[np.uint8]) -> _Fill:
    def fill(resized: Image) -> None:
        cv2.cvtColor(resized, cv2.COLOR_BGR2GRAY, dst=plane)
        cv2.LUT(plane, table, dst=output)

    return fill


def _interleaved(output: NDArray[np.float32], table: NDArray[np.float32], *, swap: bool) -> _Fill:
    swapped = np.empty(output.shape, np.uint8)

    def fill(resized: Image) -> None:
        if swap:
            cv2.cvtColor(resized, cv2.COLOR_BGR2RGB, dst=swapped)
        cv2.LUT(swapped if swap else resized, table, dst=output)

    return fill


def _levels(tensor: NDArray[np.uint8], canvas: Image, region: _Region, spec: InputSpec) -> _Fill:
    """What lays a picture's levels into this region of a uint8 tensor."""
    if spec.layout == "NCHW" and spec.color != "GRAY":
        planes = [plane[region] for plane in (tensor[0, ::-1] if spec.color == "RGB" else tensor[0])]

        def fill_planes(resized: Image) -> None:
            cv2.split(resized, planes)

        return fill_planes
    width, height = spec.size_wh
    pixels = tensor.reshape(height, width, spec.channels)[region]
    if spec.color != "BGR":
        code = cv2.COLOR_BGR2RGB if spec.color == "RGB" else cv2.COLOR_BGR2GRAY

        def fill_converted(resized: Image) -> None:
            cv2.cvtColor(resized, code, dst=pixels)

        return fill_converted

    def fill(resized: Image) -> None:
        # A frame was resized into the tensor itself; a golden picture comes from elsewhere.
        if resized.base is not canvas.base:
            np.copyto(pixels, resized)

    return fill


def _normalisation_tables(spec: InputSpec) -> list[NDArray[np.float32]]:
    """One float32 (256,) table a channel, in the model's channel order, within one unit in the last place.

    Without a mean: level * (1 / std) in float32, so that a multiplication gives the very same bits as the table.
    """
    levels = np.arange(256, dtype=np.float64)
    pairs = list(zip(spec.mean, spec.std, strict=False))[: spec.channels]
    if not any(mean for mean, _ in pairs):
        return [levels.astype(np.float32) * np.float32(1 / std) for _, std in pairs]
    return [((levels - mean) / std).astype(np.float32) for mean, std in pairs]


def _letterbox(spec: InputSpec, width: int, height: int) -> tuple[_Region, _Region, Geometry]:
    """Keep the aspect ratio; the rest is padding."""
    target_w, target_h = spec.size_wh
    scale = min(target_w / width, target_h / height)
    inner_w = min(target_w, max(1, round(width * scale)))
    inner_h = min(target_h, max(1, round(height * scale)))
    centred = spec.pad_anchor == "center"
    left = (target_w - inner_w) // 2 if centred else 0
    top = (target_h - inner_h) // 2 if centred else 0
    region = (slice(top, top + inner_h), slice(left, left + inner_w))
    return _WHOLE, region, Geometry(inner_w / width, inner_h / height, left, top)


def _stretch(spec: InputSpec, width: int, height: int) -> tuple[_Region, _Region, Geometry]:
    """Fill the input whatever the aspect ratio."""
    target_w, target_h = spec.size_wh
    return _WHOLE, _WHOLE, Geometry(target_w / width, target_h / height, 0.0, 0.0)


def _center_crop(spec: InputSpec, width: int, height: int) -> tuple[_Region, _Region, Geometry]:
    """Cut the largest centred region of the input's aspect ratio, times `crop_fraction`, and fill the input with it."""
    target_w, target_h = spec.size_wh
    scale = max(target_w / width, target_h / height) / spec.crop_fraction
    cut_w = min(width, max(1, round(target_w / scale)))
    cut_h = min(height, max(1, round(target_h / scale)))
    left, top = (width - cut_w) // 2, (height - cut_h) // 2
    source = (slice(top, top + cut_h), slice(left, left + cut_w))
    scale_x, scale_y = target_w / cut_w, target_h / cut_h
    return source, _WHOLE, Geometry(scale_x, scale_y, -left * scale_x, -top * scale_y)
