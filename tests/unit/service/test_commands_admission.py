"""What is let in on the `cmd` topic: commands in the right form, at a bearable pace, answered where it is safe."""

from __future__ import annotations

import random

import jsonschema
import msgspec
import pytest

from edge_sdk.messages.commands import CLASSES, COMMANDS, Command, Pause, RefusedError, Resume, SetRate, Snapshot
from edge_sdk.messages.schema import Topics, message_schema
from edge_sdk.publishing.connection import Incoming
from edge_sdk.service.commands import CommandAdmission, CommandInbox, Reply

TOPICS = Topics("edge/v1", "yard", "pi")
RES = TOPICS.of("response")
REPORT = b'{"command":"report_state"}'


class Admission:
    """An admission on a clock that is set by hand."""

    def __init__(self, *allowed: str) -> None:
        self.now_s = 0.0
        self.inner = CommandAdmission(TOPICS, allowed or CLASSES, lambda: self.now_s)  # type: ignore[arg-type]

    def admit(self, payload: bytes = REPORT, **fields: object) -> tuple[Reply, Command | RefusedError] | None:
        return self.inner.admit(Incoming(TOPICS.of("command"), payload, **fields))  # type: ignore[arg-type]

    def admits(self) -> bool:
        found = self.admit()
        return found is not None and not isinstance(found[1], RefusedError)

    def refusal(self, payload: bytes = REPORT, **fields: object) -> tuple[str, str, Reply]:
        """The code and the words for what is not carried out."""
        found = self.admit(payload, **fields)
        assert found is not None
        reply, refused = found
        assert isinstance(refused, RefusedError), refused
        return refused.complaint.code, refused.complaint.message, reply

    def passed_over(self, more: int = 0) -> str:
        refused = self.inner.passed_over(more)
        return "" if refused is None else refused.complaint.message.partition(",")[0]


@pytest.mark.parametrize("name", CLASSES)
def test_only_what_is_allowed_is_carried_out(name: str) -> None:
    payload = msgspec.json.encode({"command": name, "camera": 7})
    assert Admission(*(each for each in CLASSES if each != name)).refusal(payload)[0] == "not_allowed"
    assert Admission(name).refusal(payload)[0] == "malformed"


def test_who_may_pause_may_resume_and_the_answer_goes_back_with_what_was_sent_along() -> None:
    resume = b'{"command":"resume","camera":"gate"}'
    found = Admission("pause").admit(resume, response_topic=f"{RES}/a/b", correlation=b"\0\xff")
    assert found is not None
    reply, command = found
    assert command == Resume(camera="gate")
    assert (reply.topic, reply.correlation, reply.command) == (f"{RES}/a/b", b"\0\xff", "resume")


def test_answers_go_to_res_and_below_alone() -> None:
    for topic in ("x", "$SYS/x", f"{RES}/+", f"{RES}/a#", f"{RES}/\n", f"{RES}x", f"{RES}/", f"/{RES}", f"{RES}/a//b"):
        code, _, reply = Admission().refusal(response_topic=topic)
        assert (code, reply.topic) == ("response_topic", RES)


def test_large_correlation_data_and_retained_commands_are_refused() -> None:
    code, _, reply = Admission().refusal(correlation=b"x" * 129)
    assert (code, reply.correlation) == ("malformed", b"")
    code, words, _ = Admission().refusal(retain=True)
    assert code == "retained"
    assert f"mosquitto_pub -r -n -t {TOPICS.of('command')}" in words  # how it is taken away


def test_a_flood_is_answered_once_a_second_with_its_number() -> None:
    admission = Admission()
    assert [admission.admits() for _ in range(100)] == [True] * 20 + [False] * 80
    assert admission.passed_over() == "80 commands were passed over"
    admission.now_s = 0.1
    assert not admission.admits()
    assert admission.passed_over(7) == ""
    admission.now_s = 1.1
    assert [admission.admits() for _ in range(5)] == [True] * 5
    assert admission.passed_over() == "8 commands were passed over"  # though nothing came too fast since
    admission.now_s = 100
    assert admission.passed_over() == ""
    assert admission.admits()


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
    _, words, _ = Admission().refusal(payload)
    assert words.startswith(said)
    assert " such as {" in words
    assert words.endswith(example)


def test_what_turns_a_command_on_turns_no_other_off() -> None:
    _, words, _ = Admission("snapshot", "reload").refusal(b'{"command":"resume"}')
    assert words.startswith("resume is off here, which pause stands for; ")
    assert 'allow = ["pause", "snapshot", "reload"]' in words


def test_no_bytes_at_all_do_more_than_be_refused() -> None:
    chance, admission = random.Random(7), Admission()
    valid = b'{"command":"set_threshold","camera":"gate","confidence":0.5,"id":"a"}'
    for _ in range(1000):
        admission.now_s += 10
        payload = bytearray(valid)
        for _ in range(chance.randrange(1, 6)):
            payload[chance.randrange(len(payload))] = chance.randrange(256)
        found = admission.admit(bytes(payload[: chance.randrange(len(payload) + 1)]))
        assert found is not None
        reply, command = found
        if isinstance(command, RefusedError):
            assert len(command.complaint.message) < 320
            assert command.complaint.message.isprintable()
            msgspec.json.encode(command.complaint)
        else:
            assert COMMANDS[str(reply.command)].permission == "set_threshold"


def test_the_inbox_is_bounded_and_counts_what_it_lost() -> None:
    inbox = CommandInbox()
    for number in range(66):
        inbox.receive(Incoming(TOPICS.of("command"), b"%d" % number))
    assert [m.payload for m in inbox.take()] == [b"%d" % number for number in range(64)]
    assert (inbox.take(), inbox.lost) == ([], 2)


def test_commands_keep_to_the_published_schema() -> None:
    validator = jsonschema.Draft202012Validator(msgspec.json.decode(message_schema("command")))
    for command in (Pause(camera="gate", id="1"), SetRate(camera="gate", max_fps=0), Snapshot(camera="gate")):
        document = msgspec.json.decode(msgspec.json.encode(command))
        assert validator.is_valid(document)
        assert not validator.is_valid({**document, "path": "x"})
        assert not validator.is_valid({**document, "camera": ""})
