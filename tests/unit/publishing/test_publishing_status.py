"""What a device says of itself: its status, the state of its cameras, and its doubts, after a break too."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

import msgspec
import pytest

from edge_sdk.messages.schema import Running, SourceState, Topics
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher
from edge_sdk.publishing.session import PublishWarnings
from edge_sdk.tasks.entry import ModelRef
from tests.support.connections import FakeLink, door_over, has_connected, put, until
from tests.support.results import IDENTITY, make_encoder

OTHER = ModelRef("other", 1, "1" * 64)
SINCE = datetime(2026, 3, 2, 10, 15, 4, tzinfo=timezone(timedelta(hours=1)))
MODEL_JSON = {"name": "tiny", "version": 3, "sha256": "0" * 64}


def _running(reason: str) -> Running:
    return Running(variant="int8", every=1, rung=0, rungs=2, reason=reason)


def _last(link: FakeLink) -> dict[str, Any]:
    return link.cameras()[-1] if link.cameras() else {}


def _says(link: FakeLink, key: str, value: object, camera: str = "door") -> Callable[[], bool]:
    return lambda: _last(link).get(camera, {}).get(key) == value


@pytest.fixture(autouse=True)
def _what_a_device_says_goes_out_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a burst is gathered, the tests of notices show by a manual clock."""
    monkeypatch.setattr("edge_sdk.publishing.retained._EVERY_S", 0.05)


def test_what_is_said_of_a_camera_is_in_the_state_now_and_after_a_break() -> None:
    first, second = FakeLink(), FakeLink()
    publisher, door = door_over(first, second)
    until(lambda: bool(first.cameras()))
    door.warn("hung", "a run came to no end")
    door.warn("not_finite", "nothing is known")
    door.warn("hung", "")
    door.report_running(_running("start"))
    door.report_source(SourceState(status="lost", trouble="connection refused", since=SINCE))
    until(_says(first, "source", "lost"))
    first.drop("gone")
    until(lambda: bool(second.cameras()))
    publisher.close()
    expected = {
        "source": "lost",
        "trouble": "connection refused",
        "since": "2026-03-02T09:15:04Z",
        "running": {"variant": "int8", "every": 1, "rung": 0, "rungs": 2, "reason": "start"},
        "warnings": {"not_finite": "nothing is known"},
    }
    assert first.cameras()[0] == {"door": {}}
    assert first.cameras()[-1] == second.cameras()[0] == {"door": expected}
    assert [kind for kind, _ in second.published] == ["status", "state", "status"]
    assert second.contents() == ["online", "offline"]


def test_what_is_said_right_before_the_goodbye_is_said() -> None:
    link = FakeLink()
    publisher, door = door_over(link)
    gate = publisher.stream("gate", make_encoder())
    until(lambda: "gate" in _last(link))
    door.report_running(_running("first"))
    door.report_running(_running("last"))
    gate.close()
    publisher.close()
    assert _last(link)["door"]["running"]["reason"] == "last"
    assert "gate" not in _last(link)
    assert (link.published[-1][0], link.contents()[-1]) == ("status", "offline")


def test_a_camera_that_leaves_is_gone_and_its_results_arrive() -> None:
    link = FakeLink(window=4, answers=False)
    publisher, door = door_over(link)
    gate = publisher.stream("gate", make_encoder())
    until(has_connected(publisher, 1))
    put(gate, *range(10))
    gate.close()
    gate.close()
    put(gate, 10)
    link.answers = True
    until(lambda: _last(link) == {"door": {}})
    until(lambda: link.documents("status")[-1]["cameras"] == {"door": MODEL_JSON})
    put(door, 1)
    publisher.close()
    assert [d["seq"] for d in link.documents("result")] == [*range(10), 1]


@pytest.mark.parametrize("how", ["another model", "close and again"])
def test_a_stream_takes_a_camera_over_and_nothing_is_lost(how: Literal["another model", "close and again"]) -> None:
    link = FakeLink(answers=False)
    publisher, before = door_over(link)
    before.report_source(SourceState(status="opened", since=SINCE))
    before.warn("hung", "of the old model")
    put(before, *range(5))
    if how == "close and again":
        before.close()
    after = publisher.stream("door", make_encoder(model=OTHER))
    put(before, 90)
    before.warn("late", "nobody listens")
    before.close()
    put(after, *range(5))  # its source counts from 0
    link.answers = True
    until(lambda: publisher.stats().sent == 10)
    until(lambda: link.documents("status")[-1]["cameras"].get("door", {}).get("name") == "other")
    source = "opened" if how == "another model" else None

    def is_over() -> bool:
        door = _last(link).get("door")
        return door is not None and "warnings" not in door and door.get("source") == source

    until(is_over)
    publisher.close()
    results = link.documents("result")
    assert [(d["seq"], d["model"]["name"]) for d in results] == [
        *[(number, "tiny") for number in range(5)],
        *[(number, "other") for number in range(5, 10)],
    ]
    assert len({d["run_id"] for d in results}) == 1
    assert (after.stats().put, after.stats().sent) == (10, 10)


_DAY_S = 24 * 60 * 60


def _warnings(state: DeviceState) -> dict[str, str]:
    found: dict[str, str] = msgspec.json.decode(state.state()).get("warnings", {})
    return found


def test_a_connection_that_holds_is_looked_at_once_a_day() -> None:
    said = list[str]()
    state = DeviceState(IDENTITY, {}, RetainedPublisher(Topics("edge/v1", "default", "pi")))
    link, doubts = FakeLink(), PublishWarnings(state, said.append)
    doubts.begin(link)
    link.doubtful = {"broker_certificate": "ends soon"}
    doubts.look_daily(link)
    assert _warnings(state) == {}
    doubts._look_at -= _DAY_S
    doubts.look_daily(link)
    assert (_warnings(state), said) == ({"broker_certificate": "ends soon"}, ["ends soon"])
    link.doubtful = {"broker_certificate": ""}
    doubts.look_daily(link)
    assert "broker_certificate" in _warnings(state)
    doubts._look_at -= _DAY_S
    doubts.look_daily(link)
    assert (_warnings(state), said) == ({}, ["ends soon"])
