"""Events: what may stand in one, and what their messages say."""

from __future__ import annotations

import ctypes
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.event import Event
from edge_sdk.publishing import EventEncoder, EventMessage, Identity
from edge_sdk.wall_clock import WallClock
from tests.device.results import MODEL, make_detections, make_encoder

SCHEMA = msgspec.json.decode((Path(__file__).parents[2] / "docs" / "event.schema.json").read_bytes())
NOON = datetime(2026, 3, 2, 12, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=1)))


def _document(event: Event, encoder: EventEncoder | None = None, seq: int = 7) -> dict[str, Any]:
    data = (encoder or EventEncoder(Identity("pi", "boot", "run"), "door")).encode(event, seq)
    document: dict[str, Any] = msgspec.json.decode(data)
    jsonschema.validate(document, SCHEMA)
    assert msgspec.json.decode(data, type=EventMessage).seq == seq
    return document


def test_every_field_of_an_event() -> None:
    event = Event(
        kind="appeared",
        camera="elsewhere",
        at=NOON,
        label="cat",
        class_id=0,
        confidence=0.123456,
        box_xyxy=(0.04, 1.26, 2, 3.999),
        frame_wh=(640, 480),
        frame_seq=12,
        detail={"after_s": 0.5, "door": "front", "count": 2, "open": True},
    )
    variant = msgspec.structs.replace(MODEL, variant="int8")
    assert _document(event, EventEncoder(Identity("pi", "boot", "run"), "door", variant)) == {
        "stream": "event",
        "schema": 1,
        "device": "pi",
        "boot_id": "boot",
        "run_id": "run",
        "camera": "door",
        "seq": 7,
        "kind": "appeared",
        "at": "2026-03-02T11:00:00.123000Z",
        "label": "cat",
        "class_id": 0,
        "confidence": 0.1235,
        "box_xyxy": [0.0, 1.3, 2.0, 4.0],
        "frame": {"width": 640, "height": 480},
        "frame_seq": 12,
        "model": {"name": "tiny", "version": 3, "sha256": "0" * 64},
        "detail": {"after_s": 0.5, "door": "front", "count": 2, "open": True},
    }


def test_an_event_of_its_kind_alone_happens_now() -> None:
    before = datetime.now(timezone.utc)
    document = _document(Event(kind="door opened"))
    assert set(document) == {
        "stream",
        "schema",
        "device",
        "boot_id",
        "run_id",
        "camera",
        "seq",
        "kind",
        "at",
    }
    assert (
        timedelta(0)
        <= datetime.fromisoformat(document["at"].replace("Z", "+00:00"))
        - before.replace(microsecond=before.microsecond // 1000 * 1000)
        < timedelta(minutes=5)
    )


def test_an_event_takes_the_numbers_of_a_result_as_they_are() -> None:
    result = make_detections(1)
    event = Event(
        kind="seen",
        at=NOON,
        class_id=result.class_ids[0],
        confidence=result.confidences[0],  # type: ignore[arg-type]
        box_xyxy=result.boxes_xyxy[0],  # type: ignore[arg-type]
    )
    assert event == Event(
        kind="seen",
        at=NOON,
        class_id=int(result.class_ids[0]),
        confidence=float(result.confidences[0]),
        box_xyxy=tuple(map(float, result.boxes_xyxy[0])),  # type: ignore[arg-type]
    )
    assert _document(event)["class_id"] == result.class_ids[0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": ""}, "kind is ''"),
        ({"kind": "x" * 101}, "expected 1 to 100"),
        ({"kind": "a\nb"}, "printable"),
        ({"kind": 1}, "kind: expected `str`, got `int`"),
        ({"label": ""}, "label is ''"),
        ({"at": datetime(2026, 3, 2)}, "no time zone"),
        ({"at": datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5)))}, "at is 9999-12-31"),
        ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))}, "at is 0001-01-01"),
        ({"detail": {"x": "\ud800"}}, "detail has '.ud800'"),
        ({"confidence": 1.01}, "confidence is 1.01"),
        ({"confidence": float("nan")}, "confidence is nan"),
        ({"confidence": "high"}, "confidence: expected"),
        ({"box_xyxy": (0, 0, float("inf"), 1)}, "four finite numbers"),
        ({"box_xyxy": (0, 0, 1)}, "box_xyxy: expected `array` of length 4"),
        ({"frame_wh": (1.5, 2)}, "frame_wh"),
        ({"frame_seq": -1}, "frame_seq: expected `int` >= 0"),
        ({"detail": {"x": float("nan")}}, r"detail\['x'\] is nan"),
        ({"box_xyxy": np.zeros((2, 4))}, "box_xyxy: expected"),
        ({"detail": {"x": {}}}, "detail"),
        ({"detail": {1: "x"}}, "detail"),
        ({"detail": {"x": "y" * 8200}}, "expected 8192 at most"),
    ],
)
def test_events_that_cannot_be_are_refused_in_one_line(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        Event(**{"kind": "appeared", **wrong})
    assert str(refused.value).startswith("event: ")
    assert "\n" not in str(refused.value)


def test_messages_say_while_no_time_server_has_set_the_clock() -> None:
    is_set = False
    clock = WallClock(lambda: is_set, lambda: 0.0)
    events = EventEncoder(Identity("pi"), "door", clock=clock)
    results = make_encoder(wall_clock=clock)
    assert _document(Event(kind="x"), events)["clock"] == "unsynchronised"
    assert msgspec.json.decode(results.encode(make_detections(1)))["clock"] == "unsynchronised"
    is_set = True
    assert clock.look() is not None
    assert "clock" not in _document(Event(kind="x"), events)
    assert "clock" not in msgspec.json.decode(results.encode(make_detections(1)))


def test_how_far_the_clock_was_put_forward_is_known_once() -> None:
    answers = iter([False, False, True, True, False, True])
    offsets = iter([100.0, 3700.0, 0.0, 5.0])
    clock = WallClock(lambda: next(answers), lambda: next(offsets))
    assert [clock.look() for _ in range(5)] == [None, 3600.0, None, None, 5.0]


@pytest.mark.parametrize("answer", [True, None])
def test_nothing_is_claimed_of_a_clock_that_is_set_or_cannot_be_asked(answer: bool | None) -> None:
    clock = WallClock(lambda: answer)
    assert clock.is_synchronised
    assert clock.look() is None


@pytest.mark.skipif(sys.maxsize < 2**32, reason="where a long has 4 bytes, the status stands elsewhere in struct timex")
def test_the_kernel_is_asked() -> None:
    timex = ctypes.create_string_buffer(512)
    assert ctypes.CDLL(None).ntp_adjtime(timex) >= 0
    status = int.from_bytes(timex.raw[40:44], sys.byteorder)
    assert WallClock().is_synchronised is not bool(status & 0x40)  # STA_UNSYNC
