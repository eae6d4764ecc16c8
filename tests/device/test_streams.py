"""What becomes of streams that fail, and when all are over."""

from __future__ import annotations

import pytest

from edge_sdk.errors import BundleError, CameraError, EdgeError, LinesError, UsageError
from tests.device.doubled_streams import Scene


def test_several_streams_share_a_gate_and_one_has_none() -> None:
    scene, alone = Scene("gate", "yard"), Scene("gate")
    assert scene["gate"].gate is scene["yard"].gate is not None
    assert alone["gate"].gate is None
    assert [each.events for each in (*scene.made, *alone.made)] == [["start"]] * 3


@pytest.mark.parametrize(
    ("uniform", "expected_s"), [(1.0, [1, 2, 4, 8, 16, 32, 60, 60]), (0.0, [0.5, 1, 2, 4, 8, 16, 30, 30])]
)
def test_a_stream_that_fails_begins_again_later_and_later(uniform: float, expected_s: list[float]) -> None:
    scene = Scene("gate", "yard", uniform=uniform)
    yard = scene["yard"].run()
    for delay_s in expected_s:
        failed = scene["gate"]
        failed.end(CameraError("no frame"))
        scene.streams.look()
        scene.streams.look()
        assert scene.said.pop() == f"gate: no frame; begins again in {delay_s:.0f} s"
        assert failed.warned == ["failed: no frame"]
        scene.now_s += delay_s - 0.001
        scene.streams.look()
        assert scene["gate"] is failed
        assert not scene.streams.are_over
        scene.now_s += 0.002
        scene.streams.look()
        assert scene["gate"] is not failed
        assert (scene["gate"].settings, scene["gate"].events) == (failed.settings, ["start"])
    assert (scene.said, scene["yard"], yard.events) == ([], yard, ["start"])


def test_one_that_ran_for_a_while_begins_again_soon() -> None:
    scene = Scene("gate")
    for ran_s, delay_s in ((1, 1), (59, 2), (61, 1), (1, 2)):
        scene["gate"].run()
        scene.now_s += ran_s
        scene["gate"].end(EdgeError("lost"))
        scene.streams.look()
        assert scene.said[-1].endswith(f"again in {delay_s} s")
        scene.now_s += delay_s
        scene.streams.look()


def test_a_bug_is_said_to_be_one_in_one_line() -> None:
    scene = Scene("gate")
    scene["gate"].end(ValueError("no\nsuch thing"))
    scene.streams.look()
    assert scene.said == ["gate: this is a bug in edge-sdk: ValueError: no; begins again in 1 s"]


@pytest.mark.parametrize(
    "failure",
    [MemoryError(), RuntimeError("can't start new thread"), BundleError("[ONNXRuntimeError] : 6 : std::bad_alloc")],
    ids=str,
)
def test_want_of_memory_is_no_bug_of_ours_and_passes(failure: Exception) -> None:
    scene = Scene("gate")
    scene["gate"].end(failure)
    scene.streams.look()
    line = "out of memory: end other programs, or take a machine or a container with more of it"
    assert scene.said == [f"gate: {line}; begins again in 1 s"]
    assert scene["gate"].warned == [f"failed: {line}"]


@pytest.mark.parametrize(
    ("failure", "is_service"),
    [
        (CameraError("gone"), False),
        (ValueError("a bug"), False),
        (BrokenPipeError(), True),
        (LinesError("disk full"), True),
        (SystemExit(3), True),
    ],
)
def test_other_failures_are_the_process_s(failure: BaseException, is_service: bool) -> None:
    scene = Scene("gate", "yard", is_service=is_service)
    scene["yard"].run()
    scene["gate"].end(failure)
    with pytest.raises(type(failure)) as raised:
        scene.streams.look()
    assert raised.value is failure


def test_what_cannot_run_is_left_out_and_the_last_one_ends_the_process() -> None:
    scene = Scene("gate", "yard")
    scene["yard"].run()
    scene["gate"].end(BundleError("altered"))
    scene.streams.look()
    scene.now_s += 1000
    scene.streams.look()
    assert scene.said == ["gate: cannot run, and is left out until the configuration is read again: altered"]
    assert (len(scene.made), scene["gate"].warned) == (2, ["failed: altered"])
    assert not scene.streams.are_over
    scene["yard"].end(UsageError("no such bundle"))
    with pytest.raises(BundleError, match="altered"):  # it is worse
        scene.streams.look()
    assert scene.said[1:] == ["yard: cannot run, and is left out until the configuration is read again: no such bundle"]


def test_what_is_left_out_is_known_once_the_rest_came_to_its_end() -> None:
    scene = Scene("gate", "yard", "hall")
    scene["hall"].run()
    for camera, failure in (("gate", BundleError("altered")), ("yard", UsageError("no such bundle"))):
        scene[camera].end(failure)
        assert not scene.streams.are_over
        scene.streams.look()
    assert not scene.streams.are_over
    scene["hall"].end()
    scene.streams.look()
    assert scene.streams.are_over
    assert scene.streams.left_out is scene["gate"].failure


def test_a_failure_that_nobody_has_looked_at_is_no_end() -> None:
    scene = Scene("gate")
    scene["gate"].end(CameraError("gone"))
    assert not scene.streams.are_over


def test_it_is_over_when_all_came_to_their_end() -> None:
    scene = Scene("gate", "yard")
    assert not scene.streams.have_begun
    scene["gate"].end()
    scene["yard"].run()
    assert scene.streams.have_begun
    assert not scene.streams.are_over
    scene["yard"].end()
    scene.streams.look()
    assert scene.streams.are_over
