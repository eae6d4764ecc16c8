"""What system tests share: a real bundle, a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest

from tests.system.broker import Broker
from tests.system.bundles import build_cell_detector, cell_picture, write_cell_pictures


@pytest.fixture(scope="session")
def cell_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this machine; tests that change it work on a copy."""
    return build_cell_detector(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def cell_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures with a red and a blue cell each."""
    return write_cell_pictures(tmp_path_factory.mktemp("pictures") / "cells")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A Mosquitto of this test's own, open to everybody on this machine."""
    with Broker(tmp_path) as running:
        yield running


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Ten seconds of cells at 20 frames a second."""
    path = tmp_path / "cells.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 20.0, (128, 128))
    for index in range(200):
        writer.write(cell_picture(index))
    writer.release()
    return path
