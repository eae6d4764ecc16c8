"""Cameras that are lost and come back, and what they say of it: feeds of hand-written captures, and their slot."""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.core.frame import Image
from edge_sdk.sources.live import FrameBacklog, LiveSource, Rate
from edge_sdk.sources.location import SourceOptions, device_timeout_s
from edge_sdk.sources.opencv import Capture, plausible_fps
from edge_sdk.sources.opening import open_source
from edge_sdk.sources.slot import OpenedSource, Slot, SourceStatus
from tests.support.connections import until

MS = 1_000_000


class FakeCapture:
    """Delivers the given pictures, `x` for one that cannot be decoded, and does as `then` says after the last."""

    buffered_since_ns: int | None = None
    comes_with_next = False
    pace_s = 0.001
    fps = 50.0
    stamp_ns: int | None = None
    remarks = ("asked for 5 frames a second, the camera gives 50",)

    def __init__(
        self, pictures: str, then: Callable[[], bool] = lambda: False, *, error_on_release: Exception | None = None
    ) -> None:
        self._pictures, self._then, self._error = iter(pictures), then, error_on_release
        self._picture = ""
        self.released = 0

    def grab(self) -> bool:
        time.sleep(self.pace_s)
        self._picture = next(self._pictures, "")
        return self._picture != "" or self._then()

    def retrieve_into(self, buffer: Image) -> Image | None:
        return None if self._picture == "x" else np.full((2, 2, 3), ord(self._picture), np.uint8)

    def release(self) -> None:
        self.released += 1
        if self._error:
            raise self._error


def _endless() -> FakeCapture:
    return FakeCapture("b" * 10_000)


def _absent() -> Capture:
    raise CameraError("connection refused")


def _raising(error: Exception) -> Callable[[], bool]:
    def fail() -> bool:
        raise error

    return fail


def _silent() -> bool:
    time.sleep(0.05)
    return False


def _source(
    first: FakeCapture | None, *others: FakeCapture | Exception | None, jitter: float = 0.001,
    read_timeout_s: float = 0.05,
) -> OpenedSource:  # fmt: skip
    """A source that opens each of the others in turn, None for one that is absent, and then none."""
    left = iter(others)

    def reopen() -> Capture:
        found = next(left, None)
        if isinstance(found, Exception):
            raise found
        return found or _absent()

    return LiveSource("door", first, reopen, uniform=lambda _low, _high: jitter, read_timeout_s=read_timeout_s)


def _taken(source: OpenedSource, wanted: int) -> list[str]:
    found: list[str] = []
    while len(found) < wanted:
        frame = source.latest(10)
        assert frame is not None
        found.append(chr(int(frame.image[0, 0, 0])))
    return found


def test_a_lost_camera_is_reopened_for_ever() -> None:
    captures = [FakeCapture("a"), FakeCapture("a"), FakeCapture(""), _endless()]
    source = _source(captures[0], None, None, captures[1], None, captures[2], None, captures[3])
    assert _taken(source, 5)[-1] == "b"
    assert (source.status, source.stats.reopenings, source.ended) == (SourceStatus.REOPENED, 2, False)
    assert [c.released for c in captures] == [1, 1, 1, 0]
    source.close()
    source.close()
    assert [c.released for c in captures] == [1, 1, 1, 1]
    assert (source.ended, source.latest(10)) == (True, None)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("rtsp://bob:s3cret@cam")])
def test_whatever_goes_wrong_the_camera_is_reopened(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = (FakeCapture(pictures, _raising(error), error_on_release=error) for pictures in ("a", ""))
    with closing(_source(first, error, second, error, _endless())) as source:
        assert _taken(source, 3)[-1] == "b"
        assert (source.ended, source.stats.reopenings) == (False, 1)
    assert capfd.readouterr().err == ""


class _Broken(OpenedSource):
    def read(self, slot: Slot, stop: threading.Event) -> None:
        slot.put(np.zeros((2, 2, 3), np.uint8), 1, 1.0, 0)
        raise MemoryError("no room\nfor more")


def _is_read(camera: str) -> bool:
    return any(thread.name == f"camera {camera}" for thread in threading.enumerate())


def test_a_reader_that_fails_is_an_error_and_no_end(capfd: pytest.CaptureFixture[str]) -> None:
    source = _Broken("door", 25.0)
    assert source.latest(10) is not None
    until(lambda: not _is_read("door"))
    assert not source.ended
    for _ in range(2):
        with pytest.raises(CameraError, match=r"^camera door: reading failed: MemoryError: no room$"):
            source.latest(10)
    source.close()
    assert (source.ended, source.latest(10)) == (True, None)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("camera", "expected"),
    [
        (FakeCapture("aaa"), "the camera ended the stream"),
        (FakeCapture("aaa", _silent), "no frame for 0.05 s"),
        (FakeCapture("x" * 1000), "50 frames in a row cannot be decoded"),
        (FakeCapture("aaa", _raising(RuntimeError("rtsp://bob:s3cret@cam"))), "reading failed (RuntimeError)"),
    ],
)
def test_why_it_was_lost(camera: FakeCapture, expected: str) -> None:
    # Before the first attempt to open it again, which then has a reason of its own. A busy machine is no silent camera.
    read_timeout_s = 0.05 if expected.startswith("no frame") else 60.0
    with closing(_source(camera, jitter=1000.0, read_timeout_s=read_timeout_s)) as source:
        until(lambda: source.status is SourceStatus.LOST)
        assert (source.trouble, source.remarks) == (expected, camera.remarks)
        source.latest(0)  # its last frame
        assert (source.latest(0.01), source.ended) == (None, False)
    assert (source.trouble, source.status) == ("", SourceStatus.ENDED)  # a closed source has no trouble
    assert source.stats.unreadable == (50 if "decoded" in expected else 0)


@pytest.mark.parametrize("first", [FakeCapture("a"), None], ids=["lost", "never there"])
def test_why_it_does_not_come_and_that_it_came(first: FakeCapture | None) -> None:
    allowed, ended = threading.Event(), threading.Event()
    camera = FakeCapture("b" * 40, lambda: ended.wait(60))  # too few frames to measure another rate

    def reopen() -> Capture:
        return camera if allowed.is_set() else _absent()

    with closing(LiveSource("c", first, reopen, lambda _low, _high: 0.001, read_timeout_s=60.0)) as source:
        until(lambda: source.trouble == "connection refused")
        assert source.status is (SourceStatus.LOST if first else SourceStatus.OPENING)
        assert first or (source.fps, source.remarks) == (25.0, ())
        allowed.set()
        until(lambda: source.status is (SourceStatus.REOPENED if first else SourceStatus.OPENED))
        assert (source.trouble, source.fps, source.remarks) == ("", 50.0, FakeCapture.remarks)
        until(lambda: source.stats.reopenings == (first is not None))
        ended.set()


def test_a_driver_that_hangs_is_lost_and_closing_does_not_wait_for_it() -> None:
    go_on = threading.Event()
    camera = FakeCapture("aaa", lambda: go_on.wait(60))
    source = LiveSource("hung", camera, _absent, read_timeout_s=-0.9)  # hangs after .1 s
    until(lambda: source.status is SourceStatus.LOST)
    assert source.trouble == "no frame comes, and its driver hangs"
    source.latest(0)  # its last frame
    source.close()
    assert source.ended
    assert _is_read("hung")
    go_on.set()
    until(lambda: not _is_read("hung"))


def test_neither_the_first_attempt_nor_close_waits_for_the_back_off() -> None:
    source = _source(None, FakeCapture("b"), jitter=1000.0)
    until(lambda: source.status is SourceStatus.LOST)
    assert source.latest(0) is not None
    began_s = time.monotonic()
    source.close()
    assert (_is_read("door"), time.monotonic() - began_s < 30) == (False, True)


def test_attempts_back_off_to_two_seconds_until_a_frame_came() -> None:
    longest_s, others = list[float](), iter([None, None, FakeCapture(""), FakeCapture("a"), None])

    def noted(_shortest: float, longest: float) -> float:
        longest_s.append(longest)
        return 0.0001

    with closing(LiveSource("c", FakeCapture("a"), lambda: next(others, None) or _absent(), noted)):
        until(lambda: len(longest_s) >= 6)
    # A capture that opens and delivers nothing does not start the count again; one that delivers does.
    assert longest_s[:6] == [0.5, 1.0, 2.0, 2.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("grabs_ms", "expected_ms"),
    [
        # Opened at 0, ready at 1000: three buffered frames at once, then one that was waited for, then fast ones.
        ([(1000, 1001), (1001, 1002), (1002, 1003), (1003, 1040), (1041, 1042)], [0, 40, 80, 1040, 1042]),
        # Nothing was buffered: the first grab waited.
        ([(1000, 1030), (1031, 1032)], [1030, 1032]),
        # A server that sends faster than its rate is live as soon as the estimate has caught up.
        ([(10, 11), (11, 12), (12, 13)], [0, 12, 13]),
    ],
)
def test_buffered_frames_are_as_old_as_they_are(grabs_ms: list[tuple[int, int]], expected_ms: list[int]) -> None:
    backlog = FrameBacklog(0, 25.0)
    assert [backlog.captured_ns(a * MS, g * MS) // MS for a, g in grabs_ms] == expected_ms
    assert FrameBacklog(None, 25.0).captured_ns(5, 6) == 6  # a device has none


def test_a_frame_that_comes_with_the_next_was_captured_when_the_one_before_came() -> None:
    """Two buffered frames; the third was on its way when they were handed out; then in time, and after a stall."""
    backlog = FrameBacklog(0, 25.0, comes_with_next=True)
    grabs_ms = [(1000, 1001), (1001, 1002), (1003, 1035), (1036, 1075), (1076, 1600)]
    assert [backlog.captured_ns(a * MS, g * MS) // MS for a, g in grabs_ms] == [0, 40, 995, 1035, 1075]
    # A server that sends a second of pictures at once turns back no time.
    backlog = FrameBacklog(0, 25.0, comes_with_next=True)
    captured_ns = [backlog.captured_ns(ms * MS, (ms + 1) * MS) for ms in (80, 81, 82, 83, 84)]
    assert captured_ns == [each * MS for each in (0, 40, 80, 80, 84)]


def test_an_absurd_rate_becomes_25() -> None:
    assert [plausible_fps(stated) for stated in (0, -1, 1000, float("nan"))] == [25] * 4
    assert [plausible_fps(stated) for stated in (29.97, 0.5, 240)] == [29.97, 0.5, 240]


def _noted(stated_fps: float, *periods_ms: float, count: int = 51) -> float:
    rate, fps, now_ns = Rate(stated_fps), stated_fps, 10**12
    for period_ms in periods_ms:
        for _ in range(count):
            fps = rate.note(now_ns)
            now_ns += int(period_ms * MS)
    return fps


def test_the_rate_is_what_came_where_the_promise_is_wrong() -> None:
    assert _noted(25.0, 100) == 10.0
    assert _noted(30.0, 33.4) == 30.0  # as promised
    assert _noted(25.0, 100, 40) == 25.0  # a camera that was slow in the dark
    assert _noted(25.0, 0) == 25.0
    assert _noted(25.0, 100, count=50) == 25.0  # too few to say


def test_frames_left_out_are_counted_and_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(400 * MS)  # a clock that goes on by a nanosecond a reading
    clocks = SimpleNamespace(monotonic_ns=lambda: next(ticks), time=lambda: 1000 + next(ticks) / 1e9)
    monkeypatch.setattr("edge_sdk.sources.live.time", clocks)
    camera = _endless()
    camera.pace_s, camera.buffered_since_ns = 0.0, 0
    with closing(LiveSource("c", camera, _absent)) as source:
        frame = source.latest(30)
    assert frame is not None
    assert frame.seq >= 19  # the twenty frames that were buffered for 400 ms have gone
    assert frame.captured_at - frame.captured_ns / 1e9 == pytest.approx(1000)
    assert source.stats.dropped >= frame.seq


@pytest.mark.parametrize("asked_s", [0.1, 60.0])
def test_a_device_is_silent_for_as_long_as_opencv_waits(monkeypatch: pytest.MonkeyPatch, asked_s: float) -> None:
    """`read_timeout_s` is not for V4L2: with a longer one it "ended the stream", with a shorter one its driver hung."""

    def silent() -> bool:
        time.sleep(1)
        return False

    monkeypatch.delenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", raising=False)
    assert device_timeout_s() == 2
    monkeypatch.setenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "1")
    cameras = iter([FakeCapture("aaa", silent)])
    opened = "edge_sdk.sources.opencv.open_device"
    monkeypatch.setattr(opened, lambda *_: next(cameras, None) or FakeCapture("", silent))
    with closing(open_source("0", options=SourceOptions(read_timeout_s=asked_s))) as source:
        source.latest(5)
        until(lambda: source.trouble != "")
        assert source.trouble == "no frame for 1 s"


def test_a_device_nobody_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.sources.opencv.os.access", lambda *_: False)  # root may open all
    with pytest.raises(CameraError, match="/dev/null: permission denied; add this user to the group video; see"):
        open_source("/dev/null")


def _put(slot: Slot, number: int, *, settles: bool = False) -> None:
    """What a reader does: write into the slot's buffer, or hand in another array where its size is wrong."""
    buffer = slot.buffer()
    if buffer.shape != (4, 4, 3):
        buffer = np.empty((4, 4, 3), np.uint8)
    buffer[:] = number
    slot.put(buffer, captured_ns=number, captured_at=float(number), seq=number, settles=settles)


def test_the_newest_wins_and_the_others_are_counted() -> None:
    slot = Slot("door")
    for number in range(5):
        _put(slot, number)
    frame = slot.latest(0)
    assert frame is not None
    assert (frame.seq, frame.captured_ns, frame.captured_at, frame.camera) == (4, 4, 4.0, "door")
    assert (frame.image == 4).all()
    assert slot.latest(0) is None
    assert (slot.delivered, slot.dropped) == (1, 4)


def test_a_kept_picture_is_handed_out_unless_a_newer_one_comes_at_once() -> None:
    slot = Slot("c")
    _put(slot, 1, settles=True)
    assert slot.latest(0) is None
    for number, settles, timeout_s in ((2, True, 30), (3, True, None), (4, False, 0)):
        _put(slot, number, settles=settles)
        assert timeout_s is None or getattr(slot.latest(timeout_s), "seq", None) == number
    assert (slot.delivered, slot.dropped) == (2, 2)
    _put(slot, 5, settles=True)
    slot.finish()
    assert slot.latest(0) is not None  # it was the last
    assert slot.ended


def test_what_the_consumer_holds_is_never_written() -> None:
    slot = Slot("c")
    number = 1
    _put(slot, number)
    for puts_between in (0, 1, 2, 3, 7) * 3:
        frame = slot.latest(0)
        assert frame is not None
        for _ in range(puts_between):
            number += 1
            _put(slot, number)
            assert (frame.image == frame.seq).all()
        assert puts_between or slot.latest(0) is None
        assert (frame.image == frame.seq).all()
        number += 1
        _put(slot, number)


def test_who_waits_for_a_frame_is_woken_by_the_end() -> None:
    slot, began_s = Slot("c"), time.monotonic()
    threading.Timer(0.02, slot.finish).start()
    assert slot.latest(20) is None
    assert time.monotonic() - began_s < 10
