"""The slot through which a reading thread hands over the newest frame, and the base class of sources.

    the thread of an OpenedSource -- put --> Slot -- latest --> the loop

`Slot` has three buffers that rotate between the reader (which writes one), the slot (which keeps the newest) and the
consumer (which reads one). So no memory is allocated per frame, and no buffer is written while it is read.
`sources.live` and `sources.files` decide what is read and when. `SourceStatus` and `SourceStats` are logged and
published.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from enum import Enum
from threading import Event, Lock, Semaphore, Thread
from typing import TypeVar

import msgspec
import numpy as np

from edge_sdk.core.errors import CameraError
from edge_sdk.core.frame import Frame, Image
from edge_sdk.core.threads import join_or_leave

_SETTLING_S = 0.1  # wait for a newer buffered picture, which comes as soon as this one is decoded
_LOOK_S = 0.002


class Slot:
    """Holds the newest frame: one reader thread puts, one consumer takes.

    Attributes:
        wanted: set by the first `latest()`, or by `finish()`.
        delivered, dropped: number of frames handed out, and of frames overwritten or skipped.
    """

    def __init__(self, camera: str) -> None:
        self.wanted = Event()
        self._camera = camera
        self._buffers: list[Image] = [np.zeros((1, 1, 3), np.uint8) for _ in range(3)]
        self._free, self._ready, self._held = 0, 1, 2
        self._lock = Lock()
        # Held while there is nothing to take. It is a lock because a condition's wait costs twice as much in Python.
        self._nothing = Lock()
        self._nothing.acquire()
        self._newest: Frame | None = None
        self._settled_s = 0.0  # monotonic seconds from which the newest frame may be handed out
        self._finished = False
        self.delivered = self.dropped = 0

    @property
    def ended(self) -> bool:
        """True once the reader finished and its last frame was taken."""
        return self._finished and self._newest is None

    def buffer(self) -> Image:
        """Return the buffer that only the reader uses at present; at first it has one pixel."""
        return self._buffers[self._free]

    def put(
        self, image: Image, captured_ns: int, captured_at: float, seq: int, *, settles: bool = False, delay_ns: int = 0
    ) -> None:
        """Make a picture the newest: `buffer()` itself, or a new array if its size was wrong, which becomes a buffer.

        `settles`: a newer picture will probably come at once; hand this one out only if none does.
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
                self._nothing.release()  # so that the next call does not wait
            frame, self._newest = self._newest, None
            if frame is not None:
                self._ready, self._held = self._held, self._ready
                self.delivered += 1
            return frame

    def finish(self) -> None:
        """Mark the end of the frames; a waiting frame can still be taken."""
        with self._lock:
            if not self._finished and self._newest is None:
                self._nothing.release()
            self._finished = True
            self.wanted.set()


class SourceStatus(Enum):
    """The status of a source.

    OPENING is a camera that has not delivered yet, LOST is one that delivered before.
    """

    OPENING = "opening"
    OPENED = "opened"
    LOST = "lost"
    REOPENED = "reopened"
    ENDED = "ended"

    @property
    def is_there(self) -> bool:
        """Whether the source delivers frames."""
        return self in (SourceStatus.OPENED, SourceStatus.REOPENED)


class SourceStats(msgspec.Struct, frozen=True, gc=False):
    """Counts since the source was opened.

    Attributes:
        dropped: number of frames that a newer one replaced, that a late video file skipped, or that a stream had
            buffered while it opened.
        unreadable: images, or frames of a camera, that could not be decoded; for a video file the frames that its
            header promises and that are not there.
    """

    delivered: int = 0
    dropped: int = 0
    reopenings: int = 0
    unreadable: int = 0


_PATIENCE_S = 0.5  # a program must stop within two seconds; an opening or a driver may take longer


_Source = TypeVar("_Source", bound="OpenedSource")


class OpenedSource:
    """A `Source` that a thread of its own feeds through a slot; subclasses implement `read`.

    A subclass calls this constructor last: it starts the thread.

    Attributes:
        paced: whether frames come at their own pace, so that a slow reader misses some; False: on request, in order.
        fps: the promised rate, 25 if the source reports nothing plausible, 1 for images; for a camera whose rate
            clearly differs, the mean of its last fifty frames.
        files: of image files the name of each in turn, below the folder; empty for all other sources.
        remarks: one line for each option that the camera did not grant.
    """

    paced = True
    files: Sequence[str] = ()
    remarks: tuple[str, ...] = ()

    def __init__(self, camera: str, fps: float) -> None:
        self.fps = fps
        self.reopenings = self.unreadable = 0
        self._slot = Slot(camera)
        self._stop = Event()
        self._failure: Exception | None = None
        # A daemon thread, because a driver that hangs in the kernel must not keep the process from ending.
        self._thread = Thread(target=self._run, name=f"camera {camera}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the source was closed, or its last frame was taken; False if it failed."""
        return self._stop.is_set() or (self._slot.ended and self._failure is None)

    @property
    def stats(self) -> SourceStats:
        """The counts so far."""
        return SourceStats(self._slot.delivered, self._slot.dropped, self.reopenings, self.unreadable)

    @property
    def status(self) -> SourceStatus:
        """The present status; `stats.reopenings` also counts losses between two looks."""
        return SourceStatus.ENDED if self.ended else SourceStatus.OPENED

    @property
    def trouble(self) -> str:
        """Short reason, without secrets, why the source is lost or not open yet; empty if it delivers."""
        return ""

    def read(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until the source ends or `stop` is set; then release all resources.

        An exception ends the source; `latest` passes it on to the consumer.
        """
        raise NotImplementedError

    def latest(self, timeout_s: float) -> Frame | None:
        """Return the newest frame not delivered yet, or None when none came within `timeout_s` seconds.

        Raises a CameraError where the reader failed and its last frame was taken.
        """
        frame = self._slot.latest(timeout_s)
        if frame is None and self._failure is not None and not self._stop.is_set():
            cause = self._failure
            said = f"{self._thread.name}: reading failed: {type(cause).__name__}: {cause}".splitlines()[0]
            raise CameraError(str(cause) if isinstance(cause, CameraError) else said) from cause
        return frame

    def __enter__(self: _Source) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Frame]:
        """Yield the newest frame again and again, until the source ends; its picture is valid until the next one."""
        while not self.ended:
            if (frame := self.latest(_PATIENCE_S)) is not None:
                yield frame

    def close(self) -> None:
        """Deliver nothing more and release all resources; may be called twice and waits half a second at most.

        A thread that hangs in an opening or a driver releases its resources later, when it ends.
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


class PicturesInTurn(OpenedSource):
    """A source that skips no picture; it reads the next one while the last one is processed.

    `captured_ns` of a frame is the time at which it was handed over.
    """

    paced = False

    def __init__(self, camera: str, fps: float) -> None:
        self._room = Semaphore()  # counts the free place for one picture in the slot
        super().__init__(camera, fps)

    def pictures(self, slot: Slot) -> Generator[Image | None, None, None]:
        """Yield each picture, in `slot.buffer()` or a new array, or None for an unreadable one."""
        raise NotImplementedError

    def read(self, slot: Slot, stop: Event) -> None:
        """Put a picture into the slot whenever the last one was taken."""
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
        """Return the next frame; None at the end, or when none was decoded within `timeout_s` seconds."""
        frame = super().latest(timeout_s)
        if frame is None:
            return None
        self._room.release()
        file = self.files[frame.seq % len(self.files)] if self.files else ""
        return Frame(frame.image, time.monotonic_ns(), time.time(), frame.seq, frame.camera, file=file)

    def close(self) -> None:
        """Deliver nothing more and release all resources; may be called twice."""
        self._stop.set()
        self._room.release()
        super().close()
