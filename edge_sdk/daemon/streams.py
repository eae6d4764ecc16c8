"""Streams: the pipelines of a process by their cameras' names.

Owns what becomes of one that fails, and of one that another takes the place of: none of them touches the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

from edge_sdk.daemon.pipeline import Pipeline
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.shared import Gate
from edge_sdk.errors import EdgeError, OutputError

_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0
_LONGEST_END_S = 2.0
_HELD_S = 60.0  # a stream that ran so long begins anew with the first delay

Make = Callable[[PipelineSettings, Gate | None, Pipeline | None], Pipeline]
"""Settings, the gate that its first frame waits for, whose place it takes -> a pipeline."""


class Streams:
    """The pipelines of a process.

    Args:
        make: makes a pipeline.
        say: takes one line for people.
        is_service: a stream that fails at run time begins again, and one that cannot run is left out; otherwise
            the first failure is that of the process.
        uniform: a random number from 0 to 1, for the jitter.

    Attributes:
        running: by camera; those that ended, too, until others take their place.
    """

    def __init__(self, make: Make, say: Say, *, is_service: bool, uniform: Callable[[], float] = random.random) -> None:
        self.running: dict[str, Pipeline] = {}
        self._make, self._say, self._is_service, self._uniform = make, say, is_service, uniform
        self._coming: dict[str, Pipeline] = {}
        self._leaving: list[Pipeline] = []
        self._again: dict[str, float] = {}  # when a stream that failed begins again, monotonic seconds
        self._attempts: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._out: dict[str, BaseException] = {}

    def start(self, settings: Iterable[PipelineSettings], before: dict[str, Pipeline] | None = None) -> None:
        """Start them all; none runs a frame before all have measured what they can do.

        Args:
            settings: of each.
            before: pipelines that ended and left their sources, by camera.
        """
        chosen = tuple(settings)
        gate = Gate(len(chosen)) if len(chosen) > 1 else None
        for each in chosen:
            self._begin(each, gate, (before or {}).get(each.camera))

    def change_to(self, settings: Iterable[PipelineSettings], has_changed: Callable[[Pipeline], bool]) -> str:
        """Bring what runs to other settings; what stays the same goes on as if nothing was.

        Args:
            settings: of all streams that shall run.
            has_changed: whether a pipeline's files are others, though its settings are the same.

        Returns:
            What happens now, for people.
        """
        wanted = {each.camera: each for each in settings}
        ends = [camera for camera in self.running if camera not in wanted]
        for camera in ends:
            self._end(camera)
        begin, change, stay = [], [], []
        for camera, each in wanted.items():
            pipeline = self.running.get(camera)
            if pipeline is None:
                begin.append(camera)
                self._begin(each)
            elif pipeline.settings != each or camera in self._out or camera in self._again or has_changed(pipeline):
                change.append(camera)
                self._replace(each)
            else:
                stay.append(camera)
        words = (("ends", ends), ("is new", begin), ("changes", change), ("stays as it is", stay))
        return "; ".join(f"{', '.join(cameras)} {word}" for word, cameras in words if cameras) or "nothing is left"

    def look(self) -> None:
        """Look after those that ended, or are about to take another's place.

        Raises:
            BaseException: the failure of a stream that is that of the whole process.
        """
        for camera, coming in list(self._coming.items()):
            if coming.began.is_set():
                self._arrived(camera, coming)
        for camera, pipeline in list(self.running.items()):
            if pipeline.is_over and pipeline.failure is not None and camera not in self._coming:
                self._failed(camera, pipeline, pipeline.failure)
        for leaving in [each for each in self._leaving if each.is_over]:
            leaving.leave_outlet()
            self._leaving.remove(leaving)
        now = time.monotonic()
        for camera in [camera for camera, due in self._again.items() if now >= due]:
            del self._again[camera]
            self._begin(self.running[camera].settings)

    @property
    def are_over(self) -> bool:
        """Whether all came to their end, and none begins again."""
        return not (self._coming or self._again or self._leaving) and all(p.is_over for p in self.running.values())

    @property
    def have_begun(self) -> bool:
        """Whether all that were started run frames, or never will."""
        return not self._coming and all(pipeline.began.is_set() for pipeline in self.running.values())

    def beats(self) -> dict[str, int]:
        """How many steps each stream that steps has made."""
        found = {camera: pipeline.beats for camera, pipeline in self.running.items()}
        return {camera: beats for camera, beats in found.items() if beats is not None}

    def all(self) -> list[Pipeline]:
        """Everything that may still go on."""
        return [*self.running.values(), *self._coming.values(), *self._leaving]

    def stop_for_others(self) -> None:
        """End all that runs; each leaves its source for the pipeline that takes its place."""
        for pipeline in self.all():
            pipeline.leave_source()
        self.join(_LONGEST_END_S)
        self.running.clear()
        self._coming.clear()
        self._leaving.clear()
        self._again.clear()
        self._out.clear()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of all, together at most so many seconds."""
        until = time.monotonic() + timeout_s
        for pipeline in self.all():
            pipeline.join(max(0.0, until - time.monotonic()))

    def _begin(self, settings: PipelineSettings, gate: Gate | None = None, before: Pipeline | None = None) -> None:
        self._out.pop(settings.camera, None)
        pipeline = self.running[settings.camera] = self._make(settings, gate, before)
        self._started[settings.camera] = time.monotonic()
        pipeline.start()

    def _replace(self, settings: PipelineSettings) -> None:
        camera, before = settings.camera, self.running[settings.camera]
        self._again.pop(camera, None)
        self._attempts.pop(camera, None)
        earlier = self._coming.pop(camera, None)
        if earlier is not None:
            earlier.ask("reload")
            self._leaving.append(earlier)
        if before.is_over:
            self._begin(settings, None, before)
            return
        coming = self._coming[camera] = self._make(settings, None, before)
        coming.start()

    def _arrived(self, camera: str, coming: Pipeline) -> None:
        del self._coming[camera]
        if coming.failure is not None and not self.running[camera].is_over:
            self._say(f"{camera}: the new settings cannot run, what ran goes on: {_words(coming.failure)}")
            return
        self.running[camera] = coming
        self._started[camera] = time.monotonic()

    def _end(self, camera: str) -> None:
        coming = self._coming.pop(camera, None)
        for pipeline in (self.running.pop(camera), coming):
            if pipeline is not None:
                pipeline.ask("reload")
                self._leaving.append(pipeline)
        self._again.pop(camera, None)
        self._out.pop(camera, None)

    def _failed(self, camera: str, pipeline: Pipeline, failure: BaseException) -> None:
        if camera in self._again or camera in self._out:
            return
        is_fatal = isinstance(failure, (BrokenPipeError, OutputError)) or not isinstance(failure, Exception)
        if is_fatal or not self._is_service:
            raise failure
        if isinstance(failure, EdgeError) and failure.exit_code != 1:
            self._out[camera] = failure
            pipeline.warn("failed", str(failure))
            if len(self._out) == len(self.running):
                raise failure
            self._say(f"{camera}: cannot run, and is left out until the configuration is read again: {failure}")
            return
        if time.monotonic() - self._started[camera] > _HELD_S:
            self._attempts.pop(camera, None)
        attempt = self._attempts.get(camera, 0)
        self._attempts[camera] = attempt + 1
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt, 10)) * (0.5 + self._uniform() / 2)
        self._again[camera] = time.monotonic() + delay_s
        pipeline.warn("failed", _words(failure))
        self._say(f"{camera}: {_words(failure)}; begins again in {delay_s:.0f} s")


def _words(failure: BaseException) -> str:
    if isinstance(failure, EdgeError):
        return str(failure)
    return f"this is a bug in edge-sdk: {type(failure).__name__}: {failure}".splitlines()[0]
