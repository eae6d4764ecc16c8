"""Sent: what came of messages that were taken from the outbox, counted."""

from __future__ import annotations


class Sent:
    """Counts of one camera, or of all.

    Attributes:
        sent: that left.
        acknowledged: of them, that the broker took.
        rejected: of them, that it complained about.
        too_large: that were not sent.
    """

    __slots__ = ("acknowledged", "rejected", "sent", "too_large")

    def __init__(self) -> None:
        self.sent = self.acknowledged = self.rejected = self.too_large = 0

    def count(self, *, is_answer: bool, complaint: str) -> None:
        """One left.

        Args:
            is_answer: the broker said so.
            complaint: that came with it; empty when it took the message.
        """
        self.sent += 1
        if complaint:
            self.rejected += 1
        elif is_answer:
            self.acknowledged += 1

    def add(self, other: Sent) -> None:
        """Count another's messages as well."""
        self.sent += other.sent
        self.acknowledged += other.acknowledged
        self.rejected += other.rejected
        self.too_large += other.too_large
