"""MqttStream: the Sink of one camera that a MqttPublisher brings to its broker.

Owns nothing that outlives it: what it has put, its counts and its numbers are the publisher's.
"""

from __future__ import annotations

from edge_sdk.event import Event
from edge_sdk.frame import Result
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.delivery import Delivery
from edge_sdk.publishing.durable import Encode
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.event_encoder import EventEncoder
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.payload import ControlState, Running, SourceState
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.seat import Seat
from edge_sdk.publishing.seen import Seen
from edge_sdk.publishing.stats import StreamStats
from edge_sdk.publishing.topics import Topics


class MqttStream:
    """Made by `MqttPublisher.stream`; see `Stream`.

    Args:
        camera: whose results.
        topics: of the device.
        encoder: makes their JSON.
        seat: the camera's; taken here.
        queues: where they wait.
        delivery: takes them from there.
        board: what is said of the camera.
    """

    def __init__(
        self,
        camera: str,
        topics: Topics,
        encoder: ResultEncoder,
        seat: Seat,
        queues: Queues,
        delivery: Delivery,
        board: Board,
    ) -> None:
        self.camera = camera
        self._topic, self._event_topic = topics.result(camera), topics.event(camera)
        self._snapshot_topic, self._seen_topic = topics.snapshot(camera), topics.seen(camera)
        self._encoder, self._seat, self._seen = encoder, seat, Seen(camera, encoder)
        self._has_seen = False
        self._events = EventEncoder.beside(encoder, camera)
        self._queues, self._delivery, self._board = queues, delivery, board
        seat.take(self)
        self._entry = board.join(camera, encoder.model)
        delivery.notice()

    def put(self, value: Result | Event) -> None:
        """Encode one result, or event, and leave it to the thread; see `Stream.put`."""
        if isinstance(value, Event):
            self.put_event(lambda seq: self._events.encode(value, seq))
            return
        seq = self._seat.number(self, value.frame.seq)
        if seq is None:
            return
        self._queues.put(Message(self._topic, self._encoder.encode(value, seq), self.camera, "result", seq))
        self._delivery.notify()

    def put_event(self, encode: Encode) -> int | None:
        """Take one event, and keep it until the broker has it; never blocks.

        Args:
            encode: makes the bytes of its message from its number.

        Returns:
            Its number among the camera's events, over restarts; None where it waits for its turn, as `max_per_s` says,
            or for the file to be read, and where another stream has the camera.
        """
        if not self._seat.is_of(self):
            return None
        return self._queues.put_event(self._event_topic, self.camera, encode)

    def put_snapshot(self, jpeg: bytes, seq: int) -> None:
        """Leave one picture to the thread; see `Stream.put_snapshot`."""
        if self._seat.is_of(self):
            self._queues.put(Message(self._snapshot_topic, jpeg, self.camera, "snapshot", seq))
            self._delivery.notify()

    def warn(self, name: str, line: str) -> None:
        """Have the device's retained state say what is wrong; see `Stream.warn`."""
        self._tell(has_news=self._board.warn(self._entry, name, line))

    def announce(self, running: Running) -> None:
        """Have the device's retained state say what runs; see `Stream.announce`."""
        self._tell(has_news=self._board.running(self._entry, running))

    def source(self, state: SourceState) -> None:
        """Have the device's retained state say where the source stands; see `Stream.source`."""
        self._tell(has_news=self._board.source(self._entry, state))

    def controls(self, state: ControlState) -> None:
        """Have the device's retained state say what commands have set; see `Stream.controls`."""
        self._tell(has_news=self._board.controls(self._entry, state))

    def see(self, result: Result) -> None:
        """Have what is seen stand on a retained topic of its own; see `Stream.see`."""
        payload = self._seen.news(result)
        if payload is not None:
            self._has_seen = True
            self._delivery.post.keep("seen", self._seen_topic, payload)
            self._delivery.notify()

    def stats(self) -> StreamStats:
        """What happened so far; see `Stream.stats`."""
        waiting, counts = self._queues.of_camera(self.camera), self._delivery.of_camera(self.camera)
        limited = self._queues.limited(self.camera)
        return StreamStats(
            put=waiting.put + limited,
            queued=waiting.queued,
            sent=counts.sent,
            acknowledged=counts.acknowledged,
            rejected=counts.rejected,
            dropped=waiting.dropped,
            too_large=counts.too_large,
            limited=limited,
        )

    def close(self) -> None:
        """Leave; see `Stream.close`."""
        if self._seat.leave(self):
            self._board.leave(self._entry)
            if self._has_seen:
                self._delivery.post.keep("seen", self._seen_topic, b"")
            self._delivery.notice()

    def _tell(self, *, has_news: bool) -> None:
        if has_news:
            self._delivery.notice()
