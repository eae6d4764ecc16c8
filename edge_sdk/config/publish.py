"""The tables that say what is published beside results, and how each kind travels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edge_sdk.event_rule import LONGEST_S, MOST_FRAMES
from edge_sdk.publishing import EVENTS, LONGEST_EXPIRY_S, SNAPSHOTS

_Labels = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    Meta(min_length=1, description="classes, by the bundle's labels; each for itself"),
]
_Cameras = Annotated[tuple[str, ...], Meta(min_length=1, description="names of pipelines; without it all of them")]
_Confidence = Annotated[float, Meta(ge=0, le=1, description="what is less confident is not seen")]
_Expiry = Annotated[
    int,
    Meta(
        ge=1,
        le=LONGEST_EXPIRY_S,
        description="seconds after which a broker drops a message that it could not deliver",
        extra={"unit": "seconds"},
    ),
]
_Rate = Annotated[
    float,
    Meta(ge=0.001, le=1000, description="messages a second of one camera; of what is more the newest is kept"),
]
_Qos = Annotated[Literal[0, 1], Meta(description="1: acknowledged, perhaps twice")]
_SureQos = Annotated[
    Literal[1],
    Meta(
        description="acknowledged, perhaps twice",
        extra={"advice": {0: "nobody acknowledges at 0, and no event may be lost", 2: "1 does, doubles bear one seq"}},
    ),
]


def _frames(description: str) -> Any:
    return Meta(ge=1, le=MOST_FRAMES, description=f"in so many results in a row it is {description}")


def _seconds(description: str) -> Any:
    return Meta(ge=0, le=LONGEST_S, description=description, extra={"unit": "seconds"})


class EventConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When classes have appeared or disappeared, which is told as an event; see `EventRule`.

    Attributes:
        labels: of the classes.
        cameras: where; everywhere by default.
        confidence, appear_frames, appear_s, disappear_frames, disappear_s, cooldown_s: see `EventRule`.
    """

    labels: _Labels
    cameras: _Cameras | UnsetType = UNSET
    confidence: _Confidence = 0.5
    appear_frames: Annotated[int, _frames("seen before it has appeared")] = 2
    appear_s: Annotated[float, _seconds("for so long it is seen before it has appeared")] = 0.0
    disappear_frames: Annotated[int, _frames("not seen before it has disappeared")] = 2
    disappear_s: Annotated[float, _seconds("for so long it is not seen before it has disappeared")] = 2.0
    cooldown_s: Annotated[float, _seconds("for so long after an appearance no other one is told")] = 0.0


class ResultsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How results travel.

    Attributes:
        qos: by default as `[mqtt]` says.
        expiry_s: seconds that a broker keeps one for.
        max_per_s: of one camera; no limit by default.
    """

    qos: _Qos | UnsetType = UNSET
    expiry_s: _Expiry = 60
    max_per_s: _Rate | UnsetType = UNSET


class EventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How events travel.

    Attributes:
        qos: of MQTT.
        expiry_s: seconds that a broker keeps one for.
        max_per_s: of one camera; no limit by default.
    """

    qos: _SureQos = 1
    expiry_s: _Expiry = EVENTS.expiry_s
    max_per_s: _Rate | UnsetType = UNSET


class SnapshotsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which pictures are published, and how they travel; see `SnapshotSettings`.

    Attributes:
        on: with each event, or at an interval.
        interval_s: seconds; with `interval`.
        max_per_s: of one camera; with `event`.
        width: pixels at most.
        quality: of JPEG.
        qos: of MQTT.
        expiry_s: seconds that a broker keeps one for.
    """

    on: Annotated[Literal["event", "interval"], Meta(description="when a picture is made")]
    interval_s: (
        Annotated[float, Meta(ge=0.1, le=86400, description="from one picture to the next", extra={"unit": "seconds"})]
        | UnsetType
    ) = UNSET
    max_per_s: (
        Annotated[float, Meta(ge=0.001, le=10, description="pictures a second of one camera; the newest is kept")]
        | UnsetType
    ) = UNSET
    width: Annotated[
        int, Meta(ge=16, le=4096, description="wider pictures are made smaller", extra={"unit": "pixels"})
    ] = 640
    quality: Annotated[int, Meta(ge=20, le=100, description="of JPEG")] = 80
    qos: _Qos = SNAPSHOTS.qos
    expiry_s: _Expiry = SNAPSHOTS.expiry_s


class PublishConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What goes to the broker of each camera.

    Attributes:
        results: how results travel.
        events: how events travel.
        snapshots: which pictures; none by default.
    """

    results: ResultsConfig = ResultsConfig()
    events: EventsConfig = EventsConfig()
    snapshots: SnapshotsConfig | UnsetType = UNSET
