"""The view of `edge-sdk watch`: it fits the terminal, and nothing that anybody publishes reaches it but as text."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from itertools import product

import click
import msgspec
import pytest

from edge_sdk.cli.watch import view
from edge_sdk.fleet.fleet import DeviceView, Fleet
from edge_sdk.fleet.messages import columns_of, fitted, padded, plain
from tests.support.connections import MODEL, NOON, detections, hear, state, status

_NASTY = "\x1b[31m\x1b]0;owned\x07\r\n\t\x9b2J\u202e\u2028\u200b\x00"
_KINDS = ("status", "state", "telemetry", "result", "event", "snapshot")
_TELEMETRY = {"stream": "telemetry", "schema": 1, "device": "d", "boot_id": "b", "run_id": "r"}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Straße 門 नमस्ते", "Straße 門 नमस्ते"),
        ("a\x1b[2Jb", "a\ufffd[2Jb"),
        ("a\nb\r\tc", "a\ufffdb\ufffd\ufffdc"),
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


def test_a_paused_camera_is_shown_as_such() -> None:
    fleet = Fleet()
    hear(fleet, "a/pi/status", status(cameras={"gate": MODEL}))
    hear(fleet, "a/pi/result/gate", detections(("person", 0.9)))
    hear(fleet, "a/pi/state", state({"gate": {"source": "opened", "controls": {"paused": True, "max_fps": 0}}}))
    assert _drawn(fleet, now=NOON + timedelta(seconds=60))[2].rstrip() == "  gate  paused  yolo  last: person 90%"


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


def test_where_there_is_no_room_trouble_comes_first() -> None:
    fleet = Fleet()
    for number in range(40):
        hear(fleet, f"a/{number:02}/status", status("offline" if number == 39 else "online", cameras={"gate": MODEL}))
    drawn = _drawn(fleet)
    assert drawn[1].startswith("○ a/39  offline since")
    assert drawn[-1] == "and 30 more; make the terminal taller"


def test_lost_messages_are_counted_in_the_headline() -> None:
    fleet = Fleet()
    fleet.devices["a", "pi"], fleet.lost = DeviceView("a", "pi"), 40
    assert "40 lost" in _drawn(fleet)[0]
