"""Prepare for models that take levels: uint8, in every layout and colour order, and always the same memory."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from edge_sdk.frame import Frame
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare

LAYOUTS = ["NCHW", "NHWC"]
COLORS = ["RGB", "BGR", "GRAY"]
RESIZES = ["letterbox", "stretch", "center_crop"]


def _frame(height: int = 48, width: int = 80, seed: int = 0) -> Frame:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Frame(image, 0, 0.0, 0, "camera")


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
    live, canvases = Prepare(spec, "uint8"), Prepare(spec)
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
    assert np.array_equal(Prepare(spec, "uint8")(_frame()).tensor, Prepare(spec)(_frame()).tensor)
