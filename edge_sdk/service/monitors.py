"""Monitors of one running pipeline: each one checks every step, and logs and publishes problems.

All but `WatchedSource` are observers of the loop that change nothing in it. `RareLines` limits how often a line is
logged, because journals are kept for months.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone

import msgspec

from edge_sdk.core.logs import Alarm
from edge_sdk.loop import Loop, RunRecord, Tick
from edge_sdk.publishing.publisher import Stream
from edge_sdk.sources.opening import redact
from edge_sdk.sources.slot import OpenedSource, SourceStats, SourceStatus

_log = logging.getLogger(__name__)


class TokenBucket:
    """Rate limiter: allows a burst at once, and then a number of further items per second."""

    def __init__(self, burst: int, per_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._per_s, self._clock_s = burst, per_s, clock_s
        self._tokens, self._filled_at_s = float(burst), clock_s()

    def take(self) -> bool:
        """Return whether one more item is allowed now, and count it."""
        now_s = self._clock_s()
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_at_s) * self._per_s)
        self._filled_at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class RareLines:
    """Logs as many lines as a `TokenBucket` allows, and the number of lines left out between them."""

    def __init__(self, burst: int, per_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._bucket, self._untold = TokenBucket(burst, per_s, clock_s), 0

    def tell(self, line: str) -> None:
        """Log one line, or count it as left out."""
        if not self._bucket.take():
            self._untold += 1
            return
        _log.info(line + (f" (lines not told before it: {self._untold})" if self._untold else ""))
        self._untold = 0


_HANGS = 3  # consecutive hangs that end the run: a restart may help, another frame would not


class FrameFaults:
    """Reports runs that hang and outputs with NaN or infinity; `hopeless` is why the run must end, if it must."""

    def __init__(self, record: RunRecord, warn: Callable[[str, str], None]) -> None:
        self._record, self._warn = record, warn
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
        _log.warning(line)
        self._warn(name, line)


_EVERY_S = 60.0
_MUCH, _LITTLE = 0.1, 0.05  # share of a minute's frames; a lost key frame costs about one in a hundred
_FEWEST = 10  # frames in a minute that are enough to judge by


class Undecodable:
    """Reports, once a minute, when a tenth of the source's frames or more cannot be decoded."""

    def __init__(
        self,
        stats: Callable[[], SourceStats],
        warn: Callable[[str, str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats, self._clock_s = stats, clock_s
        self._alarm = Alarm("undecodable", warn)
        self._before = self._counts()
        self._due_s = clock_s() + _EVERY_S

    def after(self, loop: Loop, tick: Tick) -> None:
        """Compare the counts with those of a minute ago."""
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


_LATE_IN_A_ROW = 10  # late results before a warning, so that one pause of a camera gives none
_ON_TIME_IN_A_ROW = 100  # results on time before the warning ends, so that it does not toggle


class LatencyMonitor:
    """Reports when results are late only because frames are old when they arrive, which no smaller model can mend."""

    def __init__(self, limit_ns: int, warn: Callable[[str, str], None]) -> None:
        self._limit_ns = limit_ns
        self._alarm = Alarm("held_back", warn)
        self._in_a_row = 0

    def after(self, loop: Loop, tick: Tick) -> None:
        """Count consecutive results that contradict the last report."""
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


_MOST_AT_ONCE, _MORE_PER_S = 10, 1 / 60  # lines at once, and per second: some cameras come and go many times a second


class WatchedSource:
    """Reports in the log and the stream's state whether the source is open, and why not."""

    def __init__(
        self,
        source: OpenedSource,
        location: str,
        stream: Stream,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._shown, self._stream = source, redact(location), stream
        self._lines = RareLines(_MOST_AT_ONCE, _MORE_PER_S, clock_s)
        self._status: SourceStatus | None = None
        self._is_taken_over = source.stats.delivered > 0  # open since an earlier pipeline: that is no news
        self._trouble = ""
        self._since = datetime.now(timezone.utc)
        self._remarks: tuple[str, ...] = ()

    def look(self) -> None:
        """Report the state of the source if it changed."""
        status, trouble = self._source.status, self._source.trouble
        if status is not self._status or trouble != self._trouble:
            self._tell(status, trouble)
        if status.is_there and self._source.remarks != self._remarks:
            self._remarks = self._source.remarks
            for remark in self._remarks:
                self._lines.tell(f"source {self._shown}: {remark}")

    def _tell(self, status: SourceStatus, trouble: str) -> None:
        is_news = status is not self._status
        if is_news:
            self._since = datetime.now(timezone.utc)
        if self._is_taken_over and status is SourceStatus.OPENED and self._status is None:
            is_news = False
        if trouble or (is_news and status is not SourceStatus.OPENING):  # opening may be over in a moment
            self._lines.tell(self._line(status, trouble))
        self._status, self._trouble = status, trouble
        self._stream.report(source=status.value, trouble=trouble or msgspec.UNSET, since=self._since)

    def _line(self, status: SourceStatus, trouble: str) -> str:
        if status is SourceStatus.OPENED:
            return f"source {self._shown} is open"
        if status is SourceStatus.OPENING:
            return f"source {self._shown}: not there yet" + (f": {trouble}; it is waited for" if trouble else "")
        return f"source {self._shown}: {status.value}" + (f": {trouble}" if trouble else "")
