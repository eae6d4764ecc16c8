"""Images and folders of them: in turn, left out where they cannot be read, and refused where none can."""

from __future__ import annotations

import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.camera import SourceStats, SourceStatus, open_source
from edge_sdk.errors import CameraError
from tests.device.numbered import drained, write_images


def test_images_come_in_turn_sorted_by_name(tmp_path: Path) -> None:
    names = ["a.jpg", "b.JPEG", "c.png", "d.bmp", "e.webp", "f.ppm"]
    write_images(tmp_path / "images", names)
    (tmp_path / "images" / "a.txt").write_text("no image")
    (tmp_path / "images" / "b.jpg").mkdir()
    before_ns = time.monotonic_ns()
    source = open_source(str(tmp_path / "images"), camera="folder")
    frames = drained(source)
    assert [f.seq for f in frames] == list(range(6))
    assert all(before_ns <= f.captured_ns <= time.monotonic_ns() for f in frames)
    assert source.stats == SourceStats(delivered=6)
    assert source.status is SourceStatus.ENDED
    source.close()


def test_unreadable_images_are_left_out_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "images"
    write_images(folder, [f"{i}.jpg" for i in range(6)])
    for name, data in (("0.jpg", b""), ("2.jpg", b"no image"), ("5.jpg", b"\xff\xd8\xff")):
        (folder / name).write_bytes(data)
    source = open_source(str(folder))
    frames = drained(source)
    assert [f.seq for f in frames] == [1, 3, 4]
    assert source.stats == SourceStats(delivered=3, unreadable=3)
    assert capfd.readouterr().err == ""


def test_a_single_image(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), np.zeros((4, 6), np.uint8))
    source = open_source(str(path))
    frame = source.latest(0)
    assert frame is not None
    assert frame.image.shape == (4, 6, 3)
    assert source.ended
    assert source.latest(0) is None


def test_close_ends_a_folder(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ["a.png", "b.png"])
    source = open_source(str(tmp_path / "images"))
    source.close()
    source.close()
    assert source.ended
    assert source.latest(0) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "no image in it, expected files ending in .jpg"),
        ({"a.txt": b"x"}, "no image in it"),
        ({"a.jpg": b"", "b.png": b"x"}, "none of 2 images can be read"),
    ],
)
def test_a_folder_without_an_image_is_refused(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(CameraError) as caught:
        open_source(str(tmp_path))
    assert expected in str(caught.value)
    assert str(tmp_path) in str(caught.value)
