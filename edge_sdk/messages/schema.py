"""Every message that a device publishes or receives, and the table of their kinds.

`MESSAGES` has the content, topic and delivery settings of each kind. The topics, the client, the view of the fleet,
docs/*.schema.json and docs/asyncapi.json derive from this table: a new kind needs a struct and a row here, and the code
that publishes it. docs/payload.md explains every field to subscribers. The module does not depend on an MQTT client.
"""

from __future__ import annotations

import functools
import operator
import os
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from edge_sdk.core.errors import UsageError
from edge_sdk.core.toml import check_fields
from edge_sdk.messages.commands import Command, ControlState, ResponseMessage
from edge_sdk.tasks.detection import TASKS
from edge_sdk.tasks.entry import Amount, Clock, Count, FrameSize, ModelRef, Moment, Unit

SCHEMA_VERSION: Literal[1] = 1

_SourceStatus: TypeAlias = Literal["opening", "opened", "lost", "reopened", "ended"]


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The model and frame rate that run now, out of the levels to which a camera may be degraded.

    `level` is 0 for the preferred level, and `levels` - 1 for the last. The model runs on every `every`-th frame.
    `reason` is for people. While `tuning` is present, other variants are measured in turns with `variant`.
    """

    variant: str
    every: Annotated[float, Meta(ge=1)]
    level: Count
    levels: Annotated[int, Meta(ge=1)]
    reason: str
    tuning: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class CameraState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one camera; unknown values and empty warnings are left out.

    Attributes:
        source: `opening` until the first frame, then `opened`; `lost` while no frames arrive, `reopened` once they
            arrive again; `ended` after the end of a file.
        trouble: why the source delivers no frames, one line for people; left out if nothing is wrong.
        since: time at which this status of the source began, UTC.
        controls: what commands may change; present if commands are allowed.
        warnings: present problems by name, each a line for people.
    """

    source: _SourceStatus | msgspec.UnsetType = msgspec.UNSET
    trouble: str | msgspec.UnsetType = msgspec.UNSET
    since: Moment | msgspec.UnsetType = msgspec.UNSET
    running: Running | msgspec.UnsetType = msgspec.UNSET
    controls: ControlState | msgspec.UnsetType = msgspec.UNSET
    warnings: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class _DeviceMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream"):
    schema: Literal[1] = SCHEMA_VERSION
    device: str
    boot_id: str
    run_id: str


class StatusMessage(_DeviceMessage, frozen=True, kw_only=True, tag="status"):
    """Whether a device is online; retained, so that a new subscriber receives it at once.

    While online, the message has the device's cameras and their models; while offline, the reason.
    """

    status: Literal["online", "offline"]
    reason: Literal["shutdown", "lost"] | msgspec.UnsetType = msgspec.UNSET
    versions: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    cameras: dict[str, ModelRef] | msgspec.UnsetType = msgspec.UNSET


class StateMessage(_DeviceMessage, frozen=True, kw_only=True, tag="state"):
    """The state of a device and its cameras; retained, and kept by the broker when the device is offline.

    `warnings` has present problems of the device itself by name, each a line for people.
    """

    cameras: dict[str, CameraState]
    warnings: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class EventMessage(_DeviceMessage, frozen=True, kw_only=True, tag="event"):
    """An event on a camera; fields that are unknown or do not apply to the event are left out.

    Attributes:
        camera: name of the camera.
        seq: number among the events of that camera, from 0.
        kind: `appeared`, `disappeared`, or a kind that a user's program defines.
        at: time of the event; `clock` is present if the device's clock is not synchronised.
        label, class_id, confidence: the class of the event.
        box_xyxy: left, top, right, bottom in pixels of the original frame, to 0.1.
        frame, frame_seq: the frame's size and number, as in results.
        model: the camera's model, without the variant.
        detail: further facts, by name.
    """

    camera: str
    seq: Count
    kind: str
    at: Moment
    clock: Clock = msgspec.UNSET
    label: str | msgspec.UnsetType = msgspec.UNSET
    class_id: int | msgspec.UnsetType = msgspec.UNSET
    confidence: Unit | msgspec.UnsetType = msgspec.UNSET
    box_xyxy: tuple[float, float, float, float] | msgspec.UnsetType = msgspec.UNSET
    frame: FrameSize | msgspec.UnsetType = msgspec.UNSET
    frame_seq: Count | msgspec.UnsetType = msgspec.UNSET
    model: ModelRef | msgspec.UnsetType = msgspec.UNSET
    detail: dict[str, str | int | float | bool] | msgspec.UnsetType = msgspec.UNSET


class CameraHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One camera's health: `fps` since the last message, `age_p50_ms` of the latest results, counts since the start."""

    fps: Amount | msgspec.UnsetType = msgspec.UNSET
    age_p50_ms: float | msgspec.UnsetType = msgspec.UNSET
    results: Count | msgspec.UnsetType = msgspec.UNSET
    dropped: Count | msgspec.UnsetType = msgspec.UNSET
    reopenings: Count | msgspec.UnsetType = msgspec.UNSET
    unreadable: Count | msgspec.UnsetType = msgspec.UNSET


class EventLosses(msgspec.Struct, frozen=True, kw_only=True):
    """Events since the program's start that never reach the broker, by reason; docs/payload.md explains each."""

    overflow: Count
    age: Count
    quarantine: Count
    memory: Count
    disk: Count


class EventsHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of all cameras' events since the start; `waiting` is the present count, `durable` tells of a disk outbox.

    Events that a rate limit drops are counted in `limited` only.
    """

    put: Count
    delivered: Count
    waiting: Count
    durable: bool
    lost: EventLosses
    limited: Count = 0


class TelemetryMessage(_DeviceMessage, frozen=True, kw_only=True, tag="telemetry"):
    """Readings of the device itself; values that cannot be read are left out.

    Attributes:
        at: time of the readings, with a time zone; `clock` is present if the device's clock is not synchronised.
        uptime_s: seconds since the machine was started.
        temperature_c: temperature of the processor, degrees Celsius.
        throttled: why the processor is throttled, such as `under-voltage`; empty when it is not.
        memory_free_mb: memory that this program may still take, 10^6 bytes.
        memory_rss_mb: memory that the program holds, 10^6 bytes.
        disk_free_mb: free space of the disk with the program's state, 10^6 bytes.
        cpu_share: the program's processor time divided by the time since the last message; 1 is one core.
        load1: the kernel's load average of one minute.
        open_files: descriptors that the program holds.
        events: counts of all cameras' events; left out while there were none.
        snapshots_lost: number of all cameras' snapshots that never reach the broker; left out while it is 0.
        cameras: health of the cameras, by name.
    """

    at: Moment
    clock: Clock = msgspec.UNSET
    uptime_s: Amount | msgspec.UnsetType = msgspec.UNSET
    temperature_c: float | msgspec.UnsetType = msgspec.UNSET
    throttled: list[str] | msgspec.UnsetType = msgspec.UNSET
    memory_free_mb: Amount | msgspec.UnsetType = msgspec.UNSET
    memory_rss_mb: Amount | msgspec.UnsetType = msgspec.UNSET
    disk_free_mb: Amount | msgspec.UnsetType = msgspec.UNSET
    cpu_share: Amount | msgspec.UnsetType = msgspec.UNSET
    load1: Amount | msgspec.UnsetType = msgspec.UNSET
    open_files: Count | msgspec.UnsetType = msgspec.UNSET
    events: EventsHealth | msgspec.UnsetType = msgspec.UNSET
    snapshots_lost: Count | msgspec.UnsetType = msgspec.UNSET
    cameras: dict[str, CameraHealth] | msgspec.UnsetType = msgspec.UNSET


class SeenMessage(_DeviceMessage, frozen=True, kw_only=True, tag="seen"):
    """A summary of what a camera sees; retained, published when it changes, at most once a second.

    Attributes:
        camera: name of the camera.
        total: number of objects, for a detector.
        labels: number of objects by label, for a detector.
        label: the likeliest class, or the one that covers most of the picture, for other tasks.
    """

    camera: str
    total: Count | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, Annotated[int, Meta(ge=1)]] | msgspec.UnsetType = msgspec.UNSET
    label: str | msgspec.UnsetType = msgspec.UNSET


MessageKind: TypeAlias = Literal[
    "status", "state", "telemetry", "result", "event", "snapshot", "seen", "discovery", "command", "response"
]

_LONGEST_EXPIRY_S = 2**32 - 1  # MQTT's own

Qos: TypeAlias = Annotated[Literal[0, 1], Meta(description="1: acknowledged, perhaps twice")]
Expiry: TypeAlias = Annotated[
    int,
    Meta(
        ge=1,
        le=_LONGEST_EXPIRY_S,
        description="seconds after which a broker drops a message that it could not deliver",
        extra={"unit": "seconds"},
    ),
]
MessageRate: TypeAlias = Annotated[
    float,
    Meta(ge=0.001, le=1000, description="messages a second of one camera; of what is more the newest is kept"),
]


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery settings of one kind of message; retained ones never expire. Values out of range raise SettingError."""

    qos: Qos = 0
    expiry_s: Expiry = 60
    max_per_s: MessageRate | None = None

    def __post_init__(self) -> None:
        check_fields(self, Channel)


class MessageSpec(NamedTuple):
    """One kind of message."""

    type: Any  # type of the JSON; None for a JPEG picture
    topic: str  # below the device's prefix, with `{camera}` for one topic per camera; empty outside that prefix
    channel: Channel  # default delivery settings
    summary: str
    is_retained: bool = False  # whether the broker keeps the latest for those who subscribe later; it does not expire
    is_received: bool = False  # whether the device receives it; it sends all others

    @property
    def is_of_camera(self) -> bool:
        """Whether messages of this kind have one topic for each camera."""
        return "{camera}" in self.topic


EVENTS = Channel(qos=1, expiry_s=7 * 86400)
"""Events expire after a week, because late events are better than none for counting."""

SNAPSHOTS = Channel(expiry_s=3600)
_RETAINED = Channel(qos=1)
_ANSWERS = Channel(qos=1, expiry_s=60)  # requesters do not wait longer for a response

MESSAGES: dict[MessageKind, MessageSpec] = {
    "status": MessageSpec(
        StatusMessage, "status", _RETAINED, "Whether the device is online, and with which models", is_retained=True
    ),
    "state": MessageSpec(StateMessage, "state", _RETAINED, "State of the device and its cameras", is_retained=True),
    "telemetry": MessageSpec(TelemetryMessage, "telemetry", Channel(), "How the machine does"),
    "result": MessageSpec(
        functools.reduce(operator.or_, (entry.message for entry in TASKS.values())),
        "result/{camera}",
        Channel(),
        "What one frame shows",
    ),
    "event": MessageSpec(EventMessage, "event/{camera}", EVENTS, "Something that happened on a camera"),
    "snapshot": MessageSpec(None, "snapshot/{camera}", SNAPSHOTS, "A picture of a camera"),
    "seen": MessageSpec(SeenMessage, "seen/{camera}", _RETAINED, "Summary of what a camera sees", is_retained=True),
    "discovery": MessageSpec(
        dict[str, Any], "", _RETAINED, "Home Assistant's discovery message of the device", is_retained=True
    ),
    "command": MessageSpec(
        Command, "cmd", Channel(), "Command to the device, if commands are allowed", is_received=True
    ),
    "response": MessageSpec(ResponseMessage, "res", _ANSWERS, "What came of a command"),
}


_NAME_LIMIT = 100  # characters: four names stay far below MQTT's 65535 bytes, and fit what brokers in the cloud allow
_RESERVED = frozenset("/+#$")


class Topics(msgspec.Struct, frozen=True):
    """The topics of one device, PREFIX/SITE/DEVICE/...; the prefix has one or more levels, as `check_name` allows."""

    prefix: str
    site: str
    device: str

    def __post_init__(self) -> None:
        for level in self.prefix.split("/"):
            check_name("topic prefix", level)
        check_name("site", self.site)
        check_name("device", self.device)

    @property
    def own(self) -> str:
        """The prefix of all topics of the device; it ends in a slash."""
        return f"{self.prefix}/{self.site}/{self.device}/"

    def of(self, kind: MessageKind, camera: str = "") -> str:
        """Return the topic of a kind of message, except discovery; kinds with one topic per camera need `camera`."""
        if MESSAGES[kind].is_of_camera:
            check_name("camera", camera)
        return self.own + MESSAGES[kind].topic.replace("{camera}", camera)


def check_name(what: str, name: str) -> None:
    """Raise UsageError for a name that cannot be one level of a topic; `what` is the name's kind, such as "camera"."""
    if not name or len(name) > _NAME_LIMIT:
        raise UsageError(f"{what} name has {len(name)} characters, expected 1 to {_NAME_LIMIT}")
    if not name.isprintable() or not _RESERVED.isdisjoint(name) or name != name.strip():
        raise UsageError(
            f"{what} name {name!r} cannot be part of a topic, expected no / + # $ and no control characters"
        )


def default_device() -> str:
    """Return this machine's host name, with a hyphen for each character that a topic must not contain."""
    allowed = ("-" if c in _RESERVED or not c.isprintable() else c for c in os.uname().nodename)
    return "".join(allowed)[:_NAME_LIMIT].strip() or "device"


def message_schema(kind: MessageKind) -> bytes:
    """Return the JSON Schema of one kind of message, indented: the content of docs/KIND.schema.json."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"edge-sdk {kind}, schema {SCHEMA_VERSION}",
        **msgspec.json.schema(MESSAGES[kind].type),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message on its way to the broker."""

    topic: str
    payload: bytes
    camera: str = ""  # empty for messages of the device itself
    kind: MessageKind = "result"
    seq: int | None = None  # among the messages of its kind and camera
    correlation: bytes = b""  # the requester's correlation data, which a response returns
    is_repeated: bool = False  # whether a broker may have received the message before


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message that came from the broker, of which any client may have written it."""

    topic: str
    payload: bytes
    # Whether it is, or was published as, a retained message; with MQTT 3.1.1, and for `watch`, only those that were
    # there before the subscription are known.
    retain: bool = False
    response_topic: str = ""  # where the sender wants an answer; never with MQTT 3.1.1
    correlation: bytes = b""  # what the sender wants in the answer
    qos: int = 0


class Receiver(Protocol):
    """Takes received messages in the connection's thread; its methods only queue them, and never block or raise."""

    def receive(self, incoming: Incoming) -> None:
        """Take one message."""
        ...

    def refused(self, line: str) -> None:
        """Take the broker's answer to the subscription: a line about refused topics, empty where it granted all."""
        ...


_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """Read the kernel's boot id; without one, return a random id."""
    try:
        return str(uuid.UUID(_BOOT_ID_FILE.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        return str(uuid.uuid4())


class Identity(msgspec.Struct, frozen=True):
    """Ids of the publishing device, of this boot of the machine and of this run of the program, in all messages."""

    device: str
    boot_id: str = msgspec.field(default_factory=read_boot_id)
    run_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
