"""Streams that change, come and go while others run."""

from __future__ import annotations

from edge_sdk.errors import BundleError, CameraError
from tests.device.doubled_streams import Scene, settings


def test_a_change_says_what_becomes_of_each() -> None:
    scene = Scene("gate", "yard", "hall")
    gate, yard, hall = (each.run() for each in scene.made)
    words = scene.change(settings("gate"), settings("yard", "0"), settings("door"))
    assert words == "ending: hall; new: door; changing: yard; as before: gate"
    assert (gate.events, yard.events, hall.events) == (["start"], ["start"], ["start", "ask reload"])
    assert (scene["gate"], scene["yard"]) == (gate, yard)
    coming = scene.made[-1] if scene.made[-1].before else scene.made[-2]
    assert (coming.before, coming.settings.source) == (yard, "0")
    assert not scene.streams.have_begun
    coming.run()
    scene["door"].run()
    scene.streams.look()
    assert scene["yard"] is coming
    assert scene.streams.have_begun
    hall.end()
    scene.streams.look()
    assert hall.events[-1] == "leave outlet"
    assert not scene.streams.are_over


def test_a_bundle_that_was_replaced_is_a_change() -> None:
    scene = Scene("gate")
    scene["gate"].run().has_other_files = True
    assert scene.change(settings("gate")) == "changing: gate"
    assert scene.made[-1].before is scene["gate"]


def test_what_was_left_out_or_waits_begins_at_once_when_the_configuration_is_read_again() -> None:
    scene = Scene("gate", "yard", "hall")
    out, waiting, _ = scene.made
    scene["hall"].run()
    out.end(BundleError("altered"))
    waiting.end(CameraError("gone"))
    scene.streams.look()
    assert scene.change(*map(settings, ("gate", "yard", "hall"))) == "changing: gate, yard; as before: hall"
    assert [each.events for each in scene.made[3:]] == [["start"], ["start"]]
    assert (scene["gate"], scene["yard"]) == (scene.made[3], scene.made[4])
    scene.now_s += 1000
    scene.streams.look()
    assert len(scene.made) == 5


def test_new_settings_that_cannot_run_leave_what_ran() -> None:
    scene = Scene("gate")
    ran = scene["gate"].run()
    scene.change(settings("gate", "0"))
    scene.made[-1].end(BundleError("altered"))
    scene.streams.look()
    assert scene.said == ["gate: the new settings cannot run, what ran goes on: altered"]
    assert (scene["gate"], ran.events) == (ran, ["start"])
    assert scene.streams.have_begun


def test_new_settings_that_cannot_run_after_what_ran_has_ended_are_a_failed_stream() -> None:
    scene = Scene("gate")
    ran = scene["gate"].run()
    scene.change(settings("gate", "0"))
    ran.end(CameraError("gone"))
    scene.streams.look()
    assert scene.said == []  # the one that comes is waited for
    scene.made[-1].end(CameraError("no such device"))
    scene.streams.look()
    assert scene.said == ["gate: no such device; begins again in 1 s"]
    assert scene["gate"].settings.source == "0"


def test_who_changes_his_mind_gets_what_he_said_last() -> None:
    scene = Scene("gate")
    ran = scene["gate"].run()
    scene.change(settings("gate", "0"))
    first = scene.made[-1]
    assert scene.change(settings("gate", "0")) == "changing: gate"  # on its way already
    assert scene.made[-1] is first
    assert scene.change(settings("gate")) == "as before: gate"  # back to what still runs
    assert scene.made[-1] is first
    assert first.events[-1] == "withdraw"
    scene.change(settings("gate", "1"))
    last = scene.made[-1].run()
    assert last.before is ran
    first.end()
    scene.streams.look()
    assert scene["gate"] is last
    assert "leave outlet" not in first.events


def test_one_that_was_changed_before_it_ran_is_withdrawn_and_its_heir_gets_what_it_would_have_had() -> None:
    scene = Scene("gate")
    ran = scene["gate"].run()
    ended = scene.streams.stop_for_others(lambda: True)
    scene.streams.start([settings("gate")], ended)
    scene.change(settings("gate", "0"))
    second, third = scene.made[1:]
    assert (second.events, second.forgone, third.before) == (["start", "withdraw"], ran, ran)


def test_files_that_came_while_a_stream_read_its_own_are_looked_at_once_it_has() -> None:
    scene = Scene("gate")
    scene["gate"].digest = None
    assert scene.change(settings("gate")) == "as before: gate"
    scene.streams.look()
    first = scene["gate"].run()
    first.digest, first.has_other_files = "1" * 64, True
    scene.streams.look()
    assert scene.made[-1].before is first


def test_one_that_arrived_just_now_is_what_runs() -> None:
    scene = Scene("gate")
    scene["gate"].run()
    scene.change(settings("gate", "0"))
    arrived = scene.made[-1].run()
    assert scene.change(settings("gate", "1")) == "changing: gate"
    assert scene.made[-1].before is arrived


def test_a_camera_that_leaves_while_it_changes_takes_both_along_and_one_that_is_back_stays_known() -> None:
    scene = Scene("gate", "yard")
    gate, yard = (each.run() for each in scene.made)
    scene.change(settings("gate", "0"), settings("yard"))
    coming = scene.made[-1]
    scene.change(settings("yard"))
    assert gate.events[-1] == coming.events[-1] == "ask reload"
    scene.change(settings("gate"), settings("yard"))
    gate.end()
    coming.end()
    scene.streams.look()
    assert [gate.events[-1], coming.events[-1], yard.events] == ["ask reload", "ask reload", ["start"]]


def test_for_other_streams_all_end_and_leave_their_sources() -> None:
    scene = Scene("gate", "yard", "hall")
    gate, yard, hall = (each.run() for each in scene.made)
    scene.change(settings("gate"), settings("yard"), settings("hall", "0"))
    coming = scene.made[-1]
    for each in (gate, hall, coming):
        each.is_over = True
    looks = iter([False, True])
    ended = scene.streams.stop_for_others(lambda: next(looks))  # the yard's hangs, and holds nobody up
    assert ended == {"gate": gate, "yard": yard, "hall": hall}
    assert {each.events[-1] for each in (gate, yard, hall)} == {"leave source"}
    assert coming.events == ["start", "withdraw", "ask reload"]
    scene.streams.start([settings("gate"), settings("hall", "0"), settings("door")], ended)
    assert [(each.settings.camera, each.before) for each in scene.made[-3:]] == [
        ("gate", gate),
        ("hall", hall),
        ("door", None),
    ]
    assert list(scene.streams.running) == ["gate", "hall", "door"]


def test_who_has_ended_is_not_waited_for() -> None:
    scene = Scene("gate")
    scene["gate"].end()
    looks = list[int]()
    scene.streams.stop_for_others(lambda: bool(looks.append(1)))
    assert looks == []


def test_the_end_of_all_is_waited_for_in_one_time() -> None:
    scene = Scene("gate", "yard")
    for each in scene.made:
        each.run()
    scene.change(settings("gate"), settings("yard", "0"))
    scene.streams.join(0.5)
    waited = [each.joined for each in scene.streams.all()]
    assert all(len(times) == 1 for times in waited)
    assert 0.5 >= waited[0][0] >= waited[1][0] >= waited[2][0] >= 0
