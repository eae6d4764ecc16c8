"""Cascade: a second model on the objects that a detector found in a frame, while the frame has time left.

    Detections -- Cascade: each object's part of the frame -- Stages.run_part --> Detections with `then`

`then` is None for an object that is not selected, for which no time is left, or on which the second model fails. The
first model's result always stays complete.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import UsageError, failure_line
from edge_sdk.core.frame import Detections, Result
from edge_sdk.core.toml import check_fields
from edge_sdk.tasks.spec import TRAITS

if TYPE_CHECKING:
    from edge_sdk.inference.session import Stages

_log = logging.getLogger(__name__)
_FAILURES = 3  # consecutive failures that disable the second model: one that hangs would delay every frame
_FALL_PER_RUN, _FALL_PER_SKIP = (
    8,
    64,
)  # the expected time falls by 1/8 of the gap per faster run, 1/64 per skipped frame

Region: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom of a part of a frame, pixels; right and bottom are outside."""


class CropSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of the objects that are passed to the second model; a number out of range raises SettingError."""

    labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="objects that go on, by the labels of the first bundle; all by default"),
    ] = ()
    max_crops: Annotated[
        int, Meta(ge=1, le=64, description="so many objects of a frame go on at most, the most confident first")
    ] = 4
    margin: Annotated[
        float, Meta(ge=0, le=1, description="what is cut out beyond each side of a box, as a share of its size")
    ] = 0.1

    def __post_init__(self) -> None:
        check_fields(self, CropSettings)


def going_on(bundle: Bundle, settings: CropSettings) -> frozenset[int] | None:
    """Return the class ids of a detector's bundle that are passed to the second model; None for all classes.

    Raises UsageError if the bundle is not a detector's or lacks one of the settings' labels.
    """
    name, task = bundle.manifest.name, bundle.manifest.task
    if not TRAITS[task].has_objects:
        raise UsageError(f"then: a second model runs on the objects of a detector, and {name} is for {task}")
    return bundle.ids_of(settings.labels, "then.labels") if settings.labels else None


class CropCounts(msgspec.Struct):
    """Numbers of objects on which the second model ran, for which it had no time, and on which it failed."""

    run: int = 0
    skipped: int = 0
    failed: int = 0


class Cascade:
    """Runs a second model on the objects of a result; not thread-safe.

    Args:
        stages: stages of the second model.
        class_ids: result of `going_on` for the first bundle and the settings.
        warn: called with the name of a warning and its text, which is also logged.
        clock_ns: returns monotonic nanoseconds; replaced in tests.
    """

    def __init__(
        self,
        stages: Stages,
        settings: CropSettings,
        class_ids: Collection[int] | None = None,
        warn: Callable[[str, str], None] = lambda _name, _line: None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.counts = CropCounts()
        self._stages, self._settings, self._warn, self._clock_ns = stages, settings, warn, clock_ns
        self._class_ids = class_ids
        self._expected_ns = self._in_a_row = 0

    def __call__(self, result: Result, deadline_ns: float = math.inf) -> Result:
        """Return a detector's result with `then`: the second model's results until `deadline_ns`, monotonic time."""
        if not isinstance(result, Detections) or self._in_a_row == _FAILURES:
            return result
        said: list[Result | None] = [None] * len(result)
        chosen = [*self._chosen(result)]
        for place, (index, region) in enumerate(chosen):
            began_ns = self._clock_ns()
            if began_ns + self._expected_ns > deadline_ns:
                self._skip(len(chosen) - place)
                break
            try:
                said[index] = self._stages.run_part(result.frame, region)
            except Exception as cause:  # noqa: BLE001 - no error may cost the first model's result
                self._fail(len(chosen) - place, cause)
                break
            self._in_a_row = 0
            self.counts.run += 1
            taken_ns = self._clock_ns() - began_ns
            self._expected_ns = max(taken_ns, self._expected_ns - (self._expected_ns - taken_ns) // _FALL_PER_RUN)
        return msgspec.structs.replace(result, then=tuple(said))

    def _chosen(self, result: Detections) -> Iterator[tuple[int, Region]]:
        """Yield index and region of each object for the second model, the most confident first."""
        most = self._settings.max_crops
        for index, class_id in enumerate(result.class_id.tolist()):
            if self._class_ids is None or class_id in self._class_ids:
                region = _region(result.xyxy[index].tolist(), self._settings.margin, result.frame.size_wh)
                if region is not None:
                    yield index, region
                    most -= 1
                    if not most:
                        return

    def _skip(self, count: int) -> None:
        # The expected time falls at each skip, so that the model is tried again after a slow period.
        self._expected_ns -= self._expected_ns // _FALL_PER_SKIP
        if not self.counts.skipped:
            self._report(
                "then_skipped",
                f"{count} of a frame's objects went without the second model, because no time was left; this is "
                "said once, and all such objects are counted; lower max_crops, raise latency_ms, or use a faster model",
            )
        self.counts.skipped += count

    def _fail(self, count: int, cause: Exception) -> None:
        self._in_a_row += 1
        if not self.counts.failed:
            line = f"the second model failed: {failure_line(cause)}; objects go without it and are counted"
            self._report("then_failed", line)
        if self._in_a_row == _FAILURES:
            self._report(
                "then_failed",
                f"the second model failed {_FAILURES} times in a row, and rests until the pipeline starts again: "
                f"{failure_line(cause)}",
            )
        self.counts.failed += count

    def _report(self, name: str, line: str) -> None:
        _log.warning(line)
        self._warn(name, line)


def _region(box_xyxy: Collection[float], margin: float, size_wh: tuple[int, int]) -> Region | None:
    """Return a box with its margin, clipped to the frame, in whole pixels; None if it has no area in the frame."""
    left, top, right, bottom = box_xyxy
    if not (left < right and top < bottom and math.isfinite(left + top + right + bottom)):
        return None
    beside, above = margin * (right - left), margin * (bottom - top)
    x1, y1 = max(0, math.floor(left - beside)), max(0, math.floor(top - above))
    x2, y2 = min(size_wh[0], math.ceil(right + beside)), min(size_wh[1], math.ceil(bottom + above))
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None
