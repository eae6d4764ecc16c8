"""Presence: whether one class is there, of a camera that is looked at again and again.

Owns the debouncing both ways and the pause between two appearances; knows no results and tells nobody.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.event_rule import EventRule

Turn: TypeAlias = Literal["appeared", "disappeared"]


class Presence:
    """Of one class; a class is not there before it was seen.

    Args:
        class_id: of the class.
        label: of the class.
        rule: when it counts as there.

    Attributes:
        class_id, label: as given.
        least: the confidence below which it is not seen.
        is_seen: whether it is in the result at hand.
        confidence, boxes_xyxy, index: of its latest sighting; the box is a row of that result's.
        frames: how many results in a row speak against what it is held to be.
        watched_ns: how long they do.
        since_ns, last_ns: its first and latest sighting of this presence, monotonic nanoseconds.
    """

    __slots__ = (
        "_is_there",
        "_is_told",
        "_rule",
        "_told_ns",
        "boxes_xyxy",
        "class_id",
        "confidence",
        "frames",
        "index",
        "is_seen",
        "label",
        "last_ns",
        "least",
        "since_ns",
        "watched_ns",
    )

    def __init__(self, class_id: int, label: str, rule: EventRule) -> None:
        self.class_id, self.label, self._rule = class_id, label, rule
        self.least = rule.confidence
        self.is_seen = self._is_there = self._is_told = False
        self.confidence, self.index = 0.0, 0
        self.boxes_xyxy: NDArray[np.float32] | None = None
        self.frames = self.watched_ns = self.since_ns = self.last_ns = 0
        self._told_ns: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it is not there, and nothing speaks for it: a step without a sighting would change nothing."""
        return not self._is_there and self.frames == 0

    def see(self, confidence: float, boxes_xyxy: NDArray[np.float32] | None = None, index: int = 0) -> None:
        """It is in the result at hand, most confidently so.

        Args:
            confidence: 0-1.
            boxes_xyxy: float32 (N, 4), pixels of the frame, of that result; None where there are no boxes.
            index: the row that is this one's.
        """
        self.is_seen = True
        self.confidence, self.boxes_xyxy, self.index = confidence, boxes_xyxy, index

    def step(self, passed_ns: int, now_ns: int, *, is_known: bool) -> Turn | None:
        """Go on by one result, and forget what was seen in it.

        Args:
            passed_ns: since the result before, as far as that was time in which somebody looked.
            now_ns: when the frame was captured, monotonic nanoseconds.
            is_known: whether what was not seen is not there.

        Returns:
            What is to be told, if anything.
        """
        is_seen, self.is_seen = self.is_seen, False
        if is_seen:
            self.last_ns = now_ns
        elif not is_known:
            return None
        if is_seen is self._is_there:
            self.frames = 0
            return self._appeared(now_ns) if is_seen and not self._is_told else None
        if self.frames == 0:
            self.watched_ns = 0
            if is_seen:
                self.since_ns = now_ns
        else:
            self.watched_ns += passed_ns
        self.frames += 1
        return self._turned(now_ns) if self._is_due() else None

    def _is_due(self) -> bool:
        rule = self._rule
        if self._is_there:
            return self.frames >= rule.disappear_frames and self.watched_ns >= rule.disappear_s * 1e9
        return self.frames >= rule.appear_frames and self.watched_ns >= rule.appear_s * 1e9

    def _turned(self, now_ns: int) -> Turn | None:
        self._is_there = not self._is_there
        self.frames = 0
        if self._is_there:
            return self._appeared(now_ns)
        was_told, self._is_told = self._is_told, False
        return "disappeared" if was_told else None

    def _appeared(self, now_ns: int) -> Turn | None:
        """Told unless the last time was too short ago; then it is asked again with the next result."""
        if self._told_ns is not None and now_ns - self._told_ns < self._rule.cooldown_s * 1e9:
            return None
        self._is_told, self._told_ns = True, now_ns
        return "appeared"
