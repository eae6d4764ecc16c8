"""Run the loop of one stream, step by step, until there is a reason to stop.

After every step `PipelineRunner` calls the monitors and the objects that choose the model, applies what commands have
set (`CameraControls`), and counts for the summary. The process's main thread writes `CameraControls`, and the stream's
thread applies them between two frames. They belong to the camera and not to its pipeline: they stay when another
pipeline takes over, and end with the camera or the process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.clock import Percentiles
from edge_sdk.core.errors import SessionError
from edge_sdk.core.frame import Image, Result
from edge_sdk.core.protocols import Sink
from edge_sdk.core.threads import Stop
from edge_sdk.inference.stages import Stages
from edge_sdk.loop import Budget, Loop, LoopObserver, RunRecord, Tick
from edge_sdk.messages.commands import CommandClass
from edge_sdk.messages.schema import CameraHealth, ControlState
from edge_sdk.publishing.discovery import CameraTraits
from edge_sdk.publishing.publisher import LinesStats, PublisherStats, Stream, StreamStats
from edge_sdk.service.monitors import FrameFaults, LatencyMonitor, Undecodable, WatchedSource
from edge_sdk.service.progress import Progress
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.sources.slot import OpenedSource, SourceStats
from edge_sdk.tuning.live import Window

_log = logging.getLogger(__name__)
_STEP_TIMEOUT_S = 0.2  # the delay until a request to stop is noticed while no frame comes
_OFTEN_NS = 10_000_000_000
_RARELY_NS = 600_000_000_000  # time between two lines of a service, whose log is kept for months


class Shot(msgspec.Struct, frozen=True, eq=False):
    """A picture that a command asked for.

    Attributes:
        image: uint8 (H, W, 3), BGR.
        seq: number of the frame in its source.
    """

    image: Image
    seq: int


class CameraControls:
    """The settings of one camera that commands have changed.

    Attributes:
        known: facts about the camera for commands and Home Assistant, set by the stream; None until it runs.
        paused: whether frames are ignored.
        confidence: the least confidence of detections, 0 to 1; None: the bundle's threshold.
        max_fps: the most frames per second that the model runs on; 0: no limit.
        version: a number that grows with every change.
        wants_shot: whether a command waits for a picture.
        shot: the picture; the code that takes it sets it to None.
    """

    def __init__(self) -> None:
        self.known: CameraTraits | None = None
        self.paused = False
        self.confidence: float | None = None
        self.max_fps = 0.0
        self.version = 0
        self.wants_shot = False
        self.shot: Shot | None = None

    def change(
        self, *, paused: bool | None = None, confidence: float | None = None, max_fps: float | None = None
    ) -> None:
        """Set the values that are not None; they apply from the next frame on."""
        self.paused = self.paused if paused is None else paused
        self.confidence = self.confidence if confidence is None else confidence
        self.max_fps = self.max_fps if max_fps is None else max_fps
        self.version += 1  # last, so that a thread that sees the new version sees the new values


class Controls:
    """The controls of all cameras of a process, by name.

    Attributes:
        are_told: whether the published state contains the controls, as it does where commands are allowed.
        sees: whether messages of the kind `seen` are published for each camera.
    """

    def __init__(self) -> None:
        self._of: dict[str, CameraControls] = {}
        self.are_told = self.sees = False

    def of(self, camera: str) -> CameraControls:
        """Return the controls of one camera, which the first call creates."""
        return self._of.setdefault(camera, CameraControls())

    def keep_only(self, cameras: Collection[str], allowed: Collection[CommandClass]) -> None:
        """Forget the controls of other cameras, and values set by commands that are not allowed any more.

        No command could set those values back.
        """
        for camera in self._of.keys() - set(cameras):
            del self._of[camera]
        for control in self._of.values():
            control.confidence = control.confidence if "set_threshold" in allowed else None
            control.change(
                paused=control.paused and "pause" in allowed,
                max_fps=control.max_fps if "set_rate" in allowed else 0.0,
            )


class RunSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="summary"):
    """Summary of a run of one stream; as JSON its `stream` is `summary`, where that of results is `result`.

    Attributes:
        camera: name of the stream.
        results: results handed to the outbox, including late ones and those that are not finite.
        late: results handed to the outbox after the budget.
        stale: frames dropped before inference because their results would have been late.
        hung: frames on which the model did not end in time and was stopped.
        not_finite: results with NaN or infinity among the model's outputs.
        skipped: frames left out on purpose, where the model runs on only some of the frames.
        budget_ms: the latency budget, from capture to outbox; None where the stream was stopped before it had a model,
            and no budget was given.
        age, serial, inference: percentiles of the last 4096 results; None without a result. `age` is the time from
            capture to outbox, `serial` the part of it since the loop took the frame, `inference` the part of that in
            which the model ran.
        fps: results per second.
        source: counts of the source's frames.
        delivery: counts of how this stream's results were delivered; None where the stream never ran.
        publisher, lines: counts of how results of all streams were delivered, to a broker or to standard output.
        ended_by: `end of source`, `signal`, `frames`, `duration`, or `failure` of a stream while others went on.
    """

    camera: str
    results: int = 0
    late: int = 0
    stale: int = 0
    hung: int = 0
    not_finite: int = 0
    skipped: int = 0
    budget_ms: float | None
    age: Percentiles | None = None
    serial: Percentiles | None = None
    inference: Percentiles | None = None
    fps: float = 0.0
    source: SourceStats = SourceStats()
    delivery: StreamStats | None = None
    publisher: PublisherStats | None = None
    lines: LinesStats | None = None
    ended_by: str


class ResultViewer:
    """Sink of a stream's loop that keeps a result's picture where a command wants one, and publishes what is seen.

    It is not part of the runner, because the loop would then refer back to the runner, and this cycle would keep the
    model in memory after the run.
    """

    def __init__(self, controls: Controls, stream: Stream) -> None:
        self._controls, self._control, self._stream = controls, controls.of(stream.camera), stream

    def put(self, result: Result) -> None:
        """Take a result after it was delivered; see `Sink`."""
        control = self._control
        if control.wants_shot:
            control.wants_shot = False
            control.shot = Shot(result.frame.image.copy(), result.frame.seq)
        if self._controls.sees:
            self._stream.report_seen(result)


class PipelineRunner:
    """Runs the loop of one stream.

    Attributes:
        loop: the loop that the runner steps.
        first_result_ns: time at which the first result was in the outbox, monotonic nanoseconds; 0: not yet.
        ended_by: why the run ended without a request; None until then.
    """

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
    ) -> None:
        self._settings, self._source, self._stream, self._budget = settings, source, stream, budget
        self._controls, self._control, self._version = controls, controls.of(stream.camera), -1
        manifest = bundle.manifest
        self._confidence = manifest.thresholds.confidence if manifest.task == "detection" else None
        self._control.known = CameraTraits(
            name=stream.camera,
            task=manifest.task,
            has_threshold=self._confidence is not None,
            labels=bundle.labels(),
            is_paced=source.paced,
            tells_events=bool(settings.events),
            has_pictures=settings.snapshots is not None,
        )
        self._record = RunRecord()
        self._faults = FrameFaults(self._record, stream.warn)
        viewer = ResultViewer(controls, stream)
        self.loop = Loop(source, stages, stream, budget, observers=[self._record, viewer, *observers])
        self._watchers: list[LoopObserver] = [
            self._record,
            self._faults,
            Undecodable(lambda: source.stats, stream.warn),
            LatencyMonitor(budget.limit_ns, stream.warn),
        ]
        self._watched = WatchedSource(source, settings.source, stream)
        self._told = (time.monotonic(), 0)  # time of the last count of results, and that count
        self.first_result_ns = 0
        self.ended_by: str | None = None

    def run(self, stop: Stop, progress: Progress, steer: Callable[[], list[LoopObserver]], *, rare_lines: bool) -> None:
        """Step until the source ends, the limit of frames is reached or a stop is asked for.

        Args:
            stop: the request to stop.
            progress: gets notice of every step.
            steer: returns the observers that choose the model; called once frames come, because it uses their rate.
            rare_lines: log a line of counts every ten minutes instead of every ten seconds.

        Raises:
            EdgeError: the source, a stage or the sink failed.
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
        now_s, results, age = time.monotonic(), self._record.results, self._record.age()
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
            "age": record.age(),
            "serial": record.serial(),
            "inference": record.inference(),
            "fps": record.fps(),
            "source": self._source.stats,
            "delivery": self._stream.stats(),
        }

    def _step(self) -> Tick:
        """Apply what commands have set, and make one step; a paused stream behaves as if no frame came."""
        control = self._control
        if control.version != self._version:
            self._apply(control)
        if self._confidence is not None:
            _set_confidence(self.loop, control.confidence)  # also applies it to a model that was loaded meanwhile
        if not control.paused:
            return self.loop.step(_STEP_TIMEOUT_S)
        if self._source.paced:
            self._source.latest(_STEP_TIMEOUT_S)  # frames are dropped, so that none is old when the stream goes on
        else:
            time.sleep(_STEP_TIMEOUT_S)
        return Tick.IDLE

    def _apply(self, control: CameraControls) -> None:
        self._version = control.version
        self.loop.least_gap_ns = int(1e9 / control.max_fps) if self._source.paced and control.max_fps > 0 else 0
        if self._controls.are_told:
            lowest = self._confidence if control.confidence is None else control.confidence
            self._stream.report_controls(
                ControlState(
                    paused=control.paused,
                    confidence=msgspec.UNSET if self._confidence is None or lowest is None else lowest,
                    max_fps=control.max_fps,
                )
            )


def _set_confidence(loop: Loop, confidence: float | None) -> None:
    stages = loop.stages.stages if isinstance(loop.stages, Window) else loop.stages
    if isinstance(stages, Stages) and stages.confidence != confidence:
        stages.set_confidence(confidence)
