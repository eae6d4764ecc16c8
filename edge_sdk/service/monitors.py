"""Troubles: what goes wrong with single frames is counted and said, and ends the run only when it does not stop.

Undecodable: a source of whose frames a clear share cannot be decoded is told of, by the minute.

HeldBack: a stream whose results are late only because its frames are old when they come is told of.

Neither a smaller model nor dropped frames help it, so that nothing else would speak of it.

WatchedSource: where a stream's source stands, told to people and to whoever reads the device's state.

CoreWatch: how many cores this process may use, while it runs.

A core is taken away by an affinity mask, a control group or the kernel, and nobody tells the process.

MachineWatch: how the machine is, read once for all streams of a process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from edge_sdk.core.logs import Alarm, Say
from edge_sdk.core.machine import Cores
from edge_sdk.core.threads import Periodic
from edge_sdk.core.throttling import BoardWatch
from edge_sdk.loop import Loop, RunRecord, Tick
from edge_sdk.messages.schema import SourceState
from edge_sdk.publishing.publisher import Stream
from edge_sdk.sources.location import redact
from edge_sdk.sources.slot import OpenedSource, SourceStats, SourceStatus

_HANGS = 3  # in a row: nothing says that a fourth would do better, and a restart may


class FrameFaults:
    """A supervisor that changes nothing.

    Args:
        record: what counts results.
        say: takes one line for people.
        warn: takes the name of what is wrong, and the line, for whoever watches from afar.

    Attributes:
        hopeless: why the run must end; None as long as there is hope.
    """

    def __init__(
        self, record: RunRecord, say: Callable[[str], None], warn: Callable[[str, str], None] | None = None
    ) -> None:
        self._record, self._say, self._warn = record, say, warn
        self._hangs = 0
        self._has_said_not_finite = False
        self.hopeless: str | None = None

    def after(self, loop: Loop, tick: Tick) -> None:
        """Look at one step."""
        if tick is Tick.HUNG:
            self._hangs += 1
            self._report("hung", f"{loop.last_hang}; the frame is given up")
            if self._hangs == _HANGS:
                self.hopeless = f"{loop.last_hang}; the same happened to {_HANGS} frames in a row, so the run ends here"
        elif tick in (Tick.ON_TIME, Tick.LATE):
            self._hangs = 0
        if self._record.not_finite and not self._has_said_not_finite:
            self._has_said_not_finite = True
            self._report(
                "not_finite",
                "the model's outputs, or some of them, are NaN or infinite, so what the frame shows is not known; such "
                "results are marked not_finite and counted, and this is said once",
            )

    def _report(self, name: str, line: str) -> None:
        self._say(f"warning: {line}")
        if self._warn is not None:
            self._warn(name, line)


_EVERY_S = 60.0
_MUCH, _LITTLE = 0.1, 0.05  # of a minute's frames; a key frame that is lost on the way costs one in a hundred or so
_FEWEST = 10  # frames in a minute of which anything can be said


class Undecodable:
    """A supervisor that changes nothing.

    Args:
        stats: of the source.
        say: takes one line for people.
        warn: takes the name of what is wrong and the line, empty once it is over, for whoever watches from afar.
        clock_s: monotonic seconds; injected by tests.
    """

    def __init__(
        self,
        stats: Callable[[], SourceStats],
        say: Callable[[str], None],
        warn: Callable[[str, str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats, self._clock_s = stats, clock_s
        self._alarm = Alarm("undecodable", say, warn)
        self._before = self._counts()
        self._due_s = clock_s() + _EVERY_S

    def after(self, loop: Loop, tick: Tick) -> None:
        """Look once a minute; see `Supervisor`."""
        now_s = self._clock_s()
        if now_s < self._due_s:
            return
        (unreadable_before, all_before), self._before = self._before, self._counts()
        unreadable, frames = self._before[0] - unreadable_before, self._before[1] - all_before
        self._due_s = now_s + _EVERY_S
        if frames < _FEWEST:
            return
        share = unreadable / frames
        if share >= _MUCH and not self._alarm.line:
            self._alarm.tell(
                f"{unreadable} of {frames} frames of the last minute could not be decoded; of a camera look at its "
                "cable and network (over UDP try transport tcp), and try another codec or a lower bit rate in its "
                "settings; of files look whether they are whole"
            )
        elif share < _LITTLE and self._alarm.line:
            self._alarm.tell("")

    def _counts(self) -> tuple[int, int]:
        stats = self._stats()
        return stats.unreadable, stats.unreadable + stats.delivered + stats.dropped


_LATE_IN_A_ROW = 10  # one pause of a camera is nothing
_ON_TIME_IN_A_ROW = 100  # where the one and the other come in turn, that is not told each time


class LatencyMonitor:
    """A supervisor that changes nothing.

    Args:
        limit_ns: the latency budget, nanoseconds.
        say: takes one line for people.
        warn: takes the name of what is wrong and the line, empty once it is over, for whoever watches from afar.
    """

    def __init__(self, limit_ns: int, say: Callable[[str], None], warn: Callable[[str, str], None]) -> None:
        self._limit_ns = limit_ns
        self._alarm = Alarm("held_back", say, warn)
        self._in_a_row = 0

    def after(self, loop: Loop, tick: Tick) -> None:
        """Count results that say something else than what was told last; see `Supervisor`."""
        is_wrong = tick is Tick.LATE and loop.last_age_ns - loop.last_delay_ns <= self._limit_ns
        if not is_wrong and tick is not Tick.ON_TIME:
            return
        if is_wrong is bool(self._alarm.line):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row == (_LATE_IN_A_ROW if is_wrong else _ON_TIME_IN_A_ROW):
            self._in_a_row = 0
            self._alarm.tell(self._line(loop) if is_wrong else "")

    def _line(self, loop: Loop) -> str:
        delay_ms, age_ms, limit_ms = (ns / 1e6 for ns in (loop.last_delay_ns, loop.last_age_ns, self._limit_ns))
        return (
            f"frames are {delay_ms:.0f} ms old when they come, because FFmpeg returns each with the next one, and "
            f"results {age_ms:.0f} ms, above the budget of {limit_ms:g} ms; raise latency_ms, or have the camera send "
            "more frames a second, or MJPEG"
        )


_TOLD_AT_ONCE = 3  # reasons of one loss: how it came, and why it does not open again
_MOST_CHANGES = 12  # of a minute: some cameras come and go many times a second
_TOLD_EVERY_S = 60.0  # after them: a camera may be gone for months, for one reason and another in turn


class WatchedSource:
    """Looked at after every step.

    Args:
        source: what is looked at.
        location: of it; shown without secrets.
        stream: whose source it is.
        say: takes one line for people.
        clock_s: monotonic seconds; injected by tests.
    """

    def __init__(
        self,
        source: OpenedSource,
        location: str,
        stream: Stream,
        say: Say,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._shown, self._stream, self._say = source, redact(location), stream, say
        self._clock_s = clock_s
        self._status: SourceStatus | None = None
        self._trouble = ""
        self._since = datetime.now(timezone.utc)
        self._remarks: tuple[str, ...] = ()
        self._told = 0
        self._may_tell_s = 0.0
        self._changes = self._untold = 0  # of this minute; of them those that were not told
        self._minute_s = 0.0

    def go_on(self, stream: Stream, say: Say) -> None:
        """Tell others from now on, who went on with the source; what was told is not told again.

        Args:
            stream: whose source it is now.
            say: takes one line for people.
        """
        self._stream, self._say = stream, say
        self._tell_stream()

    def look(self) -> None:
        """Tell what changed, if anything did."""
        status, trouble = self._source.status, self._source.trouble
        if status is not self._status or trouble != self._trouble:
            self._tell(status, trouble)
        if status.is_there and self._source.remarks != self._remarks:
            self._remarks = self._source.remarks
            for remark in self._remarks:
                self._changes += 1
                self._tell_people(f"source {self._shown}: {remark}", self._clock_s())

    def _tell(self, status: SourceStatus, trouble: str) -> None:
        now_s, is_news = self._clock_s(), status is not self._status
        if is_news:
            self._since, self._told = datetime.now(timezone.utc), 0
        is_word = is_news and (trouble or status is not SourceStatus.OPENING)  # it may come in a moment
        if is_word or (trouble and (self._told < _TOLD_AT_ONCE or now_s >= self._may_tell_s)):
            self._told, self._may_tell_s = self._told + 1, now_s + _TOLD_EVERY_S
            self._changes += is_news
            self._tell_people(self._line(status, trouble), now_s)
        self._status, self._trouble = status, trouble
        self._tell_stream()

    def _tell_people(self, line: str, now_s: float) -> None:
        if now_s >= self._minute_s:
            line += f" ({self._untold} lines before were not told)" if self._untold else ""
            self._minute_s, self._changes, self._untold = now_s + _TOLD_EVERY_S, 1, 0
        if self._changes <= _MOST_CHANGES:
            self._say(line)
        else:
            self._untold += 1

    def _tell_stream(self) -> None:
        if self._status is not None:
            self._stream.report_source(SourceState(status=self._status.value, trouble=self._trouble, since=self._since))

    def _line(self, status: SourceStatus, trouble: str) -> str:
        if status is SourceStatus.OPENED:
            return f"source {self._shown} is open"
        if status is SourceStatus.OPENING:
            return f"source {self._shown}: not there yet" + (f": {trouble}; it is waited for" if trouble else "")
        return f"source {self._shown}: {status.value}" + (f": {trouble}" if trouble else "")


_INTERVAL_S = 2.0  # a reading takes a millisecond of a slow board; a stream that suffers is judged in two seconds, too


class CoreWatch:
    """Reads them every two seconds, in a thread of its own.

    Args:
        read: reads them.
        interval_s: seconds between two readings.

    Attributes:
        cores: what the last two readings agreed on; looking at it costs nothing.
    """

    def __init__(self, read: Callable[[], Cores] = Cores.read, interval_s: float = _INTERVAL_S) -> None:
        self._read = read
        self.cores = self._before = read()
        self._reading = Periodic(self._look, interval_s, "edge-cores")

    def close(self) -> None:
        """Stop reading."""
        self._reading.close()

    def _look(self) -> None:
        now = self._read()
        if now == self._before:  # quotas that are being written, or one that comes and goes, are worth no other session
            self.cores = now
        self._before = now


class Watches(NamedTuple):
    """What reads the board's state, and what reads the cores."""

    board: BoardWatch
    cores: CoreWatch


class MachineWatch:
    """Reads for as long as a stream looks at it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: tuple[Watches, contextlib.ExitStack] | None = None
        self._lookers = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watches]:
        """The same for all who look at the same time."""
        with self._lock:
            watches, stack = self._reading = self._reading or _begin()
            self._lookers += 1
        try:
            yield watches
        finally:
            with self._lock:
                self._lookers -= 1
                if not self._lookers:
                    self._reading = None
                    stack.close()


def _begin() -> tuple[Watches, contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:  # there may be a thread for the first, and none for the second
        board = stack.enter_context(contextlib.closing(BoardWatch()))
        cores = stack.enter_context(contextlib.closing(CoreWatch()))
        return Watches(board, cores), stack.pop_all()
