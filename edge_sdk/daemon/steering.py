"""Steering: what decides which of a bundle's models a stream runs: the start, then tuning, then the governor.

Owns their order, and that no more than two models are loaded: whoever hands stages on keeps none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.cores import Cores
from edge_sdk.daemon.announcing import Announcing
from edge_sdk.daemon.core_watch import CoreWatch
from edge_sdk.daemon.feasible import choose_start, refusal
from edge_sdk.daemon.governing import Governing
from edge_sdk.daemon.say import Say, counted
from edge_sdk.daemon.self_tuning import SelfTuning
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.shared import Shared
from edge_sdk.daemon.turn import Turn
from edge_sdk.loop import Loop, Supervisor
from edge_sdk.publishing import ResultEncoder, Stream
from edge_sdk.room import check_room
from edge_sdk.session import SessionSettings
from edge_sdk.stages import Stages
from edge_sdk.tuning import Limits
from edge_sdk.tuning.search import thread_counts

if TYPE_CHECKING:  # it brings OpenCV, which is loaded beside the model
    from edge_sdk.camera import OpenedSource


class Steering:
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
        self._led = bundle.led_by(stages.variant)
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
        tuner = Turn(live, self._shared.tuning) if live is not None else None

        def is_tuning() -> bool:
            return tuner is not None and not tuner.done

        announcing = Announcing(encoder.answers_by, stream.announce, is_tuning)
        board, watch = stack.enter_context(self._shared.machine.watching())
        self._watch = watch
        self._usable = watch.cores.usable
        governing = Governing(
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
