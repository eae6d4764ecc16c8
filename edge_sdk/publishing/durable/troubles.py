"""Troubles: what is wrong with an outbox at present, and who is told."""

from __future__ import annotations

from collections.abc import Callable


class Troubles:
    """Of one outbox; said from any thread.

    Args:
        listener: takes a name and a line for people, empty once it is over; None: nobody does so far.
    """

    def __init__(self, listener: Callable[[str, str], None] | None) -> None:
        self._listeners = [] if listener is None else [listener]
        self._lines: dict[str, str] = {}
        self._failure = ""  # of a listener

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Have another one told, what is so already first."""
        self._listeners.append(listener)
        for name, line in list(self._lines.items()):
            listener(name, line)

    def say(self, name: str, line: str) -> None:
        """Something is wrong, or, with an empty line, is no longer; said once."""
        if self._lines.get(name, "") == line:
            return
        self._lines[name] = line
        failure = next(filter(None, [_failure(listener, name, line) for listener in self._listeners]), "")
        if failure != self._failure:  # the others say it, and that it is over
            self._failure = failure
            for listener in self._listeners:
                _failure(listener, "callback/on_trouble", failure)

    def say_memory_only(self, why: str) -> None:
        """Nothing goes to disk at present."""
        self.say("outbox_disk", f"events wait in memory only: {why}")

    def say_unencoded(self, cause: Exception | None) -> None:
        """An event that waited could not be encoded; None: one could."""
        line = f"an event is left out that cannot be encoded: {type(cause).__name__}: {cause}; mend who puts it"
        self.say("event_encoding", line if cause is not None else "")

    def say_fault(self, cause: Exception) -> None:
        """Something is wrong with the outbox itself."""
        self.say("outbox_fault", f"{type(cause).__name__}: {cause}; report this, events wait in memory")


def _failure(listener: Callable[[str, str], None], name: str, line: str) -> str:
    """Tell somebody something, who must not be able to end what keeps events; what it raised, for people."""
    try:
        listener(name, line)
    except Exception as cause:  # noqa: BLE001 - said, to the others
        return f"on_trouble raised {type(cause).__name__}: {cause}; events are kept without it, mend it"
    return ""
