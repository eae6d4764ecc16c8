"""HeldBack: a stream whose results are late only because its frames are old when they come is told of.

Neither a smaller model nor dropped frames help it, so that nothing else would speak of it.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.daemon.alarm import Alarm
from edge_sdk.loop import Loop, Tick

_LATE_IN_A_ROW = 10  # one pause of a camera is nothing
_ON_TIME_IN_A_ROW = 100  # where the one and the other come in turn, that is not told each time


class HeldBack:
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
