"""Decide which of a bundle's models a pipeline runs: the start, then tuning, then degradation.

`begin_loading` verifies and tries the bundle and makes a `ModelSelector` while the model loads. `settle` measures
whether this board keeps the budget and takes another variant where it does not (`choose_start`); `begin` returns the
observers that may give the running loop other stages: a tuner, which measures models in turn, and a `LevelChanger`,
which carries out the changes of level that the pipeline's governor decides on. At most two models are loaded at once.
Importing this module loads neither OpenCV nor paho, which load with the model.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Manifest
from edge_sdk.core.errors import EdgeError, LatencyGateError, NoRoomError, StoppedError, failure_line, is_out_of_memory
from edge_sdk.core.frame import Frame
from edge_sdk.core.logs import counted
from edge_sdk.core.machine import Cores, CpuTime
from edge_sdk.core.threads import BackgroundTask, Stop
from edge_sdk.inference.cascade import going_on
from edge_sdk.inference.runtime import ProviderWarnings, SessionSettings, check_device
from edge_sdk.inference.session import Stages
from edge_sdk.inference.trial import prove_here, refuse_older, remember_version
from edge_sdk.loop import Loop, LoopObserver, Tick
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import Running, check_name
from edge_sdk.publishing.publisher import Stream
from edge_sdk.service.process import Shared
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.tuning.candidates import Candidate, Limits, Tuned, thread_counts
from edge_sdk.tuning.degradation import DegradationController, Governor, Move, check_free_memory, levels_of
from edge_sdk.tuning.live import LiveTuner
from edge_sdk.tuning.tuning import Tuning

if TYPE_CHECKING:
    from edge_sdk.sources.slot import OpenedSource

_log = logging.getLogger(__name__)
_UNCHECKED = "no trusted key is given, so that no bundle's signature is checked (--trust KEY.pub; keys in [trust])"
_FIRST_LOAD_S = 240.0  # other pipelines wait meanwhile; a service manager allows five minutes for all of them
_LOAD_S = 60.0  # added to `trial_s` for a model that loads while another one runs
_CLOSE_TIMEOUT_S = 0.5  # a run must end within two seconds after a stop, including all other steps


class ModelSelector:
    """Opens the models of one pipeline, and decides which of them runs.

    Every method that loads a model raises EdgeError if the model cannot be loaded, read or trusted here, and
    StoppedError if the run is stopped first.
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
        self._is_stopped, self._shared = is_stopped, shared or Shared()
        self._is_fixed = settings.variant is not None
        self._shortfalls = ProviderWarnings()
        self._is_live = self._is_over = False
        self._tuning: Tuning | None = None
        if settings.tune and settings.paced:  # results of files must not depend on earlier runs on this machine
            self._tuning = Tuning(
                bundle,
                Limits(budget_ms, settings.cpu_share),
                camera=settings.camera,
                variant=settings.variant,
                open_stages=self._open_candidate,
            )
        stages = self._tuning.open() if self._tuning is not None else self._load(bundle, session)
        # Tuning has measured its choice against this budget: no better variant keeps it.
        self._led = bundle.with_primary(stages.variant)
        self._stages = [stages]  # a list, so that `take_stages` can hand over the only reference
        self.second: Stages | None = None  # stages of the second model
        self._reason = ""
        self._settled: dict[str, int] = {}  # fastest number of threads at the start, by variant; used until tuning

    def settle(self) -> None:
        """Choose the best variant that keeps the latency budget.

        Raises LatencyGateError if none does, because all frames of a paced source would be late.
        """
        paced = self._settings.paced
        fixed = self._is_fixed or not paced
        start = choose_start(
            self._led,
            self._stages,
            self._budget_ms,
            self.open_with,
            threads=thread_counts(Cores.read()) if self._settings.tune and paced else (),
            fixed=fixed,
            is_stopped=self._is_stopped,
        )
        self._stages.append(start.stages)
        is_remembered = self._tuning is not None and self._tuning.tuned is not None and not start.too_slow
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

    def open_second(self, bundle: Bundle) -> None:
        """Load the second model with as many threads as the first has, because the two models run in turn."""
        settings = _session_settings(self._settings, bundle)
        settings = msgspec.structs.replace(settings, intra_op_num_threads=self._stages[0].threads)
        self.second = Stages.open(bundle, settings, cache=self._shared.models, most_golden=1)
        self._shortfalls.tell(bundle.manifest.name, self.second.session.providers)

    def take_stages(self) -> Stages:
        """Return the stages with which the loop starts, and keep no reference to them."""
        return self._stages.pop()

    def begin(
        self, stack: contextlib.ExitStack, loop: Loop, encoder: ResultEncoder, stream: Stream, source: OpenedSource
    ) -> list[LoopObserver]:
        """Return the observers that replace the loop's models while it runs; none for a source without a pace."""
        if not source.paced or not isinstance(loop.stages, Stages):
            return []

        def announce(running: Running) -> None:
            encoder.answers_by(running.variant)
            stream.report(running=running)

        self._is_live = True
        live = self._tuner(loop.stages, source, encoder.answers_by)
        tuner = TuningLock(live, self._shared.tuning) if live is not None else None
        changer = LevelChanger(
            self._led.manifest,
            self.open_beside,
            limit_ns=int(self._budget_ms * 1e6),
            fps=source.fps,
            fixed=self._is_fixed,
            announce=announce,
            throttled=self._shared.throttled,
            is_tuning=lambda: tuner is not None and not tuner.done,
            controller=self._shared.degradation,
            load_s=self._settings.trial_s + _LOAD_S,
        )
        stack.callback(changer.close)
        changer.begin(loop.stages.variant, self._reason)
        if tuner is not None:
            stack.callback(tuner.close)
        stack.callback(setattr, self, "_is_over", True)  # runs first on exit, so that no observer waits for a trial
        return [changer] if tuner is None else [tuner, changer]

    def open_beside(self, variant: str) -> Stages:
        """Load another variant, with its best known number of threads, while one runs; raise if memory is short."""
        check_free_memory(self._led, variant)
        return self.open_with(variant, self._settled.get(variant))

    def open_with(self, variant: str, threads: int | None) -> Stages:
        """Load a variant with its best known settings, but with `threads` threads."""
        candidate = self._candidate_of(variant)
        if threads is not None:
            candidate = msgspec.structs.replace(candidate, intra_op_num_threads=threads)
        return self._open_candidate(self._bundle, candidate)

    def _candidate_of(self, variant: str) -> Candidate:
        if self._tuning is not None:
            return self._tuning.candidate_of(variant)
        return msgspec.structs.replace(Candidate.promised(self._bundle.manifest), variant=variant)

    def _open_candidate(self, bundle: Bundle, candidate: Candidate) -> Stages:
        return self._load(bundle.with_primary(candidate.variant), candidate.settings(self._session))

    def _load(self, bundle: Bundle, settings: SessionSettings) -> Stages:
        # The trial of the bundle covered the first variant; others are tried in a separate process, once for any number
        # of threads.
        if bundle.manifest.variants[0] != self._bundle.manifest.variants[0] and not prove_here(
            bundle,
            settings=self._session,
            seconds=self._settings.trial_s,
            is_stopped=lambda: self._is_over or self._is_stopped(),
            beside=self._is_live,
        ):
            raise StoppedError
        stages = Stages.open(bundle, settings, cache=self._shared.models, most_golden=1)
        self._shortfalls.tell(stages.variant, stages.session.providers)
        return stages

    def _tuner(self, home: Stages, source: OpenedSource, on_variant: Callable[[str], None]) -> LiveTuner | None:
        """Return the tuner for the running loop; None if the best settings are known or tuning is off."""
        tuning = self._tuning
        if tuning is None or self._is_fixed or tuning.holds_for(source.fps):
            return None
        before, why = tuning.tuned, ""
        if before is not None:
            why = f" again, because {before.doubt()}" if before.provisional else f", and not {before.fps:g}"
        load_s = self._settings.trial_s + _LOAD_S
        tuner = tuning.make_tuner(home, source.fps, on_tuned=self._take_tuned, on_variant=on_variant, load_s=load_s)
        _log.info(
            f"tuning for {source.fps:.3g} frames a second{why}: what runs best is measured while results go out, "
            f"for about {tuner.plan.seconds:.0f} s (--no-tune leaves it)"
        )
        return tuner

    def _take_tuned(self, tuned: Tuned, remark: str) -> None:
        self._settled = {}
        _log.info(f"tuned in {tuned.seconds:.0f} s: {tuned.line()}")
        if tuned.provisional:
            _log.info(f"{tuned.doubt()}: the next start tunes again")
        if remark:
            _log.warning(f"that is not remembered: {remark}")


class Loading(NamedTuple):
    """A pipeline's verified and tried bundles, and the task that loads its models; the owner closes the task."""

    bundle: Bundle
    then: Bundle | None  # the second model's bundle
    budget_ms: float
    selector: BackgroundTask[ModelSelector]

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of the bundles."""
        return (self.bundle.digest,) if self.then is None else (self.bundle.digest, self.then.digest)


def begin_loading(
    settings: PipelineSettings, verified: BackgroundTask[list[Bundle]], stop: Stop, shared: Shared
) -> Loading | None:
    """Check that a run can begin, try bundles that are new on this machine, and load the models in a thread.

    Returns None if `stop` is set first. Raises EdgeError if a bundle or the camera's name cannot be used;
    `Loading.selector` raises errors of the models.
    """
    check_name("camera", settings.camera)  # fail before the first frame
    if not verified.is_ready(stop.is_asked):
        return None
    bundle, *seconds = verified.take()
    if not settings.trusted_keys and not settings.is_unproved:
        shared.log_once(logging.WARNING, _UNCHECKED)
    if settings.variant is not None:
        bundle = bundle.with_primary(settings.variant)
    settings.class_ids(bundle)  # raises for labels that the bundle lacks
    if settings.then is not None:
        going_on(bundle, settings.then)  # raises for labels and tasks that give the second model no objects
    if not all(_is_proved(each, settings, stop, shared) for each in (bundle, *seconds)):
        return None
    budget_ms = settings.latency_ms or bundle.manifest.latency_budget_ms
    then = seconds[0] if seconds else None

    def load() -> ModelSelector:
        selector = ModelSelector(
            settings, bundle, _session_settings(settings, bundle), budget_ms, stop.is_asked, shared
        )
        if then is not None:
            selector.open_second(then)
        return selector

    return Loading(bundle, then, budget_ms, BackgroundTask(load, "edge-model", limit_s=_FIRST_LOAD_S))


def _is_proved(bundle: Bundle, settings: PipelineSettings, stop: Stop, shared: Shared) -> bool:
    """Raise for a bundle that must not run here, and try a new one; return False if `stop` is set first."""
    if allowed := refuse_older(bundle, allow_older=settings.allow_older):
        shared.log_once(logging.WARNING, allowed)
    check_device(bundle)
    session = _session_settings(settings, bundle)
    is_beside = shared.progress.is_watching  # the trial yields to running pipelines
    if not prove_here(bundle, settings=session, seconds=settings.trial_s, is_stopped=stop.is_asked, beside=is_beside):
        return False
    if problem := remember_version(bundle):
        shared.log_once(logging.WARNING, problem)
    return True


def _session_settings(given: PipelineSettings, bundle: Bundle) -> SessionSettings:
    """Return the bundle's session settings; the time limit of a run is derived from the budget unless it is set."""
    promise = bundle.manifest
    if given.latency_ms is not None:
        promise = msgspec.structs.replace(promise, latency_budget_ms=given.latency_ms)
    settings = SessionSettings.of(promise)
    if given.run_limit_s is None:
        return settings
    return msgspec.structs.replace(settings, limit_s=given.run_limit_s)


# Noise at the start must not refuse a board that is fast enough: the fastest of several runs of a warm model counts,
# and the measured picture has the size of the model's input and shows no objects.
_RUNS = 7
_BUSY = 0.2  # share of the processors used by other programs, above which these may have slowed a measurement
_PATIENCE_S = 3.0  # seconds to wait for a less busy machine, for each variant
_REFUSAL_S = 15.0  # seconds to wait for a less busy machine in all, before the start is refused
_HOPELESS = 20.0  # times the budget: other programs do not slow a model down this much
_SURE = 0.5  # share of the budget; a bare model below it needs no measurement, because the other stages take less
_ADVICE = 1.25  # times the median is the advised budget: allows for the wait for a frame and for peaks
_CHANCE = 1.1  # times the budget: up to here, the measured run may have been a slow one
_REACHABLE = 2.0  # times the budget: a slower variant cannot keep it with another number of threads

OpenVariant: TypeAlias = Callable[[str, int | None], Stages]
"""Function from a variant's name and number of threads (None: the default) to its stages, loaded and proved."""


class VariantTime(msgspec.Struct, frozen=True):
    """The measured time of one variant."""

    variant: str
    threads: int
    median_ms: float  # median of all runs
    parts_ms: tuple[float, float, float]  # prepare, run and decode of the fastest run
    others: float = 0.0  # share of the processors that other programs used during the runs, 0-1

    @property
    def least_ms(self) -> float:
        """Milliseconds of prepare, run and decode together in the fastest run."""
        return sum(self.parts_ms)

    def __str__(self) -> str:
        prepare, run, decode = self.parts_ms
        return (
            f"{self.variant} takes {self.least_ms:.3g} ms on {counted(self.threads, 'thread')} (prepare {prepare:.2g}, "
            f"run {run:.3g}, decode {decode:.2g}; the best of {_RUNS}, median {self.median_ms:.3g})"
        )


class StartChoice(msgspec.Struct, frozen=True):
    """The stages with which a pipeline starts, and the measurements that led to the choice."""

    stages: Stages
    too_slow: tuple[VariantTime, ...]  # in the order of levels; the last may be that of `stages`, on other threads
    fits: bool  # whether `stages` can keep the budget; otherwise they are the fastest
    tried_s: float = 0.0  # seconds for which variants were measured

    def reason(self, budget_ms: float) -> str:
        """Return a text that says why this variant was chosen."""
        return f"the budget is {budget_ms:g} ms, and {', '.join(map(str, self.too_slow))}" if self.too_slow else "start"


def time_stages(
    stages: Stages,
    budget_ms: float,
    is_stopped: Callable[[], bool] = lambda: False,
    read_cpu_time: Callable[[], CpuTime] = CpuTime.read,
) -> VariantTime | None:
    """Measure one warm variant; return None as soon as one run is within the budget.

    Nothing is measured where the fastest golden run took half of the budget or less. While other programs keep the
    processors busy, the measurement continues for up to `_PATIENCE_S`.
    """
    if 0 < stages.session.replay_ns <= _SURE * budget_ms * 1e6:
        return None
    width, height = stages.prepare.spec.size_wh
    frame = Frame(np.zeros((height, width, 3), np.uint8), time.monotonic_ns(), time.time(), 0, "start")
    runs: list[tuple[float, float, float]] = []
    before, until_s, others = read_cpu_time(), time.monotonic() + _PATIENCE_S, 0.0
    while len(runs) < _RUNS or (others > _BUSY and time.monotonic() < until_s):
        if is_stopped():
            raise StoppedError
        clock = [time.perf_counter_ns()]
        prepared = stages.prepare(frame)
        clock.append(time.perf_counter_ns())
        inferred = stages.session(prepared)
        clock.append(time.perf_counter_ns())
        stages.task(inferred)
        clock.append(time.perf_counter_ns())
        if clock[-1] - clock[0] <= budget_ms * 1e6:
            return None
        first, second, third = ((b - a) / 1e6 for a, b in pairwise(clock))
        runs.append((first, second, third))
        if len(runs) >= _RUNS:
            others = read_cpu_time().others_since(before) or 0.0
    return VariantTime(stages.variant, stages.threads, median(map(sum, runs)), min(runs, key=sum), others)


def choose_start(
    bundle: Bundle,
    loaded: list[Stages],
    budget_ms: float,
    open_stages: OpenVariant,
    *,
    threads: Sequence[int] = (),
    fixed: bool,
    is_stopped: Callable[[], bool] = lambda: False,
) -> StartChoice:
    """Choose the best variant that this board can run inside the budget, or else the fastest.

    While other programs keep the processors busy, all variants are measured again, for up to `_REFUSAL_S`.

    Args:
        bundle: the bundle, with the preferred variant first.
        loaded: list with the warm stages of that variant; it is emptied, so that only one model is loaded at a time.
        budget_ms: latency budget from capture to outbox, milliseconds.
        open_stages: loads another variant, or the same one with another number of threads.
        threads: numbers of threads to try if a variant misses the budget with its own.
        fixed: whether no other variant may run.
        is_stopped: called before every run, which raises StoppedError where it returns True.
    """

    def hold(variant: str, count: int | None = None) -> None:
        """Load a variant in place of the loaded one; do nothing if it is already loaded."""
        if not (loaded and loaded[0].variant == variant and count in (None, loaded[0].threads)):
            loaded.clear()
            loaded.append(open_stages(variant, count))

    def time_on(variant: str, count: int | None = None) -> VariantTime | None:
        hold(variant, count)
        return time_stages(loaded[0], budget_ms, is_stopped)

    variants = list(dict.fromkeys(level.variant for level in levels_of(bundle.manifest, fixed=fixed)))

    best: dict[str, VariantTime] = {}

    def time_all() -> tuple[list[VariantTime], bool]:
        too_slow, fits = _time_variants(variants, time_on, threads, budget_ms)
        if not fits:
            for taken in too_slow:
                best[taken.variant] = min(best.get(taken.variant, taken), taken, key=lambda t: t.least_ms)
            too_slow = list(best.values())
            fastest = min(too_slow, key=lambda t: t.least_ms)
            hold(fastest.variant, fastest.threads)
        return too_slow, fits

    began_s, (too_slow, fits) = time.monotonic(), time_all()
    is_said = False
    while not fits and _may_pass(too_slow, budget_ms) and time.monotonic() - began_s < _REFUSAL_S:
        if not is_said:
            _log.info(f"{_load_beside(too_slow)}: before the budget is refused, it is tried for {_REFUSAL_S:g} s")
        is_said = True
        too_slow, fits = time_all()
    return StartChoice(loaded.pop(), tuple(too_slow), fits, tried_s=time.monotonic() - began_s)


def _time_variants(
    variants: Sequence[str],
    time_on: Callable[[str, int | None], VariantTime | None],
    threads: Sequence[int],
    budget_ms: float,
) -> tuple[list[VariantTime], bool]:
    """Return the measurements of variants that are too slow, and whether the variant measured last fits the budget."""
    too_slow: list[VariantTime] = []
    for variant in variants:
        slow: list[VariantTime] = []
        counts: list[int | None] = [None]
        while counts:
            count = counts.pop(0)
            try:
                taken = time_on(variant, count)
            except EdgeError as cause:
                on = f" on {counted(count, 'thread')}" if count else ""
                _log.info(f"{variant}{on} does not load here and is left out: {cause}")
                continue
            if taken is None:
                return [*too_slow, *slow[:1]], True
            if not slow:
                counts += _worth_trying(taken, threads, budget_ms)
            slow.append(taken)
        if slow:
            too_slow.append(min(slow, key=lambda t: t.least_ms))
    return too_slow, False


def _may_pass(too_slow: Sequence[VariantTime], budget_ms: float) -> bool:
    """Tell whether variants may miss the budget only because other programs keep the processors busy."""
    return _load_beside(too_slow) != "" and min(t.least_ms for t in too_slow) <= budget_ms * _HOPELESS


def _load_beside(too_slow: Sequence[VariantTime]) -> str:
    """Return a text with the processor share of other programs; empty if they were not busy."""
    others = max(taken.others for taken in too_slow)
    if others <= _BUSY:
        return ""
    processors = counted(Cores.read().allowed, "processor")
    return f"other programs take {others:.0%} of {processors} (load average {os.getloadavg()[0]:.1f})"


def _worth_trying(taken: VariantTime, threads: Sequence[int], budget_ms: float) -> list[int]:
    """Return the numbers of threads that may bring a variant into the budget, the most first."""
    prepare_ms, run_ms, decode_ms = taken.parts_ms
    worth = []
    for count in sorted(threads, reverse=True):
        if count > taken.threads:  # at best, more threads share the work evenly
            may_keep = prepare_ms + run_ms * taken.threads / count + decode_ms <= budget_ms * _CHANCE
        else:  # fewer threads spend less time waiting for each other
            may_keep = taken.threads > max(threads) or taken.least_ms <= budget_ms * _REACHABLE
        if count != taken.threads and may_keep:
            worth.append(count)
    return worth


def budget_refusal(bundle: Bundle, start: StartChoice, budget_ms: float, *, fixed: bool) -> LatencyGateError:
    """Return the error for a budget that no variant keeps, with the measured times and the next steps."""
    fastest = min(start.too_slow, key=lambda t: t.least_ms)
    which = "its fastest model, " if len(start.too_slow) > 1 else ""
    rest = "".join(
        f"; {other.variant} takes {other.least_ms:.3g} ms on {counted(other.threads, 'thread')}"
        for other in start.too_slow
        if other != fastest
    )
    has_choice = fixed and len(bundle.manifest.variants) > 1
    smaller = "choose another --variant" if has_choice else "build a smaller model (--sizes)"
    load = _load_beside(start.too_slow)
    beside = f"; {load}, and it was tried for {start.tried_s:.0f} s: stop them" if load else ""
    return LatencyGateError(
        f"{bundle.path}: this board cannot keep {budget_ms:g} ms from capture to outbox: {which}{fastest}{rest}{beside}"
        f"; give --latency-ms well above {math.ceil(fastest.median_ms * _ADVICE)} (frames that come at a camera's pace "
        f"take longer; `edge-sdk tune` measures it and looks for better settings), {smaller}, or take what comes with "
        "--best-effort"
    )


class LevelChanger:
    """A loop observer that changes variant or frame rate to keep the loop within its latency budget.

    Args:
        manifest: the bundle's manifest, with the preferred variant first.
        open_stages: takes the name of a variant and returns its stages, loaded and tested; called in another thread.
        limit_ns: the latency budget.
        fps: frames per second of the source.
        fixed: whether the first variant always runs, so that only the frame rate is lowered.
        announce: called with the running level at the start and after every change; must not block.
        throttled: returns the reason why the board throttles; empty if it does not.
        is_tuning: tells whether a tuner replaces the loop's stages or is about to; the level is then kept.
        load_s: seconds after which loading a variant is given up.
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
        load_s: float = math.inf,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._manifest, self._open, self._fixed, self._load_s = manifest, open_stages, fixed, load_s
        self._limit_ns, self._period_ns = limit_ns, int(1e9 / fps)
        self._announce, self._throttled, self._is_tuning = announce, throttled, is_tuning
        self._controller, self._clock_ns = controller, clock_ns
        self._loading: BackgroundTask[Stages] | None = None
        self._move: Move | None = None  # the move that waits for the load
        self._short: set[str] = set()  # variants for which a log line has said that memory is short
        self._variant = manifest.variants[0].name
        self._running: Running | None = None
        self._governor = self._new_governor(0)

    def begin(self, variant: str, reason: str) -> None:
        """Announce the variant with which the pipeline starts, and the reason for it."""
        self._go_by(variant, [level.variant for level in self._governor.levels].index(variant), reason)

    def after(self, loop: Loop, tick: Tick) -> None:
        """Pass one step of the loop to the governor, and begin the move that it decides on; see `LoopObserver`."""
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
            self._publish(self._running)  # tuning has ended and kept the variant
        self._note(loop, tick)
        if self._governor.is_due(now_ns):
            move = self._governor.decide(now_ns, self._throttled())
            if move is not None:
                self._begin_move(loop, move, now_ns)

    def close(self) -> None:
        """Stop loading, and remove the pipeline from the controller."""
        self._governor.close()
        if self._loading is not None:
            self._loading.close(_CLOSE_TIMEOUT_S)

    def _note(self, loop: Loop, tick: Tick) -> None:
        # A frame older than the whole budget on arrival, as after a backlog, is late at every level.
        if loop.last_wait_ns - loop.last_delay_ns > self._limit_ns:
            return
        if tick is Tick.ON_TIME or tick is Tick.LATE:
            # FFmpeg's delay does not depend on the level either, and a second model uses the rest of the budget by
            # design.
            age_ns = loop.last_age_ns - loop.last_delay_ns - loop.last_then_ns
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
            self._loading = BackgroundTask(
                lambda: self._open(variant), "edge-loader", undo=lambda _stages: None, limit_s=self._load_s
            )
        except RuntimeError as cause:  # no thread can be started now
            self._fail(variant, cause, now_ns)
            return
        self._move = move

    def _take(self, loop: Loop, loading: BackgroundTask[Stages], now_ns: int) -> None:
        """Give the loaded stages to the loop once they are ready."""
        move = self._move
        if move is None or not loading.is_done:
            return
        self._loading = self._move = None
        variant = move.level.variant
        try:
            loop.stages = loading.take()
        except StoppedError:
            return  # the run is ending and needs no other model
        except Exception as cause:  # noqa: BLE001 - the pipeline continues with the running variant
            self._fail(variant, cause, now_ns)
        else:
            self._variant = variant
            self._short.discard(variant)
            self._arrive(loop, move, now_ns)

    def _fail(self, variant: str, cause: Exception, now_ns: int) -> None:
        why = failure_line(cause)
        is_short = isinstance(cause, NoRoomError) or is_out_of_memory(cause)
        self._governor.leave_out(now_ns, for_now=is_short)
        if not is_short:
            _log.info(f"{variant} does not load here and is left out: {why}")
        elif variant not in self._short:
            self._short.add(variant)
            _log.info(f"{variant} is left out until memory is free: {why}")

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
            Running(variant=level.variant, every=level.every, level=governor.index, levels=levels, reason=reason)
        )

    def _publish(self, running: Running) -> None:
        self._running = msgspec.structs.replace(running, tuning=True if self._is_tuning() else msgspec.UNSET)
        self._announce(self._running)


class TuningLock:
    """A loop observer that lets one pipeline tune at a time, because trials of another would distort measurements."""

    def __init__(self, tuner: LiveTuner, lock: threading.Lock) -> None:
        self._tuner, self._lock = tuner, lock
        self._is_ours = False

    @property
    def done(self) -> bool:
        """Whether the tuner has finished."""
        return self._tuner.done

    def after(self, loop: Loop, tick: Tick) -> None:
        """Pass one step to the tuner if this pipeline holds the lock; see `LoopObserver`."""
        if self._tuner.done:
            return
        if not self._is_ours and tick is not Tick.IDLE:  # while no frame comes, another pipeline may tune
            self._is_ours = self._lock.acquire(blocking=False)
        if self._is_ours:
            self._tuner.after(loop, tick)
            if self.done:
                self._give_up()

    def close(self) -> None:
        """Give up unfinished tuning and release the lock for the next pipeline."""
        self._tuner.close()
        self._give_up()

    def _give_up(self) -> None:
        if self._is_ours:
            self._is_ours = False
            self._lock.release()
