"""Doubts: what is not wrong yet with a connection: a certificate that ends soon, a broker that knows no MQTT 5.

Owns when that is looked at: at every connection, and once a day while it holds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from edge_sdk.publishing.board import Board
from edge_sdk.publishing.link import Link

_DAY_S = 86400.0


class Doubts:
    """Of one device; said in its retained state, and once as a line.

    Args:
        board: what the device says of itself.
        on_doubt: takes one line for people; what it raises is passed over.
        clock_s: monotonic seconds.
    """

    def __init__(
        self, board: Board, on_doubt: Callable[[str], None] | None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._board, self._on_doubt, self._clock_s = board, on_doubt, clock_s
        self._next = 0.0
        self._said: set[str] = set()

    def look(self, link: Link) -> None:
        """Look at a connection now."""
        self._next = self._clock_s() + _DAY_S
        found = {**dict.fromkeys(self._said, ""), **link.doubts()}
        self._said.clear()
        for name, line in found.items():
            self._tell(name, line)

    def say(self, name: str, line: str) -> None:
        """Something found out meanwhile: of a name the first until the next look; an empty line takes it back."""
        if not line:
            self._said.discard(name)
        elif name in self._said:
            return
        else:
            self._said.add(name)
        self._tell(name, line)

    def look_daily(self, link: Link) -> None:
        """Look at one where the last look is a day ago."""
        if self._clock_s() >= self._next:
            self.look(link)

    def _tell(self, name: str, line: str) -> None:
        if self._board.warn_of_device(name, line) and line and self._on_doubt is not None:
            with contextlib.suppress(Exception):  # whoever listens must not be able to end publishing
                self._on_doubt(line)
