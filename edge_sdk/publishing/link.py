"""Link: what the publisher needs of one connection to a broker.

Owns no behaviour; `mqtt` has the real one, and tests bring their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.wakeup import Wakeup

if TYPE_CHECKING:
    from edge_sdk.publishing.incoming import Incoming

Phase: TypeAlias = Literal["opening", "up", "refused", "lost"]
Kind: TypeAlias = Literal[
    "result", "event", "snapshot", "telemetry", "response", "status", "state", "seen", "discovery"
]
"""Of a message; the last four are retained."""


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


class Link(Protocol):
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
