"""Numbers in commands, however odd: each is refused in words, or does no harm to the stream that obeys it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import jsonschema
import msgspec
import pytest

from edge_sdk.core.frame import Detections, Frame
from edge_sdk.inference.stages import Stages
from edge_sdk.loop import Budget, Loop, Tick
from edge_sdk.messages.commands import CLASSES, COMMANDS, Command, RefusedError
from edge_sdk.messages.schema import message_schema
from edge_sdk.messages.topics import Topics
from edge_sdk.publishing.connection import Incoming
from edge_sdk.service.commands import CommandAdmission
from edge_sdk.service.runner import PipelineRunner, ResultViewer
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.sources.slot import SourceStats, SourceStatus
from tests.support.bundles import make_manifest
from tests.support.connections import WAIT_S
from tests.support.loops import Camera, Clock, Collector
from tests.support.results import make_detections
from tests.support.service import Office

_FRACTIONS = "5e-324 1e-310 0.00999 0.01 0.5 1 1.0000000000000002 240 240.00000000000003 1e15 1e308 1e400"
_WHOLE = "0 63 64 64.0 1920 1921 9223372036854775808 1" + "0" * 400
_NUMBERS = [sign + each for each in f"{_FRACTIONS} {_WHOLE}".split() for sign in ("", "-")]
_NO_JSON = ["NaN", "-Infinity", "1e", ".5"]
_FIELDS = [
    (kind.__struct_config__.tag, name)
    for kind in get_args(Command)
    for name, hint in get_type_hints(kind).items()
    if hint in (int, float)
]


class _Bundle:
    """What obeying asks of a detector's."""

    manifest = msgspec.structs.replace(make_manifest(), task="detection", decoder="yolov8")

    def labels(self) -> tuple[str, ...]:
        return ("cat", "dog")


class _Thresholded:
    """A task, made again for every threshold."""

    def __init__(self, confidence: float | None) -> None:
        self._confidence = confidence

    def __call__(self, frame: Frame) -> Detections:
        found = make_detections(3, frame)
        assert self._confidence is None or 0.01 <= self._confidence <= 1
        return found


class _Source(Camera):
    paced, stats, status, trouble = True, SourceStats(), SourceStatus.OPENED, ""


class _Obedient:
    """A stream's loop, on a clock of its own, beside a desk."""

    def __init__(self, office: Office) -> None:
        clock = Clock()
        stream = office.outlet.stream("gate", office.encoder)
        stages = Stages("int8", _same, _same, _Thresholded(None), _Thresholded)  # type: ignore[arg-type]
        settings = PipelineSettings(camera="gate", source="pattern", bundle=Path("a.edge"))
        budget, source = Budget(1e9), _Source(clock, 50, 10**9)
        self._runner = PipelineRunner(
            settings,
            _Bundle(),  # type: ignore[arg-type]
            source,  # type: ignore[arg-type]
            stages,
            stream,
            budget,
            office.controls,
        )
        viewer = ResultViewer(office.controls, stream)
        self.loop = Loop(source, stages, Collector(), budget, observers=[viewer], clock_ns=clock)
        self._runner.loop = self.loop

    def go_on(self, steps: int = 3) -> list[Tick]:
        return [self._runner._step() for _ in range(steps)]


def _same(value: object) -> object:
    return value


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.outlet.close(WAIT_S)


def _payload(name: str, field: str, number: str) -> bytes:
    document = {**msgspec.to_builtins(COMMANDS[name].example), field: msgspec.Raw(number.encode())}
    return msgspec.json.encode(document)


@pytest.mark.parametrize(
    ("name", "field"), [("set_threshold", "confidence"), ("set_rate", "max_fps"), ("snapshot", "width")]
)
def test_no_number_harms_the_stream(office: Office, name: str, field: str) -> None:
    assert (name, field) in _FIELDS
    assert len(_FIELDS) == 3
    stream = _Obedient(office)
    stream.go_on()
    for count, number in enumerate((*_NUMBERS, *_NO_JSON), start=1):
        office.said.clear()
        office.now_s += 10
        office.inbox.receive(Incoming(office.topics.command, _payload(name, field, number)))
        office.desk.look()
        assert Tick.IDLE not in stream.go_on()
        assert 0 <= stream.loop.least_gap_ns <= 100 * 10**9
        office.desk.look()
        assert not any("a bug in edge-sdk" in line for line in office.said), number
        answers = office.answers(count)  # each in turn: of more than 32 that wait the newest are kept
    assert {answer["ok"] for answer in answers} == {True, False}
    codes = {answer["error"]["code"] for answer in answers if not answer["ok"]}
    assert codes == {"malformed"}


def test_a_stream_obeys_whatever_rate_was_set(office: Office) -> None:
    stream = _Obedient(office)
    for max_fps in (0.0, 5e-324, 0.001, -1.0, float("inf"), float("nan")):
        office.controls.of("gate").change(max_fps=max_fps)
        stream.go_on()
        assert 0 <= stream.loop.least_gap_ns <= 100 * 10**9


def test_a_rate_is_taken_where_the_schema_has_it_and_else_it_is_told_what_would_be_one() -> None:
    schema = jsonschema.Draft202012Validator(msgspec.json.decode(message_schema("command")))
    for number in _NUMBERS:
        payload, value = _payload("set_rate", "max_fps", number), float(number)
        found = CommandAdmission(Topics("edge/v1", "yard", "pi"), CLASSES).admit(Incoming("cmd", payload))
        assert found is not None
        _, command = found
        is_refused = isinstance(command, RefusedError)
        assert is_refused != (value == 0 or 0.01 <= value <= 240)
        if abs(value) < 1e300:
            assert schema.is_valid(msgspec.json.decode(payload)) != is_refused
        if isinstance(command, RefusedError) and abs(value) < 2**53:
            assert ", expected 0 (as many as come) or 0.01 to 240; such as" in command.complaint.message
