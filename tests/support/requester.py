"""A client that sends commands and waits for answers, a device that takes them, and what Home Assistant sees."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
import jsonschema
import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edge_sdk.messages.schema import message_schema
from tests.support import configs
from tests.support.broker import WAIT_S, Broker, DeafBroker, PahoUser, wait_until
from tests.support.configs import AT_EASE, config_text
from tests.support.device import Device

DEVICE = "edge/v1/default/pi"
_ANSWER = jsonschema.Draft202012Validator(msgspec.json.decode(message_schema("response")))
ALL = ("pause", "set_threshold", "set_rate", "snapshot", "report_state", "reload")


def write_config(
    folder: Path, broker: Broker | DeafBroker, bundle: Path, *, allow: tuple[str, ...] | None = ALL,
    cameras: Mapping[str, str] | None = None, lines: str = "", protocol: str = "5",
) -> Path:  # fmt: skip
    """A device `pi` with cameras, by default one `gate` of numbered patterns, 20 a second."""
    pipelines = {name: {"source": source} for name, source in (cameras or {"gate": "pattern:320x240@20"}).items()}
    text = config_text(
        pipelines,
        mqtt={"url": broker.url, "protocol": protocol},
        commands=None if allow is None else {"allow": allow},
        defaults={**AT_EASE, "bundle": bundle},
    )
    return configs.write_config(folder, f"{text}{lines}")


@contextmanager
def running(config: Path) -> Iterator[Device]:
    """`edge-sdk run` of a configuration, ended as a service manager would."""
    with Device(config) as device:
        yield device
        assert (device.stop(), device.lines_with("bug")) == (0, []), device.said


class Requester(PahoUser):
    """An independent client; collects everything that is published."""

    def __init__(self, broker: Broker, *, is_v5: bool = True) -> None:
        self._is_v5 = is_v5
        self._numbers = itertools.count()
        self.messages: list[mqtt.MQTTMessage] = []
        super().__init__(broker, "#", protocol=MQTTProtocolVersion.MQTTv5 if is_v5 else MQTTProtocolVersion.MQTTv311)

    def publish(self, topic: str, payload: bytes | str, *, retain: bool = False, **properties: Any) -> None:
        packed = None
        if properties:
            packed = Properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(packed, name, value)
        self._client.publish(topic, payload, 1, retain, packed).wait_for_publish(WAIT_S)

    def ask(self, payload: bytes | Mapping[str, Any]) -> dict[str, Any]:
        """Send a command; its answer, on a topic of its own with the correlation data that was sent, or on `res`."""
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        before = len(self.messages)
        if not self._is_v5:
            self.publish(f"{DEVICE}/cmd", data)
            return self._answer(before, f"{DEVICE}/res", None)
        correlation = b"%d" % next(self._numbers)
        topic = f"{DEVICE}/res/test"
        self.publish(f"{DEVICE}/cmd", data, ResponseTopic=topic, CorrelationData=correlation)
        return self._answer(before, topic, correlation)

    def do(self, command: str, **fields: Any) -> dict[str, Any]:
        answer = self.ask({"command": command, **fields})
        assert answer["ok"], answer
        return answer

    def documents(self, ending: str, since: int = 0) -> list[dict[str, Any]]:
        """The messages on topics with this ending, without the empty ones that clear a topic."""
        found = [m for m in self.messages[since:] if m.topic.endswith(ending) and m.payload]
        return [msgspec.json.decode(m.payload) for m in found]

    def answers(self, since: int = 0) -> list[dict[str, Any]]:
        found = [m for m in self.messages[since:] if f"{DEVICE}/res" in m.topic and "/result" not in m.topic]
        return [msgspec.json.decode(m.payload) for m in found]

    def wait_results(self, count: int = 1, camera: str = "gate") -> list[dict[str, Any]]:
        before = len(self.messages)
        wait_until(lambda: len(self.documents(f"/result/{camera}", before)) >= count, f"{count} results")
        return self.documents(f"/result/{camera}", before)

    def wait_latest(self, condition: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
        """Wait until the latest results fulfil a condition: some of before a command come after its state."""
        before = len(self.messages)

        def holds() -> bool:
            latest = self.documents("/result/gate", before)[-5:]
            return len(latest) == 5 and condition(latest)

        wait_until(holds, what)

    def controls(self, camera: str = "gate") -> dict[str, Any]:
        states = [{}, *self.documents("/state")]
        found: dict[str, Any] = states[-1].get("cameras", {}).get(camera, {}).get("controls", {})
        return found

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        self.messages.append(message)

    def _answer(self, before: int, topic: str, correlation: bytes | None) -> dict[str, Any]:
        def found() -> list[mqtt.MQTTMessage]:
            came = (m for m in self.messages[before:] if m.topic == topic)
            return [m for m in came if getattr(m.properties, "CorrelationData", None) == correlation]

        wait_until(lambda: bool(found()), f"the answer on {topic}; answers: {self.answers(before)}")
        answer: dict[str, Any] = msgspec.json.decode(found()[0].payload)
        _ANSWER.validate(answer)
        return answer


# What Home Assistant makes of a device: entities of its discovery message, their states, what their controls send.

_ONCE = jinja2.Environment(autoescape=False)
_ONCE.filters["to_json"] = json.dumps


class Home:
    def __init__(self, requester: Requester, prefix: str = "homeassistant") -> None:
        self.requester, self.prefix = requester, prefix

    def discoveries(self, since: int = 0) -> list[Any]:
        """Messages of discovery, decoded; empty text where one was taken away."""
        found = [m for m in self.requester.messages[since:] if m.topic.startswith(f"{self.prefix}/device/")]
        return [json.loads(m.payload) if m.payload else "" for m in found]

    def wait_discovery(self, since: int = 0) -> Any:
        wait_until(lambda: bool(self.discoveries(since)), "discovery")
        return self.discoveries(since)[-1]

    def entity(self, component: str) -> dict[str, Any]:
        latest = self.discoveries()[-1]
        found: dict[str, Any] = {"availability": latest["availability"], **latest["components"][component]}
        return found

    def state(self, component: str) -> str | None:
        entity = self.entity(component)
        return self._value(entity["state_topic"], entity["value_template"])

    def is_available(self, component: str) -> bool:
        wanted = self.entity(component)["availability"]
        return all(self._value(each["topic"], each["value_template"]) == "online" for each in wanted)

    def wait_state(self, component: str, state: str) -> None:
        wait_until(lambda: self.state(component) == state, f"{component} {state}, is {self.state(component)}")

    def send(self, component: str, value: float | str) -> None:
        entity = self.entity(component)
        if entity["platform"] == "number":
            payload = _ONCE.from_string(entity["command_template"]).render(value=value)
        else:
            payload = entity[f"payload_{value}"]
        self.requester.publish(entity["command_topic"], payload)

    def birth(self, payload: str = "online") -> None:
        self.requester.publish(f"{self.prefix}/status", payload)

    def _value(self, topic: str, template: str) -> str | None:
        came = [m.payload for m in list(self.requester.messages) if m.topic == topic]
        if not came:
            return None
        return _ONCE.from_string(template).render(value_json=json.loads(came[-1]))
