"""EventRule: when a class counts as there, and when as gone.

Owns the numbers and their ranges; `event_watch` goes by them.
"""

from __future__ import annotations

import msgspec

from edge_sdk.errors import UsageError
from edge_sdk.event import NAME_LIMIT, is_name

MOST_FRAMES = 1000
LONGEST_S = 86400.0


class EventRule(msgspec.Struct, frozen=True, kw_only=True):
    """Of some classes, each for itself.

    Attributes:
        labels: of the classes; one or more, each of 1 to 100 printable characters, as an event's is.
        confidence: 0-1; what is less confident is not seen. Of a segmentation it is the class's share of the picture.
        appear_frames: in how many results in a row a class is seen before it has appeared; 1 to 1000.
        appear_s: and for how many seconds, up to a day.
        disappear_frames: in how many results in a row it is not seen before it has disappeared.
        disappear_s: and for how many seconds.
        cooldown_s: seconds after an appearance was told in which no other one of that class is.

    Raises:
        UsageError: no label, the same twice, one that no event can bear, or a number outside its range.
    """

    labels: tuple[str, ...]
    confidence: float = 0.5
    appear_frames: int = 2
    appear_s: float = 0.0
    disappear_frames: int = 2
    disappear_s: float = 2.0
    cooldown_s: float = 0.0

    def __post_init__(self) -> None:
        labels: object = self.labels  # "person" alone would be six of them
        if not isinstance(labels, tuple) or not labels or len(set(labels)) != len(labels):
            raise UsageError(f"event rule: labels is {self.labels!r}, expected a tuple of one or more, each once")
        odd = [label for label in self.labels if not is_name(label)]
        if odd:
            raise UsageError(
                f"event rule: a label is {odd[0][:NAME_LIMIT]!r}, expected 1 to {NAME_LIMIT} printable characters"
            )
        _check("confidence", self.confidence, 0, 1)
        for name in ("appear_frames", "disappear_frames"):
            _check(name, getattr(self, name), 1, MOST_FRAMES)
        for name in ("appear_s", "disappear_s", "cooldown_s"):
            _check(name, getattr(self, name), 0, LONGEST_S)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"event rule: {name} is {value}, expected {low:g} to {high:g}")
