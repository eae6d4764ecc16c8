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
"""Limit of the unsent bytes in the kernel's send buffer; bytes on their way in the network are not counted."""

NOT_AUTHORIZED, QUOTA_EXCEEDED = 0x87, 0x97
"""MQTT's reason codes."""


class PublishOutcome(NamedTuple):
    """The outcome of one message: its number, the broker's complaint, which may be empty, and MQTT's reason code."""

    number: int
    complaint: str = ""
    code: int = 0


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message that came from the broker, of which any client may have written it."""

    topic: str
    payload: bytes
    # Whether it is, or was published as, a retained message; with MQTT 3.1.1, and for `watch`, only those that were
    # there before the subscription are known.
    retain: bool = False
    response_topic: str = ""  # where the sender wants an answer; never with MQTT 3.1.1
    correlation: bytes = b""  # what the sender wants in the answer
    qos: int = 0


class Receiver(Protocol):
    """Takes received messages in the connection's thread; its methods only queue them, and never block or raise."""

    def receive(self, incoming: Incoming) -> None:
        """Take one message."""
        ...

    def refused(self, line: str) -> None:
        """Take the broker's answer to the subscription: a line about refused topics, empty where it granted all."""
        ...


class Wakeup:
    """Lets one thread end another thread's wait, or its poll of the network."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_open = True
        self._lock = threading.Lock()  # the number of a closed descriptor is soon used again

    def wake(self) -> None:
        """End `wait` and a poll of `fileno`; never blocks, and does nothing after `close`."""
        with self._lock:
            if self._is_open:
                os.eventfd_write(self._descriptor, 1)

    def wait(self, timeout_s: float) -> None:
        """Wait for `wake`, then reset it."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)
        self.clear()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._descriptor

    def clear(self) -> None:
        """Reset the wake-up that ended a poll."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._descriptor)
