"""Shooting: pictures that commands ask for, from the next frame to JPEG on the camera's topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from edge_sdk.commands import Picture, RefusedError, Request, Snapshot
from edge_sdk.daemon.control import Control, Controls, Shot
from edge_sdk.daemon.outlet import Outlet
from edge_sdk.snapshots import jpeg_of

_PATIENCE_S = 5.0  # for a frame: a requester waits for an answer
_MOST = 8  # requests that wait; they share a camera's picture
_QUALITY = 85
_PAUSED = "this camera is paused: nothing of it is looked at; resume it and ask again"

Done: TypeAlias = "Picture | Exception"


class Shooting:
    """Of all cameras; used from the daemon's main thread.

    Args:
        controls: of the cameras.
        clock_s: monotonic seconds.
    """

    def __init__(self, controls: Controls, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._controls, self._clock_s = controls, clock_s
        self._waiting: list[tuple[Request, Snapshot, float]] = []

    def begin(self, request: Request, control: Control) -> None:
        """Ask for a picture.

        Raises:
            RefusedError: there cannot be one.
        """
        command = request.command
        if not isinstance(command, Snapshot):
            raise TypeError("expected a snapshot")
        if control.paused:
            raise RefusedError("not_possible", _PAUSED)
        if len(self._waiting) >= _MOST:
            raise RefusedError("too_fast", f"{_MOST} pictures are waited for already")
        if all(other.camera != command.camera for _, other, _ in self._waiting):
            control.shot = None  # what came after its time was over
        control.wants_shot = control.shot is None  # otherwise one has just come, for both
        self._waiting.append((request, command, self._clock_s() + _PATIENCE_S))

    def look(self, outlet: Outlet) -> Iterator[tuple[Request, Done]]:
        """Publish pictures that came; gives of each request that is done its picture, or why there is none."""
        waiting, self._waiting = self._waiting, []
        for request, command, until in waiting:
            control = self._controls.of(command.camera)
            shot = control.shot
            if shot is not None:
                yield request, self._publish(outlet, command, shot)
            elif control.paused:
                control.wants_shot = False
                yield request, RefusedError("not_possible", _PAUSED)
            elif self._clock_s() >= until:
                control.wants_shot = False
                yield request, RefusedError("failed", f"no frame came within {_PATIENCE_S:g} s")
            else:
                self._waiting.append((request, command, until))
        awaited = {command.camera for _, command, _ in self._waiting}
        for _, command, _ in waiting:
            if command.camera not in awaited:
                self._controls.of(command.camera).shot = None  # a picture may be large

    def _publish(self, outlet: Outlet, command: Snapshot, shot: Shot) -> Done:
        broker = outlet.broker
        if broker is None:
            return RefusedError("failed", "there is no broker any more")
        try:
            jpeg, width, height = jpeg_of(shot.image, command.width, _QUALITY)
        except Exception as cause:  # noqa: BLE001 - want of memory, or of OpenCV's, is the request's failure alone
            return cause
        topic = broker.topics.snapshot(command.camera)
        broker.snapshot(command.camera, jpeg, shot.seq)
        return Picture(topic=topic, width=width, height=height, bytes=len(jpeg), seq=shot.seq)
