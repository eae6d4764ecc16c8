"""The daemon: wires source, stages and publisher together and runs them until told to stop.

Owns the order of starting (verify, try, load, replay golden, open the source, connect) and of stopping (finish the
frame, say offline, give everything back).
"""

from __future__ import annotations

import contextlib
import math
import platform
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import msgspec

import edge_sdk
from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.camera import OpenedSource, SourceStats, SourceStatus, open_source, redact
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.daemon.steering import Steering
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.daemon.troubles import Troubles
from edge_sdk.errors import SessionError, StoppedError, UsageError
from edge_sdk.loop import Loop, Supervisor, Tick
from edge_sdk.protocols import Sink
from edge_sdk.publishing import (
    JsonLinesSink,
    MqttPublisher,
    PublisherStats,
    ResultEncoder,
    check_name,
    load_client,
)
from edge_sdk.run_record import RunRecord
from edge_sdk.session import SessionSettings, onnxruntime_version
from edge_sdk.signing import load_public_key
from edge_sdk.trial import prove_here

if TYPE_CHECKING:
    from edge_sdk.annotate import AnnotatedVideo

_STEP_TIMEOUT_S = 0.2  # how soon a signal is seen while no frame comes
_CLOSE_TIMEOUT_S = 1.5
_STATUS_INTERVAL_NS = 10_000_000_000


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
        if settings.mqtt is not None:
            threading.Thread(target=load_client, name="edge-load", daemon=True).start()
        bundle = self._open_bundle()
        session = self._session_settings(bundle)
        if not prove_here(
            bundle, settings=session, seconds=settings.trial_s, say=self._say, is_stopped=self._is_stopped
        ):
            return self._nothing(bundle)
        try:
            return self._run_steered(bundle, session)
        except StoppedError:
            return self._nothing(bundle)

    def _run_steered(self, bundle: Bundle, session: SessionSettings) -> RunSummary:
        settings = self._settings
        budget_ms = settings.latency_ms or bundle.manifest.latency_budget_ms
        steering = Steering(settings, bundle, session, budget_ms, self._say, self._is_stopped)
        # While a frame is resized no model runs, so that its threads' cores are free.
        cv2.setNumThreads(session.intra_op_num_threads)
        with contextlib.ExitStack() as stack:
            password = settings.source_password.reveal() if settings.source_password else None
            source = open_source(
                settings.source, camera=settings.camera, password=password, realtime=not settings.every_frame
            )
            stack.callback(source.close)
            budget = Budget(budget_ms, drops=source.paced)
            steering.settle(paced=source.paced)
            observers: list[Sink] = [self._record]
            if settings.annotate is not None:
                observers.append(stack.enter_context(_annotated_video(settings.annotate, bundle, source.fps)))
            self._say(f"source {redact(settings.source)} is open")
            encoder = ResultEncoder.for_bundle(bundle, settings.device)
            sink = self._open_sink(encoder, source)
            stack.callback(sink.close, _CLOSE_TIMEOUT_S)
            troubles = Troubles(self._record, self._say, None if isinstance(sink, JsonLinesSink) else sink.warn)
            loop = Loop(source, steering.take_stages(), sink, budget, observers=observers)
            self._supervisors += [troubles, *steering.begin(stack, loop, budget, encoder, sink, source)]
            reason = self._step_until_done(loop, source, troubles)
            sink.close(_CLOSE_TIMEOUT_S)
            return self._summary(loop, source, sink, budget, reason)

    def _open_bundle(self) -> Bundle:
        keys = [load_public_key(path) for path in self._settings.trusted_keys]
        bundle = Bundle.open(self._settings.bundle, keys)
        if not keys:
            self._say("warning: no trusted key is given, so the bundle's signature was not checked (--trust KEY.pub)")
        bundle.check_device(platform.machine(), onnxruntime_version())
        return bundle.led_by(self._settings.variant) if self._settings.variant is not None else bundle

    def _session_settings(self, bundle: Bundle) -> SessionSettings:
        """As the bundle promises; the limit of a run follows the budget, unless it was given."""
        given = self._settings
        promise = bundle.manifest
        if given.latency_ms is not None:
            promise = msgspec.structs.replace(promise, latency_budget_ms=given.latency_ms)
        settings = SessionSettings.of(promise)
        if given.run_limit_s is None:
            return settings
        return msgspec.structs.replace(settings, limit_s=given.run_limit_s)

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

    def _step_until_done(self, loop: Loop, source: OpenedSource, troubles: Troubles) -> str:
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
            if troubles.hopeless is not None:
                raise SessionError(troubles.hopeless)
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
        record, stats = self._record, sink.stats()
        return RunSummary(
            results=record.results,
            late=loop.counts[Tick.LATE],
            stale=loop.counts[Tick.STALE],
            hung=loop.counts[Tick.HUNG],
            not_finite=record.not_finite,
            skipped=loop.counts[Tick.SKIPPED],
            budget_ms=budget.limit_ns / 1e6,
            age=record.age(),
            serial=record.serial(),
            inference=record.inference(),
            fps=record.fps(),
            source=source.stats,
            publisher=stats if isinstance(stats, PublisherStats) else None,
            lines=None if isinstance(stats, PublisherStats) else stats,
            ended_by=reason,
        )

    def _nothing(self, bundle: Bundle) -> RunSummary:
        """The summary of a run that was stopped before it began."""
        return RunSummary(
            results=0,
            late=0,
            stale=0,
            hung=0,
            not_finite=0,
            skipped=0,
            budget_ms=self._settings.latency_ms or bundle.manifest.latency_budget_ms,
            age=None,
            serial=None,
            inference=None,
            fps=0.0,
            source=SourceStats(),
            publisher=None,
            lines=None,
            ended_by=self._stop_reason or "signal",
        )


@contextlib.contextmanager
def _annotated_video(path: Path, bundle: Bundle, fps: float) -> Iterator[AnnotatedVideo]:
    from edge_sdk.annotate import AnnotatedVideo, Annotator, VideoWriter  # few runs do

    annotator = Annotator(bundle.labels(), background_class=bundle.manifest.classification.background_class)
    with VideoWriter(path, fps) as writer:
        yield AnnotatedVideo(annotator, writer, fps)
