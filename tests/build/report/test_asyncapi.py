"""docs/asyncapi.json says what a device publishes, and holds for its messages."""

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from edge_sdk.core.protocols import Event
from edge_sdk.messages.commands import ResponseMessage
from edge_sdk.messages.encoder import EventEncoder
from edge_sdk.messages.schema import TelemetryMessage, Topics
from edge_sdk.publishing.discovery import Discovery, HomeAssistantSettings
from tests.support.results import (
    IDENTITY,
    MODEL,
    AsyncApi,
    make_classification,
    make_detections,
    make_encoder,
    make_segmentation,
)

PATH = Path(__file__).parents[3] / "docs" / "asyncapi.json"
DOCUMENT: dict[str, Any] = msgspec.json.decode(PATH.read_bytes())


def test_each_topic_has_a_channel() -> None:
    topics = Topics("a/b", "home", "pi")
    discovery = Discovery(HomeAssistantSettings(prefix="ha"), topics, (), "")
    levels = {"prefix": "a/b", "site": "home", "device": "pi", "camera": "door", "home_assistant": "ha"}
    filled = {
        kind: channel["address"].format(**levels, id=discovery.topic.split("/")[2])
        for kind, channel in DOCUMENT["channels"].items()
    }
    of_device = {kind: topics.of(kind) for kind in ("status", "state", "telemetry", "command", "response")}
    of_camera = {kind: topics.of(kind, "door") for kind in ("result", "event", "snapshot", "seen")}
    assert filled == {**of_device, **of_camera, "discovery": discovery.topic}


def test_each_kind_has_one_channel_one_operation_and_one_message() -> None:
    parts = (DOCUMENT["channels"], DOCUMENT["operations"], DOCUMENT["components"]["messages"])
    assert len({frozenset(part) for part in parts}) == 1
    for kind, operation in DOCUMENT["operations"].items():
        assert operation["action"] == ("receive" if kind == "command" else "send")
        assert operation["channel"] == {"$ref": f"#/channels/{kind}"}
    retained = {kind for kind, o in DOCUMENT["operations"].items() if o["bindings"]["mqtt"]["retain"]}
    assert retained == {"status", "state", "seen", "discovery"}
    assert DOCUMENT["operations"]["command"]["reply"]["channel"] == {"$ref": "#/channels/response"}
    assert DOCUMENT["operations"]["event"]["bindings"]["mqtt"]["qos"] == 1


def _references(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _references(each)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)


def test_every_reference_leads_somewhere_and_no_word_is_of_a_later_draft() -> None:
    references = set(_references(DOCUMENT))
    assert len(references) > 20
    for reference in references:
        found: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
    assert not [word for word in ("prefixItems", "$defs", "discriminator") if f'"{word}"' in PATH.read_text()]


def test_messages_keep_to_it_and_others_do_not() -> None:
    encoder, who, api = make_encoder(), msgspec.structs.asdict(IDENTITY), AsyncApi(DOCUMENT)
    telemetry = TelemetryMessage(**who, at=datetime.now(timezone.utc), load1=0.5)
    for kind, payload in (
        *(("result", encoder.encode(result)) for result in (make_detections(20), make_classification([0, 1]))),
        ("result", encoder.encode(make_segmentation([0.5, 0.5]))),
        ("event", EventEncoder(IDENTITY, "door", MODEL).encode(Event(kind="x", box_xyxy=(0, 0, 1, 1)), 0)),
        ("response", msgspec.json.encode(ResponseMessage(**who, command="pause", ok=True))),
        ("telemetry", msgspec.json.encode(telemetry)),
    ):
        document = msgspec.json.decode(payload)
        assert api.complaints(kind, document) == []
        assert api.complaints(kind, document | {"schema": 2})
        assert api.complaints(kind, {key: value for key, value in document.items() if key != "run_id"})


def test_commands_and_boxes_keep_to_it_and_others_do_not() -> None:
    api = AsyncApi(DOCUMENT)
    assert api.complaints("command", {"command": "set_rate", "camera": "door", "max_fps": 5, "id": "a"}) == []
    for wrong in ({"command": "set_rate", "max_fps": -1}, {"command": "format"}, {"command": "pause", "path": "/etc"}):
        assert api.complaints("command", {**wrong, "camera": "door"})
    document = msgspec.json.decode(make_encoder().encode(make_detections(1)))
    document["detections"][0]["box_xyxy"].append(0.0)
    assert api.complaints("result", document)
