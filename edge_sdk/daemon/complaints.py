"""Complaints: what people are told of commands that were refused: the first ones each, of many more how many.

A program that is wrong sends many; a person who mistypes a few finds each of them in the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from edge_sdk.daemon.say import Say

_AT_ONCE = 5
_EVERY_S = 10.0


class Complaints:
    """Of one device; used from the daemon's main thread.

    Args:
        say: takes one line for people.
        clock_s: monotonic seconds.
    """

    def __init__(self, say: Say, clock_s: Callable[[], float]) -> None:
        self._say, self._clock_s = say, clock_s
        self._began_at, self._said = clock_s(), 0  # of the present ten seconds
        self._unsaid = Counter[str]()

    def take(self, code: str, line: str) -> None:
        """One command was refused."""
        self.look()
        if self._said >= _AT_ONCE:
            self._unsaid[code] += 1
            return
        self._said += 1
        self._say(line)

    def look(self) -> None:
        """Tell of those that were not said, once their ten seconds are over."""
        if self._clock_s() - self._began_at < _EVERY_S:
            return
        self._began_at, self._said = self._clock_s(), 0
        unsaid, self._unsaid = self._unsaid, Counter()
        if unsaid:
            kinds = ", ".join(f"{count} {code}" for code, count in unsaid.most_common())
            self._say(f"{unsaid.total()} more commands were refused in 10 s, as their answers say: {kinds}")
