"""A client that sends commands and waits for their answers, and a daemon that takes them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.broker import WAIT_S, Broker, PahoUser, wait_until
from tests.support.program import start_edge_sdk

DEVICE = "edge/v1/default/pi"
ALL = ("pause", "set_threshold", "set_rate", "snapshot", "report_state", "reload")


def write_config(
    path: Path,
    broker: Broker,
    bundle: Path,
    *,
    allow: tuple[str, ...] | None = ALL,
    cameras: Mapping[str, str] | None = None,
    lines: str = "",
    protocol: str = "5",
) -> Path:
    """A device `pi` with cameras, by default one `gate` of numbered patterns, 20 a second."""
    pipelines = "".join(
        f'[[pipelines]]\nname = "{name}"\nsource = "{source}"\nbundle = "{bundle}"\nlatency_ms = 5000\ntune = false\n'
        for name, source in (cameras or {"gate": "pattern:320x240@20"}).items()
    )
    commands = "" if allow is None else f"[commands]\nallow = {msgspec.json.encode(allow).decode()}\n"
    path.write_text(
        f'version = 1\n[device]\nname = "pi"\n[mqtt]\nurl = "{broker.url}"\nprotocol = "{protocol}"\n'
        f"{commands}{lines}{pipelines}",
        encoding="utf-8",
    )
    return path


@contextmanager
def running(config: Path) -> Iterator[list[str]]:
    """`edge-sdk run` of a configuration, ended as a service manager would; gives the lines that it says."""
    lines: list[str] = []
    with start_edge_sdk("run", "--config", config) as process:
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            yield lines
        finally:
            process.terminate()
            code = process.wait(WAIT_S)
            reader.join(WAIT_S)
    assert (code, [line for line in lines if "bug" in line]) == (0, []), "".join(lines)


class Requester(PahoUser):
    """An independent client; collects everything that is published."""

    def __init__(self, broker: Broker, *, is_v5: bool = True) -> None:
        self._is_v5 = is_v5
        self._numbers = itertools.count()
        self.messages: list[mqtt.MQTTMessage] = []
        super().__init__(broker, "#", protocol=MQTTProtocolVersion.MQTTv5 if is_v5 else MQTTProtocolVersion.MQTTv311)

    def publish(self, topic: str, payload: bytes | str, *, retain: bool = False, **properties: Any) -> None:
        """Publish, and wait until the broker has it."""
        packed = None
        if properties:
            packed = Properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(packed, name, value)
        self._client.publish(topic, payload, 1, retain, packed).wait_for_publish(WAIT_S)

    def ask(self, payload: bytes | Mapping[str, Any], *, retain: bool = False) -> dict[str, Any]:
        """Send a command; its answer, on a topic of its own with the correlation data that was sent, or on `res`."""
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        before = len(self.messages)
        if not self._is_v5:
            self.publish(f"{DEVICE}/cmd", data, retain=retain)
            return self._answer(before, f"{DEVICE}/res", None)
        correlation = b"%d" % next(self._numbers)
        topic = f"{DEVICE}/res/test"
        self.publish(f"{DEVICE}/cmd", data, retain=retain, ResponseTopic=topic, CorrelationData=correlation)
        return self._answer(before, topic, correlation)

    def do(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command that is carried out."""
        answer = self.ask({"command": command, **fields})
        assert answer["ok"], answer
        return answer

    def documents(self, ending: str, since: int = 0) -> list[dict[str, Any]]:
        """What came on topics with this ending; nothing of what was taken away."""
        found = [m for m in self.messages[since:] if m.topic.endswith(ending) and m.payload]
        return [msgspec.json.decode(m.payload) for m in found]

    def answers(self, since: int = 0) -> list[dict[str, Any]]:
        """All answers, wherever they went."""
        found = [m for m in self.messages[since:] if f"{DEVICE}/res" in m.topic and "/result" not in m.topic]
        return [msgspec.json.decode(m.payload) for m in found]

    def wait_results(self, count: int = 1, camera: str = "gate") -> list[dict[str, Any]]:
        """So many more results of a camera."""
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
        """What the latest state says that commands have set."""
        states = [{}, *self.documents("/state")]
        found: dict[str, Any] = states[-1].get("cameras", {}).get(camera, {}).get("controls", {})
        return found

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        self.messages.append(message)

    def _answer(self, before: int, topic: str, correlation: bytes | None) -> dict[str, Any]:
        def found() -> list[mqtt.MQTTMessage]:
            return [
                m
                for m in self.messages[before:]
                if m.topic == topic and getattr(m.properties, "CorrelationData", None) == correlation
            ]

        wait_until(lambda: bool(found()), f"the answer on {topic}; answers: {self.answers(before)}")
        answer: dict[str, Any] = msgspec.json.decode(found()[0].payload)
        return answer
