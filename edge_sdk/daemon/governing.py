"""Governing: the governor's rules, applied to a running loop.

Owns the moves: another variant is loaded beside the loop and takes its place between two steps, and each step is said
and published. At most two variants are loaded at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edge_sdk.cores import Cores
from edge_sdk.daemon.loader import LIMIT_S, Loaded, Loader
from edge_sdk.daemon.say import counted
from edge_sdk.governor import Governor, Move
from edge_sdk.ladder import ladder_of
from edge_sdk.loop import Loop, Tick
from edge_sdk.manifest import Manifest
from edge_sdk.peers import Peers, Place
from edge_sdk.publishing import Running
from edge_sdk.stages import Stages

_CLOSE_TIMEOUT_S = 0.5  # a run that is told to stop has two seconds for all that it gives back


class Governing:
    """A supervisor that keeps a loop inside its budget as far as the bundle allows.

    Args:
        manifest: of the bundle, the variant that shall run by choice in front.
        open_stages: the name of a variant -> its stages, loaded and proved; called in another thread.
        limit_ns: the latency budget, nanoseconds.
        fps: frames a second of the source.
        fixed: the variant is never left.
        say: takes one line for people.
        announce: takes what runs, at the start and after every step; must not block.
        throttled: why the board slows itself down at present; empty when it does not.
        is_held: whether another supervisor tries models: nothing is judged then.
        cores: those that may be used at present; None: unknown.
        threads_of: the name of a variant -> threads that `open_stages` would give it with these cores.
        prepare: what comes before `open_stages` in that thread and ends by itself; its time does not count.
        load_limit_s: seconds after which `open_stages` is given up.
        place: among the streams of this process; None: it is alone.
        clock_ns: monotonic nanoseconds.
    """

    def __init__(
        self,
        manifest: Manifest,
        open_stages: Callable[[str], Stages],
        *,
        limit_ns: int,
        fps: float,
        fixed: bool,
        say: Callable[[str], None],
        announce: Callable[[Running], None],
        throttled: Callable[[], str],
        is_held: Callable[[], bool] = lambda: False,
        cores: Callable[[], Cores | None] = lambda: None,
        threads_of: Callable[[str], int] = lambda _variant: 1,
        prepare: Callable[[str], None] = lambda _variant: None,
        load_limit_s: float = LIMIT_S,
        place: Place | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._manifest, self._fixed = manifest, fixed
        self._limit_ns, self._period_ns = limit_ns, int(1e9 / fps)
        self._say, self._announce, self._throttled = say, announce, throttled
        self._is_held = is_held
        self._place = place or Peers().join()
        self._cores, self._threads_of = cores, threads_of
        self._seen_cores = cores()
        self._refit: int | None = None  # threads that what runs is to have
        self._clock_ns = clock_ns
        self._loader = Loader(open_stages, prepare, load_limit_s)
        self._move: Move | None = None
        self._is_loading = False
        self._short: set[str] = set()  # variants of which it was said that memory is short
        self._variant = manifest.variants[0].name
        self._governor = self._fresh()

    def begin(self, loop: Loop, reason: str) -> None:
        """Say where the stream starts: at the loop's variant, and where that is not the first, it may step up.

        Args:
            loop: with the stages of its first step.
            reason: why it is these, for people.
        """
        if not isinstance(loop.stages, Stages):
            raise TypeError("expected the stages of a variant")
        variant = loop.stages.variant
        names = [rung.variant for rung in self._governor.ladder]
        if variant in names:
            self._governor = self._fresh(names.index(variant))
        else:  # another supervisor's choice
            self._manifest = self._manifest.led_by(variant)
            self._governor = self._fresh()
        self._variant = variant
        self._tell(reason)

    def after(self, loop: Loop, tick: Tick) -> None:
        """Judge one step, and move when it is time; see `Supervisor`."""
        now_ns = self._clock_ns()
        if self._is_loading:
            self._take(loop, now_ns)
        if isinstance(loop.stages, Stages) and loop.stages.variant != self._variant:
            self._follow(loop, loop.stages.variant)
        if self._is_held():
            self._governor.rest(now_ns)
            return
        # What was older than the whole budget when it came, as a stream's backlog is, no rung could have saved.
        if loop.last_wait_ns - loop.last_delay_ns <= self._limit_ns:
            self._note(loop, tick)
        if self._governor.is_due(now_ns):
            self._look_at_cores(loop)
            move = self._governor.decide(now_ns, self._throttled())
            if move is not None:
                self._begin_move(loop, move, now_ns)

    def _note(self, loop: Loop, tick: Tick) -> None:
        if tick is Tick.ON_TIME or tick is Tick.LATE:
            # Nor against the time in which FFmpeg holds a frame back.
            age_ns = loop.last_age_ns - loop.last_delay_ns
            self._governor.note_result(is_late=age_ns > self._limit_ns, age_ns=age_ns, run_ns=loop.last_run_ns)
        elif tick is Tick.STALE:
            self._governor.note_stale()

    def close(self) -> None:
        """Give the thread back, and the place."""
        self._place.leave()
        self._loader.close(_CLOSE_TIMEOUT_S)

    def _fresh(self, start: int = 0) -> Governor:
        rungs = ladder_of(self._manifest, fixed=self._fixed)
        return Governor(rungs, self._limit_ns, self._period_ns, self._clock_ns(), start, self._place)

    def _follow(self, loop: Loop, variant: str) -> None:
        """Another supervisor chose: that is the top of the ladder from now on."""
        self._move = None  # what is being loaded for it is given up when it comes
        self._manifest = self._manifest.led_by(variant)
        self._governor, self._variant, loop.every = self._fresh(), variant, 1.0
        self._tell("chosen by measurement")

    def _begin_move(self, loop: Loop, move: Move, now_ns: int) -> None:
        self._move = move
        if move.rung.variant == self._variant:
            self._arrive(loop, move, now_ns)
        elif not self._is_loading:
            self._is_loading = True
            self._loader.ask(move.rung.variant)

    def _take(self, loop: Loop, now_ns: int) -> None:
        loaded = self._loader.take()
        if loaded is None:
            return
        self._is_loading = False
        move, refit, self._refit = self._move, self._refit, None
        if refit is not None and loaded.variant == self._variant:
            # Whatever was decided meanwhile: that move may fail, and nobody asks for these threads once more.
            self._take_refitted(loop, loaded, refit, now_ns)
            if move is not None:
                self._begin_move(loop, move, now_ns)
        elif move is None or move.rung.variant != loaded.variant:
            self._loader.give_up([loaded.stages] if loaded.stages else [])
            if move is not None:
                self._begin_move(loop, move, now_ns)
        elif loaded.stages is None:
            self._move = None
            self._pass_over(loaded, now_ns)
        else:
            self._short.discard(loaded.variant)
            self._variant = loaded.variant
            self._swap(loop, loaded.stages)
            self._arrive(loop, move, now_ns)

    def _swap(self, loop: Loop, stages: Stages) -> None:
        before, loop.stages = loop.stages, stages
        leaving = [before] if isinstance(before, Stages) else []
        del before
        self._loader.give_up(leaving)

    def _look_at_cores(self, loop: Loop) -> None:
        """Where they are others now, what runs is loaded once more with as many threads as fit."""
        cores, before = self._cores(), self._seen_cores
        if cores == before or cores is None or self._is_loading or not isinstance(loop.stages, Stages):
            return
        self._seen_cores = cores
        line = f"cores that may be used: {cores.allowed} now" + (f", {before.allowed} before" if before else "")
        threads = self._threads_of(self._variant)
        if threads == loop.stages.threads:
            self._say(line)
            return
        self._say(f"{line}; {self._variant} is loaded again for {counted(threads, 'thread')}")
        self._refit, self._is_loading = threads, True
        self._loader.ask(self._variant)

    def _take_refitted(self, loop: Loop, loaded: Loaded, threads: int, now_ns: int) -> None:
        if loaded.stages is None:
            self._say(f"{loaded.variant} keeps the threads that it has: {loaded.problem}")
            return
        self._swap(loop, loaded.stages)
        self._governor.rest(now_ns)
        self._say(f"{loaded.variant} runs on {counted(threads, 'thread')} now")

    def _pass_over(self, loaded: Loaded, now_ns: int) -> None:
        if not loaded.is_for_now:
            self._governor.fail(now_ns)
            self._say(f"{loaded.variant} does not load here and is left out: {loaded.problem}")
            return
        self._governor.postpone(now_ns)
        if loaded.variant not in self._short:
            self._short.add(loaded.variant)
            self._say(f"{loaded.variant} is left out until memory is free: {loaded.problem}")

    def _arrive(self, loop: Loop, move: Move, now_ns: int) -> None:
        self._move = None
        before = self._governor.rung
        self._governor.arrive(now_ns)
        loop.every = move.rung.every
        self._say(f"from {before} to {move.rung}: {move.reason}")
        self._tell(move.reason)

    def _tell(self, reason: str) -> None:
        governor = self._governor
        rung, rungs = governor.rung, len(governor.ladder)
        running = Running(variant=rung.variant, every=rung.every, rung=governor.index, rungs=rungs, reason=reason)
        self._announce(running)
