"""MqttStream: the Sink of one camera that a MqttPublisher brings to its broker.

Owns nothing that outlives it: what it has put, its counts and its numbers are the publisher's.
"""

from __future__ import annotations

from edge_sdk.frame import Result
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.delivery import Delivery
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.outbox import MemoryOutbox, Message
from edge_sdk.publishing.payload import Running, SourceState
from edge_sdk.publishing.seat import Seat
from edge_sdk.publishing.stats import StreamStats


class MqttStream:
    """Made by `MqttPublisher.stream`; see `Stream`.

    Args:
        camera: whose results.
        topic: where they go.
        encoder: makes their JSON.
        seat: the camera's; taken here.
        outbox: where they wait.
        delivery: takes them from there.
        board: what is said of the camera.
    """

    def __init__(
        self,
        camera: str,
        topic: str,
        encoder: ResultEncoder,
        seat: Seat,
        outbox: MemoryOutbox,
        delivery: Delivery,
        board: Board,
    ) -> None:
        self.camera = camera
        self._topic, self._encoder, self._seat = topic, encoder, seat
        self._outbox, self._delivery, self._board = outbox, delivery, board
        seat.take(self)
        self._entry = board.join(camera, encoder.model)
        delivery.notice()

    def put(self, result: Result) -> None:
        """Encode one result and leave it to the thread; see `Stream.put`."""
        seq = self._seat.number(self, result.frame.seq)
        if seq is None:
            return
        self._outbox.put(Message(self._topic, self._encoder.encode(result, seq), self.camera))
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

    def stats(self) -> StreamStats:
        """What happened so far; see `Stream.stats`."""
        waiting, counts = self._outbox.of_camera(self.camera), self._delivery.of_camera(self.camera)
        return StreamStats(
            put=waiting.put,
            queued=waiting.queued,
            sent=counts.sent,
            acknowledged=counts.acknowledged,
            rejected=counts.rejected,
            dropped=waiting.dropped,
            too_large=counts.too_large,
        )

    def close(self) -> None:
        """Leave; see `Stream.close`."""
        if self._seat.leave(self):
            self._board.leave(self._entry)
            self._delivery.notice()

    def _tell(self, *, has_news: bool) -> None:
        if has_news:
            self._delivery.notice()
