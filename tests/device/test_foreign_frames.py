"""Frames of a source of one's own: what is no picture is one line, and what is one runs whatever its strides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sdk.budget import Budget
from edge_sdk.errors import CameraError
from edge_sdk.frame import Frame
from edge_sdk.loop import Loop, Tick
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from tests.device.graded import LARGE, open_variant, write_graded
from tests.device.simulated import Collector

GOOD = np.random.default_rng(5).integers(0, 256, (48, 80, 3), np.uint8)
BAD = {
    "float32 (48, 80, 3)": GOOD.astype(np.float32),
    "int8 (48, 80, 3)": GOOD.view(np.int8),
    "uint16 (48, 80, 3)": GOOD.astype(np.uint16),
    "uint8 (48, 80, 4)": np.zeros((48, 80, 4), np.uint8),
    "uint8 (48, 80, 1)": np.zeros((48, 80, 1), np.uint8),
    "uint8 (48, 80)": np.zeros((48, 80), np.uint8),
    "uint8 (1, 48, 80, 3)": GOOD[None],
    "uint8 (0, 80, 3)": np.zeros((0, 80, 3), np.uint8),
    "uint8 (48, 0, 3)": np.zeros((48, 0, 3), np.uint8),
    "NoneType": None,
    "list": GOOD.tolist(),
}


class Images:
    """A source of one's own."""

    def __init__(self, *images: Any) -> None:
        self._images, self._next = images, 0

    @property
    def ended(self) -> bool:
        return self._next == len(self._images)

    def latest(self, timeout_s: float) -> Frame | None:
        if self.ended:
            return None
        self._next += 1
        return Frame(self._images[self._next - 1], 0, 0.0, self._next, "mine")

    def close(self) -> None:
        pass


def _loop(folder: Path, *images: Any) -> Loop:
    stages = open_variant(write_graded(folder / "graded.edge"), LARGE)
    return Loop(Images(*images), stages, Collector(), Budget(1000, drops=False), clock_ns=lambda: 0)


@pytest.mark.parametrize("shown", BAD)
def test_what_is_no_picture_is_one_line_at_the_first_frame_and_in_the_middle(tmp_path: Path, shown: str) -> None:
    loop = _loop(tmp_path, BAD[shown], GOOD, BAD[shown], GOOD)
    for expected in (CameraError, Tick.ON_TIME, CameraError, Tick.ON_TIME):  # it may be stepped again
        if expected is Tick.ON_TIME:
            assert loop.step() is expected
            continue
        with pytest.raises(CameraError) as error:
            loop.step()
        assert f"whose image is {shown}, expected a numpy array of uint8 (height, width, 3), BGR" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center_crop"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_strides_change_nothing_and_another_size_in_the_middle_is_another_size(layout: Any, resize: Any) -> None:
    spec = InputSpec(size_wh=(40, 32), layout=layout, resize=resize)
    views = {
        "cut": np.pad(GOOD, ((3, 2), (5, 4), (0, 0)))[3:-2, 5:-4],
        "mirrored": GOOD[:, ::-1].copy()[:, ::-1],
        "other colours": GOOD[..., ::-1].copy()[..., ::-1],
        "planes": GOOD.transpose(2, 0, 1).copy().transpose(1, 2, 0),
        "columns first": np.asfortranarray(GOOD),
        "every second row": np.repeat(GOOD, 2, axis=0)[::2],
        "read only": np.frombuffer(GOOD.tobytes(), np.uint8).reshape(GOOD.shape),
    }
    expected = Prepare(spec)(Frame(GOOD, 0, 0.0, 0, "mine")).tensor.copy()
    prepare = Prepare(spec)
    for name, view in views.items():
        prepare(Frame(view[:20, :30], 0, 0.0, 0, "mine"))
        assert np.array_equal(prepare(Frame(view, 0, 0.0, 1, "mine")).tensor, expected), name
