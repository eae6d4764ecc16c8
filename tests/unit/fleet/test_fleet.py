"""What a fleet's messages show of it, and which changes are news; no message breaks the view."""

import contextlib
import io
import pickle
import re
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from pycocotools.coco import COCO

from edge_sdk.cli.watch import view
from edge_sdk.core.errors import OutputError, UsageError
from edge_sdk.fleet.coco import MOST_CATEGORIES, CocoWriter
from edge_sdk.fleet.fleet import MOST_CAMERAS, MOST_DEVICES, Fleet
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
from tests.support.logs import refusal


def test_what_a_topic_says() -> None:
    for topic, expected in (
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
    ):
        assert DeviceAddress.of(topic, "edge/v1") == expected


def test_what_is_subscribed_to() -> None:
    assert (filters("edge/v1", None, None), filters("a", "b", "pi")) == (["edge/v1/+/+/#"], ["a/b/pi/#"])
    for wrong in (("edge/#", None, None), ("edge", "+", None), ("edge", None, "a/b"), ("", None, None)):
        assert "name" in refusal(UsageError, filters, *wrong)


def test_a_device_comes_works_and_is_lost() -> None:
    fleet = Fleet()
    birth = status(versions={"edge-sdk": "0.1"}, cameras={"gate": MODEL})
    assert hear(fleet, "berlin/pi/status", birth) == ["berlin/pi: online, gate: yolo 3; edge-sdk 0.1"]
    assert hear(fleet, "berlin/pi/status", birth) == []
    opened = {"gate": {"source": "opened"}}
    assert hear(fleet, "berlin/pi/state", state(opened)) == ["berlin/pi/gate: source opened"]
    lost = {"gate": {"source": "lost", "trouble": "refused", "warnings": {"heat": "hot"}}}
    for payload, of_device, *of_gate in (
        (state(lost, warnings={"disk": "full"}), "warning: disk: full", "source lost (refused)", "warning: heat: hot"),
        (state(opened), "all is well again", "source opened", "all is well again"),
    ):
        expected = [f"berlin/pi: {of_device}", *(f"berlin/pi/gate: {line}" for line in of_gate)]
        assert hear(fleet, "berlin/pi/state", payload) == expected
    for level, line in [(2, "degraded to level 2 of 3: too slow"), (0, "no more degraded")]:
        running = {"variant": "fast", "every": 1, "level": level, "levels": 4, "reason": "too slow"}
        gate = {"source": "opened", "running": running}
        assert hear(fleet, "berlin/pi/state", state({"gate": gate})) == [f"berlin/pi/gate: {line}"]
    later = NOON + timedelta(minutes=5)
    assert hear(fleet, "berlin/pi/status", status("offline", reason="lost"), later) == ["berlin/pi: offline (lost)"]
    device = fleet.devices["berlin", "pi"]
    assert (device.since, device.is_since_before) == (later, False)


def test_how_a_device_that_is_gone_did_is_no_news() -> None:
    fleet, gate, opened = Fleet(), state({"gate": {"source": "opened"}}), "gate: source opened"
    for topic, payload, is_retained, said in (
        ("a/off/status", status("offline"), True, ["a/off: offline"]),
        ("a/off/state", gate, True, []),
        ("a/late/state", gate, True, []),
        ("a/late/status", status("offline"), True, ["a/late: offline"]),
        ("a/on/state", gate, True, []),
        ("a/on/status", status(cameras={"gate": MODEL}), True, ["a/on: online, gate: yolo 3", f"a/on/{opened}"]),
        ("a/off/status", status(), False, ["a/off: online, gate: ?"]),
        ("a/off/state", gate, False, [f"a/off/{opened}"]),
    ):
        assert hear(fleet, topic, payload, is_retained=is_retained) == said
    assert {name: device.is_since_before for (_, name), device in fleet.devices.items()} == {
        "off": False, "late": True, "on": True,
    }  # fmt: skip


def test_a_pause_is_news_and_shown() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}))
    hear(fleet, "a/pi/result/gate", detections(("person", 0.9)))
    for paused, said in ((False, []), (True, ["paused"]), (True, []), (False, ["no more paused"]), (True, ["paused"])):
        controls = state({"gate": {"controls": {"paused": paused, "max_fps": 0}}})
        assert hear(fleet, "a/pi/state", controls) == [f"a/pi/gate: {word}" for word in said]
    assert _drawn(fleet, now=NOON + timedelta(seconds=60))[2].rstrip() == "  gate  paused  yolo  last: person 90%"


def test_results_are_said_when_they_change_and_once_a_second_at_most() -> None:
    fleet = Fleet()
    for at_ms, found, said in (
        (0, [("person", 0.91), ("person", 0.42), ("bicycle", 0.6)], ["a/pi/gate: 2 person 91%, bicycle 60%"]),
        (100, [("person", 0.9)], []),
        (1100, [("person", 0.8)], ["a/pi/gate: person 80%"]),
        (2200, [("person", 0.7)], []),
        (3300, [], ["a/pi/gate: nothing"]),
    ):
        assert hear(fleet, "a/pi/result/gate", detections(*found), NOON + timedelta(milliseconds=at_ms)) == said
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
    for _ in range(2):
        assert hear(fleet, "a/pi/event/gate", event) == ["a/pi/gate: event: person appeared 91%"]
    for at, clock, told in (
        (NOON - timedelta(seconds=9), "", ""),
        (NOON - timedelta(seconds=100), "", ", 100 s ago"),
        (NOON - timedelta(days=3), "", ", 3 days ago"),
        (NOON - timedelta(days=3), "unsynchronised", ""),
        (NOON + timedelta(days=3), "", ""),
        (NOON.replace(tzinfo=None), "", ""),
    ):
        waited = msgspec.json.encode({"kind": "rang", "at": at, "clock": clock})
        assert hear(fleet, "a/pi/event/gate", waited) == [f"a/pi/gate: event: rang{told}"]
    first = datetime.min.replace(tzinfo=timezone(timedelta(hours=23, minutes=59)))
    [line] = hear(fleet, "a/pi/event/gate", msgspec.json.encode({"kind": "rang", "at": first}))
    assert line.startswith("a/pi/gate: event: rang")
    numbered = b'{"kind": "appeared", "label": "person", "confidence": 0.91, "seq": %d}'
    heard = [("gate", 7), ("gate", 8), ("gate", 7), ("gate", 8), ("gate", 9), ("yard", 7)]
    lines = [len(hear(fleet, f"a/pi/event/{camera}", numbered % seq)) for camera, seq in heard]
    assert lines == [1, 1, 0, 0, 1, 1]
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


def test_a_message_that_says_nothing_is_told_with_the_reason() -> None:
    deep, large = b'{"a":' * 100_000, b" " * (LARGEST + 1)
    payloads = (b"{}", b"\xff\xfe\x00", b'{"schema": 2}', deep, large, b'{"stream":"\\ud800"}')
    for payload, topic in product(payloads, ("status", "state", "telemetry", "result/gate", "event/gate")):
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
    people = detections(("person", 0.9), ("car", 0.5), ("person", 0.6))
    assert line_words(people) == "gate: 2 person 90%, car 50% · 17 ms"
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


def _add(writer: CocoWriter, *payloads: bytes, address: DeviceAddress = _GATE) -> None:
    for payload in payloads:
        message = read("result", payload)
        assert isinstance(message, DetectionMessage)
        writer.add(address, message)


@pytest.fixture
def writer(tmp_path: Path) -> CocoWriter:
    return CocoWriter(tmp_path / "seen.json")


def _written(writer: CocoWriter, folder: Path) -> tuple[Any, Any]:
    """Close it: the results and the images."""
    writer.close()
    names = ("seen.json", "seen.images.json")
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    results, images = (msgspec.json.decode((folder / name).read_bytes()) for name in names)
    return results, images


def test_pycocotools_reads_what_was_collected(tmp_path: Path, writer: CocoWriter) -> None:
    _add(writer, detections(("person", 0.5), ("car", 0.25), seq=7), detections(seq=8))
    _add(writer, detections(("person", 0.75), seq=7), address=_GATE._replace(camera="yard"))
    assert not (tmp_path / "seen.json").exists()
    for _ in range(2):
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


def test_two_models_of_one_class_number_have_two_categories(tmp_path: Path, writer: CocoWriter) -> None:
    _add(writer, *(detections((label, 0.5)) for label in ("cat", "dog", "cat", "cow")))
    assert [result["category_id"] for result in _written(writer, tmp_path)[0]] == [3, 10_000, 3, 10_001]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pi-01_b.local", "pi-01_b.local"),
        (".ssh", "%2Essh"),
        ("\0\n\u202e", "%00%0A%E2%80%AE"),
        ("../../etc", "%2E%2E%2F..%2Fetc"),
        ("", "%"),
    ],
)
def test_a_file_name_leads_nowhere(tmp_path: Path, writer: CocoWriter, name: str, expected: str) -> None:
    _add(writer, detections(seq=7, run_id=name), address=DeviceAddress(name, name, "result", name))
    [image] = _written(writer, tmp_path)[1]["images"]
    assert image["file_name"] == "/".join([expected] * 4) + "/7"


def test_labels_without_end_are_left_out_and_counted(tmp_path: Path, writer: CocoWriter) -> None:
    rest = {"confidence": 0.5, "box_xyxy": [1.0, 2.0, 11.0, 22.0]}
    for start in range(0, MOST_CATEGORIES + 500, 500):
        numbers = range(start, start + 500)
        found = [{"label": str(n), "class_id": 10_002 if n % 2 else 0, **rest} for n in numbers]
        _add(writer, detections(detections=found))
    _add(writer, detections(("x" * 201, 0.5)))
    _, images = _written(writer, tmp_path)
    assert (writer.results, writer.left_out) == (MOST_CATEGORIES, 501)
    assert len({category["id"] for category in images["categories"]}) == MOST_CATEGORIES


def test_a_box_without_an_end_is_left_out(tmp_path: Path, writer: CocoWriter) -> None:
    whole = msgspec.json.decode(detections(("person", 0.5), ("car", 0.25)))
    whole["detections"][0]["box_xyxy"] = [-1e308, 0.0, 1e308, 1.0]
    _add(writer, msgspec.json.encode(whole))
    assert [None in result["bbox"] for result in _written(writer, tmp_path)[0]] == [False]
    assert (writer.results, writer.left_out) == (1, 1)


def test_nothing_seen_is_an_empty_list(tmp_path: Path, writer: CocoWriter) -> None:
    assert _written(writer, tmp_path)[0] == []


def test_nothing_is_overwritten_and_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    for there in ("seen.json", "seen.images.json"):
        (tmp_path / there).write_text("mine")
        assert "it is there already" in refusal(UsageError, CocoWriter, tmp_path / "seen.json")
        (tmp_path / there).unlink()
    assert "No such file or directory" in refusal(OutputError, CocoWriter, tmp_path / "none" / "seen.json")
    assert "expected the name of a file" in refusal(UsageError, CocoWriter, Path())
    (tmp_path / "seen.images.json.partial").mkdir()
    assert "cannot be written" in refusal(OutputError, CocoWriter, tmp_path / "seen.json")
    assert [path.name for path in tmp_path.iterdir()] == ["seen.images.json.partial"]


# The view of `edge-sdk watch` fits the terminal, and nothing that anybody publishes reaches it but as text.

_NASTY = "\x1b[31m\x1b]0;owned\x07\r\n\t\x9b2J\u202e\u2028\u200b\x00"
_TELEMETRY = {"stream": "telemetry", "schema": 1, "device": "d", "boot_id": "b", "run_id": "r", "at": NOON}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def test_plain_text_has_no_controls_and_is_cut_by_columns() -> None:
    assert plain("Straße 門 नमस्ते\x1b[2J\n\u202e") == "Straße 門 नमस्ते\ufffd[2J\ufffd\ufffd"
    assert plain("x" * 300) == "x" * 199 + "…"
    for text, columns, cut in (("person", 6, "person"), ("person", 5, "pers…"), ("門門門", 4, "門…"), ("a", 0, "")):
        assert (fitted(text, columns), columns_of(padded(text, 9))) == (cut, 9)


def _drawn(
    fleet: Fleet, broker: str = "h", hint: str = "", now: datetime = NOON, columns: int = 80, lines: int = 12
) -> list[str]:
    return [click.unstyle(line) for line in view(fleet, broker, hint, now, columns, lines)]


def test_the_view_keeps_to_its_lines_and_columns() -> None:
    fleet, name = Fleet(), _NASTY.replace("/", "")
    cameras = {name: {**MODEL, "name": _NASTY}, "ok": MODEL}
    trouble = {"source": "lost", "trouble": _NASTY * 50, "since": NOON, "warnings": {_NASTY: _NASTY * 50}}
    messages = [
        ("status", status(versions={_NASTY: _NASTY}, cameras=cameras)),
        ("state", state({name: trouble}, warnings={str(n): _NASTY for n in range(50)})),
        (f"result/{name}", detections((_NASTY, 0.5), *((str(n), 0.5) for n in range(99)))),
        (f"event/{name}", msgspec.json.encode({"kind": _NASTY, "label": _NASTY})),
        ("telemetry", b"\x1b[31m"),
        ("telemetry", msgspec.json.encode({**_TELEMETRY, "throttled": [_NASTY] * 99, "temperature_c": 1e300})),
    ]
    devices = ("pi", name, "門" * 60, "x" * 100)
    said = [line for who in devices for topic, sent in messages for line in hear(fleet, f"a/{who}/{topic}", sent)]
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


@pytest.mark.parametrize("columns", [20, 79])
def test_what_people_should_do_is_never_cut(columns: int) -> None:
    title = "h:1883 refused us (the user or the password is another than the broker's), trying again"
    hint = "Does a device publish there (edge-sdk run ... --mqtt), and may this user read it?"
    fleet = Fleet()
    for text, last in ((f"broker {title} {hint}", None), (f"broker {title}", -1)):
        drawn = _drawn(fleet, title, hint, NOON, columns, 30)
        assert all(len(line) <= columns for line in drawn)
        assert text in " ".join(" ".join(drawn[1:last]).split())
        hear(fleet, "a/pi/status", status())
    assert hint not in " ".join(" ".join(drawn).split())


@pytest.mark.parametrize("hours", [-12, 14])
@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_no_moment_breaks_a_line_or_the_view(since: str, hours: int) -> None:
    fleet, now = Fleet(), NOON.astimezone(timezone(timedelta(hours=hours)))
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}, at=since), now)
    hear(fleet, "a/pi/state", state({"gate": {"source": "lost", "since": since}}, at=since), now, is_retained=True)
    hear(fleet, "a/pi/telemetry", msgspec.json.encode({**_TELEMETRY, "at": since}), now)
    hear(fleet, "a/pi/result/gate", detections(captured_at=since), now)
    line = _drawn(fleet, now=now)[2]
    assert re.match(r"  gate  lost( since (1|0001|9999)-\d\d-\d\d \d\d:\d\d)?  ", line), line


def test_where_there_is_no_room_trouble_comes_first() -> None:
    fleet = Fleet()
    for number in range(40):
        hear(fleet, f"a/{number:02}/status", status("offline" if number == 39 else "online", cameras={"gate": MODEL}))
    fleet.lost = 40
    drawn = _drawn(fleet)
    assert "40 lost" in drawn[0]
    assert drawn[1].startswith("○ a/39  offline since")
    assert drawn[-1] == "and 30 more; make the terminal taller"
