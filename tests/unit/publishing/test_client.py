"""What a broker may do to a connection."""

from __future__ import annotations

import socket
import time
from contextlib import closing

from edge_sdk.publishing.client import MqttConnection
from edge_sdk.publishing.connection import Wakeup
from edge_sdk.publishing.settings import MqttSettings


def test_a_packet_that_is_absurdly_large_ends_the_connection_before_it_takes_memory() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, closing(Wakeup()) as wakeup:
        connection = MqttConnection(MqttSettings(host="127.0.0.1", port=listener.getsockname()[1], device="pi"), b"{}")
        connection.open()
        with listener.accept()[0] as broker:
            broker.sendall(b"\x20\x03\x00\x00\x00" + b"\x30\xff\xff\xff\x7f\x00\x01a\x00")
            deadline = time.monotonic() + 2
            while connection.phase != "lost" and time.monotonic() < deadline:
                connection.turn(0.1, wakeup)
        connection.close(politely=False)
    assert connection.phase == "lost"
