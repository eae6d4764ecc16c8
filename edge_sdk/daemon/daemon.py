"""The daemon: wires source, stages and publisher together and runs them until told to stop.

Owns the order of starting (verify, load, replay golden, open the source, connect) and of stopping (finish the frame,
say offline, give everything back).
"""

from __future__ import annotations

import contextlib
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import cv2

import edge_sdk
from edge_sdk.annotate import AnnotatedVideo, Annotator, VideoWriter
from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.camera import OpenedSource, SourceStatus, open_source, redact
from edge_sdk.daemon.feasible import choose_start, refusal
from edge_sdk.daemon.governing import Governing
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.errors import UsageError
from edge_sdk.loop import Loop, Supervisor, Tick
from edge_sdk.protocols import Sink
from edge_sdk.publishing import (
    JsonLinesSink,
    MqttPublisher,
    ResultEncoder,
    Running,
    check_name,
)
from edge_sdk.run_record import RunRecord
from edge_sdk.session import onnxruntime_version
from edge_sdk.signing import load_public_key
from edge_sdk.stages import Stages
from edge_sdk.throttling import BoardWatch

_STEP_TIMEOUT_S = 0.2  # how soon a signal is seen while no frame comes
_CLOSE_TIMEOUT_S = 1.5
_STATUS_INTERVAL_NS = 10_000_000_000

Say = Callable[[str], None]
"""Takes one line for people."""


class Daemon:
    """One bundle on one source.

    Args:
        settings: what to run.
        say: takes status lines; never called once a frame.
    """

    def __init__(self, settings: RunSettings, say: Say) -> None:
        self._settings, self._say = settings, say
        self._stop_reason: str | None = None
        self._deadline = math.inf
        self._record = RunRecord()
        self._supervisors: list[Supervisor] = [self._record]

    def stop(self, reason: str = "signal") -> None:
        """Finish the frame at hand and leave; safe in a signal handler."""
        self._stop_reason = self._stop_reason or reason

    def run(self) -> RunSummary:
        """Run until the source ends, a limit is reached or `stop` is called.

        Raises:
            EdgeError: from opening the bundle, the model or the source, of the family that says who can mend it.
        """
        settings = self._settings
        for what, name in (("camera", settings.camera), ("device", settings.device)):
            check_name(what, name)  # what cannot be a topic is said now, not at a frame
        bundle = self._open_bundle()
        stages = [Stages.open(bundle)]  # a list: who takes it out holds the only one, and can give it back
        # The frame's own work is done by one thread; the model's threads come from its target.
        cv2.setNumThreads(1)
        budget_ms = settings.latency_ms or bundle.manifest.latency_budget_ms
        with contextlib.ExitStack() as stack:
            password = settings.source_password.reveal() if settings.source_password else None
            source = open_source(settings.source, camera=settings.camera, password=password)
            stack.callback(source.close)
            budget = Budget(budget_ms, drops=source.paced)
            why = self._settle(bundle, stages, budget_ms, paced=source.paced)
            observers: list[Sink] = [self._record]
            if settings.annotate is not None:
                observers.append(stack.enter_context(_annotated_video(settings.annotate, bundle, source.fps)))
            self._say(f"source {redact(settings.source)} is open")
            encoder = ResultEncoder.for_bundle(bundle, settings.device)
            sink = self._open_sink(encoder, source)
            stack.callback(sink.close, _CLOSE_TIMEOUT_S)
            loop = Loop(source, stages.pop(), sink, budget, observers=observers)
            if source.paced:
                self._govern(stack, bundle, loop, budget, encoder, sink, source.fps, why)
            reason = self._step_until_done(loop, source)
            sink.close(_CLOSE_TIMEOUT_S)
            return self._summary(loop, source, sink, budget, reason)

    def _open_bundle(self) -> Bundle:
        keys = [load_public_key(path) for path in self._settings.trusted_keys]
        bundle = Bundle.open(self._settings.bundle, keys)
        if not keys:
            self._say("warning: no trusted key is given, so the bundle's signature was not checked (--trust KEY.pub)")
        bundle.check_device(platform.machine(), onnxruntime_version())
        return bundle.led_by(self._settings.variant) if self._settings.variant is not None else bundle

    def _settle(self, bundle: Bundle, stages: list[Stages], budget_ms: float, *, paced: bool) -> str:
        """Put the stages into the list that the budget allows; returns why they are these, for people.

        Raises:
            LatencyGateError: there are none, and the frames of a paced source would all be late.
        """
        fixed = self._settings.variant is not None or not paced
        start = choose_start(bundle, stages, budget_ms, partial(_open_stages, bundle), fixed=fixed, say=self._say)
        stages.append(start.stages)
        if not start.fits:
            complaint = refusal(bundle, start, budget_ms, fixed=fixed)
            # Images in turn are never dropped, however long each takes.
            if paced and not self._settings.best_effort:
                raise complaint
            self._say(f"warning: {complaint}")
        return start.reason(budget_ms)

    def _govern(
        self,
        stack: contextlib.ExitStack,
        bundle: Bundle,
        loop: Loop,
        budget: Budget,
        encoder: ResultEncoder,
        sink: Sink,
        fps: float,
        why: str,
    ) -> None:
        def announce(running: Running) -> None:
            encoder.answers_by(running.variant)
            if isinstance(sink, MqttPublisher):
                sink.announce(running)

        board = BoardWatch()
        stack.callback(board.close)
        governing = Governing(
            bundle.manifest,
            partial(_open_stages, bundle),
            limit_ns=budget.limit_ns,
            fps=fps,
            fixed=self._settings.variant is not None,
            say=self._say,
            announce=announce,
            throttled=lambda: board.state.throttled,
        )
        stack.callback(governing.close)
        governing.begin(loop, why)
        self._supervisors.append(governing)

    def _open_sink(self, encoder: ResultEncoder, source: OpenedSource) -> MqttPublisher | JsonLinesSink:
        if self._settings.mqtt is None:
            if sys.stdout is None:
                raise UsageError("standard output is closed; give --mqtt, or something that takes the results")
            # Past Python's buffer: it is flushed when the process ends, and a write that hangs keeps its lock.
            stdout = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
            return JsonLinesSink(stdout, encoder, keeps_all=not source.paced, is_stopped=self._is_stopped)
        versions = {"edge-sdk": edge_sdk.__version__, "onnxruntime": onnxruntime_version()}
        address = self._settings.mqtt.address
        return MqttPublisher(
            self._settings.mqtt,
            encoder,
            versions=versions,
            on_state=lambda state, detail: self._say_broker(address, state, detail),
        )

    def _is_stopped(self) -> bool:
        return self._stop_reason is not None or time.monotonic() >= self._deadline

    def _step_until_done(self, loop: Loop, source: OpenedSource) -> str:
        """Step until there is a reason to stop; returns it."""
        settings = self._settings
        status = source.status
        if settings.duration_s is not None:
            self._deadline = time.monotonic() + settings.duration_s
        next_status_ns = time.monotonic_ns() + _STATUS_INTERVAL_NS
        while self._stop_reason is None:
            tick = loop.step(_STEP_TIMEOUT_S)
            for supervisor in self._supervisors:
                supervisor.after(loop, tick)
            if settings.frames is not None and self._record.results >= settings.frames:
                return "frames"
            if source.ended:
                return "end of source"
            if time.monotonic() >= self._deadline:
                return "duration"
            if source.status is not status:
                status = source.status
                self._say_status(status)
            if time.monotonic_ns() >= next_status_ns:
                next_status_ns += _STATUS_INTERVAL_NS
                self._say(self._record.line(loop))
        return self._stop_reason

    def _say_broker(self, address: str, state: str, detail: str) -> None:
        if state == "connecting" and detail:
            what = detail if detail.startswith("connection lost") else f"not reachable ({detail})"
            self._say(f"broker {address}: {what}, trying again")
        elif state == "refused":
            self._say(f"broker {address}: refused us ({detail}), trying again")
        elif state == "online":
            self._say(f"broker {address}: online" + (f", {detail}" if detail else ""))

    def _say_status(self, status: SourceStatus) -> None:
        self._say(f"source {redact(self._settings.source)}: {status.value}")

    def _summary(
        self, loop: Loop, source: OpenedSource, sink: MqttPublisher | JsonLinesSink, budget: Budget, reason: str
    ) -> RunSummary:
        record = self._record
        return RunSummary(
            results=record.results,
            late=loop.counts[Tick.LATE],
            stale=loop.counts[Tick.STALE],
            skipped=loop.counts[Tick.SKIPPED],
            budget_ms=budget.limit_ns / 1e6,
            age=record.age(),
            serial=record.serial(),
            inference=record.inference(),
            fps=record.fps(),
            source=source.stats,
            publisher=sink.stats() if isinstance(sink, MqttPublisher) else None,
            lines=sink.stats() if isinstance(sink, JsonLinesSink) else None,
            ended_by=reason,
        )


def _open_stages(bundle: Bundle, variant: str) -> Stages:
    return Stages.open(bundle.led_by(variant))


@contextlib.contextmanager
def _annotated_video(path: Path, bundle: Bundle, fps: float) -> Iterator[AnnotatedVideo]:
    annotator = Annotator(bundle.labels(), background_class=bundle.manifest.classification.background_class)
    with VideoWriter(path, fps) as writer:
        yield AnnotatedVideo(annotator, writer, fps)
