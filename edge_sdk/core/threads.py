"""Helpers for the threads of the device's program: background work, stopping, waiting and limiting a rate.

- `BackgroundTask` does one piece of work in a thread; `Periodic` calls a function at intervals in a thread.
- `join_or_leave` and `leave` deal with threads that hang, for example while a model loads. Such a thread cannot be
  ended, and libraries crash when they are unloaded while it runs; so the process ends without clean-up.
- `Wakeup` lets one thread end another thread's wait for the network.
- `Stop` tells whether a run, or a part of it, shall end; `stopping_on_signals` sets it.
- `Backoff` computes the wait before the next attempt; `RateLimiter` passes on a limited number of items per second.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import errno
import math
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread
from types import FrameType, TracebackType
from typing import Generic, TextIO, TypeVar

from edge_sdk.core.errors import SessionError

_LAST_S = 0.4  # the last part of the two seconds that a program has to end
_threads: list[Thread] = []
_folders: set[str] = set()
_lock = Lock()


def join_or_leave(thread: Thread, timeout_s: float) -> None:
    """Wait at most `timeout_s` seconds for the end of a thread; if it goes on, remember it for `is_any_left`."""
    thread.join(timeout_s)
    if thread.is_alive():
        with _lock:
            _threads[:] = [*filter(Thread.is_alive, _threads), thread]


@atexit.register
def _wait_for_left(patience_s: float = 3.0) -> None:  # a camera's read ends after 2 s by default
    """Wait for threads that were left behind, because one that returns from OpenCV while Python ends aborts Python."""
    deadline = time.monotonic() + patience_s
    for thread in _threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """Make a temporary folder, removed with the block, and by `leave` if the block's thread is left behind."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        _folders.add(folder)
        try:
            yield folder
        finally:
            _folders.discard(folder)


def is_any_left() -> bool:
    """Tell whether a thread that was left behind still runs."""
    with _lock:
        return any(thread.is_alive() for thread in _threads)


def leave(exit_code: int) -> None:
    """End the process; skip all clean-up where a thread that was left behind still runs after 0.4 s.

    A thread may need a moment to end a child process and to remove its files.
    """
    if not _empty(sys.stdout):
        exit_code = exit_code or 1
    _empty(sys.stderr)
    ignore_signals()
    _wait_for_left(_LAST_S)
    if is_any_left():
        for folder in tuple(_folders):
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(exit_code)
    sys.exit(exit_code)


def ignore_signals() -> None:
    """Ignore SIGTERM and SIGINT from now on, if the program has a handler for SIGTERM; called when it ends.

    While Python ends, it restores the default actions of handled signals, so that a second SIGTERM would change the
    exit code. Ignored signals stay ignored.
    """
    if callable(signal.getsignal(signal.SIGTERM)):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def _empty(stream: TextIO) -> bool:
    """Flush a stream and return whether everything was written.

    What cannot be written is dropped; else Python would flush again and change the exit code.
    """
    try:
        stream.flush()
    except (AttributeError, ValueError):  # closed, or never there
        pass
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


_T = TypeVar("_T")

_LOOK_S = 0.1  # the delay until a request to stop is noticed
_PATIENCE_S = 0.5  # a program must stop within two seconds, even while a model loads or a camera is silent


class BackgroundTask(Generic[_T]):
    """One piece of work in a thread, which starts at once. As a context it waits at most half a second for the end.

    `take` raises the error of the work. Log lines of the work name the same camera as those of the code that starts it.

    Args:
        work: the function to call; what it shares with other threads must be safe for several threads.
        undo: called with a result that was not taken; the thread calls it if the work ends after `close`.
        limit_s: of a task that loads a model: seconds after which it is given up, so that it is done and `take` raises.
    """

    def __init__(
        self,
        work: Callable[[], _T],
        name: str,
        undo: Callable[[_T], None] | None = None,
        limit_s: float = math.inf,
    ) -> None:
        self._work, self._undo = work, undo
        self._limit_s, self._until_s = limit_s, time.monotonic() + limit_s
        self._done = Event()
        self._is_closed = False
        self._results: list[_T] = []
        self._failure: BaseException | None = None
        # A daemon thread, because work that hangs must not keep the process from ending.
        self._thread = Thread(target=contextvars.copy_context().run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> BackgroundTask[_T]:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close(_PATIENCE_S)

    def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for the end of the work; its result is undone, now or when it comes."""
        join_or_leave(self._thread, timeout_s)
        self._is_closed = True
        self._undo_untaken()

    @property
    def is_done(self) -> bool:
        """Whether the work has ended or is given up, so that `take` returns at once."""
        return self._done.is_set() or time.monotonic() >= self._until_s

    def is_ready(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the work is done and return True; return False if `is_stopped` is true before that."""
        while not is_stopped():
            if self._done.wait(_LOOK_S) or self.is_done:
                return True
        return False

    def take(self) -> _T:
        """Wait for the result and return it, or raise what the work raised; the task keeps no reference to it.

        Raises SessionError where the load of a model is given up.
        """
        if not self._done.wait(None if self._until_s == math.inf else max(0.0, self._until_s - time.monotonic())):
            self.close(0.0)
            raise SessionError(f"the model did not load within {self._limit_s:.0f} s")
        if self._failure is not None:
            raise self._failure
        return self._results.pop()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as failure:  # noqa: BLE001 - `take` raises it
            self._failure = failure
        finally:
            self._done.set()
        if self._is_closed:
            self._undo_untaken()

    def _undo_untaken(self) -> None:
        """Undo the result; `close` and the thread both call this, and the one that pops the result undoes it."""
        if self._undo is None:
            return
        try:
            result = self._results.pop()
        except IndexError:
            return
        self._undo(result)


class Periodic:
    """Calls a function at intervals, in a thread of its own, until it is closed.

    Args:
        call: the function; after an error it is called again at the next interval.
        interval_s: seconds between two calls; the first call comes at once.
    """

    def __init__(self, call: Callable[[], None], interval_s: float, name: str) -> None:
        self._call, self._interval_s = call, interval_s
        self._stop = Event()
        # A daemon thread, because a driver that hangs must not keep the process from ending.
        Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Stop calling; does not wait for a call that hangs."""
        self._stop.set()

    def _run(self) -> None:
        while True:
            # Errors are dropped: a call that fails now, perhaps for lack of memory, may succeed the next time.
            with contextlib.suppress(Exception):
                self._call()
            if self._stop.wait(self._interval_s):
                return


class Wakeup:
    """Lets one thread end another thread's wait, or its poll of the network."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_open = True
        self._lock = Lock()  # the number of a closed descriptor is soon used again

    def wake(self) -> None:
        """End `wait` and a poll of `fileno`; never blocks, and does nothing after `close`."""
        with self._lock:
            if self._is_open:
                os.eventfd_write(self._descriptor, 1)

    def wait(self, timeout_s: float) -> None:
        """Wait for `wake`, then reset it."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)
        self.clear()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._descriptor

    def clear(self) -> None:
        """Reset the wake-up that ended a poll."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._descriptor)


class Stop:
    """A request that a run, or a part of it, ends.

    Args:
        whole: the request for the whole run, if this is the one for a part; a stop of the whole stops the part.

    Attributes:
        reload: whether the configuration shall be read again; the code that reads it sets this to False.
    """

    def __init__(self, whole: Stop | None = None) -> None:
        self._whole = whole
        self._reason: str | None = None
        self._asked_s = math.inf  # monotonic seconds
        self.reload = False

    @property
    def reason(self) -> str | None:
        """The reason for the end; None as long as no end is asked for."""
        return self._reason or (self._whole.reason if self._whole else None)

    def ask(self, reason: str = "signal") -> None:
        """Ask for the end; safe in a signal handler. The first reason counts."""
        self._asked_s = min(self._asked_s, time.monotonic())
        self._reason = self._reason or reason

    def is_asked(self) -> bool:
        """Tell whether the end was asked for."""
        return self.reason is not None

    def left_s(self, total_s: float) -> float:
        """Return the seconds left of `total_s` since the end was asked for; below 0 after them, `total_s` before."""
        return min(total_s, self._asked_s + total_s - time.monotonic())


@contextlib.contextmanager
def stopping_on_signals(*, reloads: bool = False) -> Iterator[Stop]:
    """Let SIGTERM, SIGINT and SIGHUP ask for the end within the context; a second SIGINT interrupts at once.

    Where SIGHUP was ignored before, as under nohup, it stays ignored and neither ends a run nor reloads.

    Args:
        reloads: whether SIGHUP asks for a reload, as a service needs it. If the signal comes because the terminal was
            closed, it asks for the end in any case.
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

    # A program started with nohup ignores that its terminal was closed.
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
    """Tell whether there is a controlling terminal; the kernel removes it before it sends SIGHUP for its end."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as cause:
        return cause.errno not in (errno.ENXIO, errno.EIO, errno.ENODEV, errno.ENOENT)  # others say nothing
    return True


class Backoff:
    """Waits that double, with jitter, so that the devices of a fleet do not all reconnect at the same moment.

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
            slow: use the longest wait at once, for a refusal that lasts until a person corrects the cause.
        """
        ceiling_s = self._longest_s if slow else self._ceiling_s
        self._ceiling_s = min(ceiling_s * 2, self._longest_s)
        return self._uniform(ceiling_s / 2, ceiling_s)

    def reset(self) -> None:
        """Start again with the first wait, after an attempt that succeeded."""
        self._ceiling_s = self._first_s


_R = TypeVar("_R")


class RateLimiter(Generic[_T, _R]):
    """Passes on at most `max_per_s` items of each camera per second, and of more items the newest; for several threads.

    An item that comes too early is held until its time has come; a newer item replaces it. So the last item of a burst
    is never lost. Which items are left out does not depend on when `release` is called.

    Args:
        max_per_s: the most items per second of each camera; None: no limit.
        go: called with each item when it is passed on, in order for each camera; with a limit, one call at a time.
        clock_s: returns monotonic seconds.
        go_late: called instead of `go` with items that were held; must not raise, because `put` has returned.
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
        """Pass an item on if its time has come; otherwise hold it, in place of an item that was held before.

        Returns:
            What `go` returned; None where the item is held.
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
                # Times stay multiples of the interval, so that a camera's own frame rate does not lower the rate; after
                # a pause they start anew, and no items are made up for.
                turn = not_before if now - not_before < self._interval_s else now
                self._not_before[camera] = turn + self._interval_s
                return self._go(item)
            self._held[camera] = item
            return None

    def release(self, *, all_of_them: bool = False) -> None:
        """Pass on the held items whose time has come, or at the end of the program all of them."""
        if not self._held:
            return
        with self._lock:
            now = math.inf if all_of_them else self._clock_s()
            for camera in list(self._held):
                self._release(camera, now)

    def wait_s(self) -> float:
        """Return the seconds until the next held item is due; infinity where none is held."""
        if not self._held:
            return math.inf
        with self._lock:
            now = self._clock_s()
            return max(0.0, min((self._not_before[camera] - now for camera in self._held), default=math.inf))

    def limited(self, camera: str | None = None) -> int:
        """Return how many items newer ones have replaced, of one camera or of all."""
        with self._lock:
            return sum(self._limited.values()) if camera is None else self._limited.get(camera, 0)

    def _release(self, camera: str, now: float) -> None:
        """Pass on a camera's held item if it is due, counted as if at its time; the caller holds the lock."""
        if camera in self._held and now >= self._not_before[camera]:
            self._not_before[camera] += self._interval_s
            self._go_late(self._held.pop(camera))
