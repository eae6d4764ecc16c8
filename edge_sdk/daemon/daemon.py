"""The daemon: runs the streams of one process, each in a thread of its own, until told to stop.

Owns the order of starting and stopping, and the reloading.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import cv2

from edge_sdk.bundle import Bundle, digest_at
from edge_sdk.daemon.outlet import Outlet, Stream
from edge_sdk.daemon.pipeline import Begin, Pipeline
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.daemon.shared import Gate, Shared
from edge_sdk.daemon.streams import Streams
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.errors import EdgeError
from edge_sdk.publishing import ResultEncoder
from edge_sdk.stop import Stop

_LOOK_S = 0.1  # how soon a signal is seen
_JOIN_S = 0.9  # for the streams together: who is told to stop has two seconds for everything
_CLOSE_TIMEOUT_S = 0.9  # for the results that wait
_LONGER_S = 1.5  # for them where nobody waits for the end


class Daemon:
    """The streams of one process.

    Args:
        settings: what to run.
        begin: what verifies a stream's bundle, and begins to load its model.
        open_outlet: opens what takes the results of all streams; asked as often as the settings of it change.
        say: takes status lines; never called once a frame.
        stop: ends it, and asks for a reload.
        reread: reads the configuration again; without it whoever asks for a reload ends the run.
    """

    def __init__(
        self,
        settings: RunSettings,
        begin: Begin,
        open_outlet: Callable[[RunSettings], Outlet],
        say: Say,
        stop: Stop,
        reread: Callable[[], RunSettings] | None = None,
    ) -> None:
        self._settings, self._begin, self._open_outlet = settings, begin, open_outlet
        self._say, self._stop, self._reread = say, stop, reread
        self._shared = Shared()
        self._streams = Streams(self._make, say, is_service=settings.waits)
        self._outlet: Outlet | None = None
        self._opening = threading.Lock()

    def run(self) -> dict[str, RunSummary]:
        """Run until the sources end, a limit is reached or somebody asks for the end.

        Returns:
            What each stream came to, by camera.

        Raises:
            EdgeError: the failure of a stream, where that is the process's: always where there is only one that was
                named on the command line.
        """
        streams = self._streams
        try:
            streams.start(self._settings.pipelines)
            self._wait()
        finally:
            for pipeline in streams.all():
                pipeline.ask(self._stop.reason or "signal")
            streams.join(_JOIN_S)
            if self._outlet is not None:
                self._outlet.close(_CLOSE_TIMEOUT_S if self._stop.is_asked() else _LONGER_S)
        return {camera: pipeline.summary() for camera, pipeline in streams.running.items()}

    def _wait(self) -> None:
        """Wait for a reason to end."""
        duration_s = self._settings.duration_s
        deadline = math.inf if duration_s is None else time.monotonic() + duration_s
        while not self._stop.is_asked():
            self._streams.look()
            if self._streams.are_over:
                return
            if self._stop.reload:
                self._stop.reload = False
                self._reload()
            if time.monotonic() >= deadline:
                self._stop.ask("duration")
            else:
                self._pause()

    def _pause(self) -> None:
        time.sleep(_LOOK_S)

    def _make(self, settings: PipelineSettings, gate: Gate | None, before: Pipeline | None) -> Pipeline:
        alone = len(self._settings.pipelines) == 1
        name = settings.camera
        return Pipeline(
            settings,
            self._begin,
            self._stream,
            self._encoder,
            self._shared,
            self._say if alone else lambda line: self._say(f"{name}: {line}"),
            self._stop,
            waits=self._settings.waits,
            gate=gate,
            before=before,
            # While a frame is resized no model runs, so that its threads' cores are free; not with several streams.
            use_threads=cv2.setNumThreads if alone else lambda _threads: cv2.setNumThreads(1),
        )

    def _encoder(self, bundle: Bundle) -> ResultEncoder:
        return ResultEncoder.for_bundle(bundle, self._settings.device)

    def _stream(self, camera: str, encoder: ResultEncoder, keeps_all: bool) -> Stream:
        """Opens the outlet for the first stream: what can run nothing says nothing to a broker."""
        with self._opening:
            if self._outlet is None:
                self._outlet = self._open_outlet(self._settings)
            return self._outlet.stream(camera, encoder, keeps_all=keeps_all)

    def _reload(self) -> None:
        if self._reread is None:
            self._stop.ask()  # the terminal was closed
            return
        try:
            fresh = self._reread()
        except EdgeError as cause:
            self._say(f"the configuration is not taken, what runs goes on: {cause}")
            return
        before, self._settings = self._settings, fresh
        if (before.device, before.mqtt) == (fresh.device, fresh.mqtt):
            self._say(f"configuration read again: {self._streams.change_to(fresh.pipelines, _has_other_files)}")
        else:
            self._say("configuration read again: the broker, or this device's name, is another; all streams change")
            self._change_outlet()

    def _change_outlet(self) -> None:
        """All streams end and leave their sources; what they put is delivered, and others go on with the sources."""
        before = dict(self._streams.running)
        self._streams.stop_for_others()
        if self._outlet is not None:
            self._outlet.close(_LONGER_S)
            self._outlet = None
        self._streams.start(self._settings.pipelines, before)


def _has_other_files(pipeline: Pipeline) -> bool:
    """Whether the bundle that a stream runs was replaced in its folder."""
    return pipeline.digest is not None and digest_at(pipeline.settings.bundle) != pipeline.digest
