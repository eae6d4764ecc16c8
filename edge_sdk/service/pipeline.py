"""Run one pipeline of a device, from its source to the outbox, in a thread of its own.

A `Pipeline` starts (the model loads, the source opens beside it), takes the place of the camera's earlier pipeline, if
any, and runs frames (`PipelineRunner`) until it is asked to stop. Where settings change and the source does not, the
open source goes from the old pipeline to the new one (`take_over`). One pipeline of a process starts at a time,
and reports errors of its model before errors of its source.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import SessionError, StoppedError, UsageError
from edge_sdk.core.logs import CAMERA
from edge_sdk.core.protocols import Event, Sink
from edge_sdk.core.threads import BackgroundTask, Stop, join_or_leave
from edge_sdk.core.toml import shown
from edge_sdk.events.rules import EventWatch, unwatched
from edge_sdk.events.snapshots import Snapshots
from edge_sdk.inference.cascade import Cascade, going_on
from edge_sdk.loop import Budget
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import CameraHealth
from edge_sdk.publishing.publisher import LinesStats, PublisherStats, Stream
from edge_sdk.service.model_selector import Loading, ModelSelector, begin_loading
from edge_sdk.service.output import Output
from edge_sdk.service.process import Gate, Shared
from edge_sdk.service.runner import PipelineRunner, RunSummary
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.sources.opencv import set_up_opencv
from edge_sdk.sources.opening import VIDEO, check_location, open_source, redact
from edge_sdk.sources.slot import OpenedSource

_log = logging.getLogger(__name__)
_LOOK_S = 0.05  # time between two checks whether the process ends


class Pipeline:
    """One pipeline in a thread of its own; `start` it once.

    Args:
        waits: whether to wait for a camera that is not available yet.
        gate: the gate to wait for before the first frame.
        before: the pipeline to replace once this one's model is loaded; its source is taken over if it is the same.
        loading: the load of the model, where that has begun already.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        output: Output,
        shared: Shared,
        stop: Stop,
        *,
        waits: bool = False,
        gate: Gate | None = None,
        before: Pipeline | None = None,
        loading: Loading | None = None,
    ) -> None:
        self.settings = settings
        self.began = threading.Event()  # set once frames run, or never will
        self.failure: BaseException | None = None
        self.has_place = False  # whether it has ended the pipeline before it, and is about to run frames, or did
        self.digests = () if loading is None else loading.digests  # of the bundles, once they are verified
        self.threads = 0  # of the model; 0: not yet known
        self.model_ns = self.source_ns = 0  # when the model was loaded and the source open, monotonic; 0: not yet
        self._output, self._shared, self._waits = output, shared, waits
        self._stop, self._gate = Stop(stop), gate or Gate(0)
        self._before, self._loading = before, loading
        self._runner: PipelineRunner | None = None
        self._stream: Stream | None = None
        self._title = ""
        self._left: Future[OpenedSource | None] = Future()  # the source for the next pipeline, if `_is_wanted`
        self._is_wanted = False
        # A daemon thread, because a model that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"pipeline {settings.camera}", daemon=True)

    def start(self) -> None:
        """Start the thread; if that is impossible, the pipeline is over and has failed."""
        try:
            self._thread.start()
        except RuntimeError as cause:
            self.failure = SessionError(f"{self.settings.camera}: no thread for this pipeline: {cause}")
            self._end()

    def ask(self, reason: str) -> None:
        """Ask the pipeline to finish the current frame and end."""
        self._stop.ask(reason)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; return False and abandon the thread where it runs longer than `timeout_s` seconds."""
        if self._thread.ident is not None:
            join_or_leave(self._thread, timeout_s)
        return not self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether the pipeline has ended."""
        return self.began.is_set() and not self._thread.is_alive()

    @property
    def ended_by(self) -> str | None:
        """The reason why the pipeline ended without an error."""
        return (self._runner.ended_by if self._runner else None) or self._stop.reason

    @property
    def first_result_ns(self) -> int:
        """Time at which the first result was in the outbox, monotonic nanoseconds; 0: not yet."""
        return self._runner.first_result_ns if self._runner else 0

    @property
    def title(self) -> str:
        """Return which model runs on which source, for people; empty while none runs."""
        return self._title if self._runner is not None and self.failure is None else ""

    def health(self) -> CameraHealth | None:
        """Return the camera's health; None where the pipeline does not run."""
        runner = self._runner
        return runner.health() if runner is not None and self._thread.is_alive() else None

    def summary(self, of_all: PublisherStats | LinesStats | None) -> RunSummary:
        """Return the summary of the run, which is final once the output is closed."""
        counts = {"budget_ms": self.settings.latency_ms} if self._runner is None else self._runner.counts()
        return RunSummary(
            camera=self.settings.camera,
            **counts,
            publisher=of_all if isinstance(of_all, PublisherStats) else None,
            lines=of_all if isinstance(of_all, LinesStats) else None,
            ended_by="failure" if self.failure is not None else self.ended_by or "signal",
        )

    def warn(self, name: str, line: str) -> None:
        """Publish a warning in the device's state until this or another pipeline has the camera."""
        if self._stream is not None:
            self._stream.warn(name, line)
        else:
            self._output.warn_of(self.settings.camera, line)

    def leave_output(self) -> None:
        """Remove the camera from the device's state for good."""
        self._output.leave(self.settings.camera)

    def take_over(self, is_stopped: Callable[[], bool]) -> OpenedSource | None:
        """End this pipeline and take over its open source; None where that was closed or never open."""
        self._is_wanted = True
        self.ask("reload")
        while not is_stopped() and not self._left.done():
            wait([self._left], _LOOK_S)
        return None if self._left.cancel() else self._left.result()

    def _leave(self, source: OpenedSource) -> None:
        """Leave the source to the pipeline that waits for it; close it where none does."""
        if self._is_wanted and self._left.set_running_or_notify_cancel():
            self._left.set_result(source)
        else:
            source.close()

    def _run(self) -> None:
        CAMERA.set(self.settings.camera)
        try:
            self._work()
        except StoppedError:
            self._stop.ask()
        except BaseException as failure:  # noqa: BLE001 - a thread can raise to nobody: the supervisor looks at it
            self.failure = failure
        finally:
            self._before = None
            self._end()

    def _end(self) -> None:
        if not self._left.done() and self._left.set_running_or_notify_cancel():
            self._left.set_result(None)
        if not self.began.is_set():
            self._gate.arrive()
            self.began.set()

    def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            loading, selector, opening = self._start_up(stack)
            source = self._take_source(stack, opening)
            try:
                self._run_on(source, loading, selector, stack)
            finally:  # first, because closing the rest takes longer than a frame
                self._leave(source)

    def _run_on(
        self, source: OpenedSource, loading: Loading, selector: ModelSelector, stack: contextlib.ExitStack
    ) -> None:
        self.source_ns = time.monotonic_ns()
        bundle, settings = loading.bundle, self.settings
        observers: list[Sink] = []
        if settings.annotate is not None:
            observers.append(_annotated(settings.annotate, source, stack))
        encoder = ResultEncoder.for_bundle(bundle, self._output.identity, self._output.clock, then=loading.then)
        self.threads = bundle.manifest.intra_op_num_threads
        budget = Budget(loading.budget_ms, drops=source.paced)
        stream = self._stream = self._output.stream(settings.camera, encoder)
        self._output.warn_of(settings.camera, "")
        observers += _observers_of_events(settings, bundle, stream, stack)
        then = None
        if settings.then is not None and selector.second is not None:
            then = Cascade(selector.second, settings.then, going_on(bundle, settings.then), stream.warn)
        controls, stages = self._shared.controls, selector.take_stages()
        runner = PipelineRunner(settings, bundle, source, stages, stream, budget, controls, observers, then)
        del stages
        self._gate.arrive()
        self._gate.wait(self._stop.is_asked)
        self._title = f"{bundle.manifest.name} runs on {redact(settings.source)}"
        self._runner = runner
        self.began.set()
        runner.run(
            self._stop,
            self._shared.progress,
            lambda: selector.begin(stack, runner.loop, encoder, stream, source),
            rare_lines=self._waits,
        )

    def _start_up(
        self, stack: contextlib.ExitStack
    ) -> tuple[Loading, ModelSelector, BackgroundTask[OpenedSource] | None]:
        """Load the model while no other pipeline loads one, and begin to open the source at the same time."""
        settings, is_stopped = self.settings, self._stop.is_asked
        with self._shared.turn(is_stopped) as is_ours:
            loading = self._begin_loading() if is_ours else None
            if loading is None:
                raise StoppedError
            self.digests = loading.digests
            stack.enter_context(loading.selector)
            # A location that can never be opened is an error before this pipeline replaces another.
            kind = check_location(settings.source)
            # A video that plays in real time starts when it is opened, so it must wait for the model.
            is_late = self._before is not None or (kind is VIDEO and not settings.every_frame)
            opening = None if is_late else stack.enter_context(begin_opening(settings, waits=self._waits))
            self._output.prepare()
            if not loading.selector.is_ready(is_stopped):
                raise StoppedError
            selector = loading.selector.take()
            self.model_ns = time.monotonic_ns()
            # With other pipelines, this turn does not wait for the source, which may take any time.
            if opening is not None and not self._waits and not opening.is_ready(is_stopped):
                raise StoppedError
            selector.settle()
            return loading, selector, opening

    def _begin_loading(self) -> Loading | None:
        loading, self._loading = self._loading, None
        if loading is not None:
            return loading
        with self.settings.begin_verifying() as verified:
            return begin_loading(self.settings, verified, self._stop, self._shared)

    def _take_source(self, stack: contextlib.ExitStack, opening: BackgroundTask[OpenedSource] | None) -> OpenedSource:
        """Return the source of the pipeline before this one if it is the same, else the one being opened."""
        before, self._before = self._before, None
        self.has_place = not self._stop.is_asked()
        if self.has_place and before is not None:
            left = before.take_over(self._stop.is_asked)
            is_same = before.settings.same_source(self.settings)
            del before  # releases its model
            if left is not None and not left.ended and is_same:
                return left
            if left is not None:
                left.close()
        if not self._stop.is_asked():
            opening = opening or stack.enter_context(begin_opening(self.settings, waits=self._waits))
            if opening.is_ready(self._stop.is_asked):
                return opening.take()
        raise StoppedError


def begin_opening(settings: PipelineSettings, *, waits: bool) -> BackgroundTask[OpenedSource]:
    """Begin to open a pipeline's source in a thread of its own; the caller closes it."""
    password = settings.source_password.reveal() if settings.source_password else None

    def open_it() -> OpenedSource:
        return open_source(
            settings.source,
            camera=settings.camera,
            password=password,
            realtime=not settings.every_frame,
            options=settings.source_options,
            waits=waits,
        )

    return BackgroundTask(open_it, "edge-source", undo=lambda source: source.close())


def _annotated(path: Path, source: OpenedSource, stack: contextlib.ExitStack) -> Sink:
    """Return a sink that draws each result into a folder, or into a new MP4 or picture, which `stack` finishes."""
    from edge_sdk.events.annotate import AnnotatedFolder, AnnotatedVideo, is_folder, writer_of  # few runs need these

    set_up_opencv()  # OpenCV would log each frame for which the disk has no room
    if is_folder(path):
        if not source.files:
            raise UsageError(
                f"--annotate {path}: only the pictures of image files go to a folder; expected FILE.mp4 or FILE.jpg"
            )
        return AnnotatedFolder(path)
    writer = writer_of(path, source.fps)
    stack.callback(writer.close)
    return AnnotatedVideo(writer, source.fps)


def unknown_labels(settings: PipelineSettings, bundle: Bundle) -> list[str]:
    """Return a line for each label of the pipeline's events that no class has, or that its own `labels` leave out."""
    named = [label for rule in settings.events for label in rule.labels]
    left_out = [label for label in named if settings.labels is not None and label not in settings.labels]
    found = [*unwatched(settings.events, bundle), *(f"{shown(label)} is left out by labels" for label in left_out)]
    return [f"[[events]] labels: {line}" for line in found]


class _EventSink:
    """Publishes an event and requests a picture of it."""

    def __init__(self, stream: Stream, snapshots: Snapshots | None) -> None:
        self._stream, self._snapshots = stream, snapshots

    def put(self, event: Event, /) -> None:
        self._stream.put(event)
        if self._snapshots is not None:
            self._snapshots.ask(event.kind)


def _observers_of_events(
    settings: PipelineSettings, bundle: Bundle, stream: Stream, stack: contextlib.ExitStack
) -> list[Sink]:
    """Return the sinks of a pipeline's loop in order: those that find events, then those that make pictures."""
    observers: list[Sink] = []
    snapshots = None
    if settings.snapshots is not None:
        snapshots = Snapshots(settings.snapshots, stream.put_snapshot)
        stack.callback(snapshots.close)
    if settings.events:
        for line in unknown_labels(settings, bundle):
            _log.warning(line)
        observers.append(EventWatch(settings.events, bundle.labels_by_id(), _EventSink(stream, snapshots)))
    if snapshots is not None:
        observers.append(snapshots)
    return observers
