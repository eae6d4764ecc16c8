"""Steering: what decides which of a bundle's models a stream runs: the start, then tuning, then the governor.

Owns their order, and that no more than two models are loaded: whoever hands stages on keeps none.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.daemon.feasible import choose_start, refusal
from edge_sdk.daemon.governing import Governing
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.self_tuning import SelfTuning
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.loop import Loop, Supervisor
from edge_sdk.protocols import Sink
from edge_sdk.publishing import MqttPublisher, ResultEncoder, Running
from edge_sdk.session import SessionSettings
from edge_sdk.stages import Stages
from edge_sdk.throttling import BoardWatch
from edge_sdk.tuning import Limits

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

    Raises:
        EdgeError: when the model cannot be loaded, read or trusted here.
    """

    def __init__(
        self, settings: RunSettings, bundle: Bundle, session: SessionSettings, budget_ms: float, say: Say
    ) -> None:
        self._settings, self._budget_ms, self._say = settings, budget_ms, say
        self._is_fixed = settings.variant is not None
        self._tuning = SelfTuning(settings, bundle, session, Limits(budget_ms, settings.cpu_share), say)
        self._candidate, stages = self._tuning.open()
        # What was tuned here was measured against this very budget: above it there is nothing to climb to.
        self._led = bundle.led_by(stages.variant)
        self._stages = [stages]  # a list: who takes it out holds the only one, and can give it back
        self._why = ""
        shortfalls = stages.session.providers.shortfalls()
        if shortfalls:
            say(f"warning: {'; '.join(shortfalls)}")

    def settle(self, *, paced: bool) -> None:
        """Choose the model that the budget allows.

        Args:
            paced: whether frames come at their own pace; images in turn are never dropped, however long each takes.

        Raises:
            LatencyGateError: there is none, and the frames of a paced source would all be late.
        """
        fixed = self._is_fixed or not paced
        open_variant = self._tuning.open_variant
        start = choose_start(self._led, self._stages, self._budget_ms, open_variant, fixed=fixed, say=self._say)
        self._stages.append(start.stages)
        self._why = start.reason(self._budget_ms)
        if not start.fits:
            complaint = refusal(self._led, start, self._budget_ms, fixed=fixed)
            if paced and not self._settings.best_effort:
                raise complaint
            self._say(f"warning: {complaint}")

    def take_stages(self) -> Stages:
        """Those of the first step; the caller has the only ones."""
        return self._stages.pop()

    def begin(
        self,
        stack: contextlib.ExitStack,
        loop: Loop,
        budget: Budget,
        encoder: ResultEncoder,
        sink: Sink,
        source: OpenedSource,
    ) -> list[Supervisor]:
        """What steers the loop from here on; images in turn are not steered.

        Args:
            stack: gives everything back at the end.
            loop: with the stages of `take_stages`.
            budget: the loop's.
            encoder: is told which variant the next results are of.
            sink: is told what runs, where it is a broker.
            source: that the loop reads.
        """
        if not source.paced or not isinstance(loop.stages, Stages):
            return []

        def announce(running: Running) -> None:
            encoder.answers_by(running.variant)
            if isinstance(sink, MqttPublisher):
                sink.announce(running)

        tuner = self._tuning.supervisor((self._candidate, loop.stages), source, encoder.answers_by)
        board = BoardWatch()
        stack.callback(board.close)
        governing = Governing(
            self._led.manifest,
            self._tuning.open_variant,
            limit_ns=budget.limit_ns,
            fps=source.fps,
            fixed=self._is_fixed,
            say=self._say,
            announce=announce,
            throttled=lambda: board.state.throttled,
            is_held=lambda: tuner is not None and not tuner.done,
        )
        stack.callback(governing.close)
        governing.begin(loop, self._why)
        if tuner is None:
            return [governing]
        stack.callback(tuner.close)
        return [tuner, governing]
