"""Steering: what decides which of a bundle's models a stream runs: the start, then tuning, then the governor.

Owns their order, and that no more than two models are loaded: whoever hands stages on keeps none.

Governing: the governor's rules, applied to a running loop.

Owns the moves: another variant is loaded beside the loop and takes its place between two steps, and each step is said
and published. At most two variants are loaded at once.

SelfTuning: what a run does about tuning: use what is remembered, or find it out while results go out.

Announcing: who writes results, and who reads the device's state, is told what runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Manifest
from edge_sdk.core.errors import StoppedError
from edge_sdk.core.logs import Say, counted
from edge_sdk.core.machine import Cores
from edge_sdk.inference.runtime import Shortfalls
from edge_sdk.inference.session import SessionCache
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.stages import Stages
from edge_sdk.inference.trial import prove_here
from edge_sdk.loop import Budget, Loop, Supervisor, Tick
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import Running
from edge_sdk.publishing.publisher import Stream
from edge_sdk.service.model_loader import LIMIT_S, Loaded, Loader, choose_start, refusal
from edge_sdk.service.monitors import CoreWatch
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Shared, TuningLock
from edge_sdk.sources.opening import IMAGES, kind_of
from edge_sdk.tuning.candidates import Limits, Tuned, thread_counts
from edge_sdk.tuning.degradation import Governor, Move, Peers, Place, check_room, ladder_of
from edge_sdk.tuning.live import LiveTuner
from edge_sdk.tuning.measurement import Candidate
from edge_sdk.tuning.tuning import Tuning

if TYPE_CHECKING:
    from edge_sdk.sources.slot import OpenedSource


_CLOSE_TIMEOUT_S = 0.5  # a run that is told to stop has two seconds for all that it gives back


class DegradationController:
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
            self._manifest = self._manifest.with_primary(variant)
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
        self._manifest = self._manifest.with_primary(variant)
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


_BESIDE_TRIAL_S = 60.0  # half for a trial's process to start, half to load here what it found sound


class SelfTuning:
    """Tuning of one run.

    Args:
        settings: of the run.
        bundle: verified; the variant that was asked for in front.
        session: how a model is run, but for what tuning finds.
        limits: what has to be kept.
        say: takes one line for people.
        is_stopped: asked while a model is tried.
        cache: of models that other streams of this process have loaded.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        bundle: Bundle,
        session: SessionSettings,
        limits: Limits,
        say: Callable[[str], None],
        is_stopped: Callable[[], bool],
        cache: SessionCache | None = None,
    ) -> None:
        self._cache = cache
        self._bundle, self._session, self._say, self._is_stopped = bundle, session, say, is_stopped
        self._is_live = self._is_over = False
        self._tried: set[str] = set()
        self._is_fixed = settings.variant is not None
        self._trial_s = settings.trial_s
        self._shortfalls = Shortfalls(say)
        self._tuning: Tuning | None = None
        # Images have no pace, and their results must not depend on what else ran here.
        is_paced = kind_of(settings.source) is not IMAGES and not settings.every_frame
        if settings.tune and is_paced:
            self._tuning = Tuning(
                bundle,
                limits,
                camera=settings.camera,
                variant=settings.variant,
                say=say,
                open_stages=self._open_candidate,
            )

    @property
    def tuned(self) -> Tuned | None:
        """What is known of this bundle here."""
        return self._tuning.tuned if self._tuning else None

    def open(self) -> Stages:
        """What shall run first, loaded and proved.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
        if self._tuning is not None:
            return self._tuning.open()
        return self._opened(self._bundle, self._session)

    def candidate_of(self, variant: str) -> Candidate:
        """One of the bundle's models with the settings that are best for it, as far as they are known."""
        if self._tuning is not None:
            return self._tuning.candidate_of(variant)
        return msgspec.structs.replace(Candidate.promised(self._bundle.manifest), variant=variant)

    def open_variant(self, variant: str, threads: int | None = None) -> Stages:
        """The stages of `candidate_of`.

        Args:
            variant: its name.
            threads: inside one operator, in place of the candidate's.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
        if threads is None and self._tuning is not None:
            return self._tuning.open_variant(variant)
        candidate = self.candidate_of(variant)
        if threads is not None:
            candidate = msgspec.structs.replace(candidate, intra_op_num_threads=threads)
        return self._open_candidate(self._bundle, candidate)

    def _open_candidate(self, bundle: Bundle, candidate: Candidate) -> Stages:
        return self._opened(bundle.with_primary(candidate.variant), candidate.settings(self._session))

    def _opened(self, bundle: Bundle, settings: SessionSettings) -> Stages:
        stages = Stages.open(self._proved(bundle), settings, cache=self._cache, most_golden=1)
        self._shortfalls.tell(stages.variant, stages.session.providers)
        return stages

    def _proved(self, bundle: Bundle) -> Bundle:
        """Another variant than the first is tried in a process of its own too, once; threads change nothing there."""
        variant = bundle.manifest.variants[0]
        if variant != self._bundle.manifest.variants[0] and variant.name not in self._tried:
            is_proved = prove_here(
                bundle,
                settings=self._session,
                seconds=self._trial_s,
                say=self._say,
                is_stopped=lambda: self._is_over or self._is_stopped(),
                beside=self._is_live,
            )
            if not is_proved:
                raise StoppedError
            self._tried.add(variant.name)
        return bundle

    def prove(self, variant: str) -> None:
        """Try one of the bundle's models in a process of its own, if it needs to be; ends within the trial's limits.

        Raises:
            EdgeError: it must not be loaded here.
            StoppedError: the run was told to stop first.
        """
        self._proved(self._bundle.with_primary(variant))

    def go_live(self) -> None:
        """Frames run from now on: what is tried gives way to them."""
        self._is_live = True

    def end(self) -> None:
        """The run is over: what is still tried is given up."""
        self._is_over = True

    def supervisor(
        self,
        home: Stages,
        source: OpenedSource,
        on_variant: Callable[[str], None] = lambda _variant: None,
    ) -> LiveTuner | None:
        """What tunes while it runs; None where that is known, or not wanted.

        Args:
            home: what `open` or `open_variant` gave.
            source: that the loop reads.
            on_variant: called with the variant of the next frames whenever the loop gets other stages.
        """
        tuning = self._tuning
        if tuning is None or self._is_fixed or not source.paced or tuning.holds_for(source.fps):
            return None
        why = _why_again(tuning.tuned)
        tuner = tuning.supervisor(
            home,
            source.fps,
            load_limit_s=self._trial_s + _BESIDE_TRIAL_S,
            on_tuned=self._tell,
            on_variant=on_variant,
        )
        self._say(
            f"tuning for {source.fps:.3g} frames a second{why}: what runs best is measured while results go out, for "
            f"about {tuner.plan.seconds:.0f} s (--no-tune leaves it)"
        )
        return tuner

    def _tell(self, tuned: Tuned, remark: str) -> None:
        self._say(f"tuned in {tuned.seconds:.0f} s: {tuned.line()}")
        if tuned.provisional:
            self._say(f"{tuned.doubt()}: the next start tunes again")
        if remark:
            self._say(f"warning: that is not remembered: {remark}")


def _why_again(before: Tuned | None) -> str:
    if before is None:
        return ""
    return f" again, because {before.doubt()}" if before.provisional else f", and not {before.fps:g}"


class StateReporter:
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


class ModelSelector:
    """Of one stream.

    Args:
        settings: of the run.
        bundle: verified and tried; the variant that was asked for in front.
        session: how a model is run, but for what tuning finds.
        budget_ms: capture to outbox.
        say: takes one line for people.
        is_stopped: asked between the steps of the start.
        shared: what the streams of this process have in common.

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
        say: Say,
        is_stopped: Callable[[], bool],
        shared: Shared | None = None,
    ) -> None:
        self._settings, self._budget_ms, self._say, self._is_stopped = settings, budget_ms, say, is_stopped
        self._is_fixed = settings.variant is not None
        self._shared = shared or Shared()
        limits = Limits(budget_ms, settings.cpu_share)
        self._tuning = SelfTuning(settings, bundle, session, limits, say, is_stopped, self._shared.models)
        stages = self._tuning.open()
        # What was tuned here was measured against this very budget: above it there is nothing to climb to.
        self._led = bundle.with_primary(stages.variant)
        self._stages = [stages]  # a list: who takes it out holds the only one, and can give it back
        self._why = ""
        self._settled: dict[str, int] = {}  # threads with which a variant was fastest at the start
        self._known = self._tuning.tuned
        self._watch: CoreWatch | None = None
        self._usable = 0  # cores, at the first frame

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
            self._tuning.open_variant,
            threads=thread_counts(Cores.read()) if has_choice else (),
            fixed=fixed,
            say=self._say,
            is_stopped=self._is_stopped,
        )
        self._stages.append(start.stages)
        is_remembered = self._known is not None and not start.too_slow
        self._why = "remembered from a measurement" if is_remembered else start.reason(self._budget_ms)
        variant, threads = start.stages.variant, start.stages.threads
        self._settled = {taken.variant: taken.threads for taken in start.too_slow} | {variant: threads}
        by_choice = self._tuning.candidate_of(variant).intra_op_num_threads
        if start.fits and threads != by_choice:
            self._say(f"{variant} runs on {counted(threads, 'thread')} here, not on {by_choice}: {self._why}")
        if not start.fits:
            complaint = refusal(self._led, start, self._budget_ms, fixed=fixed)
            if paced and not self._settings.best_effort:
                raise complaint
            self._say(f"warning: {complaint}")

    def _open_variant(self, variant: str) -> Stages:
        """For the governor."""
        return self._tuning.open_variant(variant, self._threads_of(variant))

    def _threads_of(self, variant: str) -> int:
        """As the start found them, until tuning knows better; no more than cores, where these became fewer since."""
        by_choice = self._tuning.candidate_of(variant).intra_op_num_threads
        threads = self._settled.get(variant, by_choice) if self._tuning.tuned is self._known else by_choice
        usable = self._watch.cores.usable if self._watch else self._usable
        return min(threads, usable) if usable < self._usable else threads

    def _make_ready(self, variant: str) -> None:
        """What comes before another model is loaded beside the one that runs."""
        check_room(self._led, variant)
        self._tuning.prove(variant)

    def take_stages(self) -> Stages:
        """Those of the first step; the caller has the only ones."""
        return self._stages.pop()

    def begin(
        self,
        stack: contextlib.ExitStack,
        loop: Loop,
        budget: Budget,
        encoder: ResultEncoder,
        stream: Stream,
        source: OpenedSource,
    ) -> list[Supervisor]:
        """What steers the loop from here on; images in turn are not steered.

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

        self._tuning.go_live()
        live = self._tuning.supervisor(loop.stages, source, encoder.answers_by)
        tuner = TuningLock(live, self._shared.tuning) if live is not None else None

        def is_tuning() -> bool:
            return tuner is not None and not tuner.done

        announcing = StateReporter(encoder.answers_by, stream.report_running, is_tuning)
        board, watch = stack.enter_context(self._shared.machine.watching())
        self._watch = watch
        self._usable = watch.cores.usable
        governing = DegradationController(
            self._led.manifest,
            self._open_variant,
            limit_ns=budget.limit_ns,
            fps=source.fps,
            fixed=self._is_fixed,
            say=self._say,
            announce=announcing.tell,
            throttled=lambda: board.state.throttled,
            is_held=is_tuning,
            cores=lambda: watch.cores,
            threads_of=self._threads_of,
            prepare=self._make_ready,
            place=self._shared.peers.join(),
        )
        stack.callback(governing.close)
        governing.begin(loop, self._why)
        if tuner is not None:
            stack.callback(tuner.close)
        stack.callback(self._tuning.end)  # comes first, so that neither of them waits for a trial
        if tuner is None:
            return [governing]
        return [tuner, governing, announcing]
