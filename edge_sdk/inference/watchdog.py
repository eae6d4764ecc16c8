"""End runs of ONNX Runtime that hang.

One thread watches all sessions of a process. It costs a run two additions, and no clock, lock or thread switch.
"""

from __future__ import annotations

import threading
import time
import weakref

import onnxruntime as ort

_LOOK_S = 0.25
_SHORTEST_S = 0.005
_QUIET = 4  # fatal only, because errors reach the caller as exceptions


class RunGuard:
    """Counts one session's runs for the watchdog.

    Args:
        limit_s: seconds that a run may take.

    Attributes:
        limit_s: may be changed at any time.
        steps: counter of beginnings and ends of runs; odd during a run.
        options: run options for every run; a flag in them ends the run.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.steps = 0
        self.options = ort.RunOptions()
        self.options.log_severity_level = _QUIET
        # onnxruntime 1.31's Python reads this entry at each run; a missing one costs an exception, 36 us.
        self.options.add_run_config_entry("gpu_graph_id", "-1")
        self._seen = self._ended = 0
        self._busy_s = 0.0

    def look(self, passed_s: float) -> None:
        """End the run if it has taken too long; the watchdog calls this `passed_s` seconds after the last call."""
        steps = self.steps
        if steps % 2 == 0 or steps != self._seen:
            self._seen, self._busy_s = steps, 0.0
            return
        # Counted without a clock, so that a process that was paused ends no run for that.
        self._busy_s += passed_s
        if self._busy_s >= self.limit_s:
            self._ended = steps
            self.options.terminate = True

    def was_ended(self) -> bool:
        """Whether the watchdog ended the present run; read after the run failed, before it is counted as ended."""
        return self._ended == self.steps

    def is_to_be_repeated(self) -> bool:
        """Whether a run failed only because the watchdog meant to end the previous one, which had just finished."""
        was_told = bool(self.options.terminate)
        self.options.terminate = False
        return was_told and not self.was_ended()


class Watchdog:
    """Watches the runs of all sessions, in one thread that lives as long as there is a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: weakref.WeakSet[RunGuard] = weakref.WeakSet()
        self._is_running = False

    def watch(self, guard: RunGuard) -> None:
        """Watch a session's runs from now on.

        Raises:
            RuntimeError: the thread cannot start; the next session tries again.
        """
        with self._lock:
            self._guards.add(guard)
            if not self._is_running:
                threading.Thread(target=self._run, name="edge-watchdog", daemon=True).start()
                self._is_running = True  # set last, so that the next session tries again if the thread cannot start

    def _run(self) -> None:
        """Watch until no session is left."""
        while pause_s := self._pause_s():
            time.sleep(pause_s)
            for guard in self._living():
                guard.look(pause_s)
                del guard  # else it would outlive its session by one interval

    def _living(self) -> list[RunGuard]:
        with self._lock:
            return list(self._guards)

    def _pause_s(self) -> float:
        with self._lock:
            limits = [guard.limit_s for guard in self._guards]
            self._is_running = bool(limits)
            return max(_SHORTEST_S, min(_LOOK_S, *(limit / 4 for limit in limits))) if limits else 0.0


_WATCHDOG = Watchdog()


def guarded(limit_s: float) -> RunGuard:
    """Return the guard of a new session; the watchdog watches it as long as a reference to it exists."""
    guard = RunGuard(limit_s)
    _WATCHDOG.watch(guard)
    return guard
