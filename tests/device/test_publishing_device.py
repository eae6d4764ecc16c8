"""What a device says of itself, and the schemas of all messages."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

import edge_sdk.publishing
from edge_sdk.publishing import (
    CameraHealth,
    ControlState,
    EventMessage,
    Identity,
    Running,
    SeenMessage,
    SourceState,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
    message_schema,
)
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.identity import read_boot_id
from tests.device.results import MODEL

DOCS = Path(__file__).parents[2] / "docs"
NOW = datetime(2026, 3, 2, 9, 15, 4, tzinfo=timezone.utc)
WHO = Identity("pi", "boot", "run")
HEADER = {"schema": 1, "device": "pi", "boot_id": "boot", "run_id": "run"}


def _board() -> Board:
    board = Board(WHO, {"edge-sdk": "1.2"})
    door = board.join("door", MODEL)
    board.join("gate", MODEL)
    board.source(door, SourceState(status="lost", trouble="connection refused", since=NOW))
    board.running(door, Running(variant="int8.320x320", every=1, rung=1, rungs=7, reason="34% of 60 frames were late"))
    board.warn(door, "hung", "a run did not finish")
    board.warn_of_device("disk", "12 MB are free")
    board.controls(door, ControlState(paused=True, confidence=0.5, max_fps=0))
    return board


def _telemetry() -> TelemetryMessage:
    return TelemetryMessage(
        **msgspec.structs.asdict(WHO),
        at=NOW,
        uptime_s=17.0,
        temperature_c=-3.5,
        throttled=["under-voltage"],
        memory_free_mb=411.5,
        memory_rss_mb=131.0,
        disk_free_mb=0.0,
        cpu_share=1.63,
        load1=0.0,
        open_files=41,
        cameras={"door": CameraHealth(fps=14.9, age_p50_ms=61.4, results=1841, dropped=0, reopenings=2)},
    )


def _examples(stream: str) -> list[bytes]:
    """Of docs/payload.md, the model of each written out."""
    blocks = (DOCS / "payload.md").read_bytes().split(b"```")[1::2]
    lines = [line for block in blocks if block.startswith(b"text\n") for line in block.splitlines()[1:]]
    mine = [line for line in lines if b'"stream":"%b"' % stream.encode() in line]
    assert mine
    return [line.replace(b"{...}", msgspec.json.encode(MODEL)) for line in mine]


def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(msgspec.json.decode((DOCS / f"{name}.schema.json").read_bytes()))


STATUSES = [_board().online(), _board().offline("lost"), _board().offline("shutdown"), *_examples("status")]
STATES = [_board().state(), Board(WHO, {}).state(), *_examples("state")]
HEALTH = [
    msgspec.json.encode(_telemetry()),
    msgspec.json.encode(TelemetryMessage(**msgspec.structs.asdict(WHO), at=NOW)),
    *_examples("telemetry"),
]
SEEN = [
    msgspec.json.encode(SeenMessage(**msgspec.structs.asdict(WHO), camera="door", label="shut")),
    *_examples("seen"),
]
MESSAGES: list[tuple[str, type, list[bytes]]] = [
    ("status", StatusMessage, STATUSES),
    ("state", StateMessage, STATES),
    ("telemetry", TelemetryMessage, HEALTH),
    ("seen", SeenMessage, SEEN),
]


@pytest.mark.parametrize("stream", ["event", "result", "status", "state", "telemetry", "seen"])
def test_schema_files_are_up_to_date(stream: str) -> None:
    assert (DOCS / f"{stream}.schema.json").read_bytes() == message_schema(stream), (
        f"write it again: python -c 'import pathlib; from edge_sdk.publishing import message_schema; "
        f'pathlib.Path("docs/{stream}.schema.json").write_bytes(message_schema("{stream}"))\''
    )


def test_status_messages() -> None:
    model = {"name": "tiny", "version": 3, "sha256": "0" * 64}
    online = {**HEADER, "stream": "status", "status": "online", "versions": {"edge-sdk": "1.2"}}
    assert msgspec.json.decode(_board().online()) == {**online, "cameras": {"door": model, "gate": model}}
    lost = {**HEADER, "stream": "status", "status": "offline", "reason": "lost"}
    assert msgspec.json.decode(_board().offline("lost")) == lost


def test_a_state_message() -> None:
    running = {"variant": "int8.320x320", "every": 1, "rung": 1, "rungs": 7, "reason": "34% of 60 frames were late"}
    door = {
        "source": "lost",
        "trouble": "connection refused",
        "since": "2026-03-02T09:15:04Z",
        "running": running,
        "controls": {"paused": True, "confidence": 0.5, "max_fps": 0.0},
        "warnings": {"hung": "a run did not finish"},
    }
    expected = {
        **HEADER,
        "stream": "state",
        "cameras": {"door": door, "gate": {}},
        "warnings": {"disk": "12 MB are free"},
    }
    assert msgspec.json.decode(_board().state()) == expected


@pytest.mark.parametrize(("name", "kind", "data"), [(n, k, data) for n, k, messages in MESSAGES for data in messages])
def test_messages_keep_to_their_schema_and_are_read_back(name: str, kind: type, data: bytes) -> None:
    assert [e.message for e in _validator(name).iter_errors(msgspec.json.decode(data))] == []
    assert b"null" not in data
    read = msgspec.json.decode(data, type=StatusMessage | StateMessage | TelemetryMessage | SeenMessage)
    assert type(read) is kind
    assert msgspec.json.decode(msgspec.json.encode(read)) == msgspec.json.decode(data)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("status", ["schema"], 2),
        ("status", ["stream"], "state"),
        ("status", ["status"], "?"),
        ("status", ["versions"], None),
        ("status", ["cameras", "door"], {}),
        ("state", ["device"], 1),
        ("state", ["cameras"], None),
        ("state", ["cameras", "door", "source"], "gone"),
        ("state", ["cameras", "door", "since"], 7),
        ("state", ["cameras", "door", "running", "every"], 0),
        ("state", ["cameras", "door", "running", "rung"], -1),
        ("state", ["cameras", "door", "running", "reason"], None),
        ("state", ["warnings"], ["disk"]),
        ("state", ["warnings", "disk"], None),
        ("state", ["cameras", "door", "controls", "max_fps"], -1),
        ("telemetry", ["stream"], "state"),
        ("telemetry", ["at"], None),
        ("telemetry", ["cpu_share"], -0.1),
        ("telemetry", ["open_files"], 1.5),
        ("telemetry", ["throttled"], "heat"),
        ("telemetry", ["cameras", "door", "results"], -1),
    ],
)
def test_the_schemas_refuse_other_messages(name: str, path: list[str], value: object) -> None:
    [data] = [messages[0] for other, _, messages in MESSAGES if other == name]
    document: Any = msgspec.json.decode(data)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not _validator(name).is_valid(document)


def test_every_field_is_explained() -> None:
    text = (DOCS / "payload.md").read_text()
    kinds = (EventMessage, StateMessage, StatusMessage, TelemetryMessage, SeenMessage, ControlState)
    for kind in (*kinds, edge_sdk.publishing.CameraState, CameraHealth):
        for field in msgspec.structs.fields(kind):
            assert f"{field.encode_name}`" in text, f"{kind.__name__}.{field.encode_name}"


def test_every_start_of_the_program_has_its_own_run_id() -> None:
    first, second = Identity("pi"), Identity("pi")
    assert uuid.UUID(first.run_id) != uuid.UUID(second.run_id)
    assert first.boot_id == second.boot_id or not Path("/proc/sys/kernel/random/boot_id").exists()


def test_boot_id_is_one_of_this_boot() -> None:
    assert str(uuid.UUID(read_boot_id())) == read_boot_id() or not Path("/proc/sys/kernel/random/boot_id").exists()
