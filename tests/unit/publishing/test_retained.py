"""When a device says what it has to say, by a manual clock: retained, single messages, and what a broker refuses."""

import math
from datetime import datetime, timezone

import msgspec
import pytest

from edge_sdk.messages.schema import Message, Topics
from edge_sdk.publishing.connection import NOT_AUTHORIZED, Incoming, PublishOutcome
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher
from edge_sdk.publishing.session import PublishWarnings
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.subscriber import ReceiveQueue
from edge_sdk.service.commands import CommandInbox
from tests.support.connections import FakeLink, door_over, put, until
from tests.support.results import IDENTITY, MODEL, make_detections, make_encoder, make_frame

_NOW = datetime(2026, 3, 2, 9, 15, 4, tzinfo=timezone.utc)
_TOPICS = Topics("edge/v1", "yard", "pi")


class Device:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.retained = RetainedPublisher(_TOPICS, lambda: self.now_s)
        self.state = DeviceState(IDENTITY, {}, self.retained)
        self.door = self.state.join("door", MODEL)
        self.retained.begin()

    def said(self) -> list[str]:
        return [message.topic.removeprefix("edge/v1/yard/pi/") for message in iter(self.retained.take, None)]

    def warn(self, line: str) -> None:
        self.state.warn(self.door, "hot", line)


def test_the_first_of_a_burst_goes_at_once_and_the_rest_together_after_a_second() -> None:
    device = Device()
    assert device.said() == ["status", "state"]
    assert device.retained.wait_s() == math.inf
    device.now_s += 60
    device.warn("70")
    assert device.retained.wait_s() == 0
    assert device.said() == ["state"]
    for degrees in range(71, 81):
        device.now_s += 0.0625
        device.warn(str(degrees))
        assert device.said() == []
    assert device.retained.wait_s() == 0.375
    device.now_s += 0.375
    [message] = iter(device.retained.take, None)
    assert message.kind == "state"
    assert msgspec.json.decode(message.payload)["cameras"]["door"]["warnings"] == {"hot": "80"}
    assert device.retained.wait_s() == math.inf


def test_a_full_outbox_does_not_keep_a_device_from_saying_how_it_does() -> None:
    link = FakeLink(window=3)
    link.pace, link.pause_s = 1, 0.001
    publisher, door = door_over(link)
    until(lambda: bool(link.cameras()))
    put(door, *range(500))
    door.warn("hot", "70")

    def has_said_so() -> bool:
        put(door, *range(200))
        return any("warnings" in cameras["door"] for cameras in link.cameras())

    until(has_said_so)
    assert publisher.stats().queued > 0
    link.pace, link.pause_s = 10**9, 0.0
    publisher.close()


def _taken(device: Device) -> list[tuple[str, bytes]]:
    return [(message.topic, message.payload) for message in iter(device.retained.take, None)]


def test_the_same_again_is_no_news_but_after_a_connection_or_on_request() -> None:
    device = Device()
    retained = device.retained
    retained.keep("discovery", "a", b"1")
    retained.keep("discovery", "b", b"")
    device.said()
    retained.keep("discovery", "a", b"1")
    assert retained.wait_s() == math.inf
    retained.begin()
    assert _taken(device)[2:] == [("a", b"1"), ("b", b"")]
    device.now_s += 1
    retained.repeat("a")
    retained.repeat("unknown")
    assert _taken(device) == [("a", b"1")]


def test_of_what_is_said_once_the_newest_wait_and_of_telemetry_one() -> None:
    device = Device()
    device.said()
    for payload in (b"1", b"2", b"3"):
        device.retained.put_telemetry(payload)
    assert device.retained.wait_s() == 0
    assert [payload for _, payload in _taken(device)] == [b"3"]
    assert device.retained.wait_s() == math.inf
    for number in range(40):
        device.retained.send(Message("r", b"%d" % number, kind="response"))
    assert [payload for _, payload in _taken(device)] == [b"%d" % number for number in range(8, 40)]


def _listening(link: FakeLink, inbox: CommandInbox) -> MqttPublisher:
    settings = MqttSettings(host="broker", port=1883, device="pi")
    return MqttPublisher(settings, IDENTITY, make_link=lambda: link, listens_to=["x/cmd"], receiver=inbox)


@pytest.mark.parametrize("is_finite", [True, False])
def test_what_is_seen_is_said_when_it_changes(is_finite: bool) -> None:
    link = FakeLink()
    publisher = _listening(link, CommandInbox())
    stream = publisher.stream("door", make_encoder())
    for number, count in enumerate((2, 2, 2, 0)):
        result = make_detections(count, make_frame(number))
        stream.report_seen(msgspec.structs.replace(result, is_finite=is_finite))
    if not is_finite:  # nothing is known of what there is: no count falls to 0 for that
        assert link.documents("seen") == []
    else:
        until(lambda: [d["total"] for d in link.documents("seen")][-1:] == [0])
        assert len(link.documents("seen")) <= 2
    stream.close()
    until(lambda: not is_finite or link.published[-1][1].payload == b"")
    publisher.close(5)


_TAKEN, _REFUSED = PublishOutcome(1), PublishOutcome(1, "Not authorized", NOT_AUTHORIZED)
_OURS, _THEIRS = "edge/v1/default/pi/", "homeassistant/device/pi/config"


class Refused:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.retained = RetainedPublisher(Topics("edge/v1", "default", "pi"), lambda: self.now_s)
        self.state = DeviceState(IDENTITY, {}, self.retained)
        self.refusals = PublishWarnings(self.state, lambda _line: None)

    def said(self, topic: str, answer: PublishOutcome = _REFUSED) -> str:
        return self.refusals.settle(topic, answer)

    @property
    def warning(self) -> str:
        warnings: dict[str, str] = msgspec.json.decode(self.state.state()).get("warnings", {})
        return warnings.get("messages_refused", "")


def test_topics_that_miss_one_right_are_said_once_and_another_right_for_itself() -> None:
    refused = Refused()
    first = refused.said(f"{_OURS}result/gate")
    assert first == (
        f"the broker did not take a message on {_OURS}result/gate: Not authorized; its ACL must let this device write "
        f"below {_OURS}"
    )
    assert refused.said(f"{_OURS}result/gate") == ""
    assert refused.said(f"{_OURS}result/yard") == ""
    assert refused.said(_THEIRS) == (
        f"the broker did not take a message on {_THEIRS}: Not authorized; its ACL must let this device write there"
    )
    assert refused.said(f"{_OURS}seen/gate", PublishOutcome(1, "Quota exceeded", 0x97)).endswith(
        "seen/gate: Quota exceeded"
    )
    assert refused.warning == first


def test_it_is_shown_until_all_is_taken_or_there_is_another_connection() -> None:
    refused = Refused()
    first, second = refused.said(f"{_OURS}result/gate"), refused.said(_THEIRS)
    assert refused.said(f"{_OURS}result/gate", _TAKEN) == ""
    assert refused.warning == second
    assert refused.said(f"{_OURS}status", _TAKEN) == ""
    assert refused.said(_THEIRS, _TAKEN) == ""
    assert refused.warning == ""
    refused.said(_THEIRS)
    refused.refusals.begin(FakeLink())
    assert refused.warning == ""
    assert refused.said(f"{_OURS}result/gate") == first


def test_what_is_retained_is_offered_again_in_a_minute() -> None:
    refused = Refused()
    retained = refused.retained
    retained.keep("discovery", _THEIRS, b"{}")
    assert [message.topic for message in iter(retained.take, None)][-1] == _THEIRS
    refused.said(_THEIRS)
    refused.said(f"{_OURS}result/gate")  # nothing is kept there
    refused.now_s += 59
    assert [message.topic for message in iter(retained.take, None)] == [f"{_OURS}state"]  # which says so
    assert retained.wait_s() == 1
    refused.now_s += 1
    found = retained.take()
    assert found is not None
    assert (found.topic, found.payload) == (_THEIRS, b"{}")


def test_answers_that_are_refused_are_one_however_their_topics_go_on() -> None:
    refused = Refused()
    said = [refused.said(f"{_OURS}res/{number}") for number in range(100)]
    assert [line.split(":")[0] for line in said if line] == [f"the broker did not take a message on {_OURS}res"]
    assert refused.said(f"{_OURS}res/other", _TAKEN) == refused.warning == ""
    refused.said(f"{_OURS}result/gate")
    assert "result/gate" in refused.warning


def _put(backlog: ReceiveQueue, number: int, size: int = 1) -> tuple[int, bool]:
    backlog.put(Incoming(str(number), b"x" * size))
    return backlog.lost, backlog.is_half_full


def _topics(backlog: ReceiveQueue) -> list[str]:
    return [heard.topic for heard in backlog.take(0)]


def test_there_is_room_for_so_many_and_again_once_they_are_read() -> None:
    backlog = ReceiveQueue(3)
    assert [_put(backlog, number) for number in range(5)] == [(0, False), (0, True), (0, True), (1, True), (2, True)]
    assert _topics(backlog) == ["0", "1", "2"]
    assert _put(backlog, 5) == (2, False)
    assert (_topics(backlog), _topics(backlog)) == (["5"], [])


def test_there_is_room_for_so_many_bytes_and_for_one_that_is_larger_alone() -> None:
    backlog = ReceiveQueue(100, 10)
    assert [_put(backlog, number, 4) for number in range(3)] == [(0, False), (0, True), (1, True)]
    assert _topics(backlog) == ["0", "1"]
    assert _put(backlog, 3, 20) == (1, True)
    assert _put(backlog, 4) == (2, True)
    assert _topics(backlog) == ["3"]
