"""Dialing: one paho client and the one connection that it makes: TCP or websockets, plain or encrypted.

Owns paho's traps around sockets. The thread that owns a client does the network's work itself, without paho's thread,
whose back-off has no jitter and which an exception would end unnoticed.
"""

from __future__ import annotations

import select
import ssl
from datetime import datetime
from typing import Any, Literal

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edge_sdk.errors import UsageError
from edge_sdk.publishing.blame import UNUSABLE
from edge_sdk.publishing.dialect import Dialect
from edge_sdk.publishing.link import Phase
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.tls import WANTS_OURS, BrokerTls, broker_tls, explain
from edge_sdk.publishing.uplink import keep_in_sight
from edge_sdk.publishing.wakeup import Wakeup

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


class Dialing:
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


def turned_away(reason: ReasonCode, dialect: Dialect) -> tuple[Phase, str]:
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
