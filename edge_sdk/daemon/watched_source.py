"""WatchedSource: where a stream's source stands, told to people and to whoever reads the device's state."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

from edge_sdk.camera import OpenedSource, SourceStatus, redact
from edge_sdk.daemon.say import Say
from edge_sdk.publishing import SourceState, Stream

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
            self._stream.source(SourceState(status=self._status.value, trouble=self._trouble, since=self._since))

    def _line(self, status: SourceStatus, trouble: str) -> str:
        if status is SourceStatus.OPENED:
            return f"source {self._shown} is open"
        if status is SourceStatus.OPENING:
            return f"source {self._shown}: not there yet" + (f": {trouble}; it is waited for" if trouble else "")
        return f"source {self._shown}: {status.value}" + (f": {trouble}" if trouble else "")
