"""What a camera says of its trouble, on hand-written captures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.camera import SourceOptions, SourceStatus, open_source
from edge_sdk.camera.backlog import Backlog
from edge_sdk.camera.capture import Capture
from edge_sdk.camera.live import LiveFeed
from edge_sdk.camera.rate import Rate
from edge_sdk.camera.slot import Slot
from edge_sdk.camera.threaded import ThreadedSource
from edge_sdk.errors import CameraError, ConfigError
from edge_sdk.frame import Image

MS = 1_000_000


class _Camera:
    """Gives `frames` frames and then does as `then` says."""

    buffered_since_ns: int | None = None
    comes_with_next = False
    fps = 50.0
    stamp_ns: int | None = None
    remarks = ("asked for 5 frames a second, the camera gives 50",)

    def __init__(self, frames: int, then: Callable[[], bool] = lambda: False, *, readable: bool = True) -> None:
        self._left, self._then, self._readable = frames, then, readable

    def grab(self) -> bool:
        time.sleep(0.001)
        self._left -= 1
        return self._left >= 0 or self._then()

    def retrieve_into(self, buffer: Image) -> Image | None:
        return np.zeros((2, 2, 3), np.uint8) if self._readable else None

    def release(self) -> None:
        pass


def _absent() -> Capture:
    raise CameraError("connection refused")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _silent() -> bool:
    time.sleep(0.05)
    return False


def _broken() -> bool:
    raise RuntimeError("rtsp://bob:s3cret@cam")


@pytest.mark.parametrize(
    ("camera", "expected"),
    [
        (_Camera(3), "the camera ended the stream"),
        (_Camera(3, _silent), "no frame for 0.05 s"),
        (_Camera(1000, readable=False), "50 frames in a row cannot be decoded"),
        (_Camera(3, _broken), "reading failed (RuntimeError)"),
    ],
)
def test_why_it_was_lost(camera: _Camera, expected: str) -> None:
    # Before the first attempt to open it again, which then has a reason of its own.
    feed = LiveFeed(camera, _absent, uniform=lambda: 1000.0, read_timeout_s=0.05)
    with closing(ThreadedSource(feed, "c")) as source:
        _until(lambda: source.status is SourceStatus.LOST)
        assert source.trouble == expected
        assert source.remarks == camera.remarks
        source.latest(0)  # its last frame
    assert source.trouble == ""  # a closed source has none


def test_why_it_does_not_come_back_and_that_it_did() -> None:
    allowed = threading.Event()

    def reopen() -> Capture:
        if not allowed.is_set():
            return _absent()
        return _Camera(10**6)

    feed = LiveFeed(_Camera(1), reopen, uniform=lambda: 0.001)
    with closing(ThreadedSource(feed, "c")) as source:
        _until(lambda: source.trouble == "connection refused")
        assert source.status is SourceStatus.LOST
        allowed.set()
        _until(lambda: source.status is SourceStatus.REOPENED)
        assert source.trouble == ""


def test_who_never_came_is_opening_and_its_coming_is_no_return() -> None:
    allowed = threading.Event()
    feed = LiveFeed(None, lambda: _Camera(10**6) if allowed.is_set() else _absent(), uniform=lambda: 0.001)
    with closing(ThreadedSource(feed, "c")) as source:
        _until(lambda: source.trouble == "connection refused")
        assert (source.status, source.fps, source.remarks) == (SourceStatus.OPENING, 25.0, ())
        allowed.set()
        _until(lambda: source.status is SourceStatus.OPENED)
        assert (source.fps, source.remarks, source.stats.reopenings) == (50.0, _Camera.remarks, 0)


def test_the_first_attempt_does_not_wait() -> None:
    feed = LiveFeed(None, lambda: _Camera(10**6), uniform=lambda: 10**9)
    with closing(ThreadedSource(feed, "c")) as source:
        assert source.latest(30) is not None


def test_a_driver_that_hangs_is_lost_and_closing_does_not_wait_for_it() -> None:
    go_on = threading.Event()
    feed = LiveFeed(_Camera(3, lambda: go_on.wait(60)), _absent, read_timeout_s=-0.9)  # hangs after .1 s
    source = ThreadedSource(feed, "hung")
    _until(lambda: source.status is SourceStatus.LOST)
    assert source.trouble == "no frame comes, and its driver hangs"
    source.latest(0)  # its last frame
    source.close()
    assert source.ended
    assert any(thread.name == "camera hung" for thread in threading.enumerate())
    go_on.set()
    _until(lambda: not any(thread.name == "camera hung" for thread in threading.enumerate()))


def test_what_a_stream_kept_while_it_opened_is_told_from_what_came_after() -> None:
    backlog = Backlog(0, 25.0)
    stamps = [(1000, 1001), (1001, 1002), (1002, 1040), (1041, 1042)]
    kept = [backlog.was_kept(backlog.captured_ns(asked * MS, got * MS), got * MS) for asked, got in stamps]
    assert kept == [True, True, False, False]
    # The estimate caught up: what is younger than a period is as good as new.
    backlog = Backlog(0, 25.0)
    assert [backlog.was_kept(backlog.captured_ns(50 * MS, 60 * MS), 60 * MS) for _ in range(2)] == [True, False]


def _noted(stated_fps: float, *periods_ms: float) -> float:
    rate, now_ns = Rate(stated_fps), 10**12
    for period_ms in periods_ms:
        for _ in range(51):
            rate.note(now_ns)
            now_ns += int(period_ms * MS)
    return rate.fps


def test_the_rate_is_what_came_where_the_promise_is_wrong() -> None:
    assert _noted(25.0, 100) == 10.0
    assert _noted(30.0, 33.4) == 30.0  # as promised
    assert _noted(25.0, 100, 40) == 25.0  # a camera that was slow in the dark
    assert _noted(25.0, 0) == 25.0
    rate = Rate(25.0)
    for number in range(50):
        rate.note(number * 100 * MS)
    assert rate.fps == 25.0  # too few to say


def test_frames_left_out_are_counted_and_numbered() -> None:
    camera = _Camera(10**6)
    camera.buffered_since_ns = time.monotonic_ns() - 400 * MS
    slot, stop = Slot("c"), threading.Event()
    thread = threading.Thread(target=LiveFeed(camera, _absent).run, args=(slot, stop))
    thread.start()
    frame = slot.latest(30)
    stop.set()
    thread.join(30)
    assert frame is not None
    assert 15 <= frame.seq <= 30
    assert slot.dropped >= frame.seq


def test_a_device_that_is_waited_for(tmp_path: Path) -> None:
    with closing(open_source("/dev/no-such-camera", waits=True)) as source:
        _until(lambda: source.trouble == "no such device")
        assert source.status is SourceStatus.OPENING


@pytest.mark.parametrize(("users", "expected_s"), [(None, 2), ("1", 1)])
@pytest.mark.parametrize("asked_s", [0.1, 60.0])
def test_a_device_is_silent_for_as_long_as_opencv_waits(
    monkeypatch: pytest.MonkeyPatch, users: str | None, expected_s: int, asked_s: float
) -> None:
    """`read_timeout_s` is not for V4L2: with a longer one it "ended the stream", with a shorter one its driver hung."""

    def silent() -> bool:
        time.sleep(expected_s)
        return False

    monkeypatch.delenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", raising=False)
    if users is not None:
        monkeypatch.setenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", users)
    cameras = iter([_Camera(3, silent)])
    monkeypatch.setattr("edge_sdk.camera.opening._open_device", lambda *_: next(cameras, None) or _Camera(0, silent))
    with closing(open_source("0", options=SourceOptions(read_timeout_s=asked_s))) as source:
        source.latest(5)
        _until(lambda: source.trouble != "")
        assert source.trouble == f"no frame for {expected_s} s"


def test_a_device_nobody_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.camera.trouble.os.access", lambda *_: False)  # root may open all
    with pytest.raises(CameraError, match="/dev/null: permission denied; add this user to the group video; see"):
        open_source("/dev/null")


@pytest.mark.parametrize("waits", [False, True])
def test_what_no_waiting_mends_is_an_error_at_once(waits: bool) -> None:
    with pytest.raises(ConfigError, match="a password, but no user name"):
        open_source("rtsp://cam/live", password="s3cret", waits=waits)
    with pytest.raises(CameraError, match="this kind of URL is not supported"):
        open_source("ftp://cam/live", waits=waits)
    with pytest.raises(CameraError, match="rtsp://cam:abc/live: no host, or no possible port"):
        open_source("rtsp://cam:abc/live", waits=waits)
