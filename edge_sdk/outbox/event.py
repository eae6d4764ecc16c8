"""The values of an event outbox: its settings, one queued event, the counts of all, and the warnings about them."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Meta

from edge_sdk.core.files import state_folder
from edge_sdk.messages.schema import Message, MessageKind


class OutboxConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[outbox]` of a configuration file: where events wait for the broker.

    The folder is made if missing, but not its parents, because a missing parent may be a disk that is not mounted;
    without one events wait where the device keeps its state. SQLite's journal takes 1 MB more than `max_mb`.
    """

    folder: Annotated[Path, Meta(description="where events wait on disk for the broker")] | None = None
    max_mb: Annotated[
        float, Meta(ge=1, le=1e9, description="10^6 bytes that the file may take", extra={"unit": "megabytes"})
    ] = 64.0
    max_age_days: Annotated[
        float,
        Meta(
            gt=0,
            le=1e9,
            description="days that an event may wait, without those the device is off",
            extra={"unit": "days"},
        ),
    ] = 14.0


class OutboxSettings(OutboxConfig, frozen=True, kw_only=True):
    """Bounds of an event outbox: the keys of the configuration file, and two that no file sets."""

    max_memory_bytes: int = 4_000_000  # of events that may wait in memory for the disk
    commit_s: float = 0.03  # longest time from `put` to the beginning of a commit

    @property
    def max_age_s(self) -> float:
        """Seconds that an event may wait."""
        return self.max_age_days * 86400

    def path_of(self, site: str, device: str) -> Path:
        """Return the path of one device's file, for one process at a time; raise OutputError without any folder."""
        folder = state_folder() / "outbox" if self.folder is None else self.folder
        return folder / f"events-{quote(site, safe='')}-{quote(device, safe='')}.sqlite"  # a name may be `..`

    def place_error(self) -> str:
        """Return why the configured folder cannot be used, and what to do; empty where no reason is known."""
        if self.folder is None:
            return ""
        return folder_error(self.folder if os.path.lexists(self.folder) else self.folder.parent)


def folder_error(folder: Path) -> str:
    """Return why a path is not a folder, and what to do; empty where it is one, or where that cannot be checked."""
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the name contains a NUL
        return f"{folder}: no such folder; make it, or mount the disk that has it"
    except OSError:
        return ""
    return "" if is_folder else f"{folder} is a file, name a folder"


Encode: TypeAlias = Callable[[int], bytes]
"""Function that encodes an event's message with the number that it takes."""

_ROW_BYTES = 96
"""Approximate cost in bytes of an event's row, index entry and object, without its payload and topic."""


class QueuedEvent(Message, frozen=True, gc=False):
    """One event that waits in an outbox; `seq` is its number among the camera's events."""

    kind: MessageKind = "event"
    seq: int = 0
    id: int = 0  # its place among all events of the outbox, from 1, in whose order they are sent
    put_s: float = 0.0  # when it was put, in seconds of the outbox's clock

    @property
    def cost(self) -> int:
        """The bytes that the event counts against a bound."""
        return len(self.payload) + len(self.topic) + _ROW_BYTES


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """How many events never reach the broker, by reason, since the program began."""

    overflow: int = 0  # the oldest events, dropped because the file reached its bound
    age: int = 0  # events that waited for longer than the bound allows
    quarantine: int = 0  # events that the broker rejects (too large, not authorized); the file keeps them unsent
    memory: int = 0  # events that the disk had not taken, dropped for room or at the program's end
    disk: int = 0  # events that cannot be read back from the disk, as far as that is known

    @property
    def total(self) -> int:
        """Return the sum of all losses."""
        return self.overflow + self.age + self.quarantine + self.memory + self.disk


class EventStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the events of all cameras since the program began.

    At every moment `put` + `restored` = `delivered` + `waiting` + `lost.total`.
    """

    put: int = 0
    restored: int = 0  # those that earlier starts had left on disk
    waiting: int = 0
    delivered: int = 0
    lost: Losses = Losses()
    is_durable: bool = False  # whether new events go to disk; also False before the first event, and without a file
    set_aside: int = 0  # damaged files that were set aside
    limited: int = 0  # left out because more came than `max_per_s` allows; no other count includes them


_EVERY_S = 60.0
_SELDOM_S = 86400.0  # longest pause between repetitions of a line, so that it does not fill the journal
_REASONS = {
    "overflow": "more than [outbox] max_mb holds",
    "age": "older than [outbox] max_age_days",
    "quarantine": "refused by the broker or too large",
    "memory": "in memory only",
    "disk": "on a damaged disk",
}


class OutboxWarnings:
    """The warnings of one outbox, by name; its methods may be called from any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._listeners: list[Callable[[str, str], None]] = []
        self._lines: dict[str, str] = {}
        self._rejected_topic: str | None = None
        self._rejected_at = 0.0
        self._repeats: dict[str, tuple[float, float]] = {}  # by name: not before this time, and the last pause
        self._lost = Losses()

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Call a function with the name and line of each present and later warning; an empty line ends a warning."""
        self._listeners.append(listener)
        for name, line in list(self._lines.items()):
            listener(name, line)

    def say(self, name: str, line: str) -> None:
        """Set a warning, or clear it with an empty line; an unchanged line is not repeated."""
        if self._lines.get(name, "") != line:
            self._lines[name] = line
            for listener in self._listeners:
                listener(name, line)

    def memory_only(self, why: str) -> None:
        """Warn that events are in memory only at present."""
        self.say("outbox_disk", f"events wait in memory only: {why}")

    def encoded(self, cause: Exception | None) -> None:
        """Warn that an event which had waited could not be encoded; None clears the warning."""
        line = f"an event is left out that cannot be encoded: {type(cause).__name__}: {cause}; mend who puts it"
        self.say("event_encoding", line if cause is not None else "")

    def rejected(self, topic: str, reason: str) -> None:
        """Warn that the broker rejected an event."""
        is_denied = "uthori" in reason  # of "Not authorized", as brokers and paho write it
        allow = "let this device write there in the broker's ACL"
        advice = allow if is_denied else "they are not sent; the broker's log may say what to allow or to raise"
        self._refused(topic, advice, f"the broker does not take events of {topic}: {reason}; put aside, {advice}")

    def too_large(self, topic: str, size: int) -> None:
        """Warn that an event of `size` bytes is too large for this outbox."""
        advice = "make it smaller, or raise [outbox] max_mb"
        line = f"an event of {topic} is left out: {size} bytes are too many to wait; {advice}"
        self._refused(topic, advice, line)

    def delivered(self, topic: str) -> None:
        """Clear a rejection when the broker accepts an event of that topic over a minute later."""
        if topic == self._rejected_topic and self._clock_s() - self._rejected_at > _EVERY_S:
            self._rejected_topic = None
            self.say("events_refused", "")

    def lost(self, losses: Losses, *, is_last: bool = False) -> None:
        """Warn how many events are lost since the program began, less and less often; `is_last` warns in any case."""
        if losses != self._lost and (is_last or self._is_time("lost")):
            self._lost = losses
            counts: dict[str, int] = msgspec.structs.asdict(losses)
            parts = ", ".join(f"{count} {_REASONS[why]}" for why, count in counts.items() if count)
            events = "1 event is" if losses.total == 1 else f"{losses.total} events are"
            self.say("events_lost", f"{events} lost since the start: {parts}")

    def _refused(self, topic: str, advice: str, line: str) -> None:
        self._rejected_topic, self._rejected_at = topic, self._clock_s()
        if self._is_time(topic + advice):  # without the reason, which may contain a size
            self.say("events_refused", line)

    def _is_time(self, name: str) -> bool:
        now = self._clock_s()
        not_before, pause_s = self._repeats.get(name, (now, 0.0))
        if now < not_before:
            return False
        pause_s = min(max(_EVERY_S, 2 * pause_s), _SELDOM_S)
        self._repeats[name] = now + pause_s, pause_s
        return True
