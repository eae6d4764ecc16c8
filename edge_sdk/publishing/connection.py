"""The values of a connection to a broker, and `Wakeup`, for modules that must not load paho, as `client` does."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

Phase: TypeAlias = Literal["opening", "up", "refused", "lost"]

UNSENT_BYTES = 16384
"""Bytes that the kernel takes before the network does; what is under way in the network comes on top."""

NOT_AUTHORIZED, QUOTA_EXCEEDED = 0x87, 0x97
"""MQTT's reason codes."""


class Answer(NamedTuple):
    """The outcome of one published message: its number, what the broker said against it, and MQTT's reason code.

    The complaint is empty when the broker took the message, or it only left (QoS 0).
    """

    number: int
    complaint: str = ""
    code: int = 0


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message that came from the broker.

    Attributes:
        payload: of anybody's making.
        retain: whether it is, or was published as, a retained message; with MQTT 3.1.1, and for `watch`, only those
            that were there before the subscription are known.
        response_topic: where its sender wants an answer; empty where that is not said (always with MQTT 3.1.1).
        correlation: what its sender wants in the answer; empty likewise.
    """

    topic: str
    payload: bytes
    retain: bool = False
    response_topic: str = ""
    correlation: bytes = b""
    qos: int = 0


class Receiver(Protocol):
    """Takes what comes, in the thread that turns the connection: it only leaves it somewhere, and never raises."""

    def receive(self, incoming: Incoming) -> None:
        """Take one message."""
        ...

    def refused(self, line: str) -> None:
        """Take the broker's answer to the subscription: what it refused, for people; empty where it took all."""
        ...


class Wakeup:
    """Lets one thread end another thread's wait, whether that waits for an event or polls the network."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._is_open = True
        self._lock = threading.Lock()  # a closed descriptor's number soon belongs to somebody else

    def wake(self) -> None:
        """End `wait` and a poll of `fileno`; never blocks, and does nothing after `close`."""
        self._event.set()
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._is_open:
                os.write(self._writer, b"\0")

    def wait(self, timeout_s: float) -> None:
        """Wait for `wake`, and forget it."""
        self._event.wait(timeout_s)
        self._event.clear()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._reader

    def clear(self) -> None:
        """Forget what can be read from `fileno`."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Close the pipe; may be called twice."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._reader)
                os.close(self._writer)
