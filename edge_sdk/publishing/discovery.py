"""Discovery: the one retained message that tells Home Assistant of a device and all its entities.

Owns the format, MQTT device discovery of Home Assistant 2024.11 and later, and what it takes to have entities removed.

Entities: what Home Assistant shows of a device and its cameras, each in the words of its platform.

They read what the device publishes anyway, and act through its `cmd` topic: there is none for a command that is not
allowed.

HomeAssistantSettings: what Home Assistant is told of a device.

Templates: the few lines of Jinja that Home Assistant evaluates for an entity.

Owns the quoting: a camera's name may hold quotes, braces and whatever else a topic may, and is never read as code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
from msgspec import Meta

from edge_sdk.events.rules import Turn
from edge_sdk.messages.commands import (
    FASTEST_FPS,
    Command,
    CommandClass,
    Pause,
    Resume,
    SetRate,
    SetThreshold,
    Snapshot,
)
from edge_sdk.messages.topics import Topics


def field(*path: str, missing: str = "none") -> str:
    """A template that gives one value of a JSON message.

    Args:
        path: keys, from the outside.
        missing: an expression for a message that does not have it; Home Assistant takes `none` for unknown.
    """
    *outer, last = map(literal, path)
    steps = "".join(f".get({key}, {{}})" for key in outer)
    return f"{{{{ value_json{steps}.get({last}, {missing}) }}}}"


def ordered_by(command: Command, changing: str) -> str:
    """A template that writes a command with one field from the entity.

    Args:
        command: with any value in that field.
        changing: the field's name.
    """
    fields = msgspec.to_builtins(command)
    pairs = (f"{literal(key)}: {'value' if key == changing else literal(str(fields[key]))}" for key in fields)
    return f"{{{{ {{{', '.join(pairs)}}} | to_json }}}}"


def text(command: Command) -> str:
    """A command as it is written; no template."""
    return msgspec.json.encode(command).decode()


def literal(name: str) -> str:
    """A string of Jinja: as in JSON. Within an expression braces in a string end nothing."""
    return msgspec.json.encode(name).decode()


PLATFORMS = frozenset({"sensor", "binary_sensor", "switch", "number", "image", "button", "event"})
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_A_KIND = re.compile(r"[^A-Za-z0-9_]")  # the hyphen stands between a kind and its camera
_TOLD = ("label", "confidence", "at", "seq")  # of an event; `seq` tells one that comes twice

Entity: TypeAlias = dict[str, Any]
"""One component's configuration, in Home Assistant's words."""


class Camera(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell of one camera.

    Attributes:
        name: in topics.
        task: of its bundle.
        tells_events: whether it is told what appears and disappears.
        labels: of its bundle.
        has_threshold: whether there is one to set.
        is_paced: whether frames come at their own pace.
        has_pictures: whether some are published without a command.
    """

    name: str
    task: str
    tells_events: bool = False
    labels: tuple[str, ...] = ()
    has_threshold: bool = False
    is_paced: bool = True
    has_pictures: bool = False


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell of the machine.

    Attributes:
        hardware: the board's or the processor's name.
        has_temperature: whether the processor's can be read; None: not known yet.
    """

    hardware: str = ""
    has_temperature: bool | None = True


class Entities:
    """Of one device.

    Args:
        topics: of the device.
        allowed: classes of commands that are carried out.
        labels: that get a count of their own.
    """

    def __init__(self, topics: Topics, allowed: Collection[CommandClass], labels: Collection[str]) -> None:
        self._topics, self._allowed, self._labels = topics, allowed, labels

    def online(self) -> Entity:
        """Where it is said whether the device is there."""
        return {"topic": self._topics.status, "value_template": field("status")}

    def of_device(self, machine: Machine) -> dict[str, Entity]:
        """Those of no camera, by their ids."""
        if not machine.has_temperature:
            return {}
        return {
            "temperature": {
                "platform": "sensor",
                "name": "Processor temperature",
                "state_topic": self._topics.telemetry,
                "value_template": field("temperature_c"),
                "device_class": "temperature",
                "state_class": "measurement",
                "unit_of_measurement": "°C",
                "entity_category": "diagnostic",
            }
        }

    def of_camera(self, camera: Camera) -> Iterator[tuple[str, Entity]]:
        """Those of one camera, each with its kind."""
        yield from self._health(camera.name)
        yield from self._sight(camera)
        if camera.tells_events:
            yield "events", self._events(camera.name)
        yield from self._controls(camera)

    def _health(self, name: str) -> Iterator[tuple[str, Entity]]:
        measured = {"platform": "sensor", "state_class": "measurement", "entity_category": "diagnostic"}
        measured["state_topic"] = self._topics.telemetry
        fps, age = field("cameras", name, "fps"), field("cameras", name, "age_p50_ms")
        yield "fps", measured | {"name": f"{name} rate", "value_template": fps, "unit_of_measurement": "fps"}
        yield (
            "age",
            measured
            | {
                "name": f"{name} age",
                "value_template": age,
                "device_class": "duration",
                "unit_of_measurement": "ms",
            },
        )
        yield (
            "connected",
            {
                "platform": "binary_sensor",
                "name": f"{name} connected",
                "state_topic": self._topics.state,
                "value_template": self._is_there(name, "ON", "OFF"),
                "device_class": "connectivity",
                "entity_category": "diagnostic",
            },
        )

    def _sight(self, camera: Camera) -> Iterator[tuple[str, Entity]]:
        name, topic = camera.name, self._topics.seen(camera.name)
        seeing = {
            "state_topic": topic,
            # A camera that is lost, or paused, sees nothing: what it saw last is not what is there.
            "availability": [
                self.online(),
                {"topic": self._topics.state, "value_template": self._is_there(name, "online", "offline", paused=True)},
            ],
            "availability_mode": "all",
        }
        if camera.task != "detection":
            yield "label", seeing | {"platform": "sensor", "name": f"{name} sees", "value_template": field("label")}
        else:
            yield from self._counts(camera, seeing)
        if camera.has_pictures or "snapshot" in self._allowed:
            yield (
                "snapshot",
                {
                    "platform": "image",
                    "name": f"{name} snapshot",
                    "image_topic": self._topics.snapshot(name),
                    "content_type": "image/jpeg",
                },
            )

    def _counts(self, camera: Camera, seeing: Entity) -> Iterator[tuple[str, Entity]]:
        wanted = [label for label in self._labels if label in camera.labels]
        for label in (None, *wanted):
            found = ("total",) if label is None else ("labels", label)
            suffix = "" if label is None else f"_{_told_apart(label, _NOT_IN_A_KIND)}"
            what = camera.name if label is None else f"{camera.name} {label}"
            count = field(*found, missing="0")
            yield (
                f"count{suffix}",
                seeing
                | {
                    "platform": "sensor",
                    "name": f"{what} count",
                    "value_template": count,
                    "state_class": "measurement",
                },
            )
            yield (
                f"occupancy{suffix}",
                seeing
                | {
                    "platform": "binary_sensor",
                    "name": f"{what} occupancy",
                    "value_template": f"{{{{ 'ON' if {count[3:-3]} > 0 else 'OFF' }}}}",
                    "device_class": "occupancy",
                },
            )

    def _events(self, name: str) -> Entity:
        kinds = [literal(kind) for kind in get_args(Turn)]
        told = ", ".join(f"{literal(key)}: value_json.get({literal(key)})" for key in _TOLD)
        return {
            "platform": "event",
            "name": f"{name} events",
            "state_topic": self._topics.event(name),
            "event_types": [*get_args(Turn)],
            # Programs may publish events of other kinds there; of what renders to nothing nothing is made.
            "value_template": (
                f"{{{{ {{'event_type': value_json.kind, {told}}} | to_json"
                f" if value_json.get('kind') in ({', '.join(kinds)}) else '' }}}}"
            ),
            "qos": 1,
        }

    def _controls(self, camera: Camera) -> Iterator[tuple[str, Entity]]:
        name, state = camera.name, self._topics.state
        acting = {"command_topic": self._topics.command, "qos": 1}
        if "pause" in self._allowed:
            yield (
                "switch",
                acting
                | {
                    "platform": "switch",
                    "name": name,
                    "state_topic": state,
                    "value_template": field("cameras", name, "controls", "paused"),
                    "state_on": "False",
                    "state_off": "True",
                    "payload_on": text(Resume(camera=name)),
                    "payload_off": text(Pause(camera=name)),
                },
            )
        number = acting | {"platform": "number", "state_topic": state, "entity_category": "config"}
        if "set_threshold" in self._allowed and camera.has_threshold:
            yield (
                "confidence",
                number
                | {
                    "name": f"{name} confidence",
                    "value_template": field("cameras", name, "controls", "confidence"),
                    "command_template": ordered_by(SetThreshold(camera=name, confidence=1), "confidence"),
                    "min": 0.01,
                    "max": 1,
                    "step": 0.01,
                    "mode": "slider",
                },
            )
        if "set_rate" in self._allowed and camera.is_paced:
            yield (
                "rate",
                number
                | {
                    "name": f"{name} rate limit",
                    "value_template": field("cameras", name, "controls", "max_fps"),
                    "command_template": ordered_by(SetRate(camera=name, max_fps=0), "max_fps"),
                    "min": 0,
                    "max": FASTEST_FPS,  # what is outside these bounds Home Assistant does not show
                    "step": 0.5,
                    "mode": "box",
                },
            )
        if "snapshot" in self._allowed:
            press = text(Snapshot(camera=name))
            yield (
                "take_snapshot",
                acting | {"platform": "button", "name": f"{name} take snapshot", "payload_press": press},
            )

    def _is_there(self, name: str, yes: str, no: str, *, paused: bool = False) -> str:
        source = field("cameras", name, "source")[3:-3]
        rest = f" and not {field('cameras', name, 'controls', 'paused')[3:-3]}" if paused else ""
        return f"{{{{ '{yes}' if {source} in ('opened', 'reopened'){rest} else '{no}' }}}}"


def id_of(*names: str) -> str:
    """A part of an id that Home Assistant takes; of two different names never the same."""
    return _told_apart(chr(0).join(names), _NOT_IN_AN_ID)


def _told_apart(name: str, wild: re.Pattern[str]) -> str:
    tame = wild.sub("_", name)
    return tame if tame == name else f"{tame[:60]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class HomeAssistantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[home_assistant]` of a configuration file: whether Home Assistant finds this device by itself.

    Attributes:
        is_enabled: key `enabled`; False takes back what was told before.
        prefix: first level of Home Assistant's own topics.
        labels: labels of the bundles, each of which gets a count of its own.
    """

    is_enabled: Annotated[bool, Meta(description="false: take back what was told")] = msgspec.field(
        default=True, name="enabled"
    )
    prefix: Annotated[str, Meta(description="first level of Home Assistant's own topics")] = "homeassistant"
    labels: Annotated[tuple[str, ...], Meta(description="labels that get a count of their own", max_length=20)] = ()


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
