"""Degradation: choose the model of a stream, and the share of frames it runs on, to keep the latency budget.

A bundle has a list of levels. The top level is the preferred one; each level below it needs less of the machine. A
`Governor` judges the frames of one stream: it steps down when deadlines are missed or the board throttles, and up again
when there is capacity to spare. The streams of a process share one `DegradationController`, which decides which of them
steps next. Without it, the streams that step down first would stay down for good in favour of the others.

    frames' ages -> Governor -> DegradationController -> Move, which the caller makes: `arrive` or `leave_out`

Nothing in this module reads a clock, does I/O or loads a model, except for `check_free_memory`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Manifest, Variant, ratings
from edge_sdk.core.errors import NoRoomError
from edge_sdk.core.machine import free_bytes

# Beyond 8 a stream is single pictures, and the load is too low to matter. Every level runs on at least two thirds of
# the frames of the level above it, so that several streams on a full machine are at most one level apart.
_EVERY = (1.5, 2, 3, 4, 6, 8)
_GAIN = 0.9  # largest time of a level, as a share of the level above: a smaller gain is noise


class Level(msgspec.Struct, frozen=True):
    """One level of degradation: a variant that runs on one frame in `every`; 1.5 is two frames in three.

    Of `cost`, that of one run, only ratios between levels have a meaning.
    """

    variant: str
    every: float
    cost: float

    def __str__(self) -> str:
        if self.every == 1:
            return self.variant
        of, every = self.every.as_integer_ratio()
        ordinal = {2: "2nd", 3: "3rd"}.get(of, f"{of}th")
        return f"{self.variant}, " + (f"every {ordinal} frame" if every == 1 else f"{every} of {of} frames")


def levels_of(manifest: Manifest, *, fixed: bool = False) -> tuple[Level, ...]:
    """Return the levels of a bundle, with its first variant as the top level, or with no other one (`fixed`).

    Below it are its faster variants, the slower ones first, without those that another variant beats in both time and
    quality. The lowest levels run the fastest variant on fewer and fewer of the frames.
    """
    costs = _costs(manifest.variants)
    _, rated = ratings(manifest)
    first, *others = manifest.variants
    chosen = [first]
    for variant in sorted(() if fixed else others, key=lambda v: (-costs[v.name], -v.size_wh[0] * v.size_wh[1])):
        is_faster = costs[variant.name] <= _GAIN * costs[chosen[-1].name]
        is_beaten = any(
            costs[o.name] <= costs[variant.name] and rated[o.name].rank > rated[variant.name].rank
            for o in others
            if o is not variant
        )
        if is_faster and not is_beaten:
            chosen.append(variant)
    return tuple(with_steps([Level(v.name, 1, costs[v.name]) for v in chosen]))


def with_steps(variants: Sequence[Level], steps: Sequence[float] = _EVERY) -> list[Level]:
    """Append levels on which the last variant runs on two frames in three, on every second, every third and so on."""
    return [*variants, *(msgspec.structs.replace(variants[-1], every=every) for every in steps)]


def _costs(variants: tuple[Variant, ...]) -> dict[str, float]:
    """Return milliseconds of one run by variant: estimates for the board if all variants have one, else host's."""
    estimates = [v.estimate for v in variants]
    if all(e is not None for e in estimates):
        return {v.name: e.latency_ms for v, e in zip(variants, estimates, strict=True) if e is not None}
    return {v.name: v.host_latency_ms for v in variants}


_RISING_NS = 30_000_000_000  # how long a stream counts as one that could step up, in spite of a bad window
_JUDGED_NS = 4_000_000_000  # wait after a step up: two windows of a governor, which show its effect


class DegradationController:
    """Decides which stream of a process steps down or up. Several threads may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._governors: list[Governor] = []
        self._rose_ns = -_JUDGED_NS  # when one of them stepped up last, monotonic nanoseconds

    def add(self, governor: Governor) -> None:
        """Take one more stream into account."""
        with self._lock:
            self._governors.append(governor)

    def remove(self, governor: Governor) -> None:
        """Remove a stream; do nothing where it was removed before."""
        with self._lock:
            if governor in self._governors:
                self._governors.remove(governor)

    def may_step_down(self, governor: Governor, now_ns: int) -> bool:
        """Decide whether a stream that misses its deadlines steps down itself.

        Of the streams on higher levels the highest is asked to step down instead, first of those that miss deadlines
        too; where none of them does, it is asked only once.
        """
        with self._lock:
            above = [other for other in self._governors if other.index < governor.index]
            missing = [other for other in above if other.misses_until_ns > now_ns]
            if not missing and (governor.has_waited or not above):
                return True
            governor.has_waited = True
            min(missing or above, key=lambda other: other.index).is_asked = True
            return False

    def may_step_up(self, governor: Governor, now_ns: int) -> bool:
        """Decide whether a stream steps up: the lowest first, one at a time, after the last step up was judged."""
        with self._lock:
            if now_ns < self._rose_ns + _JUDGED_NS:
                return False
            if any(other.index > governor.index and other.rises_until_ns > now_ns for other in self._governors):
                return False
            self._rose_ns = now_ns
            return True


_S = 1_000_000_000
_WINDOW_NS = 2 * _S  # shorter trouble would be over before another model is loaded
_LEAST_FRAMES = 8  # frames in a window; with a slow camera it is longer, as a share of fewer frames says nothing
_DOWN_SHARE = 0.10  # share of misses for a step down; it fits the drop rule, which uses the 90th percentile
_LEAST_MISSES = 2  # one miss in eight frames exceeds that share and may be chance
_QUIET_SHARE = 0.05  # share of misses for a quiet window; between both shares the level stays
_QUIET_NS = 10 * _S  # five quiet windows before a step up; a step down needs one window, as late results do more harm
_LONGEST_QUIET_NS = 640 * _S  # six doublings: a failed step up costs one load and some late frames in ten minutes
_RELAPSE_NS = 60 * _S  # a step down sooner after a step up counts as a failed step up
_ROOM = 0.8  # largest share of the budget that a step up may be expected to take
_SHORT_NS = 60 * _S  # wait before a variant for which memory was short is tried again
_FOR_EVER_NS = 1 << 63
_HEAT_NS = 5 * _S  # shorter throttling is a peak that the heat sink absorbs
_BELIEVED_WINDOWS = 2  # windows for which the other streams take a stream's last window into account
_RECENT = 64  # frames that a prediction uses; the drop rule uses as many


class Move(msgspec.Struct, frozen=True):
    """A step to the next level, and the reason in words, with its numbers."""

    level: Level
    reason: str


class Governor:
    """Decides on which level one stream runs.

    A move is under way from `decide` until `arrive` or `leave_out`; until then `decide` returns None. All times are
    monotonic nanoseconds. `limit_ns` is the latency budget, `period_ns` the time between two frames of the source,
    `start` the index of the level on which the stream starts, and `controller` that of all streams of the process.

    Attributes:
        levels: the levels, the top level first, without variants that cannot be loaded.
        index: index of the level that runs; 0 is the top.
        misses_until_ns, rises_until_ns: until when the stream counts as one that misses too many deadlines, and as one
            that could soon step up.
        is_asked: whether the stream shall step down in place of another one, if it misses deadlines too.
        has_waited: whether it has had another stream asked since its last window without trouble.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        limit_ns: int,
        period_ns: int,
        now_ns: int,
        start: int = 0,
        controller: DegradationController | None = None,
    ) -> None:
        self.levels, self.index = list(levels), start
        self.misses_until_ns = self.rises_until_ns = 0
        self.is_asked = self.has_waited = False
        self._controller = controller or DegradationController()
        self._controller.add(self)
        self._variants = [level for level in levels if level.every == 1]
        self._steps = [level.every for level in levels if level.every > 1]
        self._absent: dict[str, int] = {}  # variants that cannot be loaded, until when, monotonic nanoseconds
        self._limit_ns, self._period_ns = limit_ns, period_ns
        self._window_ns = self._quiet_ns = now_ns
        self._judged = self._missed = 0
        self._target, self._is_moving = start, False
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT)
        self._went_up_ns: int | None = None
        self._quiet_need_ns = _QUIET_NS
        self._hot_since_ns: int | None = None
        self._is_relieved = False

    @property
    def level(self) -> Level:
        """The level that runs now."""
        return self.levels[self.index]

    def close(self) -> None:
        """Remove the stream from the controller at its end. May be called twice."""
        self._controller.remove(self)

    def note_result(self, *, is_late: bool, age_ns: int, run_ns: int) -> None:
        """Note a delivered result: its age, and the part of it in which the model ran, in nanoseconds."""
        self._judged += 1
        self._missed += is_late
        self._recent.append((age_ns, run_ns))

    def note_stale(self) -> None:
        """Note a frame that was dropped because it could not make its deadline."""
        self._judged += 1
        self._missed += 1

    def is_due(self, now_ns: int) -> bool:
        """Tell whether a window is over, so that `decide` should be called; the caller asks after every frame."""
        return not self._is_moving and now_ns - self._window_ns >= _WINDOW_NS

    def decide(self, now_ns: int, throttled: str = "") -> Move | None:
        """Return the move to make now, or None; `throttled` says why the board throttles; empty if it does not."""
        if not self.is_due(now_ns):
            return None
        self._feel(now_ns, throttled)
        self._bring_back(now_ns)
        if self._judged < _LEAST_FRAMES:
            return None
        missed, frames, span_s = self._missed, self._judged, (now_ns - self._window_ns) / _S
        share = missed / frames
        self._window_ns, self._judged, self._missed = now_ns, 0, 0
        was_asked, self.is_asked = self.is_asked, False
        until_ns = now_ns + int(_BELIEVED_WINDOWS * span_s * _S)
        has_trouble = share > _QUIET_SHARE
        self.misses_until_ns = until_ns if has_trouble else 0
        if has_trouble:
            self._quiet_ns = now_ns
        else:
            self.has_waited = False
        text = f"{share:.0%} of {frames} frames in {span_s:.1f} s missed {self._limit_ns / 1e6:g} ms"
        if share > _DOWN_SHARE and missed >= _LEAST_MISSES:
            return self._down(now_ns, text) if self._controller.may_step_down(self, now_ns) else None
        if has_trouble and was_asked:
            return self._down(now_ns, f"{text}, as did a stream that runs less")
        if self._hot_since_ns is not None:
            return self._cool(now_ns, throttled)
        return self._up(now_ns, until_ns)

    def rest(self, now_ns: int) -> None:
        """Forget all results noted so far, because they say nothing about the next ones."""
        if not self._is_moving:
            self._begin(now_ns)

    def arrive(self, now_ns: int) -> None:
        """Note that the move is done."""
        if self._target < self.index:
            self._went_up_ns = now_ns
            self._is_relieved = False
        self._stand_on(self.levels[self._target], now_ns)

    def leave_out(self, now_ns: int, *, for_now: bool) -> None:
        """Note that the variant does not load: its levels are left out for good, or for a minute without memory."""
        self._absent[self.levels[self._target].variant] = now_ns + _SHORT_NS if for_now else _FOR_EVER_NS
        self._stand_on(self.level, now_ns)

    def _stand_on(self, here: Level, now_ns: int) -> None:
        self._set_levels(here)
        self._is_moving = False
        self._begin(now_ns)

    def _set_levels(self, here: Level) -> None:
        """Set the levels that can be used now, and add the level that runs, `here`, where it is not among them."""
        levels = with_steps([level for level in self._variants if level.variant not in self._absent], self._steps)
        if here not in levels:
            below = 1 + next(index for index, level in enumerate(levels) if level.variant == here.variant)
            levels.insert(below, here)
        self.levels, self.index = levels, levels.index(here)
        self.misses_until_ns = self.rises_until_ns = 0  # windows so far say nothing about this level
        self.is_asked = self.has_waited = False

    def _bring_back(self, now_ns: int) -> None:
        """Restore the levels of variants that were postponed long enough, so that the next step may lead to them."""
        back = [variant for variant, until_ns in self._absent.items() if until_ns <= now_ns]
        for variant in back:
            del self._absent[variant]
        if back:
            self._set_levels(self.level)

    def _begin(self, now_ns: int) -> None:
        self._window_ns = self._quiet_ns = now_ns
        self._judged = self._missed = 0
        self._recent.clear()

    def _feel(self, now_ns: int, throttled: str) -> None:
        if throttled:
            self._hot_since_ns = now_ns if self._hot_since_ns is None else self._hot_since_ns
            self._quiet_ns = now_ns
        else:
            self._hot_since_ns = None

    def _down(self, now_ns: int, reason: str) -> Move | None:
        self._quiet_ns = now_ns
        if self.index + 1 == len(self.levels):
            return None
        if self._went_up_ns is not None:
            is_relapse = now_ns - self._went_up_ns < _RELAPSE_NS
            self._quiet_need_ns = min(2 * self._quiet_need_ns, _LONGEST_QUIET_NS) if is_relapse else _QUIET_NS
            self._went_up_ns = None
        self._target, self._is_moving = self.index + 1, True
        return Move(self.levels[self._target], reason)

    def _cool(self, now_ns: int, throttled: str) -> Move | None:
        """Step down one level once for lasting heat; a throttled board that keeps its budget needs no further step."""
        is_lasting = self._hot_since_ns is not None and now_ns - self._hot_since_ns >= _HEAT_NS
        if self._is_relieved or not is_lasting:
            return None
        self._is_relieved = True
        return self._down(now_ns, f"the board throttles: {throttled}")

    def _up(self, now_ns: int, until_ns: int) -> Move | None:
        quiet_ns = now_ns - self._quiet_ns
        if not self.index or not quiet_ns or not self._recent:
            return None
        expected_ns = self._expected_above_ns()
        if expected_ns > _ROOM * self._limit_ns:
            return None
        self.rises_until_ns = until_ns + _RISING_NS
        if quiet_ns < self._quiet_need_ns or not self._controller.may_step_up(self, now_ns):
            return None
        self._target, self._is_moving = self.index - 1, True
        text = f"quiet for {quiet_ns / _S:.0f} s, {expected_ns / 1e6:.3g} ms expected of {self._limit_ns / 1e6:g}"
        return Move(self.levels[self._target], text)

    def _expected_above_ns(self) -> float:
        """Predict the age of results on the level above, nanoseconds; its run is scaled by the costs of the levels."""
        here, above = self.level, self.levels[self.index - 1]
        run_ns = _p90([run for _, run in self._recent])
        rest_ns = _p90([age - run for age, run in self._recent])
        expected_ns = run_ns * (above.cost / here.cost if here.cost else 1.0)
        if expected_ns > above.every * self._period_ns:
            rest_ns = max(rest_ns, self._period_ns)  # the loop is always busy, so each frame waits for the one before
        return rest_ns + expected_ns


def _p90(values: list[int]) -> int:
    values.sort()
    return values[min(len(values) - 1, len(values) * 9 // 10)]


_MIB = 1 << 20
# Loading a model and running its golden inputs takes 70 MiB for YOLOv8n (INT8 file of 3.9 MB), 44 for YOLOv4-tiny
# (6.2 MB), 40 for MobileNet (FP32 file of 10.4 MB) and about 180 for ResNet50 (98 MB).
_TIMES = 3
_BESIDE_MIB = 64


def check_free_memory(bundle: Bundle, variant: str, root: Path = Path("/")) -> None:
    """Raise a NoRoomError where loading a variant beside the running one could get that killed for want of memory."""
    free = free_bytes(root)
    entry = bundle.manifest.entry(bundle.manifest.with_primary(variant).variants[0].file)
    if free is None or entry is None:
        return
    needed_mib = _TIMES * entry.size // _MIB + _BESIDE_MIB
    free_mib = free // _MIB
    if free_mib < needed_mib:
        raise NoRoomError(f"{variant} needs about {needed_mib} MiB of memory to be loaded, {free_mib} are free")
