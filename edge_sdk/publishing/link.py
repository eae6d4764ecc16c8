"""Link: what the publisher needs of one connection to a broker.

Owns no behaviour; `mqtt` has the real one, and tests bring their own.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.wakeup import Wakeup

Phase: TypeAlias = Literal["opening", "up", "refused", "lost"]
Kind: TypeAlias = Literal["result", "telemetry", "status", "state"]
"""Of a message; the last two are retained."""


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

    @property
    def is_acknowledging(self) -> bool:
        """Whether results are answered (QoS 1), or only sent (QoS 0)."""
        ...

    def open(self) -> None:
        """Connect; blocks for a few seconds at most.

        Raises:
            OSError: nobody answers, or no certificate to trust.
        """
        ...

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        """Wait for the network or for `wakeup`, then do what there is to do."""
        ...

    def fits(self, kind: Kind, message: Message) -> bool:
        """Whether the broker takes a message of this size."""
        ...

    def publish(self, kind: Kind, message: Message) -> int:
        """Hand over a message; the number comes back from `finished`."""
        ...

    def finished(self) -> list[tuple[int, str]]:
        """Messages that left (QoS 0) or were answered (QoS 1) since the last call; each with the complaint, if any."""
        ...

    def close(self, *, politely: bool) -> None:
        """End it.

        Args:
            politely: say goodbye; otherwise the broker publishes the last will.
        """
        ...
