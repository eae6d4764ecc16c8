"""Listener: hears what a fleet publishes, through a broker's absence and restarts.

Owns a thread. What waits for a reader is bounded: one that is slow, or pauses, costs messages and never the connection.

Listening: one connection to a broker that only subscribes.

Owns what a subscriber needs of paho, and the pace: what comes at QoS 1 is not acknowledged while much waits for its
reader, so that the broker waits. The socket is read all the while: a broker takes who reads no answer for dead.

Backlog: messages that were heard and wait for their reader, bounded by their number and their bytes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edge_sdk.core.threads import Backoff
from edge_sdk.publishing.client import TRANSIENT_REASONS, RefusedError, Transport, turned_away
from edge_sdk.publishing.connection import NOT_AUTHORIZED, Phase, ProtocolFallback, Wakeup
from edge_sdk.publishing.session import State
from edge_sdk.publishing.settings import MqttSettings

_MOST = 4000
_MOST_BYTES = 64_000_000


class Heard(NamedTuple):
    """One message, as it came."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Backlog:
    """Filled by one thread, emptied by another.

    Args:
        most: messages that wait.
        most_bytes: of their payloads; a single message may be larger.

    Attributes:
        lost: messages for which there was no room, and that will not come again.
    """

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self.lost = 0
        self._most, self._most_bytes = most, most_bytes
        self._messages: deque[Heard] = deque()
        self._bytes = 0
        self._changed = threading.Condition()

    @property
    def is_half_full(self) -> bool:
        """Whether who sends should wait."""
        return 2 * len(self._messages) >= self._most or 2 * self._bytes >= self._most_bytes

    def put(self, heard: Heard) -> None:
        """Append one message, or count it as lost."""
        with self._changed:
            size = len(heard.payload)
            is_full = len(self._messages) >= self._most or self._bytes + size > self._most_bytes
            if self._messages and is_full:
                self.lost += 1
                return
            self._messages.append(heard)
            self._bytes += size
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Heard]:
        """All that waits, oldest first; waits so many seconds for the first."""
        with self._changed:
            if not self._messages:
                self._changed.wait(timeout_s)
            taken = list(self._messages)
            self._messages.clear()
            self._bytes = 0
            return taken


_TURN_S = 0.5
_LONGEST_S = 5.0  # somebody sits before it
_END_S = 1.0


class Subscriber:
    """Listens from a thread of its own, which starts at once.

    Args:
        settings: which broker, and with which credentials; it verifies both.
        topics: what to subscribe to.
        on_state: called from the thread with the new state and a detail for people.

    Attributes:
        state: `connecting`, `online`, `refused` or `closed`.
        detail: why, for people.
        has_been_online: whether there was a connection.

    Raises:
        UsageError: a file that the settings name cannot be used.
    """

    def __init__(
        self, settings: MqttSettings, topics: Sequence[str], on_state: Callable[[State, str], None] | None = None
    ) -> None:
        from edge_sdk.publishing.tls import broker_tls

        with contextlib.suppress(OSError):  # a shortage, which may be over when it connects
            broker_tls(settings)
        self.state: State = "connecting"
        self.detail = ""
        self.has_been_online = False
        self._settings, self._topics, self._on_state = settings, tuple(topics), on_state
        self._dialect = ProtocolFallback(settings.protocol)
        self._backoff = Backoff(longest_s=_LONGEST_S)
        self._backlog = Backlog()
        self._wakeup = Wakeup()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="edge-listen", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> list[Heard]:
        """What came since; waits so many seconds for the first."""
        is_waited_for = self._backlog.is_half_full
        heard = self._backlog.take(timeout_s)
        if is_waited_for:
            self._wakeup.wake()  # there is room now; where it filled up meanwhile, the next turn sees that
        return heard

    @property
    def lost(self) -> int:
        """Messages that came while there was no room for them, and that will not come again."""
        return self._backlog.lost

    def close(self) -> None:
        """Leave the broker; may be called twice."""
        self._is_ending = True
        self._wakeup.wake()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._is_ending:
            self._listen_once()
            self._pause(time.monotonic() + self._backoff.next_s())
        self._wakeup.close()
        self._report("closed", "")

    def _pause(self, until: float) -> None:
        while not self._is_ending and (remaining := until - time.monotonic()) > 0:
            self._wakeup.wait(remaining)

    def _listen_once(self) -> None:

        link: Subscription | None = None
        try:
            link = Subscription(self._settings, self._topics, self._backlog, self._dialect)
            link.open()
            self._serve(link)
        except OSError as cause:
            self._report("connecting", str(cause.strerror or cause) or type(cause).__name__)
        except Exception as cause:  # noqa: BLE001 - a malformed packet must not end listening
            self._report("connecting", f"{type(cause).__name__}: {cause}")
        else:
            if not self._is_ending:
                self._report("refused" if link.phase == "refused" else "connecting", link.detail)
        finally:
            if link is not None:
                link.close()

    def _serve(self, link: Subscription) -> None:
        while link.phase in ("opening", "up") and not self._is_ending:
            link.turn(_TURN_S, self._wakeup)
            if link.phase == "up" and self.state != "online":
                self.has_been_online = True
                self._backoff.reset()
                self._report("online", self._dialect.doubt)

    def _report(self, state: State, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        self.state, self.detail = state, detail
        if self._on_state is not None:
            self._on_state(state, detail)


LARGEST = 16_000_000
"""Bytes of a packet; a broker of MQTT 5 keeps larger ones to itself."""

_UNSPECIFIED = 0x80
_BAD_PASSWORD = 0x86
_QOS = 1
_WINDOW = 20  # messages that a broker may send before the first is acknowledged; Mosquitto's own default


class Subscription:
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

    def __init__(
        self, settings: MqttSettings, topics: Sequence[str], backlog: Backlog, dialect: ProtocolFallback
    ) -> None:
        self.phase: Phase = "opening"
        self.detail = ""
        self._settings, self._topics, self._backlog, self._dialect = settings, topics, backlog, dialect
        self._unanswered: dict[int, int] = {}  # QoS by number, of messages that are not acknowledged
        self._dialing = Transport(settings, "", dialect.protocol)
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
