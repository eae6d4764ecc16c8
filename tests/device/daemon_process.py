"""A daemon in a thread of a test."""

from __future__ import annotations

import math
import socket
import threading
from pathlib import Path
from typing import Any

from edge_sdk.daemon.daemon import Daemon
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.daemon.shared import Shared
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.errors import ConfigError
from edge_sdk.health.notify import Notifier
from edge_sdk.health.progress import Progress
from edge_sdk.health.start import Start
from edge_sdk.stop import Stop
from tests.device.delivery import WAIT_S, until
from tests.device.site import Site


class Process:
    """A daemon in a thread, whose configuration is what a test says."""

    def __init__(self, folder: Path, *streams: PipelineSettings, waits: bool = True, **changes: Any) -> None:
        self.site = Site(folder)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        self.said, self.stop = list[str](), Stop()
        self.config: RunSettings | ConfigError = self.settings(*streams, waits=waits, **changes)
        self.reads = self.asks = 0  # how often it was read again; how often that is asked for while it is read
        self.summaries: dict[str, RunSummary] = {}
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def settings(self, *streams: PipelineSettings, waits: bool = True, **changes: Any) -> RunSettings:
        return RunSettings(**{"device": "pi", "pipelines": streams, "waits": waits, **changes})

    def start(self, *, has_config: bool = True) -> None:
        assert isinstance(self.config, RunSettings)
        self.daemon = Daemon(
            self.config,
            self.site.begin,
            Shared(Progress(math.inf), self.said.append),
            self.said.append,
            self.stop,
            Notifier(str(self.site.folder / "notify")),
            Start(0.0),
            self._reread if has_config else None,
        )
        self._thread.start()

    def _reread(self) -> RunSettings:
        self.reads += 1
        if self.asks:
            self.asks -= 1
            self.stop.reload = True
        if isinstance(self.config, ConfigError):
            raise self.config
        return self.config

    def _run(self) -> None:
        try:
            self.summaries = self.daemon.run()
        except Exception as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure

    def reload(self, *streams: PipelineSettings, **changes: Any) -> None:
        if streams:
            self.config = self.settings(*streams, **changes)
        before = self.reads
        self.stop.reload = True
        until(lambda: self.reads > before and not self.stop.reload and not self.daemon._reloading.is_reading)

    def until_results(self, *cameras: str) -> None:
        until(lambda: all(self._has_results(camera) for camera in cameras) or not self._thread.is_alive())
        assert self.failure is None

    def _has_results(self, camera: str) -> bool:
        running = self.daemon._streams.running.get(camera)
        return running is not None and running.first_result_ns > 0 and not running.is_over

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def end(self) -> None:
        self.stop.ask()
        if self._thread.ident is not None:
            self.join()
        self.site.close()
        self.manager.close()
