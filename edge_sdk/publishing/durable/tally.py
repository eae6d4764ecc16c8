"""Tally: how many events came, and what became of them; each is in one of the numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from edge_sdk.publishing.durable.losses import Losses


class Tally:
    """Of one outbox; not for several threads at once.

    Attributes:
        put: that were put since the program began.
        restored: that earlier programs had left on disk.
        delivered: that the broker has.
    """

    def __init__(self) -> None:
        self.put = self.restored = self.delivered = 0
        self._lost: dict[str, int] = {}
        self._through: OrderedDict[int, None] = OrderedDict()  # ids that are counted, and may still be in the file

    def deliver(self, number: int) -> None:
        """The broker says that it has the one with this id."""
        self.delivered += 1
        self._through[number] = None

    def recall(self, numbers: Iterable[int]) -> None:
        """It may not have these."""
        doubtful = set(numbers)
        self.delivered -= len(doubtful)
        for number in doubtful:
            self._through.pop(number, None)

    def refuse(self, number: int) -> None:
        """It never takes this one."""
        self.lose("quarantine", 1)
        self._through[number] = None

    def offer_again(self, count: int) -> None:
        """So many that were put aside wait again; those of earlier programs are not counted as lost here."""
        counted = min(count, self._lost.get("quarantine", 0))
        self.lose("quarantine", -counted)
        self.restored += count - counted

    def lose_those(self, why: str, numbers: set[int]) -> None:
        """These are lost, but for those that are counted already."""
        self.lose(why, len(numbers - self._through.keys()))

    def through_after(self, done_to: int) -> set[int]:
        """Ids above this one that are counted as delivered or lost, and may still be in the file."""
        return {number for number in self._through if number > done_to}

    def forget(self, done_to: int) -> None:
        """Nobody asks any more for those up to an id."""
        while self._through and next(iter(self._through)) <= done_to:  # about in order: a few stay for longer
            self._through.popitem(last=False)

    def lose(self, why: str, count: int) -> None:
        """Some are lost."""
        self._lost[why] = self._lost.get(why, 0) + count

    @property
    def lost(self) -> Losses:
        """What is lost, by why."""
        return Losses(**self._lost)

    @property
    def waiting(self) -> int:
        """What is neither delivered nor lost."""
        return self.put + self.restored - self.delivered - sum(self._lost.values())
