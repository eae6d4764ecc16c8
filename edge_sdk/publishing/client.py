"""MqttConnection: one connection to an MQTT broker, over TCP or websockets, plain or encrypted.

The publisher and `edge-sdk watch` both use it. A connection is made, opened, turned until its phase is `refused` or
`lost`, and closed. Each one has a paho client of its own, because paho keeps what it could not send: a message above a
new broker's limit would be sent again and again, and cost the connection each time.

The thread that owns a connection does the network's work in `turn`, without paho's thread, whose back-off has no jitter
and which an exception would end unnoticed. The kernel's send buffer is kept small, because bytes in it count as sent at
QoS 0 and go before every later event and probe.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_sdk.core.errors import UsageError
from edge_sdk.core.threads import Wakeup
from edge_sdk.messages.schema import MESSAGES, SCHEMA_VERSION, Incoming, Message, MessageKind, Receiver
from edge_sdk.publishing.settings import NOT_AUTHORIZED, UNSENT_BYTES, MqttSettings, Phase, PublishOutcome
from edge_sdk.publishing.tls import (
    UNUSABLE,
    WANTS_OURS,
    BrokerTls,
    broker_tls,
    check_authorities,
    expiry_line,
    explain,
    own_expiry,
)

WINDOW = 20
"""Messages in flight, each way: Mosquitto's default receive maximum. paho itself queues QoS 0 without a limit."""

_CONNECT_TIMEOUT_S = 5.0
_MOST_READ = 64  # packets that one turn reads: paho reads one a call, and the next turn may be a second away
_LARGEST_COMMAND = 65536  # bytes of a packet for a device; an MQTT 5 broker does not send larger ones
_LARGEST_INCOMING = 16_000_000  # bytes of any packet; MaximumPacketSize says so, but not every broker keeps to it
# Mosquitto 2.0.11 keeps an in-flight place for each message above our maximum packet size, and sends nothing at QoS 1
# after twenty of them. QoS 1 gains a device nothing: what a session brings after an outage is not carried out anyway.
_COMMAND_QOS, _WATCH_QOS = 0, 1

# MQTT's reason codes (MQTT 5.0, 2.4).
_UNSPECIFIED = 0x80  # paho also gives it for a connection that ended without DISCONNECT
_UNSUPPORTED_PROTOCOL, _BAD_IDENTIFIER, _BAD_PASSWORD = 0x84, 0x85, 0x86
_SILENT, _TAKEN_OVER, _NO_RETAINED, _UNSUPPORTED_QOS = 0x8D, 0x8E, 0x9A, 0x9B
_TRANSIENT = frozenset({0x88, 0x89, 0x97, 0x9F})  # temporary: unavailable, busy, quota exceeded, rate exceeded

_WANTS_TLS = "; perhaps that port wants TLS: write mqtts:// (wss://) in the URL"
_NOT_ENCRYPTED = "the broker ended the connection before it was encrypted; is it a port for TLS?"
_RIVAL = (
    "another program has the same site and device, give each its own name (--device, or [device] in a file); this is"
)
_OLD = (
    "the broker knows no MQTT 5, and 3.1.1 is spoken: messages do not expire there, and it does not say what it "
    'refuses; update it, or set protocol = "3.1.1" (--mqtt-version)'
)
_QOS_0_ONLY = (
    "this broker takes QoS 0 only: events cannot be acknowledged, and wait; have it take QoS 1 (Mosquitto's max_qos)"
)


class ProtocolFallback:
    """The protocol that one broker understands, as found out during the life of its publisher or subscriber.

    Attributes:
        is_v5: whether MQTT 5 is spoken, whose messages carry properties.
        max_qos: the highest quality of service that the broker accepts, also for the last will.
        warning: a line for people about what the older version lacks; empty unless the connection fell back to it.
    """

    def __init__(self, protocol: Literal["5", "3.1.1"]) -> None:
        self.is_v5 = protocol == "5"
        self.max_qos = 1
        self.warning = ""

    def accept(self, reason: ReasonCode) -> str:
        """Use a simpler protocol from now on if a broker's refusal asks for it, and return the reason for people."""
        if reason.value == _UNSUPPORTED_PROTOCOL and self.is_v5:
            self.is_v5, self.warning = False, _OLD
            return "the broker knows no MQTT 5"
        if reason.value == _UNSUPPORTED_QOS and self.max_qos:  # the QoS of the last will
            self.max_qos = 0
            return "the broker takes QoS 0 only"
        return ""


class _Client(mqtt.Client):
    """paho's client with a limit on packets: paho alone allocates any length that a broker announces, up to 268 MB."""

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > _LARGEST_INCOMING:  # paho asks for the rest of a packet, and ends the connection at an OSError
            raise ConnectionError("a packet that is too large")
        return super()._sock_recv(bufsize)


class MqttConnection:
    """One connection to one broker, from CONNECT to its end, and never used again after that.

    Args:
        settings: the broker, and the device's names and credentials there.
        will: JSON of the status that the broker publishes when the device's connection breaks; None for a subscriber,
            which has no name and no session at the broker.
        fallback: the protocol that the broker is known to understand.
    """

    def __init__(self, settings: MqttSettings, will: bytes | None, fallback: ProtocolFallback | None = None) -> None:
        self.phase: Phase = "opening"  # until the broker answers, then `up`; `refused` or `lost` is the end
        self.detail = ""  # the reason of a refusal or loss, for people
        self.window = WINDOW  # messages that may be in flight at once
        self._settings, self._is_device = settings, will is not None
        self._fallback = fallback or ProtocolFallback(settings.protocol)
        self._is_v5 = self._fallback.is_v5
        self._options = publish_options(settings, is_v5=self._is_v5)
        self._tls: BrokerTls | None = None
        self._max_packet: int | None = None
        self._finished: list[PublishOutcome] = []
        self._has_heard = self._is_silent = False
        self._topics: tuple[str, ...] = ()
        self._receiver: Receiver | None = None
        self._has_old_messages = False
        self._unacknowledged: dict[int, int] = {}  # QoS of received messages, by message id
        self._client = self._make_client(will)

    def listen(self, topics: Sequence[str], receiver: Receiver) -> None:
        """Subscribe to topics as soon as the broker answers; `turn` passes messages on. To be called before `open`."""
        self._topics, self._receiver = tuple(topics), receiver

    def open(self) -> None:
        """Connect; block for a few seconds at most. If TLS verification fails on either side, the phase is `refused`.

        Raises:
            OSError: the broker does not answer.
        """
        try:
            if refusal := self._connect():
                self.phase, self.detail = "refused", refusal
        finally:
            if self._client.socket() is None and self._tls is not None and self._tls.connection is not None:
                self._tls.connection.close()  # paho does not close it if the handshake fails
        opened = self._client.socket()
        if opened is not None:
            _send_at_once(opened)

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Wait for the network or for `wakeup`, then read, write and probe.

        Raises:
            TimeoutError: nothing came from the broker for longer than the keep-alive allows; the connection is lost.
        """
        if self._client.socket() is not None:
            ready = self._poll(timeout_s, wakeup)
            if ready & ~select.POLLOUT:  # readable, or an error that reading will name
                self._read()
            if ready & select.POLLOUT:
                self._client.loop_write()
            self._client.loop_misc()
        if self._client.socket() is None:
            self._lose("connection closed")
        if self._is_silent:
            raise TimeoutError(self.detail)

    def acknowledges(self, kind: MessageKind) -> bool:
        """Return whether the broker acknowledges messages of a kind (QoS 1)."""
        return self._qos(kind) > 0

    def fits(self, message: Message) -> bool:
        """Return whether the packet stays within the broker's MaximumPacketSize."""
        if self._max_packet is None:
            return True
        # An event that fits must also fit when it is sent again, with the mark of a possible duplicate.
        as_repeated = msgspec.structs.replace(message, is_repeated=True) if message.kind == "event" else message
        properties = self._options[message.kind].properties
        properties_bytes = len(properties.of(as_repeated).pack()) if properties is not None else 0
        if message.correlation:
            properties_bytes += len(message.correlation) + 3
        # MQTT 5.0, 3.3: length and bytes of the topic, message id, properties, payload; before them type and length.
        message_id_bytes = 2 if self._qos(message.kind) else 0
        remaining = 2 + len(message.topic.encode()) + message_id_bytes + properties_bytes + len(message.payload)
        length_bytes = max(1, -(-remaining.bit_length() // 7))  # of a variable byte integer (1.5.5)
        return 1 + length_bytes + remaining <= self._max_packet

    def publish(self, message: Message) -> int:
        """Send a message, and return its number, which `finished` returns later."""
        qos, options = self._qos(message.kind), self._options[message.kind]
        properties: Properties | None = options.properties
        if options.properties is not None:  # paho packs them at once, as it never gets more messages than it may send
            properties = options.properties.of(message)
            if message.correlation:
                expiry_s = MESSAGES["response"].channel.expiry_s
                properties = message_properties("response", expiry_s=expiry_s, CorrelationData=message.correlation)
        return self._client.publish(message.topic, message.payload, qos, options.retain, properties).mid

    def finished(self) -> list[PublishOutcome]:
        """Return the messages that left (QoS 0) or were answered (QoS 1) since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def heard(self) -> bool:
        """Return whether any packet came since the last call."""
        has_heard, self._has_heard = self._has_heard, False
        return has_heard

    def acknowledge(self) -> None:
        """Acknowledge messages received at QoS 1, so that the broker sends more."""
        for number, qos in self._unacknowledged.items():
            self._client.ack(number, qos)
        self._unacknowledged.clear()

    def warnings(self) -> dict[str, str]:
        """Return warnings by name, each a line for people, which is empty where nothing is wrong."""
        try:
            authorities = check_authorities(self._settings)
        except UsageError as cause:
            authorities = str(cause)
        ends = self._tls.broker_expiry() if self._tls is not None else None
        return {
            "mqtt_version": self._fallback.warning,
            "mqtt_qos": "" if self._fallback.max_qos else _QOS_0_ONLY,
            "authorities": authorities,
            "client_certificate": own_expiry(self._settings),
            "broker_certificate": expiry_line("the broker's certificate", ends, "renew it there"),
        }

    def close(self, *, politely: bool) -> None:
        """End the connection; a polite end sends DISCONNECT, so that the broker drops the last will and the session."""
        with contextlib.suppress(Exception):  # the next connection does not depend on how this one ends
            is_up = self.phase == "up"
            self._lose("closed")
            if politely and is_up:
                # Messages that were sent to an absent device must not reach it later.
                forget = _properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0) if self._is_v5 else None
                self._client.disconnect(properties=forget)
            left = self._client.socket()
            if left is not None:  # DISCONNECT could not be written, or was not meant to be
                left.close()

    def _make_client(self, will: bytes | None) -> mqtt.Client:
        settings = self._settings
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id if self._is_device else "",
            protocol=MQTTProtocolVersion.MQTTv5 if self._is_v5 else MQTTProtocolVersion.MQTTv311,
            transport="tcp" if settings.websocket_path is None else "websockets",
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.suppress_exceptions = True
        client.connect_timeout = _CONNECT_TIMEOUT_S
        if settings.websocket_path is not None:
            client.ws_set_options(settings.websocket_path)
        if settings.username:
            client.username_pw_set(settings.username, settings.password.reveal() if settings.password else None)
        if will is not None:
            delay = {"WillDelayInterval": settings.will_delay_s} if settings.will_delay_s else {}
            properties = message_properties("status", PacketTypes.WILLMESSAGE, **delay) if self._is_v5 else None
            client.will_set(settings.topics.of("status"), will, self._qos("status"), retain=True, properties=properties)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe
        return client

    def _connect(self) -> str:
        """Connect; return why one side does not trust the other, which a person must correct, or ""."""
        settings = self._settings
        try:
            self._tls = broker_tls(settings)
        except UsageError as cause:
            return f"{UNUSABLE}: {cause}"
        if self._tls is not None:
            self._client.tls_set_context(self._tls)
        options: dict[str, Any] = {}
        if self._is_v5 and self._is_device:
            # A device has a session only for the delayed last will, which a new connection of the device cancels.
            limits = {"SessionExpiryInterval": settings.will_delay_s, "MaximumPacketSize": _LARGEST_COMMAND}
            options = {"clean_start": False, "properties": _properties(PacketTypes.CONNECT, **limits)}
        elif self._is_v5:
            limits = {"MaximumPacketSize": _LARGEST_INCOMING, "ReceiveMaximum": WINDOW}
            options = {"clean_start": True, "properties": _properties(PacketTypes.CONNECT, **limits)}
        try:
            self._client.connect(settings.host, settings.port, settings.keepalive_s, **options)
        except (ssl.SSLEOFError, ConnectionResetError) as cause:
            if self._tls is None or self._tls.connection is None:
                raise
            raise ConnectionError(_NOT_ENCRYPTED) from cause
        except ssl.SSLError as cause:
            return explain(cause, settings)
        except mqtt.WebsocketConnectionError:
            hint = "" if settings.tls else _WANTS_TLS
            raise ConnectionError(f"there is no MQTT over websockets at {settings.websocket_path}{hint}") from None
        return ""

    def _poll(self, timeout_s: float, wakeup: Wakeup | None) -> int:
        """Wait for the network or for `wakeup`; return poll's events of the socket."""
        connection, poll = self._client.socket(), select.poll()
        if connection is None:
            return 0
        if wakeup is not None:
            poll.register(wakeup.fileno(), select.POLLIN)
        writes = select.POLLOUT if wakeup is not None and self._client.want_write() else 0
        poll.register(connection.fileno(), select.POLLIN | writes)
        # poll does not see data that TLS has decrypted already.
        is_pending = self._tls is not None and self._tls.is_pending
        ready = dict(poll.poll(0 if is_pending else timeout_s * 1000))
        if wakeup is not None and wakeup.fileno() in ready:
            wakeup.clear()
        return ready.get(connection.fileno(), 0) | (select.POLLIN if is_pending else 0)

    def _read(self) -> None:
        """Read the packet that came, and those that follow it."""
        for _ in range(_MOST_READ):
            self._client.loop_read()
            if self._client.socket() is None:
                return
            self._has_heard = True  # paho does not report answers to its probes, and closes the socket at the end
            if not self._poll(0, None):
                return

    def _qos(self, kind: MessageKind) -> int:
        return min(self._options[kind].qos, self._fallback.max_qos)

    def _lose(self, detail: str) -> None:
        if self.phase in ("opening", "up"):
            self.phase, self.detail = "lost", self.detail or detail

    def _on_connect(
        self, _client: object, _data: object, flags: mqtt.ConnectFlags, reason: ReasonCode, answer: Properties | None
    ) -> None:
        if reason.is_failure:
            simpler = self._fallback.accept(reason)
            self.detail = simpler or self._refusal(reason)
            self.phase = "lost" if simpler or reason.value in _TRANSIENT else "refused"
            return
        self.phase = "up"
        self._has_old_messages = flags.session_present
        self._max_packet = getattr(answer, "MaximumPacketSize", None)
        self.window = min(WINDOW, getattr(answer, "ReceiveMaximum", WINDOW))
        self._fallback.max_qos = getattr(answer, "MaximumQoS", 1)
        if self._topics:
            self._subscribe()

    def _subscribe(self) -> None:
        if self._is_device and self._is_v5:  # with this option the retain flag shows how a message was published
            options = SubscribeOptions(qos=_COMMAND_QOS, noLocal=True, retainAsPublished=True)
            self._client.subscribe([(topic, options) for topic in self._topics])
        else:
            qos = _COMMAND_QOS if self._is_device else _WATCH_QOS
            self._client.subscribe([(topic, qos) for topic in self._topics])

    def _refusal(self, reason: ReasonCode) -> str:
        said = f"{reason} (reason code {reason.value})"
        if reason.value in (_BAD_PASSWORD, NOT_AUTHORIZED):
            acl = (
                f", and its ACL must let this device write {self._settings.topics.of('status')}"
                if self._is_device
                else ""
            )
            return f"{said}, {self._settings.login}: give the right user and password{acl}"
        if reason.value == _BAD_IDENTIFIER:
            return f"{said}: it wants another name than {self._settings.client_id} (--device, or [device] in a file)"
        if reason.value == _NO_RETAINED:
            return f"{said}: status and last will are retained, let it keep retained messages (retain_available)"
        return said

    def _on_disconnect(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _answer: object
    ) -> None:
        if reason.value == _TAKEN_OVER and self.phase == "up" and self._is_device:
            # `refused` and not `lost`, because the two clients would end each other's connection every second.
            self.phase, self.detail = "refused", f"{reason}: {_RIVAL} {self._settings.client_id}"
        # The keep-alive ran out, at the broker or in paho: no message is to blame.
        self._is_silent = reason.value == _SILENT
        suspicion = ""
        if self.phase == "opening":
            trouble = self._tls.connection.trouble if self._tls is not None and self._tls.connection else None
            if trouble is not None:
                self.phase, self.detail = "refused", explain(trouble, self._settings)
            if not self._settings.tls:
                suspicion = _WANTS_TLS
            elif self._settings.cert_file is None:
                suspicion = f"; perhaps {WANTS_OURS}"
        self._lose(f"connection lost{suspicion}" if reason.value == _UNSPECIFIED else str(reason))

    def _on_publish(self, _client: object, _data: object, mid: int, reason: ReasonCode, _answer: object) -> None:
        self._finished.append(PublishOutcome(mid, str(reason) if reason.is_failure else "", reason.value))

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        if message.qos:
            self._unacknowledged[message.mid] = message.qos
        with contextlib.suppress(UnicodeDecodeError):  # an invalid topic, which brokers should refuse
            is_old = self._is_device and (self._has_old_messages or message.topic not in self._topics)
            if self._receiver is None or is_old:  # from the session of an earlier connection
                return
            properties = message.properties
            incoming = Incoming(
                message.topic,
                bytes(message.payload),
                retain=bool(message.retain),
                response_topic=getattr(properties, "ResponseTopic", ""),
                correlation=getattr(properties, "CorrelationData", b""),
                qos=message.qos,
            )
            self._receiver.receive(incoming)

    def _on_subscribe(
        self, _client: object, _data: object, _mid: int, reasons: list[ReasonCode], _answer: object
    ) -> None:
        self._has_old_messages = False
        answers = zip(self._topics, reasons, strict=False)
        refused = [(topic, reason) for topic, reason in answers if reason.is_failure]
        if refused and not self._is_device:
            is_transient = refused[0][1].value in _TRANSIENT
            hint = "" if is_transient else f": its ACL must let this user read {refused[0][0]}"
            self.phase, self.detail = "lost" if is_transient else "refused", f"{refused[0][1]}{hint}"
        elif self._receiver is not None:
            topics = ", ".join(f"{topic}: {reason}" for topic, reason in refused)
            self._receiver.refused(f"the broker does not let this device read {topics}" if refused else "")


class PublishOptions(NamedTuple):
    """The options of publishing one kind of message; MQTT 3.1.1 has no properties."""

    qos: int
    retain: bool
    properties: MessageProperties | None


class MessageProperties(Properties):
    """The properties of one kind of message, packed once per connection.

    Messages of a kind differ in their number and one mark only. Packing all properties anew with paho takes 134 µs a
    message on a PC, which is more than a percent of a Raspberry Pi's core for a camera at 30 frames a second.
    """

    def __init__(self, base: Properties) -> None:
        super().__init__(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # see _properties
        packed = base.pack()  # type: ignore[no-untyped-call]
        _, prefix_bytes = VariableByteIntegers.decode(packed)  # type: ignore[no-untyped-call]
        self.__dict__.update(_packed=packed, _rest=packed[prefix_bytes:])  # past paho's check of attributes

    def pack(self) -> bytes:
        """Return the bytes that paho writes into a packet."""
        packed: bytes = self.__dict__["_packed"]
        return packed

    def of(self, message: Message) -> MessageProperties:
        """Set the properties of one message, which hold until the next call, and return this object."""
        rest: bytes = self.__dict__["_rest"]
        if message.seq is not None:
            rest += _user_property(b"seq", b"%d" % message.seq)
        if message.is_repeated:  # the broker does not pass MQTT's own DUP flag on (MQTT 5.0, 3.3.1.1)
            rest += _user_property(b"repeated", b"1")
        self.__dict__["_packed"] = VariableByteIntegers.encode(len(rest)) + rest  # type: ignore[no-untyped-call]
        return self


def _user_property(name: bytes, value: bytes) -> bytes:
    """Pack one user property (MQTT 5.0, 3.3.2.3.7)."""
    return b"\x26%b%b%b%b" % (len(name).to_bytes(2, "big"), name, len(value).to_bytes(2, "big"), value)


def publish_options(settings: MqttSettings, *, is_v5: bool) -> dict[MessageKind, PublishOptions]:
    """Return the publish options of each kind of message."""
    options: dict[MessageKind, PublishOptions] = {}
    for name, kind in MESSAGES.items():
        channel = settings.channel(name)
        expiry_s = None if kind.is_retained else channel.expiry_s
        properties = MessageProperties(message_properties(name, expiry_s=expiry_s)) if is_v5 else None
        options[name] = PublishOptions(channel.qos, kind.is_retained, properties)
    return options


def message_properties(
    kind: MessageKind, packet_type: int = PacketTypes.PUBLISH, expiry_s: int | None = None, **more: object
) -> Properties:
    """Return the properties of a message or last will of one kind; without `expiry_s` it does not expire."""
    is_json = MESSAGES[kind].type is not None
    expiry = {} if expiry_s is None else {"MessageExpiryInterval": expiry_s}
    return _properties(
        packet_type,
        PayloadFormatIndicator=int(is_json),
        ContentType="application/json" if is_json else "image/jpeg",
        UserProperty=[("schema", str(SCHEMA_VERSION)), ("stream", kind)],
        **expiry,
        **more,
    )


def _properties(packet_type: int, **fields: object) -> Properties:
    # paho writes no types for this class, and takes its fields by __setattr__.
    properties = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in fields.items():
        setattr(properties, name, value)
    return properties


def _send_at_once(connection: Any) -> None:
    """Set the kernel to send at once and buffer little, for TCP, TLS, or paho's websocket over either."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:  # paho's websockets hide theirs
        # Otherwise a small message waits for the acknowledgement of the one before, 40 ms on many systems.
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    if not isinstance(connection, socket.socket):
        connection.send = _all_or_nothing(connection.send)


def _all_or_nothing(send: Callable[[bytes], int]) -> Callable[[bytes], int]:
    """Make paho keep a partly sent packet, for which its websockets return 0, so that paho would drop the rest."""

    def send_all(data: bytes) -> int:
        taken = send(data)
        if not taken:
            raise BlockingIOError
        return taken

    return send_all
