"""Turn a frame into the model's input tensor: resize, letterbox or crop, reorder colours, normalise.

`Prepare` has its own buffers, so that only the first frame of a size allocates memory. Calibration uses the same code,
so that a model meets the numbers that it was quantized with. Results are bit-equal on one machine. Across CPUs they
differ by at most one level of 255, because OpenCV's bilinear resize does.

Lookup tables turn levels of 0-255 into floats or integers. The integers are computed from the same floats by the
definition of ONNX's QuantizeLinear, so that a model without that operator computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.manifest import InputTensor, Manifest, floats_of
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Frame, Geometry, Image, Prepared, Tensor, check_image
from edge_sdk.core.opencv import cv2

_HIGHEST, _SIGN = 255, 128


def float_tables(spec: InputSpec) -> list[NDArray[np.float32]]:
    """Return one float32 (256,) table per channel, in the model's channel order, exact to one unit in the last place.

    Without a mean: level * (1 / std) in float32, so that a multiplication gives the same bits as the table.
    """
    levels = np.arange(_HIGHEST + 1, dtype=np.float64)
    pairs = list(zip(spec.mean, spec.std, strict=False))[: spec.channels]
    if not any(mean for mean, _ in pairs):
        return [levels.astype(np.float32) * np.float32(1 / std) for _, std in pairs]
    return [((levels - mean) / std).astype(np.float32) for mean, std in pairs]


def integer_tables(spec: InputSpec, tensor: InputTensor) -> list[NDArray[np.uint8]]:
    """Return one uint8 (256,) table per channel, in the order of `spec`; the levels if `tensor` has no scale.

    For int8 they hold its bits: the integer less 128 in two's complement is the integer with its highest bit turned.
    """
    turned = np.uint8(_SIGN if tensor.dtype == "int8" else 0)
    if tensor.scale is None:
        return [np.arange(_HIGHEST + 1, dtype=np.uint8) ^ turned] * spec.channels
    # IEEE 754 defines division and rounding to even exactly, so every machine computes the same integers.
    steps = [np.rint(table / np.float32(tensor.scale)) for table in float_tables(spec)]
    return [np.clip(step + np.float32(tensor.zero_point), 0, _HIGHEST).astype(np.uint8) ^ turned for step in steps]


_Region: TypeAlias = tuple[slice, slice]
_BLOCK_BYTES = 1_000_000  # bytes of floats that are read again at once
_WHOLE: _Region = (slice(None), slice(None))
_BYTES = np.dtype(np.uint8)
_Fill: TypeAlias = Callable[[Image], object]

_CODES = {
    "BGR": None,
    "RGB": cv2.COLOR_BGR2RGB,
    "RGBA": cv2.COLOR_BGR2RGBA,
    "BGRA": cv2.COLOR_BGR2BGRA,
}
"""OpenCV's conversion codes from BGR to other channel orders."""


class Prepare:
    """The prepare stage of one camera; not for several threads at once.

    Args:
        taken: the input tensor of the model file; by default floats as `spec` describes them.

    Attributes:
        tensor: array with the type and shape of `taken`; every call fills and returns it.
    """

    def __init__(self, spec: InputSpec, taken: InputTensor | None = None) -> None:
        width, height = spec.size_wh
        self.spec = spec
        self._taken = taken or floats_of(spec)
        self.tensor: Tensor = np.zeros(self._taken.shape(spec.size_wh), self._taken.dtype)
        self._filled = self.tensor.view(np.uint8) if self._taken.dtype == "int8" else self.tensor
        self._floats = float_tables(spec)
        self._integers = _looked_up(spec, self._taken)
        # If the model takes pictures in the camera's form, they are resized directly into the tensor.
        is_whole = (self._taken.dtype, self._taken.layout, self._taken.color) == ("uint8", "NHWC", "BGR")
        is_whole = is_whole and self._integers is None
        self._canvas: Image = self.tensor[0] if is_whole else np.empty((height, width, 3), np.uint8)
        self._fill_whole = self._fill_of(_WHOLE)
        self._frame_shape: tuple[int, ...] = ()
        self._source = self._target = _WHOLE
        self._inner: Image = self._canvas
        self._is_painted = False  # the padding around `_target` in the tensor
        self._fill_inner: _Fill | None = None
        self._geometry = Geometry(1.0, 1.0, 0.0, 0.0)

    @classmethod
    def of(cls, manifest: Manifest) -> Prepare:
        """Return the prepare stage of a bundle's first variant."""
        return cls(manifest.input, manifest.taken)

    def __call__(self, frame: Frame, /) -> Prepared:
        """Fill the tensor from a frame of any size; the second one in a row of a size leaves the padding as it is."""
        self._resize_inner(frame.image)
        if self._is_painted:
            self._fill_inner = self._fill_inner or self._fill_of(self._target)
            self._fill_inner(self._inner)
        else:
            self._fill_whole(self._canvas)
            self._is_painted = True
        return Prepared(self.tensor, self._geometry, frame)

    def resize(self, image: Image) -> Image:
        """Fit `image` (uint8 (H, W, 3), BGR) into the model's input size, padded; the next call overwrites it."""
        self._resize_inner(image)
        return self._canvas

    def normalise(self, resized: Image) -> Tensor:
        """Fill the whole tensor from a picture of the model's input size: by table (x - mean) / std, or unchanged."""
        if resized.shape != self._canvas.shape:
            raise ModelError(f"resized image has shape {resized.shape}, expected {self._canvas.shape}")
        self._fill_whole(resized)
        self._frame_shape = ()  # the last frame's padding in the tensor was overwritten
        return self.tensor

    def _resize_inner(self, image: Image) -> None:
        try:
            is_known = image.shape == self._frame_shape and image.dtype is _BYTES
        except AttributeError:  # a user's own source may return something else than an array
            is_known = False
        if not is_known:
            check_image(image)
            self._place(image.shape)
        inner = self._inner
        cv2.resize(image[self._source], (inner.shape[1], inner.shape[0]), dst=inner, interpolation=cv2.INTER_LINEAR)

    def _place(self, frame_shape: tuple[int, ...]) -> None:
        """Compute the position of frames of this shape, and paint the padding of the picture."""
        spec = self.spec
        place = {"letterbox": _letterbox, "stretch": _stretch, "center_crop": _center_crop}[spec.resize]
        self._source, self._target, self._geometry = place(spec, frame_shape[1], frame_shape[0])
        self._inner, self._fill_inner = self._canvas, self._fill_whole
        self._is_painted = self._target is _WHOLE
        if not self._is_painted:
            self._canvas[...] = spec.pad_value
            self._inner, self._fill_inner = self._canvas[self._target], None
        self._frame_shape = frame_shape

    def _fill_of(self, region: _Region) -> _Fill:
        """Return a function that writes a picture into this region in the model's form; allocate its buffers now."""
        spec, taken, shape = self.spec, self._taken, self._canvas[region].shape
        if taken.dtype != "float32":
            if taken.color == "GRAY":
                return _gray(self._planes_in(region)[0], self._integers, np.empty(shape[:2], np.uint8))
            fill = self._arranging(region)
            return fill if self._integers is None else _looking_up(self._integers, np.empty(shape, np.uint8), fill)
        if taken.layout == "NHWC" and spec.color != "GRAY":
            table = np.stack(self._floats, axis=-1).reshape(1, 256, 3)
            return _interleaved(self.tensor[0][region], table, swap=taken.color == "RGB")
        planes = self._planes_in(region)
        if spec.color == "GRAY":
            return _gray(planes[0], self._floats[0], np.empty(shape[:2], np.uint8))
        return _planes(planes, self._floats, np.empty((3, *shape[:2]), np.uint8), swap=taken.color == "RGB")

    def _planes_in(self, region: _Region) -> Tensor:
        """Return a region of a tensor as planes, (C, h, w)."""
        width, height = self.spec.size_wh
        return self._filled.reshape(self._taken.channels, height, width)[:, region[0], region[1]]

    def _arranging(self, region: _Region) -> _Fill:
        """Return a function that copies three byte channels unchanged into this region."""
        if self._taken.layout == "NCHW":
            planes = list(self._planes_in(region))
            in_order = planes[::-1] if self._taken.color == "RGB" else planes
            return lambda resized: cv2.split(resized, in_order)
        return _pixels(self._filled[0][region], _CODES[self._taken.color])


def _planes(
    outputs: NDArray[np.float32], tables: list[NDArray[np.float32]], channels: NDArray[np.uint8], *, swap: bool
) -> _Fill:
    # The planes stand in the picture's order, so that the tensor has the model's order.
    split = list(channels[::-1] if swap else channels)
    work = tuple(zip(channels, tables, outputs, strict=True))
    factors = np.array([table[1] for table in tables]).reshape(3, 1, 1)
    # All planes at once for a small picture; one plane at a time for a large one, so that it fits into the cache.
    size = 3 if outputs.nbytes <= _BLOCK_BYTES else 1
    blocks = [(channels[i : i + size], factors[i : i + size], outputs[i : i + size]) for i in range(0, 3, size)]

    def fill_by_table(resized: Image) -> None:
        # One pass for all planes, because three calls of extractChannel take six times as long.
        cv2.split(resized, split)
        for channel, table, output in work:
            cv2.LUT(channel, table, dst=output)

    def fill_by_factor(resized: Image) -> None:
        cv2.split(resized, split)
        # Two steps, because multiplying bytes into floats in one step uses a buffer and takes 1.5 times as long.
        for levels, factor, floats in blocks:
            np.copyto(floats, levels)
            np.multiply(floats, factor, out=floats)

    # Without a mean the table is level * factor, and multiplying gives the same bits in half the time. With padding at
    # the sides, OpenCV would allocate a buffer for every frame.
    is_factor = not any(table[0] for table in tables) and outputs[0].flags.c_contiguous
    return fill_by_factor if is_factor else fill_by_table


def _gray(output: Tensor, table: Tensor | None, plane: NDArray[np.uint8]) -> _Fill:
    def fill(resized: Image) -> None:
        if table is None:
            cv2.cvtColor(resized, cv2.COLOR_BGR2GRAY, dst=output)
        else:
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


def _looked_up(spec: InputSpec, taken: InputTensor) -> NDArray[np.uint8] | None:
    """Return the lookup table for cv2.LUT on BGR or GRAY; None if levels stay unchanged."""
    tables = integer_tables(spec, taken)
    if all(np.array_equal(table, np.arange(256)) for table in tables):
        return None
    if all(np.array_equal(table, tables[0]) for table in tables):
        return tables[0]  # a common table for all channels halves the time
    return np.stack(tables[::-1] if spec.color == "RGB" else tables, axis=-1).reshape(1, 256, len(tables))


def _looking_up(table: NDArray[np.uint8], looked: Image, arrange: _Fill) -> _Fill:
    def fill(resized: Image) -> None:
        cv2.LUT(resized, table, dst=looked)
        arrange(looked)

    return fill


def _pixels(pixels: Image, code: int | None) -> _Fill:
    """Return a function that writes a picture's bytes into pixels of a tensor with an OpenCV conversion."""
    if code is not None:
        return lambda resized: cv2.cvtColor(resized, code, dst=pixels)

    def fill(resized: Image) -> None:
        # Frames were resized into the tensor itself; golden pictures must be copied.
        if resized.base is not pixels.base:
            np.copyto(pixels, resized)

    return fill


def _letterbox(spec: InputSpec, width: int, height: int) -> tuple[_Region, _Region, Geometry]:
    """Place a frame so that it keeps its aspect ratio; pad the rest."""
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
    """Place a frame so that it fills the input; ignore its aspect ratio."""
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
