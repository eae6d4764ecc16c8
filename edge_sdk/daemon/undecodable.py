"""Undecodable: a camera of whose frames a clear share cannot be decoded is told of, by the minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from edge_sdk.camera import SourceStats
from edge_sdk.daemon.alarm import Alarm
from edge_sdk.loop import Loop, Tick

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
                f"{unreadable} of {frames} frames of the last minute could not be decoded; look at the camera's cable "
                "and network (over UDP try transport tcp), and try another codec or a lower bit rate in its settings"
            )
        elif share < _LITTLE and self._alarm.line:
            self._alarm.tell("")

    def _counts(self) -> tuple[int, int]:
        stats = self._stats()
        return stats.unreadable, stats.unreadable + stats.delivered + stats.dropped
