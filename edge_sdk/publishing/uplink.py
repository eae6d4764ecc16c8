"""Uplink: how the bytes of a connection leave: at once, and few of them out of our sight.

Owns what is asked of the kernel, which would take megabytes: what it has taken counts as sent at QoS 0, goes before
every event that is put later, and before the probe that keeps a connection alive.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

UNSENT_BYTES = 16384
"""That the kernel takes of what the network does not; what is on its way in the network comes on top."""


def keep_in_sight(connection: Any) -> None:
    """Have a connection of paho's send at once, and take little in advance.

    Args:
        connection: TCP, TLS, or what paho makes of either for websockets.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as same:  # paho's websockets hide theirs
        # Otherwise a small message waits for the acknowledgement of the one before, 40 ms on many systems.
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    if not isinstance(connection, socket.socket):
        connection.send = _whole(connection.send)


def _whole(send: Callable[[bytes], int]) -> Callable[[bytes], int]:
    """Websockets of paho say 0 of a packet that left in part, and it is forgotten; one that must wait is not."""

    def send_whole(data: bytes) -> int:
        taken = send(data)
        if not taken:
            raise BlockingIOError
        return taken

    return send_whole
