"""Shared: what the streams of one process have in common.

Turn: of several streams one tunes at a time, so that none measures another's trials.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from edge_sdk.core.logs import Say
from edge_sdk.inference.session import SessionCache
from edge_sdk.loop import Loop, Tick
from edge_sdk.service.health import Progress
from edge_sdk.service.monitors import MachineWatch
from edge_sdk.service.runner import Controls
from edge_sdk.tuning.degradation import Peers
from edge_sdk.tuning.live import LiveTuner

_LOOK_S = 0.05  # how soon a request to stop is seen
_PATIENCE_S = 10.0  # for all streams to be ready: one that takes longer holds up no other


class Gate:
    """Opens once all who were announced have arrived, or some time has passed.

    The streams of a process measure, one after another, what they can do; nobody may run frames meanwhile.

    Args:
        count: how many arrive.
        patience_s: seconds after which it opens all the same.
    """

    def __init__(self, count: int, patience_s: float = _PATIENCE_S) -> None:
        self._missing = count
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._until = time.monotonic() + patience_s
        if count <= 0:
            self._open.set()

    def arrive(self) -> None:
        """One is there, or never will be."""
        with self._lock:
            self._missing -= 1
            if self._missing <= 0:
                self._open.set()

    def wait(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until it opens."""
        while not is_stopped() and time.monotonic() < self._until:
            if self._open.wait(_LOOK_S):
                return


class Shared:
    """What the streams of one process have in common.

    Args:
        progress: follows the steps of all streams.
        say: takes one line for people.

    Attributes:
        progress: as given.
        models: loaded once for all streams that run the same; each goes with the last that has it.
        machine: read once for all streams.
        controls: what commands have set of each camera.
        peers: where each of them stands on its ladder.
        turns: how many starts of streams were begun.
        tuning: held by the stream that tunes; the others wait for their turn.
    """

    def __init__(self, progress: Progress | None = None, say: Say = lambda _line: None) -> None:
        self.progress = progress or Progress(math.inf)
        self._say = say
        self.models = SessionCache(most=0)
        self.machine = MachineWatch()
        self.controls = Controls()
        self.peers = Peers()
        self.turns = 0  # changed by who has the lock below
        self.tuning = threading.Lock()
        self._starting = threading.Lock()
        self._said: set[str] = set()

    def say_once(self, line: str) -> None:
        """Say what holds for all streams, whichever finds it out first; called while it has its turn to start."""
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def start(self, work: Callable[[], None], is_stopped: Callable[[], bool]) -> bool:
        """Do what only one stream does at a time: try a bundle, load its model, measure what it takes.

        Returns:
            False when `is_stopped` said so first; then nothing was done.
        """
        while not self._starting.acquire(timeout=_LOOK_S):
            if is_stopped():
                return False
        try:
            self.turns += 1
            work()
        finally:
            self._starting.release()
        return True


class TuningLock:
    """A supervisor that lets a tuner look at its loop only while it is that stream's turn.

    Args:
        tuner: waits, and then tunes.
        lock: held by the stream whose turn it is.
    """

    def __init__(self, tuner: LiveTuner, lock: threading.Lock) -> None:
        self._tuner, self._lock = tuner, lock
        self._is_ours = False

    @property
    def done(self) -> bool:
        """Whether the tuner has come to its end."""
        return self._tuner.done

    def after(self, loop: Loop, tick: Tick) -> None:
        """See `Supervisor`."""
        if self._tuner.done:
            return
        if not self._is_ours and tick is not Tick.IDLE:  # while no frame comes, another may as well tune
            self._is_ours = self._lock.acquire(blocking=False)
        if self._is_ours:
            self._tuner.after(loop, tick)
            if self.done:
                self._give_up()

    def close(self) -> None:
        """Give up what is not finished; the next stream may begin."""
        self._tuner.close()
        self._give_up()

    def _give_up(self) -> None:
        if self._is_ours:
            self._is_ours = False
            self._lock.release()
