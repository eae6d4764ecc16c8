"""Run the loop of one pipeline, step by step, until there is a reason to stop.

After every step `PipelineRunner` calls the monitors and the objects that choose the model, applies what commands have
set (`CameraControls`), and counts for the summary. Controls belong to the camera: they stay when another pipeline takes
over, and end with the camera or the process. `Progress` knows whether every pipeline makes steps, so that the watchdog
of the service manager reports work and not only a living thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.clock import Percentiles
from edge_sdk.core.errors import SessionError
from edge_sdk.core.frame import Image, Result
from edge_sdk.core.protocols import Sink
from edge_sdk.core.threads import Stop
from edge_sdk.events.rules import EventRule, Occupancy
from edge_sdk.inference.cascade import Cascade, CropCounts
from edge_sdk.inference.session import Stages
from edge_sdk.loop import Budget, Loop, LoopObserver, RunRecord, Tick
from edge_sdk.messages.commands import COMMANDS, CONTROLS, THRESHOLDS, UNCHANGED, ControlState, Permission
from edge_sdk.messages.schema import CameraHealth
from edge_sdk.publishing.discovery import CameraTraits
from edge_sdk.publishing.publisher import LinesStats, PublisherStats, Stream, StreamStats
from edge_sdk.service.monitors import FrameFaults, LatencyMonitor, Undecodable, WatchedSource
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.sources.slot import OpenedSource, SourceStats
from edge_sdk.tasks.decoders import thresholds_of
from edge_sdk.tuning.live import Window

_log = logging.getLogger(__name__)
_STEP_TIMEOUT_S = 0.2  # the delay until a request to stop is noticed while no frame comes
_OFTEN_NS = 10_000_000_000
_RARELY_NS = 600_000_000_000  # time between two lines of a service, whose log is kept for months


class Shot(msgspec.Struct, frozen=True, eq=False):
    """A picture that a command asked for: uint8 (H, W, 3), BGR, and the number of its frame in the source."""

    image: Image
    seq: int


class CameraControls:
    """The controls of one camera: written by the main thread, applied by the camera's pipeline between two frames."""

    def __init__(self) -> None:
        self.known: CameraTraits | None = None  # facts about the camera, set by the pipeline; None until it runs
        self.state = UNCHANGED  # the values that commands have set; replaced as a whole at every change
        self.wants_shot = False  # whether a command waits for a picture
        self.shot: Shot | None = None  # the picture; the code that takes it sets it to None

    def change(self, **values: bool | float | msgspec.UnsetType) -> None:
        """Set these fields of `state`; they apply from the next frame on."""
        self.state = msgspec.structs.replace(self.state, **values)


class Controls:
    """The controls of all cameras of a process, by name."""

    def __init__(self) -> None:
        self._of: dict[str, CameraControls] = {}
        self.are_told = False  # whether the published state contains the controls: where commands are allowed
        self.sees = False  # whether messages of the kind `seen` are published for each camera

    def of(self, camera: str) -> CameraControls:
        """Return the controls of one camera, which the first call creates."""
        return self._of.setdefault(camera, CameraControls())

    def keep_only(self, cameras: Collection[str], allowed: Collection[Permission]) -> None:
        """Forget the controls of other cameras, and values that no allowed command could set back."""
        for camera in self._of.keys() - set(cameras):
            del self._of[camera]
        kept = {kind.control.name for kind in COMMANDS.values() if kind.control and kind.permission in allowed}
        for control in self._of.values():
            values = {name: getattr(control.state, name) for name in kept}
            control.state = msgspec.structs.replace(UNCHANGED, **values)


class RunSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="summary"):
    """Summary of a run of one pipeline; as JSON its `stream` is `summary`, where that of results is `result`."""

    camera: str
    results: int = 0  # handed to the outbox, including those that are late or not finite
    late: int = 0
    stale: int = 0  # frames dropped before inference because their results would have been late
    hung: int = 0  # frames on which the model did not end in time and was stopped
    not_finite: int = 0  # results with NaN or infinity among the model's outputs
    skipped: int = 0  # frames left out on purpose, where the model runs on only some of the frames
    budget_ms: float | None  # from capture to outbox; None where it was never known
    age: Percentiles | None = None  # of the last 4096 results, from capture to outbox; None without a result
    serial: Percentiles | None = None  # the part of the age since the loop took the frame
    inference: Percentiles | None = None  # the part of that in which the model ran
    fps: float = 0.0
    then: CropCounts | None = None  # of the second model; None where there is none
    source: SourceStats = SourceStats()
    delivery: StreamStats | None = None  # of this pipeline's results; None where it never ran
    publisher: PublisherStats | None = None  # of all pipelines' results, to a broker ...
    lines: LinesStats | None = None  # ... or to standard output
    ended_by: str  # `end of source`, `signal`, `frames`, `duration`, or `failure` of a pipeline while others went on


class Progress:
    """Knows whether all pipelines of a process make steps; `is_due` is called from one thread."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._steps: dict[object, int] = {}  # each count is written by its own thread only; `dict.copy` is atomic
        self._seen: dict[object, int] = {}
        self._told_s: float | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Callable[[], None]]:
        """Watch a pipeline, which calls the yielded function after every step, also one without a frame."""
        key = object()
        self._steps[key] = 0

        def after_step() -> None:
            self._steps[key] += 1

        try:
            yield after_step
        finally:
            del self._steps[key]

    @property
    def is_watching(self) -> bool:
        """Whether at least one pipeline is watched, so that its steps decide when the watchdog is notified."""
        return bool(self._steps)

    def is_due(self, now_s: float) -> bool:
        """Return whether to notify the watchdog now: an interval is over, and every pipeline has made a step since."""
        if self._told_s is not None and now_s - self._told_s < self._interval_s:
            return False
        steps = self._steps.copy()
        # New pipelines are not compared, because they may load their models for as long as the start may take.
        if any(steps[key] == self._seen[key] for key in steps.keys() & self._seen.keys()):
            return False
        self._told_s, self._seen = now_s, steps
        return True


class ResultViewer:
    """Sink of a pipeline's loop that keeps a result's picture where a command wants one, and publishes what is seen.

    As a part of the runner it would refer back from the loop, a cycle that keeps the model in memory after the run.
    """

    def __init__(self, controls: Controls, stream: Stream, rules: Iterable[EventRule]) -> None:
        self._controls, self._control, self._stream = controls, controls.of(stream.camera), stream
        self._occupancy = Occupancy(rules)

    def put(self, result: Result) -> None:
        """Take a result; see `Sink`."""
        control = self._control
        if control.wants_shot:
            control.wants_shot = False
            control.shot = Shot(result.frame.image.copy(), result.frame.seq)
        if self._controls.sees and self._occupancy.take(result):
            shown = self._occupancy.shown or {}
            self._stream.report_seen(next(iter(shown), None) if result.xyxy is None else shown)


class PipelineRunner:
    """Runs the loop of one pipeline."""

    def __init__(
        self,
        settings: PipelineSettings,
        bundle: Bundle,
        source: OpenedSource,
        stages: Stages,
        stream: Stream,
        budget: Budget,
        controls: Controls,
        observers: Sequence[Sink] = (),
        then: Cascade | None = None,
    ) -> None:
        self._then = then
        self._settings, self._source, self._stream, self._budget = settings, source, stream, budget
        self._controls, self._control = controls, controls.of(stream.camera)
        self._applied: ControlState | None = None
        manifest = bundle.manifest
        refusals = {control.name: control.refusal(manifest, source.paced) for control in CONTROLS}
        self._promised = {  # of the thresholds that this camera has
            name: getattr(manifest.thresholds, name) for name in THRESHOLDS if not refusals[name]
        }
        wanted = {name: getattr(settings, name) for name in ("confidence", "iou")}
        self._configured: dict[str, float] = {name: value for name, value in wanted.items() if value is not None}
        absent = [name for name in self._configured if name not in thresholds_of(manifest)]
        if absent:
            _log.warning(f"{' and '.join(absent)}: a bundle for {manifest.task} has no such threshold")
            self._configured = {name: value for name, value in self._configured.items() if name not in absent}
        self._promised |= {name: value for name, value in self._configured.items() if name in self._promised}
        self._thresholds = self._configured  # and those that commands have set
        self._control.known = CameraTraits(
            name=stream.camera,
            task=manifest.task,
            labels=settings.labels or bundle.labels(),
            refusals={name: why for name, why in refusals.items() if why},
            tells_events=bool(settings.events),
            has_pictures=settings.snapshots is not None,
        )
        self._record = RunRecord()
        self._faults = FrameFaults(self._record, stream.warn)
        viewer = ResultViewer(controls, stream, settings.events)
        self.loop = Loop(source, stages, stream, budget, observers=[self._record, viewer, *observers], then=then)
        self.loop.class_ids = settings.class_ids(bundle)
        self._watchers: list[LoopObserver] = [
            self._record,
            self._faults,
            Undecodable(lambda: source.stats, stream.warn),
            LatencyMonitor(budget.limit_ns, stream.warn),
        ]
        self._watched = WatchedSource(source, settings.source, stream)
        self._told = (time.monotonic(), 0)  # time of the last count of results, and that count
        self.first_result_ns = 0  # when the first result was in the outbox, monotonic; 0: not yet
        self.ended_by: str | None = None  # why the run ended without a request

    def run(self, stop: Stop, progress: Progress, steer: Callable[[], list[LoopObserver]], *, rare_lines: bool) -> None:
        """Step until the source ends, the limit of frames is reached or a stop is asked for.

        Args:
            stop: the request to stop.
            progress: is told of every step.
            steer: returns the observers that choose the model; called once frames come, because it uses their rate.
            rare_lines: log the counts every ten minutes instead of every ten seconds.
        """
        loop, source, frames = self.loop, self._source, self._settings.frames
        interval_ns = _RARELY_NS if rare_lines else _OFTEN_NS
        next_line_ns = time.monotonic_ns() + interval_ns
        is_steered = False
        self._watched.look()
        with progress.begin() as after_step:
            while not stop.is_asked():
                if not is_steered and source.status.is_there:
                    is_steered = True
                    self._watchers += steer()
                tick = self._step()
                after_step()
                for observer in self._watchers:
                    observer.after(loop, tick)
                if self._faults.hopeless is not None:
                    raise SessionError(self._faults.hopeless)
                if not self.first_result_ns and self._record.results:
                    self.first_result_ns = time.monotonic_ns()
                self._watched.look()
                if frames is not None and self._record.results >= frames:
                    self.ended_by = "frames"
                    return
                if source.ended:
                    self.ended_by = "end of source"
                    return
                now_ns = time.monotonic_ns()
                if now_ns >= next_line_ns:
                    next_line_ns = now_ns + interval_ns  # a paused process does not make up for missed lines
                    _log.info(self._record.line(loop))

    def health(self) -> CameraHealth:
        """Return the health of the camera, with the rate since the last call; only one thread may call this."""
        now_s, results, age = time.monotonic(), self._record.results, self._record.percentiles("age")
        (before_s, before), self._told = self._told, (now_s, results)
        return CameraHealth(
            fps=round((results - before) / (now_s - before_s), 2) if now_s > before_s else 0.0,
            age_p50_ms=age.p50_ms if age is not None else msgspec.UNSET,
            results=results,
            dropped=self._stream.stats().dropped,
            reopenings=self._source.stats.reopenings,
            unreadable=self._source.stats.unreadable,
        )

    def counts(self) -> dict[str, Any]:
        """Return the counts so far, by the names of the fields of `RunSummary`."""
        record, loop = self._record, self.loop
        return {
            "results": record.results,
            "late": loop.counts[Tick.LATE],
            "stale": loop.counts[Tick.STALE],
            "hung": loop.counts[Tick.HUNG],
            "not_finite": record.not_finite,
            "skipped": loop.counts[Tick.SKIPPED],
            "budget_ms": self._budget.limit_ns / 1e6,
            "age": record.percentiles("age"),
            "serial": record.percentiles("serial"),
            "inference": record.percentiles("inference"),
            "fps": record.fps(),
            "then": None if self._then is None else self._then.counts,
            "source": self._source.stats,
            "delivery": self._stream.stats(),
        }

    def _step(self) -> Tick:
        """Apply what commands have set, and make one step; a paused pipeline behaves as if no frame came."""
        state = self._control.state
        if state is not self._applied:
            self._apply(state)
        _set_thresholds(self.loop, self._thresholds)  # also of a model that was loaded meanwhile
        if not state.paused:
            return self.loop.step(_STEP_TIMEOUT_S)
        if self._source.paced:
            self._source.latest(_STEP_TIMEOUT_S)  # frames are dropped, so that none is old when the camera goes on
        else:
            time.sleep(_STEP_TIMEOUT_S)
        return Tick.IDLE

    def _apply(self, state: ControlState) -> None:
        self._applied = state
        self.loop.least_gap_ns = int(1e9 / state.max_fps) if self._source.paced and state.max_fps > 0 else 0
        given = {name: getattr(state, name) for name in self._promised}
        commanded = {name: value for name, value in given.items() if value is not msgspec.UNSET}
        self._thresholds = self._configured | commanded
        if self._controls.are_told:
            absent = dict.fromkeys(THRESHOLDS, msgspec.UNSET)
            shown = absent | self._promised | commanded
            self._stream.report(controls=msgspec.structs.replace(state, **shown))


def _set_thresholds(loop: Loop, thresholds: dict[str, float]) -> None:
    stages = loop.stages.stages if isinstance(loop.stages, Window) else loop.stages
    if isinstance(stages, Stages) and stages.thresholds != thresholds:
        stages.set_thresholds(thresholds)
