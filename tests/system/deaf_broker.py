"""A broker of a few lines for MQTT 5, which answers connections and subscriptions as it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from types import TracebackType

_NOT_AUTHORIZED = 0x87
_WINDOW = 20
_TOPIC = b"edge/v1/a/pi/result/gate"


class DeafBroker:
    """Serves one connection after the other on loopback.

    Args:
        connects: reason codes for the first connections; those after them are taken.
        subscribes: for the first subscriptions, which are granted after them; None refuses all.
        sends: messages of QoS 1 that follow a subscription, each with its number; 20 at most are not acknowledged.

    Attributes:
        sent: how many messages were sent.
        pings: how many probes came.
        connections: how many were made.
    """

    def __init__(self, connects: Sequence[int] = (), subscribes: Sequence[int] | None = None, sends: int = 0) -> None:
        self._sends, self.sent, self._acknowledged = sends, 0, 0
        self.pings = self.connections = 0
        self._connects, self._subscribes = list(connects), None if subscribes is None else list(subscribes)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """For `--mqtt`."""
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> DeafBroker:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rb") as stream:
                while head := stream.read(1):
                    body = stream.read(_length(stream.read))
                    self._answer(connection, head[0], body)

    def _answer(self, connection: socket.socket, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == 1:  # CONNECT
            reason = self._connects.pop(0) if self._connects else 0
            connection.sendall(bytes((0x20, 3, 0, reason, 0)))
        elif kind == 3 and head & 0x06:  # PUBLISH at QoS 1: the id stands behind the topic
            at = 2 + int.from_bytes(body[:2], "big")
            connection.sendall(bytes((0x40, 2)) + body[at : at + 2])
        elif kind == 8:  # SUBSCRIBE
            reason = _NOT_AUTHORIZED if self._subscribes is None else (self._subscribes or [1]).pop(0)
            connection.sendall(bytes((0x90, 4)) + body[:2] + bytes((0, reason)))
            self._send(connection)
        elif kind == 4:  # PUBACK
            self._acknowledged += 1
            self._send(connection)
        elif kind == 12:  # PINGREQ
            self.pings += 1
            connection.sendall(bytes((0xD0, 0)))

    def _send(self, connection: socket.socket) -> None:
        while self.sent < min(self._sends, self._acknowledged + _WINDOW):
            self.sent += 1
            packet = len(_TOPIC).to_bytes(2, "big") + _TOPIC + self.sent.to_bytes(2, "big") + b"\0%d" % self.sent
            connection.sendall(bytes((0x32, len(packet))) + packet)


def _length(read: object) -> int:
    total = shift = 0
    while True:
        byte = read(1)[0]  # type: ignore[operator]
        total |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return total
