"""Objects that all pipelines of one process share; `Gate` makes pipelines that start together wait for each other."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from edge_sdk.core.logs import of_all_cameras
from edge_sdk.core.machine import BoardWatch
from edge_sdk.inference.session import SessionCache
from edge_sdk.service.process import Progress
from edge_sdk.service.runner import Controls
from edge_sdk.tuning.degradation import DegradationController

_log = logging.getLogger(__name__)
_LOOK_S = 0.05  # time between two checks for a request to stop
_PATIENCE_S = 10.0  # longest wait for all pipelines to be ready, so that a slow one does not delay the others


class Gate:
    """Opens once all announced pipelines have arrived, or some time has passed.

    They measure their models one after another, and none may run frames meanwhile.
    """

    def __init__(self, count: int, patience_s: float = _PATIENCE_S) -> None:
        self._missing, self._lock = count, threading.Lock()
        self._until = time.monotonic() + patience_s

    def arrive(self) -> None:
        """Count one pipeline that is ready, or never will be."""
        with self._lock:
            self._missing -= 1

    def wait(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until the gate opens or `is_stopped` returns True."""
        while self._missing > 0 and not is_stopped() and time.monotonic() < self._until:
            time.sleep(_LOOK_S)


class Shared:
    """Objects that all pipelines of one process share."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress(math.inf)
        self.models = SessionCache()  # pipelines with the same model share it, and the last one releases it
        self.controls = Controls()
        self.degradation = DegradationController()
        self.tuning = threading.Lock()  # held by the pipeline that tunes
        self._starting = threading.Lock()
        self.turns = 0  # pipeline starts begun so far; changed only with this lock
        self._logged: set[str] = set()
        self._board_lock = threading.Lock()
        self._board: BoardWatch | None = None

    def throttled(self) -> str:
        """Return why the board throttles at present; empty when it does not. Another thread reads the board."""
        with self._board_lock:
            self._board = self._board or BoardWatch()
        return self._board.state.throttled

    def close(self) -> None:
        """Stop reading the board's throttling."""
        if self._board is not None:
            self._board.close()

    def log_once(self, level: int, line: str) -> None:
        """Log a line that holds for all pipelines only once; to be called during the pipeline's `turn`."""
        if line not in self._logged:
            self._logged.add(line)
            with of_all_cameras():
                _log.log(level, line)

    @contextlib.contextmanager
    def turn(self, is_stopped: Callable[[], bool]) -> Iterator[bool]:
        """Keep other pipelines from loading or measuring within the context; yield False if `is_stopped` came first."""
        while not self._starting.acquire(timeout=_LOOK_S):
            if is_stopped():
                yield False
                return
        try:
            self.turns += 1
            yield True
        finally:
            self._starting.release()
