"""Cameras that are lost and come back, on hand-written captures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import cv2
import numpy as np
import pytest

from edge_sdk.camera.backlog import Backlog
from edge_sdk.camera.capture import Capture, plausible_fps
from edge_sdk.camera.live import LiveFeed, backoff_s
from edge_sdk.camera.slot import Slot
from edge_sdk.camera.stats import OpenedSource, SourceStatus
from edge_sdk.camera.threaded import ThreadedSource
from edge_sdk.errors import CameraError
from edge_sdk.frame import Image
from tests.device.delivery import until

MS = 1_000_000


class FakeCapture:
    """Delivers the given pictures, "" for one that cannot be decoded, and is lost after the last."""

    buffered_since_ns: int | None = None
    comes_with_next = False
    fps = 25.0
    stamp_ns: int | None = None
    remarks: tuple[str, ...] = ()

    def __init__(self, pictures: str, *, paced: bool = True, error: Exception | None = None) -> None:
        self._error = error
        self._pictures = iter(pictures)
        self._pause_s = 0.002 if paced else 0.0
        self._picture = ""
        self.released = 0

    def grab(self) -> bool:
        time.sleep(self._pause_s)
        self._picture = next(self._pictures, "lost")
        if self._error and self._picture in ("lost", "e"):
            raise self._error
        return self._picture != "lost"

    def retrieve_into(self, buffer: Image) -> Image | None:
        height = 4 if self._picture == "h" else 2
        return None if self._picture == "x" else np.full((height, 2, 3), ord(self._picture), np.uint8)

    def release(self) -> None:
        self.released += 1
        if self._error:
            raise self._error


def _found(capture: FakeCapture | None) -> FakeCapture:
    if capture is None:
        raise CameraError("connection refused")
    return capture


def _camera(first: FakeCapture, others: list[FakeCapture | None]) -> tuple[OpenedSource, Iterator[FakeCapture | None]]:
    left = iter(others)

    def reopen() -> Capture:
        return _found(next(left, None))

    return ThreadedSource(LiveFeed(first, reopen, uniform=lambda: 0.001), "door"), left


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _taken(source: OpenedSource, wanted: int) -> list[str]:
    """The pictures of the next frames."""
    found: list[str] = []
    while len(found) < wanted:
        frame = source.latest(10)
        assert frame is not None
        found.append(chr(int(frame.image[0, 0, 0])))
    return found


def test_a_lost_camera_is_reopened_for_ever() -> None:
    captures = [FakeCapture("a"), FakeCapture("b"), FakeCapture(""), FakeCapture("c" * 10_000)]
    source, _ = _camera(captures[0], [None, None, captures[1], None, captures[2], None, captures[3]])
    assert _taken(source, 5)[-1] == "c"
    assert not source.ended
    assert source.status is SourceStatus.REOPENED
    assert source.stats.reopenings == 2
    assert [c.released for c in captures] == [1, 1, 1, 0]
    source.close()
    source.close()
    assert [c.released for c in captures] == [1, 1, 1, 1]
    assert source.ended
    assert source.latest(10) is None


@pytest.mark.parametrize("error", [MemoryError(), cv2.error("unforeseen"), RuntimeError("rtsp://bob:s3cret@cam")])
def test_whatever_goes_wrong_the_camera_is_reopened(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    others: Iterator[FakeCapture | Exception] = iter(
        [error, FakeCapture("", error=error), error, FakeCapture("b" * 9999)]
    )

    def reopen() -> Capture:
        found = next(others)
        if isinstance(found, Exception):
            raise found
        return found

    source = ThreadedSource(LiveFeed(FakeCapture("a", error=error), reopen, uniform=lambda: 0.001), "door")
    assert _taken(source, 3)[-1] == "b"
    assert not source.ended
    assert source.stats.reopenings == 1
    source.close()
    assert capfd.readouterr().err == ""


class _BrokenFeed:
    """Puts one frame, then fails."""

    fps, reopenings, unreadable, status = 25.0, 0, 0, SourceStatus.OPENED
    trouble, remarks = "", ()

    def run(self, slot: Slot, stop: threading.Event) -> None:
        slot.put(np.zeros((2, 2, 3), np.uint8), 1, 1.0, 0)
        raise MemoryError("no room\nfor more")


def test_a_reader_that_fails_is_an_error_and_no_end(capfd: pytest.CaptureFixture[str]) -> None:
    source = ThreadedSource(_BrokenFeed(), "door")
    assert source.latest(10) is not None
    _wait_until(lambda: not any(t.name == "camera door" for t in threading.enumerate()))
    assert not source.ended
    for _ in range(2):
        with pytest.raises(CameraError, match=r"^camera door: reading failed: MemoryError: no room$"):
            source.latest(10)
    source.close()
    assert source.ended
    assert source.latest(10) is None
    assert capfd.readouterr().err == ""


def test_the_status_says_that_it_is_lost() -> None:
    source, _ = _camera(FakeCapture("aaa"), [])
    assert source.status in (SourceStatus.OPENED, SourceStatus.LOST)
    _wait_until(lambda: source.status is SourceStatus.LOST)
    assert source.latest(0) is not None
    assert source.latest(0.01) is None
    assert not source.ended
    source.close()
    assert source.status is SourceStatus.ENDED


def test_frames_are_numbered_through_and_stamped() -> None:
    before_ns, before = time.monotonic_ns(), time.time()
    source, _ = _camera(FakeCapture("aaa"), [FakeCapture("b" * 10_000)])
    seqs = []
    for _ in range(10):
        frame = source.latest(10)
        assert frame is not None
        assert before_ns <= frame.captured_ns <= time.monotonic_ns()
        assert before - 0.1 <= frame.captured_at <= time.time() + 0.1
        assert frame.camera == "door"
        seqs.append(frame.seq)
    source.close()
    assert seqs == sorted(set(seqs))
    stats = source.stats
    assert stats.delivered == 10
    assert seqs[-1] + 1 <= stats.delivered + stats.dropped + 1


def test_pictures_of_another_size_are_remarked_also_after_a_loss() -> None:
    source, _ = _camera(FakeCapture("aaa"), [FakeCapture("h" * 10_000)])
    assert source.remarks == ()
    until(lambda: source.remarks == ("its pictures are 2x4 now, and were 2x2",))
    source.close()


def test_unreadable_frames_are_counted_and_left_out() -> None:
    source, _ = _camera(FakeCapture("xxax" + "b" * 10_000), [])
    assert "x" not in _taken(source, 3)
    assert source.stats.unreadable == 3
    source.close()


def test_a_camera_that_sends_only_rubbish_is_lost() -> None:
    rubbish = FakeCapture("x" * 10_000, paced=False)
    source, _ = _camera(rubbish, [FakeCapture("a" * 10_000)])
    assert _taken(source, 1) == ["a"]
    assert source.stats.unreadable == 50
    assert rubbish.released == 1
    source.close()


def test_a_frame_that_is_none_after_the_time_out_is_silence() -> None:
    """As OpenCV's GStreamer has it; what comes and cannot be decoded comes sooner."""
    silent = FakeCapture("x" * 10_000)
    feed = LiveFeed(silent, lambda: _found(None), uniform=lambda: 1000.0, read_timeout_s=0.001)
    source = ThreadedSource(feed, "c")
    until(lambda: source.trouble == "no frame for 0.001 s")
    source.close()
    assert silent.released == 1
    assert source.stats.unreadable == 0


def test_close_does_not_wait_for_the_back_off() -> None:
    feed = LiveFeed(FakeCapture(""), lambda: _found(None), uniform=lambda: 1000.0)
    source = ThreadedSource(feed, "c")
    _wait_until(lambda: source.status is SourceStatus.LOST)
    closer = threading.Thread(target=source.close)
    closer.start()
    closer.join(30)
    assert not closer.is_alive()
    assert not any(t.name == "camera c" for t in threading.enumerate())


def test_the_back_off_doubles_up_to_two_seconds_with_full_jitter() -> None:
    assert [backoff_s(n, 1.0) for n in range(5)] == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert backoff_s(100_000, 1.0) == 2.0
    assert backoff_s(3, 0.25) == 0.5
    assert backoff_s(3, 0.0) == 0.0


def test_attempts_back_off_until_a_frame_came() -> None:
    attempts = []

    def uniform() -> float:
        attempts.append(feed._attempt)
        return 0.0001

    others: Iterator[FakeCapture | None] = iter([None, None, FakeCapture(""), FakeCapture("a"), None])
    feed = LiveFeed(FakeCapture("a"), lambda: _found(next(others, None)), uniform)
    source = ThreadedSource(feed, "c")
    _wait_until(lambda: len(attempts) >= 6)
    source.close()
    # A capture that opens and delivers nothing does not start the count again; one that delivers does.
    assert attempts[:6] == [0, 1, 2, 3, 0, 1]


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
    backlog = Backlog(0, 25.0)
    assert [backlog.captured_ns(a * MS, g * MS) // MS for a, g in grabs_ms] == expected_ms


def test_a_frame_that_comes_with_the_next_was_captured_when_the_one_before_came() -> None:
    """Two buffered frames; the third was on its way when they were handed out; then in time, and after a stall."""
    backlog = Backlog(0, 25.0, comes_with_next=True)
    grabs_ms = [(1000, 1001), (1001, 1002), (1003, 1035), (1036, 1075), (1076, 1600)]
    assert [backlog.captured_ns(a * MS, g * MS) // MS for a, g in grabs_ms] == [0, 40, 995, 1035, 1075]


def test_a_server_that_sends_a_second_of_pictures_at_once_turns_back_no_time() -> None:
    backlog = Backlog(0, 25.0, comes_with_next=True)
    captured_ns = [backlog.captured_ns(ms * MS, (ms + 1) * MS) for ms in (80, 81, 82, 83, 84)]
    assert captured_ns == [each * MS for each in (0, 40, 80, 80, 84)]


def test_a_device_has_no_backlog() -> None:
    assert Backlog(None, 25.0).captured_ns(5, 6) == 6


@pytest.mark.parametrize(
    ("stated", "expected"),
    [(29.97, 29.97), (0.5, 0.5), (240, 240), (0, 25), (-1, 25), (1000, 25), (90000, 25), (float("nan"), 25)],
)
def test_an_absurd_rate_becomes_25(stated: float, expected: float) -> None:
    assert plausible_fps(stated) == expected
