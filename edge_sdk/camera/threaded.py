"""A source that a thread of its own feeds through the slot.

Owns the thread and its end. What is read, and when, is the feed's.
"""

from __future__ import annotations

from threading import Event, Thread
from typing import Protocol

from edge_sdk.camera.slot import Slot
from edge_sdk.camera.stats import SourceStats, SourceStatus
from edge_sdk.errors import CameraError
from edge_sdk.frame import Frame
from edge_sdk.left_behind import join_or_leave

PATIENCE_S = 0.5  # who is told to stop has two seconds for all; an opening, or a driver, may take longer


class Feed(Protocol):
    """Reads frames and puts them into a slot."""

    @property
    def fps(self) -> float:
        """Frames a second that it promises."""
        ...

    @property
    def reopenings(self) -> int:
        """How often it came back."""
        ...

    @property
    def unreadable(self) -> int:
        """How many frames could not be decoded."""
        ...

    @property
    def status(self) -> SourceStatus:
        """Where it stands."""
        ...

    @property
    def trouble(self) -> str:
        """Why it is not there at present; empty when it is."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was asked for and not got."""
        ...

    def run(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until there is no more, or soon after `stop` is set; then give everything back.

        What it raises is the end: the consumer hears of it.
        """
        ...


class ThreadedSource:
    """A `Source` whose frames come from a feed in a thread.

    Args:
        feed: what reads.
        camera: the stream's name.
    """

    paced = True

    def __init__(self, feed: Feed, camera: str) -> None:
        self._feed = feed
        self._slot = Slot(camera)
        self._stop = Event()
        self._failure: Exception | None = None
        # A daemon thread: a driver that hangs in the kernel must not keep the process from ending.
        self._thread = Thread(target=self._run, name=f"camera {camera}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True once no frame will come any more and the last one was taken; not where reading failed."""
        return self._slot.ended and (self._failure is None or self._stop.is_set())

    @property
    def fps(self) -> float:
        """Frames a second that the source promises."""
        return self._feed.fps

    @property
    def stats(self) -> SourceStats:
        """Counts so far."""
        slot, feed = self._slot, self._feed
        return SourceStats(slot.delivered, slot.dropped, feed.reopenings, feed.unreadable)

    @property
    def status(self) -> SourceStatus:
        """Where it stands now."""
        return SourceStatus.ENDED if self.ended else self._feed.status

    @property
    def trouble(self) -> str:
        """Why it is not there at present; empty when it is."""
        return "" if self._slot.ended else self._feed.trouble

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was asked for and not got."""
        return self._feed.remarks

    def latest(self, timeout_s: float) -> Frame | None:
        """The newest frame not delivered yet, or None when none came within `timeout_s` seconds.

        Raises:
            CameraError: the reader failed, and its last frame was taken.
        """
        frame = self._slot.latest(timeout_s)
        if frame is None and self._failure is not None and not self._stop.is_set():
            raise failed_reading(self._thread, self._failure) from self._failure
        return frame

    def close(self) -> None:
        """Deliver nothing more and give everything back; may be called twice, and waits for half a second at most.

        A thread that hangs in an opening or in a driver goes on alone, gives back what it holds and then ends.
        """
        self._stop.set()
        self._slot.finish()
        join_or_leave(self._thread, PATIENCE_S)

    def _run(self) -> None:
        try:
            self._feed.run(self._slot, self._stop)
        except Exception as cause:  # noqa: BLE001 - a thread can raise to nobody: `latest` does it
            self._failure = cause
        finally:
            self._slot.finish()


def failed_reading(thread: Thread, cause: Exception) -> CameraError:
    """What the consumer hears of a reader that failed; what a source says of itself is said as it is at an opening."""
    if isinstance(cause, CameraError):
        return CameraError(str(cause))
    return CameraError(f"{thread.name}: reading failed: {type(cause).__name__}: {cause}".splitlines()[0])
