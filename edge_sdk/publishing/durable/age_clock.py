"""AgeClock: seconds by which the age of an event is told, over restarts, whatever the wall clock does.

A device without a battery begins in 1970 or in last month, and leaps when it hears the time: by the wall clock a leap
would make every event too old at once, or none ever. So time is what the machine was on: the kernel's time since boot,
continued from what was last written down. Time in which it was off does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec


class AgeMark(msgspec.Struct, frozen=True):
    """What is written down.

    Attributes:
        boot_id: of the boot in which it was.
        since_boot_s: of that boot, seconds.
        age_s: of the outbox, seconds.
    """

    boot_id: str
    since_boot_s: float
    age_s: float


def since_boot_s() -> float:
    """Seconds since the machine was started, suspended ones included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgeClock:
    """Of one outbox.

    Args:
        boot_id: of the running boot.
        now_s: seconds since it began.
    """

    def __init__(self, boot_id: str, now_s: Callable[[], float] = since_boot_s) -> None:
        self._boot_id, self._now_s = boot_id, now_s
        self._offset_s = -now_s()

    def seconds(self) -> float:
        """The time of the outbox; once something bears it, it never leaps."""
        return self._now_s() + self._offset_s

    def mark(self) -> AgeMark:
        """What to write down."""
        now_s = self._now_s()
        return AgeMark(self._boot_id, now_s, now_s + self._offset_s)

    def behind_s(self, mark: AgeMark) -> float:
        """Seconds by which the clock that was written down is ahead of this one."""
        in_between_s = self._now_s() - mark.since_boot_s if mark.boot_id == self._boot_id else 0.0
        return mark.age_s + max(0.0, in_between_s) - self.seconds()

    def advance(self, by_s: float) -> None:
        """Go on from what was written down; before anything bears a time of this clock."""
        self._offset_s += by_s
