"""A connection to a broker, made by hand: answers at once, or when told to."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from edge_sdk.publishing.incoming import Incoming
from edge_sdk.publishing.link import Answer, Kind, Phase
from edge_sdk.publishing.outbox import Message
from edge_sdk.publishing.wakeup import Wakeup


class FakeLink:
    """A connection whose broker is a few lines: answers at once, or when told to."""

    def __init__(
        self,
        *,
        phase: Phase = "up",
        detail: str = "",
        error: Exception | None = None,
        window: int = 20,
        answers: bool = True,
        complaint: str = "",
        judge: Callable[[Kind, Message], tuple[str, int]] | None = None,
        limit: int = 10**9,
    ) -> None:
        self.phase: Phase = "opening"
        self.detail = ""
        self.window = window
        self._becomes: tuple[Phase, str] = (phase, detail)
        self._error = error
        self.answers = answers
        self._judge = judge or (lambda _kind, _message: (complaint, 0x80 if complaint else 0))
        self._limit = limit
        self._unanswered: list[int] = []
        self.published: list[tuple[Kind, Message]] = []
        self.most_unanswered = 0
        self.is_heard = False
        self.doubtful: dict[str, str] = {}
        self.goodbye: bool | None = None
        self.pace, self.pause_s = 10**9, 0.0  # messages that are answered at once, and how long that takes
        self.subscribed: list[str] = []
        self.incoming: list[Incoming] = []
        self.refused: list[str] = []
        self.may_open = threading.Event()
        self.may_open.set()

    def open(self) -> None:
        self.may_open.wait()
        if self._error is not None:
            raise self._error

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        if self.phase == "opening":
            self.phase, self.detail = self._becomes
        elif timeout_s and not (self.answers and self._unanswered):
            self._poll(timeout_s, wakeup)

    def _poll(self, timeout_s: float, wakeup: Wakeup) -> None:
        poll = select.poll()
        poll.register(wakeup.fileno(), select.POLLIN)
        until = time.monotonic() + timeout_s
        while self.phase == "up" and not (self.answers and self._unanswered) and time.monotonic() < until:
            if poll.poll(5):
                wakeup.clear()
                return

    def fits(self, kind: Kind, message: Message) -> bool:
        return kind not in ("result", "event", "snapshot") or len(message.payload) <= self._limit

    def acknowledges(self, kind: Kind) -> bool:
        return True

    def publish(self, kind: Kind, message: Message) -> int:
        self.published.append((kind, message))
        self._unanswered.append(len(self.published))
        self.most_unanswered = max(self.most_unanswered, len(self._unanswered))
        return len(self.published)

    def finished(self) -> list[Answer]:
        if not self.answers:
            return []
        time.sleep(self.pause_s)
        answered, self._unanswered = self._unanswered[: self.pace], self._unanswered[self.pace :]
        return [Answer(number, *self._judge(*self.published[number - 1])) for number in answered]

    def heard(self) -> bool:
        is_heard, self.is_heard = self.is_heard, False
        return is_heard or (self.answers and bool(self._unanswered))

    def subscribe(self, topics: Sequence[str]) -> None:
        self.subscribed += topics

    def received(self) -> list[Incoming]:
        received, self.incoming = self.incoming, []
        return received

    def refusals(self) -> list[str]:
        refusals, self.refused = self.refused, []
        return refusals

    def doubts(self) -> dict[str, str]:
        return dict(self.doubtful)

    def close(self, *, politely: bool) -> None:
        self.goodbye = politely

    def drop(self, detail: str) -> None:
        self.phase, self.detail = "lost", detail

    def documents(self, *kinds: Kind) -> list[dict[str, Any]]:
        """What was published of some kinds, in order."""
        return [msgspec.json.decode(message.payload) for kind, message in list(self.published) if kind in kinds]

    def contents(self) -> list[object]:
        """Sequence numbers of results, and words of statuses."""
        return [d.get("seq", d.get("status")) for d in self.documents("result", "status")]

    def cameras(self) -> list[dict[str, Any]]:
        """What each state says of the cameras."""
        return [d["cameras"] for d in self.documents("state")]
