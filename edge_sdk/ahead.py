"""Ahead: work begun in a thread of its own, while whoever needs it does something else first.

Owns that thread, and what becomes of one that comes to no end. What goes wrong in it goes wrong for who takes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from edge_sdk.left_behind import join_or_leave

T = TypeVar("T")

_LOOK_S = 0.1  # how soon a request to stop is seen
_PATIENCE_S = 0.5  # a model that loads, a camera that is silent: who is told to stop has two seconds for both


class Ahead(Generic[T]):
    """One piece of work, begun at once; a context that waits for its end, half a second at most.

    Args:
        work: what to do; everything that it shares with others must bear several threads.
        name: of the thread.
        undo: takes a result that nobody took; called by the thread itself where the work ends after `close`.
    """

    def __init__(self, work: Callable[[], T], name: str, undo: Callable[[T], None] | None = None) -> None:
        self._work, self._undo = work, undo
        self._done = threading.Event()
        self._is_closed = False
        self._results: list[T] = []
        self._failure: BaseException | None = None
        # A daemon thread: what hangs in it must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close(_PATIENCE_S)

    def close(self, timeout_s: float) -> None:
        """Wait for its end, at most so many seconds; what comes of it, now or later, is undone."""
        join_or_leave(self._thread, timeout_s)
        self._is_closed = True
        self._undo_untaken()

    @property
    def is_done(self) -> bool:
        """Whether `take` waits for nothing."""
        return self._done.is_set()

    def is_ready(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it is done; False when `is_stopped` said so first."""
        while not is_stopped():
            if self._done.wait(_LOOK_S):
                return True
        return False

    def take(self) -> T:
        """What came of it; waits. Who takes it holds the only one.

        Raises:
            BaseException: what the work raised.
        """
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        return self._results.pop()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as failure:  # noqa: BLE001 - whoever takes it gets it
            self._failure = failure
        finally:
            self._done.set()
        if self._is_closed:
            self._undo_untaken()

    def _undo_untaken(self) -> None:
        """Called by `close` and by the thread: whichever pops the result is the one that undoes it."""
        if self._undo is None:
            return
        try:
            result = self._results.pop()
        except IndexError:
            return
        self._undo(result)
