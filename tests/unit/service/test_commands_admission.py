"""What is let in on the `cmd` topic: commands in the right form, at a bearable pace, answered where it is safe."""

from __future__ import annotations

import random

import jsonschema
import msgspec
import pytest

from edge_sdk.messages.commands import CLASSES, COMMANDS, Pause, Resume, SetRate, Snapshot, name_of
from edge_sdk.messages.schema import message_schema
from edge_sdk.messages.topics import Topics
from edge_sdk.publishing.connection import Incoming
from edge_sdk.service.commands import CommandAdmission, CommandInbox, CommandRequest, Rejection

TOPICS = Topics("edge/v1", "yard", "pi")
RES = TOPICS.response
REPORT = b'{"command":"report_state"}'


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _admission(*allowed: str, clock: Clock | None = None) -> CommandAdmission:
    return CommandAdmission(TOPICS, allowed or CLASSES, clock or Clock())  # type: ignore[arg-type]


def _incoming(payload: bytes = REPORT, **fields: object) -> Incoming:
    return Incoming(TOPICS.command, payload, **fields)  # type: ignore[arg-type]


def _passed_over(admission: CommandAdmission) -> str:
    turned = admission.passed_over()
    assert turned is not None
    assert (turned.complaint.code, turned.topic) == ("too_fast", RES)
    return turned.complaint.message


def _code(found: object) -> str:
    assert isinstance(found, Rejection), found
    return found.complaint.code


@pytest.mark.parametrize("name", CLASSES)
def test_only_what_is_allowed_is_carried_out(name: str) -> None:
    others = [each for each in CLASSES if each != name]
    payload = msgspec.json.encode({"command": name, "camera": 7})
    assert _code(_admission(*others).admit(_incoming(payload))) == "not_allowed"
    assert _code(_admission(name).admit(_incoming(payload))) == "malformed"


def test_who_may_pause_may_resume_and_the_answer_goes_back_with_what_was_sent_along() -> None:
    resume = b'{"command":"resume","camera":"gate"}'
    found = _admission("pause").admit(_incoming(resume, response_topic=f"{RES}/a/b", correlation=b"\0\xff"))
    assert isinstance(found, CommandRequest)
    assert (found.command, COMMANDS[name_of(found.command)].permission) == (Resume(camera="gate"), "pause")
    assert (found.topic, found.correlation) == (f"{RES}/a/b", b"\0\xff")


def test_answers_go_to_res_and_below_alone() -> None:
    for topic in ("x", "$SYS/x", f"{RES}/+", f"{RES}/a#", f"{RES}/\n", f"{RES}x", f"{RES}/", f"/{RES}", f"{RES}/a//b"):
        found = _admission().admit(_incoming(response_topic=topic))
        assert (_code(found), found.topic) == ("response_topic", RES)


def test_large_correlation_data_and_retained_commands_are_refused() -> None:
    found = _admission().admit(_incoming(correlation=b"x" * 129))
    assert (_code(found), found.correlation) == ("malformed", b"")
    found = _admission().admit(_incoming(retain=True))
    assert isinstance(found, Rejection)
    assert f"mosquitto_pub -r -n -t {TOPICS.command}" in found.complaint.message  # how it is taken away


def test_a_flood_is_answered_once_a_second_with_its_number() -> None:
    clock = Clock()
    admission = _admission(clock=clock)
    found = [admission.admit(_incoming()) for _ in range(100)]
    assert [isinstance(each, CommandRequest) for each in found[:20]] == [True] * 20
    assert found[20:] == [None] * 80
    assert _passed_over(admission).startswith("80 commands were passed over")
    clock.now_s = 0.1
    assert admission.admit(_incoming()) is None
    assert admission.passed_over(7) is None
    clock.now_s = 1.1
    assert [isinstance(admission.admit(_incoming()), CommandRequest) for _ in range(5)] == [True] * 5
    assert _passed_over(admission).startswith("8 commands were passed over")  # though nothing came too fast since
    clock.now_s = 100
    assert admission.passed_over() is None
    assert isinstance(admission.admit(_incoming()), CommandRequest)


@pytest.mark.parametrize(
    ("payload", "said", "example"),
    [
        (
            b'{"command":"set_threshold","camera":"gate","confidence":60}',
            "confidence is 60, expected 1 or less",
            '{"command":"set_threshold","camera":"gate","confidence":0.6}',
        ),
        (
            b'{"command":"set_rate","camera":"gate","max_fps":"5"}',
            "max_fps: got a string, expected a number; leave out the quotes",
            '{"command":"set_rate","camera":"gate","max_fps":5}',
        ),
        (b'{"command":"resume"}', "camera is missing", '{"command":"resume","camera":"gate"}'),
        (b'{"command":"pause","camra":"gate"}', "unknown key camra; did you mean camera?", '"camera":"gate"}'),
        (b"{command: pause}", "'{command: pause}' cannot be read (JSON is malformed", '{"command": "report_state"}'),
        (b"7", "got '7', expected a JSON object", '{"command": "report_state"}'),
        (b"", "an empty message, expected a JSON object", '{"command": "report_state"}'),
    ],
)
def test_what_is_wrong_is_said_with_what_came_and_what_is_right(payload: bytes, said: str, example: str) -> None:
    found = _admission().admit(_incoming(payload))
    assert isinstance(found, Rejection)
    assert found.complaint.message.startswith(said)
    assert " such as {" in found.complaint.message
    assert found.complaint.message.endswith(example)


def test_what_turns_a_command_on_turns_no_other_off() -> None:
    found = _admission("snapshot", "reload").admit(_incoming(b'{"command":"resume"}'))
    assert isinstance(found, Rejection)
    assert found.complaint.message.startswith("resume is off here, which pause stands for; ")
    assert 'allow = ["pause", "snapshot", "reload"]' in found.complaint.message


def test_no_bytes_at_all_do_more_than_be_refused() -> None:
    clock, chance = Clock(), random.Random(7)
    admission = _admission(clock=clock)
    valid = b'{"command":"set_threshold","camera":"gate","confidence":0.5,"id":"a"}'
    for _ in range(1000):
        clock.now_s += 10
        payload = bytearray(valid)
        for _ in range(chance.randrange(1, 6)):
            payload[chance.randrange(len(payload))] = chance.randrange(256)
        found = admission.admit(_incoming(bytes(payload[: chance.randrange(len(payload) + 1)])))
        if isinstance(found, CommandRequest):
            assert COMMANDS[name_of(found.command)].permission == "set_threshold"
        else:
            assert isinstance(found, Rejection)
            assert len(found.complaint.message) < 320
            assert found.complaint.message.isprintable()
            msgspec.json.encode(found.complaint)


def test_the_inbox_is_bounded_and_counts_what_it_lost() -> None:
    inbox = CommandInbox()
    for number in range(66):
        inbox.receive(_incoming(b"%d" % number))
    assert [m.payload for m in inbox.take()] == [b"%d" % number for number in range(64)]
    assert (inbox.take(), inbox.lost) == ([], 2)


def test_commands_keep_to_the_published_schema() -> None:
    validator = jsonschema.Draft202012Validator(msgspec.json.decode(message_schema("command")))
    for command in (Pause(camera="gate", id="1"), SetRate(camera="gate", max_fps=0), Snapshot(camera="gate")):
        document = msgspec.json.decode(msgspec.json.encode(command))
        assert validator.is_valid(document)
        assert not validator.is_valid({**document, "path": "x"})
        assert not validator.is_valid({**document, "camera": ""})
