"""Threads of the device's program, and what they share: work in the background, stopping, waiting, limiting a rate.

- `BackgroundTask`: one piece of work in a thread; `Periodic`: a function that a thread calls now and then.
- `join_or_leave`, `leave`: a model that hangs while it loads cannot be ended, and libraries crash when they are taken
  down below such a thread; so it is left behind, and the process ends without clean-up.
- `Stop`: whether a run, or a part of it, shall end; `stopping_on_signals` sets it.
- `Backoff`: how long to wait before the next attempt; `RateLimiter`: at most so many a second, the newest of more.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import errno
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread
from types import FrameType, TracebackType
from typing import Generic, TextIO, TypeVar

_threads: list[Thread] = []
_lock = Lock()


def join_or_leave(thread: Thread, timeout_s: float) -> None:
    """Wait for the end of a thread, at most so long; one that goes on is remembered for as long as it does."""
    thread.join(timeout_s)
    if thread.is_alive():
        with _lock:
            _threads[:] = [*filter(Thread.is_alive, _threads), thread]


@atexit.register
def _wait_for_left(patience_s: float = 3.0) -> None:  # a camera's read ends after 2 s by default
    """Wait for threads that were left behind: one that returns from OpenCV while Python ends aborts the process."""
    deadline = time.monotonic() + patience_s
    for thread in _threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def is_any_left() -> bool:
    """Tell whether a thread that was left behind still goes on."""
    with _lock:
        return any(thread.is_alive() for thread in _threads)


def leave(exit_code: int) -> None:
    """End the process; at once, without any clean-up, where a thread was left behind that still goes on."""
    if not _empty(sys.stdout):
        exit_code = exit_code or 1
    _empty(sys.stderr)
    ignore_signals()
    if is_any_left():
        os._exit(exit_code)
    sys.exit(exit_code)


def ignore_signals() -> None:
    """Ignore SIGTERM and SIGINT from here on, where the program has handled SIGTERM until now: it ends anyway.

    While Python ends, it puts the default actions back in place of handlers, so that a second SIGTERM would change the
    exit code. Signals that are ignored stay so.
    """
    if callable(signal.getsignal(signal.SIGTERM)):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def _empty(stream: TextIO) -> bool:
    """Write what waits in it, or lose it: Python would try once more at the end, and make its own exit code of it."""
    try:
        stream.flush()
    except (AttributeError, ValueError):  # closed, or never there
        pass
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


T = TypeVar("T")

_LOOK_S = 0.1  # how soon a request to stop is seen
_PATIENCE_S = 0.5  # a model that loads, a camera that is silent: who is told to stop has two seconds for both


class BackgroundTask(Generic[T]):
    """One piece of work in a thread, begun at once; a context that waits for its end, half a second at most.

    What goes wrong in the work goes wrong for who takes its result. Its lines bear the camera of who began it.

    Args:
        work: what to do; everything that it shares with others must bear several threads.
        undo: takes a result that nobody took; called by the thread itself where the work ends after `close`.
    """

    def __init__(self, work: Callable[[], T], name: str, undo: Callable[[T], None] | None = None) -> None:
        self._work, self._undo = work, undo
        self._done = Event()
        self._is_closed = False
        self._results: list[T] = []
        self._failure: BaseException | None = None
        # A daemon thread: what hangs in it must not keep the process from ending.
        self._thread = Thread(target=contextvars.copy_context().run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> BackgroundTask[T]:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close(_PATIENCE_S)

    def close(self, timeout_s: float) -> None:
        """Wait for the end of the work, at most so many seconds; what comes of it, now or later, is undone."""
        join_or_leave(self._thread, timeout_s)
        self._is_closed = True
        self._undo_untaken()

    @property
    def is_done(self) -> bool:
        """Whether the work has ended, so that `take` returns at once."""
        return self._done.is_set()

    def is_ready(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the work is done; False when `is_stopped` said so first."""
        while not is_stopped():
            if self._done.wait(_LOOK_S):
                return True
        return False

    def take(self) -> T:
        """Wait for the result and return it; who takes it holds the only one.

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
        """Undo the result; called by `close` and by the thread, of which whichever pops it is the one that does."""
        if self._undo is None:
            return
        try:
            result = self._results.pop()
        except IndexError:
            return
        self._undo(result)


class Periodic:
    """Calls a function every so often, in a thread of its own, until it is closed.

    Args:
        call: the function; where it raises it is called again the next time.
        interval_s: seconds between two calls; the first one comes at once.
    """

    def __init__(self, call: Callable[[], None], interval_s: float, name: str) -> None:
        self._call, self._interval_s = call, interval_s
        self._stop = Event()
        # A daemon thread: a driver that hangs while it is read must not keep the process from ending.
        Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Stop calling; does not wait for a call that hangs."""
        self._stop.set()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            # What fails now, for want of memory perhaps, may not the next time; nobody hears of it here.
            with contextlib.suppress(Exception):
                self._call()
            is_over = self._stop.wait(self._interval_s)


class Stop:
    """Whether a run, or a part of it, shall end.

    Args:
        whole: of what this is a part: where that shall end, this shall, too.

    Attributes:
        reload: whether the configuration is to be read again; whoever does it sets it back.
    """

    def __init__(self, whole: Stop | None = None) -> None:
        self._whole = whole
        self._reason: str | None = None
        self._asked_s = math.inf  # monotonic seconds
        self.reload = False

    @property
    def reason(self) -> str | None:
        """Why it shall end; None as long as it shall go on."""
        return self._reason or (self._whole.reason if self._whole else None)

    def ask(self, reason: str = "signal") -> None:
        """Finish what is at hand and leave; safe in a signal handler. The first reason counts."""
        self._asked_s = min(self._asked_s, time.monotonic())
        self._reason = self._reason or reason

    def is_asked(self) -> bool:
        """Tell whether it shall end."""
        return self.reason is not None

    def left_s(self, total_s: float) -> float:
        """Return what is left of so many seconds since somebody asked for the end: below 0 after them, all before."""
        return min(total_s, self._asked_s + total_s - time.monotonic())


@contextlib.contextmanager
def stopping_on_signals(*, reloads: bool = False) -> Iterator[Stop]:
    """Have SIGTERM, SIGINT and SIGHUP ask for the end; a second SIGINT interrupts at once.

    SIGHUP stays ignored where it was, as under nohup: then it neither ends a run nor has it read anything again.

    Args:
        reloads: SIGHUP asks for a reload, as of a service; but where there is a terminal and it is gone with that
            signal, it asks for the end as it does otherwise.
    """
    stop = Stop()
    had_terminal = _has_terminal()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and reloads and not (had_terminal and not _has_terminal()):
            stop.reload = True
            return
        stop.ask()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    # Whoever was started with nohup asked not to hear of a terminal that is closed.
    heard = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    """Tell whether there is a controlling terminal; the kernel takes it away before it signals that it was closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as cause:
        return cause.errno not in (errno.ENXIO, errno.EIO, errno.ENODEV, errno.ENOENT)  # others say nothing of it
    return True


class Backoff:
    """Doubling waits with jitter, so that a fleet does not come back all at once when its broker does.

    Args:
        first_s: the longest first wait in seconds.
        longest_s: the longest wait in seconds.
        uniform: draws a number between two others; `random.uniform` by default.
    """

    def __init__(
        self, first_s: float = 1.0, longest_s: float = 60.0, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._uniform = uniform
        self._ceiling_s = first_s

    def next_s(self, *, slow: bool = False) -> float:
        """Return the seconds to wait now, from half of the ceiling to the ceiling, which doubles with every call.

        Args:
            slow: go to the longest wait at once; for a broker that says no, and will until somebody mends it.
        """
        ceiling_s = self._longest_s if slow else self._ceiling_s
        self._ceiling_s = min(ceiling_s * 2, self._longest_s)
        return self._uniform(ceiling_s / 2, ceiling_s)

    def reset(self) -> None:
        """Begin again; after a connection that held."""
        self._ceiling_s = self._first_s


_T = TypeVar("_T")
_R = TypeVar("_R")


class RateLimiter(Generic[_T, _R]):
    """Lets at most so many items of each camera go a second, of more the newest; filled and released by threads.

    What comes too early is held until its time has come, and what comes before that takes its place: the last one of a
    burst is never lost. Whoever releases late, or never, has no other items left out than who does it in time.

    Args:
        max_per_s: of each camera; None: no limit.
        go: is given each one when it goes, those of a camera in their order; with a limit one at a time.
        clock_s: monotonic seconds.
        go_late: is given those that were held, in place of `go`; must not raise: who put them is not there any more.
    """

    def __init__(
        self,
        max_per_s: float | None,
        go: Callable[[_T], _R],
        clock_s: Callable[[], float] = time.monotonic,
        go_late: Callable[[_T], object] | None = None,
    ) -> None:
        self._interval_s = 0.0 if max_per_s is None else 1.0 / max_per_s
        self._go, self._go_late, self._clock_s = go, go_late or go, clock_s
        self._lock = Lock()
        self._not_before: dict[str, float] = {}
        self._held: dict[str, _T] = {}
        self._limited: dict[str, int] = {}

    def put(self, camera: str, item: _T) -> _R | None:
        """Let an item go where its time has come; otherwise hold it, in place of what was held before.

        Returns:
            What `go` said; None while it is held.
        """
        if not self._interval_s:
            return self._go(item)
        with self._lock:
            now = self._clock_s()
            self._release(camera, now)
            not_before = self._not_before.get(camera, -math.inf)
            if camera in self._held:
                self._limited[camera] = self._limited.get(camera, 0) + 1
            elif now >= not_before:
                # In step, so that a camera's own pace does not lower the rate; but nothing is made up for.
                turn = not_before if now - not_before < self._interval_s else now
                self._not_before[camera] = turn + self._interval_s
                return self._go(item)
            self._held[camera] = item
            return None

    def release(self, *, all_of_them: bool = False) -> None:
        """Let go what was held and whose time has come.

        Args:
            all_of_them: the end has come: nothing is held any longer.
        """
        if not self._held:
            return
        with self._lock:
            now = math.inf if all_of_them else self._clock_s()
            for camera in list(self._held):
                self._release(camera, now)

    def wait_s(self) -> float:
        """Return the seconds until something is due; infinity where nothing is held."""
        if not self._held:
            return math.inf
        with self._lock:
            now = self._clock_s()
            return max(0.0, min((self._not_before[camera] - now for camera in self._held), default=math.inf))

    def limited(self, camera: str | None = None) -> int:
        """Return how many items were left out for others, of one camera or of all."""
        with self._lock:
            return sum(self._limited.values()) if camera is None else self._limited.get(camera, 0)

    def _release(self, camera: str, now: float) -> None:
        """Let go, with the lock, what is held, as if that had been done when its time came."""
        if camera in self._held and now >= self._not_before[camera]:
            self._not_before[camera] += self._interval_s
            self._go_late(self._held.pop(camera))
