"""Outlet: where the results of all streams of a process go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

import msgspec

import edge_sdk
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.errors import UsageError
from edge_sdk.frame import Result
from edge_sdk.protocols import Sink
from edge_sdk.publishing import JsonLinesSink, LinesStats, MqttPublisher, PublisherStats, ResultEncoder, Running
from edge_sdk.session import onnxruntime_version
from edge_sdk.stop import Stop


class Stream(Sink, Protocol):
    """Takes what one camera has to say."""

    def warn(self, name: str, line: str) -> None: ...
    def announce(self, running: Running) -> None: ...
    def source(self, status: str) -> None: ...
    def stats(self) -> PublisherStats | LinesStats: ...
    def close(self) -> None: ...


class Outlet(Protocol):
    """Takes what all cameras have to say."""

    def stream(self, camera: str, encoder: ResultEncoder, *, keeps_all: bool) -> Stream: ...
    def close(self, timeout_s: float) -> None: ...


class OneEach(Outlet):
    """Temporary."""

    def __init__(self, make: Callable[[str, ResultEncoder, bool], MqttPublisher | JsonLinesSink]) -> None:
        self._make = make
        self._streams: dict[str, _One] = {}

    def stream(self, camera: str, encoder: ResultEncoder, *, keeps_all: bool) -> Stream:
        if camera in self._streams:
            self._streams[camera].sink.close(1.0)
        made = self._streams[camera] = _One(self._make(camera, encoder, keeps_all))
        return made

    def close(self, timeout_s: float) -> None:
        for stream in self._streams.values():
            stream.sink.close(timeout_s)


class _One(Stream):
    def __init__(self, sink: MqttPublisher | JsonLinesSink) -> None:
        self.sink = sink

    def put(self, result: Result) -> None:
        self.sink.put(result)

    def warn(self, name: str, line: str) -> None:
        if isinstance(self.sink, MqttPublisher):
            self.sink.warn(name, line)

    def announce(self, running: Running) -> None:
        if isinstance(self.sink, MqttPublisher):
            self.sink.announce(running)

    def source(self, status: str) -> None: ...

    def stats(self) -> PublisherStats | LinesStats:
        return self.sink.stats()

    def close(self) -> None:
        self.sink.close(1.0)


def open_outlet(say: Say, stop: Stop) -> Callable[[RunSettings], Outlet]:
    """What opens the outlet of a run's settings: a broker, or standard output where none is named."""

    def make(settings: RunSettings) -> Outlet:
        return OneEach(lambda camera, encoder, keeps: _one(settings, camera, encoder, keeps))

    def _one(settings: RunSettings, camera: str, encoder: ResultEncoder, keeps: bool) -> MqttPublisher | JsonLinesSink:
        if settings.mqtt is None:
            if sys.stdout is None:
                raise UsageError("standard output is closed; give --mqtt, or something that takes the results")
            # Past Python's buffer: it is flushed when the process ends, and a write that hangs keeps its lock.
            stdout = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
            return JsonLinesSink(stdout, encoder, keeps_all=keeps, is_stopped=stop.is_asked)
        mqtt = msgspec.structs.replace(settings.mqtt, camera=camera)
        return MqttPublisher(
            mqtt,
            encoder,
            versions={"edge-sdk": edge_sdk.__version__, "onnxruntime": onnxruntime_version()},
            on_state=lambda state, detail: _say_broker(say, mqtt.address, state, detail),
        )

    return make


def _say_broker(say: Say, address: str, state: str, detail: str) -> None:
    if state == "connecting" and detail:
        what = detail if detail.startswith("connection lost") else f"not reachable ({detail})"
        say(f"broker {address}: {what}, trying again")
    elif state == "refused":
        say(f"broker {address}: refused us ({detail}), trying again")
    elif state == "online":
        say(f"broker {address}: online" + (f", {detail}" if detail else ""))
