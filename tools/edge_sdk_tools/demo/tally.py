"""What the messages say, counted as they arrive.

Reads nothing but the subscriber's file: what is shown is what a stranger could know.
"""

from __future__ import annotations

from typing import BinaryIO

import msgspec
import numpy as np

from edge_sdk.core.clock import Percentiles, percentiles_of
from edge_sdk.messages.schema import DetectionMessage

PERSON = "person"


class Envelope(msgspec.Struct, frozen=True):
    """One line of the subscriber's file."""

    topic: str
    received_at: float
    payload: msgspec.Raw


class Seen(msgspec.Struct, frozen=True):
    """One result: how many people, and how sure of them all together."""

    message: DetectionMessage
    people: int
    confidence: float


class Tally:
    """Follows one file of messages.

    Attributes:
        frames: results so far.
        people: in all frames together.
        now: in the newest frame.
        best: the result with the most people, and of those the surest.
    """

    def __init__(self) -> None:
        self.frames = 0
        self.people = 0
        self.now = 0
        self.best: Seen | None = None
        self._ages_ms: list[float] = []
        self._inferences_ms: list[float] = []
        self._last_seq = -1
        self._rest = b""

    @property
    def dropped(self) -> int:
        """Frames of the source that became no message, up to the newest result."""
        return self._last_seq + 1 - self.frames

    @property
    def age(self) -> Percentiles | None:
        """Capture to outbox; None before the first result."""
        return _percentiles(self._ages_ms)

    @property
    def inference(self) -> Percentiles | None:
        """The bare runs; None before the first result."""
        return _percentiles(self._inferences_ms)

    def follow(self, file: BinaryIO) -> bool:
        """Take what was appended since the last call; says whether there was a result in it."""
        before = self.frames
        *lines, self._rest = (self._rest + file.read()).split(b"\n")
        for line in lines:
            envelope = msgspec.json.decode(line, type=Envelope)
            if "/result/" in envelope.topic:
                self._add(msgspec.json.decode(envelope.payload, type=DetectionMessage))
        return self.frames > before

    def _add(self, message: DetectionMessage) -> None:
        sure = [item.confidence for item in message.detections if item.label == PERSON]
        seen = Seen(message, len(sure), sum(sure))
        self.frames += 1
        self.people += seen.people
        self.now = seen.people
        self._last_seq = max(self._last_seq, message.seq)
        self._ages_ms.append(message.age_ms)
        self._inferences_ms.append(message.infer_ms)
        if self.best is None or (seen.people, seen.confidence) > (self.best.people, self.best.confidence):
            self.best = seen


def _percentiles(durations_ms: list[float]) -> Percentiles | None:
    return percentiles_of((np.array(durations_ms) * 1e6).astype(np.int64))
