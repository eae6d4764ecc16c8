"""Images and folders of them: in turn, left out where they cannot be read, and refused where none can."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.camera import OpenedSource, SourceOptions, SourceStats, SourceStatus, open_source
from edge_sdk.errors import CameraError
from tests.device.numbered import drained, number_in, write_images


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


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_images_that_cannot_be_read_for_a_moment_are_not_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, repeat: bool
) -> None:
    write_images(tmp_path / "images", [f"{i}.png" for i in range(4)])
    source = open_source(str(tmp_path / "images"), options=SourceOptions(repeat=repeat))

    def fails(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), path)

    seen, wanted, said = list[int](), 9 if repeat else 4, list[str]()
    while len(seen) < wanted:
        with monkeypatch.context() as moment:
            moment.setattr(Path, "read_bytes", fails)
            try:
                seen += _next(source)  # what was looked up before
            except CameraError as cause:
                said.append(str(cause))
        seen += _next(source)
    assert len(said) > 1
    assert all(f".png: cannot be read: {os.strerror(number)}" in line for line in said)
    assert seen == [i % 4 for i in range(len(seen))]
    assert source.stats == SourceStats(delivered=len(seen))
    assert source.ended is not repeat


def _next(source: OpenedSource) -> list[int]:
    frame = source.latest(0)
    return [] if frame is None else [number_in(frame.image)]


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
