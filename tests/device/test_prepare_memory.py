"""Prepare allocates nothing for a frame: what Python and numpy ask for is traced over a thousand frames."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge_sdk.frame import Frame
from edge_sdk.manifest import InputTensor
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare

_FRAMES = 1000
_OBJECTS_BYTES = 2000  # of the values that say where a frame lies; the smallest picture here has 6,144 bytes a plane
_OF_OTHERS = 10  # frames during which other threads of this process may have made something; it is traced too
_SIZE_WH = (96, 64)
_TAKEN = [
    *itertools.product(("floats", "levels", "looked up"), ("NCHW", "NHWC"), ("RGB", "BGR", "GRAY")),
    *itertools.product(("levels", "looked up"), ("NHWC",), ("RGBA", "BGRA")),
]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize(("kind", "layout", "color"), _TAKEN)
@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center_crop"])
@pytest.mark.parametrize("mean", [(100.0, 110.0, 120.0), (0.0, 0.0, 0.0)], ids=["table", "factor"])
def test_a_frame_allocates_nothing(traced: None, kind: str, color: Any, layout: Any, resize: Any, mean: Any) -> None:
    own = color.removesuffix("A")
    spec = InputSpec(size_wh=_SIZE_WH, color=own, layout=layout, resize=resize, mean=mean, std=(58.0, 57.0, 56.0))
    scale = 0.02 if kind == "looked up" else None
    prepare = Prepare(spec, None if kind == "floats" else InputTensor("uint8", layout, color, scale))
    frame = Frame(np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8), 0, 0.0, 0, "camera")
    for _ in range(3):
        prepare(frame)
    before = tracemalloc.get_traced_memory()[0]
    taken = np.zeros(_FRAMES, np.int64)
    for number in range(_FRAMES):
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        prepare(frame)
        taken[number] = tracemalloc.get_traced_memory()[1] - start
    grown = tracemalloc.get_traced_memory()[0] - before - taken.nbytes
    assert np.sort(taken)[-_OF_OTHERS - 1] < _OBJECTS_BYTES
    assert grown < _OBJECTS_BYTES


def test_an_allocation_would_be_seen(traced: None) -> None:
    before = tracemalloc.get_traced_memory()[0]
    picture = np.empty((_SIZE_WH[1], _SIZE_WH[0]), np.uint8)
    assert tracemalloc.get_traced_memory()[0] - before > _OBJECTS_BYTES
    assert picture.nbytes > _OBJECTS_BYTES
