"""Backoff: how long to wait before the next connection.

Owns the arithmetic and no clock. Jitter keeps a fleet from coming back all at once when its broker does.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Doubling waits with jitter.

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
        """Seconds to wait now, between half of the ceiling and the ceiling, which doubles with every call.

        Args:
            slow: go to the longest wait at once; for a broker that says no, and will until somebody mends it.
        """
        ceiling_s = self._longest_s if slow else self._ceiling_s
        self._ceiling_s = min(ceiling_s * 2, self._longest_s)
        return self._uniform(ceiling_s / 2, ceiling_s)

    def reset(self) -> None:
        """Begin again; after a connection that held."""
        self._ceiling_s = self._first_s
