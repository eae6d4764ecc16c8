"""Decide which of a bundle's models a stream runs: the start, then tuning, then degradation.

`ModelSelector` is made while the model loads. `settle` measures whether this board keeps the budget and takes another
variant where it does not; `begin` returns the supervisors that may give the running loop other stages: a tuner, which
measures models in turn, and a `LevelChanger`, which makes the moves that the stream's governor decides on.

No more than two models are loaded at once: whoever hands stages on keeps none.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Manifest
from edge_sdk.core.errors import StoppedError
from edge_sdk.core.logs import counted
from edge_sdk.core.machine import Cores
from edge_sdk.inference.runtime import Shortfalls
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.stages import Stages
from edge_sdk.inference.trial import prove_here
from edge_sdk.loop import Budget, Loop, LoopObserver, Tick
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import Running
from edge_sdk.publishing.publisher import Stream
from edge_sdk.service.model_loader import LIMIT_S, Loaded, Loader, budget_refusal, choose_start
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Shared, TuningLock
from edge_sdk.sources.opening import IMAGES, kind_of
from edge_sdk.tuning.candidates import Limits, Tuned, thread_counts
from edge_sdk.tuning.degradation import DegradationController, Governor, Move, check_free_memory, levels_of
from edge_sdk.tuning.live import LiveTuner
from edge_sdk.tuning.measurement import Candidate
from edge_sdk.tuning.tuning import Tuning

if TYPE_CHECKING:
    from edge_sdk.sources.slot import OpenedSource

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 0.5  # a run that is told to stop has two seconds for all that it gives back
_BESIDE_TRIAL_S = 60.0  # half for a trial's process to start, half to load here what it found sound


class Models(Protocol):
    """Loads another variant beside the one that runs; both are called in another thread."""

    def prepare(self, variant: str) -> None:
        """Do what comes before the load and ends by itself; its time does not count."""
        ...

    def open(self, variant: str) -> Stages:
        """Load and prove a variant."""
        ...


class LevelChanger:
    """A supervisor that keeps a loop inside its budget as far as the bundle allows.

    Another variant is loaded beside the loop and takes its place between two steps; each move is said and announced.

    Args:
        manifest: of the bundle, the variant that shall run by choice in front.
        models: load other variants.
        limit_ns: the latency budget, nanoseconds.
        fps: frames a second of the source.
        fixed: the variant is never left.
        announce: takes what runs, at the start and after every change; must not block.
        throttled: returns why the board slows itself down at present; empty when it does not.
        is_tuning: tells whether another supervisor measures models in turn: nothing is judged then.
        controller: of the streams of this process.
        load_limit_s: seconds after which a load is given up.
        clock_ns: monotonic nanoseconds.
    """

    def __init__(
        self,
        manifest: Manifest,
        models: Models,
        *,
        limit_ns: int,
        fps: float,
        fixed: bool,
        announce: Callable[[Running], None],
        throttled: Callable[[], str],
        is_tuning: Callable[[], bool],
        controller: DegradationController,
        load_limit_s: float = LIMIT_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._manifest, self._fixed = manifest, fixed
        self._limit_ns, self._period_ns = limit_ns, int(1e9 / fps)
        self._announce, self._throttled, self._is_tuning = announce, throttled, is_tuning
        self._controller, self._clock_ns = controller, clock_ns
        self._loader = Loader(models.open, models.prepare, load_limit_s)
        self._move: Move | None = None
        self._is_loading = False
        self._short: set[str] = set()  # variants of which it was said that memory is short
        self._variant = manifest.variants[0].name
        self._running: Running | None = None
        self._governor = self._new_governor()

    def begin(self, loop: Loop, reason: str) -> None:
        """Announce where the stream starts: at the loop's variant, and where that is not the first, it may step up.

        Args:
            loop: with the stages of its first step.
            reason: why it is these, for people.
        """
        if not isinstance(loop.stages, Stages):
            raise TypeError("expected the stages of a variant")
        variant = loop.stages.variant
        names = [level.variant for level in self._governor.levels]
        if variant not in names:  # another supervisor's choice
            self._manifest, names = self._manifest.with_primary(variant), [variant]
        self._replace_governor(names.index(variant))
        self._variant = variant
        self._tell(reason)

    def after(self, loop: Loop, tick: Tick) -> None:
        """Judge one step, and move when it is time; see `Supervisor`."""
        now_ns = self._clock_ns()
        if self._is_loading:
            self._take(loop, now_ns)
        if isinstance(loop.stages, Stages) and loop.stages.variant != self._variant:
            self._follow(loop, loop.stages.variant)
        if self._is_tuning():
            self._governor.rest(now_ns)
            return
        if self._running is not None and self._running.tuning is True:
            self._publish(self._running)  # tuning is over, whatever came of it
        # What was older than the whole budget when it came, as a stream's backlog is, no level could have saved.
        if loop.last_wait_ns - loop.last_delay_ns <= self._limit_ns:
            self._note(loop, tick)
        if self._governor.is_due(now_ns):
            move = self._governor.decide(now_ns, self._throttled())
            if move is not None:
                self._begin_move(loop, move, now_ns)

    def close(self) -> None:
        """Give the thread back, and leave the streams of the process."""
        self._governor.close()
        self._loader.close(_CLOSE_TIMEOUT_S)

    def _note(self, loop: Loop, tick: Tick) -> None:
        if tick is Tick.ON_TIME or tick is Tick.LATE:
            # Nor against the time in which FFmpeg holds a frame back.
            age_ns = loop.last_age_ns - loop.last_delay_ns
            self._governor.note_result(is_late=age_ns > self._limit_ns, age_ns=age_ns, run_ns=loop.last_run_ns)
        elif tick is Tick.STALE:
            self._governor.note_stale()

    def _new_governor(self, start: int = 0) -> Governor:
        levels = levels_of(self._manifest, fixed=self._fixed)
        return Governor(levels, self._limit_ns, self._period_ns, self._clock_ns(), start, self._controller)

    def _replace_governor(self, start: int = 0) -> None:
        self._governor.close()
        self._governor = self._new_governor(start)

    def _follow(self, loop: Loop, variant: str) -> None:
        """Take what another supervisor chose as the top level from now on."""
        self._move = None  # what is being loaded for it is given up when it comes
        self._manifest = self._manifest.with_primary(variant)
        self._replace_governor()
        self._variant, loop.every = variant, 1.0
        self._tell("chosen by measurement")

    def _begin_move(self, loop: Loop, move: Move, now_ns: int) -> None:
        self._move = move
        if move.level.variant == self._variant:
            self._arrive(loop, move, now_ns)
        elif not self._is_loading:
            self._is_loading = True
            self._loader.ask(move.level.variant)

    def _take(self, loop: Loop, now_ns: int) -> None:
        loaded = self._loader.take()
        if loaded is None:
            return
        self._is_loading = False
        move = self._move
        if move is None or move.level.variant != loaded.variant:
            self._loader.give_up([loaded.stages] if loaded.stages else [])
            if move is not None:
                self._begin_move(loop, move, now_ns)
        elif loaded.stages is None:
            self._move = None
            self._pass_over(loaded, now_ns)
        else:
            self._short.discard(loaded.variant)
            self._variant = loaded.variant
            before, loop.stages = loop.stages, loaded.stages
            leaving = [before] if isinstance(before, Stages) else []
            del before
            self._loader.give_up(leaving)
            self._arrive(loop, move, now_ns)

    def _pass_over(self, loaded: Loaded, now_ns: int) -> None:
        if not loaded.is_for_now:
            self._governor.fail(now_ns)
            _log.info(f"{loaded.variant} does not load here and is left out: {loaded.problem}")
            return
        self._governor.postpone(now_ns)
        if loaded.variant not in self._short:
            self._short.add(loaded.variant)
            _log.info(f"{loaded.variant} is left out until memory is free: {loaded.problem}")

    def _arrive(self, loop: Loop, move: Move, now_ns: int) -> None:
        self._move = None
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
        tuning = True if self._is_tuning() else msgspec.UNSET
        self._running = msgspec.structs.replace(running, tuning=tuning)
        self._announce(self._running)


class ModelSelector:
    """Opens the models of one stream, and decides which of them runs.

    Args:
        settings: of the stream.
        bundle: verified and tried; the variant that was asked for in front.
        session: how a model is run, but for what tuning finds.
        budget_ms: capture to outbox.
        is_stopped: asked between the steps of the start, and while a model is tried.
        shared: what the streams of this process share.

    Raises:
        EdgeError: when the model cannot be loaded, read or trusted here.
        StoppedError: the run was told to stop first.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        bundle: Bundle,
        session: SessionSettings,
        budget_ms: float,
        is_stopped: Callable[[], bool],
        shared: Shared | None = None,
    ) -> None:
        self._settings, self._bundle, self._session, self._budget_ms = settings, bundle, session, budget_ms
        self._is_stopped = is_stopped
        self._is_fixed = settings.variant is not None
        self._shared = shared or Shared()
        self._tried: set[str] = set()
        self._shortfalls = Shortfalls()
        self._is_live = self._is_over = False
        # Images have no pace, and their results must not depend on what else ran here.
        is_paced = kind_of(settings.source) is not IMAGES and not settings.every_frame
        self._tuning: Tuning | None = None
        if settings.tune and is_paced:
            self._tuning = Tuning(
                bundle,
                Limits(budget_ms, settings.cpu_share),
                camera=settings.camera,
                variant=settings.variant,
                open_stages=self._open_candidate,
            )
        stages = self._tuning.open() if self._tuning is not None else self._load(bundle, session)
        # What was tuned here was measured against this very budget: above it there is nothing to climb to.
        self._led = bundle.with_primary(stages.variant)
        self._stages = [stages]  # a list: who takes it out holds the only one, and can give it back
        self._reason = ""
        self._settled: dict[str, int] = {}  # threads with which a variant was fastest at the start
        self._known = self._tuned

    def settle(self, *, paced: bool) -> None:
        """Choose the model that the budget allows.

        Args:
            paced: whether frames come at their own pace; images in turn are never dropped, however long each takes.

        Raises:
            LatencyGateError: there is none, and the frames of a paced source would all be late.
            StoppedError: the run was told to stop first.
        """
        fixed = self._is_fixed or not paced
        has_choice = self._settings.tune and paced
        start = choose_start(
            self._led,
            self._stages,
            self._budget_ms,
            self.open_with,
            threads=thread_counts(Cores.read()) if has_choice else (),
            fixed=fixed,
            is_stopped=self._is_stopped,
        )
        self._stages.append(start.stages)
        is_remembered = self._known is not None and not start.too_slow
        self._reason = "remembered from a measurement" if is_remembered else start.reason(self._budget_ms)
        variant, threads = start.stages.variant, start.stages.threads
        self._settled = {taken.variant: taken.threads for taken in start.too_slow} | {variant: threads}
        by_choice = self._candidate_of(variant).intra_op_num_threads
        if start.fits and threads != by_choice:
            _log.info(f"{variant} runs on {counted(threads, 'thread')} here, not on {by_choice}: {self._reason}")
        if not start.fits:
            complaint = budget_refusal(self._led, start, self._budget_ms, fixed=fixed)
            if paced and not self._settings.best_effort:
                raise complaint
            _log.warning(str(complaint))

    def take_stages(self) -> Stages:
        """Return the stages of the first step; the caller has the only ones."""
        return self._stages.pop()

    def begin(
        self,
        stack: contextlib.ExitStack,
        loop: Loop,
        budget: Budget,
        encoder: ResultEncoder,
        stream: Stream,
        source: OpenedSource,
    ) -> list[LoopObserver]:
        """Return the supervisors that choose the loop's models from here on; none where images come in turn.

        Args:
            stack: gives everything back at the end.
            loop: with the stages of `take_stages`.
            budget: the loop's.
            encoder: is told which variant the next results are of.
            stream: is told what runs.
            source: that the loop reads.
        """
        if not source.paced or not isinstance(loop.stages, Stages):
            return []

        def announce(running: Running) -> None:
            encoder.answers_by(running.variant)
            stream.report_running(running)

        self._is_live = True
        live = self._tuner(loop.stages, source, encoder.answers_by)
        tuner = TuningLock(live, self._shared.tuning) if live is not None else None
        changer = LevelChanger(
            self._led.manifest,
            self,
            limit_ns=budget.limit_ns,
            fps=source.fps,
            fixed=self._is_fixed,
            announce=announce,
            throttled=self._shared.throttled,
            is_tuning=lambda: tuner is not None and not tuner.done,
            controller=self._shared.degradation,
        )
        stack.callback(changer.close)
        changer.begin(loop, self._reason)
        if tuner is not None:
            stack.callback(tuner.close)
        stack.callback(self._end)  # comes first, so that neither of them waits for a trial
        return [changer] if tuner is None else [tuner, changer]

    def prepare(self, variant: str) -> None:
        """Look for memory for another variant beside the one that runs, and try it in a process of its own.

        Raises:
            EdgeError: it must not be loaded here, or memory is short.
            StoppedError: the run was told to stop first.
        """
        check_free_memory(self._led, variant)
        self._prove(self._bundle.with_primary(variant))

    def open(self, variant: str) -> Stages:
        """Load another variant, on the threads that the start found best, until tuning knows better.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
        return self.open_with(variant, self._settled.get(variant) if self._tuned is self._known else None)

    def open_with(self, variant: str, threads: int | None) -> Stages:
        """Load a variant with the settings that are best for it, as far as they are known.

        Args:
            variant: its name.
            threads: inside one operator, in place of those settings' own; None: as they have it.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
        candidate = self._candidate_of(variant)
        if threads is not None:
            candidate = msgspec.structs.replace(candidate, intra_op_num_threads=threads)
        return self._open_candidate(self._bundle, candidate)

    @property
    def _tuned(self) -> Tuned | None:
        return self._tuning.tuned if self._tuning else None

    def _candidate_of(self, variant: str) -> Candidate:
        if self._tuning is not None:
            return self._tuning.candidate_of(variant)
        return msgspec.structs.replace(Candidate.promised(self._bundle.manifest), variant=variant)

    def _open_candidate(self, bundle: Bundle, candidate: Candidate) -> Stages:
        return self._load(bundle.with_primary(candidate.variant), candidate.settings(self._session))

    def _load(self, bundle: Bundle, settings: SessionSettings) -> Stages:
        self._prove(bundle)
        stages = Stages.open(bundle, settings, cache=self._shared.models, most_golden=1)
        self._shortfalls.tell(stages.variant, stages.session.providers)
        return stages

    def _prove(self, bundle: Bundle) -> None:
        """Try another variant than the first in a process of its own, once; threads change nothing there."""
        variant = bundle.manifest.variants[0]
        if variant == self._bundle.manifest.variants[0] or variant.name in self._tried:
            return
        is_proved = prove_here(
            bundle,
            settings=self._session,
            seconds=self._settings.trial_s,
            is_stopped=lambda: self._is_over or self._is_stopped(),
            beside=self._is_live,
        )
        if not is_proved:
            raise StoppedError
        self._tried.add(variant.name)

    def _end(self) -> None:
        self._is_over = True

    def _tuner(self, home: Stages, source: OpenedSource, on_variant: Callable[[str], None]) -> LiveTuner | None:
        """Make what tunes while the loop runs; None where the best settings are known, or not wanted."""
        tuning = self._tuning
        if tuning is None or self._is_fixed or not source.paced or tuning.holds_for(source.fps):
            return None
        reason = _reason_again(tuning.tuned)
        tuner = tuning.supervisor(
            home,
            source.fps,
            load_limit_s=self._settings.trial_s + _BESIDE_TRIAL_S,
            on_tuned=_tell_tuned,
            on_variant=on_variant,
        )
        _log.info(
            f"tuning for {source.fps:.3g} frames a second{reason}: what runs best is measured while results go out, "
            f"for about {tuner.plan.seconds:.0f} s (--no-tune leaves it)"
        )
        return tuner


def _tell_tuned(tuned: Tuned, remark: str) -> None:
    _log.info(f"tuned in {tuned.seconds:.0f} s: {tuned.line()}")
    if tuned.provisional:
        _log.info(f"{tuned.doubt()}: the next start tunes again")
    if remark:
        _log.warning(f"that is not remembered: {remark}")


def _reason_again(before: Tuned | None) -> str:
    if before is None:
        return ""
    return f" again, because {before.doubt()}" if before.provisional else f", and not {before.fps:g}"
