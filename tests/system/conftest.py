"""What system tests share: a real bundle, a real broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest

from edge_sdk.errors import MissingDependencyError
from edge_sdk_tools.arm_cost import Counter, set_up
from tests.system.blinking import write_blinking_video
from tests.system.broker import Broker
from tests.system.bundles import build_cell_detector, cell_picture, write_cell_pictures
from tests.system.systemd.installed import service, systemd_container

__all__ = ["service", "systemd_container"]

_CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cell_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this machine; tests that change it work on a copy."""
    return build_cell_detector(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def cell_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures with a red and a blue cell each."""
    return write_cell_pictures(tmp_path_factory.mktemp("pictures") / "cells")


@pytest.fixture(scope="session")
def counter() -> Counter:
    """What counts and emulates Cortex-A72 and A76; set up once, in the checkout."""
    missing = [name for name in ("apt-get", "dpkg-deb", "cc") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed, and counting needs it")
    try:
        return set_up(_CHECKOUT / ".cache")
    except MissingDependencyError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A Mosquitto of this test's own, open to everybody on this machine."""
    with Broker(tmp_path) as running:
        yield running


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Ten seconds of cells at 20 frames a second."""
    return _write_video(tmp_path / "cells.avi", frames=200)


@pytest.fixture(scope="session")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two minutes of them, for what has to happen before a video ends."""
    return _write_video(tmp_path_factory.mktemp("long") / "cells.avi", frames=2400)


@pytest.fixture(scope="session")
def blinking_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two minutes in which cells come and go all the time."""
    return write_blinking_video(tmp_path_factory.mktemp("blinking") / "cells.avi")


def _write_video(path: Path, frames: int) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 20.0, (128, 128))
    for index in range(frames):
        writer.write(cell_picture(index))
    writer.release()
    return path
