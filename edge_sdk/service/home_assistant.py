"""Publish this device's discovery message: once its pipelines run, on change, and when Home Assistant comes online.

`HomeAssistantReporter` decides when; `Discovery` makes the message.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable

import edge_sdk
from edge_sdk.core.machine import Cpu
from edge_sdk.core.toml import missing_labels
from edge_sdk.messages.commands import Permission
from edge_sdk.messages.schema import Topics
from edge_sdk.publishing.connection import Incoming
from edge_sdk.publishing.discovery import CameraTraits, DiscoveredMachine, Discovery, HomeAssistantSettings
from edge_sdk.service.output import Output
from edge_sdk.service.runner import Controls

_log = logging.getLogger(__name__)
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
