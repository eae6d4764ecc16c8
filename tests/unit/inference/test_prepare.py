"""Prepare: the tensor is what the formula says, its memory is always the same, and no frame allocates any."""

import tracemalloc
from itertools import product
from typing import Any

import cv2
import numpy as np
import pytest

from edge_sdk.bundle.manifest import InputTensor
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Frame
from edge_sdk.inference.prepare import Prepare
from tests.support.logs import refusal

RESIZES: Any = ("letterbox", "stretch", "center_crop")
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
NONE = (0.0, 0.0, 0.0)
ORDERS = [*product(("NCHW", "NHWC"), ("RGB", "BGR", "GRAY"))]
TAKEN: dict[str, Any] = {
    "floats": ORDERS,
    **{kind: [*ORDERS, ("NHWC", "RGBA"), ("NHWC", "BGRA")] for kind in ("levels", "integers")},
}
"""Layouts and colours that a model may take, by what it takes: normalised floats, levels of 0-255, quantized values."""


def _frame(height: int = 48, width: int = 80) -> Frame:
    return Frame.of(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def _prepare(kind: str, layout: Any, color: Any, **changes: Any) -> Prepare:
    spec = InputSpec(color=color.removesuffix("A"), layout=layout, **changes)
    scale = {"scale": 0.0171, "zero_point": 117} if kind == "integers" else {}
    return Prepare(spec, None if kind == "floats" else InputTensor("uint8", layout, color, **scale))  # type: ignore[arg-type]


def _check(tensor: np.ndarray, canvas: np.ndarray, spec: InputSpec, kind: str) -> None:
    """Compare a tensor with the formula in plain numpy and float64, and of integers by QuantizeLinear's definition."""
    pixels = canvas[..., ::-1] if spec.color == "RGB" else canvas
    if spec.color == "GRAY":
        pixels = cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY)[..., None]
    count = spec.channels
    values = (pixels.astype(np.float64) - np.array(spec.mean[:count])) / np.array(spec.std[:count])
    if spec.layout == "NCHW":
        pixels, values = pixels.transpose(2, 0, 1), values.transpose(2, 0, 1)
    got = tensor[0] if tensor.shape[-1] != 4 else tensor[0, ..., :3]  # nothing reads a fourth channel
    if kind == "floats":
        # Within one unit in the last place of a float32.
        np.testing.assert_array_max_ulp(got, values.astype(np.float32), maxulp=1)
    else:
        steps = np.clip(np.rint(values.astype(np.float32) / np.float32(0.0171)) + 117, 0, 255)
        np.testing.assert_array_equal(got, pixels if kind == "levels" else steps)


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("resize", RESIZES)
def test_tensors_equal_the_formula_for_frames_of_any_size(kind: str, resize: Any) -> None:
    """A frame fills only the picture's part of the tensor; calibration and golden inputs fill all of it."""
    golden = np.random.default_rng(5).integers(0, 256, (32, 40, 3), np.uint8)
    for (layout, color), mean, std in product(TAKEN[kind], (MEAN, NONE, (0.0, 0.0, 1.0)), (STD, (-300.0,) * 3)):
        fields: Any = {"size_wh": (40, 32), "resize": resize, "mean": mean, "std": std}
        live, canvases = _prepare(kind, layout, color, **fields), _prepare("floats", layout, color, **fields)
        address = live.tensor.ctypes.data
        for height, width in ((48, 80), (48, 80), (80, 48), (33, 31)):
            frame = _frame(height, width)
            _check(live(frame).tensor, canvases.resize(frame.image), live.spec, kind)
        _check(live.normalise(golden), golden, live.spec, kind)
        whole = live.normalise(live.resize(frame.image)).copy()
        prepared = live(frame)
        assert np.array_equal(prepared.tensor, whole)
        assert prepared.tensor is live.tensor
        assert (live.tensor.ctypes.data, live.tensor.flags.c_contiguous) == (address, True)
        assert live.tensor.dtype == (np.float32 if kind == "floats" else np.uint8)
        assert live.tensor.shape == ((1, 32, 40, 4) if color.endswith("A") else live.spec.tensor_shape)


_FRAMES = 40
_OBJECTS_BYTES = 2000  # of the values that say where a frame lies; the smallest picture here has 6,144 bytes a plane
_OF_OTHERS = 5  # frames during which other threads of this process may have made something; it is traced too


@pytest.mark.parametrize("kind", TAKEN)
def test_a_frame_allocates_nothing(kind: str) -> None:
    frame = _frame(120, 160)
    tracemalloc.start()
    try:
        for (layout, color), resize, mean in product(TAKEN[kind], RESIZES, (MEAN, NONE)):
            prepare = _prepare(kind, layout, color, size_wh=(96, 64), resize=resize, mean=mean, std=STD)
            for _ in range(3):
                prepare(frame)
            taken = np.zeros(_FRAMES, np.int64)
            before = tracemalloc.get_traced_memory()[0]
            for number in range(_FRAMES):
                tracemalloc.reset_peak()
                start = tracemalloc.get_traced_memory()[0]
                prepare(frame)
                taken[number] = tracemalloc.get_traced_memory()[1] - start
            assert np.sort(taken)[-_OF_OTHERS - 1] < _OBJECTS_BYTES, (layout, color, resize, mean)
            assert tracemalloc.get_traced_memory()[0] - before < _OBJECTS_BYTES, (layout, color, resize, mean)
        before = tracemalloc.get_traced_memory()[0]
        picture = np.empty((64, 96), np.uint8)
        assert tracemalloc.get_traced_memory()[0] - before > _OBJECTS_BYTES, "an allocation is not seen"
        del picture
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("anchor", "top"), [("center", 4), ("top_left", 0)])
def test_letterbox_keeps_the_aspect_ratio_and_pads(anchor: Any, top: int) -> None:
    prepare = Prepare(InputSpec(size_wh=(40, 32), pad_anchor=anchor, pad_value=7))
    geometry = prepare(_frame(48, 80)).geometry
    assert (geometry.scale_x, geometry.scale_y, geometry.offset_x, geometry.offset_y) == (0.5, 0.5, 0, top)
    canvas = prepare.resize(np.full((48, 80, 3), 200, np.uint8))
    expected = np.full((32, 40, 3), 7)
    expected[top : top + 24] = 200
    assert np.array_equal(canvas, expected)
    # A new frame size leaves no trace of the old one.
    tall = prepare.resize(np.full((64, 20, 3), 100, np.uint8))
    assert (np.count_nonzero(tall == 100), np.count_nonzero(tall == 7)) == (32 * 10 * 3, 32 * 30 * 3)


def test_a_picture_of_the_wrong_size_is_refused() -> None:
    prepare = Prepare(InputSpec(size_wh=(40, 32)))
    said = refusal(ModelError, prepare.normalise, np.zeros((8, 8, 3), np.uint8))
    assert "shape (8, 8, 3), expected (32, 40, 3)" in said


def test_tensors_that_no_device_makes_are_refused() -> None:
    for fields, expected in (
        ({"dtype": "float32", "layout": "NHWC", "color": "RGBA"}, "float32 has neither a scale nor a fourth channel"),
        ({"dtype": "float32", "layout": "NHWC", "color": "RGB", "scale": 0.5}, "float32 has neither a scale"),
        ({"dtype": "uint8", "layout": "NCHW", "color": "BGRA"}, "BGRA lies in planes, expected layout NHWC"),
    ):
        assert expected in refusal(ValueError, InputTensor, **fields)
