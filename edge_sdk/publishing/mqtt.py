"""MqttLink: one connection to an MQTT broker, for the messages of a device.

Owns paho's traps around messages. A client is made for every connection, because paho keeps what it could not send: a
message above the new broker's limit would be sent again and again, and cost the connection each time.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence
from datetime import datetime, timezone

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_sdk.publishing.credentials import expiry_line, own_expiry
from edge_sdk.publishing.dialect import Dialect
from edge_sdk.publishing.dialing import Dialing, RefusedError, turned_away
from edge_sdk.publishing.incoming import Incoming
from edge_sdk.publishing.link import NOT_AUTHORIZED, QUOTA_EXCEEDED, Answer, Kind, Phase
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.tls import authorities_expiry
from edge_sdk.publishing.wakeup import Wakeup
from edge_sdk.publishing.ways import (
    RETAINED_QOS,
    answer_properties,
    connect_properties,
    length_bytes,
    ways_of,
    will_properties,
)

WINDOW = 20  # messages; Mosquitto's default receive maximum. paho queues QoS 0 without a limit: so much and no more
# Mosquitto 2.0.11 keeps an in-flight place for each message above our maximum packet size, and sends nothing at QoS 1
# after twenty of them. QoS 1 gains nothing here: what a session brings after an outage is not carried out anyway.
_INCOMING_QOS = 0
_MOST_RECEIVED = 64  # messages that wait to be handed over, and that one turn reads
_UNSPECIFIED = 0x80  # what paho says of a connection that ended without a word
_SILENT, _TAKEN_OVER = 0x8D, 0x8E
_BAD_IDENTIFIER, _BAD_PASSWORD, _NO_RETAINED = 0x85, 0x86, 0x9A
_RIVAL = (
    "another program has the same site and device, give each its own name (--device, or [device] in a file); this is"
)


class MqttLink:
    """One connection to one broker; see `Link`.

    Args:
        settings: which broker, and who we are there.
        will: JSON of the status that the broker publishes when the connection breaks.
        dialect: what the broker was found to understand; by default what the settings say.
    """

    def __init__(self, settings: MqttSettings, will: bytes, dialect: Dialect | None = None) -> None:
        self.phase: Phase = "opening"
        self.detail = ""
        self.window = WINDOW
        self._settings = settings
        self._max_packet: int | None = None
        self._finished: list[Answer] = []
        self._held_back = 0
        self._is_silent = False
        self._received: list[Incoming] = []
        self._wanted: frozenset[str] = frozenset()
        self._has_old_mail = False
        self._subscribed: dict[int | None, tuple[str, ...]] = {}
        self._refusals: list[str] = []
        self._dialect = dialect or Dialect(settings.protocol)
        self._is_v5 = self._dialect.is_v5
        self._ways = ways_of(settings, is_v5=self._is_v5)
        self._dialing = Dialing(settings, settings.client_id, self._dialect.protocol)
        self._client = self._dialing.client
        self._prepare(self._client, will)

    def acknowledges(self, kind: Kind) -> bool:
        """Whether messages of a kind go at QoS 1; see `Link.acknowledges`."""
        return min(self._ways[kind].qos, self._dialect.max_qos) > 0

    def open(self) -> None:
        """Connect and send CONNECT; see `Link.open`."""
        try:
            # What the broker remembers is the delayed will, which a device that comes back takes away.
            properties = connect_properties(self._settings.will_delay_s) if self._is_v5 else None
            self._dialing.open(properties, keeps_session=True)
        except RefusedError as cause:
            self.phase, self.detail = "refused", str(cause)

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Wait, then read, write and probe; see `Link.turn`."""
        if not self._dialing.turn(timeout_s, wakeup) or not self._read_on():
            self._lose("connection closed")
        if self._is_silent:
            raise TimeoutError(self.detail)

    def fits(self, kind: Kind, message: Message) -> bool:
        """Whether the packet stays within the broker's MaximumPacketSize."""
        if self._max_packet is None:
            return True
        way = self._ways[kind]
        # MQTT 5.0, 3.3: length and bytes of the topic, message id, properties, payload; before them type and length.
        message_id_bytes = 2 if min(way.qos, self._dialect.max_qos) else 0
        # An event that fits must fit once more, with the mark of one that may have come before.
        as_repeated = msgspec.structs.replace(message, is_repeated=True) if kind == "event" else message
        packed = way.properties.of(as_repeated).pack() if way.properties is not None else b""
        properties_bytes = len(packed) + (len(message.correlation) + 3 if message.correlation else 0)
        remaining = 2 + len(message.topic.encode()) + message_id_bytes + properties_bytes + len(message.payload)
        return 1 + length_bytes(remaining) + remaining <= self._max_packet

    def publish(self, kind: Kind, message: Message) -> int:
        """Hand one message to paho; see `Link.publish`."""
        qos, retain, properties = self._ways[kind]
        qos = min(qos, self._dialect.max_qos)
        if kind == "event" and not qos:
            return self._hold_back()
        if properties is not None:  # paho packs them at once: it is never given more than it may send
            properties.of(message)
        wanted = answer_properties(message.correlation) if message.correlation and self._is_v5 else properties
        return self._client.publish(message.topic, message.payload, qos, retain, wanted).mid

    def finished(self) -> list[Answer]:
        """What left or was answered since the last call; see `Link.finished`."""
        finished, self._finished = self._finished, []
        return finished

    def heard(self) -> bool:
        """Whether anything came since the last call; see `Link.heard`."""
        return self._dialing.heard()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Ask for messages; what was published as a retained one is known by its flag, with MQTT 5. See `Link`."""
        self._wanted = frozenset(topics)
        if self._is_v5:
            options = SubscribeOptions(qos=_INCOMING_QOS, noLocal=True, retainAsPublished=True)
            _, mid = self._client.subscribe([(topic, options) for topic in topics])
        else:
            _, mid = self._client.subscribe([(topic, _INCOMING_QOS) for topic in topics])
        self._subscribed[mid] = tuple(topics)

    def received(self) -> list[Incoming]:
        """What came since the last call; see `Link.received`."""
        received, self._received = self._received, []
        return received

    def refusals(self) -> list[str]:
        """Subscriptions that were refused since the last call; see `Link.refusals`."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def doubts(self) -> dict[str, str]:
        """What is not wrong yet; see `Link.doubts`."""
        now, ends = datetime.now(timezone.utc), self._dialing.broker_expiry()
        return {
            "mqtt_version": self._dialect.doubt,
            "mqtt_qos": self._dialect.doubt_of_qos,
            "authorities": authorities_expiry(self._settings, now),
            "client_certificate": own_expiry(self._settings, now),
            "broker_certificate": expiry_line("the broker's certificate", ends, now, "renew it there") if ends else "",
        }

    def close(self, *, politely: bool) -> None:
        """End the connection; see `Link.close`."""
        with contextlib.suppress(Exception):  # the next connection does not depend on how this one ends
            is_up = self.phase == "up"
            self._lose("closed")
            self._dialing.close(politely=politely and is_up)

    def _prepare(self, client: mqtt.Client, will: bytes) -> None:
        settings = self._settings
        properties = will_properties(settings.will_delay_s) if self._is_v5 else None
        qos = min(RETAINED_QOS, self._dialect.max_qos)
        client.will_set(settings.topics.status, will, qos, retain=True, properties=properties)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe

    def _read_on(self) -> bool:
        """Messages that wait behind the one that came: paho reads one a call, and a turn may be long.

        Returns:
            False when the connection is gone.
        """
        poll = select.poll()
        connection = self._client.socket()
        while self._received and len(self._received) < _MOST_RECEIVED and connection is not None:
            poll.register(connection.fileno(), select.POLLIN)
            if not poll.poll(0):
                return True
            self._client.loop_read()
            connection = self._client.socket()
        return connection is not None

    def _hold_back(self) -> int:
        """Answer in the broker's place: what nobody acknowledges counts as delivered once it is sent."""
        self._held_back -= 1  # paho's numbers are positive
        # A quota: a word that holds events, for as long as it is said, and gives none of them up.
        self._finished.append(Answer(self._held_back, "this broker takes QoS 0 only", QUOTA_EXCEEDED))
        return self._held_back

    def _lose(self, detail: str) -> None:
        if self.phase in ("opening", "up"):
            self.phase, self.detail = "lost", self.detail or detail

    def _on_connect(
        self, _client: object, _data: object, flags: mqtt.ConnectFlags, reason: ReasonCode, answer: Properties | None
    ) -> None:
        if reason.is_failure:
            self.phase, detail = turned_away(reason, self._dialect)
            self.detail = self._refusal(reason) if self.phase == "refused" else detail
            return
        self.phase = "up"
        self._has_old_mail = flags.session_present
        self._max_packet = getattr(answer, "MaximumPacketSize", None)
        self.window = min(WINDOW, getattr(answer, "ReceiveMaximum", WINDOW))
        self._dialect.max_qos = getattr(answer, "MaximumQoS", 1)

    def _refusal(self, reason: ReasonCode) -> str:
        said = f"{reason} (reason code {reason.value})"
        if reason.value == _BAD_IDENTIFIER:
            return f"{said}: it wants another name than {self._settings.client_id} (--device, or [device] in a file)"
        if reason.value == _NO_RETAINED:
            return f"{said}: status and last will are retained, let it keep retained messages (retain_available)"
        if reason.value not in (_BAD_PASSWORD, NOT_AUTHORIZED):
            return said
        topic = self._settings.topics.status
        login = self._settings.login
        return f"{said}, {login}: give the right user and password, and its ACL must let this device write {topic}"

    def _on_disconnect(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _answer: object
    ) -> None:
        if reason.value == _TAKEN_OVER and self.phase == "up":
            # Refused, and not lost: the two would push each other out every second.
            self.phase, self.detail = "refused", f"{reason}: {_RIVAL} {self._settings.client_id}"
        # Whoever found it out, the broker or paho: nobody ended this for what it was sent.
        self._is_silent = reason.value == _SILENT
        complaint = self._dialing.complaint()
        if complaint and self.phase == "opening":
            self.phase, self.detail = "refused", complaint
        suspicion = self._dialing.suspicion() if self.phase == "opening" else ""
        self._lose(f"connection lost{suspicion}" if reason.value == _UNSPECIFIED else str(reason))

    def _on_publish(self, _client: object, _data: object, mid: int, reason: ReasonCode, _answer: object) -> None:
        self._finished.append(Answer(mid, str(reason) if reason.is_failure else "", reason.value))

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        if self._has_old_mail or message.topic not in self._wanted:
            return  # for the connection before, whose session this one took over: a command is done now or never
        properties = message.properties
        self._received.append(
            Incoming(
                message.topic,
                bytes(message.payload),
                retain=message.retain,
                response_topic=getattr(properties, "ResponseTopic", ""),
                correlation=getattr(properties, "CorrelationData", b""),
            )
        )

    def _on_subscribe(
        self, _client: object, _data: object, mid: int, reasons: list[ReasonCode], _answer: object
    ) -> None:
        self._has_old_mail = False
        answers = zip(self._subscribed.pop(mid, ()), reasons, strict=False)
        refused = [f"{topic}: {reason}" for topic, reason in answers if reason.is_failure]
        self._refusals.append(f"the broker does not let this device read {', '.join(refused)}" if refused else "")
