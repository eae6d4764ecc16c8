"""Pictures of a camera as JPEG files, at events or at intervals, made beside its loop.

The loop only copies a frame that is wanted, because the frame's own picture is overwritten by the next one; a thread
draws the result on it, makes the file and delivers it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from edge_sdk.core.frame import Image, Result
from edge_sdk.core.opencv import cv2
from edge_sdk.events.rules import WORST_QUALITY, SnapshotSettings
from edge_sdk.tasks.detection import draw

MAX_BYTES = 512_000
"""Largest size of one picture: brokers accept it, and a fleet's pictures share one network."""

_JOIN_S = 0.5


class Jpeg(NamedTuple):
    """A file of at most `MAX_BYTES` bytes, and its picture's width and height in pixels."""

    data: bytes
    width: int
    height: int


class Snapshots:
    """Makes pictures of one camera: an observer of its loop, to be closed.

    Args:
        deliver: takes a file's bytes and the number of its frame, in a thread of its own; must not raise.
    """

    def __init__(self, settings: SnapshotSettings, deliver: Callable[[bytes, int], None]) -> None:
        self._settings, self._deliver = settings, deliver
        self._gap_ns, self._due_ns = round(1e9 * settings.gap_s), 0
        self._is_asked = self._is_closed = False
        self._news = threading.Condition()
        self._held: tuple[Image, Result] | None = None
        self._waiting: tuple[Image, Result] | None = None
        self._thread: threading.Thread | None = None

    def ask(self, kind: str = "appeared") -> None:
        """Request a picture of the frame that is put next, for an event of this kind; may be called from any thread."""
        if self._settings.on in ("event", kind):
            self._is_asked = True

    def put(self, result: Result) -> None:
        """Copy the frame of a result if it is wanted; hand the newest copy over if one is due."""
        frame = result.frame
        is_due = frame.captured_ns >= self._due_ns
        if is_due if self._settings.on == "interval" else self._is_asked:
            self._is_asked = False
            self._held = frame.image.copy(), result
        if self._held is None or not is_due:
            return
        self._due_ns = frame.captured_ns + self._gap_ns
        with self._news:
            self._waiting, self._held = self._held, None
            self._news.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"edge-snapshots {frame.camera}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Make the newest picture that waits, then no more; wait half a second at most."""
        with self._news:
            self._waiting, self._is_closed = self._held or self._waiting, True
            self._news.notify()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting is not None or self._is_closed)
                waiting, self._waiting = self._waiting, None
            if waiting is None:
                return
            with contextlib.suppress(Exception):  # for example too little memory; the next picture may succeed
                picture, result = waiting
                picture = _fitted(picture, self._settings.width)
                if self._settings.draw:
                    draw(picture, result.on(picture))  # small, where a mask costs a tenth
                self._deliver(jpeg_of(picture, self._settings.width, self._settings.quality).data, result.frame.seq)


def jpeg_of(picture: Image, width: int, quality: int) -> Jpeg:
    """Return a picture as a JPEG file; if it would be too large, with a lower quality, and then smaller.

    Args:
        picture: uint8 (H, W, 3), BGR.
        width: largest width in pixels; the largest height is four times that. Smaller pictures keep their size.
        quality: JPEG quality, 20 to 100.
    """
    picture = _fitted(picture, width)
    tried = quality
    while True:
        _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, tried])
        if len(data) <= MAX_BYTES:
            return Jpeg(data.tobytes(), picture.shape[1], picture.shape[0])
        if tried > WORST_QUALITY:
            tried = max(WORST_QUALITY, tried // 2)
        else:
            picture, tried = _scaled(picture, 0.5), quality


def _fitted(picture: Image, width: int) -> Image:
    return _scaled(picture, min(1.0, width / picture.shape[1], 4 * width / picture.shape[0]))


def _scaled(picture: Image, scale: float) -> Image:
    if scale >= 1:
        return picture
    height, width = (max(1, round(side * scale)) for side in picture.shape[:2])
    small = np.empty((height, width, 3), np.uint8)
    cv2.resize(picture, (width, height), dst=small, interpolation=cv2.INTER_AREA)
    return small
