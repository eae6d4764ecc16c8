"""Ways: how messages of each kind travel: quality of service, retention, and MQTT 5's properties.

Owns what a message costs in paho: its properties are packed once a connection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers

from edge_sdk.publishing.link import Kind
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.payload import SCHEMA_VERSION
from edge_sdk.publishing.settings import MqttSettings

RETAINED_QOS = 1
ANSWER_EXPIRY_S = 60  # nobody waits longer for an answer
_REPEATED = b"\x26\x00\x08repeated\x00\x011"
_MOST_INCOMING_BYTES = 65536  # of one packet; a broker that knows MQTT 5 keeps larger ones


class Way(NamedTuple):
    """How messages of one kind travel."""

    qos: int
    retain: bool
    properties: Numbered | None


class Numbered(Properties):
    """Properties that differ in a message's number and in one mark: packing them anew costs ten times as much."""

    def __init__(self, base: Properties) -> None:
        # As below: paho writes no types for what packs.
        super().__init__(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        packed = base.pack()  # type: ignore[no-untyped-call]
        _, prefix_bytes = VariableByteIntegers.decode(packed)  # type: ignore[no-untyped-call]
        self.__dict__.update(_packed=packed, _rest=packed[prefix_bytes:])  # past paho's check of attributes

    def pack(self) -> bytes:
        """What paho asks for when it writes a packet."""
        packed: bytes = self.__dict__["_packed"]
        return packed

    def of(self, message: Message) -> Numbered:
        """Those of one message; what is packed before the next call bears them."""
        rest: bytes = self.__dict__["_rest"]
        if message.seq is not None:
            number = b"%d" % message.seq
            rest += b"\x26\x00\x03seq%b%b" % (len(number).to_bytes(2, "big"), number)  # MQTT 5.0, 3.3.2.3.7
        if message.is_repeated:  # MQTT's own flag ends at the broker, which does not pass it on (3.3.1.1)
            rest += _REPEATED
        self.__dict__["_packed"] = VariableByteIntegers.encode(len(rest)) + rest  # type: ignore[no-untyped-call]
        return self


def ways_of(settings: MqttSettings, *, is_v5: bool) -> dict[Kind, Way]:
    """Of every kind, for this broker; those of MQTT 3.1.1 have no properties."""

    def way(kind: Kind, qos: int, *, retain: bool = False, expiry_s: int | None = None) -> Way:
        return Way(qos, retain, Numbered(_properties(PacketTypes.PUBLISH, kind, expiry_s)) if is_v5 else None)

    return {
        **{kind: way(kind, c.qos, expiry_s=c.expiry_s) for kind, c in settings.channels.items()},
        "telemetry": way("telemetry", 0, expiry_s=settings.expiry_s),
        "status": way("status", RETAINED_QOS, retain=True),
        "state": way("state", RETAINED_QOS, retain=True),
        "seen": way("seen", RETAINED_QOS, retain=True),
        "discovery": way("discovery", RETAINED_QOS, retain=True),
        "response": way("response", 1, expiry_s=ANSWER_EXPIRY_S),
    }


def will_properties(delay_s: int) -> Properties:
    """Of the last will, which is a status.

    Args:
        delay_s: seconds that the broker waits for us to come back before it publishes it.
    """
    properties: Any = _properties(PacketTypes.WILLMESSAGE, "status")
    if delay_s:
        properties.WillDelayInterval = delay_s
    packed: Properties = properties
    return packed


def answer_properties(correlation: bytes) -> Properties:
    """Of an answer to who sent this along."""
    properties: Any = _properties(PacketTypes.PUBLISH, "response", ANSWER_EXPIRY_S)
    properties.CorrelationData = correlation
    packed: Properties = properties
    return packed


def connect_properties(session_s: int) -> Properties:
    """Of CONNECT.

    Args:
        session_s: seconds that the broker remembers us: as long as the last will is delayed, which it is in a session
            only.
    """
    properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = session_s
    properties.MaximumPacketSize = _MOST_INCOMING_BYTES
    packed: Properties = properties
    return packed


def length_bytes(length: int) -> int:
    """Bytes of a variable byte integer, seven bits each (MQTT 5.0, 1.5.5)."""
    return max(1, -(-length.bit_length() // 7))


def _properties(packet_type: int, stream: str, expiry_s: int | None = None) -> Properties:
    # paho writes no types for this class, and takes its fields by __setattr__: no type could name them.
    properties: Any = Properties(packet_type)  # type: ignore[no-untyped-call]
    is_picture = stream == "snapshot"
    properties.PayloadFormatIndicator = 0 if is_picture else 1
    properties.ContentType = "image/jpeg" if is_picture else "application/json"
    properties.UserProperty = [("schema", str(SCHEMA_VERSION)), ("stream", stream)]
    if expiry_s is not None:
        properties.MessageExpiryInterval = expiry_s
    packed: Properties = properties
    return packed
