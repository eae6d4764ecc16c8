"""What Home Assistant is told, as a value: ids, what is left out, what is taken away, and names that are no code."""

import json
import re
from typing import Any

import jinja2
import msgspec

from edge_sdk.messages.commands import PERMISSIONS, SetRate, SetThreshold
from edge_sdk.messages.schema import Topics
from edge_sdk.publishing.discovery import (
    CameraTraits,
    DiscoveredMachine,
    Discovery,
    HomeAssistantSettings,
    command_template,
    field,
)

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
    assert "count_person-gate" in both
    assert not {"count_cat-gate", "count_dog-gate", "confidence-door", "rate-door", "count-door"} & set(both)
    assert both["label-door"]["state_topic"].endswith("/seen/door")
    pictured = msgspec.structs.replace(GATE, has_pictures=True)
    shown = _components(_discovery(allowed=()), pictured, DOOR)
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
    environment = jinja2.Environment(autoescape=False)
    environment.filters["to_json"] = json.dumps
    template = environment.from_string(event["value_template"])
    told_of = {"label": 'a "dog"', "confidence": 0.5, "at": "2026-03-02T09:15:12Z", "seq": 7}
    message = {**told_of, "kind": "appeared", "box_xyxy": [1, 2, 3, 4]}
    assert json.loads(template.render(value_json=message)) == {**told_of, "event_type": "appeared"}
    assert template.render(value_json={**message, "kind": "counted"}) == ""


def test_a_temperature_that_cannot_be_read_is_not_shown_and_one_not_tried_yet_stays_as_it_was() -> None:
    discovery = _discovery()
    found = [
        json.loads(discovery.message([GATE], (), DiscoveredMachine(has_temperature=can)))["components"].get(
            "temperature"
        )
        for can in (None, True, None, False)
    ]
    assert found[1] is not None
    assert "unique_id" in found[1]
    assert [found[0], *found[2:]] == [None, None, {"platform": "sensor"}]


def test_the_slider_takes_what_the_command_takes() -> None:
    [rate] = [order for order in msgspec.json.schema_components([SetRate])[1].values() if "max_fps" in str(order)]
    bounds = rate["properties"]["max_fps"]
    slider = _components(_discovery(), GATE)["rate-gate"]
    assert (slider["min"], slider["max"]) == (bounds["minimum"], bounds["maximum"])


def test_an_entity_that_goes_is_taken_away_until_it_comes_back() -> None:
    discovery = _discovery()
    before = _components(discovery, GATE, DOOR)
    for _ in range(2):  # also by a message that overtakes the first one
        after = _components(discovery, GATE)
        assert set(after) == set(before)
        assert after["label-door"] == {"platform": "sensor"}
    other = _discovery(allowed=(), before=discovery)
    assert _components(other, GATE)["switch-gate"] == {"platform": "switch"}
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
    assert len({_discovery(device).topic for device in devices}) == len(devices)
    assert all(_discovery(device).topic.split("/")[2].replace("_", "").isalnum() for device in ["gate s", "Tor ü"])
    clashing = [CameraTraits(name=name, task="detection", labels=("a", "a-b")) for name in ("c", "b-c")]
    both = _components(_discovery(labels=("a", "a-b")), *clashing)
    assert len(both) == 1 + 2 * (len(_components(_discovery(labels=("a", "a-b")), clashing[0])) - 1)
    like = ("a b", "a-b", "a_b", "a.b")
    cameras = [CameraTraits(name=name, task="detection", labels=like) for name in [*NAMES, "count_a_b"]]
    components = _components(_discovery(labels=like), *cameras)
    ids = {entity["unique_id"] for entity in components.values()}
    one = len(_components(_discovery(labels=like), cameras[0])) - 1  # all but the temperature, which is the device's
    assert len(ids) == 1 + len(cameras) * one
    assert all(re.fullmatch("[A-Za-z0-9_-]+", component) for component in ids)


def test_a_name_is_a_name_in_every_template() -> None:
    environment = jinja2.Environment(autoescape=False)
    environment.filters["to_json"] = json.dumps
    for name in NAMES:
        state = {"cameras": {name: {"source": "opened"}}}
        assert environment.from_string(field("cameras", name, "source")).render(value_json=state) == "opened"
        assert environment.from_string(field("cameras", name, "fps")).render(value_json=state) == "None"
        template = command_template(SetThreshold(camera=name, confidence=1), "confidence")
        sent = json.loads(environment.from_string(template).render(value=0.5))
        assert sent == {"command": "set_threshold", "camera": name, "confidence": 0.5}
