"""Announcing: who writes results, and who reads the device's state, is told what runs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edge_sdk.loop import Loop, Tick
from edge_sdk.publishing import Running


class Announcing:
    """A supervisor that renews the state when tuning is over, whatever came of it.

    Args:
        answers_by: takes the variant of the next results.
        publish: takes what runs, for the state; must not block.
        is_tuning: whether models are measured in turn at present.
    """

    def __init__(
        self, answers_by: Callable[[str], None], publish: Callable[[Running], None], is_tuning: Callable[[], bool]
    ) -> None:
        self._answers_by, self._publish, self._is_tuning = answers_by, publish, is_tuning
        self._running: Running | None = None

    def tell(self, running: Running) -> None:
        """Have results bear its variant, and the state say it."""
        self._answers_by(running.variant)
        self._running = msgspec.structs.replace(running, tuning=True if self._is_tuning() else msgspec.UNSET)
        self._publish(self._running)

    def after(self, loop: Loop, tick: Tick) -> None:
        """Say so when it is over; see `Supervisor`."""
        if self._running is not None and self._running.tuning is True and not self._is_tuning():
            self._running = msgspec.structs.replace(self._running, tuning=msgspec.UNSET)
            self._publish(self._running)
