"""Losses: events that never reach the broker, by why."""

from __future__ import annotations

import msgspec


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """Of one outbox, since the program began.

    Attributes:
        overflow: the oldest, when more were on disk than its bound allows.
        age: that waited for longer than its bound allows.
        quarantine: that the broker does not take (too large, not authorized): kept beside the others, not sent.
        memory: that were in memory only, because the disk did not take them, when there was no more room or the
            program ended.
        disk: that were on a disk which gives them back no more, as far as that is known.
    """

    overflow: int = 0
    age: int = 0
    quarantine: int = 0
    memory: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """Of all classes."""
        return self.overflow + self.age + self.quarantine + self.memory + self.disk
