"""Prepare: the tensor is what the formula says, and its memory is always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import pytest

from edge_sdk.errors import ModelError
from edge_sdk.frame import Frame
from edge_sdk.manifest import InputTensor
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def _frame(height: int = 48, width: int = 80, seed: int = 0) -> Frame:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Frame(image, 0, 0.0, 0, "camera")


def _reference(canvas: np.ndarray, spec: InputSpec) -> np.ndarray:
    """The formula, in plain numpy and float64."""
    pixels = canvas[..., ::-1] if spec.color == "RGB" else canvas
    if spec.color == "GRAY":
        pixels = cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY)[..., None]
    count = spec.channels
    values = (pixels.astype(np.float64) - np.array(spec.mean[:count])) / np.array(spec.std[:count])
    return (values.transpose(2, 0, 1) if spec.layout == "NCHW" else values)[None].astype(np.float32)


@pytest.mark.parametrize("color", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center_crop"])
@pytest.mark.parametrize("mean", [MEAN, (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)])
def test_normalisation_equals_the_formula(color: Any, layout: Any, resize: Any, mean: Any) -> None:
    spec = InputSpec(size_wh=(40, 32), color=color, layout=layout, resize=resize, mean=mean, std=STD)
    prepare = Prepare(spec)
    prepared = prepare(_frame())
    canvas = prepare.resize(_frame().image).copy()
    assert prepared.tensor.shape == spec.tensor_shape
    assert prepared.tensor.dtype == np.float32
    # Within one unit in the last place of a float32.
    np.testing.assert_array_max_ulp(prepared.tensor, _reference(canvas, spec), maxulp=1)


@pytest.mark.parametrize("color", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center_crop"])
@pytest.mark.parametrize("mean", [MEAN, (0.0, 0.0, 0.0)])
def test_frames_of_any_size_give_what_calibration_sees(color: Any, layout: Any, resize: Any, mean: Any) -> None:
    """The loop fills only the picture's part of the tensor; calibration and golden inputs fill all of it."""
    spec = InputSpec(size_wh=(40, 32), color=color, layout=layout, resize=resize, mean=mean, std=STD)
    live, other = Prepare(spec), Prepare(spec)
    for height, width in ((48, 80), (48, 80), (80, 48), (33, 31), (48, 80)):
        frame = _frame(height, width)
        expected = other.normalise(other.resize(frame.image)).copy()
        assert np.array_equal(live(frame).tensor, expected)
    live.normalise(np.zeros((32, 40, 3), np.uint8))  # a golden input in between
    assert np.array_equal(live(frame).tensor, expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_no_frame_moves_the_tensor(layout: Any) -> None:
    prepare = Prepare(InputSpec(size_wh=(40, 32), layout=layout))
    address = prepare.tensor.ctypes.data
    for seed in range(3):
        prepared = prepare(_frame(seed=seed))
        assert prepared.tensor is prepare.tensor
        assert prepare.tensor.ctypes.data == address
        assert prepared.tensor.flags.c_contiguous


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = cv2.getNumThreads()
    yield cv2.setNumThreads
    cv2.setNumThreads(before)


@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center_crop"])
@pytest.mark.parametrize(("height", "width"), [(720, 1280), (1080, 1920), (777, 1001), (300, 400)])
@pytest.mark.parametrize("taken", [None, InputTensor("uint8", "NHWC", "RGBA")], ids=["floats", "pixels"])
def test_several_threads_give_the_very_same_values(
    threads: Callable[[int], None], resize: Any, height: int, width: int, taken: InputTensor | None
) -> None:
    """Calibration has as many as the workstation; pictures so large are shared among them."""
    prepare, frame = Prepare(InputSpec(size_wh=(640, 640), resize=resize), taken), _frame(height, width)
    threads(1)
    alone = prepare(frame).tensor.copy()
    prepare.normalise(np.zeros((640, 640, 3), np.uint8))
    for count in (2, 3, 4):
        threads(count)
        assert np.array_equal(prepare(frame).tensor, alone)


@pytest.mark.parametrize(
    ("anchor", "expected_left", "expected_top"), [("center", 0, 4), ("top_left", 0, 0)], ids=["center", "top_left"]
)
def test_letterbox_keeps_the_aspect_ratio_and_pads(anchor: Any, expected_left: int, expected_top: int) -> None:
    spec = InputSpec(size_wh=(40, 32), pad_anchor=anchor, pad_value=7)
    prepare = Prepare(spec)
    geometry = prepare(_frame(48, 80)).geometry
    canvas = prepare.resize(_frame(48, 80).image)
    assert (geometry.scale_x, geometry.scale_y) == (0.5, 0.5)
    assert (geometry.offset_x, geometry.offset_y) == (expected_left, expected_top)
    padding = np.ones((32, 40), bool)
    padding[expected_top : expected_top + 24] = False
    assert (canvas[padding] == 7).all()


def test_a_new_frame_size_leaves_no_trace_of_the_old_one() -> None:
    prepare = Prepare(InputSpec(size_wh=(32, 32), pad_value=7))
    prepare.resize(np.full((64, 64, 3), 200, np.uint8))
    wide = prepare.resize(np.full((16, 64, 3), 200, np.uint8))
    assert (wide[:12] == 7).all()
    assert (wide[12:20] == 200).all()
    assert (wide[20:] == 7).all()


@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center_crop"])
@pytest.mark.parametrize(("height", "width"), [(48, 80), (333, 97), (32, 40), (5, 7)])
def test_boxes_come_back_to_where_they_were(resize: Any, height: int, width: int) -> None:
    spec = InputSpec(size_wh=(416, 320), resize=resize, crop_fraction=0.875)
    geometry = Prepare(spec)(_frame(height, width)).geometry
    box = np.array([[width * 0.4, height * 0.4, width * 0.6, height * 0.6]], np.float32)
    scale, offset = [geometry.scale_x, geometry.scale_y] * 2, [geometry.offset_x, geometry.offset_y] * 2
    in_input = box * scale + offset
    centre = in_input.reshape(2, 2).mean(axis=0)
    # A cut begins at a whole pixel of the frame, so the middle may be off by half of one, and by rounding.
    assert abs(centre - [208, 160]) == pytest.approx([0, 0], abs=0.5 * max(geometry.scale_x, geometry.scale_y) + 1)
    back = geometry.boxes_to_frame(in_input.astype(np.float32), (width, height))
    assert back == pytest.approx(box, abs=1e-3 * max(width, height))


def test_boxes_are_clipped_to_the_frame() -> None:
    geometry = Prepare(InputSpec(size_wh=(64, 64)))(_frame(32, 64)).geometry
    boxes = geometry.boxes_to_frame(np.array([[-10, -10, 99, 99]], np.float32), (64, 32))
    assert boxes.tolist() == [[0, 0, 64, 32]]


def test_center_crop_takes_the_middle() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[20:80, 70:130] = 255
    spec = InputSpec(size_wh=(60, 60), resize="center_crop", crop_fraction=0.6)
    assert (Prepare(spec).resize(image) == 255).all()


def test_a_picture_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ModelError, match=r"shape \(8, 8, 3\), expected \(32, 40, 3\)"):
        Prepare(InputSpec(size_wh=(40, 32))).normalise(np.zeros((8, 8, 3), np.uint8))
