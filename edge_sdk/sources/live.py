"""Read cameras and network streams as fast as they deliver frames, and reopen them after each failure, without end.

After a failed read the same OpenCV capture never recovers, so `LiveSource` throws it away and opens another one.

`FrameBacklog` computes the true age of a stream's frames. While FFmpeg opens a stream it buffers frames, and then hands
them out at once. Except for JPEGs, it also returns a frame only when the next one begins to arrive, because nothing
else marks the end of a frame. `Rate` measures how many frames per second a camera delivers, which many do not report.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from threading import Event

from edge_sdk.core.errors import CameraError, descriptor_shortage
from edge_sdk.core.threads import Backoff
from edge_sdk.sources.opencv import Capture, Rotation
from edge_sdk.sources.slot import OpenedSource, Slot, SourceStatus

_WAITED = 0.5  # a grab that took this share of a frame period waited for the camera, so nothing was buffered


class FrameBacklog:
    """Computes when the frames of a stream were captured; buffering began at `since_ns`; None: none was."""

    def __init__(self, since_ns: int | None, fps: float, *, comes_with_next: bool = False) -> None:
        self._period_ns = int(1e9 / fps)
        self._estimate_ns = since_ns
        self._comes_with_next = comes_with_next
        self._before_ns: int | None = None  # when the previous grab returned

    def captured_ns(self, asked_ns: int, got_ns: int) -> int:
        """Return when a frame was captured: when it began to arrive, or the estimate while the backlog lasts.

        `asked_ns` and `got_ns` are monotonic nanoseconds right before and after its grab.
        """
        before_ns, self._before_ns = self._before_ns, got_ns
        if self._estimate_ns is not None:
            captured_ns = self._estimate_ns
            self._estimate_ns += self._period_ns
            if captured_ns < got_ns and got_ns - asked_ns < self._period_ns * _WAITED:
                return captured_ns
            self._estimate_ns = None
            if self._comes_with_next:  # it began to arrive around the time when the last buffered frame was handed out
                return max(min(got_ns - self._period_ns, before_ns or got_ns), captured_ns - self._period_ns)
        return before_ns if self._comes_with_next and before_ns is not None else got_ns

    def delay_ns(self, captured_ns: int, got_ns: int) -> int:
        """Return how many nanoseconds a live frame waited for the next one; no frame of the stream comes sooner."""
        return got_ns - captured_ns if self._comes_with_next and self._estimate_ns is None else 0

    def was_kept(self, captured_ns: int, got_ns: int) -> bool:
        """Tell whether this frame was buffered for longer than a period, so that a newer one is probably waiting.

        It may be the only one, because FFmpeg does not report how many frames it buffered.
        """
        return self._estimate_ns is not None and got_ns - captured_ns > self._period_ns


_FRAMES = 50
_TOLERANCE = 0.1


class Rate:
    """Measures how many frames per second a camera delivers."""

    def __init__(self, stated_fps: float) -> None:
        self._fps = self._stated_fps = stated_fps
        self._frames = 0
        self._since_ns = 0

    def note(self, got_ns: int) -> float:
        """Count a frame that came at `got_ns` monotonic nanoseconds, and return frames per second.

        It is the mean of the last fifty frames if that differs by more than a tenth from the stated rate, else that.
        """
        if self._frames == 0:
            self._since_ns = got_ns
        elif self._frames == _FRAMES:
            if got_ns > self._since_ns:
                measured = _FRAMES * 1e9 / (got_ns - self._since_ns)
                differs = abs(measured - self._stated_fps) > _TOLERANCE * self._stated_fps
                self._fps = measured if differs else self._stated_fps
            self._frames, self._since_ns = 0, got_ns
        self._frames += 1
        return self._fps


_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 2.0  # between attempts: a camera that returns is seen within three seconds, opening included
_UNREADABLE_LIMIT = 50  # unreadable frames in a row, about two seconds, after which a camera counts as lost
_STUCK_MARGIN_S = 1.0
_FALLBACK_FPS = 25.0
_HANGS = "no frame comes, and its driver hangs"  # names no seconds, because each change of the text is logged


class LiveSource(OpenedSource):
    """A camera or stream as a source.

    Args:
        first: the opened capture; None: the reading thread opens it.
        reopen: opens another capture, or raises a CameraError with a short reason.
        read_timeout_s: seconds after which the capture itself gives up; a second later the driver counts as hanging.
    """

    def __init__(
        self,
        camera: str,
        first: Capture | None,
        reopen: Callable[[], Capture],
        uniform: Callable[[float, float], float] = random.uniform,
        *,
        read_timeout_s: float = 2.0,
        rotate: int = 0,
    ) -> None:
        self._rotation = Rotation(rotate)
        if first is not None:
            self.remarks = first.remarks
        self._status = SourceStatus.OPENING if first is None else SourceStatus.OPENED
        self._trouble = ""
        self._first = first
        self._reopen = reopen
        self._backoff = Backoff(_FIRST_DELAY_S, _LONGEST_DELAY_S, uniform)
        self._read_timeout_s = read_timeout_s
        self._stuck_after_ns = int((read_timeout_s + _STUCK_MARGIN_S) * 1e9)
        self._heard_ns = time.monotonic_ns()
        self._is_reading = False
        self._seq = 0
        self._shape: tuple[int, ...] = ()  # shape of the last picture
        super().__init__(camera, _FALLBACK_FPS if first is None else first.fps)

    @property
    def status(self) -> SourceStatus:
        """The status of the source; it counts as lost while its driver hangs beyond its time-out."""
        if self.ended:
            return SourceStatus.ENDED
        return SourceStatus.LOST if self._is_stuck() and self._status.is_there else self._status

    @property
    def trouble(self) -> str:
        """Short reason why the camera is absent; empty if it is present, or if the reason is not known yet."""
        if self._slot.ended:
            return ""
        return _HANGS if self._is_stuck() else self._trouble

    def read(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until `stop` is set; reopen the camera whenever it is lost."""
        capture = self._opened(stop, waits=False) if self._first is None else self._first
        while capture is not None:
            reason = "no more frames came"
            # The thread survives a lack of memory or an unforeseen error of OpenCV's, because these may pass.
            try:
                reason = self._read_all(capture, slot, stop)
            except Exception as cause:  # noqa: BLE001 - it may pass, and the camera is reopened
                reason = f"reading failed ({type(cause).__name__})"
            with contextlib.suppress(Exception):
                capture.release()
            self._is_reading = False
            self._trouble = reason
            if self._status.is_there:
                self._status = SourceStatus.LOST
            capture = self._opened(stop)

    def _read_all(self, capture: Capture, slot: Slot, stop: Event) -> str:
        """Put every frame into the slot; return why no more frames come."""
        rate, self.remarks = Rate(capture.fps), capture.remarks
        self.fps = capture.fps
        backlog = FrameBacklog(capture.buffered_since_ns, capture.fps, comes_with_next=capture.comes_with_next)
        unreadable_in_a_row = 0
        asked_ns = self._heard_ns = time.monotonic_ns()
        self._is_reading = True
        while not stop.is_set() and unreadable_in_a_row < _UNREADABLE_LIMIT and capture.grab():
            got_ns, got_at = time.monotonic_ns(), time.time()
            self._heard_ns = got_ns
            captured_ns = capture.stamp_ns or backlog.captured_ns(asked_ns, got_ns)
            seq, self._seq = self._seq, self._seq + 1
            is_kept = backlog.was_kept(captured_ns, got_ns)
            if not is_kept:
                self.fps = rate.note(got_ns)
            image = self._rotation.retrieve_into(capture, slot.buffer())
            if image is None and self._is_silence(asked_ns):
                break  # after its time-out OpenCV's GStreamer claims a frame that it does not have
            if image is None:
                unreadable_in_a_row += 1
                self.unreadable += 1
            else:
                unreadable_in_a_row = 0
                self._note_delivery()
                if image.shape != self._shape:
                    self._note_shape(image.shape, capture.remarks)
                captured_at, delay_ns = got_at - (got_ns - captured_ns) / 1e9, backlog.delay_ns(captured_ns, got_ns)
                slot.put(image, captured_ns, captured_at, seq, settles=is_kept, delay_ns=delay_ns)
            asked_ns = time.monotonic_ns()
        if unreadable_in_a_row >= _UNREADABLE_LIMIT:
            return f"{_UNREADABLE_LIMIT} frames in a row cannot be decoded"
        is_silent = self._is_silence(asked_ns)
        return f"no frame for {self._read_timeout_s:g} s" if is_silent else "the camera ended the stream"

    def _is_silence(self, asked_ns: int) -> bool:
        return time.monotonic_ns() - asked_ns > self._read_timeout_s * 0.9e9

    def _note_delivery(self) -> None:
        if self._status.is_there:
            return
        self._trouble = ""
        self._backoff.reset()
        is_back = self._status is SourceStatus.LOST
        self._status = SourceStatus.REOPENED if is_back else SourceStatus.OPENED
        self.reopenings += is_back

    def _note_shape(self, shape: tuple[int, ...], remarks: tuple[str, ...]) -> None:
        """Warn that the picture size changed, because boxes and zones may no longer fit."""
        if self._shape:
            before, now = ("{1}x{0}".format(*each) for each in (self._shape, shape))
            self.remarks = (*remarks, f"its pictures are {now} now, and were {before}")
        self._shape = shape

    def _is_stuck(self) -> bool:
        return self._is_reading and time.monotonic_ns() - self._heard_ns > self._stuck_after_ns

    def _opened(self, stop: Event, *, waits: bool = True) -> Capture | None:
        """Open another capture; retry until `stop` is set, then return None."""
        while not stop.wait(self._backoff.next_s() if waits else 0):
            waits = True
            try:
                return self._reopen()
            except CameraError as cause:
                self._trouble = descriptor_shortage() or str(cause)
            except Exception as cause:  # noqa: BLE001 - it may pass, and the next attempt follows
                self._trouble = descriptor_shortage() or f"it does not open ({type(cause).__name__})"
        return None
