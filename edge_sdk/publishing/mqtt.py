"""MqttLink: one connection to an MQTT broker. The only file that imports paho.

Owns paho's traps. A client is made for every connection, because paho keeps what it could not send: a message above the
new broker's limit would be sent again and again, and cost the connection each time. The publisher's thread does the
network's work itself, without paho's thread, whose back-off has no jitter and which an exception would end unnoticed.
"""

from __future__ import annotations

import select
import socket
import ssl
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edge_sdk.publishing.link import Kind, Phase
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.payload import SCHEMA_VERSION
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.wakeup import Wakeup

WINDOW = 20  # messages; Mosquitto's default receive maximum. paho queues QoS 0 without a limit: so much and no more
_CONNECT_TIMEOUT_S = 5.0
_RETAINED_QOS = 1
# Answers to CONNECT that pass by themselves: unavailable, busy, quota exceeded, rate exceeded. (MQTT 5.0, 3.2.2.2)
_TRANSIENT_REASONS = frozenset({0x88, 0x89, 0x97, 0x9F})
_UNSUPPORTED_PROTOCOL = 0x84
_UNSPECIFIED = 0x80  # what paho says of a connection that ended without a word
_TAKEN_OVER = 0x8E
_RIVAL = "another program has the same site and device, give each its own --device; this is"


class _Way(NamedTuple):
    """How messages of one kind travel."""

    qos: int
    retain: bool
    properties: Properties | None
    properties_bytes: int


class MqttLink:
    """One connection to one broker; see `Link`.

    Args:
        settings: which broker, and who we are there.
        will: JSON of the status that the broker publishes when the connection breaks.
        tls: made once for all connections, by `tls_context`.
    """

    def __init__(self, settings: MqttSettings, will: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.phase: Phase = "opening"
        self.detail = ""
        self.window = WINDOW
        self._settings = settings
        self._max_qos = 1  # of the broker
        self._max_packet: int | None = None
        self._finished: list[tuple[int, str]] = []
        self._is_v5 = settings.protocol == "5"
        self._ways: dict[Kind, _Way] = {
            "result": self._way("result", settings.qos, expiry_s=settings.expiry_s),
            "telemetry": self._way("telemetry", 0, expiry_s=settings.expiry_s),
            "status": self._way("status", _RETAINED_QOS, retain=True),
            "state": self._way("state", _RETAINED_QOS, retain=True),
        }
        self._client = self._make_client(will, tls)

    @property
    def is_acknowledging(self) -> bool:
        """Whether results go at QoS 1; see `Link.is_acknowledging`."""
        return min(self._settings.qos, self._max_qos) > 0

    def open(self) -> None:
        """Connect and send CONNECT; see `Link.open`."""
        self._client.connect(self._settings.host, self._settings.port, self._settings.keepalive_s)
        connection = self._client.socket()
        if isinstance(connection, socket.socket):
            # Otherwise a small message waits for the acknowledgement of the one before, 40 ms on many systems.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Wait, then read, write and probe; see `Link.turn`."""
        connection = self._client.socket()
        if connection is not None:
            poll = select.poll()
            poll.register(wakeup.fileno(), select.POLLIN)
            writes = select.POLLOUT if self._client.want_write() else 0
            poll.register(connection.fileno(), select.POLLIN | writes)
            # What TLS has decrypted already does not show on the socket.
            is_pending = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
            ready = dict(poll.poll(0 if is_pending else timeout_s * 1000))
            if wakeup.fileno() in ready:
                wakeup.clear()
            self._work(ready.get(connection.fileno(), 0) | (select.POLLIN if is_pending else 0))
        if self._client.socket() is None:
            self._lose("connection closed")

    def fits(self, kind: Kind, message: Message) -> bool:
        """Whether the packet stays within the broker's MaximumPacketSize."""
        if self._max_packet is None:
            return True
        way = self._ways[kind]
        # MQTT 5.0, 3.3: length and bytes of the topic, message id, properties, payload; before them type and length.
        message_id_bytes = 2 if min(way.qos, self._max_qos) else 0
        remaining = 2 + len(message.topic.encode()) + message_id_bytes + way.properties_bytes + len(message.payload)
        return 1 + _length_bytes(remaining) + remaining <= self._max_packet

    def publish(self, kind: Kind, message: Message) -> int:
        """Hand one message to paho; see `Link.publish`."""
        qos, retain, properties, _ = self._ways[kind]
        qos = min(qos, self._max_qos)
        return self._client.publish(message.topic, message.payload, qos, retain, properties).mid

    def finished(self) -> list[tuple[int, str]]:
        """What left or was answered since the last call; see `Link.finished`."""
        finished, self._finished = self._finished, []
        return finished

    def close(self, *, politely: bool) -> None:
        """End the connection; see `Link.close`."""
        if politely and self.phase == "up":
            self._client.disconnect()
        self._lose("closed")
        connection = self._client.socket()
        if connection is not None:  # DISCONNECT could not be written, or was not meant to be
            connection.close()

    def _make_client(self, will: bytes, tls: ssl.SSLContext | None) -> mqtt.Client:
        settings = self._settings
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if self._is_v5 else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
        )
        client.suppress_exceptions = True
        client.connect_timeout = _CONNECT_TIMEOUT_S
        if settings.username:
            client.username_pw_set(settings.username, settings.password.reveal() if settings.password else None)
        if tls is not None:
            client.tls_set_context(tls)
        properties = _properties(PacketTypes.WILLMESSAGE, "status") if self._is_v5 else None
        client.will_set(settings.topics.status, will, _RETAINED_QOS, retain=True, properties=properties)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        return client

    def _way(self, kind: Kind, qos: int, *, retain: bool = False, expiry_s: int | None = None) -> _Way:
        properties = _properties(PacketTypes.PUBLISH, kind, expiry_s) if self._is_v5 else None
        return _Way(qos, retain, properties, _packed_bytes(properties))

    def _work(self, ready: int) -> None:
        if ready & ~select.POLLOUT:  # readable, or an error that reading will name
            self._client.loop_read()
        if ready & select.POLLOUT:
            self._client.loop_write()
        self._client.loop_misc()

    def _lose(self, detail: str) -> None:
        if self.phase in ("opening", "up"):
            self.phase, self.detail = "lost", self.detail or detail

    def _on_connect(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, answer: Properties | None
    ) -> None:
        if reason.is_failure:
            self.phase = "lost" if reason.value in _TRANSIENT_REASONS else "refused"
            self.detail = _refusal(reason)
            return
        self.phase = "up"
        self._max_packet = getattr(answer, "MaximumPacketSize", None)
        self.window = min(WINDOW, getattr(answer, "ReceiveMaximum", WINDOW))
        self._max_qos = getattr(answer, "MaximumQoS", 1)

    def _on_disconnect(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _answer: object
    ) -> None:
        if reason.value == _TAKEN_OVER and self.phase == "up":
            # Refused, and not lost: the two would push each other out every second.
            self.phase, self.detail = "refused", f"{reason}: {_RIVAL} {self._settings.client_id}"
        self._lose("connection lost" if reason.value == _UNSPECIFIED else str(reason))

    def _on_publish(self, _client: object, _data: object, mid: int, reason: ReasonCode, _answer: object) -> None:
        self._finished.append((mid, str(reason) if reason.is_failure else ""))


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """A context that verifies the broker's certificate and host name; None where the settings want no encryption.

    Raises:
        OSError: the CA file is missing or holds no certificates.
    """
    if not settings.tls:
        return None
    return ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)


def _properties(packet_type: int, stream: str, expiry_s: int | None = None) -> Properties:
    # paho writes no types for this class, and takes its fields by __setattr__: no type could name them.
    properties: Any = Properties(packet_type)  # type: ignore[no-untyped-call]
    properties.PayloadFormatIndicator = 1
    properties.ContentType = "application/json"
    properties.UserProperty = [("schema", str(SCHEMA_VERSION)), ("stream", stream)]
    if expiry_s is not None:
        properties.MessageExpiryInterval = expiry_s
    packed: Properties = properties
    return packed


# Any for `Properties | None`: `pack` has no types, and mypy would refuse the call.
def _packed_bytes(properties: Any) -> int:
    return len(properties.pack()) if properties is not None else 0


def _length_bytes(length: int) -> int:
    """Bytes of a variable byte integer, seven bits each (MQTT 5.0, 1.5.5)."""
    return max(1, -(-length.bit_length() // 7))


def _refusal(reason: ReasonCode) -> str:
    hint = "; the broker knows no MQTT 5" if reason.value == _UNSUPPORTED_PROTOCOL else ""
    return f"{reason} (reason code {reason.value}){hint}"
