"""Prepare for models that take levels: uint8, in every layout and colour order, and always the same memory."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from edge_sdk.frame import Frame
from edge_sdk.manifest import InputTensor
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare

LAYOUTS = ["NCHW", "NHWC"]
COLORS = ["RGB", "BGR", "GRAY"]
RESIZES = ["letterbox", "stretch", "center_crop"]


def _frame(height: int = 48, width: int = 80, seed: int = 0) -> Frame:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Frame(image, 0, 0.0, 0, "camera")


def _levels(spec: InputSpec) -> InputTensor:
    return InputTensor("uint8", spec.layout, spec.color)


def _reference(canvas: np.ndarray, spec: InputSpec) -> np.ndarray:
    pixels = canvas[..., ::-1] if spec.color == "RGB" else canvas
    if spec.color == "GRAY":
        pixels = cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY)[..., None]
    return (pixels.transpose(2, 0, 1) if spec.layout == "NCHW" else pixels)[None]


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("resize", RESIZES)
def test_levels_are_those_of_the_resized_picture(color: Any, layout: Any, resize: Any) -> None:
    """Of frames of changing sizes, with golden pictures in between; mean and std belong to the model."""
    spec = InputSpec(size_wh=(40, 32), color=color, layout=layout, resize=resize, mean=(9, 9, 9), std=(3, 3, 3))
    live, canvases = Prepare(spec, _levels(spec)), Prepare(spec)
    address = live.tensor.ctypes.data
    golden = np.random.default_rng(5).integers(0, 256, (32, 40, 3), np.uint8)
    for height, width in ((48, 80), (48, 80), (80, 48), (33, 31), (48, 80)):
        frame = _frame(height, width)
        prepared = live(frame)
        assert np.array_equal(prepared.tensor, _reference(canvases.resize(frame.image), spec))
        assert np.array_equal(live.normalise(golden), _reference(golden, spec))
        assert np.array_equal(live.normalise(live.resize(frame.image)), prepared.tensor)
        assert np.array_equal(prepared.tensor, _reference(canvases.resize(frame.image), spec))
    assert live.tensor.dtype == np.uint8
    assert live.tensor.shape == spec.tensor_shape
    assert live.tensor.ctypes.data == address
    assert live.tensor.flags.c_contiguous


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_levels_and_normalised_values_are_of_the_same_picture(color: Any, layout: Any) -> None:
    spec = InputSpec(size_wh=(40, 32), color=color, layout=layout)  # mean 0 and std 1: the levels as floats
    assert np.array_equal(Prepare(spec, _levels(spec))(_frame()).tensor, Prepare(spec)(_frame()).tensor)


@pytest.mark.parametrize("color", ["RGB", "BGR"])
@pytest.mark.parametrize("resize", RESIZES)
def test_a_fourth_channel_leaves_the_three_as_they_are(color: Any, resize: Any) -> None:
    """Of frames of changing sizes, with their padding, and of golden pictures."""
    spec = InputSpec(size_wh=(40, 32), color=color, layout="NHWC", resize=resize)
    four, three = Prepare(spec, InputTensor("uint8", "NHWC", color + "A")), Prepare(spec, _levels(spec))
    for height, width in ((48, 80), (48, 80), (80, 48), (33, 31)):
        frame = _frame(height, width)
        assert np.array_equal(four(frame).tensor[..., :3], three(frame).tensor)
        assert np.array_equal(four.normalise(four.resize(frame.image)), four(frame).tensor)
    assert four.tensor.shape == (1, 32, 40, 4)
    assert four.tensor.flags.c_contiguous


NORMALISATIONS = [
    {"mean": (127.5,) * 3, "std": (127.5,) * 3},
    {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)},
    {"std": (-300.0,) * 3},
]


@pytest.mark.parametrize("layout_color", ["NCHW RGB", "NCHW BGR", "NHWC RGB", "NHWC BGR", "NHWC RGBA", "NCHW GRAY"])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_integers_are_those_of_the_normalised_values(layout_color: str, normalisation: Any) -> None:
    """By the definition of QuantizeLinear, with the padding, for any mean and std."""
    layout, color = layout_color.split()
    own: Any = color.removesuffix("A") if color == "RGBA" else color
    spec = InputSpec(size_wh=(40, 32), color=own, layout=layout, **normalisation)  # type: ignore[arg-type]  # a table of two literals
    tensor = InputTensor("uint8", layout, color, scale=0.0171, zero_point=117)  # type: ignore[arg-type]  # the same
    integers, floats = Prepare(spec, tensor), Prepare(spec)
    for height, width in ((48, 80), (80, 48)):
        frame = _frame(height, width)
        steps = np.rint(floats(frame).tensor / np.float32(0.0171))
        expected = np.clip(steps + 117, 0, 255)
        got = integers(frame).tensor
        assert np.array_equal(got[..., :3] if color == "RGBA" else got, expected)
        assert np.array_equal(integers.normalise(integers.resize(frame.image)), got)
    assert len(np.unique(got)) > 20


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dtype": "float32", "layout": "NHWC", "color": "RGBA"}, "float32 has neither a scale nor a fourth channel"),
        ({"dtype": "float32", "layout": "NHWC", "color": "RGB", "scale": 0.5}, "float32 has neither a scale"),
        ({"dtype": "uint8", "layout": "NCHW", "color": "BGRA"}, "BGRA lies in planes, expected layout NHWC"),
    ],
)
def test_tensors_that_no_device_makes_are_refused(fields: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        InputTensor(**fields)
