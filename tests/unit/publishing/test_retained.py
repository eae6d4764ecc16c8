"""When a device says what it has to say, by a manual clock: retained, single messages, and what a broker refuses."""

import json
import math
import re
from typing import Any

import jinja2
import msgspec

from edge_sdk.messages.commands import PERMISSIONS, SetThreshold
from edge_sdk.messages.schema import Incoming, Message, Topics
from edge_sdk.publishing.discovery import CameraTraits, Discovery, HomeAssistantSettings, command_template, field
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher
from edge_sdk.publishing.session import PublishWarnings
from edge_sdk.publishing.settings import NOT_AUTHORIZED, PublishOutcome
from edge_sdk.publishing.subscriber import ReceiveQueue
from tests.support.connections import FakeLink, door_over, put, until
from tests.support.results import IDENTITY, MODEL

_TAKEN, _REFUSED = PublishOutcome(1), PublishOutcome(1, "Not authorized", NOT_AUTHORIZED)
_OURS, _THEIRS = "edge/v1/default/pi/", "homeassistant/device/pi/config"


class Device:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.retained = RetainedPublisher(Topics("edge/v1", "default", "pi"), lambda: self.now_s)
        self.state = DeviceState(IDENTITY, {}, self.retained)
        self.door = self.state.join("door", MODEL)
        self.refusals = PublishWarnings(self.state, lambda _line: None)
        self.retained.begin()

    def said(self) -> list[str]:
        return [message.topic.removeprefix(_OURS) for message in iter(self.retained.take, None)]

    def warn(self, line: str) -> None:
        self.state.warn(self.door, "hot", line)

    def refused(self, topic: str, answer: PublishOutcome = _REFUSED) -> str:
        return self.refusals.settle(topic, answer)

    @property
    def warning(self) -> str:
        warnings: dict[str, str] = msgspec.json.decode(self.state.state()).get("warnings", {})
        return warnings.get("messages_refused", "")


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
    [(topic, payload)] = _taken(device.retained)
    assert (topic, b'"warnings":{"hot":"80"}' in payload) == (f"{_OURS}state", True)
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


def _taken(retained: RetainedPublisher) -> list[tuple[str, bytes]]:
    return [(message.topic, message.payload) for message in iter(retained.take, None)]


def test_the_same_again_is_no_news_but_after_a_connection_or_on_request() -> None:
    device = Device()
    retained = device.retained
    retained.keep("discovery", "a", b"1")
    retained.keep("discovery", "b", b"")
    device.said()
    retained.keep("discovery", "a", b"1")
    assert retained.wait_s() == math.inf
    retained.begin()
    assert _taken(device.retained)[2:] == [("a", b"1"), ("b", b"")]
    device.now_s += 1
    retained.repeat("a")
    retained.repeat("unknown")
    assert _taken(device.retained) == [("a", b"1")]


def test_of_what_is_said_once_the_newest_wait_and_of_telemetry_one() -> None:
    device = Device()
    device.said()
    for payload in (b"1", b"2", b"3"):
        device.retained.put_telemetry(payload)
    assert device.retained.wait_s() == 0
    assert [payload for _, payload in _taken(device.retained)] == [b"3"]
    assert device.retained.wait_s() == math.inf
    for number in range(40):
        device.retained.send(Message("r", b"%d" % number, kind="response"))
    assert [payload for _, payload in _taken(device.retained)] == [b"%d" % number for number in range(8, 40)]


def test_what_is_seen_stands_on_its_topic_until_the_stream_ends() -> None:
    link = FakeLink()
    publisher, stream = door_over(link)
    stream.report_seen({"dog": 1, "cat": 2})
    until(lambda: [(d["total"], d["labels"]) for d in link.documents("seen")] == [(3, {"cat": 2, "dog": 1})])
    stream.close()
    until(lambda: link.published[-1][1].payload == b"")
    publisher.close(5)


def test_topics_that_miss_one_right_are_said_once_and_another_right_for_itself() -> None:
    device = Device()
    first = device.refused(f"{_OURS}result/gate")
    assert first.endswith(f" on {_OURS}result/gate: Not authorized; its ACL must let this device write below {_OURS}")
    assert [device.refused(f"{_OURS}result/{camera}") for camera in ("gate", "yard")] == ["", ""]
    assert device.refused(_THEIRS).endswith(f" on {_THEIRS}: Not authorized; its ACL must let this device write there")
    full = device.refused(f"{_OURS}seen/gate", PublishOutcome(1, "Quota exceeded", 0x97))
    assert full.endswith("seen/gate: Quota exceeded")
    assert device.warning == first


def test_it_is_shown_until_all_is_taken_or_there_is_another_connection() -> None:
    device = Device()
    first, second = device.refused(f"{_OURS}result/gate"), device.refused(_THEIRS)
    assert device.refused(f"{_OURS}result/gate", _TAKEN) == ""
    assert device.warning == second
    assert device.refused(f"{_OURS}status", _TAKEN) == ""
    assert device.refused(_THEIRS, _TAKEN) == ""
    assert device.warning == ""
    device.refused(_THEIRS)
    device.refusals.begin(FakeLink())
    assert device.warning == ""
    assert device.refused(f"{_OURS}result/gate") == first


def test_what_is_retained_is_offered_again_in_a_minute() -> None:
    device = Device()
    retained = device.retained
    retained.keep("discovery", _THEIRS, b"{}")
    assert _taken(retained)[-1][0] == _THEIRS
    device.refused(_THEIRS)
    device.refused(f"{_OURS}result/gate")  # nothing is kept there
    device.now_s += 59
    assert [topic for topic, _ in _taken(retained)] == [f"{_OURS}state"]  # which says so
    assert retained.wait_s() == 1
    device.now_s += 1
    assert _taken(retained) == [(_THEIRS, b"{}")]


def test_answers_that_are_refused_are_one_however_their_topics_go_on() -> None:
    device = Device()
    said = [device.refused(f"{_OURS}res/{number}") for number in range(100)]
    assert [line.split(":")[0] for line in said if line] == [f"the broker did not take a message on {_OURS}res"]
    assert device.refused(f"{_OURS}res/other", _TAKEN) == device.warning == ""
    device.refused(f"{_OURS}result/gate")
    assert "result/gate" in device.warning


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


# What Home Assistant is told, as a value: ids, what is left out, what is taken away, and names that are no code.

_ENVIRONMENT = jinja2.Environment(autoescape=False)
_ENVIRONMENT.filters["to_json"] = json.dumps
GATE = CameraTraits(name="gate", task="detection", labels=("person", "dog"))
DOOR = CameraTraits(
    name="door", task="classification", labels=("open", "shut"), refusals={"confidence": "no", "max_fps": "no"}
)
NAMES = ["gate", "a b", "Tür", 'a"b', "a'b", "a\\b", "{{ 7*7 }}", "{% x %}", "a}}b", "😀", "-", "_", "\\u0041", "%s"]


def _discovery(
    device: str = "pi", *, allowed: Any = PERMISSIONS, labels: tuple[str, ...] = ("person", "cat"), before: Any = None
) -> Discovery:
    settings = HomeAssistantSettings(labels=labels)
    return Discovery(settings, Topics("edge/v1", "yard", device), allowed, "1.2", before)


def _components(discovery: Discovery, *cameras: CameraTraits) -> dict[str, Any]:
    components: dict[str, Any] = json.loads(discovery.message(cameras))["components"]
    return components


def test_what_there_is_depends_on_the_task_and_on_what_is_allowed() -> None:
    both = _components(_discovery(), GATE, DOOR)
    assert {"count_person-gate", "label-door"} <= set(both)
    assert not {"count_cat-gate", "count_dog-gate", "confidence-door", "rate-door", "count-door"} & set(both)
    shown = _components(_discovery(allowed=()), msgspec.structs.replace(GATE, has_pictures=True), DOOR)
    assert shown["snapshot-gate"]["image_topic"] == "edge/v1/yard/pi/snapshot/gate"
    assert not {"take_snapshot-gate", "snapshot-door"} & set(shown)
    silent = _components(_discovery(allowed=()), GATE)
    assert not any("command_topic" in entity or entity["platform"] == "image" for entity in silent.values())


def test_what_appears_and_disappears_is_an_event_with_what_an_automation_asks_for() -> None:
    told = msgspec.structs.replace(GATE, tells_events=True)
    assert not any("events" in name for name in _components(_discovery(), GATE))
    event = _components(_discovery(allowed=()), told)["events-gate"]
    assert (event["platform"], event["event_types"]) == ("event", ["appeared", "disappeared"])
    assert (event["state_topic"], event["qos"]) == ("edge/v1/yard/pi/event/gate", 1)
    template = _ENVIRONMENT.from_string(event["value_template"])
    told_of = {"label": 'a "dog"', "confidence": 0.5, "at": "2026-03-02T09:15:12Z", "seq": 7}
    message = {**told_of, "kind": "appeared", "box_xyxy": [1, 2, 3, 4]}
    assert json.loads(template.render(value_json=message)) == {**told_of, "event_type": "appeared"}
    assert template.render(value_json={**message, "kind": "counted"}) == ""


def test_an_entity_that_goes_is_taken_away_until_it_comes_back() -> None:
    discovery = _discovery()
    before = _components(discovery, GATE, DOOR)
    for _ in range(2):  # also by a message that overtakes the first one
        after = _components(discovery, GATE)
        assert set(after) == set(before)
        assert after["label-door"] == {"platform": "sensor"}
    assert _components(_discovery(allowed=(), before=discovery), GATE)["switch-gate"] == {"platform": "switch"}
    assert "unique_id" in _components(discovery, GATE, DOOR)["label-door"]


def test_a_camera_that_is_not_there_yet_keeps_its_entities() -> None:
    before, after = _discovery(), _discovery()
    after.learn(before.message([GATE, DOOR]))
    components = json.loads(after.message([GATE], awaited=["door"]))["components"]
    assert not any(name.endswith("-door") for name in components)  # Home Assistant leaves as it is what is not named
    assert _components(after, GATE)["label-door"] == {"platform": "sensor"}


def test_what_an_earlier_run_told_is_taken_away_and_nothing_else_of_it_is_believed() -> None:
    before, after = _discovery(), _discovery()
    payload = before.message([GATE, DOOR])
    assert after.learn(payload)
    assert not after.learn(payload)
    assert _components(after, GATE)["label-door"] == {"platform": "sensor"}
    assert set(_components(after, GATE)) == set(_components(before, GATE, DOOR))
    for hostile in (b"", b"{", b"[]", b"\xff", b'{"components":7}', b'{"components":{"a":{"platform":"lock"}}}'):
        assert not _discovery().learn(hostile)
    assert not _discovery().learn(b'{"components":{"a b{{x}}":{"platform":"sensor"}}}')
    many = {"components": {f"x{number}": {"platform": "sensor"} for number in range(5000)}}
    assert after.learn(json.dumps(many).encode())
    assert len(_components(after, GATE)) <= 2100


def test_devices_and_cameras_of_like_names_have_ids_of_their_own() -> None:
    devices = ["gate's", "gate s", "gate_s", "gate-s", "Tor ü", "Tor ö"]
    topics = {_discovery(device).topic for device in devices}
    assert len(topics) == len(devices)
    like = ("a b", "a-b", "a_b", "a.b")
    cameras = [CameraTraits(name=name, task="detection", labels=like) for name in [*NAMES, "count_a_b"]]
    ids = {entity["unique_id"] for entity in _components(_discovery(labels=like), *cameras).values()}
    one = len(_components(_discovery(labels=like), cameras[0])) - 1  # all but the temperature, which is the device's
    assert len(ids) == 1 + len(cameras) * one
    assert all(re.fullmatch("[A-Za-z0-9_-]+", name) for name in [*ids, *(topic.split("/")[2] for topic in topics)])


def test_a_name_is_a_name_in_every_template() -> None:
    for name in NAMES:
        state = {"cameras": {name: {"source": "opened"}}}
        for key, shown in (("source", "opened"), ("fps", "None")):
            assert _ENVIRONMENT.from_string(field("cameras", name, key)).render(value_json=state) == shown
        template = command_template(SetThreshold(camera=name, confidence=1), "confidence")
        sent = json.loads(_ENVIRONMENT.from_string(template).render(value=0.5))
        assert sent == {"command": "set_threshold", "camera": name, "confidence": 0.5}
