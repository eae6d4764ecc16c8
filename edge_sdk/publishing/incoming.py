"""What comes from the broker: Incoming, and Receiving, a link that subscribes and hands over what comes.

Owns no meaning: who takes it says what a message is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from edge_sdk.publishing.link import Answer, Kind, Link, Phase
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.wakeup import Wakeup


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

    def __init__(self, link: Link, topics: Sequence[str], receiver: Receiver) -> None:
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
