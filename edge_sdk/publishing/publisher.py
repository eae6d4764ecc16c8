"""MqttPublisher: the Sink that brings results to a broker, through its absence, refusals and restarts.

Owns the thread that delivers. Nothing that happens to the network reaches `put`.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from functools import partial

from edge_sdk.errors import UsageError
from edge_sdk.frame import Result
from edge_sdk.garbage import no_collection
from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.delivery import Delivery
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.link import Link
from edge_sdk.publishing.outbox import MemoryOutbox, Message
from edge_sdk.publishing.payload import Running
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.stats import PublisherStats, State

_STALL_KEEPALIVES = 2.0  # as long as MQTT itself gives a silent peer, and half of it again


class MqttPublisher:
    """Publishes results over MQTT from a thread of its own, which starts at once.

    Args:
        settings: which broker, and who we are there.
        encoder: makes the JSON; its device must be the settings'.
        on_state: called with the new state and a detail for people, from the publisher's thread, never from `put`.
        versions: of the software, by name, for the online status.
        outbox: where results wait.
        backoff: how long to wait between connections.
        make_link: makes connections; over the network by default.

    Raises:
        UsageError: the encoder is for another device, or the CA file cannot be used.
    """

    def __init__(
        self,
        settings: MqttSettings,
        encoder: ResultEncoder,
        *,
        on_state: Callable[[State, str], None] | None = None,
        versions: Mapping[str, str] | None = None,
        outbox: MemoryOutbox | None = None,
        backoff: Backoff | None = None,
        make_link: Callable[[], Link] | None = None,
    ) -> None:
        if encoder.device != settings.device:
            raise UsageError(f"results are of device {encoder.device!r}, the MQTT topics of {settings.device!r}")
        self._encoder = encoder
        self._topics = settings.topics
        self._result_topics: dict[str, str] = {}
        self._outbox = MemoryOutbox() if outbox is None else outbox
        self._delivery = Delivery(
            self._outbox,
            encoder,
            make_link or _network(settings, encoder),
            backoff or Backoff(),
            camera=settings.camera,
            versions=versions or {},
            on_state=on_state,
            stall_s=settings.keepalive_s * _STALL_KEEPALIVES,
        )
        self._thread = threading.Thread(target=self._delivery.run, name="edge-mqtt", daemon=True)
        self._thread.start()

    def put(self, result: Result) -> None:
        """Encode one result and leave it to the thread.

        Raises:
            UsageError: the camera's name cannot be part of a topic.
        """
        camera = result.frame.camera
        topic = self._result_topics.get(camera)
        if topic is None:
            topic = self._result_topics[camera] = self._topics.result(camera)
        self._outbox.put(Message(topic, self._encoder.encode(result)))
        self._delivery.notify()

    def warn(self, name: str, line: str) -> None:
        """Publish a warning with the camera's status, until this run ends.

        Args:
            name: of what is wrong, such as `not_finite`; a later warning of that name takes its place.
            line: for people.
        """
        self._delivery.warn(name, line)

    def announce(self, running: Running) -> None:
        """Have the camera's retained status say what runs; never blocks."""
        self._delivery.announce(running)

    def stats(self) -> PublisherStats:
        """What happened so far."""
        outbox, delivery = self._outbox, self._delivery
        return PublisherStats(
            put=outbox.put_count,
            queued=len(outbox),
            sent=delivery.sent,
            acknowledged=delivery.acknowledged,
            rejected=delivery.rejected,
            dropped=outbox.dropped_count,
            too_large=delivery.too_large,
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


def _network(settings: MqttSettings, encoder: ResultEncoder) -> Callable[[], Link]:
    from edge_sdk.publishing.mqtt import MqttLink, tls_context  # a sixth of a start: only where there is a broker

    try:
        tls = tls_context(settings)
    except OSError as cause:
        raise UsageError(f"{settings.ca_file}: not a PEM file of CA certificates: {cause.strerror or cause}") from cause
    return partial(MqttLink, settings, encoder.encode_status(settings.camera, "offline", "lost"), tls)
