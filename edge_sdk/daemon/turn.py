"""Turn: of several streams one tunes at a time, so that none measures another's trials."""

from __future__ import annotations

import threading

from edge_sdk.loop import Loop, Tick
from edge_sdk.tuning import LiveTuner


class Turn:
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
