"""What the demo shows, and the folder that it leaves, which only a demo that succeeded replaces.

While the video runs a line every two seconds has the counts. Messages are counted from the subscriber's file alone:
what is shown is what a stranger could know.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.text import Text

from edge_sdk.core.clock import Percentiles, percentiles_of
from edge_sdk.core.errors import OutputError
from edge_sdk.tasks.detection import DetectionMessage
from edge_sdk_tools.bundle_folder import replacing

PICTURE = "annotated.jpg"
VIDEO = "annotated.mp4"
MESSAGES = "messages.jsonl"
BUNDLE = "yolov4_tiny.edge"
_OURS = {PICTURE, VIDEO, MESSAGES, BUNDLE}
PERSON = "person"
_LINE_EVERY_S = 2.0


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to, and rename it to `folder` when the block succeeds."""
    _check(folder)
    with replacing(folder) as partial:
        yield partial
        _check(folder)  # again, because other files may have been put there during the demo


def _check(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{folder}: is not a folder; choose another with --output")
    strange = sorted({item.name for item in folder.iterdir()} - _OURS) if folder.exists() else []
    if strange:
        raise OutputError(f"{folder}: holds {strange[0]}, which no demo wrote; choose another folder with --output")


class Envelope(msgspec.Struct, frozen=True):
    """One line of the subscriber's file."""

    topic: str
    payload: msgspec.Raw


class Seen(NamedTuple):
    """One result: how many people, how sure of them all together, and the message."""

    people: int
    confidence: float
    message: DetectionMessage


class MessageCounts:
    """Counts of the messages in the subscriber's file, which may still grow."""

    def __init__(self) -> None:
        self.frames = 0
        self.people = 0
        self.now = 0
        self.best: Seen | None = None
        self._ages_ms, self._inferences_ms = list[float](), list[float]()
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
        """Count what was appended since the last call; return whether there was a result in it."""
        before = self.frames
        *lines, self._rest = (self._rest + file.read()).split(b"\n")
        for line in lines:
            envelope = msgspec.json.decode(line, type=Envelope)
            if "/result/" in envelope.topic:
                self._add(msgspec.json.decode(envelope.payload, type=DetectionMessage))
        return self.frames > before

    def _add(self, message: DetectionMessage) -> None:
        sure = [item.confidence for item in message.detections if item.label == PERSON]
        seen = Seen(len(sure), sum(sure), message)
        self.frames += 1
        self.people += seen.people
        self.now = seen.people
        self._last_seq = max(self._last_seq, message.seq)
        self._ages_ms.append(message.age_ms)
        self._inferences_ms.append(message.infer_ms)
        if self.best is None or seen[:2] > self.best[:2]:
            self.best = seen


def _percentiles(durations_ms: list[float]) -> Percentiles | None:
    return percentiles_of((np.array(durations_ms) * 1e6).astype(np.int64))


class Show:
    """Prints the lines of the demo on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def step(self, text: str) -> None:
        """Print one line for a step."""
        self._console.print(Text.assemble(("demo ", "bold"), text), soft_wrap=True)

    def tell(self, text: str) -> None:
        """Print one line of detail."""
        self._console.print(Text(f"     {text}"), soft_wrap=True)

    def update(self, counts: MessageCounts) -> None:
        """Show the counts while they grow, at most every two seconds."""
        if time.monotonic() >= self._next_s and counts.frames:
            self._next_s = time.monotonic() + _LINE_EVERY_S
            seen = f"people: {counts.now} now; seen {counts.people} times in {counts.frames} frames"
            self.tell(f"{seen}; frames dropped: {counts.dropped}; {latency_line(counts)}")

    def close(self, counts: MessageCounts, folder: Path) -> None:
        """Say what was found, how fast, and where the files are."""
        most = counts.best.people if counts.best else 0
        best = f"frame {counts.best.message.seq}, {most} people" if counts.best else "no result"
        seen = f"saw a person {counts.people} times in {counts.frames} frames, at most {most} at once"
        self.step(f"{seen}; frames dropped: {counts.dropped}")
        self.step(latency_line(counts))
        self.step(f"the files are in {folder}:")
        self.tell(f"annotated.jpg     {best}")
        self.tell("annotated.mp4     the video with what was found in it")
        self.tell("yolov4_tiny.edge  the bundle that ran")
        self.tell("messages.jsonl    the messages as an independent subscriber received them")


def make_show(*, errors_only: bool = False) -> Show:
    """Return a `Show` on standard output, or on standard error where standard output is kept for JSON."""
    return Show(Console(stderr=errors_only))


def latency_line(counts: MessageCounts) -> str:
    """Return a line with median and 99th percentile of ages and inference times."""
    parts = (("capture to outbox", counts.age), ("inference", counts.inference))
    return "; ".join(f"{name} p50 {of.p50_ms:.1f} ms, p99 {of.p99_ms:.1f} ms" for name, of in parts if of)
