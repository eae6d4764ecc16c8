"""MqttPublisher: brings the results of all cameras of a device to a broker, through its absence, refusals and restarts.

Owns the thread that delivers. Nothing that happens to the network reaches a stream's `put`.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from edge_sdk.errors import UsageError
from edge_sdk.garbage import no_collection
from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.delivery import Delivery
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.identity import Identity
from edge_sdk.publishing.link import Link
from edge_sdk.publishing.mqtt_stream import MqttStream
from edge_sdk.publishing.outbox import MemoryOutbox
from edge_sdk.publishing.payload import TelemetryMessage
from edge_sdk.publishing.seat import Seat
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.stats import PublisherStats, State

_STALL_KEEPALIVES = 2.0  # as long as MQTT itself gives a silent peer, and half of it again


class MqttPublisher:
    """Publishes over one MQTT connection from a thread of its own, which starts at once; see `Publisher`.

    Args:
        settings: which broker, and who we are there.
        identity: who speaks; its device must be the settings'.
        on_state: called with the new state and a detail for people, from the publisher's thread, never from `put`.
        versions: of the software, by name, for the online status.
        outbox: where results wait.
        backoff: how long to wait between connections.
        make_link: makes connections; over the network by default.

    Raises:
        UsageError: the identity is another device's, or the CA file cannot be used.
    """

    def __init__(
        self,
        settings: MqttSettings,
        identity: Identity,
        *,
        on_state: Callable[[State, str], None] | None = None,
        versions: Mapping[str, str] | None = None,
        outbox: MemoryOutbox | None = None,
        backoff: Backoff | None = None,
        make_link: Callable[[], Link] | None = None,
    ) -> None:
        if identity.device != settings.device:
            raise UsageError(f"results are of device {identity.device!r}, the MQTT topics of {settings.device!r}")
        self._identity, self._topics = identity, settings.topics
        self._seats: dict[str, Seat] = {}
        self._lock = threading.Lock()
        self._outbox = MemoryOutbox() if outbox is None else outbox
        self._board = Board(identity, versions or {})
        self._delivery = Delivery(
            self._outbox,
            self._board,
            settings.topics,
            make_link or _network(settings, self._board.offline("lost")),
            backoff or Backoff(),
            on_state=on_state,
            stall_s=settings.keepalive_s * _STALL_KEEPALIVES,
        )
        self._thread = threading.Thread(target=self._delivery.run, name="edge-mqtt", daemon=True)
        self._thread.start()

    def stream(self, camera: str, encoder: ResultEncoder) -> MqttStream:
        """Add a camera, or take one over; see `Publisher.stream`.

        Raises:
            UsageError: the name cannot be part of a topic, or the encoder is another device's.
        """
        topic = self._topics.result(camera)
        encoder.check(self._identity)
        with self._lock:
            seat = self._seats.setdefault(camera, Seat())
            return MqttStream(camera, topic, encoder, seat, self._outbox, self._delivery, self._board)

    def telemetry(self, message: TelemetryMessage) -> None:
        """Publish how the device does; see `Publisher.telemetry`."""
        self._delivery.telemetry(msgspec.json.encode(message))

    def stats(self) -> PublisherStats:
        """What happened so far."""
        outbox, delivery, total = self._outbox, self._delivery, self._delivery.of_all()
        return PublisherStats(
            put=outbox.put_count,
            queued=len(outbox),
            sent=total.sent,
            acknowledged=total.acknowledged,
            rejected=total.rejected,
            dropped=outbox.dropped_count,
            too_large=total.too_large,
            connects=delivery.connects,
            state=delivery.state,
            last_error=delivery.last_error,
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what waits as far as the time allows, say offline, disconnect; may be called twice.

        Args:
            timeout_s: seconds; with a dead broker it returns sooner. A thread that is stuck in a name server's silence
                is left behind, and ends by itself.
        """
        self._delivery.finish(timeout_s)
        self._thread.join(max(0.0, timeout_s))


def load_client() -> None:
    """Load what speaks MQTT: it costs no time while a model loads in another thread. Never raises."""
    with contextlib.suppress(Exception), no_collection():  # who needs it is told
        importlib.import_module("edge_sdk.publishing.mqtt")


def _network(settings: MqttSettings, will: bytes) -> Callable[[], Link]:
    from edge_sdk.publishing.mqtt import MqttLink, tls_context  # a sixth of a start: only where there is a broker

    try:
        tls = tls_context(settings)
    except OSError as cause:
        raise UsageError(f"{settings.ca_file}: not a PEM file of CA certificates: {cause.strerror or cause}") from cause
    return partial(MqttLink, settings, will, tls)
