"""A door before a real broker that refuses MQTT 5, as brokers of 2016 do."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.system.broker import WAIT_S, Broker


class OldBroker:
    """Passes connections on, but for those that begin in MQTT 5.

    Args:
        broker: to whom.

    Attributes:
        port: of the door.
        refused: how many it refused.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.refused = 0
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def __enter__(self) -> OldBroker:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join(WAIT_S)
        for each in self._sockets:
            each.close()

    def _begin(self, work: object, *arguments: socket.socket) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self._welcome(client)

    def _welcome(self, client: socket.socket) -> None:
        first = client.recv(4096)
        if b"MQTT\x05" in first:
            self.refused += 1
            client.sendall(b"\x20\x02\x00\x01")
            _shut(client)
            return
        try:
            server = socket.create_connection((self._broker.host, self._broker.port))
        except OSError:  # it is away
            _shut(client)
            return
        self._sockets.append(server)
        server.sendall(first)
        self._begin(_pass_on, client, server)
        self._begin(_pass_on, server, client)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    _shut(source)
    _shut(sink)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
