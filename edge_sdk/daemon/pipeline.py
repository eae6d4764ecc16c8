"""Pipeline: one stream of a device, from its source to the outbox, in a thread of its own.

Owns the order of starting (load the model, open the source beside it, measure) and of stopping (finish the frame, give
everything back), and the handing over of a source to the pipeline that takes its place.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.ahead import Ahead
from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.camera import Kind, OpenedSource, kind_of, open_source
from edge_sdk.daemon.loading import Loading
from edge_sdk.daemon.outlet import Stream
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.shared import Gate, Shared
from edge_sdk.daemon.steering import Steering
from edge_sdk.daemon.stepping import Stepping
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.errors import StoppedError
from edge_sdk.left_behind import join_or_leave
from edge_sdk.loop import Loop
from edge_sdk.protocols import Sink
from edge_sdk.publishing import ResultEncoder, load_client
from edge_sdk.stop import Stop

if TYPE_CHECKING:
    from edge_sdk.annotate import AnnotatedVideo

_LOOK_S = 0.05  # how soon a request to stop is seen

Begin = Callable[[PipelineSettings, Say, Stop, Shared], Loading | None]
"""Verifies and tries the bundle, and begins to load its model; None when told to stop first."""


class Pipeline:
    """One stream; `start` it once.

    Args:
        settings: of the stream.
        begin: what verifies its bundle, and begins to load the model.
        open_stream: the camera, the encoder, whether no result may be dropped -> what takes the results.
        encoder_of: makes what turns the results of a bundle into messages.
        shared: what the streams of this process have in common.
        say: takes status lines; never called once a frame.
        stop: of the whole process.
        waits: a camera that is not there yet is waited for.
        is_quiet: nothing is said every few seconds.
        gate: is waited for before the first frame.
        before: whose place it takes, once its own model is loaded; that one goes on until then, and hands over its
            source where that is the same.
        use_threads: told how many threads the model has.

    Attributes:
        settings: as given.
        began: set once frames are run, or never will be.
        failure: what it ended by, where that was an error.
        digest: of the bundle, once it is verified.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        begin: Begin,
        open_stream: Callable[[str, ResultEncoder, bool], Stream],
        encoder_of: Callable[[Bundle], ResultEncoder],
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
        self.digest: str | None = None
        self._begin, self._open_stream, self._encoder_of, self._shared = begin, open_stream, encoder_of, shared
        self._say, self._stop, self._waits, self._gate = say, Stop(stop), waits, gate
        self._before, self._use_threads = before, use_threads
        self._stepping: Stepping | None = None
        self._stream: Stream | None = None
        self._heir = threading.Event()  # set where the source is not closed, but left for another
        self._left: OpenedSource | None = None
        # A daemon thread: a model that hangs in it must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"pipeline {settings.camera}", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def ask(self, reason: str) -> None:
        """Finish the frame at hand and end."""
        self._stop.ask(reason)

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; False, and its thread is left behind, where it does not come within so many seconds."""
        join_or_leave(self._thread, timeout_s)
        return not self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether it came to its end."""
        return self.began.is_set() and not self._thread.is_alive()

    @property
    def beats(self) -> int | None:
        """Steps so far; None where it does not step."""
        stepping = self._stepping
        return stepping.beats if stepping is not None and self._thread.is_alive() else None

    @property
    def ended_by(self) -> str | None:
        """Why it ended, where that was no error."""
        return (self._stepping.ended_by if self._stepping else None) or self._stop.reason

    @property
    def first_result_ns(self) -> int:
        """When its first result was in the outbox, monotonic nanoseconds; 0: not yet."""
        return self._stepping.first_result_ns if self._stepping else 0

    def summary(self) -> RunSummary:
        """What it came to; once its outlet is closed nothing changes any more."""
        if self._stepping is None or self._stream is None:
            return RunSummary.of_nothing(self.settings.camera, self.ended_by or "signal", self.settings.latency_ms)
        return self._stepping.summary(self._stream, self.ended_by or "signal")

    def warn(self, name: str, line: str) -> None:
        """Have what the device says of itself hold a warning."""
        if self._stream is not None:
            self._stream.warn(name, line)

    def leave_outlet(self) -> None:
        """The camera is gone for good: its name leaves what the device says of itself."""
        if self._stream is not None:
            self._stream.close()

    def leave_source(self) -> None:
        """End it, but leave its source open for `take_over`."""
        self._heir.set()
        self.ask("reload")

    def take_over(self) -> OpenedSource | None:
        """End it, and take its source as it is; None where that was closed, or never open."""
        self.leave_source()
        while not self._stop.is_whole_asked() and self._thread.is_alive():
            self._thread.join(_LOOK_S)
        left, self._left = self._left, None
        return left

    def _run(self) -> None:
        try:
            self._work()
        except StoppedError:
            self._stop.ask()
        except BaseException as failure:  # noqa: BLE001 - a thread can raise to nobody: the daemon looks at it
            self.failure = failure
        finally:
            if not self.began.is_set():
                self._arrive()
            self._before = None
            self.began.set()

    def _arrive(self) -> None:
        if self._gate is not None:
            self._gate.arrive()

    def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            ready: list[tuple[Loading, Steering, OpenedSource | None]] = []
            if not self._shared.start(lambda: self._make_ready(stack, ready), self._stop.is_asked) or not ready:
                self._stop.ask()
                return
            loading, steering, opened = ready.pop()
            source = opened or self._inherit(stack)
            if source is None:
                self._stop.ask()
                return
            stack.callback(self._give_back, source)
            observers: list[Sink] = []
            if self.settings.annotate is not None:
                video = _annotated_video(self.settings.annotate, loading.bundle, source.fps)
                observers.append(stack.enter_context(video))
            encoder = self._encoder_of(loading.bundle)
            self._use_threads(loading.bundle.manifest.intra_op_num_threads)
            budget = Budget(loading.budget_ms, drops=source.paced)
            stream = self._stream = self._open_stream(self.settings.camera, encoder, not source.paced)
            stepping = Stepping(self.settings, source, steering.take_stages(), stream, budget, self._say, observers)
            loop: Loop = stepping.loop
            self._arrive()
            if self._gate is not None:
                self._gate.wait(self._stop.is_asked)
            stepping.supervisors += steering.begin(stack, loop, budget, encoder, stream, source)
            self._stepping = stepping
            self.began.set()
            stepping.run(self._stop, rare_lines=self._waits)

    def _make_ready(
        self, stack: contextlib.ExitStack, ready: list[tuple[Loading, Steering, OpenedSource | None]]
    ) -> None:
        """Load the model and open the source beside it; what is wrong with the model is said first."""
        loading = self._begin(self.settings, self._say, self._stop, self._shared)
        if loading is None:
            return
        self.digest = loading.bundle.digest
        stack.enter_context(loading)
        model = loading.steering
        # A file that plays in its own time plays from when it is opened: not before there is a model that looks.
        is_late = self._before is not None or (
            kind_of(self.settings.source) is Kind.VIDEO and not self.settings.every_frame
        )
        opening = None if is_late else self._begin_opening(stack)
        load_client()
        if not model.is_ready(self._stop.is_asked):
            return
        steering = model.take()
        if self._before is not None:
            steering.settle(paced=self._is_paced())
            ready.append((loading, steering, None))
            return
        opening = opening or self._begin_opening(stack)
        if opening.is_ready(self._stop.is_asked):
            source = opening.take()
            try:
                steering.settle(paced=source.paced)
            except BaseException:
                source.close()
                raise
            ready.append((loading, steering, source))

    def _is_paced(self) -> bool:
        return kind_of(self.settings.source) is not Kind.IMAGES and not self.settings.every_frame

    def _inherit(self, stack: contextlib.ExitStack) -> OpenedSource | None:
        """The source of the pipeline whose place this takes, where it is the same; another one is opened anew."""
        before = self._before
        if before is not None:
            left = before.take_over()
            if left is not None and not left.ended and before.settings.same_source(self.settings):
                return left
            if left is not None:
                left.close()
        opening = self._begin_opening(stack)
        return opening.take() if opening.is_ready(self._stop.is_asked) else None

    def _give_back(self, source: OpenedSource) -> None:
        if self._heir.is_set():
            self._left = source
        else:
            source.close()

    def _begin_opening(self, stack: contextlib.ExitStack) -> Ahead[OpenedSource]:
        settings = self.settings
        password = settings.source_password.reveal() if settings.source_password else None

        def open_it() -> OpenedSource:
            return open_source(
                settings.source,
                camera=settings.camera,
                password=password,
                realtime=not settings.every_frame,
            )

        return stack.enter_context(Ahead(open_it, "edge-source", undo=lambda source: source.close()))


@contextlib.contextmanager
def _annotated_video(path: Path, bundle: Bundle, fps: float) -> Iterator[AnnotatedVideo]:
    from edge_sdk.annotate import AnnotatedVideo, Annotator, VideoWriter  # few runs do

    annotator = Annotator(bundle.labels(), background_class=bundle.manifest.classification.background_class)
    with VideoWriter(path, fps) as writer:
        yield AnnotatedVideo(annotator, writer, fps)
