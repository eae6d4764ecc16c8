"""Pipeline: one stream of a device, from its source to the outbox, in a thread of its own.

Owns the order of starting (load the model, open the source beside it, measure) and of stopping (finish the frame, give
everything back).

Readiness: what a stream has ready before its first frame: its model, and its source opened beside it.

Handover: a pipeline's source, which is closed at its end, or left for the one that takes its place.

A stream's source, opened in a thread of its own.

The annotated video of a run, while it lasts.

Eventful: what a stream does beside results: it tells events, and has pictures made of them.

Labels that a configuration names, and that no class of a bundle has.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edge_sdk.bundle.bundle import Bundle, digest_at
from edge_sdk.core.errors import SessionError, StoppedError
from edge_sdk.core.logs import Say
from edge_sdk.core.protocols import Event, Sink
from edge_sdk.core.threads import BackgroundTask, Stop, join_or_leave
from edge_sdk.events.rules import EventWatch, labels_by_id, missing_labels, unwatched
from edge_sdk.events.snapshots import Snapshots
from edge_sdk.loop import Budget
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import CameraHealth
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.publisher import LinesStats, PublisherStats, Stream
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.monitors import WatchedSource
from edge_sdk.service.output import Output
from edge_sdk.service.runner import Obeying, PipelineRunner, RunSummary
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Gate, Shared
from edge_sdk.service.startup import Loading
from edge_sdk.sources.location import redact
from edge_sdk.sources.opencv import set_up_opencv
from edge_sdk.sources.opening import VIDEO, check_location, open_source
from edge_sdk.sources.slot import OpenedSource

if TYPE_CHECKING:
    from edge_sdk.events.video_file import AnnotatedVideo


def source_ahead(settings: PipelineSettings, *, waits: bool) -> BackgroundTask[OpenedSource]:
    """Begin to open it; who takes it closes it.

    Args:
        settings: of the stream.
        waits: a camera that is not there yet is waited for.
    """
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


_LONGEST_LOAD_S = 240.0  # others wait for their turn; a service manager gives all of them five minutes

Begin = Callable[[PipelineSettings, Say, Stop, Shared], Loading | None]
"""Verifies and tries the bundle, and begins to load its model; None when told to stop first."""


class Ready(NamedTuple):
    """A loaded bundle, what steers its model, and what opens its source, where that has begun."""

    loading: Loading
    steering: ModelSelector
    opening: BackgroundTask[OpenedSource] | None


class PipelineStartup:
    """Of one stream; all calls come from its thread.

    Args:
        settings: of the stream.
        begin: what verifies its bundle, and begins to load the model.
        shared: what the streams of this process have in common.
        say: takes status lines.
        stop: of the stream.
        waits: a camera that is not there yet is waited for.

    Attributes:
        digest: of the bundle, once it is verified.
        model_ns: when its model was loaded, monotonic nanoseconds; 0: not yet.
    """

    def __init__(
        self, settings: PipelineSettings, begin: Begin, shared: Shared, say: Say, stop: Stop, *, waits: bool
    ) -> None:
        self.digest: str | None = None
        self.model_ns = 0
        self._settings, self._begin, self._shared, self._say = settings, begin, shared, say
        self._stop, self._waits = stop, waits

    def reach(self, stack: contextlib.ExitStack, prepare: Callable[[], None], *, inherits: bool) -> Ready | None:
        """Load the model while no other stream does, and begin to open the source beside it.

        Args:
            stack: takes back what is begun.
            prepare: is called while the model loads.
            inherits: the source is not opened: it comes from the pipeline whose place this takes.

        Returns:
            None when told to stop first.

        Raises:
            SessionError: the model did not load in time.
        """
        ready: list[Ready] = []
        self._shared.start(lambda: ready.extend(self._make_ready(stack, prepare, inherits)), self._stop.is_asked)
        return ready.pop() if ready else None

    def open_source(
        self, stack: contextlib.ExitStack, opening: BackgroundTask[OpenedSource] | None
    ) -> OpenedSource | None:
        """Its source; None when told to stop first. Who gets it closes it.

        Args:
            stack: takes back what is begun.
            opening: what opens it, where that has begun.
        """
        if self._stop.is_asked():
            return None
        opening = opening or stack.enter_context(self._opening())
        return opening.take() if opening.is_ready(self._stop.is_asked) else None

    def _make_ready(self, stack: contextlib.ExitStack, prepare: Callable[[], None], inherits: bool) -> list[Ready]:
        """What is wrong with the model is said before what is wrong with the source."""
        loading = self._begin(self._settings, self._say, self._stop, self._shared)
        if loading is None:
            return []
        self.digest = loading.bundle.digest
        stack.enter_context(loading)
        model = loading.steering
        # What can never be opened is said while another stream still has the camera's place.
        kind = check_location(self._settings.source)
        # A file that plays in its own time plays from when it is opened: not before there is a model that looks.
        is_late = inherits or (kind is VIDEO and not self._settings.every_frame)
        opening = None if is_late else stack.enter_context(self._opening())
        prepare()
        until_s = time.monotonic() + _LONGEST_LOAD_S
        if not model.is_ready(lambda: self._stop.is_asked() or time.monotonic() >= until_s):
            if not self._stop.is_asked():
                raise SessionError(f"the model did not load within {_LONGEST_LOAD_S:.0f} s")
            return []
        steering = model.take()
        self.model_ns = time.monotonic_ns()
        # Beside other streams nobody waits for a source within this turn: it may take as long as it likes.
        if opening is not None and not self._waits and not opening.is_ready(self._stop.is_asked):
            return []
        steering.settle(paced=self._settings.paced)
        return [Ready(loading, steering, opening)]

    def _opening(self) -> BackgroundTask[OpenedSource]:
        return source_ahead(self._settings, waits=self._waits)


_LOOK_S = 0.05  # how soon the end of the process is seen


class SourceTransfer:
    """Of one pipeline's source; `give` is called by its own thread, the rest by others.

    Args:
        is_ending: whether the whole process comes to its end, so that nobody goes on with a source.
    """

    def __init__(self, is_ending: Callable[[], bool]) -> None:
        self._is_ending = is_ending
        self._lock = threading.Lock()
        self._is_wanted = self._is_given = False
        self._done = threading.Event()
        self._left: OpenedSource | None = None

    def want(self) -> None:
        """Have it left, and not closed."""
        with self._lock:
            self._is_wanted = True

    def give(self, source: OpenedSource) -> None:
        """Read it no more: it is left, or closed; only the first call counts."""
        with self._lock:
            if self._is_given:
                return
            self._is_given = True
            is_left = self._is_wanted and not self._is_ending()
            if is_left:
                self._left = source
        if not is_left:
            source.close()
        self._done.set()

    def end(self) -> None:
        """Nothing more will be given."""
        self._done.set()

    def take(self, is_stopped: Callable[[], bool]) -> OpenedSource | None:
        """Wait for it; None where it was closed, or never open.

        Args:
            is_stopped: once True, it is not waited for any more, and closed when it comes.
        """
        self.want()
        while not is_stopped() and not self._done.wait(_LOOK_S):
            pass
        return self._left_until_now()

    def close_left(self) -> None:
        """Close what was left, or will be, and not taken."""
        left = self._left_until_now()
        if left is not None:
            left.close()

    def _left_until_now(self) -> OpenedSource | None:
        with self._lock:
            self._is_wanted = False
            left, self._left = self._left, None
            return left


@contextlib.contextmanager
def annotated_video(path: Path, bundle: Bundle, fps: float) -> Iterator[AnnotatedVideo]:
    """A sink that draws each result into a new MP4.

    Args:
        path: of the file.
        bundle: whose labels are drawn.
        fps: of the source.

    Raises:
        OutputError: the file cannot be written.
    """
    from edge_sdk.events.annotate import Annotator
    from edge_sdk.events.video_file import AnnotatedVideo, VideoWriter  # few runs do

    set_up_opencv()  # OpenCV, where it writes: it speaks of each frame for which the disk has no room
    annotator = Annotator(bundle.labels(), background_class=bundle.manifest.classification.background_class)
    with VideoWriter(path, fps) as writer:
        yield AnnotatedVideo(annotator, writer, fps)


def unknown_labels(settings: PipelineSettings, bundle: Bundle) -> list[str]:
    """A line for each label of the stream's events that no class of its bundle has.

    Raises:
        BundleError: the bundle's labels changed since it was opened.
    """
    return [f"[[events]] labels: {line}" for line in unwatched(settings.events, bundle)]


def unknown_home_labels(settings: HomeAssistantSettings | None, labels: Collection[str]) -> list[str]:
    """A line for each label that Home Assistant shall be told of, and that is none of these.

    Args:
        settings: None: there is no Home Assistant.
        labels: of all bundles together: a camera may have what another one has not.
    """
    if settings is None or not settings.is_enabled:
        return []
    of = "is no label of a bundle here, so it has no entity"
    return [f"home_assistant.labels: {line}" for line in missing_labels(settings.labels, labels, of)]


class _Told:
    """Publishes an event, and has a picture made of it."""

    def __init__(self, stream: Stream, snapshots: Snapshots | None) -> None:
        self._stream, self._snapshots = stream, snapshots

    def put(self, event: Event, /) -> None:
        self._stream.put(event)
        if self._snapshots is not None:
            self._snapshots.ask()


def observers_of_events(
    settings: PipelineSettings, bundle: Bundle, stream: Stream, stack: contextlib.ExitStack, say: Say
) -> list[Sink]:
    """Observers for a stream's loop, in their order: a picture is made after what it shows was found.

    Args:
        settings: of the stream.
        bundle: that runs.
        stream: takes events and pictures.
        stack: closes what needs it.
        say: takes one line for people.

    Raises:
        BundleError: the bundle's labels changed since it was opened.
    """
    observers: list[Sink] = []
    snapshots = None
    if settings.snapshots is not None:
        snapshots = Snapshots(settings.snapshots, stream.put_snapshot)
        stack.callback(snapshots.close)
    if settings.events:
        for line in unknown_labels(settings, bundle):
            say(f"warning: {line}")
        observers.append(EventWatch(settings.events, labels_by_id(bundle), _Told(stream, snapshots)))
    if snapshots is not None:
        observers.append(snapshots)
    return observers


class Pipeline:
    """One stream; `start` it once.

    Args:
        settings: of the stream.
        begin: what verifies its bundle, and begins to load the model.
        outlet: takes the results.
        shared: what the streams of this process have in common.
        say: takes status lines; never called once a frame.
        stop: of the whole process.
        waits: a camera that is not there yet is waited for.
        gate: is waited for before the first frame.
        before: whose place it takes once its own model is loaded, and whose source, where that is the same.
        use_threads: told how many threads the model has.

    Attributes:
        settings: as given.
        began: set once frames are run, or never will be.
        failure: what it ended by, where that was an error.
        handover: of its source.
        has_place: whether it is about to run frames, or did: what ran before it ends.
        forgone: whose place it would have taken, where it was withdrawn.
        source_ns: when its source was open, monotonic nanoseconds; 0: not yet.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        begin: Begin,
        outlet: Output,
        shared: Shared,
        say: Say,
        stop: Stop,
        *,
        waits: bool = False,
        gate: Gate | None = None,
        before: Pipeline | None = None,
        use_threads: Callable[[int], None] = lambda _threads: None,
    ) -> None:
        self.settings = settings
        self.began = threading.Event()
        self.failure: BaseException | None = None
        self._outlet, self._shared = outlet, shared
        self._say, self._stop, self._waits, self._gate = say, Stop(stop), waits, gate or Gate(0)
        self._readiness = PipelineStartup(settings, begin, shared, say, self._stop, waits=waits)
        self._before, self._use_threads = before, use_threads
        self.forgone: Pipeline | None = None
        self._stepping: PipelineRunner | None = None
        self._stream: Stream | None = None
        self._title = ""
        self.handover = SourceTransfer(stop.is_asked)
        self._lock = threading.Lock()
        self.has_place = False
        self._watched: WatchedSource | None = None  # by who had the source before
        self.source_ns = 0
        # A daemon thread: a model that hangs in it must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"pipeline {settings.camera}", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own; where there is none to be had, it is over, and failed."""
        try:
            self._thread.start()
        except RuntimeError as cause:
            self.failure = SessionError(f"{self.settings.camera}: no thread for this stream: {cause}")
            self._gate.arrive()
            self.handover.end()
            self.began.set()

    def ask(self, reason: str) -> None:
        """Finish the frame at hand and end."""
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
                self._before, self.forgone = None, self._before
            return not self.has_place

    @property
    def digest(self) -> str | None:
        """Of the bundle, once it is verified."""
        return self._readiness.digest

    @property
    def model_ns(self) -> int:
        """When its model was loaded, monotonic nanoseconds; 0: not yet."""
        return self._readiness.model_ns

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
        return (self._stepping.ended_by if self._stepping else None) or self._stop.reason

    @property
    def first_result_ns(self) -> int:
        """When its first result was in the outbox, monotonic nanoseconds; 0: not yet."""
        return self._stepping.first_result_ns if self._stepping else 0

    @property
    def title(self) -> str:
        """What runs where, for people; empty where nothing does."""
        return self._title if self._stepping is not None and self.failure is None else ""

    def health(self) -> CameraHealth | None:
        """How it does; None where it does not run."""
        stepping = self._stepping
        return stepping.health() if stepping is not None and self._thread.is_alive() else None

    def summary(self, of_all: PublisherStats | LinesStats | None) -> RunSummary:
        """What it came to; once its outlet is closed nothing changes any more.

        Args:
            of_all: what became of the results of all streams.
        """
        ended_by = "failure" if self.failure is not None else self.ended_by or "signal"
        if self._stepping is None:
            return RunSummary.of_nothing(self.settings.camera, ended_by, self.settings.latency_ms, of_all)
        return self._stepping.summary(ended_by, of_all)

    def warn(self, name: str, line: str) -> None:
        """Have what the device says of itself hold a warning, until this or another stream has the camera."""
        if self._stream is not None:
            self._stream.warn(name, line)
        else:
            self._outlet.warn_of(self.settings.camera, line)

    def leave_outlet(self) -> None:
        """The camera is gone for good: its name leaves what the device says of itself."""
        self._outlet.leave(self.settings.camera)

    def leave_source(self) -> None:
        """End it, but leave its source open for `take_over`."""
        self.handover.want()
        self.ask("reload")

    def take_over(self, is_stopped: Callable[[], bool]) -> OpenedSource | None:
        """End it, and take its source as it is, once it reads it no more; see `Handover.take`."""
        self.leave_source()
        return self.handover.take(is_stopped)

    def _run(self) -> None:
        try:
            self._work()
        except StoppedError:
            self._stop.ask()
        except BaseException as failure:  # noqa: BLE001 - a thread can raise to nobody: the daemon looks at it
            self.failure = failure
        if not self.began.is_set():
            self._gate.arrive()
        try:
            if self._before is not None:
                self._before.handover.close_left()
        except Exception as failure:  # noqa: BLE001 - as above
            self.failure = self.failure or failure
        finally:
            self._before = None
            self.handover.end()
            self.began.set()

    def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            ready = self._readiness.reach(stack, self._outlet.prepare, inherits=self._before is not None)
            if ready is None:
                self._stop.ask()
                return
            loading, steering, opening = ready
            source = self._take_source(stack, opening) if self._takes_place() else None
            if source is None:
                self._stop.ask()
                return
            stack.callback(self.handover.give, source)
            self.source_ns = time.monotonic_ns()
            observers: list[Sink] = []
            if self.settings.annotate is not None:
                video = annotated_video(self.settings.annotate, loading.bundle, source.fps)
                observers.append(stack.enter_context(video))
            encoder = ResultEncoder.for_bundle(loading.bundle, self._outlet.identity, self._outlet.clock)
            self._use_threads(loading.bundle.manifest.intra_op_num_threads)
            budget = Budget(loading.budget_ms, drops=source.paced)
            stream = self._stream = self._outlet.stream(self.settings.camera, encoder)
            self._outlet.warn_of(self.settings.camera, "")
            has_events = bool(self.settings.events)
            obeying = Obeying(
                self._shared.controls, stream, loading.bundle, is_paced=source.paced, tells_events=has_events
            )
            observers += observers_of_events(self.settings, loading.bundle, stream, stack, self._say)
            told = (self._say, obeying, observers, self._watched)
            stepping = PipelineRunner(self.settings, source, steering.take_stages(), stream, budget, *told)
            self._gate.arrive()
            self._gate.wait(self._stop.is_asked)
            self._title = f"{loading.bundle.manifest.name} runs on {redact(self.settings.source)}"
            self._stepping = stepping
            self.began.set()
            stepping.run(
                self._stop,
                self._shared.progress,
                lambda: steering.begin(stack, stepping.loop, budget, encoder, stream, source),
                rare_lines=self._waits,
            )
            # Before the rest is taken down, which takes longer than a frame does.
            self.handover.give(source)

    def _takes_place(self) -> bool:
        """Whether it was not withdrawn; from here on it cannot be."""
        with self._lock:
            self.has_place = not self._stop.is_asked()
            return self.has_place

    def _take_source(
        self, stack: contextlib.ExitStack, opening: BackgroundTask[OpenedSource] | None
    ) -> OpenedSource | None:
        """That of the pipeline whose place this takes, where it is the same; or one that is opened."""
        before = self._before
        if before is not None:
            left = before.take_over(self._stop.is_asked)
            self._before = None  # with it goes its model
            if left is not None and not left.ended and before.settings.same_source(self.settings):
                self._watched = before._stepping.watched if before._stepping is not None else None
                return left
            if left is not None:
                left.close()
        return self._readiness.open_source(stack, opening)
