"""Read the configuration again beside what runs, one at a time, and tell whoever asked what came of it.

Files, keys and bundles may be on a disk that is slow or hangs: they are read in a thread, and nobody waits for it but
who asked.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable

from edge_sdk.core.errors import CameraError, ConfigError, failure_line
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.service.settings import RunSettings
from edge_sdk.service.supervisor import output_changes

_log = logging.getLogger(__name__)
_LONG_S = 10.0  # a slow card reads bundles in that
_MOST_WAITING = 32  # while a disk hangs; of more the first are not told

Told = Callable[[str], None]
"""Takes why the configuration was not taken, in lines; nothing where it was."""


class Reloading:
    """Reads the configuration of a process again; used from its main thread."""

    def __init__(
        self,
        reread: Callable[[], RunSettings],
        take: Callable[[RunSettings], None],
        refuse: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reread, self._take, self._refuse = reread, take, refuse
        self._clock_s = clock_s
        self._long_at_s = math.inf
        self._reading: BackgroundTask[RunSettings] | None = None
        self._wait_for_this = deque[Told](maxlen=_MOST_WAITING)
        self._wait_for_next = deque[Told](maxlen=_MOST_WAITING)

    @property
    def is_reading(self) -> bool:
        """Whether it is being read."""
        return self._reading is not None

    def wait(self, told: Told) -> None:
        """Have somebody told of the next reading."""
        self._wait_for_next.append(told)

    def begin(self, now: RunSettings) -> None:
        """Begin to read it; `look` takes it."""
        self._wait_for_this.extend(self._wait_for_next)
        self._wait_for_next.clear()
        self._long_at_s = self._clock_s() + _LONG_S
        try:
            self._reading = BackgroundTask(lambda: _read(self._reread, now), "edge-reload")
        except RuntimeError as cause:  # no thread is to be had
            self._give_up(failure_line(cause))

    def look(self) -> None:
        """Go by what was read, once it is."""
        reading = self._reading
        if reading is None:
            return
        if not reading.is_done:
            self._look_at_time()
            return
        self._reading = None
        try:
            fresh = reading.take()
        except Exception as cause:  # noqa: BLE001 - whatever it is, what runs goes on
            self._give_up(failure_line(cause))
        else:
            self._take(fresh)
            self._tell("")

    def end(self) -> None:
        """Take nothing any more, and tell all who wait."""
        self._wait_for_this.extend(self._wait_for_next)
        self._tell("the program ends")
        if self._reading is not None:
            self._reading.close(0.0)

    def _look_at_time(self) -> None:
        if self._clock_s() >= self._long_at_s:
            self._long_at_s = math.inf
            _log.warning(
                f"the configuration is being read for {_LONG_S:g} s, with its keys and bundles; does their "
                "disk answer? What runs goes on, and it is not read once more before that ends"
            )

    def _give_up(self, why: str) -> None:
        self._refuse(why)
        self._tell(why)

    def _tell(self, why: str) -> None:
        while self._wait_for_this:
            self._wait_for_this.popleft()(why)


def _read(reread: Callable[[], RunSettings], now: RunSettings) -> RunSettings:
    """Read it; raises EdgeError where it cannot be used, or restarts all streams and keeps one from running."""
    fresh = reread()
    hindrances = _hindrances(fresh) if output_changes(now, fresh) else []
    if hindrances:
        raise ConfigError(*hindrances)
    return fresh


def _hindrances(settings: RunSettings) -> list[str]:
    """List what would keep streams from running, but for cameras that are not there: those are waited for."""
    from edge_sdk.service.check import check_run  # few reloads need it

    problems = [each for each in check_run(settings).all_problems() if each.exit_code != CameraError.exit_code]
    return [problem.text for problem in problems if problem.keeps_from_running]
