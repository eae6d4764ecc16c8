"""Patterns, GStreamer pipelines and the Raspberry Pi's camera, and what happens to cameras of each kind."""

import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

from edge_sdk.core.errors import CameraError, MissingDependencyError
from edge_sdk.sources.files import Pattern
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opening import PATTERN, PICAMERA, VIDEO, kind_of, open_source
from edge_sdk.sources.picamera2 import Picamera
from edge_sdk.sources.slot import OpenedSource, SourceStatus
from tests.support.connections import until
from tests.support.logs import refusal
from tests.support.pictures import number_in, write_video
from tests.support.streams import OTHER_SIZE_WH, SIZE_WH, Picamera2, Script, VideoCapture, put_in_place


@pytest.mark.parametrize(
    ("location", "options", "size_wh", "fps"),
    [
        ("pattern", SourceOptions(), (1280, 720), 30),
        ("pattern:320x240@100", SourceOptions(size_wh=(8, 8), fps=5), (320, 240), 100),
        ("pattern:@50", SourceOptions(size_wh=(640, 480)), (640, 480), 50),
        ("pattern:64x48", SourceOptions(fps=100, rotate=90), (48, 64), 100),
    ],
)
def test_a_pattern_is_live(location: str, options: SourceOptions, size_wh: tuple[int, int], fps: float) -> None:
    with closing(open_source(location, camera="test", options=options)) as source:
        assert (source.fps, source.paced) == (fps, True)
        seqs = []
        for _ in range(5):
            frame = source.latest(5)
            assert frame is not None
            assert frame.size_wh == size_wh
            assert time.monotonic_ns() - frame.captured_ns < 5e9
            seqs.append(frame.seq)
        assert seqs == sorted(set(seqs))
        assert (source.status, source.trouble) == (SourceStatus.OPENED, "")
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
        numbers.append(number_in(image[: image.shape[0] // 2]))
    assert numbers == sorted(set(numbers))
    assert not np.array_equal(pictures[0][150:], pictures[1][150:])


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("pattern:12", "expected pattern, pattern:1280x720"),
        ("pattern:0x5", "expected a size of 1x1"),
        ("pattern:64x48", "fps is 0.2, expected 1 to 240 frames"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(location: str, expected: str) -> None:
    assert kind_of(location) is PATTERN
    for waits in (False, True):
        with pytest.raises(CameraError, match=f"{location}: .*{expected}"):
            open_source(location, options=SourceOptions(fps=0.2), waits=waits)


def test_a_file_of_such_a_name_is_reached_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pattern", "picamera2"):
        write_video(tmp_path / f"{name}.avi", range(3)).rename(tmp_path / name)
        assert kind_of(name) in (PATTERN, PICAMERA)
        assert kind_of(f"./{name}") is VIDEO
        with closing(open_source(f"./{name}", realtime=False)) as source:
            assert source.latest(5) is not None


def test_what_opencv_was_built_without_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "  Video I/O:\n    GStreamer:                   NO\n")
    location = "gst:rtspsrc location=rtsp://bob:s3cret@cam/live user-pw=s3cret ! decodebin"
    for waits in (False, True):
        said = refusal(MissingDependencyError, open_source, location, waits=waits)
        assert said.startswith("gst:rtspsrc ! decodebin: this OpenCV was built without GStreamer")
        said = refusal(MissingDependencyError, open_source, "rtsp://bob:s3cret@cam/live", waits=True)
        assert said.startswith("rtsp://cam/live: this OpenCV was built without FFmpeg")


def test_a_pipeline_gets_a_sink_of_one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "!", "!")
    for pipeline in ("a", "a ! appsink"):
        with pytest.raises(CameraError, match="the pipeline does not start; try it with `gst-launch"):
            open_source(f"gst:{pipeline}")
    opened = "a ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true max-buffers=1 sync=false", "a ! appsink"
    assert VideoCapture.opened == [(each, cv2.CAP_GSTREAMER) for each in opened]


@pytest.fixture
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)


@pytest.mark.usefixtures("_module")
def test_frames_in_opencvs_order_of_colours_with_the_sensors_time() -> None:
    options = SourceOptions(size_wh=(640, 480), fps=15)
    with closing(open_source("picamera2:1", camera="pi", options=options)) as source:
        for _ in range(5):
            frame = source.latest(5)
            assert frame is not None
            assert frame.size_wh == (640, 480)
            assert time.monotonic_ns() - frame.captured_ns >= 30_000_000
        assert (source.fps, source.remarks) == (15, ())
    (camera,) = Picamera2.opened
    assert (camera.number, camera.held) == (1, 0)
    assert camera.config["main"] == {"format": "RGB888", "size": (640, 480)}
    assert camera.config["controls"] == {"FrameRate": 15}
    assert camera.calls == ["start", "cancel", "stop", "close"]


@pytest.mark.usefixtures("_module")
def test_a_time_that_is_no_time_is_left_out_and_another_size_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picamera2, "clock", staticmethod(lambda: 10**18))
    monkeypatch.setattr(Picamera2, "given", (1296, 972))
    camera = Picamera(0, SourceOptions(size_wh=(1280, 960)))
    assert camera.grab()
    assert camera.stamp_ns is None
    assert camera.remarks == ("asked for 1280x960, the camera gives 1296x972",)


@pytest.mark.parametrize(
    ("attribute", "value", "location", "expected"),
    [
        ("cameras", 0, "picamera2", "picamera2: no camera is connected; see `rpicam-hello"),
        ("cameras", 1, "picamera2:1", "picamera2:1: no such camera; connected: 1 camera"),
        ("script", Script(*["!"] * 99), "picamera2", "in use by another program, or it does not answer (Camera __in"),
        ("start", None, "picamera2", "it does not start ('NoneType' object is not callable)"),
    ],
)
@pytest.mark.usefixtures("_module")
def test_a_camera_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, location: str, expected: str
) -> None:
    monkeypatch.setattr(Picamera2, attribute, value)
    said = refusal(CameraError, open_source, location)
    assert expected in said
    with closing(open_source(location, waits=True)) as source:
        until(lambda: bool(source.trouble))
        assert (source.trouble in said, source.status) == (True, SourceStatus.OPENING)
    assert all("close" in camera.calls for camera in Picamera2.opened)


class _Broken(ModuleType):
    def __getattr__(self, name: str) -> object:
        raise ValueError("numpy.dtype size changed")


@pytest.mark.parametrize(
    ("module", "expected"),
    [(None, "python3 -m venv --system-site-packages"), (_Broken("picamera2"), "--force-reinstall simplejpeg")],
)
def test_a_module_that_does_not_load(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, expected: str) -> None:
    monkeypatch.setitem(sys.modules, "picamera2", module)
    for waits in (False, True):
        assert expected in refusal(MissingDependencyError, open_source, "picamera2", waits=waits)


# The device's file is there and may be opened by all; what it gives is the double's.
KINDS = ["/dev/null", "gst:v4l2src ! videoconvert", "picamera2"]
_FOR_EVER = "f" * 10**6
_OPTIONS = SourceOptions(read_timeout_s=0.5, size_wh=SIZE_WH)

each_kind = pytest.mark.parametrize("location", KINDS, ids=["v4l2", "gstreamer", "picamera2"])


@pytest.fixture(autouse=True)
def _a_device_is_silent_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "1")


def _gives_frames(source: OpenedSource, wanted: int = 5) -> None:
    seqs = []
    while len(seqs) < wanted:
        frame = source.latest(20)
        assert frame is not None, source.trouble
        seqs.append(frame.seq)
    assert seqs == sorted(set(seqs))


@each_kind
@pytest.mark.parametrize(
    ("openings", "reopenings", "waits"),
    [(("fffs", "!", "", "ff"), 2, True), (("ffe",), 1, False), (("x" * 60,), 0, False), (("x" * 60,), 0, True)],
    ids=["silent, unplugged, ends", "error", "rubbish", "waited for, and rubbish"],
)
def test_a_camera_that_is_lost_gives_frames_again(
    monkeypatch: pytest.MonkeyPatch, location: str, openings: tuple[str, ...], reopenings: int, waits: bool
) -> None:
    script = put_in_place(monkeypatch, *openings)
    with closing(open_source(location, camera="gone", options=_OPTIONS, waits=waits)) as source:
        until(lambda: script.openings > len(openings))
        source.latest(0)  # of the time before
        _gives_frames(source)
        # One that gave nothing at all was never there: it is opened, and not opened again.
        assert source.status is (SourceStatus.REOPENED if reopenings or not waits else SourceStatus.OPENED)
        assert source.stats.reopenings in (reopenings, reopenings + (not waits))
        assert source.trouble == ""
        assert script.held == 1
    until(lambda: script.held == 0)
    assert not any(thread.name == "camera gone" for thread in threading.enumerate())


@each_kind
def test_pictures_of_another_size(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    put_in_place(monkeypatch, "fff" + "F" * 10**6)
    with closing(open_source(location, options=_OPTIONS)) as source:
        until(lambda: (frame := source.latest(5)) is not None and frame.size_wh == OTHER_SIZE_WH)
        assert source.remarks == ("its pictures are 320x240 now, and were 640x480",)
        assert source.stats.reopenings == 0


@each_kind
def test_pictures_that_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    """Half a JPEG of a camera or a pipeline, or an empty one, is left out; picamera2 raises, and is opened again."""
    put_in_place(monkeypatch, "ffxfnx" + _FOR_EVER)
    with closing(open_source(location, options=_OPTIONS)) as source:
        until(lambda: source.stats.unreadable == 3 or source.stats.reopenings == 1)
        _gives_frames(source)
        assert (source.stats.reopenings == 1) == (location == "picamera2")
