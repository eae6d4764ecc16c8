"""Pipeline: one stream of a device, from its source to the outbox, in a thread of its own.

Owns the order of starting (load the model, open the source beside it, measure) and of stopping (finish the frame, give
everything back).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from edge_sdk.ahead import Ahead
from edge_sdk.budget import Budget
from edge_sdk.bundle import digest_at
from edge_sdk.camera import OpenedSource, redact
from edge_sdk.daemon.annotating import annotated_video
from edge_sdk.daemon.eventful import observers_of_events
from edge_sdk.daemon.handover import Handover
from edge_sdk.daemon.obeying import Obeying
from edge_sdk.daemon.outlet import Outlet
from edge_sdk.daemon.readiness import Begin, Readiness
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.shared import Gate, Shared
from edge_sdk.daemon.stepping import Stepping
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.daemon.watched_source import WatchedSource
from edge_sdk.errors import SessionError, StoppedError
from edge_sdk.left_behind import join_or_leave
from edge_sdk.protocols import Sink
from edge_sdk.publishing import CameraHealth, LinesStats, PublisherStats, ResultEncoder, Stream
from edge_sdk.stop import Stop


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
        outlet: Outlet,
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
        self._readiness = Readiness(settings, begin, shared, say, self._stop, waits=waits)
        self._before, self._use_threads = before, use_threads
        self.forgone: Pipeline | None = None
        self._stepping: Stepping | None = None
        self._stream: Stream | None = None
        self._title = ""
        self.handover = Handover(stop.is_asked)
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
            stepping = Stepping(self.settings, source, steering.take_stages(), stream, budget, *told)
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

    def _take_source(self, stack: contextlib.ExitStack, opening: Ahead[OpenedSource] | None) -> OpenedSource | None:
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
