"""Decide which of a bundle's models a stream runs: the start, then tuning, then degradation.

`ModelSelector` is made while the model loads. `settle` measures whether this board keeps the budget and takes another
variant where it does not; `begin` returns the observers that may give the running loop other stages: a tuner, which
measures models in turn, and a `LevelChanger`, which makes the moves that the stream's governor decides on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import StoppedError
from edge_sdk.core.logs import counted
from edge_sdk.core.machine import Cores
from edge_sdk.inference.runtime import ProviderWarnings
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.stages import Stages
from edge_sdk.inference.trial import prove_here
from edge_sdk.loop import Loop, LoopObserver
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import Running
from edge_sdk.publishing.publisher import Stream
from edge_sdk.service.level_changer import LevelChanger
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Shared, TuningLock
from edge_sdk.service.start_choice import budget_refusal, choose_start
from edge_sdk.sources.opening import IMAGES, kind_of
from edge_sdk.tuning.candidates import Candidate, Limits, Tuned, thread_counts
from edge_sdk.tuning.degradation import check_free_memory
from edge_sdk.tuning.live import LiveTuner
from edge_sdk.tuning.tuning import Tuning

if TYPE_CHECKING:
    from edge_sdk.sources.slot import OpenedSource

_log = logging.getLogger(__name__)
_BESIDE_TRIAL_S = 60.0  # extra time: half for the trial's process to start, half to load the tested model here


class ModelSelector:
    """Opens the models of one stream, and decides which of them runs.

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
        self._is_stopped, self._shared = is_stopped, shared or Shared()
        self._is_fixed = settings.variant is not None
        self._shortfalls = ProviderWarnings()
        self._is_live = self._is_over = False
        self._load_limit_s = settings.trial_s + _BESIDE_TRIAL_S
        # Image files have no frame rate, and their results must not depend on what ran here before.
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
        # Tuning measured its choice against this budget, so there is no better variant to step up to.
        self._led = bundle.with_primary(stages.variant)
        self._stages = [stages]  # a list, so that `take_stages` can hand over the only reference
        self._reason = ""
        self._settled: dict[str, int] = {}  # fastest number of threads at the start, by variant, until it is tuned

    def settle(self, *, paced: bool) -> None:
        """Choose the best variant that keeps the latency budget.

        Args:
            paced: whether frames come at the source's own pace; otherwise no frame is ever dropped.

        Raises:
            LatencyGateError: no variant keeps it, so all frames of a paced source would be late.
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

    def take_stages(self) -> Stages:
        """Return the stages of the first step and keep no reference to them."""
        return self._stages.pop()

    def begin(
        self, stack: contextlib.ExitStack, loop: Loop, encoder: ResultEncoder, stream: Stream, source: OpenedSource
    ) -> list[LoopObserver]:
        """Return the observers that choose the loop's models from here on; none where the source has no pace."""
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
            self.open_beside,
            limit_ns=int(self._budget_ms * 1e6),
            fps=source.fps,
            fixed=self._is_fixed,
            announce=announce,
            throttled=self._shared.throttled,
            is_tuning=lambda: tuner is not None and not tuner.done,
            controller=self._shared.degradation,
            load_limit_s=self._load_limit_s,
        )
        stack.callback(changer.close)
        changer.begin(loop.stages.variant, self._reason)
        if tuner is not None:
            stack.callback(tuner.close)
        stack.callback(self._end)  # runs first at the end, so that neither of them waits for a trial
        return [changer] if tuner is None else [tuner, changer]

    def open_beside(self, variant: str) -> Stages:
        """Load another variant while one runs, with the number of threads that the start or tuning found best.

        Raises:
            EdgeError: when memory is short, or the variant cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
        check_free_memory(self._led, variant)
        return self.open_with(variant, self._settled.get(variant))

    def open_with(self, variant: str, threads: int | None) -> Stages:
        """Load a variant with the best settings that are known for it.

        Args:
            variant: name of the variant.
            threads: intra-op threads, which replace those of the settings; None: use the settings' own.

        Raises:
            EdgeError: when the variant cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
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
        # The first variant was tried when the bundle was; others are in a process of their own, threads change nothing.
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

    def _end(self) -> None:
        self._is_over = True

    def _tuner(self, home: Stages, source: OpenedSource, on_variant: Callable[[str], None]) -> LiveTuner | None:
        """Return the tuner for the running loop; None where the best settings are known, or tuning is off."""
        tuning = self._tuning
        if tuning is None or self._is_fixed or tuning.holds_for(source.fps):
            return None
        before, why = tuning.tuned, ""
        if before is not None:
            why = f" again, because {before.doubt()}" if before.provisional else f", and not {before.fps:g}"
        tuner = tuning.make_tuner(
            home,
            source.fps,
            on_tuned=self._take_tuned,
            on_variant=on_variant,
        )
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
