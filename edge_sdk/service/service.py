"""Run the pipelines of one process, each in a thread of its own, until told to stop.

`Service` defines the order of starting and stopping, and applies a reload: the supervisor changes single pipelines;
another broker or device name restarts the publisher and all pipelines. The main thread looks at the pipelines, the
health, the commands and the reload ten times a second. A configuration and its bundles are read in a thread of their
own, because their disk may hang.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from edge_sdk.bundle.bundle import digest_at
from edge_sdk.core.errors import CameraError, ConfigError, EdgeError, failure_line
from edge_sdk.core.logs import name_cameras
from edge_sdk.core.opencv import cv2
from edge_sdk.core.threads import BackgroundTask, Stop
from edge_sdk.publishing.publisher import NameLock
from edge_sdk.service.commands import CommandHandler, CommandInbox, Told
from edge_sdk.service.health import HealthReporter
from edge_sdk.service.model_selector import Loading
from edge_sdk.service.output import Output
from edge_sdk.service.pipeline import Pipeline
from edge_sdk.service.process import Gate, Notifier, Shared, Start
from edge_sdk.service.runner import RunSummary
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.service.supervisor import Supervisor, other_changes, output_changes

_log = logging.getLogger(__name__)
_LOOK_S = 0.1  # time between two checks, and so the delay until a signal is noticed
# A program that is told to stop has two seconds in all. The next two times are counted from that moment.
_JOIN_S = 0.9  # for all pipelines to end
_END_S = 1.4  # for all pipelines to end and the waiting results to be published ...
_CLOSE_TIMEOUT_S = 0.9  # ... of which this is the most for the results
_SHORTEST_S = 0.2  # the least time for each of these however late it is, and then for writing the last events to disk
_VIDEO_S = 125.0  # for the pipelines where one writes a video: an unfinished file is useless, and slow boards take long
_LONGER_S = 1.5  # for the results when the process ends without a request

_Reread: TypeAlias = tuple[RunSettings, dict[Path, str | None]]
"""A configuration that was read again, and the digest of each of its bundles."""


class Service:
    """Runs the pipelines of one process."""

    def __init__(
        self,
        settings: RunSettings,
        shared: Shared,
        stop: Stop,
        notifier: Notifier,
        start: Start,
        reread: Callable[[], RunSettings] | None = None,
        loading: Loading | None = None,
    ) -> None:
        self._settings, self._shared, self._loading = settings, shared, loading
        self._stop, self._reread = stop, reread
        ask_to_reload = None if reread is None else self._ask_to_reload
        inbox = CommandInbox()
        self._output = Output(settings, stop.is_asked, receiver=inbox)
        self._commands = CommandHandler(settings, shared.controls, inbox, self._output, ask_to_reload)
        self._health = HealthReporter(notifier, start, self._output, shared.progress)
        self._supervisor = Supervisor(self._make, is_service=settings.waits)
        self._reading: BackgroundTask[_Reread] | None = None
        self._told: Told | None = None  # the callback of a command that waits for a reload
        self._names: dict[str, NameLock] = {}  # locks by key; two while a reload changes the name
        self._threads = 0  # threads of OpenCV
        self.left_out: EdgeError | None = None  # the worst error that kept a pipeline from running, set at the end

    def run(self) -> dict[str, RunSummary]:
        """Run until the sources end, a limit is reached or a stop is asked for; return the summaries by camera.

        Raises:
            EdgeError: a pipeline failed, and the process ends with it because `waits` is not set; or another program
                publishes under this device's name.
        """
        supervisor, health = self._supervisor, self._health
        try:
            self._lock_name(self._settings)
            name_cameras(wanted=len(self._settings.pipelines) > 1)
            supervisor.start(self._settings.pipelines)
            self._wait()
            self._tell("the program ends")
            if self._reading is not None:
                self._reading.close(0.0)
            health.stopping()
        finally:
            for pipeline in supervisor.all():
                pipeline.ask(self._stop.reason or "signal")
            draws = any(pipeline.annotate for pipeline in self._settings.pipelines)
            supervisor.join(_VIDEO_S if draws else self._left_s(_JOIN_S))
            health.close()
            self._shared.close()
            if self._stop.is_asked() and not draws:
                self._output.close(min(_CLOSE_TIMEOUT_S, self._left_s(_END_S)), disk_s=_SHORTEST_S)
            else:
                self._output.close(_LONGER_S)
            self._unlock_names()
        if not self._settings.waits:
            supervisor.look()  # raises errors from the end of a pipeline, such as a video that cannot be finished
        of_all = self._output.stats()
        return {camera: pipeline.summary(of_all) for camera, pipeline in supervisor.running.items()}

    def _left_s(self, total_s: float) -> float:
        return max(_SHORTEST_S, self._stop.left_s(total_s))

    def _wait(self) -> None:
        """Check pipelines, health, commands and reload until there is a reason to end."""
        duration_s = self._settings.duration_s
        deadline = math.inf if duration_s is None else time.monotonic() + duration_s
        while not self._stop.is_asked():
            self._supervisor.look()
            self._health.look(
                list(self._supervisor.running.values()),
                have_begun=self._supervisor.have_begun and self._reading is None,
                turns=self._shared.turns,
            )
            self._commands.look()
            self._share_threads()
            if self._supervisor.are_over and self._reading is None:
                self.left_out = self._supervisor.left_out
                return
            self._look_at_reload()
            if time.monotonic() >= deadline:
                self._stop.ask("duration")
            else:
                time.sleep(_LOOK_S)

    def _make(self, settings: PipelineSettings, gate: Gate | None, before: Pipeline | None) -> Pipeline:
        loading, self._loading = self._loading, None
        waits = self._settings.waits
        return Pipeline(
            settings, self._output, self._shared, self._stop, waits=waits, gate=gate, before=before, loading=loading
        )

    def _share_threads(self) -> None:
        """Let OpenCV use the cores of a single pipeline's model, which does not run while a frame is resized."""
        running = list(self._supervisor.running.values())
        threads = (running[0].threads or 1) if len(running) == 1 else 1
        if threads != self._threads:
            self._threads = threads
            cv2.setNumThreads(threads)

    def _ask_to_reload(self, told: Told) -> None:
        if self._told is not None or self._reading is not None:
            told("it is being read already; ask again once that is over")
            return
        self._told = told
        self._stop.reload = True

    def _look_at_reload(self) -> None:
        if not self._supervisor.have_begun:  # a pipeline that starts is left to finish that; a reload waits for it
            return
        reading = self._reading
        if reading is not None and reading.is_done:
            self._reading = None
            try:
                fresh = reading.take()
            except Exception as cause:  # noqa: BLE001 - whatever the error is, the pipelines go on
                self._refuse(failure_line(cause))
            else:
                self._take(*fresh)
                return  # who asked is told when all that changed has begun, or cannot
        if self._told is not None and self._reading is None and not self._stop.reload:
            self._tell(self._supervisor.not_taken)
        if not self._stop.reload or self._reading is not None:
            return
        self._stop.reload = False  # before reading: a later request may follow a later change of the files
        if self._reread is None:
            why = "there is no configuration to read again"
            self._health.reloading(why)
            _log.info(f"{why}: what runs was named on the command line")
            return
        self._health.reloading()
        reread, before = self._reread, self._settings
        try:
            self._reading = BackgroundTask(lambda: self._read_again(reread, before), "edge-reload")
        except RuntimeError as cause:  # no thread can be started
            self._refuse(failure_line(cause))

    def _read_again(self, reread: Callable[[], RunSettings], before: RunSettings) -> _Reread:
        """Read it and its bundles' digests; refuse one that would restart all pipelines and keep one from running."""
        fresh = reread()
        self._lock_name(fresh)
        if output_changes(before, fresh):
            from edge_sdk.service.check import check_run  # imported here, because few reloads need it

            # A missing camera is no hindrance: the service waits for it.
            problems = [each for each in check_run(fresh).all_problems() if each.exit_code != CameraError.exit_code]
            if hindrances := [each.text for each in problems if each.keeps_from_running]:
                raise ConfigError(*hindrances)
        return fresh, {path: digest_at(path) for pipeline in fresh.pipelines for path in pipeline.bundles}

    def _refuse(self, why: str) -> None:
        self._unlock_names(self._settings)
        for line in f"the configuration is not taken, what runs goes on: {why}".splitlines():
            _log.info(line)
        self._tell(why)

    def _tell(self, why_not: str) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(why_not)

    def _lock_name(self, settings: RunSettings) -> None:
        mqtt = settings.mqtt
        if mqtt is not None and (key := NameLock.key_of(mqtt)) not in self._names:
            self._names[key] = NameLock(mqtt)

    def _unlock_names(self, settings: RunSettings | None = None) -> None:
        """Release the locks of all names except the one of these settings."""
        mqtt = None if settings is None else settings.mqtt
        for key in self._names.keys() - ({NameLock.key_of(mqtt)} if mqtt is not None else set()):
            self._names.pop(key).close()

    def _take(self, fresh: RunSettings, digests: dict[Path, str | None]) -> None:
        """Apply another configuration."""
        before, self._settings = self._settings, fresh
        name_cameras(wanted=len(fresh.pipelines) > 1)
        self._commands.change_to(fresh)
        of_output, others = output_changes(before, fresh), other_changes(before, fresh)
        if of_output:
            _log.info(f"configuration read again: {'; '.join([*of_output, *others])}; all pipelines begin again")
            self._restart_output()
        else:
            words = [*others, self._supervisor.change_to(fresh.pipelines, digests)]
            _log.info(f"configuration read again: {'; '.join(words)}")
        self._unlock_names(fresh)

    def _restart_output(self) -> None:
        """End all pipelines, publish what they have put within a short time, and start all pipelines again."""
        self._supervisor.stop(self._stop.is_asked)
        if not self._stop.is_asked():
            self._output.restart(self._settings, _CLOSE_TIMEOUT_S, disk_s=_SHORTEST_S)
            self._supervisor.start(self._settings.pipelines)
