"""What is known of a fleet from its messages and which of it is news; nothing that anybody publishes breaks it."""

import contextlib
import io
import pickle
import re
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path

import click
import msgspec
import pytest
from pycocotools.coco import COCO

from edge_sdk.cli.watch import view
from edge_sdk.core.errors import OutputError, UsageError
from edge_sdk.fleet.coco import MOST_CATEGORIES, CocoWriter
from edge_sdk.fleet.fleet import MOST_CAMERAS, MOST_DEVICES, DeviceView, Fleet
from edge_sdk.fleet.messages import (
    LARGEST,
    DeviceAddress,
    Unread,
    columns_of,
    filters,
    fitted,
    line_words,
    padded,
    plain,
    read,
    record_of,
)
from edge_sdk.tasks.detection import DetectionMessage
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
    for rung, line in [(2, "degraded to level 2 of 3: too slow"), (0, "no more degraded")]:
        gate = {
            "source": "opened",
            "running": {"variant": "fast", "every": 1, "rung": rung, "rungs": 4, "reason": "too slow"},
        }
        assert hear(fleet, "berlin/pi/state", state({"gate": gate})) == [f"berlin/pi/gate: {line}"]
    later = NOON + timedelta(minutes=5)
    assert hear(fleet, "berlin/pi/status", status("offline", reason="lost"), later) == ["berlin/pi: offline (lost)"]
    device = fleet.devices["berlin", "pi"]
    assert (device.since, device.is_since_before) == (later, False)


def test_how_a_device_that_is_gone_did_is_no_news() -> None:
    fleet, gate = Fleet(), {"gate": {"source": "opened"}}
    assert hear(fleet, "a/off/status", status("offline"), is_retained=True) == ["a/off: offline"]
    assert fleet.devices["a", "off"].is_since_before
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


def test_a_pause_is_news_and_shown() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}))
    hear(fleet, "a/pi/result/gate", detections(("person", 0.9)))
    said = [
        hear(fleet, "a/pi/state", state({"gate": {"controls": {"paused": paused, "max_fps": 0}}}))
        for paused in (False, True, True, False, True)
    ]
    assert said[:4] == [[], ["a/pi/gate: paused"], [], ["a/pi/gate: no more paused"]]
    assert _drawn(fleet, now=NOON + timedelta(seconds=60))[2].rstrip() == "  gate  paused  yolo  last: person 90%"


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
        assert list(fleet.devices["a", "pi"].cameras) == [str(number)]
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


# Detections collected as COCO results: pycocotools reads them.

_GATE = DeviceAddress("berlin", "pi", "result", "gate")


def _message(payload: bytes) -> DetectionMessage:
    message = read("result", payload)
    assert isinstance(message, DetectionMessage)
    return message


def test_pycocotools_reads_what_was_collected(tmp_path: Path) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    writer.add(_GATE, _message(detections(("person", 0.5), ("car", 0.25), seq=7)))
    writer.add(_GATE, _message(detections(seq=8)))
    writer.add(_GATE._replace(camera="yard"), _message(detections(("person", 0.75), seq=7)))
    assert not (tmp_path / "seen.json").exists()
    writer.close()
    writer.close()
    with contextlib.redirect_stdout(io.StringIO()):
        images = COCO(str(tmp_path / "seen.images.json"))
        found = images.loadRes(str(tmp_path / "seen.json"))
    assert (writer.results, writer.images) == (3, 3)
    names = [image["file_name"] for image in images.loadImgs([1, 2, 3])]
    assert names == ["berlin/pi/gate/r/7", "berlin/pi/gate/r/8", "berlin/pi/yard/r/7"]
    [first, *_] = found.loadAnns(found.getAnnIds(imgIds=[1]))
    assert (first["bbox"], first["score"]) == ([1.0, 2.0, 10.0, 20.0], 0.5)
    assert {c["name"]: c["id"] for c in images.loadCats(images.getCatIds())} == {"person": 6, "car": 3}


def test_two_models_of_one_class_number_have_two_categories(tmp_path: Path) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    for label in ("cat", "dog", "cat", "cow"):
        writer.add(_GATE, _message(detections((label, 0.5))))
    writer.close()
    results = msgspec.json.decode((tmp_path / "seen.json").read_bytes())
    assert [r["category_id"] for r in results] == [3, 10_000, 3, 10_001]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pi-01_b.local", "pi-01_b.local"),
        ("Tür", "Tür"),
        (".ssh", "%2Essh"),
        ("a b%2E", "a%20b%252E"),
        ("\0\n\u202e", "%00%0A%E2%80%AE"),
        ("../../etc", "%2E%2E%2F..%2Fetc"),
        ("", "%"),
    ],
)
def test_a_file_name_leads_nowhere(tmp_path: Path, name: str, expected: str) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    writer.add(DeviceAddress(name, name, "result", name), _message(detections(seq=7, run_id=name)))
    writer.close()
    [image] = msgspec.json.decode((tmp_path / "seen.images.json").read_bytes())["images"]
    assert image["file_name"] == f"{expected}/{expected}/{expected}/{expected}/7"


def test_labels_without_end_are_left_out_and_counted(tmp_path: Path) -> None:
    writer, box = CocoWriter(tmp_path / "seen.json"), [1.0, 2.0, 11.0, 22.0]
    for start in range(0, MOST_CATEGORIES + 500, 500):
        found = [
            {"label": str(start + n), "class_id": 10_002 if n % 2 else 0, "confidence": 0.5, "box_xyxy": box}
            for n in range(500)
        ]
        writer.add(_GATE, _message(detections(detections=found)))
    writer.add(_GATE, _message(detections(("x" * 201, 0.5))))
    writer.close()
    assert (writer.results, writer.left_out) == (MOST_CATEGORIES, 501)
    document = msgspec.json.decode((tmp_path / "seen.images.json").read_bytes())
    assert len({category["id"] for category in document["categories"]}) == MOST_CATEGORIES


def test_a_box_without_an_end_is_left_out(tmp_path: Path) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    whole = msgspec.json.decode(detections(("person", 0.5), ("car", 0.25)))
    whole["detections"][0]["box_xyxy"] = [-1e308, 0.0, 1e308, 1.0]
    writer.add(_GATE, _message(msgspec.json.encode(whole)))
    writer.close()
    assert (writer.results, writer.left_out) == (1, 1)
    assert b"null" not in (tmp_path / "seen.json").read_bytes()


def test_nothing_seen_is_an_empty_list(tmp_path: Path) -> None:
    CocoWriter(tmp_path / "seen.json").close()
    assert msgspec.json.decode((tmp_path / "seen.json").read_bytes()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen.images.json", "seen.json"]


def test_nothing_is_overwritten_and_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    for there in ("seen.json", "seen.images.json"):
        (tmp_path / there).write_text("mine")
        with pytest.raises(UsageError, match="it is there already"):
            CocoWriter(tmp_path / "seen.json")
        (tmp_path / there).unlink()
    with pytest.raises(OutputError, match="No such file or directory"):
        CocoWriter(tmp_path / "none" / "seen.json")
    with pytest.raises(UsageError, match="expected the name of a file"):
        CocoWriter(Path())
    (tmp_path / "seen.images.json.partial").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        CocoWriter(tmp_path / "seen.json")
    assert [path.name for path in tmp_path.iterdir()] == ["seen.images.json.partial"]


# The view of `edge-sdk watch` fits the terminal, and nothing that anybody publishes reaches it but as text.

_NASTY = "\x1b[31m\x1b]0;owned\x07\r\n\t\x9b2J\u202e\u2028\u200b\x00"
_TELEMETRY = {"stream": "telemetry", "schema": 1, "device": "d", "boot_id": "b", "run_id": "r"}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def test_plain_text_has_no_controls_and_is_cut_by_columns() -> None:
    assert plain("Straße 門 नमस्ते\x1b[2J\n\u202e") == "Straße 門 नमस्ते\ufffd[2J\ufffd\ufffd"
    assert plain("x" * 300) == "x" * 199 + "…"
    for text, columns, cut in (("person", 6, "person"), ("person", 5, "pers…"), ("門門門", 4, "門…"), ("a", 0, "")):
        assert fitted(text, columns) == cut
        assert columns_of(padded(text, 9)) == 9


def _hostile_fleet() -> tuple[Fleet, list[str]]:
    fleet, lines = Fleet(), []
    name = _NASTY.replace("/", "")
    for who in ("pi", name, "門" * 60, "x" * 100):
        cameras = {name: {**MODEL, "name": _NASTY}, "ok": MODEL}
        lines += hear(fleet, f"a/{who}/status", status(versions={_NASTY: _NASTY}, cameras=cameras))
        trouble = {"source": "lost", "trouble": _NASTY * 50, "since": NOON, "warnings": {_NASTY: _NASTY * 50}}
        lines += hear(fleet, f"a/{who}/state", state({name: trouble}, warnings={str(n): _NASTY for n in range(50)}))
        lines += hear(fleet, f"a/{who}/result/{name}", detections((_NASTY, 0.5), *((str(n), 0.5) for n in range(99))))
        lines += hear(fleet, f"a/{who}/event/{name}", msgspec.json.encode({"kind": _NASTY, "label": _NASTY}))
        lines += hear(fleet, f"a/{who}/telemetry", b"\x1b[31m")
        told = msgspec.json.encode({**_TELEMETRY, "at": NOON, "throttled": [_NASTY] * 99, "temperature_c": 1e300})
        lines += hear(fleet, f"a/{who}/telemetry", told)
    return fleet, lines


def _drawn(
    fleet: Fleet, broker: str = "h", hint: str = "", now: datetime = NOON, columns: int = 80, lines: int = 12
) -> list[str]:
    return [click.unstyle(line) for line in view(fleet, broker, hint, now, columns, lines)]


def test_the_view_keeps_to_its_lines_and_columns() -> None:
    fleet, said = _hostile_fleet()
    assert len(said) > 20
    assert [line for line in said if not line.isprintable()] == []
    for size, now in product([(20, 3), (33, 7), (80, 24), (200, 100)], (NOON, NOON + timedelta(days=2))):
        drawn = view(fleet, "broker.example:1883 online", "nothing yet\nreally", now, *size)
        assert len(drawn) <= size[1]
        for line in drawn:
            text = click.unstyle(line)
            assert _STYLE.sub("", line) == text
            assert text.isprintable()
            assert columns_of(text) <= size[0], text


@pytest.mark.parametrize("columns", [20, 79, 80])
def test_what_people_should_do_is_never_cut(columns: int) -> None:
    title = "h:1883 refused us (the user or the password is another than the broker's), trying again"
    hint = "Does a device publish there (edge-sdk run ... --mqtt), and may this user read it?"
    fleet = Fleet()
    drawn = _drawn(fleet, title, hint, NOON, columns, 30)
    assert all(len(line) <= columns for line in drawn)
    assert f"broker {title} {hint}" in " ".join(" ".join(drawn[1:]).split())
    hear(fleet, "a/pi/status", status())
    drawn = _drawn(fleet, title, hint, NOON, columns, 30)
    assert " ".join(" ".join(drawn[1:-1]).split()) == f"broker {title}"
    assert len(view(fleet, title, hint, NOON, columns, 3)) == 3


def test_cameras_stand_in_the_order_of_their_names_and_nothing_is_said_of_what_was_not_heard() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"yard": MODEL, "gate": MODEL}))
    hear(fleet, "a/pi/result/yard", detections())
    hear(fleet, "a/pi/status", status("offline"))
    drawn = _drawn(fleet)
    assert drawn[2:] == ["  gate  no result heard", "  yard  last: nothing"]


@pytest.mark.parametrize("hours", [-12, 14])
@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59"])
def test_no_moment_breaks_a_line_or_the_view(since: str, hours: int) -> None:
    fleet, now = Fleet(), NOON.astimezone(timezone(timedelta(hours=hours)))
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}, at=since), now)
    hear(fleet, "a/pi/state", state({"gate": {"source": "lost", "since": since}}, at=since), now, is_retained=True)
    hear(fleet, "a/pi/telemetry", msgspec.json.encode({**_TELEMETRY, "at": since}), now)
    hear(fleet, "a/pi/result/gate", detections(captured_at=since), now)
    line = _drawn(fleet, now=now)[2]
    assert re.match(r"  gate  lost( since (1|0001|9999)-\d\d-\d\d \d\d:\d\d)?  ", line), line


def test_lost_messages_are_counted_in_the_headline() -> None:
    fleet = Fleet()
    fleet.devices["a", "pi"], fleet.lost = DeviceView("a", "pi"), 40
    assert "40 lost" in _drawn(fleet)[0]


def test_where_there_is_no_room_trouble_comes_first() -> None:
    fleet = Fleet()
    for number in range(40):
        hear(fleet, f"a/{number:02}/status", status("offline" if number == 39 else "online", cameras={"gate": MODEL}))
    drawn = _drawn(fleet)
    assert drawn[1].startswith("○ a/39  offline since")
    assert drawn[-1] == "and 30 more; make the terminal taller"
