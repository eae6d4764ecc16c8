"""Whatever somebody publishes: nothing of it breaks the program, or reaches the terminal as anything but text."""

from __future__ import annotations

import pickle
import random
import re
from datetime import timedelta, timezone

import click
import msgspec
import pytest

from edge_sdk.cli.watch_screen import view
from edge_sdk.fleet import Address, Fleet, record_of
from edge_sdk.fleet.reading import LARGEST, Unread, read
from edge_sdk.fleet.text import columns_of, fitted, padded, plain
from tests.device.fleets import MODEL, NOON, detections, hear, state, status

_NASTY = "\x1b[31m\x1b]0;owned\x07\r\n\t\x9b2J\u202e\u2028\u200b\x00"
_KINDS = ("status", "state", "telemetry", "result", "event", "snapshot")
_TELEMETRY = {"stream": "telemetry", "schema": 1, "device": "d", "boot_id": "b", "run_id": "r"}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("person", "person"),
        ("Straße 門 नमस्ते", "Straße 門 नमस्ते"),
        ("a\x1b[2Jb", "a\ufffd[2Jb"),
        ("a\nb\r\tc", "a\ufffdb\ufffd\ufffdc"),
        ("\x9b31m", "\ufffd31m"),
        ("a\u202eb\u2066c\u200b", "a\ufffdb\ufffdc\ufffd"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_plain_text_has_no_controls(text: str, expected: str) -> None:
    assert plain(text) == expected


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [("person", 6, "person"), ("person", 5, "pers…"), ("門門門", 5, "門門…"), ("門門門", 4, "門…"), ("a", 0, "")],
)
def test_text_is_cut_by_columns(text: str, columns: int, expected: str) -> None:
    assert fitted(text, columns) == expected
    assert columns_of(padded(text, 9)) == 9


@pytest.mark.parametrize("kind", [k for k in _KINDS if k != "snapshot"])
@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b"[]",
        b"{}",
        b"not json",
        b"\xff\xfe\x00",
        b'{"schema": 2}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b" " * (LARGEST + 1),
        b'{"stream":"\\ud800"}',
    ],
)
def test_what_says_nothing_is_told_why(kind: str, payload: bytes) -> None:
    message = read(kind, payload)
    assert isinstance(message, Unread)
    assert message.why
    [line] = hear(Fleet(), f"a/pi/{kind}" + ("/gate" if kind in ("result", "event") else ""), payload)
    assert line.isprintable()


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


def test_lines_are_plain() -> None:
    _, lines = _hostile_fleet()
    assert len(lines) > 20
    assert [line for line in lines if not line.isprintable()] == []


def _drawn(fleet: Fleet) -> list[str]:
    return [click.unstyle(line) for line in view(fleet, "h", "", NOON, 80, 24)]


@pytest.mark.parametrize("size", [(20, 3), (33, 7), (80, 24), (200, 100)])
def test_the_view_keeps_to_its_lines_and_columns(size: tuple[int, int]) -> None:
    fleet, _ = _hostile_fleet()
    for now in (NOON, NOON + timedelta(days=2)):
        drawn = view(fleet, "broker.example:1883 online", "nothing yet\nreally", now, *size)
        assert len(drawn) <= size[1]
        for line in drawn:
            text = click.unstyle(line)
            assert _STYLE.sub("", line) == text
            assert text.isprintable()
            assert columns_of(text) <= size[0], text


def test_a_view_of_nothing_says_what_it_waits_for() -> None:
    lines = view(Fleet(), "h:1883 online", "nothing yet, waiting", NOON, 60, 10)
    assert [click.unstyle(line) for line in lines[1:]] == ["", "nothing yet, waiting"]


@pytest.mark.parametrize("columns", [20, 79, 80])
def test_what_people_should_do_is_never_cut(columns: int) -> None:
    title = "h:1883 refused us (the user or the password is another than the broker's), trying again"
    hint = "Does a device publish there (edge-sdk run ... --mqtt), and may this user read it?"
    fleet = Fleet()
    drawn = [click.unstyle(line) for line in view(fleet, title, hint, NOON, columns, 30)]
    assert all(len(line) <= columns for line in drawn)
    assert f"broker {title} {hint}" in " ".join(" ".join(drawn[1:]).split())
    hear(fleet, "a/pi/status", status())
    drawn = [click.unstyle(line) for line in view(fleet, title, hint, NOON, columns, 30)]
    assert " ".join(" ".join(drawn[1:-1]).split()) == f"broker {title}"
    assert len(view(fleet, title, hint, NOON, columns, 3)) == 3


def test_cameras_stand_in_the_order_of_their_names_and_nothing_is_said_of_what_was_not_heard() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"yard": MODEL, "gate": MODEL}))
    hear(fleet, "a/pi/result/yard", detections())
    hear(fleet, "a/pi/status", status("offline"))
    drawn = [click.unstyle(line) for line in view(fleet, "h", "", NOON, 80, 12)]
    assert drawn[2:] == ["  gate  no result heard", "  yard  last: nothing"]


def test_a_paused_camera_is_shown_as_such() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}))
    hear(fleet, "a/pi/result/gate", detections(("person", 0.9)))
    hear(fleet, "a/pi/state", state({"gate": {"source": "opened", "controls": {"paused": True, "max_fps": 0}}}))
    line = click.unstyle(view(fleet, "h", "", NOON + timedelta(seconds=60), 80, 12)[2])
    assert line.rstrip() == "  gate  paused  yolo  last: person 90%"


@pytest.mark.parametrize("hours", [-12, 0, 1, 14])
@pytest.mark.parametrize(
    "since",
    ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59"],
)
def test_no_moment_breaks_a_line_or_the_view(since: str, hours: int) -> None:
    fleet, now = Fleet(), NOON.astimezone(timezone(timedelta(hours=hours)))
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}, at=since), now)
    hear(fleet, "a/pi/state", state({"gate": {"source": "lost", "since": since}}, at=since), now, is_retained=True)
    hear(fleet, "a/pi/telemetry", msgspec.json.encode({**_TELEMETRY, "at": since}), now)
    hear(fleet, "a/pi/result/gate", detections(captured_at=since), now)
    line = click.unstyle(view(fleet, "h", "", now, 80, 12)[2])
    assert re.match(r"  gate  lost( since (1|0001|9999)-\d\d-\d\d \d\d:\d\d)?  ", line), line


def test_where_there_is_no_room_trouble_comes_first() -> None:
    fleet = Fleet()
    for number in range(40):
        hear(fleet, f"a/{number:02}/status", status("offline" if number == 39 else "online", cameras={"gate": MODEL}))
    drawn = [click.unstyle(line) for line in view(fleet, "h", "", NOON, 80, 12)]
    assert drawn[1].startswith("○ a/39  offline since")
    assert drawn[-1] == "and 30 more; make the terminal taller"


def test_random_damage_never_raises() -> None:
    chance = random.Random(7)
    lost = {"source": "lost", "since": NOON}
    good = [status(cameras={"gate": MODEL}), state({"gate": lost}), detections(("person", 0.5))]
    fleet = Fleet()
    for _ in range(3000):
        payload = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(payload))
            payload[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        kind = chance.choice(_KINDS)
        topic = f"a/pi/{kind}/gate" if kind in ("result", "event", "snapshot") else f"a/pi/{kind}"
        assert all(line.isprintable() for line in [*hear(fleet, topic, bytes(payload)), *_drawn(fleet)])


@pytest.mark.parametrize(
    "payload",
    [
        b'{\n "a": 1,\n "b": "\\u001b[2J"}',
        b"\x00\xff\x1b[2J\n",
        b"",
        b"[" * 100_000,
        b'"\\ud800"',
        b"1e999",
        '"\x9b2J\x7f\u2028\U000e0001 門"'.encode(),
    ],
)
def test_a_record_is_one_line_of_json_whatever_came(payload: bytes) -> None:
    topic = "edge/v1/a/\x1b[31m/result/gate"
    line = record_of(topic, payload, 1, NOON, Address.of(topic, "edge/v1"), retain=True)
    assert line.decode().isprintable()
    assert b"\n" not in line
    assert b"\x1b" not in line
    document = msgspec.json.decode(line)
    assert (document["topic"], document["kind"], document["retain"]) == (topic, "result", True)
    assert "message" in document or "base64" in document


def _size(fleet: Fleet) -> int:
    """Bytes of all that a fleet holds, as far as they can be told: everything in it is plain data."""
    return len(pickle.dumps(fleet))


def test_garbage_of_one_device_is_counted_and_not_kept() -> None:
    fleet = Fleet()
    lines = [line for number in range(5000) for line in hear(fleet, f"a/pi/result/{number}", b"garbage")]
    assert (fleet.unread, len(lines)) == (5000, 1)
    assert _size(fleet) < 10_000
    assert hear(fleet, "a/pi/result/gate", detections(("person", 0.5))) == ["a/pi/gate: person 50%"]


def test_cameras_that_come_and_go_leave_nothing_behind() -> None:
    fleet = Fleet()
    for number in range(5000):
        hear(fleet, "a/pi/status", status(cameras={str(number): MODEL}))
        hear(fleet, "a/pi/state", state({str(number): {"source": "lost", "warnings": {"x": "y" * 100_000}}}))
        hear(fleet, f"a/pi/result/{number}", detections(("x" * 100, 0.5)))
        hear(fleet, f"a/pi/result/{number}", b"garbage")
    assert _size(fleet) < 10_000


def test_a_device_that_is_removed_leaves_nothing_behind() -> None:
    fleet = Fleet()
    empty = _size(fleet)
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
