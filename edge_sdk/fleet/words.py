"""Words: what a message says, in a few of them for people. Plain characters only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from edge_sdk.fleet.reading import EventNote
from edge_sdk.fleet.text import plain
from edge_sdk.publishing import ClassificationMessage, DetectionMessage, ModelRef, ResultMessage

_MOST = 6  # labels; a line holds no more
_LONGEST = 40  # characters of one
_NOTHING = "nothing"
_LATE_S = 10.0  # from here on an event is told with its age: less may be the difference of two clocks


def result_words(message: ResultMessage) -> str:
    """What a camera saw: `2 person 91%, bicycle 64%`, a class, or shares of the picture."""
    if isinstance(message, DetectionMessage):
        return _counted((item.label, item.confidence) for item in message.detections)
    if isinstance(message, ClassificationMessage):
        return _listed((item.label, item.confidence) for item in message.classes[:2])
    return _listed((item.label, item.share) for item in message.segments)


def result_labels(message: ResultMessage) -> tuple[tuple[str, int], ...]:
    """What of it is news when it changes: which labels, and how many of each; bounded, for it is remembered."""
    if isinstance(message, DetectionMessage):
        found = sorted(_grouped((item.label, item.confidence) for item in message.detections).items())[:50]
    elif isinstance(message, ClassificationMessage):
        found = [(item.label, 1) for item in message.classes[:1]]
    else:
        found = [(item.label, 1) for item in message.segments[:3]]
    return tuple((label[:_LONGEST], count) for label, count in found)


def event_words(event: EventNote, now: datetime) -> str:
    """`person appeared 91%`, and when, where it waited for its broker: `person appeared 91%, 4 min ago`."""
    sure = "" if event.confidence is None else f" {event.confidence:.0%}"
    words = f"{plain(event.label, _LONGEST)} {plain(event.kind, _LONGEST)}{sure}".strip()
    if event.at is None or event.at.tzinfo is None or event.clock == "unsynchronised":
        return words
    late_s = (now - event.at).total_seconds()
    return f"{words}, {_duration_words(late_s)} ago" if late_s >= _LATE_S else words


def model_words(model: ModelRef) -> str:
    """`yolov8n 1795290429`."""
    return f"{plain(model.name, _LONGEST)} {model.version}"


def _duration_words(seconds: float) -> str:
    """The largest unit of which there are two."""
    for unit_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _grouped(items: Iterable[tuple[str, float]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for label, _ in items:
        counts[label] = counts.get(label, 0) + 1
    return counts


def _counted(items: Iterable[tuple[str, float]]) -> str:
    found = list(items)
    best: dict[str, float] = {}
    for label, sure in found:
        best[label] = max(best.get(label, 0.0), sure)
    counts = _grouped(found)
    words = [
        f"{f'{counts[label]} ' if counts[label] > 1 else ''}{plain(label, _LONGEST)} {sure:.0%}"
        for label, sure in best.items()
    ]
    return _joined(words)


def _listed(items: Iterable[tuple[str, float]]) -> str:
    return _joined([f"{plain(label, _LONGEST)} {share:.0%}" for label, share in items])


def _joined(words: list[str]) -> str:
    more = f", {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more or _NOTHING
