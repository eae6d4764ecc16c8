"""Board: what a device says of itself beside results: that it is online, its cameras, and how each does.

Owns the content of its status and state, and no time: when they are published is `Notices`' matter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timezone
from typing import Literal

import msgspec

from edge_sdk.printable import one_line
from edge_sdk.publishing.identity import Identity
from edge_sdk.publishing.payload import (
    CameraState,
    ControlState,
    ModelRef,
    Running,
    SourceState,
    StateMessage,
    StatusMessage,
)


class Entry:
    """One stream's line on the board; another stream of that camera gets another."""

    __slots__ = ("camera", "is_leaving", "model", "state")

    def __init__(self, camera: str, model: ModelRef, state: CameraState) -> None:
        self.camera, self.model, self.state = camera, model, state
        self.is_leaving = False


class Board:
    """The cameras of one device; each is written to by its own thread, and all are read by the publisher's.

    Args:
        identity: who speaks.
        versions: of the software, by name.

    Attributes:
        models: grows with every change of the status.
        states: grows with every change of the state.
    """

    def __init__(self, identity: Identity, versions: Mapping[str, str]) -> None:
        self._identity, self._versions = identity, dict(versions)
        self._entries: dict[str, Entry] = {}
        self._warnings: dict[str, str] = {}
        self._lock = threading.Lock()
        self._has_leavers = False
        self.models = self.states = 0

    def join(self, camera: str, model: ModelRef) -> Entry:
        """Add a camera, or have another model answer for it: of its state only where its source stands is kept."""
        with self._lock:
            before = self._entries.get(camera)
            kept = before.state if before is not None and not before.is_leaving else CameraState()
            state = CameraState(source=kept.source, trouble=kept.trouble, since=kept.since)
            entry = self._entries[camera] = Entry(camera, model, state)
            self.models += 1
            self.states += 1
            return entry

    def leave(self, entry: Entry) -> None:
        """The camera goes, as soon as `release` lets it."""
        with self._lock:
            entry.is_leaving = self._has_leavers = True

    def release(self, is_done: Callable[[str], bool]) -> None:
        """Take those cameras down that leave and are done."""
        if not self._has_leavers:
            return
        with self._lock:
            gone = [e.camera for e in self._entries.values() if e.is_leaving and is_done(e.camera)]
            for camera in gone:
                del self._entries[camera]
            self._has_leavers = any(e.is_leaving for e in self._entries.values())
            if gone:
                self.models += 1
                self.states += 1

    def source(self, entry: Entry, source: SourceState) -> bool:
        """Say where a camera's source stands; True where that is news."""
        trouble = source.trouble or msgspec.UNSET
        return self._change(entry, source=source.status, trouble=trouble, since=source.since.astimezone(timezone.utc))

    def running(self, entry: Entry, running: Running) -> bool:
        """Say what runs; True where that is news."""
        return self._change(entry, running=running)

    def controls(self, entry: Entry, controls: ControlState) -> bool:
        """Say what commands have set; True where that is news."""
        return self._change(entry, controls=controls)

    def warn(self, entry: Entry, name: str, line: str) -> bool:
        """Add a warning in place of an older one of that name, or take it back with an empty line; True for news."""
        before, line = entry.state.warnings or {}, one_line(line)
        warnings = {key: value for key, value in {**before, name: line}.items() if value}
        return self._change(entry, warnings=warnings or msgspec.UNSET)

    def warn_of_device(self, name: str, line: str) -> bool:
        """The same of the device itself."""
        line = one_line(line)
        with self._lock:
            if self._warnings.get(name, "") == line:
                return False
            self._warnings[name] = line
            if not line:
                del self._warnings[name]
            self.states += 1
            return True

    def online(self) -> bytes:
        """The status of being online, JSON."""
        with self._lock:
            cameras = {entry.camera: entry.model for entry in self._entries.values()}
        return msgspec.json.encode(
            StatusMessage(
                **msgspec.structs.asdict(self._identity),
                status="online",
                versions=self._versions or msgspec.UNSET,
                cameras=cameras,
            )
        )

    def offline(self, reason: Literal["shutdown", "lost"]) -> bytes:
        """The status of being offline, JSON."""
        return msgspec.json.encode(
            StatusMessage(**msgspec.structs.asdict(self._identity), status="offline", reason=reason)
        )

    def state(self) -> bytes:
        """How the device and each camera does, JSON."""
        with self._lock:
            cameras = {entry.camera: entry.state for entry in self._entries.values()}
            warnings = dict(self._warnings) or msgspec.UNSET
        identity = msgspec.structs.asdict(self._identity)
        return msgspec.json.encode(StateMessage(**identity, cameras=cameras, warnings=warnings))

    def _change(self, entry: Entry, **changes: object) -> bool:
        with self._lock:
            state = msgspec.structs.replace(entry.state, **changes)
            if state == entry.state:
                return False
            entry.state = state
            if self._entries.get(entry.camera) is not entry:
                return False  # another stream has the camera
            self.states += 1
            return True
