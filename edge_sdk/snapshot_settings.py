"""SnapshotSettings: when pictures of a camera are made, and how large; without OpenCV, which makes them."""

from __future__ import annotations

from typing import Literal

import msgspec

from edge_sdk.errors import UsageError

WORST_QUALITY = 20

_NARROWEST_PX, _WIDEST_PX = 16, 4096
_LONGEST_S = 86400.0


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one camera.

    Attributes:
        on: `event`: the frame in which one was found, or the next one. `interval`: whether or not anything happens.
        interval_s: seconds from one to the next, 0.1 to a day; for `interval`.
        max_per_s: at most so many a second for `event`; of what is more the newest is made. 0.001 to 10.
        width: pixels; wider pictures are made smaller, 16 to 4096.
        quality: of JPEG, 20 to 100.

    Raises:
        UsageError: a number is outside its range.
    """

    on: Literal["event", "interval"] = "event"
    interval_s: float = 10.0
    max_per_s: float = 1.0
    width: int = 640
    quality: int = 80

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float]] = {
            "interval_s": (0.1, _LONGEST_S),
            "max_per_s": (0.001, 10),
            "width": (_NARROWEST_PX, _WIDEST_PX),
            "quality": (WORST_QUALITY, 100),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"snapshots: {name} is {value}, expected {low:g} to {high:g}")
