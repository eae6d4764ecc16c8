"""Home: when Home Assistant is told of this device: once its streams run, on change, and when it says it is there.

Owns the times; what is told is `Discovery`'s.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Iterable

import edge_sdk
from edge_sdk.core.logs import Say
from edge_sdk.core.machine import Cpu
from edge_sdk.messages.commands import CommandClass
from edge_sdk.messages.topics import Topics
from edge_sdk.publishing.connection import Incoming
from edge_sdk.publishing.discovery import Camera, Discovery, HomeAssistantSettings, Machine
from edge_sdk.service.output import Output
from edge_sdk.service.pipeline import unknown_home_labels
from edge_sdk.service.runner import Controls

_LONGEST_PAUSE_S = 2.0  # a house full of devices must not answer a birth all at once


class HomeAssistantReporter:
    """Of one device; used from the daemon's main thread.

    Args:
        settings: what Home Assistant is told.
        topics: of the device.
        allowed: classes of commands that are carried out.
        controls: of its cameras.
        pictured: cameras of which pictures are published without a command.
        clock_s: monotonic seconds.
        uniform: a random number from 0 to 1.
        say: takes one line for people.

    Attributes:
        topics: where Home Assistant says that it is there, and where it was told of this device by an earlier run.
    """

    def __init__(
        self,
        settings: HomeAssistantSettings,
        topics: Topics,
        allowed: Collection[CommandClass],
        controls: Controls,
        pictured: Collection[str],
        clock_s: Callable[[], float],
        uniform: Callable[[], float] = random.random,
        *,
        say: Say = lambda _line: None,
    ) -> None:
        self._is_enabled, self._controls = settings.is_enabled, controls
        self._clock_s, self._uniform, self._pictured = clock_s, uniform, frozenset(pictured)
        self._discovery = Discovery(settings, topics, allowed, edge_sdk.__version__)
        self.topics = self._discovery.topics_heard
        self._topics = topics
        self._told: tuple[tuple[Camera, ...], tuple[str, ...], Machine] | None = None
        self._teller: object = None
        self._repeat_at: float | None = None
        self._settings, self._say = settings, say
        self._unknown: list[str] = []

    def go_on_from(self, before: HomeAssistantReporter) -> None:
        """Take that away which another one told and is not there any more."""
        self._discovery.go_on_from(before._discovery)

    def hear(self, incoming: Incoming) -> None:
        """Take a message on one of `topics`; what Home Assistant retained of itself it said before we came."""
        if incoming.topic == self._discovery.topic:
            if self._is_enabled and self._discovery.learn(incoming.payload):
                self._told = None
        elif incoming.payload == b"online" and not incoming.retain and self._repeat_at is None:
            self._repeat_at = self._clock_s() + self._uniform() * _LONGEST_PAUSE_S

    def look(self, outlet: Output, cameras: Iterable[str]) -> None:
        """Tell what is new, and once more what is not where that was asked for."""
        broker = outlet.broker
        if broker is None:
            return
        names = tuple(cameras)
        told = (*self._cameras(names), Machine(hardware=_hardware(), has_temperature=outlet.has_temperature))
        if told != self._told or broker is not self._teller:
            self._told, self._teller = told, broker
            payload = self._discovery.message(*told) if self._is_enabled else b""
            broker.keep("discovery", self._discovery.topic, payload)
            for topic in self._discovery.topics_left:
                broker.keep("discovery", topic, b"")
            for name in () if self._is_enabled else names:
                broker.keep(
                    "seen", self._topics.of("seen", name), b""
                )  # by an earlier run: there was nobody else to read it
            self._look_at_labels(*told[:2])
        if self._repeat_at is not None and self._clock_s() >= self._repeat_at:
            self._repeat_at = None
            broker.repeat(self._discovery.topic)

    def _look_at_labels(self, cameras: Iterable[Camera], awaited: Collection[str]) -> None:
        """Say which labels no camera has, once all of them are known."""
        if awaited:
            return
        before, labels = self._unknown, {label for camera in cameras for label in camera.labels}
        self._unknown = unknown_home_labels(self._settings, labels)
        for line in self._unknown:
            if line not in before:
                self._say(f"warning: {line}")

    def _cameras(self, names: Iterable[str]) -> tuple[tuple[Camera, ...], tuple[str, ...]]:
        """Those that are known, and the names of those that are not yet."""
        known = [(name, self._controls.of(name).known) for name in sorted(names)]
        awaited = tuple(name for name, found in known if found is None)
        cameras = tuple(
            Camera(
                name=name,
                task=found.task,
                tells_events=found.tells_events,
                labels=found.labels,
                has_threshold=found.confidence is not None,
                is_paced=found.is_paced,
                has_pictures=name in self._pictured,
            )
            for name, found in known
            if found is not None
        )
        return cameras, awaited


@functools.cache
def _hardware() -> str:
    return Cpu.read().name
