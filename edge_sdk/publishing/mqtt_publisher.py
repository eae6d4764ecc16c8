"""MqttPublisher: brings the results of all cameras of a device to a broker, through its absence, refusals and restarts.

Owns the thread that delivers. Nothing that happens to the network reaches a stream's `put`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from edge_sdk.errors import UsageError
from edge_sdk.garbage import no_collection
from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.callbacks import Callbacks
from edge_sdk.publishing.delivery import TURN_S, Delivery
from edge_sdk.publishing.dialect import Dialect
from edge_sdk.publishing.durable import Encode, EventOutbox, OutboxSettings
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.identity import Identity
from edge_sdk.publishing.incoming import Receiver, Receiving
from edge_sdk.publishing.link import Kind, Link
from edge_sdk.publishing.mqtt_stream import MqttStream
from edge_sdk.publishing.outbox import MemoryOutbox, Message
from edge_sdk.publishing.payload import TelemetryMessage
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.seats import Seats
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.stats import PublisherStats, State
from edge_sdk.publishing.topics import check_name

_CLIENT = "edge_sdk.publishing.mqtt"
_LISTENING_TURN_S = 0.1  # how soon a message is seen that comes while none is sent; it costs ten looks a second
LAST_COMMIT_S = 3.0
"""For the last commit, which takes milliseconds; a card that tidies itself up pauses for a second or two."""
_STALL_KEEPALIVES = 2.0  # as long as MQTT itself gives a silent peer, and half of it again


class MqttPublisher:
    """Publishes over one MQTT connection from a thread of its own, which starts at once; see `Publisher`.

    Args:
        settings: which broker, and who we are there.
        identity: who speaks; its device must be the settings'.
        on_state: called with the new state and a detail for people, from the publisher's thread, never from `put`.
        on_doubt: called, from there too, with a line for people where something is not wrong yet: a certificate ends.
        versions: of the software, by name, for the online status.
        outbox: where results wait.
        events: where events wait, in memory by default; closed with this.
        backoff: how long to wait between connections.
        make_link: makes connections; over the network by default.
        seats: of the cameras, where another publisher had them before.
        listens_to: topics of what is wanted from the broker.
        receiver: takes what comes there, in this publisher's thread.

    Attributes:
        topics: of the device.

    Raises:
        UsageError: the identity is another device's, or a file of authorities, a certificate or a key cannot be used.
    """

    def __init__(
        self,
        settings: MqttSettings,
        identity: Identity,
        *,
        on_state: Callable[[State, str], None] | None = None,
        on_doubt: Callable[[str], None] | None = None,
        versions: Mapping[str, str] | None = None,
        outbox: MemoryOutbox | None = None,
        events: EventOutbox | None = None,
        backoff: Backoff | None = None,
        make_link: Callable[[], Link] | None = None,
        seats: Seats | None = None,
        listens_to: Sequence[str] = (),
        receiver: Receiver | None = None,
    ) -> None:
        if identity.device != settings.device:
            raise UsageError(f"results are of device {identity.device!r}, the MQTT topics of {settings.device!r}")
        self._identity, self.topics = identity, settings.topics
        self._seats = Seats() if seats is None else seats
        self._lock = threading.Lock()
        self._outbox = MemoryOutbox() if outbox is None else outbox
        self._events = EventOutbox(OutboxSettings(), None, identity.boot_id) if events is None else events
        self._board = Board(identity, versions or {})
        self._callbacks = callbacks = Callbacks(self._board, on_state, on_doubt, receiver)
        self._queues = Queues(self._outbox, self._events, settings.channels)
        make = make_link or _network(settings, self._board.offline("lost"))
        is_listening = receiver is not None and len(listens_to) > 0
        self._delivery = Delivery(
            self._queues,
            self._events,
            self._board,
            settings.topics,
            make if not is_listening else lambda: Receiving(make(), listens_to, callbacks),
            backoff or Backoff(),
            callbacks=callbacks,
            stall_s=settings.keepalive_s * _STALL_KEEPALIVES,
            turn_s=_LISTENING_TURN_S if is_listening else TURN_S,
        )
        self._events.listen(self.warn)
        self._thread = threading.Thread(target=self._delivery.run, name="edge-mqtt", daemon=True)
        self._thread.start()

    def stream(self, camera: str, encoder: ResultEncoder) -> MqttStream:
        """Add a camera, or take one over; see `Publisher.stream`.

        Raises:
            UsageError: the name cannot be part of a topic, or the encoder is another device's.
        """
        check_name("camera", camera)
        encoder.check(self._identity)
        with self._lock:
            seat = self._seats.of(camera)
            return MqttStream(camera, self.topics, encoder, seat, self._queues, self._delivery, self._board)

    def put_event(self, camera: str, encode: Encode) -> int | None:
        """Take one event of any camera, whether or not it has a stream; see `MqttStream.put_event`.

        Raises:
            UsageError: the name cannot be part of a topic.
        """
        return self._queues.put_event(self.topics.event(camera), camera, encode)

    def warn(self, name: str, line: str) -> None:
        """Have the device's retained state say what is wrong; see `Publisher.warn`."""
        if self._board.warn_of_device(name, line):
            self._delivery.notice()

    def telemetry(self, message: TelemetryMessage) -> None:
        """Publish how the device does; see `Publisher.telemetry`."""
        self._delivery.telemetry(msgspec.json.encode(message))

    def keep(self, kind: Kind, topic: str, payload: bytes) -> None:
        """Have this stand on a retained topic, one change a second at most; nothing with no byte. Never blocks."""
        self._delivery.post.keep(kind, topic, payload)
        self._delivery.notice()

    def repeat(self, topic: str) -> None:
        """Publish once more what stands there."""
        self._delivery.post.repeat(topic)
        self._delivery.notice()

    def answer(self, message: Message) -> None:
        """Publish this once, before results; of more than 32 that wait for a connection the oldest goes."""
        self._delivery.post.send("response", message)
        self._delivery.notice()

    def snapshot(self, camera: str, jpeg: bytes, seq: int) -> None:
        """Publish a picture that somebody asked for, as those that a camera's stream puts, but at no rate."""
        self._queues.put_at_once(Message(self.topics.snapshot(camera), jpeg, camera, "snapshot", seq))
        self._delivery.notify()

    def state(self) -> bytes:
        """How the device and its cameras do, JSON: what its retained state says."""
        return self._board.state()

    def stats(self) -> PublisherStats:
        """What happened so far."""
        outbox, delivery, total = self._outbox, self._delivery, self._delivery.of_all()
        pictures = delivery.of_all("snapshot")
        return PublisherStats(
            put=outbox.put_count + self._queues.limited(),
            queued=len(outbox),
            sent=total.sent,
            acknowledged=total.acknowledged,
            rejected=total.rejected,
            dropped=outbox.dropped_count,
            too_large=total.too_large,
            connects=delivery.connects,
            state=delivery.state,
            last_error=delivery.last_error,
            limited=self._queues.limited(),
            events=self._events.stats(),
            snapshots_lost=self._queues.dropped_snapshots + pictures.rejected + pictures.too_large,
        )

    def close(self, timeout_s: float = 5.0, disk_s: float = LAST_COMMIT_S) -> None:
        """Send what waits as far as the time allows, say offline, disconnect; may be called twice.

        Args:
            timeout_s: seconds; with a dead broker it returns sooner. A thread that is stuck in a name server's silence
                is left behind, and ends by itself.
            disk_s: seconds that the disk has for the last events at least, counted from the goodbye; it has the rest of
                `timeout_s`, too. What it has not taken by then is said.
        """
        until = time.monotonic() + timeout_s
        self._delivery.finish(timeout_s)
        self._thread.join(max(0.0, timeout_s))
        self._events.close(max(disk_s, until - time.monotonic()))

    def unsent(self) -> list[Message]:
        """The results that did not go out until `close`, for another publisher; none while its thread still ends."""
        return [] if self._thread.is_alive() else list(iter(self._outbox.take, None))


def load_client() -> None:
    """Load what speaks MQTT: it costs no time while a model loads in another thread. Never raises, and does it once."""
    if _CLIENT in sys.modules:
        return
    with contextlib.suppress(Exception), no_collection():  # who needs it is told
        importlib.import_module(_CLIENT)


def _network(settings: MqttSettings, will: bytes) -> Callable[[], Link]:
    from edge_sdk.publishing.mqtt import MqttLink  # a sixth of a start: only where there is a broker
    from edge_sdk.publishing.tls import broker_tls

    with contextlib.suppress(OSError):  # a shortage, which may be over when it connects
        broker_tls(settings)  # each connection reads the files again; what is wrong with them now is said at once
    return partial(MqttLink, settings, will, Dialect(settings.protocol))
