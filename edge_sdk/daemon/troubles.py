"""Troubles: what goes wrong with single frames is counted and said, and ends the run only when it does not stop."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.loop import Loop, Tick
from edge_sdk.run_record import RunRecord

_HANGS = 3  # in a row: nothing says that a fourth would do better, and a restart may


class Troubles:
    """A supervisor that changes nothing.

    Args:
        record: what counts results.
        say: takes one line for people.
        warn: takes the name of what is wrong, and the line, for whoever watches from afar.

    Attributes:
        hopeless: why the run must end; None as long as there is hope.
    """

    def __init__(
        self, record: RunRecord, say: Callable[[str], None], warn: Callable[[str, str], None] | None = None
    ) -> None:
        self._record, self._say, self._warn = record, say, warn
        self._hangs = 0
        self._has_said_not_finite = False
        self.hopeless: str | None = None

    def after(self, loop: Loop, tick: Tick) -> None:
        """Look at one step."""
        if tick is Tick.HUNG:
            self._hangs += 1
            self._report("hung", f"{loop.last_hang}; the frame is given up")
            if self._hangs == _HANGS:
                self.hopeless = f"{loop.last_hang}; the same happened to {_HANGS} frames in a row, so the run ends here"
        elif tick in (Tick.ON_TIME, Tick.LATE):
            self._hangs = 0
        if self._record.not_finite and not self._has_said_not_finite:
            self._has_said_not_finite = True
            self._report(
                "not_finite",
                "the model's outputs, or some of them, are NaN or infinite, so what the frame shows is not known; such "
                "results are marked not_finite and counted, and this is said once",
            )

    def _report(self, name: str, line: str) -> None:
        self._say(f"warning: {line}")
        if self._warn is not None:
            self._warn(name, line)
