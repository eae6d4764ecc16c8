"""MqttLink: one connection to an MQTT broker, for the messages of a device.

Owns paho's traps around messages. A client is made for every connection, because paho keeps what it could not send: a
message above the new broker's limit would be sent again and again, and cost the connection each time.

Dialing: one paho client and the one connection that it makes: TCP or websockets, plain or encrypted.

Owns paho's traps around sockets. The thread that owns a client does the network's work itself, without paho's thread,
whose back-off has no jitter and which an exception would end unnoticed.

Uplink: how the bytes of a connection leave: at once, and few of them out of our sight.

Owns what is asked of the kernel, which would take megabytes: what it has taken counts as sent at QoS 0, goes before
every event that is put later, and before the probe that keeps a connection alive.

Ways: how messages of each kind travel: quality of service, retention, and MQTT 5's properties.

Owns what a message costs in paho: its properties are packed once a connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_sdk.core.errors import UsageError
from edge_sdk.messages.schema import SCHEMA_VERSION, Message
from edge_sdk.publishing.connection import (
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    UNSENT_BYTES,
    Answer,
    Incoming,
    Kind,
    Phase,
    ProtocolFallback,
    Wakeup,
)
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.tls import (
    UNUSABLE,
    WANTS_OURS,
    BrokerTls,
    authorities_expiry,
    broker_tls,
    expiry_line,
    explain,
    own_expiry,
)


def keep_in_sight(connection: Any) -> None:
    """Have a connection of paho's send at once, and take little in advance.

    Args:
        connection: TCP, TLS, or what paho makes of either for websockets.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as same:  # paho's websockets hide theirs
        # Otherwise a small message waits for the acknowledgement of the one before, 40 ms on many systems.
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    if not isinstance(connection, socket.socket):
        connection.send = _whole(connection.send)


def _whole(send: Callable[[bytes], int]) -> Callable[[bytes], int]:
    """Websockets of paho say 0 of a packet that left in part, and it is forgotten; one that must wait is not."""

    def send_whole(data: bytes) -> int:
        taken = send(data)
        if not taken:
            raise BlockingIOError
        return taken

    return send_whole


TRANSIENT_REASONS = frozenset({0x88, 0x89, 0x97, 0x9F})
"""Answers that pass by themselves: unavailable, busy, quota exceeded, rate exceeded (MQTT 5.0, 3.2.2.2)."""

_UNSUPPORTED_PROTOCOL = 0x84
_UNSUPPORTED_QOS = 0x9B
_CONNECT_TIMEOUT_S = 5.0
_WANTS_TLS = "; perhaps that port wants TLS: write mqtts:// (wss://) in the URL"
_NOT_ENCRYPTED = "the broker ended the connection before it was encrypted; is it a port for TLS?"

_LARGEST_INCOMING = 16_000_000  # bytes of a packet; MaximumPacketSize says so, but not every broker keeps to it


class RefusedError(Exception):
    """There is no connection to this broker before somebody mends something; the text says what."""


class _Client(mqtt.Client):
    """paho's client, which by itself takes memory for any length that a broker announces, up to 268 MB."""

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > _LARGEST_INCOMING:  # paho asks for the rest of a packet, and ends the connection at an OSError
            raise ConnectionError("a packet that is too large")
        return super()._sock_recv(bufsize)


class Transport:
    """Of one connection, and never used again after it.

    Args:
        settings: which broker.
        client_id: who we are there; empty: as the broker likes.
        protocol: the version of MQTT.

    Attributes:
        client: paho's.
    """

    def __init__(self, settings: MqttSettings, client_id: str, protocol: Literal["5", "3.1.1"]) -> None:
        self._settings = settings
        self._tls: BrokerTls | None = None
        self._is_v5 = protocol == "5"
        self._has_heard = False
        self.client: mqtt.Client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if protocol == "5" else MQTTProtocolVersion.MQTTv311,
            transport="tcp" if settings.websocket_path is None else "websockets",
            reconnect_on_failure=False,
        )
        self.client.suppress_exceptions = True
        self.client.connect_timeout = _CONNECT_TIMEOUT_S
        if settings.websocket_path is not None:
            self.client.ws_set_options(settings.websocket_path)
        if settings.username:
            self.client.username_pw_set(settings.username, settings.password.reveal() if settings.password else None)

    def open(self, properties: Properties | None = None, *, keeps_session: bool = False) -> None:
        """Connect and send CONNECT; blocks for a few seconds at most.

        Args:
            properties: of CONNECT in MQTT 5.
            keeps_session: whether what the broker remembers of the connection before is kept, MQTT 5.

        Raises:
            OSError: nobody answers.
            RefusedError: one of the two does not trust the other, or a file of ours cannot be used.
        """
        settings = self._settings
        try:
            self._tls = broker_tls(settings)
        except UsageError as cause:
            raise RefusedError(f"{UNUSABLE}: {cause}") from None
        if self._tls is not None:
            self.client.tls_set_context(self._tls)
        try:
            where = (settings.host, settings.port, settings.keepalive_s)
            if properties is None:
                self.client.connect(*where)
            else:
                self.client.connect(*where, clean_start=not keeps_session, properties=properties)
        except (ssl.SSLEOFError, ConnectionResetError) as cause:
            if self._tls is None or self._tls.connection is None:
                raise
            raise ConnectionError(_NOT_ENCRYPTED) from cause
        except ssl.SSLError as cause:
            raise RefusedError(explain(cause, settings)) from None
        except mqtt.WebsocketConnectionError:
            hint = "" if settings.tls else _WANTS_TLS
            raise ConnectionError(f"there is no MQTT over websockets at {settings.websocket_path}{hint}") from None
        finally:
            if self.client.socket() is None:
                self._drop()
        connection = self.client.socket()
        if connection is not None:
            keep_in_sight(connection)

    def turn(self, timeout_s: float, wakeup: Wakeup) -> bool:
        """Wait for the network or for `wakeup`, then read, write and probe; False when the connection is gone."""
        connection = self.client.socket()
        if connection is not None:
            poll = select.poll()
            poll.register(wakeup.fileno(), select.POLLIN)
            writes = select.POLLOUT if self.client.want_write() else 0
            poll.register(connection.fileno(), select.POLLIN | writes)
            # What TLS has decrypted already does not show on the socket.
            is_pending = self._tls is not None and self._tls.is_pending
            ready = dict(poll.poll(0 if is_pending else timeout_s * 1000))
            if wakeup.fileno() in ready:
                wakeup.clear()
            self._work(ready.get(connection.fileno(), 0) | (select.POLLIN if is_pending else 0))
        return self.client.socket() is not None

    def heard(self) -> bool:
        """Whether anything came since the last call; see `Link.heard`."""
        has_heard, self._has_heard = self._has_heard, False
        return has_heard

    def complaint(self) -> str:
        """What the broker said of TLS before it left, for people; empty when it said nothing."""
        trouble = self._tls.connection.trouble if self._tls is not None and self._tls.connection is not None else None
        if trouble is not None:
            return explain(trouble, self._settings)
        return ""

    def suspicion(self) -> str:
        """What a broker may have meant that left without a word before it answered; empty where nothing is near."""
        if not self._settings.tls:
            return _WANTS_TLS
        return f"; perhaps {WANTS_OURS}" if self._settings.cert_file is None else ""

    def broker_expiry(self) -> datetime | None:
        """When the broker's certificate ends; None without TLS."""
        return self._tls.broker_expiry() if self._tls is not None else None

    def close(self, *, politely: bool) -> None:
        """End it; politely: with DISCONNECT, so that the broker keeps the last will to itself and forgets us."""
        if politely:
            self.client.disconnect(properties=_forget_us() if self._is_v5 else None)
        connection = self.client.socket()
        if connection is not None:  # DISCONNECT could not be written, or was not meant to be
            connection.close()

    def _work(self, ready: int) -> None:
        if ready & ~select.POLLOUT:  # readable, or an error that reading will name
            self.client.loop_read()
            # paho tells nobody of answers to its probes. Bytes came, for at the end there is no socket after reading.
            self._has_heard = self._has_heard or self.client.socket() is not None
        if ready & select.POLLOUT:
            self.client.loop_write()
        self.client.loop_misc()

    def _drop(self) -> None:
        """Close what paho forgets where the handshake fails."""
        if self._tls is not None and self._tls.connection is not None:
            self._tls.connection.close()


def turned_away(reason: ReasonCode, dialect: ProtocolFallback) -> tuple[Phase, str]:
    """What a broker means that does not take a connection: whether another one may be tried soon, and why, for people.

    Args:
        reason: of its answer.
        dialect: what was spoken; another one is from now on, where that is what it means.
    """
    if reason.value == _UNSUPPORTED_PROTOCOL and dialect.fall_back():
        return "lost", "the broker knows no MQTT 5"
    if reason.value == _UNSUPPORTED_QOS and dialect.max_qos:  # of the last will
        dialect.max_qos = 0
        return "lost", "the broker takes QoS 0 only"
    phase: Phase = "lost" if reason.value in TRANSIENT_REASONS else "refused"
    return phase, f"{reason} (reason code {reason.value})"


def _forget_us() -> Properties:
    """Of DISCONNECT: what is sent to a device that is away is not for the one that comes back."""
    properties: Any = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]  # see ways.py
    properties.SessionExpiryInterval = 0
    packed: Properties = properties
    return packed


RETAINED_QOS = 1
ANSWER_EXPIRY_S = 60  # nobody waits longer for an answer
_REPEATED = b"\x26\x00\x08repeated\x00\x011"
_MOST_INCOMING_BYTES = 65536  # of one packet; a broker that knows MQTT 5 keeps larger ones


class PublishOptions(NamedTuple):
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


def publish_options_of(settings: MqttSettings, *, is_v5: bool) -> dict[Kind, PublishOptions]:
    """Of every kind, for this broker; those of MQTT 3.1.1 have no properties."""

    def way(kind: Kind, qos: int, *, retain: bool = False, expiry_s: int | None = None) -> PublishOptions:
        return PublishOptions(
            qos, retain, Numbered(_properties(PacketTypes.PUBLISH, kind, expiry_s)) if is_v5 else None
        )

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


class MqttConnection:
    """One connection to one broker; see `Link`.

    Args:
        settings: which broker, and who we are there.
        will: JSON of the status that the broker publishes when the connection breaks.
        dialect: what the broker was found to understand; by default what the settings say.
    """

    def __init__(self, settings: MqttSettings, will: bytes, dialect: ProtocolFallback | None = None) -> None:
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
        self._dialect = dialect or ProtocolFallback(settings.protocol)
        self._is_v5 = self._dialect.is_v5
        self._ways = publish_options_of(settings, is_v5=self._is_v5)
        self._dialing = Transport(settings, settings.client_id, self._dialect.protocol)
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
