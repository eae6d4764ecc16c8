"""Frames as cameras and files have them, through a device: of every size, turned, grey, damaged, of a varying rate."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from tests.support.bundles import cell_picture
from tests.support.configs import HEALTHY, write_at_ease
from tests.support.device import Device
from tests.support.pictures import with_orientation
from tests.support.streams import http_server

pytestmark = pytest.mark.system

_SIZES_WH = {
    "0-12-megapixels.jpg": (4000, 3000),
    "1-tiny.png": (16, 16),
    "2-grey.png": (128, 128),
    "3-alpha.png": (128, 128),
    "4-turned-by-exif.jpg": (128, 256),
    "5-one-row.png": (200, 1),
}


def _write_pictures(folder: Path) -> Path:
    """Of cells; sizes are those that a viewer shows."""
    folder.mkdir()
    cells, grey = cell_picture(1), cv2.cvtColor(cell_picture(1), cv2.COLOR_BGR2GRAY)
    alpha = np.dstack([cells, np.full(cells.shape[:2], 7, np.uint8)])
    wide = cv2.resize(cells, (256, 128), interpolation=cv2.INTER_NEAREST)
    pictures = (
        cv2.resize(cells, (4000, 3000), interpolation=cv2.INTER_NEAREST),
        cell_picture(1, 16),
        grey,
        alpha,
        wide,
        np.full((1, 200, 3), 255, np.uint8),
    )
    for name, picture in zip(_SIZES_WH, pictures, strict=True):
        cv2.imwrite(str(folder / name), picture)
    turned = folder / "4-turned-by-exif.jpg"
    turned.write_bytes(with_orientation(turned.read_bytes(), 6))
    return folder


def _size_wh(result: dict[str, Any]) -> tuple[int, int]:
    return result["frame"]["width"], result["frame"]["height"]


def _assert_within(result: dict[str, Any]) -> None:
    width, height = _size_wh(result)
    for found in result["detections"]:
        left, top, right, bottom = found["box_xyxy"]
        assert 0 <= left <= right <= width
        assert 0 <= top <= bottom <= height


def _assert_shows(result: dict[str, Any], cells: dict[str, tuple[int, int]]) -> None:
    """These cells of 4 x 4, by column and row."""
    cell_w, cell_h = (side / 4 for side in _size_wh(result))
    boxes = {found["label"]: found["box_xyxy"] for found in result["detections"]}
    assert set(boxes) == set(cells)
    for label, (column, row) in cells.items():
        box = np.array(boxes[label]) / [cell_w, cell_h, cell_w, cell_h]
        assert box == pytest.approx([column, row, column + 1, row + 1], abs=0.05)


def test_pictures_of_any_kind_have_their_size_and_boxes_within(cell_bundle: Path, tmp_path: Path) -> None:
    pictures = _write_pictures(tmp_path / "pictures")
    streams = {"shown": {"source": pictures}, "turned": {"source": pictures, "rotate": 90}}
    with Device(write_at_ease(tmp_path, cell_bundle, streams)) as device:
        assert device.end() == 0
    sizes_wh = list(_SIZES_WH.values())
    assert [_size_wh(r) for r in device.results("shown")] == sizes_wh
    assert [_size_wh(r) for r in device.results("turned")] == [(height, width) for width, height in sizes_wh]
    for result in (*device.results("shown"), *device.results("turned")):
        _assert_within(result)
    # Of what shows cells in colour they are where a viewer sees them, and turned once more where that was asked for.
    upright, clockwise = {"red": (1, 1), "blue": (3, 1)}, {"red": (2, 1), "blue": (2, 3)}
    for number, cells in ((0, upright), (1, upright), (3, upright), (4, clockwise)):
        _assert_shows(device.results("shown")[number], cells)
        turned = {label: (3 - row, column) for label, (column, row) in cells.items()}
        _assert_shows(device.results("turned")[number], turned)
    assert not device.lines_with("bug")


def test_a_camera_of_12_megapixels_a_tiny_one_and_a_turned_one(cell_bundle: Path, tmp_path: Path) -> None:
    streams = {
        "large": {"source": "pattern:4000x3000@5"},
        "tiny": {"source": "pattern:16x16@20"},
        "turned": {"source": "pattern:320x240@20", "rotate": 90},
    }
    with Device(write_at_ease(tmp_path, cell_bundle, streams)) as device:
        for camera in streams:
            device.run_on(camera)
        assert device.stop() == 0
    for camera, size_wh in (("large", (4000, 3000)), ("tiny", (16, 16)), ("turned", (240, 320))):
        for result in device.results(camera):
            assert _size_wh(result) == size_wh
            _assert_within(result)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_a_video_of_a_varying_rate_plays_by_its_own_times_to_its_end(cell_bundle: Path, tmp_path: Path) -> None:
    """Ten frames a fiftieth of a second apart, then ten a fifth: the mean rate fits none of them."""
    names = []
    for name, fps, count in (("fast", 50.0, 10), ("slow", 5.0, 10)):
        path = tmp_path / f"{name}.avi"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), fps, (96, 64))
        for index in range(count):
            writer.write(cv2.resize(cell_picture(index), (96, 64)))
        writer.release()
        names += ["-i", str(path)]
    join = ["-filter_complex", "[0:v][1:v]concat=n=2,settb=1/1000", "-vsync", "vfr", "-c:v", "mpeg4"]
    subprocess.run(["ffmpeg", "-v", "error", *names, *join, str(tmp_path / "film.mp4")], check=True)
    streams = {"film": {"source": tmp_path / "film.mp4"}, "yard": HEALTHY}
    with Device(write_at_ease(tmp_path, cell_bundle, streams)) as device:
        device.hear("film: ", "ended")
        device.run_on("yard")  # what is over ends nothing else
        assert device.stop() == 0
    assert device.lines_with("film: stopped by end of source; ")
    results = device.results("film")
    due_ms = [20 * number for number in range(11)] + [400 + 200 * number for number in range(9)]
    first = results[0]
    assert results[-1]["seq"] >= 18  # some versions of ffmpeg leave the last one out
    for result in results:
        assert _size_wh(result) == (96, 64)
        _assert_within(result)
        since_s = _seconds(result["captured_at"]) - _seconds(first["captured_at"])
        assert since_s * 1000 == pytest.approx(due_ms[result["seq"]] - due_ms[first["seq"]], abs=2)


def _seconds(stamp: str) -> float:
    return msgspec.convert(stamp, datetime).timestamp()


def test_a_server_that_changes_its_size_sends_half_pictures_or_ends(cell_bundle: Path, tmp_path: Path) -> None:
    with http_server() as server:
        served = {name: {"source": server.url(f"/{name}")} for name in ("grows", "halves", "ends")}
        with Device(write_at_ease(tmp_path, cell_bundle, {**served, "yard": HEALTHY})) as device:
            device.hear("ends: ", "lost: the camera ended the stream")
            device.hear("ends: ", "reopened")
            for camera, count in (("grows", 20), ("halves", 20), ("ends", 5), ("yard", 5)):
                device.run_on(camera, count)
            assert device.stop() == 0
    sizes_wh = [_size_wh(result) for result in device.results("grows")]
    assert sizes_wh == sorted(sizes_wh)
    assert set(sizes_wh) == {(320, 240), (640, 480)}
    assert {_size_wh(result) for result in device.results("halves")} == {(320, 240)}
    for camera in served:
        for result in device.results(camera):
            _assert_within(result)
    assert not device.lines_with("halves: ", "lost")
    assert not device.lines_with("grows: ", "lost")
    assert not device.lines_with("bug")
