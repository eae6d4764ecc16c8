"""Flight: the messages that are on their way over one connection, and what came back of them.

Owns the window's content and the clock of the broker's answers; what becomes of a message is `Delivery`'s matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from edge_sdk.publishing.link import Answer, Kind, Link
from edge_sdk.publishing.outbox import Message


class Flight:
    """Of one connection after the other.

    Args:
        stall_s: seconds without an answer, with messages on their way, after which a connection is given up.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._messages: dict[int, tuple[Kind, Message]] = {}  # oldest first
        self._progress_at = 0.0

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, number: int) -> bool:
        return number in self._messages

    def publish(self, link: Link, kind: Kind, message: Message) -> int:
        """Put one on its way; the number tells it from the others of this connection."""
        if not self._messages:
            self._progress_at = time.monotonic()
        number = link.publish(kind, message)
        self._messages[number] = (kind, message)
        return number

    def landed(self, link: Link) -> Iterator[tuple[Kind, Message, Answer]]:
        """Those that left or were answered since the last call; they are on their way no more."""
        for answer in link.finished():
            self._progress_at = time.monotonic()
            found = self._messages.pop(answer.number, None)
            if found is not None:
                yield (*found, answer)

    def check_stall(self) -> None:
        """Look whether answers still come.

        Raises:
            TimeoutError: none came for too long.
        """
        if self._messages and time.monotonic() - self._progress_at > self._stall_s:
            raise TimeoutError(f"the broker answered nothing for {self._stall_s:.0f} s")

    def messages(self) -> list[tuple[Kind, Message]]:
        """Those on their way, oldest first."""
        return list(self._messages.values())

    def take_back(self, kind: Kind) -> list[Message]:
        """Those of one kind that did not arrive, oldest first; the connection is over."""
        return [message for of_kind, message in self._messages.values() if of_kind == kind]

    def clear(self) -> None:
        """Forget them all."""
        self._messages.clear()
