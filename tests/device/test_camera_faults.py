"""What happens to cameras of each kind that nobody has here, and that frames come again afterwards."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from edge_sdk.camera import SourceOptions, SourceStatus, kind_of, open_source, opening
from edge_sdk.camera.live import LiveFeed
from edge_sdk.camera.stats import OpenedSource
from edge_sdk.camera.threaded import ThreadedSource
from tests.device.delivery import until
from tests.device.doubled_cameras import OTHER_SIZE_WH, SIZE_WH, put_in_place

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
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("openings", "reopenings"),
    [
        (("fff", "!", "!"), 1),
        (("fffs",), 1),
        (("fff", "s", "", "ff"), 2),
        (("ffe",), 1),
        (("fff", "e"), 1),
        (("x" * 60,), 0),
    ],
    ids=[
        "unplugged and back",
        "silent",
        "comes back and is silent, ends",
        "error",
        "comes back with an error",
        "rubbish",
    ],
)
def test_a_camera_that_is_lost_gives_frames_again(
    monkeypatch: pytest.MonkeyPatch, location: str, waits: bool, openings: tuple[str, ...], reopenings: int
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
@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        ("fffs", "no frame for"),
        ("fff", "the camera ended the stream"),
    ],
)
def test_why_it_is_lost(monkeypatch: pytest.MonkeyPatch, location: str, opening: str, expected: str) -> None:
    script = put_in_place(monkeypatch, opening)
    script.door.clear()  # what the next opening comes to would take its place
    with closing(open_source(location, options=_OPTIONS)) as source:
        until(lambda: source.trouble.startswith(expected))
        assert source.status is SourceStatus.LOST
        script.door.set()


@each_kind
def test_pictures_of_another_size(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    put_in_place(monkeypatch, "fff" + "F" * 10**6)
    with closing(open_source(location, options=_OPTIONS)) as source:
        until(lambda: (frame := source.latest(5)) is not None and frame.size_wh == OTHER_SIZE_WH)
        assert source.remarks == ("its pictures are 320x240 now, and were 640x480",)
        assert source.stats.reopenings == 0


@each_kind
def test_pictures_that_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    """Half a JPEG of a camera or a pipeline is left out; picamera2 raises, and is opened again."""
    put_in_place(monkeypatch, "ffxfxx" + _FOR_EVER)
    with closing(open_source(location, options=_OPTIONS)) as source:
        until(lambda: source.stats.unreadable == 3 or source.stats.reopenings == 1)
        _gives_frames(source)
        assert (source.stats.reopenings == 1) == (location == "picamera2")


@each_kind
def test_two_hundred_openings_leave_nothing(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    script = put_in_place(monkeypatch, *["ff"] * 200)
    reopen = opening._opener(kind_of(location), location, None, _OPTIONS)
    threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    with closing(ThreadedSource(LiveFeed(None, reopen, uniform=lambda: 0.0), "again")) as source:
        until(lambda: script.openings > 200)
        source.latest(0)
        _gives_frames(source)
        assert source.stats.reopenings == 200
        assert threading.active_count() <= threads + 1
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
        assert script.held == 1
    until(lambda: script.held == 0)
