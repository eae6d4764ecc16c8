"""Discovery: the one retained message that tells Home Assistant of a device and all its entities.

Owns the format, MQTT device discovery of Home Assistant 2024.11 and later, and what it takes to have entities removed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import msgspec

from edge_sdk.commands import CommandClass
from edge_sdk.home_assistant.entities import PLATFORMS, Camera, Entities, Machine, id_of
from edge_sdk.home_assistant.settings import HomeAssistantSettings
from edge_sdk.publishing import Topics

_COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,200}")
_MOST_TOLD = 2000  # entities that are remembered


class _Entity(msgspec.Struct, frozen=True):
    platform: str = ""


class _Told(msgspec.Struct, frozen=True):
    """What of a message is of interest to who comes later."""

    components: dict[str, _Entity] = {}


class Discovery:
    """Of one device.

    Args:
        settings: what is wanted.
        topics: of the device.
        allowed: classes of commands that are carried out.
        version: of edge-sdk.

    Attributes:
        topic: where the message is retained.
        topics_left: where messages of others are that it went on from, and shall be no more.
        topics_heard: this, and where Home Assistant says that it is there.
    """

    def __init__(
        self, settings: HomeAssistantSettings, topics: Topics, allowed: Collection[CommandClass], version: str
    ) -> None:
        self._topics, self._version = topics, version
        self._entities = Entities(topics, allowed, settings.labels)
        self._id = id_of(topics.prefix, topics.site, topics.device)
        self.topic = f"{settings.prefix}/device/{self._id}/config"
        self.topics_left = frozenset[str]()
        self.topics_heard = (self.topic, f"{settings.prefix}/status")
        # Platforms of all entities that were ever told, by their ids: a message may be overtaken by the next one.
        self._told: dict[str, str] = {}

    def go_on_from(self, before: Discovery) -> None:
        """The next message takes away what another one told on the same topic, and this one does not."""
        if before.topic == self.topic:
            self._told = dict(before._told)
        self.topics_left = (before.topics_left | {before.topic}) - {self.topic}

    def learn(self, payload: bytes) -> bool:
        """Have the next message take away what an earlier run told, and this one does not; True where that is news.

        Args:
            payload: what stands on `topic`; of anybody's making.
        """
        try:
            told = msgspec.json.decode(payload, type=_Told).components
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        news = {
            name: entity.platform
            for name, entity in told.items()
            if name not in self._told and _COMPONENT.fullmatch(name) and entity.platform in PLATFORMS
        }
        room = _MOST_TOLD - len(self._told)
        self._told |= dict(list(news.items())[: max(0, room)])
        return bool(news) and room > 0

    def message(self, cameras: Iterable[Camera], awaited: Iterable[str] = (), machine: Machine | None = None) -> bytes:
        """The message, JSON; entities that an earlier one had, and this one does not, are taken away by it.

        Args:
            cameras: those that there are.
            awaited: names of others, of which nothing is known yet: what was told of them is left as it is.
            machine: that it is; by default one of which all can be read.
        """
        machine = machine or Machine()
        entities = self._entities.of_device(machine)
        for camera in cameras:
            camera_id = id_of(camera.name)
            for kind, entity in self._entities.of_camera(camera):
                entities[f"{kind}-{camera_id}"] = entity  # no kind holds a hyphen: two never come to the same
        still = set(map(id_of, awaited)) | ({""} if machine.has_temperature is None else set())
        gone = {
            name: {"platform": platform}
            for name, platform in self._told.items()
            if name not in entities and name.partition("-")[2] not in still
        }
        self._told |= {name: entity["platform"] for name, entity in entities.items()}
        for name, entity in entities.items():
            entity["unique_id"] = f"{self._id}_{name}"
        topics = self._topics
        return msgspec.json.encode(
            {
                "device": {
                    "identifiers": [self._id],
                    "name": topics.device,
                    "manufacturer": "edge-sdk",
                    "model": machine.hardware or "unknown hardware",
                    "serial_number": f"{topics.site}/{topics.device}",
                    "sw_version": self._version,
                },
                "origin": {"name": "edge-sdk", "sw_version": self._version},
                "availability": [self._entities.online()],
                "components": {**entities, **gone},
            }
        )
