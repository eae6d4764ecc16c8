"""Streams of one process: those that fail, those that change, and what is said of another configuration."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.config.schema import ThenConfig
from edge_sdk.core.errors import BundleError, CameraError, LinesError, UsageError
from edge_sdk.core.logs import CAMERA, name_cameras
from edge_sdk.loop import Tick
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.service.model_selector import TuningLock
from edge_sdk.service.process import Gate, Shared
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.service.supervisor import Supervisor, other_changes, output_changes
from tests.support.connections import until
from tests.support.logs import SAID


class Double:
    def __init__(self, settings: PipelineSettings, gate: Gate | None, before: Double | None) -> None:
        self.settings, self.gate, self.before = settings, gate, before
        self.began, self.is_over = threading.Event(), False
        self.failure: BaseException | None = None
        self.digests = ("first",) * len(settings.bundles)
        self.events, self.joined, self.warned = list[str](), list[float](), list[str]()

    def start(self) -> None:
        self.events.append("start")

    def ask(self, reason: str) -> None:
        self.events.append(f"ask {reason}")

    @property
    def has_place(self) -> bool:
        return self.began.is_set() and self.failure is None

    def leave_output(self) -> None:
        self.events.append("leave output")

    def join(self, timeout_s: float) -> bool:
        self.joined.append(timeout_s)
        return self.is_over

    def warn(self, name: str, line: str) -> None:
        self.warned.append(f"{name}: {line}")

    def end(self, failure: BaseException | None = None) -> None:
        self.failure, self.is_over = failure, True
        self.began.set()


class Scene:
    """Streams of doubles, on a clock that is moved by hand; all but those that are named as `idle` run frames."""

    def __init__(self, *cameras: str, is_service: bool = True, uniform: float = 1.0, idle: str = "") -> None:
        self.now_s = 1000.0
        self.said, self.made = SAID, list[Double]()
        make: Any = self._make
        self.streams = Supervisor(
            make, is_service=is_service, uniform=lambda least, most: least + uniform * (most - least),
            clock_s=lambda: self.now_s,
        )  # fmt: skip
        self.streams.start(map(settings, cameras))
        for made in self.made:
            if made.settings.camera not in idle:
                made.began.set()

    def _make(self, chosen: PipelineSettings, gate: Gate | None, before: Double | None) -> Double:
        self.made.append(Double(chosen, gate, before))
        return self.made[-1]

    def __getitem__(self, camera: str) -> Any:
        return self.streams.running[camera]

    def change(self, *wanted: PipelineSettings, digest: str = "first") -> str:
        digests = {path: "first" for each in wanted for path in each.bundles}
        return self.streams.change_to(wanted, {**digests, **{each.bundles[-1]: digest for each in wanted}})

    def fail(self, camera: str, failure: BaseException) -> None:
        self[camera].end(failure)
        self.streams.look()


def settings(camera: str, source: str = "pattern", **changes: Any) -> PipelineSettings:
    return PipelineSettings(camera=camera, source=source, bundle=Path("a.edge"), **changes)


# Streams that fail or come to their end.


@pytest.mark.parametrize(("uniform", "share"), [(1.0, 1.0), (0.0, 0.5)])
def test_a_stream_that_fails_begins_again_later_and_later(uniform: float, share: float) -> None:
    scene = Scene("gate", "yard", uniform=uniform)
    yard = scene["yard"]
    for ran_s, full_delay_s in ((0, 1), (1, 2), (59, 4), (0, 8), (0, 16), (0, 32), (0, 60), (0, 60), (61, 1), (0, 2)):
        failed, delay_s = scene["gate"], full_delay_s * share
        scene.now_s += ran_s
        scene.fail("gate", CameraError("no frame"))
        scene.streams.look()
        assert scene.said.pop() == f"gate: no frame; begins again in {delay_s:.0f} s"
        assert failed.warned == ["failed: no frame"]
        scene.now_s += delay_s - 0.001
        scene.streams.look()
        assert (scene["gate"], scene.streams.are_over) == (failed, False)
        scene.now_s += 0.002
        scene.streams.look()
        assert scene["gate"] is not failed
        assert (scene["gate"].settings, scene["gate"].events) == (failed.settings, ["start"])
    assert (scene.said, scene["yard"], yard.events) == ([], yard, ["start"])


def test_a_bug_and_what_is_short_are_said_in_one_line() -> None:
    for failure, said in (
        (ValueError("no\nsuch thing"), "this is a bug in edge-sdk: ValueError: no"),
        (MemoryError(), "out of memory: end other programs, or "),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files; let this process open more: "),
        (RuntimeError("can't start new thread"), "out of memory: "),
        (BundleError("[ONNXRuntimeError] : 6 : std::bad_alloc"), "out of memory: "),
    ):
        scene = Scene("gate")
        scene.fail("gate", failure)
        line = scene.said.pop()
        assert line.startswith(f"gate: {said}")
        assert (line[-21:], line.isprintable(), scene.said) == ("; begins again in 1 s", True, [])


def test_failures_that_are_those_of_the_process() -> None:
    for failure in (CameraError("gone"), BrokenPipeError(), LinesError("disk full"), SystemExit(3)):
        scene = Scene("gate", "yard", is_service=not isinstance(failure, CameraError))
        with pytest.raises(type(failure)) as raised:
            scene.fail("gate", failure)
        assert raised.value is failure


def test_streams_that_cannot_run_are_left_out_and_the_last_one_ends_the_process() -> None:
    scene = Scene("gate", "yard")
    scene.fail("gate", BundleError("altered"))
    scene.now_s += 1000
    scene.streams.look()
    assert scene.said == ["gate: cannot run, and is left out until the configuration is read again: altered"]
    assert (len(scene.made), scene["gate"].warned, scene.streams.are_over) == (2, ["failed: altered"], False)
    with pytest.raises(BundleError, match="altered"):  # it is worse
        scene.fail("yard", UsageError("no such bundle"))
    assert len(scene.said) == 2


def test_all_is_over_once_the_last_stream_ended_and_every_failure_was_looked_at() -> None:
    scene, alone = Scene("gate", "yard", "hall", idle="hall"), Scene("gate")
    assert scene["gate"].gate is scene["yard"].gate is not None  # they begin together
    assert alone["gate"].gate is None
    assert not scene.streams.have_begun
    scene["hall"].began.set()
    assert scene.streams.have_begun
    for camera, failure in (("gate", BundleError("altered")), ("yard", UsageError("no such bundle"))):
        scene[camera].end(failure)
        assert not scene.streams.are_over
        scene.streams.look()
    scene["hall"].end(CameraError("gone"))
    assert not scene.streams.are_over  # nobody has looked at that failure
    scene["hall"].end()
    scene.streams.look()
    assert scene.streams.are_over
    assert scene.streams.left_out is scene["gate"].failure


# Streams that change, come and go while others run.


def test_a_change_ends_begins_and_replaces_streams_and_says_so() -> None:
    scene = Scene("gate", "yard", "hall")
    gate, yard, hall = scene.made
    words = scene.change(settings("gate"), settings("yard", "0"), settings("door"))
    assert words == "ending: hall; new: door; changing: yard; as before: gate"
    assert (gate.events, yard.events, hall.events) == (["start"], ["start"], ["start", "ask reload"])
    assert (scene["gate"], scene["yard"]) == (gate, yard)
    [coming] = [made for made in scene.made[3:] if made.before]
    assert (coming.before, coming.settings.source) == (yard, "0")
    assert not scene.streams.have_begun
    coming.began.set()
    scene["door"].began.set()
    scene.streams.look()
    assert (scene["yard"], scene.streams.have_begun) == (coming, True)
    hall.end()
    scene.streams.look()
    assert (hall.events[-1], scene.streams.are_over) == ("leave output", False)


def test_streams_that_are_left_out_or_wait_begin_at_once_when_the_configuration_is_read_again() -> None:
    scene = Scene("gate", "yard", "hall")
    scene.fail("gate", BundleError("altered"))
    scene.fail("yard", CameraError("gone"))
    assert scene.change(*map(settings, ("gate", "yard", "hall"))) == "changing: gate, yard; as before: hall"
    assert [scene["gate"], scene["yard"]] == scene.made[3:]
    assert [each.events for each in scene.made[3:]] == [["start"], ["start"]]
    scene.now_s += 1000
    scene.streams.look()
    assert len(scene.made) == 5


def test_new_settings_that_cannot_run_leave_the_stream_that_runs_until_it_fails() -> None:
    scene = Scene("gate")
    ran = scene["gate"]
    scene.change(settings("gate", "0"))
    scene.made[-1].end(BundleError("altered"))
    scene.streams.look()
    assert scene.said == ["gate: the new settings cannot run, what ran goes on: altered"]
    assert (scene["gate"], ran.events, scene.streams.have_begun) == (ran, ["start"], True)
    assert (scene.streams.not_taken, ran.warned) == ("gate: altered", ["not_taken: altered"])
    scene.change(settings("gate"))
    assert (scene.streams.not_taken, ran.warned[1:]) == ("", ["not_taken: "])
    scene.change(settings("gate", "0"))
    scene.fail("gate", CameraError("gone"))
    assert len(scene.said) == 1  # the one that comes is waited for
    scene.made[-1].end(CameraError("no such device"))
    scene.streams.look()
    assert scene.said[1:] == ["gate: no such device; begins again in 1 s"]
    assert scene["gate"].settings.source == "0"


def test_a_bundle_that_is_replaced_or_a_second_model_that_comes_is_a_change() -> None:
    scene = Scene("gate")
    first = scene["gate"]
    assert scene.change(settings("gate"), digest="second") == "changing: gate"
    assert scene.made[-1].before is first
    wanted = settings("gate", then=ThenConfig(bundle=Path("b.edge")))
    assert scene.change(wanted) == "changing: gate"
    scene.made[-1].began.set()
    scene.streams.look()
    assert scene.change(wanted) == "as before: gate"
    assert scene.change(wanted, digest="second") == "changing: gate"


def test_a_camera_that_is_back_before_its_pipeline_ended_stays_known() -> None:
    scene = Scene("gate", "yard")
    gate = scene["gate"]
    scene.change(settings("yard"))
    scene.change(settings("gate"), settings("yard"))
    gate.end()
    scene.streams.look()
    assert gate.events[-1] == "ask reload"


def test_before_other_streams_start_all_end_and_one_that_hangs_is_left_behind() -> None:
    scene = Scene("gate", "yard", "hall")
    gate, yard, hall = scene.made
    scene.change(settings("gate"), settings("yard"), settings("hall", "0"))
    coming = scene.made[-1]
    for each in (gate, hall, coming):
        each.is_over = True
    looks = iter([False, True])
    scene.streams.stop(lambda: next(looks))  # the yard's hangs, and holds nobody up
    assert {each.events[-1] for each in (gate, yard, hall, coming)} == {"ask reload"}
    assert yard.joined == [0.0]
    scene.streams.start([settings("gate"), settings("hall", "0"), settings("door")])
    assert list(scene.streams.running) == ["gate", "hall", "door"]
    assert [each.before for each in scene.made[-3:]] == [None] * 3
    scene.streams.join(0.5)
    waited_s = [each.joined[-1] for each in scene.made[-3:]]
    assert 0.5 >= waited_s[0] >= waited_s[1] >= waited_s[2] >= 0  # for all together
    for each in scene.streams.all():
        each.is_over = True  # type: ignore[misc]
    scene.streams.stop(pytest.fail)  # who has ended is not waited for


_MQTT = MqttSettings(host="broker", port=1883, device="pi")
_HOME, _NO_HOME = HomeAssistantSettings(), HomeAssistantSettings(is_enabled=False)


def test_other_differences_are_named() -> None:
    for changes, outlet, others in (
        ({}, [], []),
        ({"commands": ()}, ["other topics that are listened to"], ["commands: none"]),
        ({"device": "other"}, ["other device's name"], []),
        ({"mqtt": msgspec.structs.replace(_MQTT, port=1884)}, ["other broker, or how it is used"], []),
        ({"home_assistant": _HOME}, ["other topics that are listened to"], ["Home Assistant: told anew"]),
        ({"home_assistant": _NO_HOME}, [], ["Home Assistant: not told of this device"]),
    ):
        before = RunSettings(device="pi", mqtt=_MQTT, commands=("pause",), pipelines=())
        after = msgspec.structs.replace(before, **changes)
        assert (output_changes(before, after), [*other_changes(before, after)]) == (outlet, others)


# What the pipelines of one process share: a turn to start, a turn to tune, a line that is logged once.


def test_the_board_is_read_once_for_all_streams_and_by_nobody_before_one_looks() -> None:
    def readers() -> int:
        return sum(thread.name == "edge-board" for thread in threading.enumerate())

    shared, before = Shared(), readers()
    assert isinstance(shared.throttled() + shared.throttled(), str)
    assert readers() == before + 1
    shared.close()
    until(lambda: readers() == before)


def test_a_line_that_holds_for_all_streams_is_said_once() -> None:
    shared, token = Shared(), CAMERA.set("gate")
    name_cameras(wanted=True)
    for line in ("no key", "no disk", "no key"):
        shared.log_once(logging.WARNING, line)
    CAMERA.reset(token)
    assert SAID == ["warning: no key", "warning: no disk"]


class _Tuner:
    def __init__(self) -> None:
        self.looks, self.closed = 0, 0

    @property
    def done(self) -> bool:
        return self.looks >= 3 or bool(self.closed)

    def after(self, _loop: object, _tick: Tick) -> None:
        self.looks += 1

    def close(self) -> None:
        self.closed += 1


def _turns(count: int = 2) -> tuple[list[_Tuner], list[Any]]:
    lock, tuners = threading.Lock(), [_Tuner() for _ in range(count)]
    return tuners, [TuningLock(tuner, lock) for tuner in tuners]  # type: ignore[arg-type]


def test_one_pipeline_tunes_to_its_end_and_then_the_next_does() -> None:
    (first, second), (one, two) = _turns()
    one.after(None, Tick.IDLE)  # a tuner whose camera delivers nothing does not take the turn
    seen = []
    for _ in range(5):
        for turn in (one, two):
            turn.after(None, Tick.ON_TIME)
        seen.append((first.looks, second.looks))
    assert (seen, one.done, two.done) == ([(1, 0), (2, 0), (3, 1), (3, 2), (3, 3)], True, True)


def test_a_pipeline_that_ends_while_it_tunes_gives_its_turn_on_once() -> None:
    tuners, (one, two, three, four) = _turns(4)
    one.after(None, Tick.ON_TIME)
    two.close()  # it never had the turn, and cannot give it on
    for later in (three, three, four):
        later.after(None, Tick.ON_TIME)
        one.close()
    assert [(tuner.looks, tuner.closed) for tuner in tuners] == [(1, 3), (0, 1), (1, 0), (0, 0)]
