"""Dialect: how much of MQTT a broker understands: which version, and up to which QoS.

Owns what was found out, for as long as the publisher lives; a program that starts again asks again.
"""

from __future__ import annotations

from typing import Literal

_OLD = (
    "the broker knows no MQTT 5, and 3.1.1 is spoken: messages do not expire there, and it does not say what it "
    'refuses; update it, or set protocol = "3.1.1" (--mqtt-version)'
)
_QOS_0_ONLY = (
    "this broker takes QoS 0 only: events cannot be acknowledged, and wait; have it take QoS 1 (Mosquitto's max_qos)"
)


class Dialect:
    """Of one broker.

    Args:
        protocol: what is tried first.

    Attributes:
        protocol: what is spoken from now on.
        max_qos: above which it takes nothing, the last will neither.
    """

    def __init__(self, protocol: Literal["5", "3.1.1"]) -> None:
        self.protocol = protocol
        self.max_qos = 1
        self._is_fallback = False

    @property
    def is_v5(self) -> bool:
        """Whether messages bear properties."""
        return self.protocol == "5"

    @property
    def doubt(self) -> str:
        """What is lost by the version, for people; empty where nothing is, or where it was asked for."""
        return _OLD if self._is_fallback else ""

    @property
    def doubt_of_qos(self) -> str:
        """The same of the QoS."""
        return "" if self.max_qos else _QOS_0_ONLY

    def fall_back(self) -> bool:
        """The broker did not understand this one; False when there is no other."""
        if not self.is_v5:
            return False
        self.protocol, self._is_fallback = "3.1.1", True
        return True
