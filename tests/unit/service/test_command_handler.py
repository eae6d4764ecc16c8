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
from tests.support.service import CommandedDevice

_EVIL = "gate\x1b]0;pwn\x07\x1b[2J\nNov 22 12:00:00 pi edge-sdk: all is well\u202e"


@pytest.fixture
def commanded() -> Iterator[CommandedDevice]:
    made = CommandedDevice()
    yield made
    made.outlet.close(WAIT_S)


@pytest.mark.parametrize("command", ["pause", "snapshot"])
def test_bytes_from_the_wire_are_shown_and_never_acted_on(commanded: CommandedDevice, command: str) -> None:
    commanded.hear(command, camera=_EVIL)
    [answer] = commanded.answers(1)
    assert answer["error"]["code"] == "unknown_camera"
    [line] = commanded.said
    assert line.isprintable()
    assert line.startswith(f"command {command} (camera 'gate\\x1b]0;pwn\\x07\\x1b[2J\\nNov 22 ")


def _shoot(commanded: CommandedDevice, number: int) -> None:
    """A command for a picture, and the frame that it waits for."""
    commanded.now_s += 1  # no more than may be asked for
    commanded.hear("snapshot", camera="gate", id=str(number), width=64)
    commanded.controls.of("gate").shot = Shot(np.full((48, 64, 3), number, np.uint8), number)
    commanded.desk.look()


def test_a_picture_that_has_just_come_is_for_the_next_request_too(commanded: CommandedDevice) -> None:
    commanded.hear("snapshot", camera="gate", width=64)
    control = commanded.controls.of("gate")
    control.wants_shot, control.shot = False, Shot(np.zeros((48, 64, 3), np.uint8), 7)  # as the stream does it
    commanded.hear("snapshot", camera="gate", width=64)
    assert [answer["picture"]["seq"] for answer in commanded.answers(2)] == [7, 7]
    assert (control.wants_shot, control.shot) == (False, None)


def test_a_picture_that_came_too_late_is_nobody_s(commanded: CommandedDevice) -> None:
    commanded.hear("snapshot", camera="gate")
    commanded.now_s += 60
    commanded.desk.look()
    assert commanded.answers(1)[0]["error"]["code"] == "failed"
    control = commanded.controls.of("gate")
    control.shot = Shot(np.zeros((48, 64, 3), np.uint8), 7)
    commanded.hear("snapshot", camera="gate")
    assert (control.wants_shot, control.shot) == (True, None)


@pytest.mark.parametrize("steps", [("pause", "snapshot"), ("snapshot", "pause")])
def test_a_picture_of_a_paused_camera_is_refused_with_what_to_do(
    commanded: CommandedDevice, steps: tuple[str, str]
) -> None:
    for step in steps:
        commanded.hear(step, camera="gate")
    [error] = [answer["error"] for answer in commanded.answers(2) if not answer["ok"]]
    assert error["code"] == "not_possible"
    assert "this camera is paused" in error["message"]
    assert "resume it" in error["message"]
    assert "command pause (camera 'gate')" in commanded.said


def test_a_picture_that_cannot_be_made_is_answered_and_costs_nothing_else(
    commanded: CommandedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Jpeg:
        raise cv2.error("/build/opencv/loadsave.cpp: error: (-4:Insufficient memory)")

    with monkeypatch.context() as patch:
        patch.setattr("edge_sdk.service.commands.jpeg_of", fail)
        _shoot(commanded, 1)
    _shoot(commanded, 2)
    failed, made = commanded.answers(2)
    assert failed["error"]["code"] == "failed"
    assert failed["error"]["message"].startswith("out of memory")
    assert made["ok"]


def test_the_end_of_a_burst_is_told_though_nothing_comes_after_it(commanded: CommandedDevice) -> None:
    def burst() -> None:
        for _ in range(30):
            commanded.inbox.receive(Incoming(commanded.topics.of("command"), b'{"command":"report_state"}'))

    burst()
    commanded.look(0.0)
    burst()
    commanded.look(0.1)
    commanded.look(1.2)
    told = [answer["error"]["message"] for answer in commanded.answers(22) if not answer["ok"]]
    assert [line.partition(",")[0] for line in told] == ["10 commands were passed over", "30 commands were passed over"]


def test_a_few_refusals_are_said_each_and_of_many_how_many(commanded: CommandedDevice) -> None:
    for number in range(5):
        commanded.hear("set_rate", camera="gate", max_fps=-1 - number)
    for _ in range(7):
        commanded.hear("set_rate")
    commanded.hear("exec")
    assert [line.partition(", expected")[0] for line in commanded.said] == [
        f"a command was refused (malformed): max_fps is -{number}" for number in range(1, 6)
    ]
    commanded.look(2.1)
    commanded.hear("exec")
    assert len(commanded.said) == 6
    assert commanded.said[5].endswith(" (lines not told before it: 8)")


def test_a_reload_gives_nobody_more(commanded: CommandedDevice) -> None:
    for _ in range(20):
        commanded.hear("report_state")
    commanded.desk.change_to(msgspec.structs.replace(commanded.settings, commands=("report_state",)))
    commanded.hear("report_state")
    commanded.look(1.1)
    assert [answer["ok"] for answer in commanded.answers(21)] == [True] * 20 + [False]
    commanded.hear("pause", camera="gate")
    assert commanded.answers(22)[-1]["error"]["code"] == "not_allowed"


def test_who_asks_for_a_reload_is_told_why_it_is_not_taken(commanded: CommandedDevice) -> None:
    commanded.why_not = "/etc/edge-sdk/a.toml: gate is missing, see mqtt://h/a/b\n\x1b[2J" + "x" * 1000
    commanded.hear("reload")
    [answer] = commanded.answers(1)
    message = answer["error"]["message"]
    assert message.startswith(
        "the configuration is not taken, what runs goes on: …/a.toml: gate is missing, see mqtt://h/a/b; \ufffd[2Jxxx"
    )
    assert message.isprintable()
    assert len(message) < 700
    commanded.why_not = ""
    commanded.hear("reload")
    assert commanded.answers(2)[1]["ok"]
