"""Publish the results, events and state of all pipelines of a process: to a broker, or to standard output without one.

`Output` opens the publisher with the first stream, so that a process without any stream publishes nothing. When a
reload names another broker or device, `restart` closes the publisher, and the next pipeline opens a new one. Events are
kept; results that wait may be lost. `HomeAssistantReporter` publishes the discovery message of this device: once its
pipelines run, on change, and when Home Assistant comes online.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

import edge_sdk
from edge_sdk.core.clock import WallClock
from edge_sdk.core.errors import OutputError, StoppedError, UsageError
from edge_sdk.core.logs import Alarm, counted, of_all_cameras
from edge_sdk.core.machine import Cpu
from edge_sdk.core.toml import missing_labels
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.messages.commands import Permission
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import Identity, Incoming, Receiver, TelemetryMessage, Topics
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.discovery import CameraTraits, DiscoveredMachine, Discovery, HomeAssistantSettings
from edge_sdk.publishing.json_lines import JsonLinesPublisher
from edge_sdk.publishing.publisher import LAST_COMMIT_S, LinesStats, MqttPublisher, PublisherStats, Stream
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.tls import own_expiry, trust_refusal
from edge_sdk.service.runner import Controls
from edge_sdk.service.settings import RunSettings

if TYPE_CHECKING:
    from edge_sdk.publishing.client import MqttConnection  # loads paho

_log = logging.getLogger(__name__)
_HEARD = ("connection lost", "the broker ", "there is no MQTT")  # beginnings of messages about a broker that answered
_FILE_S = 0.5  # the longest wait for the file of events, which normally opens in milliseconds


class Output:
    """The publisher of a process; its methods may be called from any thread."""

    def __init__(
        self,
        settings: RunSettings,
        is_stopped: Callable[[], bool],
        make_link: Callable[[], MqttConnection] | None = None,
        receiver: Receiver | None = None,
    ) -> None:
        self.identity, self.clock = Identity(settings.device), WallClock()
        self.has_temperature: bool | None = None  # of the processor; None before the first telemetry
        self._settings, self._is_stopped = settings, is_stopped
        self._receiver, self._make_link = receiver, make_link
        self._lock = threading.Lock()
        self._publisher: MqttPublisher | JsonLinesPublisher | None = None
        self._streams: dict[str, Stream] = {}
        self._warnings: dict[str, str] = {}
        self._events: EventOutbox | None = None  # of the present publisher, or else of the one before
        self._said_doubt = ""
        self._troubles: dict[str, Alarm] = {}  # alarms about events
        self._is_closed = False

    def prepare(self) -> None:
        """Import the MQTT client early, while a model loads in another thread."""
        if self._settings.mqtt is not None:
            with contextlib.suppress(Exception):  # a later import raises it again
                import edge_sdk.publishing.client  # noqa: F401 - for its effect

    def stream(self, camera: str, encoder: ResultEncoder) -> Stream:
        """Return the stream of a camera, which replaces an earlier one; raise StoppedError after `close`."""
        with self._lock:
            if self._is_closed:
                raise StoppedError
            if self._publisher is None:
                with of_all_cameras():
                    self._publisher = self._opened()
                for name, line in self._warnings.items():
                    self._warn(name, line)
            stream = self._streams[camera] = self._publisher.stream(camera, encoder)
            return stream

    def leave(self, camera: str) -> None:
        """Close the stream of a camera that was removed, and withdraw its warning."""
        with self._lock:
            stream = self._streams.pop(camera, None)
        if stream is not None:
            stream.close()
        self.warn_of(camera, "")

    def warn(self, name: str, line: str) -> None:
        """Publish a warning about the device, and repeat it with later publishers; see `Publisher.warn`."""
        with self._lock:
            self._warn(name, line)
            self._warnings[name] = line

    def _warn(self, name: str, line: str) -> None:
        if self.broker is not None:
            self.broker.warn(name, line)

    def warn_of(self, camera: str, line: str) -> None:
        """Publish a warning about a camera that has no stream; the slash cannot occur in another warning's name."""
        self.warn(f"camera/{camera}", line)

    def telemetry(self, message: TelemetryMessage) -> None:
        """Publish the device's telemetry; see `Publisher.telemetry`."""
        self.has_temperature = bool(self.has_temperature) or not isinstance(message.temperature_c, msgspec.UnsetType)
        if (broker := self.broker) is not None:
            broker.telemetry(message)

    @property
    def broker(self) -> MqttPublisher | None:
        """The publisher to the broker; None without a broker and before the first stream."""
        publisher = self._publisher
        return publisher if isinstance(publisher, MqttPublisher) else None

    def stats(self) -> PublisherStats | LinesStats | None:
        """Return the counts of all results so far; None before the first stream."""
        return self._publisher.stats() if self._publisher is not None else None

    def restart(self, settings: RunSettings, timeout_s: float, disk_s: float) -> None:
        """Close the publisher, and use other settings from now on; warnings of the device stay."""
        self.close(timeout_s, disk_s)
        with self._lock:
            self._settings, self._publisher, self._is_closed = settings, None, False
            self.identity = Identity(settings.device)
            self._streams.clear()

    def close(self, timeout_s: float, disk_s: float = LAST_COMMIT_S) -> None:
        """Send waiting messages within the time, and disconnect; see `Publisher.close`."""
        with self._lock:
            self._is_closed = True
        if isinstance(self._publisher, MqttPublisher):
            self._publisher.close(timeout_s, disk_s)
        elif self._publisher is not None:
            self._publisher.close(timeout_s)

    def _opened(self) -> MqttPublisher | JsonLinesPublisher:
        mqtt = self._settings.mqtt
        if mqtt is not None:
            versions = {"edge-sdk": edge_sdk.__version__, "onnxruntime": onnxruntime_version()}
            self._said_doubt = own_expiry(mqtt)  # the doubt was logged when the settings were read
            events = self._opened_events(mqtt)
            try:
                return MqttPublisher(
                    mqtt,
                    self.identity,
                    versions=versions,
                    on_state=lambda state, detail: self._log_broker(mqtt.address, state, detail),
                    events=events,
                    on_warning=lambda line: self._log_doubt(mqtt.address, line),
                    make_link=self._make_link,
                    listens_to=topics_of(self._settings),
                    receiver=self._receiver,
                )
            except BaseException:
                events.close()  # the next attempt needs its file
                raise
        if sys.stdout is None:
            raise UsageError("standard output is closed; give --mqtt, or something that takes the results")
        # Without Python's buffer, which is flushed when the process ends, and whose lock a blocked write would keep.
        stdout = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
        keeps_all = not any(pipeline.paced for pipeline in self._settings.pipelines)
        in_words: Callable[[bytes], str] | None = None
        if self._settings.in_words:
            from edge_sdk.fleet.messages import line_words  # 15 ms of a start that only a terminal needs

            in_words = line_words
        return JsonLinesPublisher(stdout, keeps_all=keeps_all, is_stopped=self._is_stopped, in_words=in_words)

    def _opened_events(self, mqtt: MqttSettings) -> EventOutbox:
        outbox = self._settings.outbox
        try:
            path = outbox.path_of(mqtt.site, mqtt.device)
        except OutputError as cause:
            path = None
            _log.warning(f"events wait in memory only: {cause}")
        self._events = EventOutbox(outbox, path, self.identity.boot_id, before=self._events)
        self._events.listen(self._log_trouble)
        return self._events

    def _log_trouble(self, name: str, line: str) -> None:
        self._troubles.setdefault(name, Alarm(name, lambda _name, _line: None)).tell(line)

    def _log_doubt(self, address: str, line: str) -> None:
        if line != self._said_doubt:
            _log.warning(f"broker {address}: {line}")

    def _log_broker(self, address: str, state: str, detail: str) -> None:
        if state == "connecting" and detail:
            what = detail if detail.startswith(_HEARD) else f"not reachable ({detail})"
            _log.info(f"broker {address}: {what}, trying again")
        elif state == "refused":
            _log.info(f"broker {address}: {trust_refusal(detail)}, trying again")
        elif state == "online":
            waiting = 0
            if self._events is not None and not detail:
                self._events.wait_committed(_FILE_S)  # at the start the file may not be read yet
                waiting = self._events.stats().waiting
            waited = f"; {counted(waiting, 'event')} waited for it" if waiting > 0 else ""
            _log.info(f"broker {address}: online" + (f", {detail}" if detail else waited))


def topics_of(settings: RunSettings) -> tuple[str, ...]:
    """Return the topics that a run subscribes to: commands if any are allowed, and Home Assistant's birth message."""
    if settings.mqtt is None:
        return ()
    home = settings.home_assistant
    commands = (settings.mqtt.topics.of("command"),) if settings.commands else ()
    if home is None or not home.is_enabled:
        return commands
    return (*commands, *Discovery(home, settings.mqtt.topics, settings.commands, "").topics_heard)


_LONGEST_PAUSE_S = 2.0  # random delay, so that not all devices answer Home Assistant's birth message at once


def unknown_home_labels(settings: HomeAssistantSettings | None, labels: Collection[str]) -> list[str]:
    """Return a line for each label of the settings that is not among `labels`."""
    if settings is None or not settings.is_enabled:
        return []
    of = "is no label of a bundle here, so it has no entity"
    return [f"home_assistant.labels: {line}" for line in missing_labels(settings.labels, sorted(labels), of)]


class HomeAssistantReporter:
    """Publishes the discovery message of one device; used from the process's main thread."""

    def __init__(
        self,
        settings: HomeAssistantSettings,
        topics: Topics,
        allowed: Collection[Permission],
        controls: Controls,
        clock_s: Callable[[], float],
        before: HomeAssistantReporter | None,
    ) -> None:
        self._is_enabled, self._controls = settings.is_enabled, controls
        self._clock_s, self._settings = clock_s, settings
        earlier = None if before is None else before._discovery
        self._discovery: Discovery = Discovery(settings, topics, allowed, edge_sdk.__version__, earlier)
        self.topics = self._discovery.topics_heard  # of Home Assistant's birth message, and of an earlier run's message
        self._topics, self._hardware = topics, Cpu.read().name
        self._told: tuple[tuple[CameraTraits, ...], tuple[str, ...], DiscoveredMachine] | None = None
        self._teller: object = None
        self._repeat_at: float | None = None
        self._unknown: list[str] = []

    def hear(self, incoming: Incoming) -> None:
        """Take a message on one of `topics`; ignore a retained birth message, which was sent before we subscribed."""
        if incoming.topic == self._discovery.topic:
            if self._is_enabled and self._discovery.learn(incoming.payload):
                self._told = None
        elif incoming.payload == b"online" and not incoming.retain and self._repeat_at is None:
            self._repeat_at = self._clock_s() + random.uniform(0, _LONGEST_PAUSE_S)  # noqa: S311 - no secret

    def look(self, output: Output, cameras: Iterable[str]) -> None:
        """Publish the discovery message if it changed or must be repeated."""
        broker = output.broker
        if broker is None:
            return
        names = tuple(cameras)
        told = (
            *self._cameras(names),
            DiscoveredMachine(hardware=self._hardware, has_temperature=output.has_temperature),
        )
        if told != self._told or broker is not self._teller:
            self._told, self._teller = told, broker
            payload = self._discovery.message(*told) if self._is_enabled else b""
            broker.retained.keep("discovery", self._discovery.topic, payload)
            for topic in self._discovery.topics_left:
                broker.retained.keep("discovery", topic, b"")
            for name in () if self._is_enabled else names:
                broker.retained.keep("seen", self._topics.of("seen", name), b"")  # an earlier run announced it
            self._look_at_labels(*told[:2])
        if self._repeat_at is not None and self._clock_s() >= self._repeat_at:
            self._repeat_at = None
            broker.retained.repeat(self._discovery.topic)

    def _look_at_labels(self, cameras: Iterable[CameraTraits], awaited: Collection[str]) -> None:
        """Warn of configured labels that no camera has, once all cameras are known."""
        if awaited:
            return
        before, labels = self._unknown, {label for camera in cameras for label in camera.labels}
        self._unknown = unknown_home_labels(self._settings, labels)
        for line in self._unknown:
            if line not in before:
                _log.warning(line)

    def _cameras(self, names: Iterable[str]) -> tuple[tuple[CameraTraits, ...], tuple[str, ...]]:
        """Return the known cameras, and the names of the cameras that are not known yet."""
        known = {name: self._controls.of(name).known for name in sorted(names)}
        awaited = tuple(name for name, found in known.items() if found is None)
        return tuple(filter(None, known.values())), awaited
