"""What the publisher and the subscriber need of one connection to a broker: the protocol, its values, and `Wakeup`.

`client.MqttConnection` is the real connection, and the only module that loads paho; tests bring connections of their
own. `session.PublishSession` decides what goes over a connection next.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from edge_sdk.messages.schema import Message, MessageKind

Phase: TypeAlias = Literal["opening", "up", "refused", "lost"]

UNSENT_BYTES = 16384
"""Bytes that the kernel takes before the network does; what is under way in the network comes on top."""

NOT_AUTHORIZED, QUOTA_EXCEEDED = 0x87, 0x97
"""MQTT's reason codes."""


class Answer(NamedTuple):
    """The outcome of one published message.

    Attributes:
        number: the number that `publish` gave it.
        complaint: what the broker said against it, for people; empty when it took the message, or only left (QoS 0).
        code: MQTT's reason code.
    """

    number: int
    complaint: str = ""
    code: int = 0


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message that came from the broker.

    Attributes:
        topic: where it was published.
        payload: its bytes, of anybody's making.
        retain: whether it is, or was published as, a retained message; with MQTT 3.1.1, and for `watch`, only those
            that were there before the subscription are known.
        response_topic: where its sender wants an answer; empty where that is not said (always with MQTT 3.1.1).
        correlation: what its sender wants in the answer; empty likewise.
        qos: the quality of service with which it came.
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


class Connection(Protocol):
    """One connection, from CONNECT to its end, and never used again after that.

    A new connection begins with nothing left over from the old one: the session offers again what did not arrive.
    """

    @property
    def phase(self) -> Phase:
        """`opening` until the broker answers, then `up`; `refused` or `lost` is the end."""
        ...

    @property
    def detail(self) -> str:
        """Why it was refused or lost, for people."""
        ...

    @property
    def window(self) -> int:
        """How many messages may be in flight at once."""
        ...

    def listen(self, topics: Sequence[str], receiver: Receiver) -> None:
        """Subscribe to topics as soon as the broker answers, and hand over what comes in `turn`; before `open`."""
        ...

    def acknowledges(self, kind: MessageKind) -> bool:
        """Tell whether messages of a kind are answered (QoS 1), or only sent (QoS 0)."""
        ...

    def open(self) -> None:
        """Connect; blocks for a few seconds at most. Where one of the two does not trust the other, it is refused.

        Raises:
            OSError: nobody answers.
        """
        ...

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Wait for the network or for `wakeup`, then read, write and probe.

        Raises:
            TimeoutError: nothing came from the broker for longer than the keep-alive allows; the connection is lost.
        """
        ...

    def fits(self, kind: MessageKind, message: Message) -> bool:
        """Tell whether the broker takes a message of this size."""
        ...

    def publish(self, kind: MessageKind, message: Message) -> int:
        """Send a message; its number comes back from `finished`."""
        ...

    def finished(self) -> list[Answer]:
        """Take the messages that left (QoS 0) or were answered (QoS 1) since the last call."""
        ...

    def heard(self) -> bool:
        """Tell whether anything came from the broker since the last call: an answer, or a sign of life."""
        ...

    def warnings(self) -> dict[str, str]:
        """Return warnings by name, each a line for people, an empty one where nothing is wrong."""
        ...

    def close(self, *, politely: bool) -> None:
        """End the connection.

        Args:
            politely: send DISCONNECT; otherwise the broker publishes the last will.
        """
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
