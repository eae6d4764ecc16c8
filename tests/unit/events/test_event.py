"""Events: when a class has appeared or disappeared, what may stand in an event, and what its message says."""

import ctypes
import functools
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.clock import WallClock
from edge_sdk.core.errors import UsageError
from edge_sdk.core.frame import Classification, Detections
from edge_sdk.core.protocols import Event
from edge_sdk.events.rules import EventRule, EventWatch, Occupancy, rules_by_label
from edge_sdk.messages.encoder import EventEncoder
from edge_sdk.messages.schema import EventMessage, Identity
from tests.support.bundles import write_bundle
from tests.support.logs import refusal
from tests.support.results import (
    MODEL,
    make_classification,
    make_detections,
    make_encoder,
    make_frame,
    make_segmentation,
)

SCHEMA = msgspec.json.decode((Path(__file__).parents[3] / "docs" / "event.schema.json").read_bytes())
NOON = datetime(2026, 3, 2, 12, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=1)))


def _document(event: Event, encoder: EventEncoder | None = None, seq: int = 7) -> dict[str, Any]:
    data = (encoder or EventEncoder(Identity("pi", "boot", "run"), "door")).encode(event, seq)
    document: dict[str, Any] = msgspec.json.decode(data)
    jsonschema.validate(document, SCHEMA)
    assert msgspec.json.decode(data, type=EventMessage).seq == seq
    return document


def test_every_field_of_an_event() -> None:
    detail = {"after_s": 0.5, "door": "front", "count": 2, "open": True}
    event = Event(
        kind="appeared", camera="elsewhere", at=NOON, label="cat", class_id=0, confidence=0.123456,
        box_xyxy=(0.04, 1.26, 2, 3.999), frame_wh=(640, 480), frame_seq=12, detail=detail,
    )  # fmt: skip
    who = {"device": "pi", "boot_id": "boot", "run_id": "run", "camera": "door", "seq": 7}
    what = {"kind": "appeared", "label": "cat", "class_id": 0, "confidence": 0.1235, "box_xyxy": [0.0, 1.3, 2.0, 4.0]}
    when = {"at": "2026-03-02T11:00:00.123000Z", "frame": {"width": 640, "height": 480}, "frame_seq": 12}
    model = {"name": "tiny", "version": 3, "sha256": "0" * 64}
    variant = msgspec.structs.replace(MODEL, variant="int8")
    told = _document(event, EventEncoder(Identity("pi", "boot", "run"), "door", variant))
    assert told == {"stream": "event", "schema": 1, "model": model, "detail": detail} | who | what | when


def test_an_event_of_its_kind_alone_happens_now() -> None:
    before = datetime.now(timezone.utc).replace(microsecond=0)
    document = _document(Event(kind="door opened"))
    assert " ".join(sorted(document)) == "at boot_id camera device kind run_id schema seq stream"
    assert before <= datetime.fromisoformat(document["at"].replace("Z", "+00:00")) < before + timedelta(minutes=5)


def test_an_event_takes_the_numbers_of_a_result_as_they_are() -> None:
    result = make_detections(1)
    numbers: dict[str, Any] = {
        "class_id": result.class_id[0], "confidence": result.confidence[0], "box_xyxy": result.xyxy[0],
    }  # fmt: skip
    event = Event(kind="seen", at=NOON, **numbers)
    assert (event.confidence, event.box_xyxy) == (float(result.confidence[0]), tuple(map(float, result.xyxy[0])))
    assert _document(event)["class_id"] == result.class_id[0]


def test_events_that_cannot_be_are_refused_in_one_line() -> None:
    for wrong, words in (
        ({"kind": "x" * 101}, "expected 1 to 100"),
        ({"kind": "a\nb"}, "printable"),
        ({"label": ""}, "label is ''"),
        ({"at": datetime(2026, 3, 2)}, "no time zone"),
        ({"at": datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5)))}, "at is 9999-12-31"),
        ({"detail": {"x": "\ud800"}}, "detail has '"),
        ({"confidence": float("nan")}, "confidence is nan"),
        ({"box_xyxy": (0, 0, float("inf"), 1)}, "four finite numbers"),
        ({"box_xyxy": (0, 0, 1)}, "box_xyxy: expected `array` of length 4"),
        ({"detail": {"x": float("nan")}}, "detail['x'] is nan"),
        ({"detail": {"x": "y" * 8200}}, "expected 8192 at most"),
    ):
        said = refusal(UsageError, functools.partial(Event, **{"kind": "appeared", **wrong}))
        assert said.startswith("event: ")
        assert words in said


def test_messages_say_while_no_time_server_has_set_the_clock() -> None:
    is_set = False
    clock = WallClock(lambda: is_set, lambda: 0.0)
    events, results = EventEncoder(Identity("pi"), "door", clock=clock), make_encoder(wall_clock=clock)

    def clocks() -> list[str | None]:
        messages = (_document(Event(kind="x"), events), msgspec.json.decode(results.encode(make_detections(1))))
        return [message.get("clock") for message in messages]

    assert clocks() == ["unsynchronised"] * 2
    is_set = True
    assert clock.look() is not None
    assert clocks() == [None] * 2


def test_how_far_the_clock_was_put_forward_is_known_once() -> None:
    answers = iter([False, False, True, True, False, True])
    offsets = iter([100.0, 3700.0, 0.0, 5.0])
    clock = WallClock(lambda: next(answers), lambda: next(offsets))
    assert [clock.look() for _ in range(5)] == [None, 3600.0, None, None, 5.0]
    for clock in (WallClock(lambda: True), WallClock(lambda: None)):  # set, or it cannot be asked
        assert (clock.is_synchronised, clock.look()) == (True, None)


@pytest.mark.skipif(sys.maxsize < 2**32, reason="where a long has 4 bytes, the status stands elsewhere in struct timex")
def test_the_kernel_is_asked() -> None:
    timex = ctypes.create_string_buffer(512)
    assert ctypes.CDLL(None).ntp_adjtime(timex) >= 0
    status = int.from_bytes(timex.raw[40:44], sys.byteorder)
    assert WallClock().is_synchronised is not bool(status & 0x40)  # STA_UNSYNC


# When a class counts as there and when as gone.

CAT = EventRule(labels=("cat",), appear_frames=2, disappear_frames=2, disappear_s=0.0)
LABELS = {0: "cat", 1: "dog", 2: "cow"}


class Told(list[Event]):
    def put(self, event: Event, /) -> None:
        self.append(event)

    @property
    def words(self) -> list[str]:
        return [f"{event.kind} {event.label} {event.frame_seq}" for event in self]


def _result(seq: int, found: dict[int, float], *, at_s: float | None = None, is_finite: bool = True) -> Detections:
    at_s = seq / 10 if at_s is None else at_s
    order = sorted(found.items(), key=lambda item: -item[1])
    boxes = np.array([[i, i, i + 10, i + 10] for i, _ in order], np.float32).reshape(-1, 4)
    return Detections(
        make_frame(seq, captured_ns=round(at_s * 1e9), captured_at=1_700_000_000 + at_s), 0, boxes,
        np.array([confidence for _, confidence in order], np.float32),
        np.array([class_id for class_id, _ in order], np.int64), is_finite=is_finite,
    )  # fmt: skip


def _watched(sightings: str, rule: EventRule) -> list[str]:
    """Frame by frame: c: a cat, .: nothing, ?: outputs that were no numbers, and nothing found in them."""
    told = Told()
    watch = EventWatch([rule], LABELS, told)
    for seq, sign in enumerate(sightings):
        watch.put(_result(seq, {0: 0.9} if sign == "c" else {}, is_finite=sign != "?"))
    return [f"{word[0]}{seq}" for word, _, seq in map(str.split, told.words)]


def test_what_is_seen_in_a_row_appeared_and_else_it_went() -> None:
    for rule, sightings, expected in (
        ({}, "c.c.c.c", ""),
        ({}, "cc.c.c.", "a1"),
        ({}, "..cc....cc", "a3 d5 a9"),
        ({}, "cc.?.", "a1 d4"),
        ({}, "cc??????????cc", "a1"),
        ({}, "c?c", "a2"),
        ({"appear_frames": 1, "disappear_frames": 1}, "c.c.", "a0 d1 a2 d3"),
        ({"appear_frames": 1, "appear_s": 0.25}, "ccccc", "a3"),
        ({"disappear_frames": 1, "disappear_s": 0.25}, "cc......", "a1 d5"),
        ({"disappear_frames": 5}, "cc......", "a1 d6"),
        ({"confidence": 0.95}, "ccccc", ""),
        # Appearances are told with a pause between them, and disappearances only of those that were told.
        ({"cooldown_s": 0.95}, "cc....cccccc....", "a1 d3 a11 d13"),
        ({"cooldown_s": 0.95}, "cc..........cc", "a1 d3 a13"),
    ):
        assert _watched(sightings, msgspec.structs.replace(CAT, **rule)) == expected.split()


def test_what_a_camera_shows_follows_the_rules_and_not_single_results() -> None:
    for rules, sightings, expected in (
        ([], "1 d 1 d", "? 0 0 0"),  # nothing is called empty that may not be, and nothing is unknown for ever
        ([], "0", "0"),
        ([], "1 1 0 1 1", "? 1 1 1 1"),
        ([], "0 1 0 2 3 3 2 3", "0 0 0 0 2 2 2 2"),
        ([CAT], "3 3 2 3 2 1 2 0 0", "? 3 3 3 3 2 2 2 0"),
        ([CAT], "1 1 ? ? ? 0 0", "? 1 1 1 1 1 0"),
        ([msgspec.structs.replace(CAT, confidence=0.95)], "1 1 1", "0 0 0"),
    ):
        occupancy, shown = Occupancy(rules), list[str]()
        for seq, sign in enumerate(sightings.split()):
            count = int(sign.replace("?", "0").replace("d", "1"))
            result = _result(seq, dict.fromkeys(range(count), 0.9), is_finite=sign != "?")
            cats = msgspec.structs.replace(result, class_id=np.full(count, sign == "d", np.int64), names=LABELS)
            before = occupancy.shown
            assert occupancy.take(cats) == (occupancy.shown != before)
            shown.append("?" if occupancy.shown is None else str(occupancy.shown.get("cat", 0)))
        assert " ".join(shown) == expected
    occupancy, classes = Occupancy(), list[object]()
    for class_id in (0, 0, 1, 0, 1, 1, 0, 1):
        occupancy.take(make_classification([class_id]))
        classes.append(occupancy.shown and [*occupancy.shown])
    assert classes == [None, *[["class_0"]] * 4, *[["class_1"]] * 3]


def test_time_without_results_is_no_time_in_which_something_was_gone() -> None:
    told = Told()
    watch = EventWatch([EventRule(labels=("cat",), disappear_s=2.0)], LABELS, told)
    times_s = (0.0, 0.1, 0.2, 3600.0, 3600.1, 3600.2)
    for seq, at_s in enumerate(times_s):
        watch.put(_result(seq, {0: 0.9} if seq < 2 else {}, at_s=at_s))
    assert told.words == ["appeared cat 1"]
    for seq in range(6, 30):
        watch.put(_result(seq, {}, at_s=3600.2 + 0.1 * (seq - 5)))
    assert told.words == ["appeared cat 1", "disappeared cat 13"]


def test_what_an_event_says() -> None:
    told = Told()
    watch = EventWatch([EventRule(labels=("cat",), disappear_s=0.15)], LABELS, told)
    for seq in range(7):
        watch.put(_result(seq, {1: 0.95, 0: 0.6 + seq / 10} if seq < 3 else {1: 0.95}))
    appeared, disappeared = told
    assert [event.confidence for event in told] == pytest.approx([0.7, 0.8])
    assert msgspec.structs.replace(appeared, confidence=None) == Event(
        kind="appeared", label="cat", class_id=0, camera="door", box_xyxy=(0.0, 0.0, 10.0, 10.0), frame_wh=(640, 480),
        frame_seq=1, at=datetime.fromtimestamp(1_700_000_000.1, timezone.utc), detail={"after_s": 0.1},
    )  # fmt: skip
    assert (disappeared.frame_seq, disappeared.detail) == (5, {"after_s": 0.3, "stayed_s": 0.2})


def test_classes_of_a_classifier_and_shares_of_a_segmentation() -> None:
    for labels, confidence, result, expected in (
        (("cat", "dog"), 0.3, make_classification([1, 0]), ["dog"]),
        (("cat", "dog"), 0.3, make_segmentation([0.3, 0.29]), ["cat"]),
        (("cow",), 0.0, make_segmentation([0.5, 0.5, 0.0]), []),
    ):
        told = Told()
        EventWatch([EventRule(labels=labels, appear_frames=1, confidence=confidence)], LABELS, told).put(result)
        assert [(event.kind, event.label, event.box_xyxy) for event in told] == [
            ("appeared", label, None) for label in expected
        ]


def test_numbers_that_are_none_are_not_seen_and_make_no_event_that_cannot_be() -> None:
    told, nan, ids = Told(), float("nan"), np.array([0])
    watch = EventWatch([EventRule(labels=("cat",), appear_frames=1)], LABELS, told)
    watch.put(Classification(make_frame(), 0, np.array([nan], np.float32), ids, is_finite=False))
    for confidence in (nan, 0.9):
        boxes, confidences = np.full((1, 4), nan, np.float32), np.array([confidence], np.float32)
        watch.put(Detections(make_frame(), 0, boxes, confidences, ids, is_finite=False))
        assert len(told) == (confidence == 0.9)
    assert (told.words, told[0].box_xyxy) == (["appeared cat 0"], None)


def test_rules_that_cannot_be_are_refused() -> None:
    labels: list[object] = [(), ("cat", "cat"), ("a\tb",), "cat"]
    numbers = {"confidence": float("nan"), "appear_frames": 0, "disappear_s": -1.0, "cooldown_s": 86401.0}
    for wrong in [*({"labels": of} for of in labels), *({name: value} for name, value in numbers.items())]:
        assert next(iter(wrong)) in refusal(UsageError, EventRule, **{"labels": ("cat",), **wrong})
    assert "two of them name 'cat'" in refusal(UsageError, rules_by_label, [CAT, EventRule(labels=("dog", "cat"))])


def test_a_label_that_the_bundle_does_not_have_is_refused_with_the_nearest(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "tiny.edge"))
    rules = (EventRule(labels=labels) for labels in (("dog", "catt"), ("fox",)))
    of = "is no label of tiny, so nothing is told of it"
    said = refusal(UsageError, EventWatch.for_bundle, bundle, rules, Told())
    assert said == f"event rules: 'catt' {of}; did you mean 'cat'?; 'fox' {of}; expected one of 'cat', 'dog'"
