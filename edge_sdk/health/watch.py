"""HealthWatch: reads how machine and process are, now and then, and says what changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from edge_sdk.health.alarms import Alarms
from edge_sdk.health.readings import Gauges, Readings
from edge_sdk.periodic import Periodic

_INTERVAL_S = 10.0

Tell: TypeAlias = Callable[[str, str], None]
"""Takes the name of an alarm and its line, an empty one when it is over; called in a thread, it must not raise."""


class HealthWatch:
    """Reads every ten seconds, in a thread of its own: a disk or a driver that hangs holds nothing else up.

    Args:
        gauges: what reads.
        tell: what is told of alarms.
        interval_s: seconds between two readings.

    Attributes:
        readings: the latest; None before the first. Looking at them costs nothing.
    """

    def __init__(self, gauges: Gauges, tell: Tell, interval_s: float = _INTERVAL_S) -> None:
        self.readings: Readings | None = None
        self._gauges, self._tell, self._alarms = gauges, tell, Alarms()
        self._reading = Periodic(self._look, interval_s, "edge-health")

    def close(self) -> None:
        """Stop reading; does not wait for what hangs."""
        self._reading.close()

    def _look(self) -> None:
        self.readings = readings = self._gauges.read()
        for name, line in self._alarms.update(readings):
            self._tell(name, line)
