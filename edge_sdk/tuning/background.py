"""Background: one job in a thread of its own, so that the loop never waits for a model or a disk."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

from edge_sdk.errors import EdgeError, StoppedError
from edge_sdk.left_behind import join_or_leave

Value = TypeVar("Value")


class Background(Generic[Value]):
    """A job that runs beside the loop.

    Args:
        work: what it does.
        rubbish: what is given back there first: a session's memory takes milliseconds. The list is emptied.

    Attributes:
        value: what came out; None until it is finished, and where it failed.
        error: why it failed, in one line.
    """

    def __init__(self, work: Callable[[], Value], rubbish: list[object]) -> None:
        self.value: Value | None = None
        self.error: str | None = None
        self._work: Callable[[], Value] | None = work
        self._rubbish = rubbish
        self._finished = Event()
        # A daemon thread: a model that hangs while it loads must not keep the process from ending.
        self._thread = Thread(target=self._run, name="tuning", daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether it is; never where it was told to stop, because who waits for it is told the same."""
        return self._finished.is_set()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long; a job that hangs is left behind."""
        join_or_leave(self._thread, timeout_s)

    def _run(self) -> None:
        self._rubbish.clear()
        try:
            if self._work is not None:
                self.value = self._work()
        except StoppedError:
            return
        except EdgeError as cause:
            self.error = str(cause)
        except Exception as cause:  # noqa: BLE001 - a thread can raise to nobody: whoever takes the value hears of it
            self.error = f"{type(cause).__name__}: {cause}".splitlines()[0]
        finally:
            self._work = None
        self._finished.set()
