"""What a source says of itself, and the slot through which a reading thread hands over the freshest frame.

    the thread of an OpenedSource -- put --> Slot -- latest --> the loop

`Slot` has three buffers that rotate between the reader (who writes one), the slot (which keeps the newest) and the
consumer (who holds one), so that no picture's memory is allocated per frame and none is written while somebody looks at
it. What is read, and when, is the matter of `sources.live` and `sources.video`. `SourceStatus` and `SourceStats` are
values that are logged and published.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from enum import Enum
from threading import Event, Lock, Semaphore, Thread

import msgspec
import numpy as np

from edge_sdk.core.errors import CameraError
from edge_sdk.core.frame import Frame, Image
from edge_sdk.core.threads import join_or_leave

_SETTLING_S = 0.1  # a picture that was kept comes as soon as the one before it is decoded
_LOOK_S = 0.002


class Slot:
    """Holds the newest frame: one reader thread puts, one consumer takes.

    Attributes:
        wanted: set by the first `latest()`, or by `finish()`.
        delivered, dropped: frames that were handed out, and those that were overwritten or skipped.
    """

    def __init__(self, camera: str) -> None:
        self.wanted = Event()
        self._camera = camera
        self._buffers: list[Image] = [np.zeros((1, 1, 3), np.uint8) for _ in range(3)]
        self._free, self._ready, self._held = 0, 1, 2
        self._lock = Lock()
        # Held while there is nothing to take. A lock and not a condition, whose wait in Python costs twice as much.
        self._nothing = Lock()
        self._nothing.acquire()
        self._newest: Frame | None = None
        self._settled_s = 0.0  # monotonic seconds from which the newest is handed out
        self._finished = False
        self.delivered = self.dropped = 0

    @property
    def ended(self) -> bool:
        """True once the reader finished and its last frame was taken."""
        return self._finished and self._newest is None

    def buffer(self) -> Image:
        """Return the buffer that the reader may write into; nobody else looks at it. One pixel at first."""
        return self._buffers[self._free]

    def put(
        self, image: Image, captured_ns: int, captured_at: float, seq: int, *, settles: bool = False, delay_ns: int = 0
    ) -> None:
        """Make a picture the newest.

        Args:
            image: `buffer()` itself, or another array (then kept as a buffer) where that had the wrong size.
            captured_ns: monotonic nanoseconds.
            captured_at: seconds since the epoch.
            seq: the frame's number.
            settles: a newer one is likely to come at once: this one is handed out only if none does.
            delay_ns: see `Frame`.
        """
        frame = Frame(image, captured_ns, captured_at, seq, self._camera, delay_ns)
        with self._lock:
            if self._finished:
                return
            self._buffers[self._free] = image
            self._free, self._ready = self._ready, self._free
            self._settled_s = time.monotonic() + _SETTLING_S if settles else 0.0
            if self._newest is None:
                self._nothing.release()
            else:
                self.dropped += 1
            self._newest = frame

    def latest(self, timeout_s: float) -> Frame | None:
        """Return the newest frame not delivered yet; None when none came within `timeout_s` seconds or will come."""
        if not self.wanted.is_set():
            self.wanted.set()
        until_s = time.monotonic() + timeout_s
        if not self._nothing.acquire(timeout=timeout_s):
            return None
        while self._settled_s > (now_s := time.monotonic()) and not self._finished:
            if now_s >= until_s:
                self._nothing.release()
                return None
            time.sleep(min(_LOOK_S, until_s - now_s))
        with self._lock:
            if self._finished:
                self._nothing.release()  # who asks again does not wait
            frame, self._newest = self._newest, None
            if frame is not None:
                self._ready, self._held = self._held, self._ready
                self.delivered += 1
            return frame

    def finish(self) -> None:
        """Say that no frame will come any more; one that waits can still be taken."""
        with self._lock:
            if not self._finished and self._newest is None:
                self._nothing.release()
            self._finished = True
            self.wanted.set()


class SourceStatus(Enum):
    """The status of a source.

    OPENING is a camera that was waited for and never came yet, LOST one that delivered before.
    """

    OPENING = "opening"
    OPENED = "opened"
    LOST = "lost"
    REOPENED = "reopened"
    ENDED = "ended"

    @property
    def is_there(self) -> bool:
        """Whether frames come."""
        return self in (SourceStatus.OPENED, SourceStatus.REOPENED)


class SourceStats(msgspec.Struct, frozen=True, gc=False):
    """Counts since the source was opened.

    Attributes:
        delivered: frames that `latest()` handed out.
        dropped: frames that nobody took before a newer one came, that a late video file skipped, or that a stream had
            kept while it opened.
        reopenings: how often a lost camera delivered again.
        unreadable: images, or frames of a camera, that could not be decoded; for a video file the frames that its
            header promises and that are not there.
    """

    delivered: int = 0
    dropped: int = 0
    reopenings: int = 0
    unreadable: int = 0


_PATIENCE_S = 0.5  # who is told to stop has two seconds for all; an opening, or a driver, may take longer


class OpenedSource:
    """A `Source` that a thread of its own feeds through a slot; subclasses say what is read, and when.

    A subclass calls this constructor last: it starts the thread.

    Args:
        fps: frames a second that the source promises; 25 where it says nothing sensible, 1 for images.

    Attributes:
        paced: whether frames come at their own pace, so that a slow reader misses some; False: in turn, when asked for.
        fps: as given; of a camera that gives clearly more or fewer it is what fifty frames came to, once they did.
        reopenings, unreadable: see `SourceStats`.
        remarks: one line for each option that the camera did not grant.
    """

    paced = True
    remarks: tuple[str, ...] = ()

    def __init__(self, camera: str, fps: float) -> None:
        self.fps = fps
        self.reopenings = self.unreadable = 0
        self._slot = Slot(camera)
        self._stop = Event()
        self._failure: Exception | None = None
        # A daemon thread: a driver that hangs in the kernel must not keep the process from ending.
        self._thread = Thread(target=self._run, name=f"camera {camera}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True once no frame will come any more and the last one was taken, or it was closed; not where it failed."""
        return self._stop.is_set() or (self._slot.ended and self._failure is None)

    @property
    def stats(self) -> SourceStats:
        """Counts so far."""
        return SourceStats(self._slot.delivered, self._slot.dropped, self.reopenings, self.unreadable)

    @property
    def status(self) -> SourceStatus:
        """The status now; a short loss that nobody saw shows in `stats.reopenings`."""
        return SourceStatus.ENDED if self.ended else SourceStatus.OPENED

    @property
    def trouble(self) -> str:
        """Why it is lost, or not there yet: a few words without a secret; empty when all is well."""
        return ""

    def read(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until there is no more, or soon after `stop` is set; then give everything back.

        What it raises is the end: the consumer hears of it.
        """
        raise NotImplementedError

    def latest(self, timeout_s: float) -> Frame | None:
        """Return the newest frame not delivered yet, or None when none came within `timeout_s` seconds.

        Raises:
            CameraError: the reader failed, and its last frame was taken.
        """
        frame = self._slot.latest(timeout_s)
        if frame is None and self._failure is not None and not self._stop.is_set():
            raise self._heard_of(self._failure) from self._failure
        return frame

    def close(self) -> None:
        """Deliver nothing more and give everything back; may be called twice, and waits for half a second at most.

        A thread that hangs in an opening or in a driver goes on alone, gives back what it holds and then ends.
        """
        self._stop.set()
        self._slot.finish()
        join_or_leave(self._thread, _PATIENCE_S)

    def _run(self) -> None:
        try:
            self.read(self._slot, self._stop)
        except Exception as cause:  # noqa: BLE001 - a thread can raise to nobody: `latest` does it
            self._failure = cause
        finally:
            self._slot.finish()

    def _heard_of(self, cause: Exception) -> CameraError:
        if isinstance(cause, CameraError):
            return CameraError(str(cause))
        return CameraError(f"{self._thread.name}: reading failed: {type(cause).__name__}: {cause}".splitlines()[0])


class PicturesInTurn(OpenedSource):
    """A source that leaves no picture out; the next one is read while one is worked on.

    `captured_ns` of a frame is when it was handed over.
    """

    paced = False

    def __init__(self, camera: str, fps: float) -> None:
        self._room = Semaphore()  # for one picture in the slot
        super().__init__(camera, fps)

    def pictures(self, slot: Slot) -> Generator[Image | None, None, None]:
        """Give each picture, in `slot.buffer()` or in an array of its own, and None for one that cannot be read."""
        raise NotImplementedError

    def read(self, slot: Slot, stop: Event) -> None:
        """Feed the slot picture by picture, as they are taken."""
        with closing(self.pictures(slot)) as pictures:
            for seq, image in enumerate(pictures):
                if image is None:
                    self.unreadable += 1
                else:
                    self._room.acquire()
                    slot.put(image, 0, 0.0, seq)
                if stop.is_set():
                    return

    def latest(self, timeout_s: float) -> Frame | None:
        """Return the next frame; None at the end, or when none was decoded within `timeout_s` seconds.

        Raises:
            CameraError: reading failed, and the frames before were taken.
        """
        frame = super().latest(timeout_s)
        if frame is None:
            return None
        self._room.release()
        return Frame(frame.image, time.monotonic_ns(), time.time(), frame.seq, frame.camera)

    def close(self) -> None:
        """Deliver nothing more and give everything back; may be called twice."""
        self._stop.set()
        self._room.release()
        super().close()
