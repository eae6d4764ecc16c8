"""Seats: those of all cameras of one run of the program, whichever publisher has their results."""

from __future__ import annotations

import threading

from edge_sdk.publishing.seat import Seat


class Seats:
    """By camera; one that comes back finds its own."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._lock = threading.Lock()

    def of(self, camera: str) -> Seat:
        """One camera's."""
        with self._lock:
            return self._seats.setdefault(camera, Seat())
