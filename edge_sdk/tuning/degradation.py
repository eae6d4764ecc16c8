"""Governor: steps down a ladder when deadlines are missed or the board throttles, and up again when there is room.

Owns the rules and no clock, no I/O, no model: it is told what became of frames, and says when to move.

Ladder: what a stream may fall back to, one rung at a time, and come back from.

Owns the order of the rungs. The first is what runs by choice; each one below it takes less of the machine.

Peers: the streams of one process, each of which takes from the others what it runs on.

Owns whose turn it is to step down or up. Each governor judges its own frames; left alone, the streams that happen to
step down first make room for the others, and stay below. It has no clock and no I/O.

Stay: what runs take on a rung that a stream stepped up to.

Room: whether there is memory for one more model while another one runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median_low

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Manifest, Variant, ratings
from edge_sdk.core.errors import NoRoomError
from edge_sdk.core.machine import free_bytes

# Beyond 8 a stream is single pictures, and less load would not be felt. No rung has less than two thirds of the
# one above it: several streams that have no room for one step more stand one rung apart.
_EVERY = (1.5, 2, 3, 4, 6, 8)
_GAIN = 0.9  # of the time above it: a rung that saves less is noise


class Level(msgspec.Struct, frozen=True):
    """One way to run.

    Attributes:
        variant: which of the bundle's models.
        every: of the frames every `every`-th runs, 1 and up; 1.5 are two of three.
        cost: of one run of it; only ratios between rungs mean anything.
    """

    variant: str
    every: float
    cost: float

    def __str__(self) -> str:
        if self.every == 1:
            return self.variant
        of, every = self.every.as_integer_ratio()
        return f"{self.variant}, " + (f"every {ordinal(of)} frame" if every == 1 else f"{every} of {of} frames")


def ladder_of(manifest: Manifest, *, fixed: bool = False) -> tuple[Level, ...]:
    """The rungs of a bundle, from the variant that stands in front downwards.

    Below it come its faster variants, the slower first, but none that another one beats in both time and quality; at
    last every second, third and further frame of the fastest.

    Args:
        manifest: of the bundle, led by the variant that shall run.
        fixed: this variant and no other.
    """
    costs = _costs(manifest.variants)
    _, rated = ratings(manifest)
    first, *others = manifest.variants
    chosen = [first]
    for variant in sorted(() if fixed else others, key=lambda v: (-costs[v.name], -_pixels(v))):
        is_faster = costs[variant.name] <= _GAIN * costs[chosen[-1].name]
        is_beaten = any(
            costs[o.name] <= costs[variant.name] and rated[o.name].rank > rated[variant.name].rank
            for o in others
            if o is not variant
        )
        if is_faster and not is_beaten:
            chosen.append(variant)
    return tuple(with_steps([Level(v.name, 1, costs[v.name]) for v in chosen]))


def with_steps(rungs: Sequence[Level], steps: Sequence[float] = _EVERY) -> list[Level]:
    """Variants, at least one, and below them two of three, every second, third and further frame of the last."""
    last = rungs[-1]
    return [*rungs, *(Level(last.variant, every, last.cost) for every in steps)]


def _costs(variants: tuple[Variant, ...]) -> dict[str, float]:
    """Milliseconds of one run: the board's estimates where all have one, for boards have ratios of their own."""
    estimates = [v.estimate for v in variants]
    if all(e is not None for e in estimates):
        return {v.name: e.latency_ms for v, e in zip(variants, estimates, strict=True) if e is not None}
    return {v.name: v.host_latency_ms for v in variants}


def _pixels(variant: Variant) -> int:
    return variant.size_wh[0] * variant.size_wh[1]


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th and so on, for numbers below 20."""
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"


_RISING_NS = 30_000_000_000  # one bad window does not mean that a stream has no wish to rise
_JUDGED_NS = 4_000_000_000  # after a step up: two windows of a governor, which sees then what came of it


class Place:
    """Where one stream stands.

    Args:
        peers: whose place it is.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._steps = 0
        self._missing_until_ns = self._rising_until_ns = 0
        self._is_asked = self._has_waited = False

    def stand(self, steps: int) -> None:
        """The stream runs so many rungs below the top now; what was noted says nothing of that."""
        with self._peers.lock:
            self._steps = steps
            self._missing_until_ns = self._rising_until_ns = 0
            self._is_asked = self._has_waited = False

    def note(self, *, misses: bool, rises: bool, until_ns: int) -> None:
        """Say how the stream does.

        Args:
            misses: whether it is without the quiet that a step up needs.
            rises: whether it would step up after some more of it.
            until_ns: how long that holds, unless something else is said before; monotonic nanoseconds.
        """
        with self._peers.lock:
            self._missing_until_ns = until_ns if misses else 0
            self._has_waited = self._has_waited and misses
            if rises:
                self._rising_until_ns = until_ns + _RISING_NS

    def take_asked(self) -> bool:
        """Whether another stream asked this one to step down in its place; said once."""
        with self._peers.lock:
            was_asked, self._is_asked = self._is_asked, False
            return was_asked

    def gives_way(self, now_ns: int) -> bool:
        """Ask the stream that stands highest to step down in place of this one, as long as it has trouble too.

        Where none that stands higher has, it is asked once, for its next window; trouble that goes on is one's own.

        Returns:
            False: this one is to step down itself.
        """
        with self._peers.lock:
            above = [place for place in self._peers.places if place._steps < self._steps]
            missing = [place for place in above if place._missing_until_ns > now_ns]
            if not missing and (self._has_waited or not above):
                return False
            self._has_waited = True
            min(missing or above, key=lambda place: place._steps)._is_asked = True
            return True

    def may_rise(self, now_ns: int) -> bool:
        """Whether this one may step up, and does: none that stands lower is about to, and the last step was judged."""
        peers = self._peers
        with peers.lock:
            if now_ns < peers.risen_ns + _JUDGED_NS:
                return False
            if any(place._steps > self._steps and place._rising_until_ns > now_ns for place in peers.places):
                return False
            peers.risen_ns = now_ns
            return True

    def leave(self) -> None:
        """The stream is over; may be called twice."""
        with self._peers.lock:
            if self in self._peers.places:
                self._peers.places.remove(self)


class Peers:
    """Of one process; for several threads.

    Attributes:
        lock: held while any of this is read or changed.
        places: of the streams that run.
        risen_ns: when one of them stepped up last, monotonic nanoseconds.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.places: list[Place] = []
        self.risen_ns = -_JUDGED_NS

    def join(self) -> Place:
        """A place for one more stream."""
        place = Place(self)
        with self.lock:
            self.places.append(place)
        return place


class DwellTime:
    """What runs take on a rung that was stepped up to: the best of its windows, since a load may come with any.

    Args:
        below: the variant that ran before; empty where nothing is to be measured.
        below_ns: its median run, in the quiet time.
    """

    def __init__(self, below: str = "", below_ns: int = 0) -> None:
        self._below, self._below_ns = below, below_ns
        self._best_ns: int | None = None

    def note(self, runs_ns: list[int]) -> None:
        """A window's runs."""
        if runs_ns:
            found_ns = median_low(runs_ns)
            self._best_ns = found_ns if self._best_ns is None else min(self._best_ns, found_ns)

    def over(self, variant: str) -> float | None:
        """A run here over one of the variant below; None where that is not the one, or nothing was measured."""
        if variant != self._below or not self._below_ns or self._best_ns is None:
            return None
        return self._best_ns / self._below_ns


_S = 1_000_000_000
_WINDOW_NS = 2 * _S  # a spell that is over in less would be over before another model is loaded
_LEAST_FRAMES = 8  # of a slow camera the window is longer: a share of fewer frames says nothing
_DOWN_SHARE = 0.10  # the drop rule looks at the 90th percentile: a budget with more misses is not kept by its measure
_LEAST_MISSES = 2  # one of eight is more than that share, and may be chance
_QUIET_SHARE = 0.05  # half of it: between both nothing moves
_QUIET_NS = 10 * _S  # five windows without trouble before a step up; stepping down takes one: late results harm more
_LONGEST_QUIET_NS = 640 * _S  # six doublings: a step that fails costs a load, some late frames, once in ten minutes
_RELAPSE_NS = 60 * _S  # a step up that lasts longer was right when it was made
_ROOM = 0.8  # of the budget: what a step up may be expected to take
_SHORT_NS = 30 * _S  # before a variant is tried again for which memory was short; each time twice as long
_HEAT_NS = 5 * _S  # shorter throttling is a peak that the heat sink swallows
_BELIEF_NS = 1800 * _S  # what was measured of a rung may have been a load that came with it: that costs half an hour
_BELIEVED_WINDOWS = 2  # that other streams go by what one of them said of its window
_RECENT = 64  # frames that a prediction looks at, as the drop rule does


class Move(msgspec.Struct, frozen=True):
    """A step to the next rung.

    Attributes:
        rung: where to.
        reason: with its numbers, for people.
    """

    rung: Level
    reason: str


class Governor:
    """Which rung a stream stands on.

    A move is under way from `decide` until `arrive`, `fail` or `postpone`, and nothing is decided meanwhile.

    Args:
        ladder: from what runs by choice downwards, one rung or more.
        limit_ns: the latency budget, nanoseconds.
        period_ns: between two frames of the source, nanoseconds.
        now_ns: monotonic nanoseconds.
        start: the rung that the stream stands on, 0 for the top.
        place: among the streams that share the machine with it; None: it is alone.
    """

    def __init__(
        self,
        ladder: Sequence[Level],
        limit_ns: int,
        period_ns: int,
        now_ns: int,
        start: int = 0,
        place: Place | None = None,
    ) -> None:
        self._place = place or Peers().join()
        self._place.stand(start)
        self.ladder = list(ladder)
        self._variants = [rung for rung in ladder if rung.every == 1]
        self._steps = [rung.every for rung in ladder if rung.every > 1]
        self._runs: list[int] = []
        self._stay = DwellTime()
        self._ratios: dict[tuple[str, str], tuple[float, int]] = {}  # run above over run below, and until when it holds
        self._absent: dict[str, int] = {}  # until when, monotonic nanoseconds
        self._absence_ns: dict[str, int] = {}
        self._limit_ns, self._period_ns = limit_ns, period_ns
        self._index = start
        self._window_ns = self._quiet_ns = now_ns
        self._judged = self._missed = 0
        self._target: int | None = None
        self._quiet_run_ns = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT)
        self._went_up_ns: int | None = None
        self._quiet_need_ns = _QUIET_NS
        self._hot_since_ns: int | None = None
        self._is_relieved = False

    @property
    def index(self) -> int:
        """0 is the top of the ladder."""
        return self._index

    @property
    def rung(self) -> Level:
        """What runs."""
        return self.ladder[self._index]

    def note_result(self, *, is_late: bool, age_ns: int, run_ns: int) -> None:
        """A result was delivered: its age, and of that the bare run."""
        self._judged += 1
        self._missed += is_late
        self._recent.append((age_ns, run_ns))
        self._runs.append(run_ns)

    def note_stale(self) -> None:
        """A frame was dropped because it could not make it."""
        self._judged += 1
        self._missed += 1

    def is_due(self, now_ns: int) -> bool:
        """Whether `decide` has something to look at; to be asked after every frame."""
        return self._target is None and now_ns - self._window_ns >= _WINDOW_NS

    def decide(self, now_ns: int, throttled: str = "") -> Move | None:
        """Say whether to move now.

        Args:
            now_ns: monotonic nanoseconds.
            throttled: why the board slows itself down at present; empty when it does not.
        """
        if not self.is_due(now_ns):
            return None
        self._feel(now_ns, throttled)
        move = self._bring_back(now_ns)
        if move is not None:
            return move
        if self._judged < _LEAST_FRAMES:
            return None
        missed, frames, span_s = self._missed, self._judged, (now_ns - self._window_ns) / _S
        share = missed / frames
        self._window_ns, self._judged, self._missed = now_ns, 0, 0
        self._stay.note(self._runs)
        self._runs.clear()
        is_asked, until_ns = self._place.take_asked(), now_ns + int(_BELIEVED_WINDOWS * span_s * _S)
        self._place.note(misses=share > _QUIET_SHARE, rises=False, until_ns=until_ns)
        if share > _QUIET_SHARE:
            self._quiet_ns = now_ns
        text = f"{share:.0%} of {frames} frames in {span_s:.1f} s missed {self._limit_ns / 1e6:g} ms"
        if share > _DOWN_SHARE and missed >= _LEAST_MISSES:
            return None if self._place.gives_way(now_ns) else self._down(now_ns, text)
        if share > _QUIET_SHARE and is_asked:
            return self._down(now_ns, f"{text}, as did a stream that runs less")
        if self._hot_since_ns is not None:
            return self._cool(now_ns, throttled)
        return self._up(now_ns, until_ns)

    def rest(self, now_ns: int) -> None:
        """Forget what was noted: it says nothing of what comes."""
        if self._target is None:
            self._begin(now_ns)

    def arrive(self, now_ns: int) -> None:
        """The move is done."""
        if self._target is None:
            raise ValueError("no move is under way")
        if self._target < self._index:
            self._went_up_ns = now_ns
            self._is_relieved = False
        left, arrived = self.rung, self.ladder[self._target]
        ratio = self._stay.over(arrived.variant)
        if ratio is not None:
            self._ratios[left.variant, arrived.variant] = ratio, now_ns + _BELIEF_NS
        is_up = self._target < self._index and arrived.variant != left.variant
        self._stay = DwellTime(left.variant, self._quiet_run_ns) if is_up else DwellTime()
        self._absence_ns.pop(arrived.variant, None)
        self._stand_on(arrived, now_ns)

    def fail(self, now_ns: int) -> None:
        """The move cannot be made, because that rung's variant does not load: no rung of it is tried again."""
        if self._target is None:
            raise ValueError("no move is under way")
        here, lost = self.rung, self.ladder[self._target].variant
        self._variants = [rung for rung in self._variants if rung.variant == here.variant or rung.variant != lost]
        self._stand_on(here, now_ns)

    def postpone(self, now_ns: int) -> None:
        """The move cannot be made now, for want of memory: no rung of that variant is tried for a while."""
        if self._target is None:
            raise ValueError("no move is under way")
        short = self.ladder[self._target].variant
        absence_ns = min(2 * self._absence_ns.get(short, _SHORT_NS // 2), _LONGEST_QUIET_NS)
        self._absence_ns[short], self._absent[short] = absence_ns, now_ns + absence_ns
        self._stand_on(self.rung, now_ns)

    def _stand_on(self, here: Level, now_ns: int) -> None:
        self.ladder = self._ladder_with(here)
        self._index, self._target = self.ladder.index(here), None
        self._place.stand(self._index)
        self._begin(now_ns)

    def _ladder_with(self, here: Level) -> list[Level]:
        """The rungs that there are now; frames are left out of the last variant, and of this one if that runs."""
        ladder = with_steps([rung for rung in self._variants if rung.variant not in self._absent], self._steps)
        if here in ladder:
            return ladder
        below = 1 + next(index for index, rung in enumerate(ladder) if rung.variant == here.variant)
        return [*ladder[:below], here, *ladder[below:]]

    def _bring_back(self, now_ns: int) -> Move | None:
        """Variants whose time is over have their rungs again; where frames were left out for want of one, try it."""
        back = [variant for variant, until_ns in self._absent.items() if until_ns <= now_ns]
        if not back:
            return None
        for variant in back:
            del self._absent[variant]
        here = self.rung
        self.ladder = self._ladder_with(here)
        self._index = self.ladder.index(here)
        self._place.stand(self._index)
        if here.every == 1 or self.ladder[self._index + 1].every > 1:
            return None
        self._target = self._index + 1
        return Move(self.ladder[self._target], "memory for it may be free again")

    def _begin(self, now_ns: int) -> None:
        self._window_ns = self._quiet_ns = now_ns
        self._judged = self._missed = 0
        self._runs.clear()
        self._recent.clear()

    def _feel(self, now_ns: int, throttled: str) -> None:
        if throttled:
            self._hot_since_ns = now_ns if self._hot_since_ns is None else self._hot_since_ns
            self._quiet_ns = now_ns
        else:
            self._hot_since_ns = None

    def _down(self, now_ns: int, reason: str) -> Move | None:
        self._quiet_ns = now_ns
        if self._index + 1 == len(self.ladder):
            return None
        if self._went_up_ns is not None:
            is_relapse = now_ns - self._went_up_ns < _RELAPSE_NS
            self._quiet_need_ns = min(2 * self._quiet_need_ns, _LONGEST_QUIET_NS) if is_relapse else _QUIET_NS
            self._went_up_ns = None
        self._target = self._index + 1
        return Move(self.ladder[self._target], reason)

    def _cool(self, now_ns: int, throttled: str) -> Move | None:
        """One rung, once: a board that keeps its budget although it is slow needs no more."""
        is_lasting = self._hot_since_ns is not None and now_ns - self._hot_since_ns >= _HEAT_NS
        if self._is_relieved or not is_lasting:
            return None
        self._is_relieved = True
        return self._down(now_ns, f"the board throttles: {throttled}")

    def _up(self, now_ns: int, until_ns: int) -> Move | None:
        quiet_ns = now_ns - self._quiet_ns
        if not self._index or not quiet_ns or not self._recent:
            return None
        expected_ns = self._expected_above_ns(now_ns)
        if expected_ns > _ROOM * self._limit_ns:
            return None
        self._place.note(misses=False, rises=True, until_ns=until_ns)
        if quiet_ns < self._quiet_need_ns or not self._place.may_rise(now_ns):
            return None
        self._target = self._index - 1
        self._quiet_run_ns = median_low(run for _, run in self._recent)
        text = f"quiet for {quiet_ns / _S:.0f} s, {expected_ns / 1e6:.3g} ms expected of {self._limit_ns / 1e6:g}"
        return Move(self.ladder[self._target], text)

    def _expected_above_ns(self, now_ns: int) -> float:
        """Age of results on the rung above: the run in proportion to the rungs' costs, and the rest as it is.

        Costs are those that were measured when it ran last, as long as they are believed, else the bundle's.
        """
        here, above = self.rung, self.ladder[self._index - 1]
        run_ns = _p90([run for _, run in self._recent])
        rest_ns = _p90([age - run for age, run in self._recent])
        measured, until_ns = self._ratios.get((above.variant, here.variant), (0.0, now_ns))
        promised = above.cost / here.cost if here.cost else 1.0
        expected_ns = run_ns * (measured if now_ns < until_ns else promised)
        if expected_ns > above.every * self._period_ns:
            rest_ns = max(rest_ns, self._period_ns)  # the loop never rests, and a frame waits for the one before it
        return rest_ns + expected_ns


def _p90(values: list[int]) -> int:
    values.sort()
    return values[min(len(values) - 1, len(values) * 9 // 10)]


_MIB = 1 << 20
# Loading and golden inputs take 70 MiB for YOLOv8n's INT8 file of 3.9 MB, 44 for YOLOv4-tiny's of 6.2 MB, 40 for
# MobileNet's FP32 file of 10.4 MB and some 180 for ResNet50's of 98 MB.
_TIMES = 3
_BESIDE_MIB = 64


def check_room(bundle: Bundle, variant: str, root: Path = Path("/")) -> None:
    """Refuse to load a variant for which memory is short: what was running already must not be killed for it.

    Args:
        bundle: that has it.
        variant: its name.
        root: the folder that holds `proc` and `sys`; another one in tests. Where it does not say what is free, all
            is well.

    Raises:
        NoRoomError: memory is short now; later it may not be.
    """
    free = free_bytes(root)
    entry = bundle.manifest.entry(bundle.manifest.with_primary(variant).variants[0].file)
    if free is None or entry is None:
        return
    needed_mib = _TIMES * entry.size // _MIB + _BESIDE_MIB
    free_mib = free // _MIB
    if free_mib < needed_mib:
        raise NoRoomError(f"{variant} needs about {needed_mib} MiB of memory to be loaded, {free_mib} are free")
