"""Commands: what is let in on the `cmd` topic, what is done and answered, and what docs/commands.md says of it."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import cv2
import jsonschema
import msgspec
import numpy as np
import pytest
from msgspec import UNSET, UnsetType

from edge_sdk.events.snapshots import Jpeg
from edge_sdk.messages import commands
from edge_sdk.messages.schema import Incoming, Topics, message_schema
from edge_sdk.publishing.discovery import CameraTraits
from edge_sdk.service.commands import HANDLERS, CommandAdmission, CommandHandler, Reply
from edge_sdk.service.runner import Controls, Shot
from tests.support.bundles import make_manifest
from tests.support.connections import WAIT_S, until
from tests.support.service import CommandedDevice

TOPICS = Topics("edge/v1", "yard", "pi")
RES = TOPICS.of("response")
REPORT = b'{"command":"report_state"}'


class Admission:
    def __init__(self, *allowed: str) -> None:
        self.now_s = 0.0
        self.inner = CommandAdmission(TOPICS, allowed or commands.PERMISSIONS, lambda: self.now_s)  # type: ignore[arg-type]

    def admit(self, payload: bytes = REPORT, **fields: Any) -> tuple[Reply, Any]:
        found = self.inner.admit(Incoming(TOPICS.of("command"), payload, **fields))
        assert found is not None
        return found

    def refusal(self, payload: bytes = REPORT, **fields: Any) -> tuple[str, str, Reply]:
        reply, refused = self.admit(payload, **fields)
        assert isinstance(refused, commands.RefusedError), refused
        return refused.complaint.code, refused.complaint.message, reply


@pytest.mark.parametrize("name", commands.PERMISSIONS)
def test_only_what_is_allowed_is_carried_out(name: str) -> None:
    payload = msgspec.json.encode({"command": name, "camera": 7})
    assert Admission(*(each for each in commands.PERMISSIONS if each != name)).refusal(payload)[0] == "not_allowed"
    assert Admission(name).refusal(payload)[0] == "malformed"


def test_who_may_pause_may_resume_and_the_answer_goes_back_with_what_was_sent_along() -> None:
    resume = b'{"command":"resume","camera":"gate"}'
    reply, command = Admission("pause").admit(resume, response_topic=f"{RES}/a/b", correlation=b"\0\xff")
    assert command == commands.Resume(camera="gate")
    assert (reply.topic, reply.correlation, reply.command) == (f"{RES}/a/b", b"\0\xff", "resume")


def test_an_id_comes_back_where_it_is_one_also_with_a_refusal() -> None:
    for sent, back in (({"id": "a"}, "a"), ({"id": "x" * 65}, UNSET), ({"id": 7}, UNSET), ({}, UNSET)):
        assert Admission().refusal(msgspec.json.encode({"command": "exec", **sent}))[2].id == back


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


def test_what_is_wrong_is_said_with_what_came_and_what_is_right() -> None:
    for payload, said, example in (
        (b'{"command":"set_rate","camera":"gate","max_fps":"5"}', "max_fps: got a string, expected", '"max_fps":5}'),
        (b'{"command":"resume"}', "camera is missing", '{"command":"resume","camera":"gate"}'),
        (b'{"command":"pause","camra":"gate"}', "unknown key camra; did you mean camera?", '"camera":"gate"}'),
        (b"", "got '', expected a JSON object", '{"command": "report_state"}'),
    ):
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
        reply, command = admission.admit(bytes(payload[: chance.randrange(len(payload) + 1)]))
        if isinstance(command, commands.RefusedError):
            assert len(command.complaint.message) < 320
            assert command.complaint.message.isprintable()
            msgspec.json.encode(command.complaint)
        else:
            assert commands.COMMANDS[str(reply.command)].permission == "set_threshold"


_NUMBERS = "-1 0 5e-324 0.00999 0.01 1 1.0000000000000002 63 64 240 240.00000000000003 1920 1921 1e308 1e400 NaN .5"


@pytest.mark.parametrize(
    ("name", "field"), [("set_threshold", "confidence"), ("set_rate", "max_fps"), ("snapshot", "width")]
)
def test_a_number_is_taken_where_the_schema_has_it_and_else_refused(name: str, field: str) -> None:
    schema = jsonschema.Draft202012Validator(msgspec.json.decode(message_schema("command")))
    example = msgspec.to_builtins(commands.COMMANDS[name].example)
    for number in _NUMBERS.split():
        _, command = Admission().admit(msgspec.json.encode({**example, field: msgspec.Raw(number.encode())}))
        is_valid = number[-1].isdigit() and number[0] != "." and float(number) < 1e300
        expected = is_valid and schema.is_valid({**example, field: msgspec.json.decode(number)})
        assert isinstance(command, commands.RefusedError) is not expected, number
    _, words, _ = Admission().refusal(b'{"command":"set_rate","camera":"gate","max_fps":0.001}')
    assert "max_fps is 0.001, expected 0 (as many as come) or 0.01 to 240; such as" in words


# What is done, said to people and answered.

_EVIL = "gate\x1b]0;pwn\x07\x1b[2J\nNov 22 12:00:00 pi edge-sdk: all is well\u202e"


@pytest.fixture
def commanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandedDevice]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # other devices of this name keep what they were told
    made = CommandedDevice()
    yield made
    made.outlet.close(WAIT_S)


def test_bytes_from_the_wire_are_shown_and_never_acted_on(commanded: CommandedDevice) -> None:
    commanded.hear("pause", camera=_EVIL)
    [answer] = commanded.answers(1)
    assert answer["error"]["code"] == "unknown_camera"
    [line] = commanded.said
    assert line.isprintable()
    assert line.startswith("command pause (camera 'gate\\x1b]0;pwn\\x07\\x1b[2J\\nNov 22 ")


def test_a_control_that_a_camera_lacks_is_not_set(commanded: CommandedDevice) -> None:
    control = commanded.controls.of("gate")
    commanded.hear("set_threshold", camera="gate", confidence=0.5)
    control.known = CameraTraits(name="gate", task="classification", refusals={"confidence": "no threshold"})
    commanded.hear("set_threshold", camera="gate", confidence=0.5)
    commanded.hear("set_rate", camera="gate", max_fps=5)
    *refused, done = commanded.answers(3)
    for answer, message in zip(refused, ("this camera's model is not loaded yet", "no threshold"), strict=True):
        assert (answer["error"]["code"], answer["error"]["message"]) == ("not_possible", message)
    assert (done["ok"], control.state) == (True, commands.ControlState(paused=False, max_fps=5))


def test_models_of_independent_classes_have_a_confidence() -> None:
    for task, decoder, has_one in (
        ("classification", "softmax", False),
        ("classification", "sigmoid", True),
        ("detection", "yolox", True),
    ):
        manifest = msgspec.structs.replace(make_manifest(), task=task, decoder=decoder)
        [control] = [control for control in commands.CONTROLS if control.name == "confidence"]
        assert (control.refusal(manifest, True) == "") is has_one


def _shot(number: int = 7) -> Shot:
    return Shot(np.full((48, 64, 3), number, np.uint8), number)


def test_one_request_for_a_picture_of_a_camera_waits_at_a_time(commanded: CommandedDevice) -> None:
    for number in ("1", "2"):
        commanded.hear("snapshot", camera="gate", width=64, id=number)
    assert [(answer["id"], answer["error"]["code"]) for answer in commanded.answers(1)] == [("2", "too_fast")]
    control = commanded.controls.of("gate")
    control.wants_shot, control.shot = False, _shot()  # as the pipeline does it
    commanded.handler.look()
    assert [answer["picture"]["seq"] for answer in commanded.answers(2)[1:]] == [7]
    assert (control.wants_shot, control.shot) == (False, None)


def test_a_picture_that_came_too_late_is_nobody_s(commanded: CommandedDevice) -> None:
    commanded.hear("snapshot", camera="gate")
    commanded.look(60.0)
    assert commanded.answers(1)[0]["error"]["code"] == "failed"
    control = commanded.controls.of("gate")
    control.shot = _shot()
    commanded.hear("snapshot", camera="gate")
    assert (control.wants_shot, control.shot) == (True, None)


@pytest.mark.parametrize("steps", [("pause", "snapshot"), ("snapshot", "pause")])
def test_a_picture_of_a_paused_camera_is_refused(commanded: CommandedDevice, steps: tuple[str, str]) -> None:
    for step in steps:
        commanded.hear(step, camera="gate")
    [error] = [answer["error"] for answer in commanded.answers(2) if not answer["ok"]]
    assert error["code"] == "not_possible"
    assert re.search("this camera is paused.*resume it", error["message"])
    assert "command pause (camera 'gate')" in commanded.said


def test_a_picture_that_cannot_be_made_is_answered(commanded: CommandedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([cv2.error("/build/opencv/loadsave.cpp: error: (-4:Insufficient memory)"), Jpeg(b"jpeg", 64, 48)])

    def make(*_: object) -> Jpeg:
        if isinstance(made := next(results), Exception):
            raise made
        return made

    monkeypatch.setattr("edge_sdk.service.commands.jpeg_of", make)
    for now_s in (1.0, 2.0):  # no more than may be asked for
        commanded.now_s = now_s
        commanded.hear("snapshot", camera="gate")
        commanded.controls.of("gate").shot = _shot()
        commanded.handler.look()
    failed, done = commanded.answers(2)
    assert (failed["error"]["code"], done["ok"]) == ("failed", True)
    assert failed["error"]["message"].startswith("out of memory")


def test_the_end_of_a_burst_is_told_though_nothing_comes_after_it(commanded: CommandedDevice) -> None:
    for now_s in (0.0, 0.1):
        for _ in range(70):  # of which six find no room
            commanded.inbox.receive(Incoming(commanded.topics.of("command"), REPORT))
        commanded.look(now_s)
    commanded.look(1.2)
    told = [answer["error"]["message"] for answer in commanded.answers(22) if not answer["ok"]]
    assert [line.partition(",")[0] for line in told] == ["50 commands were passed over", "70 commands were passed over"]


def test_a_reload_gives_nobody_more(commanded: CommandedDevice) -> None:
    for _ in range(20):
        commanded.hear("report_state")
    commanded.handler.change_to(msgspec.structs.replace(commanded.settings, commands=("report_state",)))
    commanded.hear("report_state")
    commanded.look(1.1)
    assert [answer["ok"] for answer in commanded.answers(21)] == [True] * 20 + [False]
    commanded.hear("pause", camera="gate")
    assert commanded.answers(22)[-1]["error"]["code"] == "not_allowed"


def test_who_asks_for_a_reload_is_told_why_it_is_not_taken(commanded: CommandedDevice) -> None:
    commanded.why_not = "/etc/edge-sdk/a.toml: gate is missing, see mqtt://h/a/b\n\x1b[2J" + "x" * 1000
    commanded.hear("reload")
    [answer] = commanded.answers(1)
    message, not_taken = answer["error"]["message"], "the configuration is not taken, what runs goes on: "
    assert message.startswith(f"{not_taken}…/a.toml: gate is missing, see mqtt://h/a/b; \ufffd[2Jxxx")
    assert message.isprintable()
    assert len(message) < 700
    commanded.why_not = ""
    commanded.hear("reload")
    assert commanded.answers(2)[1]["ok"]


def test_a_reload_keeps_what_may_still_be_set() -> None:
    controls = Controls()
    gate = controls.of("gate")
    gate.change(paused=True, confidence=0.5, max_fps=2)
    controls.of("yard").change(paused=True)
    for allowed, expected in (
        (commands.PERMISSIONS, commands.ControlState(paused=True, confidence=0.5, max_fps=2)),
        (("set_rate",), commands.ControlState(paused=False, max_fps=2)),  # nobody could resume it any more
        ((), commands.UNCHANGED),
    ):
        controls.keep_only({"gate"}, allowed)
        assert (controls.of("gate") is gate, gate.state) == (True, expected)
        assert not controls.of("yard").state.paused


def test_a_threshold_holds_after_a_restart_unless_the_configuration_changed_since(
    commanded: CommandedDevice, tmp_path: Path
) -> None:
    def start(confidence: float | None, allowed: tuple[str, ...] = commands.PERMISSIONS) -> float | UnsetType:
        pipelines = tuple(msgspec.structs.replace(each, confidence=confidence) for each in commanded.settings.pipelines)
        settings = msgspec.structs.replace(commanded.settings, pipelines=pipelines, commands=allowed)
        commanded.controls = Controls()
        commanded.handler = CommandHandler(settings, commanded.controls, commanded.inbox, commanded.outlet, None)
        return commanded.controls.of("gate").state.confidence

    def set_to(*values: float) -> None:
        commanded.controls.of("gate").known = CameraTraits(name="gate", task="detection")
        for value in values:
            commanded.hear("set_threshold", camera="gate", confidence=value)
        until(lambda: bool(commanded.handler.look() or is_kept(values[-1])))

    def is_kept(value: float) -> bool:
        return any(f":[{value}," in path.read_text() for path in tmp_path.rglob("*.json"))

    for configured, value in ((None, 0.7), (0.4, 0.8)):
        assert start(configured) is UNSET
        until(lambda: bool(commanded.handler.look() or not is_kept(0.7)))  # what the configuration changed is forgotten
        set_to(0.1, value)
        assert start(configured) == value
        assert start(configured, ("pause",)) is UNSET
        renamed = msgspec.structs.replace(commanded.settings.mqtt, device="another")
        all_allowed = msgspec.structs.replace(commanded.settings, mqtt=renamed, commands=commands.PERMISSIONS)
        commanded.handler.change_to(all_allowed)
        set_to(0.2)
        assert start(configured) == value
    for path in tmp_path.rglob("*.json"):
        path.write_text("{")
    assert start(0.4) is UNSET
    [line] = {line for line in commanded.said if "that commands set before are not known" in line}
    assert line.endswith(".json: damaged")


# The documentation.

DOCS = Path(__file__).parents[3] / "docs"
_TEXT = (DOCS / "commands.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    lines = _TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_every_command_is_documented_with_its_fields_and_its_permission() -> None:
    rows = {row[0].strip("`"): row for row in _rows("The commands")}
    assert {row[3].strip("` ") for row in rows.values()} == set(commands.PERMISSIONS)
    for kind in get_args(commands.Command):
        row = rows.pop(kind.__struct_config__.tag)
        assert re.findall(r"`(\w+)`", row[1]) == [f.name for f in msgspec.structs.fields(kind) if f.name != "id"]
        entry = commands.COMMANDS[kind.__struct_config__.tag]
        assert (type(entry.example), entry.permission) == (kind, row[3].strip("` "))
        assert (entry.control is None) is (kind in HANDLERS)
    assert rows == {}
    assert len(commands.COMMANDS) == len(get_args(commands.Command))
    assert [control.name for control in commands.CONTROLS] == list(commands.ControlState.__struct_fields__)


def test_every_code_is_documented() -> None:
    assert sorted(row[0].strip("`") for row in _rows("The answer")) == sorted(get_args(commands.Code))


def test_the_example_of_an_answer_is_one() -> None:
    [line] = [line for line in _TEXT.splitlines() if line.startswith('{"stream":"response"')]
    assert msgspec.json.decode(line, type=commands.ResponseMessage).command == "pause"
