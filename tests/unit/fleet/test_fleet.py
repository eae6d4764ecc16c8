"""What is known of a fleet from its messages and which of it is news; nothing that anybody publishes breaks it."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from edge_sdk.core.errors import UsageError
from edge_sdk.fleet.fleet import MOST_CAMERAS, MOST_DEVICES, Fleet
from edge_sdk.fleet.messages import LARGEST, DeviceAddress, Unread, filters, line_words, read, record_of
from tests.support.connections import MODEL, NOON, detections, hear, state, status


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("edge/v1/berlin/pi/status", DeviceAddress("berlin", "pi", "status")),
        ("edge/v1/berlin/pi/result/gate", DeviceAddress("berlin", "pi", "result", "gate")),
        ("edge/v1/berlin/pi/status/gate", None),
        ("edge/v1/berlin/pi/result", None),
        ("edge/v1/berlin/pi/result/gate/more", None),
        ("edge/v1/berlin/pi/result/", None),
        ("edge/v1/berlin/pi/res/me/and you", DeviceAddress("berlin", "pi", "res")),
        ("edge/v1/berlin/pi/other", None),
        ("edge/v1//pi/status", None),
        ("edge/v10/berlin/pi/status", None),
        ("edge/v1", None),
    ],
)
def test_what_a_topic_says(topic: str, expected: DeviceAddress | None) -> None:
    assert DeviceAddress.of(topic, "edge/v1") == expected


def test_what_is_subscribed_to() -> None:
    assert filters("edge/v1", None, None) == ["edge/v1/+/+/#"]
    assert filters("a", "berlin", "pi") == ["a/berlin/pi/#"]
    for wrong in (("edge/#", None, None), ("edge", "+", None), ("edge", None, "a/b"), ("", None, None)):
        with pytest.raises(UsageError, match="name"):
            filters(*wrong)


def test_a_device_comes_works_and_is_lost() -> None:
    fleet = Fleet()
    birth = status(versions={"edge-sdk": "0.1"}, cameras={"gate": MODEL})
    assert hear(fleet, "berlin/pi/status", birth) == ["berlin/pi: online, gate: yolo 3; edge-sdk 0.1"]
    assert hear(fleet, "berlin/pi/status", birth) == []
    opened = {"gate": {"source": "opened"}}
    assert hear(fleet, "berlin/pi/state", state(opened)) == ["berlin/pi/gate: source opened"]
    lost = {"gate": {"source": "lost", "trouble": "refused", "warnings": {"heat": "hot"}}}
    assert hear(fleet, "berlin/pi/state", state(lost, warnings={"disk": "full"})) == [
        "berlin/pi: warning: disk: full",
        "berlin/pi/gate: source lost (refused)",
        "berlin/pi/gate: warning: heat: hot",
    ]
    assert hear(fleet, "berlin/pi/state", state(opened)) == [
        "berlin/pi: all is well again",
        "berlin/pi/gate: source opened",
        "berlin/pi/gate: all is well again",
    ]
    later = NOON + timedelta(minutes=5)
    assert hear(fleet, "berlin/pi/status", status("offline", reason="lost"), later) == ["berlin/pi: offline (lost)"]
    device = fleet.devices["berlin", "pi"]
    assert (device.since, device.is_since_before) == (later, False)


def test_what_was_retained_has_no_beginning() -> None:
    fleet = Fleet()
    hear(fleet, "berlin/pi/status", status(), is_retained=True)
    assert fleet.devices["berlin", "pi"].is_since_before


def test_how_a_device_that_is_gone_did_is_no_news() -> None:
    fleet, gate = Fleet(), {"gate": {"source": "opened"}}
    assert hear(fleet, "a/off/status", status("offline"), is_retained=True) == ["a/off: offline"]
    assert hear(fleet, "a/off/state", state(gate), is_retained=True) == []
    assert hear(fleet, "a/late/state", state(gate), is_retained=True) == []
    assert hear(fleet, "a/late/status", status("offline"), is_retained=True) == ["a/late: offline"]
    assert hear(fleet, "a/on/state", state(gate), is_retained=True) == []
    assert hear(fleet, "a/on/status", status(cameras={"gate": MODEL}), is_retained=True) == [
        "a/on: online, gate: yolo 3",
        "a/on/gate: source opened",
    ]
    assert hear(fleet, "a/off/status", status()) == ["a/off: online, gate: ?"]
    assert hear(fleet, "a/off/state", state(gate)) == ["a/off/gate: source opened"]


def test_a_pause_is_news() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}))
    said = [
        hear(fleet, "a/pi/state", state({"gate": {"controls": {"paused": paused, "max_fps": 0}}}))
        for paused in (False, True, True, False)
    ]
    assert said == [[], ["a/pi/gate: paused"], [], ["a/pi/gate: no more paused"]]


def test_results_are_said_when_they_change_and_once_a_second_at_most() -> None:
    fleet = Fleet()
    said = [
        hear(fleet, "a/pi/result/gate", payload, NOON + timedelta(milliseconds=at_ms))
        for at_ms, payload in [
            (0, detections(("person", 0.91), ("person", 0.42), ("bicycle", 0.6))),
            (100, detections(("person", 0.9))),
            (1100, detections(("person", 0.8))),
            (2200, detections(("person", 0.7))),
            (3300, detections()),
        ]
    ]
    assert said == [["a/pi/gate: 2 person 91%, bicycle 60%"], [], ["a/pi/gate: person 80%"], [], ["a/pi/gate: nothing"]]
    camera = fleet.devices["a", "pi"].cameras["gate"]
    assert camera.age_ms == 17.4
    assert camera.fps(NOON + timedelta(seconds=3.3)) == pytest.approx(4 / 3.3)
    assert camera.fps(NOON + timedelta(seconds=30)) is None


def test_cameras_that_a_device_does_not_name_any_more_are_gone() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL, "yard": MODEL}))
    hear(fleet, "a/pi/status", status(cameras={"yard": MODEL}))
    assert list(fleet.devices["a", "pi"].cameras) == ["yard"]


def test_a_device_whose_status_is_removed_is_gone() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status("offline"))
    assert hear(fleet, "a/pi/state", b"") == []
    assert hear(fleet, "a/pi/status", b"") == ["a/pi: removed, its status is no more at the broker"]
    assert fleet.devices == {}
    assert hear(fleet, "a/pi/status", status("offline")) == ["a/pi: offline"]


def test_events_and_snapshots_are_said_each() -> None:
    fleet = Fleet()
    event = b'{"kind": "appeared", "label": "person", "confidence": 0.91, "more": {"later": 1}}'
    assert hear(fleet, "a/pi/event/gate", event) == ["a/pi/gate: event: person appeared 91%"]
    assert hear(fleet, "a/pi/event/gate", event) == ["a/pi/gate: event: person appeared 91%"]
    numbered = b'{"kind": "appeared", "label": "person", "confidence": 0.91, "seq": %d}'
    for at, clock, told in (
        (NOON - timedelta(seconds=9), "", ""),
        (NOON - timedelta(seconds=100), "", ", 100 s ago"),
        (NOON - timedelta(minutes=119), "", ", 119 min ago"),
        (NOON - timedelta(days=3), "", ", 3 days ago"),
        (NOON - timedelta(days=3), "unsynchronised", ""),
        (NOON + timedelta(days=3), "", ""),
        (NOON.replace(tzinfo=None), "", ""),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=23, minutes=59))), "", None),
    ):
        waited = msgspec.json.encode({"kind": "rang", "at": at, "clock": clock})
        [line] = hear(fleet, "a/pi/event/gate", waited)
        assert line.startswith("a/pi/gate: event: rang")
        assert told is None or line == f"a/pi/gate: event: rang{told}"
    assert [len(hear(fleet, "a/pi/event/gate", numbered % seq)) for seq in (7, 8, 7, 8, 9)] == [1, 1, 0, 0, 1]
    assert len(hear(fleet, "a/pi/event/yard", numbered % 7)) == 1
    assert hear(fleet, "a/pi/snapshot/gate", b"\xff\xd8" * 5000) == ["a/pi/gate: snapshot of 10 kB"]


def test_whoever_claims_to_be_many_is_bounded() -> None:
    fleet = Fleet()
    for number in range(MOST_DEVICES + 5):
        hear(fleet, f"a/{number}/status", status())
    for number in range(MOST_CAMERAS + 5):
        hear(fleet, f"a/0/result/{number}", detections())
    hear(fleet, "a/1/status", status(cameras={str(n): MODEL for n in range(MOST_CAMERAS + 5)}))
    assert len(fleet.devices) == MOST_DEVICES
    assert len(fleet.devices["a", "0"].cameras) == len(fleet.devices["a", "1"].cameras) == MOST_CAMERAS
    assert fleet.left_out == 10


@pytest.mark.parametrize(
    "payload",
    [b"{}", b"\xff\xfe\x00", b'{"schema": 2}', b'{"a":' * 100_000, b" " * (LARGEST + 1), b'{"stream":"\\ud800"}'],
    ids=["empty", "bytes", "schema", "deep", "large", "surrogate"],
)
def test_a_message_that_says_nothing_is_told_with_the_reason(payload: bytes) -> None:
    for topic in ("status", "state", "telemetry", "result/gate", "event/gate"):
        message = read(topic.partition("/")[0], payload)
        assert isinstance(message, Unread)
        assert message.why
        [line] = hear(Fleet(), f"a/pi/{topic}", payload)
        assert line.isprintable()


def test_a_record_is_one_line_of_json_whatever_came() -> None:
    topic = "edge/v1/a/\x1b[31m/result/gate"
    odd = '"\x9b2J\x7f\u2028\U000e0001 門"'.encode()
    for payload in (b'{\n "a": "\\u001b[2J"}', b"\x00\xff\x1b[2J\n", b"", b"[" * 100_000, b'"\\ud800"', b"1e999", odd):
        line = record_of(topic, payload, 1, NOON, DeviceAddress.of(topic, "edge/v1"), retain=True)
        assert line.decode().isprintable()
        document = msgspec.json.decode(line)
        assert (document["topic"], document["kind"], document["retain"]) == (topic, "result", True)
        assert "message" in document or "base64" in document


def _size(fleet: Fleet) -> int:
    """Bytes of all that a fleet holds, as far as they can be told: everything in it is plain data."""
    return len(pickle.dumps(fleet))


def test_lines_for_people_say_what_is_seen() -> None:
    assert (
        line_words(detections(("person", 0.9), ("car", 0.5), ("person", 0.6))) == "gate: 2 person 90%, car 50% · 17 ms"
    )
    assert line_words(detections(camera="camera")) == "nothing · 17 ms"


def test_garbage_of_one_device_is_counted_and_not_kept() -> None:
    fleet = Fleet()
    lines = [line for number in range(1500) for line in hear(fleet, f"a/pi/result/{number}", b"garbage")]
    assert (fleet.unread, len(lines)) == (1500, 1)
    assert _size(fleet) < 10_000
    assert hear(fleet, "a/pi/result/gate", detections(("person", 0.5))) == ["a/pi/gate: person 50%"]


def test_cameras_and_devices_that_come_and_go_leave_nothing_behind() -> None:
    fleet = Fleet()
    empty = _size(fleet)
    for number in range(1500):
        hear(fleet, "a/pi/status", status(cameras={str(number): MODEL}))
        hear(fleet, "a/pi/state", state({str(number): {"source": "lost", "warnings": {"x": "y" * 10_000}}}))
        hear(fleet, f"a/pi/result/{number}", detections(("x" * 100, 0.5)))
        hear(fleet, f"a/pi/result/{number}", b"garbage")
    assert _size(fleet) < 10_000
    fleet = Fleet()
    for number in range(50):
        hear(fleet, f"a/{number}/result/gate", detections(("person", 0.5)))
        hear(fleet, f"a/{number}/status", b"")
    assert _size(fleet) == empty


def test_what_is_remembered_is_short() -> None:
    fleet = Fleet()
    long = "x" * 60_000
    hear(fleet, f"a/{long}/status", status())
    hear(fleet, f"{long}/pi/result/gate", detections())
    hear(fleet, f"a/pi/result/{long}", detections())
    hear(fleet, "a/pi/state", state({long: {"source": "lost"}}))
    assert (fleet.left_out, len(fleet.devices)) == (3, 1)
    hear(fleet, "a/pi/status", status(run_id="r" * 900_000))
    hear(fleet, "a/pi/result/gate", detections(*((f"{number}{'x' * 9000}", 0.5) for number in range(99))))
    assert _size(fleet) < 10_000
