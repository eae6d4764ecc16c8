"""Streams: the pipelines of a process by their cameras' names.

Owns what becomes of one that fails, and of one that another takes the place of: none of them touches the others.

Differences: what of a configuration is another than before, in words, beside the cameras themselves.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterable, Iterator

from edge_sdk.core.errors import EdgeError, LinesError, failure_line, is_out_of_memory, worst_first
from edge_sdk.core.logs import Say
from edge_sdk.service.output import topics_of
from edge_sdk.service.pipeline import Pipeline
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.service.shared import Gate

_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0
_LONGEST_END_S = 2.0
_LOOK_S = 0.02
_HELD_S = 60.0  # a stream that ran so long begins anew with the first delay
# Want of these passes, and a bundle that could not be read or tried meanwhile is none the worse for it.
_WANTS = {errno.EMFILE, errno.ENFILE, errno.EAGAIN}

Make = Callable[[PipelineSettings, Gate | None, Pipeline | None], Pipeline]
"""Settings, the gate that its first frame waits for, whose place it takes -> a pipeline."""


class Supervisor:
    """The pipelines of a process.

    Args:
        make: makes a pipeline.
        say: takes one line for people.
        is_service: a stream that fails at run time begins again, and one that cannot run is left out; otherwise
            the first failure is that of the process.
        uniform: a random number from 0 to 1, for the jitter.
        clock_s: monotonic seconds, by which a stream begins again.

    Attributes:
        running: by camera; those that ended, too, until others take their place.
    """

    def __init__(
        self,
        make: Make,
        say: Say,
        *,
        is_service: bool,
        uniform: Callable[[], float] = random.random,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running: dict[str, Pipeline] = {}
        self._make, self._say, self._is_service = make, say, is_service
        self._uniform, self._clock_s = uniform, clock_s
        self._coming: dict[str, Pipeline] = {}
        self._leaving: list[Pipeline] = []  # their cameras are gone
        self._ending: list[Pipeline] = []  # others have their cameras
        self._unsure: set[str] = set()
        self._again: dict[str, float] = {}  # when a stream that failed begins again, monotonic seconds
        self._attempts: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._out: dict[str, EdgeError] = {}

    def start(self, settings: Iterable[PipelineSettings], before: dict[str, Pipeline] | None = None) -> None:
        """Start them all; none runs a frame before all have measured what they can do.

        Args:
            settings: of each.
            before: pipelines that ended and left their sources, by camera; nothing else runs any more.
        """
        for kept in (self.running, self._leaving, self._ending, self._again, self._out, self._unsure):
            kept.clear()
        chosen = tuple(settings)
        gate = Gate(len(chosen)) if len(chosen) > 1 else None
        for each in chosen:
            self._begin(each, gate, (before or {}).get(each.camera))

    def change_to(self, settings: Iterable[PipelineSettings]) -> str:
        """Bring what runs to other settings, or other files; what stays the same goes on as if nothing was.

        Args:
            settings: of all streams that shall run.

        Returns:
            What happens now, for people.
        """
        self._look_at_coming()
        wanted = {each.camera: each for each in settings}
        ends = [camera for camera in self.running if camera not in wanted]
        for camera in ends:
            self._end(camera)
        begin, change, stay = list[str](), list[str](), list[str]()
        for camera, each in wanted.items():
            if camera not in self.running:
                begin.append(camera)
                self._begin(each)
                continue
            if camera in self._coming and not _suits(self._coming[camera], each):
                self._call_off(camera)
            latest = self._coming.get(camera, self.running[camera])
            if not _suits(latest, each):
                change.append(camera)
                self._replace(each)
                continue
            (change if camera in self._coming else stay).append(camera)
            if latest.digest is None:  # its files are being read: which ones, is known later
                self._unsure.add(camera)
        words = (("ending", ends), ("new", begin), ("changing", change), ("as before", stay))
        return "; ".join(f"{word}: {', '.join(cameras)}" for word, cameras in words if cameras)

    def look(self) -> None:
        """Look after those that ended, or are about to take another's place.

        Raises:
            BaseException: the failure of a stream that is that of the whole process.
        """
        for camera in list(self._unsure):
            self._look_at_files(camera)
        self._look_at_coming()
        for camera, pipeline in list(self.running.items()):
            if pipeline.is_over and pipeline.failure is not None and camera not in self._coming:
                self._failed(camera, pipeline, pipeline.failure)
        for leaving in [each for each in self._leaving if each.is_over]:
            self._leaving.remove(leaving)
            if leaving.settings.camera not in self.running:
                leaving.leave_outlet()
        self._ending = [each for each in self._ending if not each.is_over]
        now = self._clock_s()
        for camera in [camera for camera, due in self._again.items() if now >= due]:
            del self._again[camera]
            self._begin(self.running[camera].settings)

    @property
    def are_over(self) -> bool:
        """Whether all came to their end, which `look` has seen, and none begins again."""
        return not (self._coming or self._again or self._leaving or self._ending) and all(
            p.is_over and (p.failure is None or camera in self._out) for camera, p in self.running.items()
        )

    @property
    def left_out(self) -> EdgeError | None:
        """The worst of what keeps streams from running; None where none is left out."""
        return min(self._out.values(), key=lambda failure: worst_first(failure.exit_code), default=None)

    @property
    def have_begun(self) -> bool:
        """Whether all that were started run frames, or never will."""
        return not self._coming and all(pipeline.began.is_set() for pipeline in self.running.values())

    def all(self) -> list[Pipeline]:
        """Everything that may still go on."""
        return [*self.running.values(), *self._coming.values(), *self._leaving, *self._ending]

    def stop_for_others(self, is_stopped: Callable[[], bool]) -> dict[str, Pipeline]:
        """End all that runs.

        Args:
            is_stopped: asked while it waits for that.

        Returns:
            What ran, by camera; each left its source for the pipeline that takes its place.
        """
        for camera in list(self._coming):
            self._call_off(camera)
        ended = dict(self.running)
        for camera, pipeline in self.running.items():
            if pipeline.withdraw() and pipeline.forgone is not None:
                ended[camera] = pipeline.forgone
            pipeline.leave_source()
        for pipeline in (*self._leaving, *self._ending):
            pipeline.ask("reload")
        until = time.monotonic() + _LONGEST_END_S
        while not all(each.is_over for each in self.all()) and not is_stopped() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self.join(0.0)
        return ended

    def join(self, timeout_s: float) -> None:
        """Wait for the end of all, together at most so many seconds."""
        until = time.monotonic() + timeout_s
        for pipeline in self.all():
            pipeline.join(max(0.0, until - time.monotonic()))

    def _begin(self, settings: PipelineSettings, gate: Gate | None = None, before: Pipeline | None = None) -> None:
        self._out.pop(settings.camera, None)
        pipeline = self.running[settings.camera] = self._make(settings, gate, before)
        self._started[settings.camera] = self._clock_s()
        pipeline.start()

    def _replace(self, settings: PipelineSettings) -> None:
        camera, before = settings.camera, self.running[settings.camera]
        self._again.pop(camera, None)
        self._attempts.pop(camera, None)
        if before.is_over:
            self._begin(settings, None, before)
        elif before.withdraw():  # it has run nothing yet
            self._ending.append(before)
            self._begin(settings, None, before.forgone)
        else:
            coming = self._coming[camera] = self._make(settings, None, before)
            coming.start()

    def _call_off(self, camera: str) -> None:
        """Nobody is to take the place of what runs; who has it already is what runs."""
        coming = self._coming.pop(camera)
        if coming.withdraw():
            self._ending.append(coming)
        else:
            self._succeed(camera, coming)

    def _succeed(self, camera: str, coming: Pipeline) -> None:
        self._ending.append(self.running[camera])
        self.running[camera] = coming
        self._started[camera] = self._clock_s()

    def _look_at_coming(self) -> None:
        for camera, coming in list(self._coming.items()):
            if coming.began.is_set():
                self._arrived(camera, coming)

    def _arrived(self, camera: str, coming: Pipeline) -> None:
        del self._coming[camera]
        if coming.failure is not None and not coming.has_place and not self.running[camera].is_over:
            self._say(f"{camera}: the new settings cannot run, what ran goes on: {failure_line(coming.failure)}")
        else:
            self._succeed(camera, coming)

    def _look_at_files(self, camera: str) -> None:
        """Whether it got hold of those that were there when the configuration was read again, or of others before."""
        latest = self._coming.get(camera, self.running.get(camera))
        if latest is not None and latest.digest is None and not latest.is_over:
            return
        self._unsure.discard(camera)
        if latest is not None and (latest.has_other_files or latest.failure is not None):
            if camera in self._coming:
                self._call_off(camera)
            self._replace(latest.settings)

    def _end(self, camera: str) -> None:
        coming = self._coming.pop(camera, None)
        for pipeline in (self.running.pop(camera), coming):
            if pipeline is not None:
                pipeline.ask("reload")
                self._leaving.append(pipeline)
        for kept in (self._again, self._attempts, self._started, self._out):
            kept.pop(camera, None)
        self._unsure.discard(camera)

    def _failed(self, camera: str, pipeline: Pipeline, failure: BaseException) -> None:
        if camera in self._again or camera in self._out:
            return
        is_fatal = isinstance(failure, (BrokenPipeError, LinesError)) or not isinstance(failure, Exception)
        if is_fatal or not self._is_service:
            raise failure
        if isinstance(failure, EdgeError) and failure.exit_code != 1 and not _may_pass(failure):
            self._out[camera] = failure
            pipeline.warn("failed", str(failure))
            if len(self.running) > 1:  # else its failure is the process's, and said as that
                self._say(f"{camera}: cannot run, and is left out until the configuration is read again: {failure}")
            if self.left_out is not None and len(self._out) == len(self.running):
                raise self.left_out
            return
        if self._clock_s() - self._started[camera] > _HELD_S:
            self._attempts.pop(camera, None)
        attempt = self._attempts.get(camera, 0)
        self._attempts[camera] = attempt + 1
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt, 10)) * (0.5 + self._uniform() / 2)
        self._again[camera] = self._clock_s() + delay_s
        pipeline.warn("failed", failure_line(failure))
        self._say(f"{camera}: {failure_line(failure)}; begins again in {delay_s:.0f} s")


def _may_pass(failure: BaseException) -> bool:
    """Whether it came of a want of descriptors, processes or memory."""
    if is_out_of_memory(failure):
        return True
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _WANTS:
            return True
        cause = cause.__cause__
    return False


def _suits(pipeline: Pipeline, settings: PipelineSettings) -> bool:
    """Whether it runs, or is about to, what these settings say."""
    return pipeline.settings == settings and pipeline.failure is None and not pipeline.has_other_files


def outlet_words(before: RunSettings, after: RunSettings) -> list[str]:
    """What all streams change for; nothing where they need not."""
    pairs = (
        ("device's name", before.device, after.device),
        ("broker, or how it is used", before.mqtt, after.mqtt),
        ("outbox", before.outbox, after.outbox),
        ("topics that are listened to", topics_of(before), topics_of(after)),
    )
    return [f"other {what}" for what, old, new in pairs if old != new]


def other_words(before: RunSettings, after: RunSettings) -> Iterator[str]:
    """What changes while all streams go on."""
    if before.commands != after.commands:
        yield f"commands: {', '.join(after.commands) or 'none'}"
    if before.home_assistant != after.home_assistant:
        home = after.home_assistant
        yield "Home Assistant: " + ("not told of this device" if home is None or not home.is_enabled else "told anew")
