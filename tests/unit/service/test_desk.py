"""What a desk does with commands, beside the streams: what it says to people, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.events.snapshots import Jpeg
from edge_sdk.publishing.connection import Incoming
from edge_sdk.service.runner import Shot
from tests.support.connections import WAIT_S
from tests.support.service import Office

_EVIL = "gate\x1b]0;pwn\x07\x1b[2J\nNov 22 12:00:00 pi edge-sdk: all is well\u202e"


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.outlet.close(WAIT_S)


@pytest.mark.parametrize("command", ["pause", "snapshot"])
def test_bytes_from_the_wire_are_shown_and_never_acted_on(office: Office, command: str) -> None:
    office.hear(command, camera=_EVIL)
    [answer] = office.answers(1)
    assert answer["error"]["code"] == "unknown_camera"
    [line] = office.said
    assert line.isprintable()
    assert line.startswith(f"command {command} (camera 'gate\\x1b]0;pwn\\x07\\x1b[2J\\nNov 22 ")


def _shoot(office: Office, number: int) -> None:
    """A command for a picture, and the frame that it waits for."""
    office.now_s += 1  # no more than may be asked for
    office.hear("snapshot", camera="gate", id=str(number), width=64)
    office.controls.of("gate").shot = Shot(np.full((48, 64, 3), number, np.uint8), number)
    office.desk.look()


def test_a_picture_that_has_just_come_is_for_the_next_request_too(office: Office) -> None:
    office.hear("snapshot", camera="gate", width=64)
    control = office.controls.of("gate")
    control.wants_shot, control.shot = False, Shot(np.zeros((48, 64, 3), np.uint8), 7)  # as the stream does it
    office.hear("snapshot", camera="gate", width=64)
    assert [answer["picture"]["seq"] for answer in office.answers(2)] == [7, 7]
    assert (control.wants_shot, control.shot) == (False, None)


def test_a_picture_that_came_too_late_is_nobody_s(office: Office) -> None:
    office.hear("snapshot", camera="gate")
    office.now_s += 60
    office.desk.look()
    assert office.answers(1)[0]["error"]["code"] == "failed"
    control = office.controls.of("gate")
    control.shot = Shot(np.zeros((48, 64, 3), np.uint8), 7)
    office.hear("snapshot", camera="gate")
    assert (control.wants_shot, control.shot) == (True, None)


@pytest.mark.parametrize("steps", [("pause", "snapshot"), ("snapshot", "pause")])
def test_a_picture_of_a_paused_camera_is_refused_with_what_to_do(office: Office, steps: tuple[str, str]) -> None:
    for step in steps:
        office.hear(step, camera="gate")
    [error] = [answer["error"] for answer in office.answers(2) if not answer["ok"]]
    assert error["code"] == "not_possible"
    assert "this camera is paused" in error["message"]
    assert "resume it" in error["message"]
    assert "command pause (camera 'gate')" in office.said


def test_a_picture_that_cannot_be_made_is_answered_and_costs_nothing_else(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Jpeg:
        raise cv2.error("/build/opencv/loadsave.cpp: error: (-4:Insufficient memory)")

    with monkeypatch.context() as patch:
        patch.setattr("edge_sdk.service.commands.jpeg_of", fail)
        _shoot(office, 1)
    _shoot(office, 2)
    failed, made = office.answers(2)
    assert failed["error"]["code"] == "failed"
    assert failed["error"]["message"].startswith("out of memory")
    assert made["ok"]


def test_the_end_of_a_burst_is_told_though_nothing_comes_after_it(office: Office) -> None:
    def burst() -> None:
        for _ in range(30):
            office.inbox.receive(Incoming(office.topics.command, b'{"command":"report_state"}'))

    burst()
    office.look(0.0)
    burst()
    office.look(0.1)
    office.look(1.2)
    told = [answer["error"]["message"] for answer in office.answers(22) if not answer["ok"]]
    assert [line.partition(",")[0] for line in told] == ["10 commands were passed over", "30 commands were passed over"]


def test_a_few_refusals_are_said_each_and_of_many_how_many(office: Office) -> None:
    for number in range(5):
        office.hear("set_rate", camera="gate", max_fps=-1 - number)
    for _ in range(7):
        office.hear("set_rate")
    office.hear("exec")
    assert [line.partition(", expected")[0] for line in office.said] == [
        f"a command was refused (malformed): max_fps is -{number}" for number in range(1, 6)
    ]
    office.look(2.1)
    office.hear("exec")
    assert len(office.said) == 6
    assert office.said[5].endswith(" (lines not told before it: 8)")


def test_a_reload_gives_nobody_more(office: Office) -> None:
    for _ in range(20):
        office.hear("report_state")
    office.desk.change_to(msgspec.structs.replace(office.settings, commands=("report_state",)))
    office.hear("report_state")
    office.look(1.1)
    assert [answer["ok"] for answer in office.answers(21)] == [True] * 20 + [False]
    office.hear("pause", camera="gate")
    assert office.answers(22)[-1]["error"]["code"] == "not_allowed"


def test_who_asks_for_a_reload_is_told_why_it_is_not_taken(office: Office) -> None:
    office.why_not = "/etc/edge-sdk/a.toml: gate is missing, see mqtt://h/a/b\n\x1b[2J" + "x" * 1000
    office.hear("reload")
    [answer] = office.answers(1)
    message = answer["error"]["message"]
    assert message.startswith(
        "the configuration is not taken, what runs goes on: …/a.toml: gate is missing, see mqtt://h/a/b; \ufffd[2Jxxx"
    )
    assert message.isprintable()
    assert len(message) < 700
    office.why_not = ""
    office.hear("reload")
    assert office.answers(2)[1]["ok"]
