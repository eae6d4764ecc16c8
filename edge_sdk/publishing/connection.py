"""Link: what the publisher needs of one connection to a broker.

Owns no behaviour; `mqtt` has the real one, and tests bring their own.

What comes from the broker: Incoming, and Receiving, a link that subscribes and hands over what comes.

Owns no meaning: who takes it says what a message is worth.

Wakeup: lets one thread end another one's wait.

Owns an event for a thread that waits for nothing else, and a pipe for one that waits for the network as well.

Dialect: how much of MQTT a broker understands: which version, and up to which QoS.

Owns what was found out, for as long as the publisher lives; a program that starts again asks again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from edge_sdk.messages.schema import Message


class Wakeup:
    """A bell that is heard in both kinds of wait."""

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
        """Wait for a ring, and forget it."""
        self._event.wait(timeout_s)
        self._event.clear()

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._reader

    def clear(self) -> None:
        """Forget what can be read."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Give the pipe back; may be called twice."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._reader)
                os.close(self._writer)


Phase: TypeAlias = Literal["opening", "up", "refused", "lost"]
Kind: TypeAlias = Literal[
    "result", "event", "snapshot", "telemetry", "response", "status", "state", "seen", "discovery"
]
"""Of a message; the last four are retained."""


UNSENT_BYTES = 16384
"""That the kernel takes of what the network does not; what is on its way in the network comes on top."""

NOT_AUTHORIZED, QUOTA_EXCEEDED = 0x87, 0x97
"""MQTT's reason codes."""


class Answer(NamedTuple):
    """What became of one message.

    Attributes:
        number: that `publish` gave.
        complaint: what the broker said against it, for people; empty when it took the message, or only left (QoS 0).
        code: MQTT's reason code.
    """

    number: int
    complaint: str = ""
    code: int = 0


class Connection(Protocol):
    """One connection, from CONNECT to its end, and never used again after that.

    A new connection begins with nothing left over from the old one: what did not arrive is offered again by the outbox.
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
        """How many messages may be on their way at once."""
        ...

    def acknowledges(self, kind: Kind) -> bool:
        """Whether messages of a kind are answered (QoS 1), or only sent (QoS 0)."""
        ...

    def open(self) -> None:
        """Connect; blocks for a few seconds at most. Where one of the two does not trust the other, it is refused.

        Raises:
            OSError: nobody answers.
        """
        ...

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Wait for the network or for `wakeup`, then do what there is to do.

        Raises:
            TimeoutError: nothing came from one of the two for longer than the keep-alive allows; it is lost.
        """
        ...

    def fits(self, kind: Kind, message: Message) -> bool:
        """Whether the broker takes a message of this size."""
        ...

    def publish(self, kind: Kind, message: Message) -> int:
        """Hand over a message; the number comes back from `finished`."""
        ...

    def finished(self) -> list[Answer]:
        """Messages that left (QoS 0) or were answered (QoS 1) since the last call."""
        ...

    def heard(self) -> bool:
        """Whether anything at all came from the broker since the last call: an answer, or a sign of life."""
        ...

    def subscribe(self, topics: Sequence[str]) -> None:
        """Ask for what is published on these topics from now on, and what is retained there."""
        ...

    def received(self) -> list[Incoming]:
        """What came since the last call."""
        ...

    def refusals(self) -> list[str]:
        """Answers to `subscribe` since the last call: what the broker refused, for people; empty where it took all."""
        ...

    def doubts(self) -> dict[str, str]:
        """What is not wrong yet with this connection, by name, each a line for people; empty where nothing is."""
        ...

    def close(self, *, politely: bool) -> None:
        """End it.

        Args:
            politely: say goodbye; otherwise the broker publishes the last will.
        """
        ...


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message that came.

    Attributes:
        topic: where it was published.
        payload: its bytes, of anybody's making.
        retain: whether it is, or was published as, a retained one; of MQTT 3.1.1 only those that were there before the
            subscription are known.
        response_topic: where its sender wants an answer; empty where that is not said (always with MQTT 3.1.1).
        correlation: what its sender wants in the answer; empty likewise.
    """

    topic: str
    payload: bytes
    retain: bool = False
    response_topic: str = ""
    correlation: bytes = b""


class Receiver(Protocol):
    """Takes what comes, in the publisher's thread: it only leaves it somewhere, and never raises."""

    def receive(self, incoming: Incoming) -> None:
        """Take one message."""
        ...

    def refused(self, line: str) -> None:
        """The broker does not let this device read what it asked for; a line for people, empty when it does."""
        ...


class Receiving:
    """A `Link` that subscribes once it is up; everything else is another link's.

    Args:
        link: that connects.
        topics: what is listened to.
        receiver: takes what comes.
    """

    def __init__(self, link: Connection, topics: Sequence[str], receiver: Receiver) -> None:
        self._link, self._topics, self._receiver = link, tuple(topics), receiver
        self._has_subscribed = False

    @property
    def phase(self) -> Phase:
        """See `Link.phase`."""
        return self._link.phase

    @property
    def detail(self) -> str:
        """See `Link.detail`."""
        return self._link.detail

    @property
    def window(self) -> int:
        """See `Link.window`."""
        return self._link.window

    def acknowledges(self, kind: Kind) -> bool:
        """See `Link.acknowledges`."""
        return self._link.acknowledges(kind)

    def open(self) -> None:
        """See `Link.open`."""
        self._link.open()

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Do what `Link.turn` does, and hand over what came."""
        self._link.turn(timeout_s, wakeup)
        if self._link.phase != "up":
            return
        if not self._has_subscribed:
            self._has_subscribed = True
            self._link.subscribe(self._topics)
        for incoming in self._link.received():
            self._receiver.receive(incoming)
        for line in self._link.refusals():
            self._receiver.refused(line)

    def fits(self, kind: Kind, message: Message) -> bool:
        """See `Link.fits`."""
        return self._link.fits(kind, message)

    def publish(self, kind: Kind, message: Message) -> int:
        """See `Link.publish`."""
        return self._link.publish(kind, message)

    def finished(self) -> list[Answer]:
        """See `Link.finished`."""
        return self._link.finished()

    def heard(self) -> bool:
        """See `Link.heard`."""
        return self._link.heard()

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `Link.subscribe`."""
        self._link.subscribe(topics)

    def received(self) -> list[Incoming]:
        """Nothing: the receiver has it."""
        return []

    def refusals(self) -> list[str]:
        """Nothing: the receiver has them."""
        return []

    def doubts(self) -> dict[str, str]:
        """See `Link.doubts`."""
        return self._link.doubts()

    def close(self, *, politely: bool) -> None:
        """See `Link.close`."""
        self._link.close(politely=politely)


_OLD = (
    "the broker knows no MQTT 5, and 3.1.1 is spoken: messages do not expire there, and it does not say what it "
    'refuses; update it, or set protocol = "3.1.1" (--mqtt-version)'
)
_QOS_0_ONLY = (
    "this broker takes QoS 0 only: events cannot be acknowledged, and wait; have it take QoS 1 (Mosquitto's max_qos)"
)


class ProtocolFallback:
    """Of one broker.

    Args:
        protocol: what is tried first.

    Attributes:
        protocol: what is spoken from now on.
        max_qos: above which it takes nothing, the last will neither.
    """

    def __init__(self, protocol: Literal["5", "3.1.1"]) -> None:
        self.protocol = protocol
        self.max_qos = 1
        self._is_fallback = False

    @property
    def is_v5(self) -> bool:
        """Whether messages bear properties."""
        return self.protocol == "5"

    @property
    def doubt(self) -> str:
        """What is lost by the version, for people; empty where nothing is, or where it was asked for."""
        return _OLD if self._is_fallback else ""

    @property
    def doubt_of_qos(self) -> str:
        """The same of the QoS."""
        return "" if self.max_qos else _QOS_0_ONLY

    def fall_back(self) -> bool:
        """The broker did not understand this one; False when there is no other."""
        if not self.is_v5:
            return False
        self.protocol, self._is_fallback = "3.1.1", True
        return True
