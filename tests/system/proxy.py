"""A TCP proxy that does to a connection what routers do: passes, swallows, resets, or lets a trickle through."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["pass", "swallow", "reset", "trickle"]

TRICKLE_BYTES = 40
"""The most that goes through at once."""
_TRICKLE_S = 0.02
_SLOW_BYTES = 512  # of a slow link, at once
_SLOW_BUFFER_BYTES = 4096


class Proxy:
    """Between clients and 127.0.0.1:port.

    Args:
        port: of the server.
        bytes_per_s: of a slow link that holds little itself, from clients to the server; infinity: no limit.

    Attributes:
        bytes_per_s: as above; may change at any moment.
        mode: `pass` everything; `swallow`: take what comes and pass nothing on, as a dead link does; `reset`: end every
            connection, and the new ones; `trickle`: a few bytes at a time. May change at any moment.
        port: where it listens.
        connections: how many came so far.
        pieces: the sizes in bytes of what came from clients so far, each passed on, or not, for itself.
        flow_s: seconds that this took, without those in which nothing came.
    """

    def __init__(self, port: int, bytes_per_s: float = math.inf) -> None:
        self.mode: Mode = "pass"
        self.bytes_per_s = bytes_per_s
        self.connections = 0
        self.pieces: list[int] = []
        self.flow_s = 0.0
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        if bytes_per_s < math.inf:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        self.port: int = self._listener.getsockname()[1]
        self._is_open = True
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_open = False
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while self._is_open:
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            client, _ = self._listener.accept()
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self.mode == "reset":
                _reset(client)
                return
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._server_port)) as server:
                while self._is_open and self._pump(client, server):
                    pass

    def _pump(self, client: socket.socket, server: socket.socket) -> bool:
        """One turn; False at the end of either side."""
        ready = select.select([client, server], [], [], 0.05)[0]
        mode = self.mode  # as it is now, and not as it was when nothing came
        if mode == "reset":
            _reset(client)
            return False
        for source in ready:
            begun = time.monotonic()
            is_slow = source is client and self.bytes_per_s < math.inf
            data = source.recv(TRICKLE_BYTES if mode == "trickle" else _SLOW_BYTES if is_slow else 65536)
            if not data:
                return False
            time.sleep(_TRICKLE_S if mode == "trickle" else len(data) / self.bytes_per_s if is_slow else 0.0)
            if mode != "swallow":
                (server if source is client else client).sendall(data)
            if source is client:
                self.pieces.append(len(data))
                self.flow_s += time.monotonic() - begun
        return True


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
