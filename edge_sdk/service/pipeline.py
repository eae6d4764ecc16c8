"""Run one stream of a device, from its source to the outbox, in a thread of its own.

A `Pipeline` starts (the model loads, the source opens beside it), takes the place of the pipeline that had the camera
before, if any, and runs frames (`PipelineRunner`) until it is asked to stop. At its end everything is given back in the
opposite order. Where settings change and the source does not, the opened source goes from the old pipeline to the new
one (`SourceTransfer`), so that no camera is closed and opened for a changed threshold. One pipeline of a process starts
at a time, and what is wrong with its model is said before what is wrong with its source.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edge_sdk.bundle.bundle import Bundle, digest_at
from edge_sdk.core.errors import SessionError, StoppedError
from edge_sdk.core.logs import CAMERA
from edge_sdk.core.protocols import Event, Sink
from edge_sdk.core.threads import BackgroundTask, Stop, join_or_leave
from edge_sdk.events.rules import EventWatch, labels_by_id, unwatched
from edge_sdk.events.snapshots import Snapshots
from edge_sdk.loop import Budget
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import CameraHealth
from edge_sdk.publishing.publisher import LinesStats, PublisherStats, Stream
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.output import Output
from edge_sdk.service.runner import PipelineRunner, RunSummary
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Gate, Shared
from edge_sdk.service.startup import Loading, begin_loading, begin_opening
from edge_sdk.sources.location import redact
from edge_sdk.sources.opencv import set_up_opencv
from edge_sdk.sources.opening import VIDEO, check_location
from edge_sdk.sources.slot import OpenedSource

_log = logging.getLogger(__name__)
_LOOK_S = 0.05  # how soon the end of the process is seen
_LONGEST_LOAD_S = 240.0  # others wait for their turn; a service manager gives all of them five minutes


class SourceTransfer:
    """The source of a pipeline at its end: closed, or left for the pipeline that takes its place.

    `give` and `end` are called by the pipeline's own thread, `take` by the next one's.
    """

    def __init__(self, is_ending: Callable[[], bool]) -> None:
        self._is_ending = is_ending
        self._lock = threading.Lock()
        self._is_wanted = False
        self._done = threading.Event()
        self._left: OpenedSource | None = None

    def give(self, source: OpenedSource) -> None:
        """Read it no more: it is left, or closed."""
        with self._lock:
            is_left = self._is_wanted and not self._is_ending()
            if is_left:
                self._left = source
        if not is_left:
            source.close()
        self._done.set()

    def end(self) -> None:
        """Note that nothing more will be given."""
        self._done.set()

    def take(self, ask_to_end: Callable[[], None], is_stopped: Callable[[], bool]) -> OpenedSource | None:
        """Have the pipeline end, and wait for its source; None where that was closed, or never open."""
        with self._lock:
            self._is_wanted = True
        ask_to_end()
        while not is_stopped() and not self._done.wait(_LOOK_S):
            pass
        with self._lock:
            self._is_wanted = False
            left, self._left = self._left, None
        return left


class Pipeline:
    """One stream in a thread of its own; `start` it once.

    Args:
        waits: a camera that is not there yet is waited for.
        gate: is waited for before the first frame.
        before: whose place it takes once its own model is loaded, and whose source, where that is the same.
        loading: of its model, where that has begun already.

    Attributes:
        began: set once frames are run, or never will be.
        failure: what it ended by, where that was an error.
        has_place: whether it is about to run frames, or did: what ran before it ends.
        digest: of the bundle, once it is verified.
        threads: of its model; 0: not yet known.
        model_ns, source_ns: when its model was loaded and its source open, monotonic nanoseconds; 0: not yet.
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
        self.began = threading.Event()
        self.failure: BaseException | None = None
        self.has_place = False
        self.digest: str | None = None
        self.threads = self.model_ns = self.source_ns = 0
        self._output, self._shared, self._waits = output, shared, waits
        self._stop, self._gate = Stop(stop), gate or Gate(0)
        self._before, self._loading = before, loading
        self._runner: PipelineRunner | None = None
        self._stream: Stream | None = None
        self._title = ""
        self._transfer = SourceTransfer(stop.is_asked)
        self._lock = threading.Lock()
        # A daemon thread: a model that hangs in it must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"pipeline {settings.camera}", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own; where there is none to be had, it is over, and failed."""
        try:
            self._thread.start()
        except RuntimeError as cause:
            self.failure = SessionError(f"{self.settings.camera}: no thread for this stream: {cause}")
            self._end()

    def ask(self, reason: str) -> None:
        """Ask it to finish the frame at hand and end."""
        self._stop.ask(reason)

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; False, and its thread is left behind, where it does not come within so many seconds."""
        if self._thread.ident is not None:
            join_or_leave(self._thread, timeout_s)
        return not self._thread.is_alive()

    def withdraw(self) -> bool:
        """End it, unless it has its place already; True where it never will."""
        with self._lock:
            if not self.has_place:
                self._stop.ask("reload")
                self._before = None
            return not self.has_place

    @property
    def has_other_files(self) -> bool:
        """Whether its bundle was replaced in its folder."""
        return self.digest is not None and digest_at(self.settings.bundle) != self.digest

    @property
    def is_over(self) -> bool:
        """Whether it came to its end."""
        return self.began.is_set() and not self._thread.is_alive()

    @property
    def ended_by(self) -> str | None:
        """Why it ended, where that was no error."""
        return (self._runner.ended_by if self._runner else None) or self._stop.reason

    @property
    def first_result_ns(self) -> int:
        """When its first result was in the outbox, monotonic nanoseconds; 0: not yet."""
        return self._runner.first_result_ns if self._runner else 0

    @property
    def title(self) -> str:
        """Describe which model runs on which source, for people; empty while none runs."""
        return self._title if self._runner is not None and self.failure is None else ""

    def health(self) -> CameraHealth | None:
        """Return how it does; None where it does not run."""
        runner = self._runner
        return runner.health() if runner is not None and self._thread.is_alive() else None

    def summary(self, of_all: PublisherStats | LinesStats | None) -> RunSummary:
        """Return what it came to; once its output is closed nothing changes any more."""
        counts = {"budget_ms": self.settings.latency_ms} if self._runner is None else self._runner.counts()
        return RunSummary(
            camera=self.settings.camera,
            **counts,
            publisher=of_all if isinstance(of_all, PublisherStats) else None,
            lines=of_all if isinstance(of_all, LinesStats) else None,
            ended_by="failure" if self.failure is not None else self.ended_by or "signal",
        )

    def warn(self, name: str, line: str) -> None:
        """Have what the device says of itself hold a warning, until this or another stream has the camera."""
        if self._stream is not None:
            self._stream.warn(name, line)
        else:
            self._output.warn_of(self.settings.camera, line)

    def leave_output(self) -> None:
        """Take the camera's name out of what the device says of itself: it is gone for good."""
        self._output.leave(self.settings.camera)

    def take_over(self, is_stopped: Callable[[], bool]) -> OpenedSource | None:
        """End it, and take its source as it is, once it reads it no more."""
        return self._transfer.take(lambda: self.ask("reload"), is_stopped)

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
        self._transfer.end()
        if not self.began.is_set():
            self._gate.arrive()
            self.began.set()

    def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            loading, selector, opening = self._start_up(stack)
            source = self._take_source(stack, opening)
            try:
                self._run_on(source, loading, selector, stack)
            finally:  # before the rest is taken down, which takes longer than a frame does
                self._transfer.give(source)

    def _run_on(
        self, source: OpenedSource, loading: Loading, selector: ModelSelector, stack: contextlib.ExitStack
    ) -> None:
        self.source_ns = time.monotonic_ns()
        bundle, settings = loading.bundle, self.settings
        observers: list[Sink] = []
        if settings.annotate is not None:
            observers.append(_annotated_video(settings.annotate, bundle, source.fps, stack))
        encoder = ResultEncoder.for_bundle(bundle, self._output.identity, self._output.clock)
        self.threads = bundle.manifest.intra_op_num_threads
        budget = Budget(loading.budget_ms, drops=source.paced)
        stream = self._stream = self._output.stream(settings.camera, encoder)
        self._output.warn_of(settings.camera, "")
        observers += _observers_of_events(settings, bundle, stream, stack)
        controls, stages = self._shared.controls, selector.take_stages()
        runner = PipelineRunner(settings, bundle, source, stages, stream, budget, controls, observers)
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
        """Load the model while no other stream does, and begin to open the source beside it."""
        settings, is_stopped = self.settings, self._stop.is_asked
        with self._shared.turn(is_stopped) as is_ours:
            loading = self._begin_loading() if is_ours else None
            if loading is None:
                raise StoppedError
            self.digest = loading.bundle.digest
            stack.enter_context(loading.selector)
            # What can never be opened is said while another stream still has the camera's place.
            kind = check_location(settings.source)
            # A file that plays in its own time plays from when it is opened: not before there is a model that looks.
            is_late = self._before is not None or (kind is VIDEO and not settings.every_frame)
            opening = None if is_late else stack.enter_context(begin_opening(settings, waits=self._waits))
            self._output.prepare()
            until_s = time.monotonic() + _LONGEST_LOAD_S
            if not loading.selector.is_ready(lambda: is_stopped() or time.monotonic() >= until_s):
                if is_stopped():
                    raise StoppedError
                raise SessionError(f"the model did not load within {_LONGEST_LOAD_S:.0f} s")
            selector = loading.selector.take()
            self.model_ns = time.monotonic_ns()
            # Beside other streams nobody waits for a source within this turn: it may take as long as it likes.
            if opening is not None and not self._waits and not opening.is_ready(is_stopped):
                raise StoppedError
            selector.settle(paced=settings.paced)
            return loading, selector, opening

    def _begin_loading(self) -> Loading | None:
        loading, self._loading = self._loading, None
        if loading is not None:
            return loading
        with self.settings.begin_verifying() as verified:
            return begin_loading(self.settings, verified, self._stop, self._shared)

    def _take_source(self, stack: contextlib.ExitStack, opening: BackgroundTask[OpenedSource] | None) -> OpenedSource:
        """Return that of the pipeline whose place this takes, where it is the same; or one that is opened."""
        with self._lock:
            self.has_place = not self._stop.is_asked()  # from here on it cannot be withdrawn
        before, self._before = self._before, None
        if self.has_place and before is not None:
            left = before.take_over(self._stop.is_asked)
            is_same = before.settings.same_source(self.settings)
            del before  # with it goes its model
            if left is not None and not left.ended and is_same:
                return left
            if left is not None:
                left.close()
        if not self._stop.is_asked():
            opening = opening or stack.enter_context(begin_opening(self.settings, waits=self._waits))
            if opening.is_ready(self._stop.is_asked):
                return opening.take()
        raise StoppedError


def _annotated_video(path: Path, bundle: Bundle, fps: float, stack: contextlib.ExitStack) -> Sink:
    """Make a sink that draws each result into a new MP4, which `stack` finishes."""
    from edge_sdk.events.annotate import Annotator
    from edge_sdk.events.video_file import AnnotatedVideo, VideoWriter  # few runs do

    set_up_opencv()  # OpenCV, where it writes: it speaks of each frame for which the disk has no room
    annotator = Annotator(bundle.labels(), background_class=bundle.manifest.classification.background_class)
    return AnnotatedVideo(annotator, stack.enter_context(VideoWriter(path, fps)), fps)


def unknown_labels(settings: PipelineSettings, bundle: Bundle) -> list[str]:
    """Return a line for each label of the stream's events that no class of its bundle has."""
    return [f"[[events]] labels: {line}" for line in unwatched(settings.events, bundle)]


class _EventSink:
    """Publishes an event, and has a picture made of it."""

    def __init__(self, stream: Stream, snapshots: Snapshots | None) -> None:
        self._stream, self._snapshots = stream, snapshots

    def put(self, event: Event, /) -> None:
        self._stream.put(event)
        if self._snapshots is not None:
            self._snapshots.ask()


def _observers_of_events(
    settings: PipelineSettings, bundle: Bundle, stream: Stream, stack: contextlib.ExitStack
) -> list[Sink]:
    """Make the observers of a stream's loop, in their order: a picture is made after what it shows was found."""
    observers: list[Sink] = []
    snapshots = None
    if settings.snapshots is not None:
        snapshots = Snapshots(settings.snapshots, stream.put_snapshot)
        stack.callback(snapshots.close)
    if settings.events:
        for line in unknown_labels(settings, bundle):
            _log.warning(line)
        observers.append(EventWatch(settings.events, labels_by_id(bundle), _EventSink(stream, snapshots)))
    if snapshots is not None:
        observers.append(snapshots)
    return observers
