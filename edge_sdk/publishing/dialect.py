"""Dialect: which version of MQTT a broker understands.

Owns what was found out, for as long as the publisher lives; a program that starts again asks again.
"""

from __future__ import annotations

from typing import Literal

_OLD = (
    "the broker knows no MQTT 5, and 3.1.1 is spoken: messages do not expire there, and it does not say what it "
    'refuses; update it, or set protocol = "3.1.1" (--mqtt-version)'
)


class Dialect:
    """Of one broker.

    Args:
        protocol: what is tried first.

    Attributes:
        protocol: what is spoken from now on.
    """

    def __init__(self, protocol: Literal["5", "3.1.1"]) -> None:
        self.protocol = protocol
        self._is_fallback = False

    @property
    def is_v5(self) -> bool:
        """Whether messages bear properties."""
        return self.protocol == "5"

    @property
    def doubt(self) -> str:
        """What is lost by it, for people; empty where nothing is, or where it was asked for."""
        return _OLD if self._is_fallback else ""

    def fall_back(self) -> bool:
        """The broker did not understand this one; False when there is no other."""
        if not self.is_v5:
            return False
        self.protocol, self._is_fallback = "3.1.1", True
        return True
