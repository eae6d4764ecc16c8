"""The values of a connection to a broker, and `Wakeup`, for modules that must not load paho, as `client` does."""

from __future__ import annotations

import contextlib
import os
import select
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
    """Lets one thread end another thread's wait, or its poll of the network."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_open = True
        self._lock = threading.Lock()  # a closed descriptor's number soon belongs to somebody else

    def wake(self) -> None:
        """End `wait` and a poll of `fileno`; never blocks, and does nothing after `close`."""
        with self._lock:
            if self._is_open:
                os.eventfd_write(self._descriptor, 1)

    def wait(self, timeout_s: float) -> None:
        """Wait for `wake`, and forget it."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)
        self.clear()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._descriptor

    def clear(self) -> None:
        """Forget what ended a poll."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._descriptor)
