"""Which candidates are measured, in which order, and which of them runs.

Pure arithmetic: a `Candidate` is a variant with settings, a `Measurement` its speed. `Plan` says what is measured here
and for how long, `Search` asks for one candidate after the other and is sent measurements, `choose` picks one, `Tuned`
holds what came out. Not the full product is searched: threads on the promised variant first, then other providers, then
the other variants from the best downwards with the settings that served the first, and spinning or parallel branches
only where nothing gentler keeps the budget.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Manifest, Rating, ratings
from edge_sdk.core.machine import Cores
from edge_sdk.inference.runtime import SessionSettings

_Threads = Annotated[int, Meta(ge=1, le=256)]
_NonNegative = Annotated[float, Meta(ge=0)]


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way of running a bundle: a variant, and those of its `SessionSettings` that affect speed.

    Records of candidates are read from disk, so none of the settings may name a file to write.
    """

    variant: str
    providers: tuple[str, ...]
    intra_op_num_threads: _Threads
    inter_op_num_threads: _Threads = 1
    allow_spinning: bool = False
    arena: bool = True

    @classmethod
    def promised(cls, manifest: Manifest) -> Candidate:
        """Return the candidate that the bundle states: its first variant, with the settings of its target."""
        return cls(
            variant=manifest.variants[0].name,
            providers=manifest.providers,
            intra_op_num_threads=manifest.intra_op_num_threads,
            allow_spinning=manifest.allow_spinning,
        )

    def within(self, cores: Cores) -> Candidate:
        """Return the same candidate with at most `cores.for_model` threads, where more than two cores are usable."""
        if cores.usable <= 2:
            return self
        return msgspec.structs.replace(self, intra_op_num_threads=min(self.intra_op_num_threads, cores.for_model))

    def settings(self, base: SessionSettings) -> SessionSettings:
        """Return the settings of the candidate's session; those that a candidate does not have are as in `base`."""
        return msgspec.structs.replace(
            base,
            providers=self.providers,
            intra_op_num_threads=self.intra_op_num_threads,
            allow_spinning=self.allow_spinning,
            inter_op_num_threads=self.inter_op_num_threads,
            arena=self.arena,
        )

    def __str__(self) -> str:
        """Return the candidate in words, such as `int8, 2 threads, spinning`."""
        threads = self.intra_op_num_threads
        words = [self.variant, f"{threads} thread{'s' if threads > 1 else ''}"]
        if self.allow_spinning and threads > 1:
            words.append("spinning")
        if self.inter_op_num_threads > 1:
            words.append(f"{self.inter_op_num_threads} branches at once")
        if not self.arena:
            words.append("no arena")
        if self.providers and self.providers[0] != "CPUExecutionProvider":
            words.append(self.providers[0].removesuffix("ExecutionProvider"))
        return ", ".join(words)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The measured speed of a candidate, on frames that came at the camera's rate.

    Attributes:
        quality: the quality that the bundle states, 0-1; None where it was not measured.
        like_reference: whether that quality cannot be told from the reference's on the build's images.
        p50_ms, p99_ms: time of prepare, run and decode. With about fifty frames the p99 is nearly the slowest one.
        cpu_share: the process's CPU time divided by the time that passed; 1 is one core.
        given_up: whether the measurement ended early, because the candidate could not keep the budget any more.
    """

    candidate: Candidate
    quality: float | None
    p50_ms: _NonNegative
    p99_ms: _NonNegative
    cpu_share: _NonNegative
    frames: Annotated[int, Meta(ge=1)]
    given_up: bool = False
    like_reference: bool = False

    @property
    def rating(self) -> Rating:
        """The quality of the variant that the bundle states."""
        return Rating(self.quality, self.like_reference)


# What a window does not see: the frame's way to the loop, encoding, and the slowest of ten thousand frames. At a p99
# just below the budget the drop rule leaves frames out all the time.
_SAFE = 0.9  # share of the budget

# Two windows of the same settings differ by that much: less says nothing, and must not decide.
_SAME_RELATIVE = 1.1
_SAME_MS = 0.2
_SAME_SHARE = 0.01
# The p99 of fifty frames is one frame: where half of the frames are as fast, a p99 up to that was an accident.
_SAME_P50 = 1.05
_ACCIDENT = 1.5


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits that a candidate must keep: latency from capture to outbox, and CPU time over time (1 is one core)."""

    budget_ms: float
    cpu_share: float | None = None

    def keeps_budget(self, measured: Measurement) -> bool:
        """Tell whether the p99 of a measurement keeps the budget."""
        return measured.p99_ms <= self.budget_ms

    def keeps_cpu(self, measured: Measurement) -> bool:
        """Tell whether the CPU share of a measurement keeps its limit."""
        return self.cpu_share is None or measured.cpu_share <= self.cpu_share

    def is_safe(self, measured: Measurement) -> bool:
        """Tell whether a measurement keeps both limits, with a tenth of the budget to spare."""
        return measured.p99_ms <= self.budget_ms * _SAFE and self.keeps_cpu(measured)


def choose(measured: Sequence[Measurement], limits: Limits) -> tuple[Measurement, str]:
    """Choose the measurement whose candidate shall run, and give the reason in a few words.

    The highest measured quality whose p99 meets the budget, with a tenth to spare, and whose CPU share meets its limit;
    of those that are as good within noise the fastest, of those that are as fast the one that takes the least CPU, of
    those the one with the higher figure, or the first. Where none has that to spare, the same of those that just meet
    the budget; where none meets both, the least CPU share that meets the budget; where none meets the budget, the
    least p99.
    """
    good = _good(measured, limits)
    if good:
        best = good[0]
        chosen = _fastest([m for m in good if m.rating.is_as_good_as(best.rating)])
        return chosen, _praise(chosen, best, measured, limits)
    in_time = [m for m in measured if limits.keeps_budget(m)]
    if in_time:
        chosen = min(in_time, key=lambda m: m.cpu_share)
        return chosen, (
            f"a CPU share of {limits.cpu_share:g} cannot be kept here: the least of {_count(measured)} is "
            f"{chosen.cpu_share:.2f}"
        )
    chosen = min(measured, key=lambda m: m.p99_ms)
    return chosen, (
        f"a budget of {limits.budget_ms:g} ms cannot be kept here: the fastest of {_count(measured)} takes "
        f"{chosen.p99_ms:.3g} ms (p99)"
    )


def _good(measured: Sequence[Measurement], limits: Limits) -> list[Measurement]:
    """Return those that keep the limits, if possible with something to spare; the highest figure first."""
    in_time = [m for m in measured if limits.keeps_budget(m)]
    good = [m for m in in_time if limits.is_safe(m)] or [m for m in in_time if limits.keeps_cpu(m)]
    return sorted(good, key=lambda m: -m.rating.rank)


def _fastest(measured: Sequence[Measurement]) -> Measurement:
    best = min(measured, key=lambda m: m.p99_ms)
    as_fast = [m for m in measured if _is_as_fast(m, best)]
    share = min(m.cpu_share for m in as_fast)
    return next(m for m in as_fast if m.cpu_share <= max(share * _SAME_RELATIVE, share + _SAME_SHARE))


def _is_as_fast(measured: Measurement, best: Measurement) -> bool:
    if measured.p99_ms <= max(best.p99_ms * _SAME_RELATIVE, best.p99_ms + _SAME_MS):
        return True
    return measured.p50_ms <= best.p50_ms * _SAME_P50 and measured.p99_ms <= best.p99_ms * _ACCIDENT


def _praise(chosen: Measurement, best: Measurement, measured: Sequence[Measurement], limits: Limits) -> str:
    kept = f"{limits.budget_ms:g} ms" + (
        "" if limits.cpu_share is None else f" and a CPU share of {limits.cpu_share:g}"
    )
    if chosen.rating.rank < best.rating.rank:
        return f"as good as {best.candidate.variant} within noise, and the fastest of these that keeps {kept}"
    others = {m.candidate.variant for m in measured} - {chosen.candidate.variant}
    if others:
        return f"the highest quality of those that keep {kept}"
    return f"the fastest that keeps {kept}, with the least CPU where others are as fast"


def _count(measured: Sequence[Measurement]) -> str:
    return f"{len(measured)} that were tried" if len(measured) > 1 else "the one that was tried"


Steps: TypeAlias = Generator[Candidate, Measurement | None, None]
_Asking: TypeAlias = Generator[Candidate, Measurement | None, Measurement | None]

_HELPS = 0.95  # of the p50 with fewer threads; above it further threads only warm the board
_REACHABLE = 2.0  # times the budget: what lies further away no setting brings back


def thread_counts(cores: Cores) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to the cores that are for the model."""
    top = cores.for_model
    return tuple(sorted({top, *(1 << doublings for doublings in range(top.bit_length()))}))


class Search:
    """One search for the settings that serve best here."""

    def __init__(self, plan: Plan) -> None:
        self._promise, self._threads, self._limits = plan.promise, plan.threads, plan.limits
        self._by_rank = sorted(plan.ratings.items(), key=lambda item: item[1].rank, reverse=True)
        self._known: dict[Candidate, Measurement | None] = {}

    def steps(self) -> Steps:
        """Ask for one candidate after the other; None is sent for one that could not be measured."""
        promise = self._promise
        yield from self._ask(promise)
        yield from self._more_threads(promise)
        for first in range(len(promise.providers)):
            yield from self._ask(_replace(self._best_so_far(), providers=promise.providers[first:]))
        yield from self._variants()
        yield from self._finish()

    def untried(self) -> tuple[str, ...]:
        """Return variants that were not measured and have a higher figure than what would be chosen; the best first."""
        found = [m for m in self._known.values() if m is not None]
        looked_at = {candidate.variant for candidate in self._known}
        least = choose(found, self._limits)[0].rating.rank if found else float("-inf")
        return tuple(name for name, rating in self._by_rank if name not in looked_at and rating.rank > least)

    def _ask(self, candidate: Candidate) -> _Asking:
        if candidate not in self._known:
            self._known[candidate] = yield candidate
        return self._known[candidate]

    def _more_threads(self, base: Candidate) -> Steps:
        """Try more threads as long as that helps."""
        before: Measurement | None = None
        for threads in self._threads:
            now = yield from self._ask(_replace(base, intra_op_num_threads=threads))
            if before and now and now.p50_ms > before.p50_ms * _HELPS:
                return
            before = now

    def _variants(self) -> Steps:
        """Try variants from the best down to the first that keeps the limits safely, and those that are as good."""
        settings = self._best_so_far()
        reached: Rating | None = None
        for variant, rating in self._by_rank:
            if reached is not None and not rating.is_as_good_as(reached):
                continue
            base = self._best_so_far() if variant == self._promise.variant else _replace(settings, variant=variant)
            yield from self._ask(base)
            if reached is None and not self._keeps(variant):
                yield from self._harder(variant, base)
            if reached is None and self._keeps(variant):
                reached = rating

    def _harder(self, variant: str, base: Candidate) -> Steps:
        """Try what may bring a variant back that just misses; the gentlest first, and no further than is needed."""
        for candidate in self._harder_ones(base):
            found = self._of(variant)
            if not found or min(m.p99_ms for m in found) > self._limits.budget_ms * _REACHABLE or self._keeps(variant):
                return
            yield from self._ask(candidate)

    def _harder_ones(self, base: Candidate) -> Iterator[Candidate]:
        others = [t for t in self._threads if t != base.intra_op_num_threads]
        for threads in others:
            yield _replace(base, intra_op_num_threads=threads)
        top = self._threads[-1]
        if top > 1:
            yield _replace(base, intra_op_num_threads=top, allow_spinning=True)
        # On one provider ONNX Runtime runs all nodes in turn, whatever it is told.
        if len(base.providers) > 1:
            yield _replace(base, intra_op_num_threads=top, inter_op_num_threads=2)

    def _finish(self) -> Steps:
        """Try, with the best settings, spinning where a limit says how much it may burn, and no arena."""
        found = [m for m in self._known.values() if m is not None]
        if not found:
            return
        best = choose(found, self._limits)[0].candidate
        if self._limits.cpu_share is not None and best.intra_op_num_threads > 1:
            yield from self._ask(_replace(best, allow_spinning=True))
        yield from self._ask(_replace(best, arena=False))

    def _best_so_far(self) -> Candidate:
        """Return the candidate that serves the promised variant best."""
        found = self._of(self._promise.variant)
        return choose(found, self._limits)[0].candidate if found else self._promise

    def _keeps(self, variant: str) -> bool:
        return any(self._limits.is_safe(m) for m in self._of(variant))

    def _of(self, variant: str) -> list[Measurement]:
        return [m for c, m in self._known.items() if c.variant == variant and m is not None]


def _replace(candidate: Candidate, **changes: object) -> Candidate:
    return msgspec.structs.replace(candidate, **changes)


_BUSY = 0.25  # of the processors' time: a core of four; a camera's own driver and a broker take less


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What tuning came to: what was measured, and which of it runs.

    Attributes:
        metric: what `quality` is.
        providers: execution providers that the bundle promises and that started here.
        before: what the bundle promises by default; None where it could not be measured.
        meets_budget, meets_cpu_share: whether `chosen` keeps the limits.
        others: the share of the processors' time that other programs took meanwhile, 0-1; None where it is not known.
        untried: variants with a higher figure of quality than `chosen` for which there was no time, the best first.
        provisional: whether others took so much, or so little was tried, that it has to be measured again.
    """

    limits: Limits
    fps: float
    metric: str
    providers: tuple[str, ...]
    before: Measurement | None
    chosen: Measurement
    reason: str
    meets_budget: bool
    meets_cpu_share: bool
    measured: tuple[Measurement, ...]
    seconds: float
    others: float | None = None
    untried: tuple[str, ...] = ()
    provisional: bool = False

    @classmethod
    def of(
        cls,
        plan: Plan,
        measured: Sequence[Measurement],
        *,
        seconds: float,
        others: float | None = None,
        untried: Sequence[str] = (),
    ) -> Tuned:
        """Choose from one or more measurements and keep all of them."""
        chosen, reason = choose(measured, plan.limits)
        return cls(
            limits=plan.limits,
            fps=plan.fps,
            metric=plan.metric,
            providers=plan.promise.providers,
            before=next((m for m in measured if m.candidate == plan.promise), None),
            chosen=chosen,
            reason=reason,
            meets_budget=plan.limits.keeps_budget(chosen),
            meets_cpu_share=plan.limits.keeps_cpu(chosen),
            measured=tuple(measured),
            seconds=round(seconds, 1),
            others=None if others is None else round(others, 2),
            untried=tuple(untried),
            provisional=bool(untried) or (others is not None and others > _BUSY),
        )

    def for_variant(self, variant: str) -> Candidate:
        """Return how one of the bundle's models runs best: as measured, else with the settings of what was chosen."""
        if variant == self.chosen.candidate.variant:
            return self.chosen.candidate
        measured = [m for m in self.measured if m.candidate.variant == variant]
        if measured:
            return choose(measured, self.limits)[0].candidate
        return msgspec.structs.replace(self.chosen.candidate, variant=variant)

    def is_within_noise(self, one: Measurement) -> bool:
        """Tell whether `one` is as good as the best that may run, within the noise, though its figure is lower."""
        good = _good(self.measured, self.limits)
        return bool(good) and one.rating.rank < good[0].rating.rank and one.rating.is_as_good_as(good[0].rating)

    def doubt(self) -> str:
        """Return why tuning must be repeated; empty where it need not."""
        doubts = [f"there was no time for {', '.join(self.untried)}"] if self.untried else []
        if self.others is not None and self.others > _BUSY:
            took = f"{100 * self.others:.0f} % of the processors' time"
            doubts.append(f"other programs took {took} while it was measured")
        return " and ".join(doubts)

    def line(self) -> str:
        """Return a line for people about what ran before and what runs now."""
        after = f"{self.chosen.candidate} ({figures(self.chosen)})"
        if self.before is None or self.before.candidate == self.chosen.candidate:
            return f"{after} as promised; {self.reason}" if self.before else f"{after}; {self.reason}"
        return f"{after} instead of {self.before.candidate} ({figures(self.before)}); {self.reason}"


def figures(measured: Measurement) -> str:
    """Show a measurement in a few words."""
    return f"p99 {measured.p99_ms:.3g} ms, {100 * measured.cpu_share:.0f} % of a core"


SECONDS = 20.0
"""How long a run tunes by default."""

WARM_UP_FRAMES = 3  # frames that are not counted, in which buffers are made and caches filled
_CANDIDATES = 12  # about so many fit into the time; the window gets longer when there is more of it
_LEAST_FRAMES = 20  # a percentile of fewer frames says little
_PATIENCE = 2.0  # times the expected duration of a window; a slower camera is measured on fewer frames
_PATIENCE_NS = 1_000_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one bundle's tuning on this machine: which candidates are measured, and how long.

    Attributes:
        promise: what runs without tuning, on the providers that are here, with a core left to camera and broker.
        threads: the numbers of threads to try.
        fps: frames per second of the camera.
        window_s: how long one candidate is measured, in seconds.
        seconds: for all of them; choosing and loading the chosen one comes on top.
    """

    promise: Candidate
    metric: str
    ratings: dict[str, Rating]
    threads: tuple[int, ...]
    limits: Limits
    fps: float
    window_s: float
    seconds: float

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        limits: Limits,
        *,
        only_first: bool,
        providers: Sequence[str],
        fps: float,
        seconds: float | None,
        cores: Cores,
    ) -> Plan:
        """Make a plan for a bundle, whose first variant is the promised one, or the only one (`only_first`).

        `providers` are those that a session got here. By default it takes 20 seconds, and more for a camera so slow
        that not every variant could be looked at in them.
        """
        metric, rated = ratings(bundle.manifest)
        promise = _replace(Candidate.promised(bundle.manifest).within(cores), providers=tuple(providers))
        if only_first:
            rated = {promise.variant: rated[promise.variant]}
        plan = cls(
            promise=promise,
            metric=metric,
            ratings=rated,
            threads=thread_counts(cores),
            limits=limits,
            fps=fps,
            window_s=(seconds or SECONDS) / _CANDIDATES,
            seconds=seconds or SECONDS,
        )
        if seconds:
            return plan
        every_s = (len(rated) + len(plan.threads)) * plan.expected_s
        return msgspec.structs.replace(plan, seconds=max(SECONDS, every_s))

    @property
    def frames(self) -> int:
        """The number of frames of one window."""
        return max(_LEAST_FRAMES, round(self.window_s * self.fps))

    @property
    def expected_s(self) -> float:
        """Seconds that the measurement of a candidate takes, without loading it."""
        return (self.frames + WARM_UP_FRAMES) / self.fps

    @property
    def longest_ns(self) -> int:
        """Nanoseconds after which a window is over, however many frames came."""
        return int(_PATIENCE * self.expected_s * 1e9) + _PATIENCE_NS
