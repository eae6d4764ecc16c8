"""Listening: one connection to a broker that only subscribes.

Owns what a subscriber needs of paho, and the pace: what comes at QoS 1 is not acknowledged while much waits for its
reader, so that the broker waits. The socket is read all the while: a broker takes who reads no answer for dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edge_sdk.publishing.backlog import Backlog, Heard
from edge_sdk.publishing.dialect import Dialect
from edge_sdk.publishing.dialing import TRANSIENT_REASONS, Dialing, RefusedError, turned_away
from edge_sdk.publishing.link import NOT_AUTHORIZED, Phase
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.wakeup import Wakeup

LARGEST = 16_000_000
"""Bytes of a packet; a broker of MQTT 5 keeps larger ones to itself."""

_UNSPECIFIED = 0x80
_BAD_PASSWORD = 0x86
_QOS = 1
_WINDOW = 20  # messages that a broker may send before the first is acknowledged; Mosquitto's own default


class Listening:
    """One connection, and never used again after its end.

    Args:
        settings: which broker, and with which credentials.
        topics: what to subscribe to.
        backlog: where messages go.
        dialect: what the broker was found to understand.

    Attributes:
        phase: as of a `Link`; up once the broker granted the subscription.
        detail: why it was refused or lost, for people.
    """

    def __init__(self, settings: MqttSettings, topics: Sequence[str], backlog: Backlog, dialect: Dialect) -> None:
        self.phase: Phase = "opening"
        self.detail = ""
        self._settings, self._topics, self._backlog, self._dialect = settings, topics, backlog, dialect
        self._unanswered: dict[int, int] = {}  # QoS by number, of messages that are not acknowledged
        self._dialing = Dialing(settings, "", dialect.protocol)
        client = self._dialing.client
        client.manual_ack_set(True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message

    def open(self) -> None:
        """Connect; blocks for a few seconds at most.

        Raises:
            OSError: nobody answers.
        """
        try:
            self._dialing.open(_limits() if self._dialect.is_v5 else None)
        except RefusedError as cause:
            self.phase, self.detail = "refused", str(cause)

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Wait for the network or for `wakeup`, then do what there is to do."""
        self._acknowledge()
        if not self._dialing.turn(timeout_s, wakeup):
            self._end("lost", "connection closed")
        self._acknowledge()

    def close(self) -> None:
        """End it."""
        is_up = self.phase == "up"
        self._end("lost", "closed")
        self._dialing.close(politely=is_up)

    def _end(self, phase: Phase, detail: str) -> None:
        if self.phase in ("opening", "up"):
            self.phase, self.detail = phase, detail

    def _on_connect(
        self, client: mqtt.Client, _data: object, _flags: object, reason: ReasonCode, _answer: object
    ) -> None:
        if reason.is_failure:
            phase, detail = turned_away(reason, self._dialect)
            hint = ": give the right user and password" if reason.value in (_BAD_PASSWORD, NOT_AUTHORIZED) else ""
            self._end(phase, f"{detail}, {self._settings.login}{hint}" if phase == "refused" else detail)
        else:
            client.subscribe([(topic, _QOS) for topic in self._topics])

    def _on_subscribe(
        self, _client: object, _data: object, _mid: int, reasons: list[ReasonCode], _answer: object
    ) -> None:
        refused = [reason for reason in reasons if reason.is_failure]
        if refused:
            passes = refused[0].value in TRANSIENT_REASONS
            hint = "" if passes else f": its ACL must let this user read {self._topics[0]}"
            self._end("lost" if passes else "refused", f"{refused[0]}{hint}")
        elif self.phase == "opening":
            self.phase = "up"

    def _on_disconnect(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _answer: object
    ) -> None:
        is_opening = self.phase == "opening"
        complaint = self._dialing.complaint()
        if complaint and is_opening:
            self._end("refused", complaint)
        suspicion = self._dialing.suspicion() if is_opening else ""
        self._end("lost", f"connection lost{suspicion}" if reason.value == _UNSPECIFIED else str(reason))

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:  # no broker should let it pass
            topic = ""
        if topic:
            self._backlog.put(Heard(topic, bytes(message.payload), message.qos, bool(message.retain)))
        if message.qos:
            self._unanswered[message.mid] = message.qos

    def _acknowledge(self) -> None:
        """Have the broker send more, where there is room."""
        if self._unanswered and not self._backlog.is_half_full:
            for number, qos in self._unanswered.items():
                self._dialing.client.ack(number, qos)
            self._unanswered.clear()


def _limits() -> Properties:
    properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # see ways.py
    properties.MaximumPacketSize = LARGEST
    properties.ReceiveMaximum = _WINDOW
    packed: Properties = properties
    return packed
