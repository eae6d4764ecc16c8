"""Move a stream between the levels of its bundle while it runs, as its governor decides.

Another variant is loaded in a thread beside the loop, which ONNX Runtime allows, and replaces the running one between
two steps. At most two models are loaded at once. While a tuner measures models in turn, the level stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from edge_sdk.bundle.manifest import Manifest
from edge_sdk.core.errors import NoRoomError, StoppedError, failure_line, is_out_of_memory
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.inference.stages import Stages
from edge_sdk.loop import Loop, Tick
from edge_sdk.messages.schema import Running
from edge_sdk.tuning.degradation import DegradationController, Governor, Move, levels_of

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 0.5  # a run that is told to stop must end within two seconds in all


class LevelChanger:
    """An observer of a loop that keeps it inside its latency budget as far as the bundle allows.

    Args:
        manifest: the bundle's manifest, with the preferred variant first.
        open_stages: takes the name of a variant and returns its stages, loaded and tested; called in another thread.
        limit_ns: the latency budget, nanoseconds.
        fps: frames per second of the source.
        fixed: whether the first variant always runs, so that only frames are left out.
        announce: called with what runs, at the start and after every change; must not block.
        throttled: returns the reason why the board throttles; empty when it does not.
        is_tuning: returns whether a tuner replaces the loop's stages, or will.
        controller: the controller of all streams of the process.
        load_limit_s: seconds after which a load is given up.
        clock_ns: returns monotonic nanoseconds.
    """

    def __init__(
        self,
        manifest: Manifest,
        open_stages: Callable[[str], Stages],
        *,
        limit_ns: int,
        fps: float,
        fixed: bool,
        announce: Callable[[Running], None],
        throttled: Callable[[], str],
        is_tuning: Callable[[], bool],
        controller: DegradationController,
        load_limit_s: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._manifest, self._open, self._fixed = manifest, open_stages, fixed
        self._limit_ns, self._period_ns = limit_ns, int(1e9 / fps)
        self._announce, self._throttled, self._is_tuning = announce, throttled, is_tuning
        self._controller, self._load_limit_s, self._clock_ns = controller, load_limit_s, clock_ns
        self._loading: BackgroundTask[Stages] | None = None
        self._move: Move | None = None  # the move that waits for the load
        self._give_up_s = 0.0
        self._short: set[str] = set()  # variants for which a log line has said that memory is short
        self._variant = manifest.variants[0].name
        self._running: Running | None = None
        self._governor = self._new_governor(0)

    def begin(self, variant: str, reason: str) -> None:
        """Announce the variant that the stream starts with, and why; if it is not the first, the stream may step up."""
        self._go_by(variant, [level.variant for level in self._governor.levels].index(variant), reason)

    def after(self, loop: Loop, tick: Tick) -> None:
        """Judge one step of the loop, and begin a move where the governor decides so; see `LoopObserver`."""
        now_ns = self._clock_ns()
        if self._is_tuning():
            self._governor.rest(now_ns)
            return
        if self._loading is not None:
            self._take(loop, self._loading, now_ns)
        elif isinstance(loop.stages, Stages) and loop.stages.variant != self._variant:
            # The variant that tuning chose becomes the top level.
            self._manifest, loop.every = self._manifest.with_primary(loop.stages.variant), 1.0
            self._go_by(loop.stages.variant, 0, "chosen by measurement")
        elif self._running is not None and self._running.tuning is True:
            self._publish(self._running)  # tuning is over, and found nothing better
        self._note(loop, tick)
        if self._governor.is_due(now_ns):
            move = self._governor.decide(now_ns, self._throttled())
            if move is not None:
                self._begin_move(loop, move, now_ns)

    def close(self) -> None:
        """Stop loading, and remove the stream from the controller."""
        self._governor.close()
        if self._loading is not None:
            self._loading.close(_CLOSE_TIMEOUT_S)

    def _note(self, loop: Loop, tick: Tick) -> None:
        # A frame that was older than the whole budget when it arrived, as in a backlog, is late at every level.
        if loop.last_wait_ns - loop.last_delay_ns > self._limit_ns:
            return
        if tick is Tick.ON_TIME or tick is Tick.LATE:
            # The time for which FFmpeg holds a frame back does not depend on the level either.
            age_ns = loop.last_age_ns - loop.last_delay_ns
            self._governor.note_result(is_late=age_ns > self._limit_ns, age_ns=age_ns, run_ns=loop.last_run_ns)
        elif tick is Tick.STALE:
            self._governor.note_stale()

    def _new_governor(self, start: int) -> Governor:
        levels = levels_of(self._manifest, fixed=self._fixed)
        return Governor(levels, self._limit_ns, self._period_ns, self._clock_ns(), start, self._controller)

    def _go_by(self, variant: str, start: int, reason: str) -> None:
        self._governor.close()
        self._governor, self._variant = self._new_governor(start), variant
        self._tell(reason)

    def _begin_move(self, loop: Loop, move: Move, now_ns: int) -> None:
        variant = move.level.variant
        if variant == self._variant:
            self._arrive(loop, move, now_ns)
            return
        try:
            self._loading = BackgroundTask(lambda: self._open(variant), "edge-loader", undo=lambda _stages: None)
        except RuntimeError as cause:  # no thread can be started now
            self._fail(variant, cause, now_ns)
            return
        self._move, self._give_up_s = move, time.monotonic() + self._load_limit_s

    def _take(self, loop: Loop, loading: BackgroundTask[Stages], now_ns: int) -> None:
        """Give the loaded stages to the loop once they are ready; give up the load where it takes too long."""
        move = self._move
        if move is None or (not loading.is_done and time.monotonic() < self._give_up_s):
            return
        self._loading = self._move = None
        variant = move.level.variant
        try:
            if not loading.is_done:
                loading.close(0.0)  # does not wait: the thread's result is dropped
                raise TimeoutError(f"its model was not loaded after {self._load_limit_s:g} s and is given up")
            loop.stages = loading.take()
        except StoppedError:
            return  # the run ends and needs no model any more
        except Exception as cause:  # noqa: BLE001 - the stream goes on with what it has
            self._fail(variant, cause, now_ns)
        else:
            self._variant = variant
            self._short.discard(variant)
            self._arrive(loop, move, now_ns)

    def _fail(self, variant: str, cause: Exception, now_ns: int) -> None:
        why = str(cause) if isinstance(cause, TimeoutError) else failure_line(cause)
        if isinstance(cause, NoRoomError) or is_out_of_memory(cause):
            self._governor.postpone(now_ns)
            if variant not in self._short:
                self._short.add(variant)
                _log.info(f"{variant} is left out until memory is free: {why}")
        else:
            self._governor.fail(now_ns)
            _log.info(f"{variant} does not load here and is left out: {why}")

    def _arrive(self, loop: Loop, move: Move, now_ns: int) -> None:
        before = self._governor.level
        self._governor.arrive(now_ns)
        loop.every = move.level.every
        _log.info(f"from {before} to {move.level}: {move.reason}")
        self._tell(move.reason)

    def _tell(self, reason: str) -> None:
        governor = self._governor
        level, levels = governor.level, len(governor.levels)
        self._publish(
            Running(variant=level.variant, every=level.every, rung=governor.index, rungs=levels, reason=reason)
        )

    def _publish(self, running: Running) -> None:
        self._running = msgspec.structs.replace(running, tuning=True if self._is_tuning() else msgspec.UNSET)
        self._announce(self._running)
