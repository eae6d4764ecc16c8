"""Keep the pipelines of a process running, one a camera: restart those that fail, change those whose settings change.

The main thread calls `Supervisor.look` a few times a second. A pipeline that fails begins again after a delay that
grows; one that cannot run is left out until the configuration is read again. A changed one is replaced: the new
pipeline loads its model while the old one runs, and then takes its place. `output_changes` and `other_changes` list the
differences of two configurations apart from the cameras.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from edge_sdk.core.errors import EdgeError, LinesError, failure_line, is_out_of_memory, worst_first
from edge_sdk.core.threads import Backoff
from edge_sdk.service.output import topics_of
from edge_sdk.service.pipeline import Pipeline
from edge_sdk.service.process import Gate
from edge_sdk.service.settings import PipelineSettings, RunSettings

_log = logging.getLogger(__name__)
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0
_LONGEST_END_S = 2.0
_LOOK_S = 0.02
_HELD_S = 60.0  # after a run of this length the delays begin again with the first
# A shortage of descriptors or processes passes, so an error during one says nothing about the bundle.
_WANTS = {errno.EMFILE, errno.ENFILE, errno.EAGAIN}

Make = Callable[[PipelineSettings, Gate | None, Pipeline | None], Pipeline]
"""Takes the settings, the gate before the first frame and the pipeline to replace; returns a new pipeline."""


class _Camera:
    """One camera's pipelines: `running` has the camera until another takes its place, which `coming` is about to do.

    `again_s` is the time of the restart after a failure; `left_out` the error because of which there will be none.
    `not_taken` says why the settings of the last reload do not run; it is empty where they do.
    """

    def __init__(self, running: Pipeline, started_s: float, backoff: Backoff) -> None:
        self.running, self.started_s, self.backoff = running, started_s, backoff
        self.coming: Pipeline | None = None
        self.again_s: float | None = None
        self.left_out: EdgeError | None = None
        self.not_taken = ""

    @property
    def is_over(self) -> bool:
        """Whether the camera's pipeline ended for good, and `look` has handled that."""
        is_through = self.running.failure is None or self.left_out is not None
        return self.coming is None and self.again_s is None and self.running.is_over and is_through


class Supervisor:
    """Keeps the pipelines of a process running; where it is no service, the first failure ends the process."""

    def __init__(
        self,
        make: Make,
        *,
        is_service: bool,
        uniform: Callable[[float, float], float] = random.uniform,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._is_service = make, is_service
        self._uniform, self._clock_s = uniform, clock_s
        self._cameras: dict[str, _Camera] = {}
        self._ending: list[Pipeline] = []

    @property
    def running(self) -> dict[str, Pipeline]:
        """The pipelines by camera, including those that ended, until others take their place."""
        return {name: camera.running for name, camera in self._cameras.items()}

    def start(self, settings: Iterable[PipelineSettings]) -> None:
        """Start all pipelines in place of earlier ones; none runs a frame before all have measured their models."""
        self._cameras.clear()
        self._ending.clear()
        chosen = tuple(settings)
        gate = Gate(len(chosen)) if len(chosen) > 1 else None
        for each in chosen:
            self._begin(each, gate)

    def change_to(self, settings: Iterable[PipelineSettings], digests: Mapping[Path, str | None]) -> str:
        """Apply other settings or replaced bundles, and return for people what changes; only while `have_begun`.

        `digests` has what `digest_at` says of each bundle now, which this method does not read: the disk may hang.
        """
        wanted = {each.camera: each for each in settings}
        ends = [name for name in self._cameras if name not in wanted]
        for name in ends:
            pipeline = self._cameras.pop(name).running
            pipeline.ask("reload")
            self._ending.append(pipeline)
        begin, change, stay = list[str](), list[str](), list[str]()
        for name, each in wanted.items():
            if name not in self._cameras:
                begin.append(name)
                self._begin(each)
            elif (
                (now := self._cameras[name].running).settings == each
                and not now.failure
                and now.digests in ((), tuple(digests[path] for path in each.bundles))
            ):
                stay.append(name)
                self._set_not_taken(self._cameras[name], "")
            else:
                change.append(name)
                self._replace(self._cameras[name], each)
        words = (("ending", ends), ("new", begin), ("changing", change), ("as before", stay))
        return "; ".join(f"{word}: {', '.join(names)}" for word, names in words if names)

    def look(self) -> None:
        """Handle pipelines that ended, or take another's place; raise a failure that ends the whole process."""
        self._look_at_coming()
        for name, camera in self._cameras.items():
            failure = camera.running.failure
            if camera.running.is_over and failure is not None and camera.coming is None and camera.again_s is None:
                self._failed(name, camera, failure)
        for ended in [each for each in self._ending if each.is_over]:
            self._ending.remove(ended)
            if ended.settings.camera not in self._cameras:
                ended.leave_output()
        for camera in self._cameras.values():
            if camera.again_s is not None and self._clock_s() >= camera.again_s:
                self._begin(camera.running.settings)

    @property
    def are_over(self) -> bool:
        """Whether all pipelines ended, `look` has handled that, and none is restarted."""
        return not self._ending and all(camera.is_over for camera in self._cameras.values())

    @property
    def left_out(self) -> EdgeError | None:
        """The most severe error that keeps a pipeline from running; None where none is left out."""
        out = [camera.left_out for camera in self._cameras.values() if camera.left_out is not None]
        return min(out, key=lambda failure: worst_first(failure.exit_code), default=None)

    @property
    def not_taken(self) -> str:
        """Why pipelines do not run as the last reload has them, one after another; empty where all do."""
        whys = list[str]()
        for name, camera in self._cameras.items():
            failure = camera.running.failure
            if why := camera.not_taken or ("" if failure is None else failure_line(failure)):
                whys.append(f"{name}: {why}")
        return "; ".join(whys)

    @property
    def have_begun(self) -> bool:
        """Whether every started pipeline runs frames, or never will."""
        return all(camera.coming is None and camera.running.began.is_set() for camera in self._cameras.values())

    def all(self) -> list[Pipeline]:
        """Return all pipelines that may still run."""
        of_cameras = [each for camera in self._cameras.values() for each in (camera.running, camera.coming)]
        return [*filter(None, of_cameras), *self._ending]

    def stop(self, is_stopped: Callable[[], bool]) -> None:
        """End all pipelines, before `start` begins others; abandon one that takes longer than two seconds."""
        for pipeline in self.all():
            pipeline.ask("reload")
        until = time.monotonic() + _LONGEST_END_S
        while not all(each.is_over for each in self.all()) and not is_stopped() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self.join(0.0)

    def join(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for all pipelines to end."""
        until = time.monotonic() + timeout_s
        for pipeline in self.all():
            pipeline.join(max(0.0, until - time.monotonic()))

    def _begin(self, settings: PipelineSettings, gate: Gate | None = None) -> None:
        pipeline = self._make(settings, gate, None)
        camera = self._cameras.get(settings.camera)
        if camera is None:
            backoff = Backoff(_FIRST_DELAY_S, _LONGEST_DELAY_S, self._uniform)
            self._cameras[settings.camera] = _Camera(pipeline, self._clock_s(), backoff)
        else:
            camera.running, camera.started_s = pipeline, self._clock_s()
            camera.again_s = camera.left_out = None
        pipeline.start()

    def _replace(self, camera: _Camera, settings: PipelineSettings) -> None:
        before = camera.running
        camera.again_s = None
        camera.backoff.reset()
        if before.is_over:
            self._begin(settings)
        else:
            camera.coming = self._make(settings, None, before)
            camera.coming.start()

    def _set_not_taken(self, camera: _Camera, why: str) -> None:
        if camera.not_taken != why:
            camera.not_taken = why
            camera.running.warn("not_taken", why)

    def _look_at_coming(self) -> None:
        for name, camera in self._cameras.items():
            coming = camera.coming
            if coming is None or not coming.began.is_set():
                continue
            camera.coming = None
            if coming.failure is not None and not coming.has_place and not camera.running.is_over:
                self._set_not_taken(camera, failure_line(coming.failure))
                _log.info(f"{name}: the new settings cannot run, what ran goes on: {camera.not_taken}")
            else:
                camera.not_taken = ""
                self._ending.append(camera.running)
                camera.running, camera.started_s = coming, self._clock_s()

    def _failed(self, name: str, camera: _Camera, failure: BaseException) -> None:
        if camera.left_out is not None:
            return
        is_fatal = isinstance(failure, (BrokenPipeError, LinesError)) or not isinstance(failure, Exception)
        if is_fatal or not self._is_service:
            raise failure
        if isinstance(failure, EdgeError) and failure.exit_code != 1 and not _may_pass(failure):
            camera.left_out = failure
            camera.running.warn("failed", str(failure))
            if len(self._cameras) > 1:  # the failure of a single pipeline ends the process, which reports it
                _log.info(f"{name}: cannot run, and is left out until the configuration is read again: {failure}")
            worst = self.left_out
            if worst is not None and all(each.left_out is not None for each in self._cameras.values()):
                raise worst
            return
        if self._clock_s() - camera.started_s > _HELD_S:
            camera.backoff.reset()
        delay_s = camera.backoff.next_s()
        camera.again_s = self._clock_s() + delay_s
        camera.running.warn("failed", failure_line(failure))
        _log.info(f"{name}: {failure_line(failure)}; begins again in {delay_s:.0f} s")


def _may_pass(failure: BaseException) -> bool:
    """Return whether the cause is a shortage of descriptors, processes or memory, which may pass."""
    if is_out_of_memory(failure):
        return True
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _WANTS:
            return True
        cause = cause.__cause__
    return False


def output_changes(before: RunSettings, after: RunSettings) -> list[str]:
    """Return the changes for which the publisher must restart; empty where there are none."""
    pairs = (
        ("device's name", before.device, after.device),
        ("broker, or how it is used", before.mqtt, after.mqtt),
        ("outbox", before.outbox, after.outbox),
        ("topics that are listened to", topics_of(before), topics_of(after)),
    )
    return [f"other {what}" for what, old, new in pairs if old != new]


def other_changes(before: RunSettings, after: RunSettings) -> Iterator[str]:
    """Yield the changes that apply while all pipelines go on."""
    if before.commands != after.commands:
        yield f"commands: {', '.join(after.commands) or 'none'}"
    if before.home_assistant != after.home_assistant:
        home = after.home_assistant
        yield "Home Assistant: " + ("not told of this device" if home is None or not home.is_enabled else "told anew")
