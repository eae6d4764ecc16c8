"""The daemon: wires source, stages and publisher together and runs them until told to stop.

Owns the order of starting once the model loads (open the source meanwhile, connect) and of stopping (finish the frame,
say offline, give everything back).
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import cv2

import edge_sdk
from edge_sdk.ahead import Ahead
from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.camera import Kind, OpenedSource, SourceStatus, kind_of, open_source, redact
from edge_sdk.daemon.loading import Loading
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.daemon.steering import Steering
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.daemon.troubles import Troubles
from edge_sdk.errors import SessionError, StoppedError, UsageError
from edge_sdk.health.hangup import Hangup
from edge_sdk.health.notify import Notifier
from edge_sdk.health.progress import Progress
from edge_sdk.health.start import Start
from edge_sdk.loop import Loop, Supervisor, Tick
from edge_sdk.protocols import Sink
from edge_sdk.publishing import (
    Identity,
    JsonLinesPublisher,
    MqttPublisher,
    Publisher,
    PublisherStats,
    ResultEncoder,
    SourceState,
    Stream,
    load_client,
)
from edge_sdk.run_record import RunRecord
from edge_sdk.session import onnxruntime_version
from edge_sdk.stop import Stop

if TYPE_CHECKING:
    from edge_sdk.annotate import AnnotatedVideo

_STEP_TIMEOUT_S = 0.2  # how soon a signal is seen while no frame comes
_CLOSE_TIMEOUT_S = 1.5
_STATUS_INTERVAL_NS = 10_000_000_000


class Daemon:
    """One bundle on one source.

    Args:
        settings: what to run.
        loading: their bundle and its model.
        say: takes status lines; never called once a frame.
        stop: ends it.
        notifier: tells the service manager.
        hangup: asks for the configuration to be read again.
        start: of the process, marked up to the imports.
    """

    def __init__(
        self,
        settings: RunSettings,
        loading: Loading,
        say: Say,
        stop: Stop,
        notifier: Notifier,
        hangup: Hangup,
        start: Start,
    ) -> None:
        self._run_settings, self._loading, self._say, self._stop = settings, loading, say, stop
        self._notifier, self._hangup, self._start = notifier, hangup, start
        self._settings = settings.pipelines[0]
        self._deadline = math.inf
        self._record = RunRecord()
        self._supervisors: list[Supervisor] = [self._record]

    def run(self) -> RunSummary:
        """Run until the source ends, a limit is reached or somebody asks for the end.

        Raises:
            EdgeError: from loading the model or opening the source, of the family that says who can mend it.
        """
        try:
            return self._run()
        except StoppedError:
            return self._nothing()

    def _nothing(self) -> RunSummary:
        return RunSummary.of_nothing(self._stop, self._settings.latency_ms)

    def _run(self) -> RunSummary:
        settings, bundle, budget_ms = self._settings, self._loading.bundle, self._loading.budget_ms
        with contextlib.ExitStack() as stack:
            opened = self._open(stack)
            if opened is None:
                return self._nothing()
            steering, source = opened
            stack.callback(source.close)
            # While a frame is resized no model runs, so that its threads' cores are free.
            cv2.setNumThreads(bundle.manifest.intra_op_num_threads)
            budget = Budget(budget_ms, drops=source.paced)
            steering.settle(paced=source.paced)
            observers: list[Sink] = [self._record]
            if settings.annotate is not None:
                observers.append(stack.enter_context(_annotated_video(settings.annotate, bundle, source.fps)))
            self._start.mark("source")
            self._say(f"source {redact(settings.source)} is open")
            encoder = ResultEncoder.for_bundle(bundle, self._run_settings.device)
            sink = self._open_sink(encoder, source)
            stack.callback(sink.close, _CLOSE_TIMEOUT_S)
            troubles = Troubles(self._record, self._say, None if isinstance(sink, JsonLinesSink) else sink.warn)
            loop = Loop(source, steering.take_stages(), sink, budget, observers=observers)
            self._supervisors += [troubles, *steering.begin(stack, loop, budget, encoder, sink, source)]
            self._notifier.ready(f"{bundle.manifest.name} runs on {redact(settings.source)}")
            reason = self._step_until_done(loop, source, troubles)
            self._notifier.stopping()
            sink.close(_CLOSE_TIMEOUT_S)
            return self._summary(loop, source, sink, budget, reason)

    def _open(self, stack: contextlib.ExitStack) -> tuple[Steering, OpenedSource] | None:
        """Open the source and load what speaks MQTT, while the model loads; None when told to stop first.

        What is wrong with the model is said rather than what is wrong with the source.
        """
        settings, model = self._settings, self._loading.steering
        # A file that plays in its own time plays from when it is opened: not before there is a model that looks.
        is_played = kind_of(settings.source) is Kind.VIDEO and not settings.every_frame
        opening = None if is_played else self._begin_opening(stack)
        if self._run_settings.mqtt is not None:
            load_client()
        if not model.is_ready(self._stop.is_asked):
            return None
        steering = model.take()
        self._start.mark("model")
        opening = opening or self._begin_opening(stack)
        return (steering, opening.take()) if opening.is_ready(self._stop.is_asked) else None

    def _begin_opening(self, stack: contextlib.ExitStack) -> Ahead[OpenedSource]:
        settings = self._settings
        password = settings.source_password.reveal() if settings.source_password else None
        realtime = not settings.every_frame
        return stack.enter_context(
            Ahead(
                lambda: open_source(settings.source, camera=settings.camera, password=password, realtime=realtime),
                "edge-source",
                undo=lambda source: source.close(),
            )
        )

    def _open_publisher(self, identity: Identity, source: OpenedSource) -> Publisher:
        if self._run_settings.mqtt is None:
            if sys.stdout is None:
                raise UsageError("standard output is closed; give --mqtt, or something that takes the results")
            # Past Python's buffer: it is flushed when the process ends, and a write that hangs keeps its lock.
            stdout = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
            return JsonLinesPublisher(stdout, keeps_all=not source.paced, is_stopped=self._is_stopped)
        versions = {"edge-sdk": edge_sdk.__version__, "onnxruntime": onnxruntime_version()}
        address = self._run_settings.mqtt.address
        return MqttPublisher(
            self._run_settings.mqtt,
            identity,
            versions=versions,
            on_state=lambda state, detail: self._say_broker(address, state, detail),
        )

    def _is_stopped(self) -> bool:
        return self._stop.is_asked() or time.monotonic() >= self._deadline

    def _step_until_done(self, loop: Loop, source: OpenedSource, stream: Stream, troubles: Troubles) -> str:
        """Step until there is a reason to stop; returns it."""
        progress = Progress(self._notifier.interval_s or math.inf)
        with progress.begin() as beat:

            def after_step() -> None:
                beat.after_step()
                if progress.is_due(time.monotonic()) and self._notifier.interval_s is not None:
                    self._notifier.watchdog()
                if self._hangup.take():
                    self._notifier.reloading()
                    self._notifier.ready("there is no configuration to read again")
                if self._start.times is None and self._record.results:
                    times = self._start.first_result()
                    self._say(times.line() if times else "")

            return self._step(loop, source, troubles, after_step)

    def _step(self, loop: Loop, source: OpenedSource, troubles: Troubles, after_step: Callable[[], None]) -> str:
        settings = self._settings
        status = source.status
        if self._run_settings.duration_s is not None:
            self._deadline = time.monotonic() + self._run_settings.duration_s
        next_status_ns = time.monotonic_ns() + _STATUS_INTERVAL_NS
        while self._stop.reason is None:
            tick = loop.step(_STEP_TIMEOUT_S)
            for supervisor in self._supervisors:
                supervisor.after(loop, tick)
            after_step()
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
                _tell_source(stream, status)
            if time.monotonic_ns() >= next_status_ns:
                next_status_ns += _STATUS_INTERVAL_NS
                self._say(self._record.line(loop))
        return self._stop.reason

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
        self, loop: Loop, source: OpenedSource, publisher: Publisher, budget: Budget, reason: str
    ) -> RunSummary:
        record, stats = self._record, publisher.stats()
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


def _tell_source(stream: Stream, status: SourceStatus) -> None:
    stream.source(SourceState(status=status.value, since=datetime.now(timezone.utc)))


@contextlib.contextmanager
def _annotated_video(path: Path, bundle: Bundle, fps: float) -> Iterator[AnnotatedVideo]:
    from edge_sdk.annotate import AnnotatedVideo, Annotator, VideoWriter  # few runs do

    annotator = Annotator(bundle.labels(), background_class=bundle.manifest.classification.background_class)
    with VideoWriter(path, fps) as writer:
        yield AnnotatedVideo(annotator, writer, fps)
