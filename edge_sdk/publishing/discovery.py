"""Discovery: the one retained message that tells Home Assistant of a device and all its entities.

The format is MQTT device discovery of Home Assistant 2024.11 and later. Entities read what the device publishes
anyway, and act through its `cmd` topic: there is none for a command that is not allowed. `Discovery` remembers every
entity that was ever announced, because Home Assistant removes one only when a later message says so. When the message
is published is the service's matter.

Values are taken out of messages by templates, lines of Jinja that Home Assistant evaluates. Every name in one is
quoted: a camera's name may hold quotes, braces and whatever else a topic may, and is never read as code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Meta

from edge_sdk.events.rules import Turn
from edge_sdk.messages.commands import COMMANDS, CONTROLS, Command, Permission, Snapshot
from edge_sdk.messages.schema import Topics
from edge_sdk.tasks.spec import TRAITS, Task

PLATFORMS = frozenset({"sensor", "binary_sensor", "switch", "number", "image", "button", "event"})

_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_A_KIND = re.compile(r"[^A-Za-z0-9_]")  # the hyphen stands between a kind and its camera
_EVENT_FIELDS = ("label", "confidence", "at", "seq")  # `seq` tells one that comes twice
_COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,200}")
_MOST_ANNOUNCED = 2000  # entities that are remembered

Entity: TypeAlias = dict[str, Any]
"""One component's configuration, in Home Assistant's words."""


class _Reading(NamedTuple):
    """A number of the telemetry that becomes a sensor: its id and name there, its field, its unit in their words."""

    id: str
    name: str
    field: str
    unit: dict[str, str]


_TEMPERATURE = _Reading(
    "temperature",
    "Processor temperature",
    "temperature_c",
    {"device_class": "temperature", "unit_of_measurement": "°C"},
)
_OF_CAMERA = (
    _Reading("fps", "rate", "fps", {"unit_of_measurement": "fps"}),
    _Reading("age", "age", "age_p50_ms", {"device_class": "duration", "unit_of_measurement": "ms"}),
)


class HomeAssistantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[home_assistant]` of a configuration file: whether Home Assistant finds this device by itself."""

    is_enabled: Annotated[bool, Meta(description="false: take back what was told")] = msgspec.field(
        default=True, name="enabled"
    )
    prefix: Annotated[str, Meta(description="first level of Home Assistant's own topics")] = "homeassistant"
    labels: Annotated[tuple[str, ...], Meta(description="labels that get a count of their own", max_length=20)] = ()


class CameraTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What Home Assistant is told of one camera."""

    name: str
    task: Task
    tells_events: bool = False  # whether events of what appears and disappears are published
    labels: tuple[str, ...] = ()
    refusals: dict[str, str] = {}  # why the camera lacks a control, by the name of each `Control` that it lacks
    has_pictures: bool = False  # whether pictures are published without a command


class DiscoveredMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The description of the machine for Home Assistant."""

    hardware: str = ""
    has_temperature: bool | None = True  # None: not known yet


class _Announced(msgspec.Struct, frozen=True):
    platform: str = ""


class _Message(msgspec.Struct, frozen=True):
    components: dict[str, _Announced] = {}


class Discovery:
    """The discovery message of one device; it removes what the one `before` it announced and this one does not."""

    def __init__(
        self,
        settings: HomeAssistantSettings,
        topics: Topics,
        allowed: Collection[Permission],
        version: str,
        before: Discovery | None = None,
    ) -> None:
        self._topics, self._version = topics, version
        self._allowed, self._labels = allowed, settings.labels
        self._id = _told_apart("\0".join((topics.prefix, topics.site, topics.device)), _NOT_IN_AN_ID)
        self.topic = f"{settings.prefix}/device/{self._id}/config"  # where it is retained
        self.topics_heard = (self.topic, f"{settings.prefix}/status")  # Home Assistant says there that it is there
        # Platforms of all entities that were ever announced, by their ids: a message may be overtaken by the next one.
        self._announced: dict[str, str] = (
            {} if before is None or before.topic != self.topic else dict(before._announced)
        )
        # Where the messages before this one are retained, to be cleared.
        left: set[str] = set() if before is None else {*before.topics_left, before.topic}
        self.topics_left: set[str] = left - {self.topic}

    def learn(self, payload: bytes) -> bool:
        """Have the next message remove what an earlier run announced, and this one does not.

        Anybody may have made the payload; return whether there was something new in it.
        """
        try:
            components = msgspec.json.decode(payload, type=_Message).components
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        new = {
            name: entity.platform
            for name, entity in components.items()
            if name not in self._announced and _COMPONENT.fullmatch(name) and entity.platform in PLATFORMS
        }
        room = max(0, _MOST_ANNOUNCED - len(self._announced))
        self._announced |= dict(list(new.items())[:room])
        return bool(new) and room > 0

    def message(
        self, cameras: Iterable[CameraTraits], awaited: Iterable[str] = (), machine: DiscoveredMachine | None = None
    ) -> bytes:
        """Make the message, JSON; it removes entities that an earlier one had and this one does not.

        The entities of `awaited`, names of cameras of which nothing is known yet, are left as they are.
        """
        machine = machine or DiscoveredMachine()
        entities = self._readings([_TEMPERATURE] if machine.has_temperature else [])
        for camera in cameras:
            camera_id = _told_apart(camera.name, _NOT_IN_AN_ID)
            parts = (self._readings(_OF_CAMERA, camera.name), self._sight(camera), self._controls(camera))
            for part in parts:  # no kind holds a hyphen: two never come to the same id
                entities |= {f"{kind}-{camera_id}": entity for kind, entity in part.items()}
        kept = {_told_apart(name, _NOT_IN_AN_ID) for name in awaited}
        kept |= {""} if machine.has_temperature is None else set()
        gone = {
            name: {"platform": platform}
            for name, platform in self._announced.items()
            if name not in entities and name.partition("-")[2] not in kept
        }
        self._announced |= {name: entity["platform"] for name, entity in entities.items()}
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
                "availability": [self._online()],
                "components": {**entities, **gone},
            }
        )

    def _online(self) -> Entity:
        return {"topic": self._topics.of("status"), "value_template": field("status")}

    def _readings(self, readings: Iterable[_Reading], camera: str = "") -> dict[str, Entity]:
        path, before = (("cameras", camera), f"{camera} ") if camera else ((), "")
        return {
            reading.id: {
                "platform": "sensor",
                "name": f"{before}{reading.name}",
                "state_topic": self._topics.of("telemetry"),
                "value_template": field(*path, reading.field),
                "state_class": "measurement",
                "entity_category": "diagnostic",
                **reading.unit,
            }
            for reading in readings
        }

    def _sight(self, camera: CameraTraits) -> dict[str, Entity]:
        # A camera that is lost, or paused, sees nothing: what it saw last is not what is there.
        delivering = _is_delivering(camera.name, "online", "offline", and_not_paused=True)
        seen: Entity = {
            "state_topic": self._topics.of("seen", camera.name),
            "availability": [self._online(), {"topic": self._topics.of("state"), "value_template": delivering}],
            "availability_mode": "all",
        }
        label = {"platform": "sensor", "name": f"{camera.name} sees", "value_template": field("label")}
        entities: dict[str, Entity] = (
            self._counts(camera, seen) if TRAITS[camera.task].has_objects else {"label": seen | label}
        )
        entities["connected"] = {
            "platform": "binary_sensor",
            "name": f"{camera.name} connected",
            "state_topic": self._topics.of("state"),
            "value_template": _is_delivering(camera.name, "ON", "OFF"),
            "device_class": "connectivity",
            "entity_category": "diagnostic",
        }
        if camera.has_pictures or "snapshot" in self._allowed:
            entities["snapshot"] = {
                "platform": "image",
                "name": f"{camera.name} snapshot",
                "image_topic": self._topics.of("snapshot", camera.name),
                "content_type": "image/jpeg",
            }
        if camera.tells_events:
            entities["events"] = {
                "platform": "event",
                "name": f"{camera.name} events",
                "state_topic": self._topics.of("event", camera.name),
                "event_types": [*get_args(Turn)],
                "value_template": _event_template(),
                "qos": 1,
            }
        return entities

    def _counts(self, camera: CameraTraits, seen: Entity) -> dict[str, Entity]:
        entities: dict[str, Entity] = {}
        for label in (None, *(label for label in self._labels if label in camera.labels)):
            path = ("total",) if label is None else ("labels", label)
            suffix = "" if label is None else f"_{_told_apart(label, _NOT_IN_A_KIND)}"
            what = camera.name if label is None else f"{camera.name} {label}"
            entities[f"count{suffix}"] = seen | {
                "platform": "sensor",
                "name": f"{what} count",
                "value_template": field(*path, missing="0"),
                "state_class": "measurement",
            }
            entities[f"occupancy{suffix}"] = seen | {
                "platform": "binary_sensor",
                "name": f"{what} occupancy",
                "value_template": f"{{{{ 'ON' if {_lookup(*path, missing='0')} > 0 else 'OFF' }}}}",
                "device_class": "occupancy",
            }
        return entities

    def _controls(self, camera: CameraTraits) -> dict[str, Entity]:
        name, entities = camera.name, dict[str, Entity]()
        acting = {"command_topic": self._topics.of("command"), "qos": 1}
        stateful = acting | {"state_topic": self._topics.of("state")}
        for control in CONTROLS:
            kinds = [kind for kind in COMMANDS.values() if kind.control is control]
            if control.name in camera.refusals or not any(kind.permission in self._allowed for kind in kinds):
                continue
            entity = stateful | {
                "name": f"{name} {control.entity_label}" if control.entity_label else name,
                "value_template": field("cameras", name, "controls", control.name),
                **control.entity,
            }
            commands = {str(kind.value): msgspec.structs.replace(kind.example, camera=name) for kind in kinds}
            if control.entity["platform"] == "switch":
                entity |= {
                    f"payload_{word}": _json(commands[control.entity[f"state_{word}"]]) for word in ("on", "off")
                }
            else:
                [command] = commands.values()
                entity["command_template"] = command_template(command, control.name)
            entities[control.entity_kind] = entity
        if "snapshot" in self._allowed:
            entities["take_snapshot"] = acting | {
                "platform": "button",
                "name": f"{name} take snapshot",
                "payload_press": _json(Snapshot(camera=name)),
            }
        return entities


def field(*path: str, missing: str = "none") -> str:
    """Return a template for one value of a JSON message, by its keys from the outside; without it for `missing`."""
    return f"{{{{ {_lookup(*path, missing=missing)} }}}}"


def command_template(command: Command, changing: str) -> str:
    """Return a template that writes a command with one changing field, which may have any value here, of the entity."""
    fields = msgspec.to_builtins(command)
    pairs = (f"{_json(key)}: {'value' if key == changing else _json(str(fields[key]))}" for key in fields)
    return f"{{{{ {{{', '.join(pairs)}}} | to_json }}}}"


def _lookup(*path: str, missing: str = "none") -> str:
    *outer, last = map(_json, path)
    return f"value_json{''.join(f'.get({key}, {{}})' for key in outer)}.get({last}, {missing})"


def _is_delivering(name: str, yes: str, no: str, *, and_not_paused: bool = False) -> str:
    """Return a template that says whether frames of a camera come."""
    rest = f" and not {_lookup('cameras', name, 'controls', 'paused')}" if and_not_paused else ""
    is_open = f"{_lookup('cameras', name, 'source')} in ('opened', 'reopened')"
    return f"{{{{ '{yes}' if {is_open}{rest} else '{no}' }}}}"


def _json(value: Command | str) -> str:
    """Return a command, or a name as a string of Jinja: as in JSON. Braces in a string end no expression."""
    return msgspec.json.encode(value).decode()


def _told_apart(name: str, unusual: re.Pattern[str]) -> str:
    """Replace unusual characters; of two different names never the same comes out."""
    usual = unusual.sub("_", name)
    return usual if usual == name else f"{usual[:60]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _event_template() -> str:
    kinds = ", ".join(map(_json, get_args(Turn)))
    fields = ", ".join(f"{_json(key)}: value_json.get({_json(key)})" for key in _EVENT_FIELDS)
    # Programs may publish events of other kinds there; of what renders to nothing nothing is made.
    made = f"{{'event_type': value_json.kind, {fields}}} | to_json"
    return f"{{{{ {made} if value_json.get('kind') in ({kinds}) else '' }}}}"
