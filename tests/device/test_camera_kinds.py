"""Patterns and GStreamer pipelines."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.camera import Kind, SourceOptions, SourceStatus, kind_of, open_source, redact
from edge_sdk.camera.opencv import has_gstreamer
from edge_sdk.camera.pattern import Pattern
from edge_sdk.errors import CameraError, MissingDependencyError
from edge_sdk.frame import Image
from tests.device.doubled_cameras import VideoCapture, put_in_place
from tests.device.numbered import number_in, write_video


def _bars(image: Image) -> int:
    return number_in(image[: image.shape[0] // 2])


@pytest.mark.parametrize(
    ("location", "options", "size_wh", "fps"),
    [
        ("pattern", SourceOptions(), (1280, 720), 30),
        ("pattern:320x240@100", SourceOptions(size_wh=(8, 8), fps=5), (320, 240), 100),
        ("pattern:@50", SourceOptions(size_wh=(640, 480)), (640, 480), 50),
        ("pattern:64x48", SourceOptions(fps=60), (64, 48), 60),
        ("pattern:64x48", SourceOptions(fps=100, rotate=90), (48, 64), 100),
        ("pattern:1x1@100", SourceOptions(), (1, 1), 100),
    ],
)
def test_a_pattern_is_a_live_camera(
    location: str, options: SourceOptions, size_wh: tuple[int, int], fps: float
) -> None:
    with closing(open_source(location, camera="test", options=options)) as source:
        assert source.fps == fps
        assert source.paced
        seqs = []
        for _ in range(5):
            frame = source.latest(5)
            assert frame is not None
            assert frame.size_wh == size_wh
            assert time.monotonic_ns() - frame.captured_ns < 5e9
            seqs.append(frame.seq)
        assert seqs == sorted(set(seqs))
        assert source.status is SourceStatus.OPENED
        assert source.trouble == ""
    assert not any(t.name == "camera test" for t in threading.enumerate())


def test_a_pattern_is_numbered_moves_and_takes_no_memory() -> None:
    pattern = Pattern((320, 240), 200.0)
    buffer = np.zeros((1, 1, 3), np.uint8)
    pictures, numbers = [], []
    for _ in range(3):
        assert pattern.grab()
        image = pattern.retrieve_into(buffer)
        assert image is buffer or not pictures
        buffer = image
        pictures.append(image.copy())
        numbers.append(_bars(image))
    assert numbers == sorted(set(numbers))
    assert not np.array_equal(pictures[0][150:], pictures[1][150:])


def test_a_pattern_nobody_reads_for_a_while_leaves_frames_out() -> None:
    pattern = Pattern((32, 24), 200.0)
    pattern.grab()
    first_ns = pattern.stamp_ns
    time.sleep(0.05)
    pattern.grab()
    assert pattern.stamp_ns >= first_ns + 0.045e9
    assert (pattern.stamp_ns - first_ns) % 5_000_000 == 0


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("pattern:", None),
        ("pattern:12", "expected pattern, pattern:1280x720"),
        ("pattern:0x5", "expected a size of 1x1"),
        ("pattern:99999x5", "expected a size of 1x1"),
        ("pattern:@0.5", "expected 1 to 240 frames"),
        ("pattern:@500", "expected 1 to 240 frames"),
    ],
)
def test_a_pattern_written_otherwise_is_refused(location: str, expected: str | None) -> None:
    assert kind_of(location) is Kind.PATTERN
    for waits in (False, True):
        if expected is None:
            open_source(location, waits=waits).close()
            continue
        with pytest.raises(CameraError) as caught:
            open_source(location, waits=waits)
        assert expected in str(caught.value)


@pytest.mark.parametrize("waits", [False, True])
def test_a_pattern_that_is_asked_to_be_slower_than_it_can_is_refused(waits: bool) -> None:
    with pytest.raises(CameraError, match=r"pattern:64x48: fps is 0\.2, expected 1 or more of a pattern"):
        open_source("pattern:64x48", options=SourceOptions(fps=0.2), waits=waits)
    open_source("pattern:64x48@50", options=SourceOptions(fps=0.2), waits=waits).close()


def test_a_file_of_such_a_name_is_reached_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pattern", "picamera2"):
        write_video(tmp_path / f"{name}.avi", range(3)).rename(tmp_path / name)
        assert kind_of(name) in (Kind.PATTERN, Kind.PICAMERA)
        assert kind_of(f"./{name}") is Kind.VIDEO
        with closing(open_source(f"./{name}", realtime=False)) as source:
            assert source.latest(5) is not None


@pytest.mark.parametrize("waits", [False, True])
def test_gstreamer_is_refused_where_opencv_has_none(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "  Video I/O:\n    GStreamer:                   NO\n")
    location = "gst:rtspsrc location=rtsp://bob:s3cret@cam/live user-pw=s3cret ! decodebin"
    with pytest.raises(MissingDependencyError) as caught:
        open_source(location, waits=waits)
    assert str(caught.value).startswith("gst:rtspsrc ! decodebin: this OpenCV was built without GStreamer")
    assert "s3cret" not in str(caught.value)
    assert redact(location) == "gst:rtspsrc ! decodebin"
    assert caught.value.exit_code == 8


@pytest.mark.parametrize(
    ("pipeline", "opened"),
    [
        (
            "videotestsrc",
            "videotestsrc ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true max-buffers=1 sync=false",
        ),
        ("videotestsrc ! appsink", "videotestsrc ! appsink"),
    ],
)
def test_a_pipeline_gets_a_sink_of_one_picture(monkeypatch: pytest.MonkeyPatch, pipeline: str, opened: str) -> None:
    put_in_place(monkeypatch, "!")
    with pytest.raises(CameraError, match="the pipeline does not start; try it with `gst-launch"):
        open_source(f"gst:{pipeline}")
    assert VideoCapture.opened == [(opened, cv2.CAP_GSTREAMER)]


@pytest.mark.skipif(not has_gstreamer(), reason="the wheels of OpenCV have no GStreamer: `make gstreamer`")
def test_a_real_pipeline() -> None:
    with closing(open_source("gst:videotestsrc is-live=true ! video/x-raw,width=320,height=240")) as source:
        frame = source.latest(5)
        assert frame is not None
        assert frame.size_wh == (320, 240)
