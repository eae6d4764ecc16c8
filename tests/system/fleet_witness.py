"""A subscriber to a whole fleet that keeps count, and shares no code with the publisher."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.system.broker import Broker, wait_until
from tests.system.paho_user import PahoUser


class Status(NamedTuple):
    """One status as it came; `at` is in monotonic seconds."""

    at: float
    status: str
    reason: str
    boot_id: str
    run_id: str
    retain: bool


class Results:
    """Of one run of one device."""

    def __init__(self) -> None:
        self.count, self.highest = 0, -1

    @property
    def missing(self) -> int:
        """Numbers that did not come, up to the highest that did."""
        return self.highest + 1 - self.count


class _Document(msgspec.Struct):
    run_id: str
    boot_id: str = ""
    seq: int = 0
    captured_at: datetime | None = None
    status: str = ""
    reason: str = ""


class FleetWitness(PahoUser):
    """One subscriber with a session that outlives its connections; the broker's configuration is its own.

    Args:
        broker: where.
        username: who; everybody by default.
        password: of whom.

    Attributes:
        kinds: messages by kind.
        results: by device and run.
        delays_ms: of results, from capture to here; the publisher's encoding is in it.
        events: how often each came, by device and number.
        conflicts: numbers that came with two contents.
        statuses: by device, in order.
        subscriptions: that the broker answered.
    """

    def __init__(self, broker: Broker, *, username: str | None = None, password: str | None = None) -> None:
        self.kinds: Counter[str] = Counter()
        self.results: dict[tuple[str, str], Results] = defaultdict(Results)
        self.delays_ms: list[float] = []
        self.events: Counter[tuple[str, int]] = Counter()
        self.conflicts: list[tuple[str, int]] = []
        self.statuses: dict[str, list[Status]] = defaultdict(list)
        self.subscriptions = 0
        self._contents: dict[tuple[str, int], bytes] = {}
        self._decode = msgspec.json.Decoder(_Document).decode
        session: Any = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="witness", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.reconnect_delay_set(1, 1)
        self._client.username_pw_set(username, password)
        self._client.on_connect = lambda client, *_: client.subscribe("edge/v1/#", qos=1)
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.connect(broker.host, broker.port, clean_start=False, properties=session)
        self._client.loop_start()
        wait_until(lambda: self.subscriptions > 0, "the subscription")

    def latest(self) -> dict[str, Status]:
        """Of every device."""
        return {device: statuses[-1] for device, statuses in list(self.statuses.items())}

    def count(self, status: str) -> int:
        """Devices of which this is the latest status."""
        return sum(said.status == status for said in self.latest().values())

    def since(self, moment: float, status: str) -> list[tuple[str, Status]]:
        """What came after a moment, and not because it was retained."""
        return [
            (device, said)
            for device, statuses in list(self.statuses.items())
            for said in statuses
            if said.at > moment and said.status == status and not said.retain
        ]

    def lacking(self, acknowledged: dict[str, set[int]]) -> list[tuple[str, int]]:
        """Those of these that did not come."""
        return [
            (device, seq)
            for device, numbers in list(acknowledged.items())
            for seq in sorted(numbers)
            if (device, seq) not in self.events
        ]

    def _on_subscribe(self, *_: object) -> None:
        self.subscriptions += 1

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        now, at = time.time(), time.monotonic()
        _, _, _, device, kind, *_ = message.topic.split("/")
        self.kinds[kind] += 1
        if kind not in ("result", "event", "status"):
            return
        said = self._decode(message.payload)
        if kind == "result":
            results = self.results[device, said.run_id]
            results.count += 1
            results.highest = max(results.highest, said.seq)
            if said.captured_at is not None:
                self.delays_ms.append((now - said.captured_at.timestamp()) * 1000)
        elif kind == "event":
            key = (device, said.seq)
            if self._contents.setdefault(key, message.payload) != message.payload:
                self.conflicts.append(key)
            self.events[key] += 1
        else:
            self.statuses[device].append(
                Status(at, said.status, said.reason, said.boot_id, said.run_id, message.retain)
            )
