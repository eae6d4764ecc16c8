"""Stepping: the loop of one stream is stepped until there is a reason to stop, and told of meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import HungRunError, SessionError
from edge_sdk.core.frame import Frame, Result
from edge_sdk.core.threads import Stop
from edge_sdk.loop import Budget, Loop, LoopObserver, Tick
from edge_sdk.service import runner as stepping_module
from edge_sdk.service.monitors import LatencyMonitor, Undecodable, WatchedSource
from edge_sdk.service.runner import PipelineRunner, Progress
from edge_sdk.sources.slot import SourceStats, SourceStatus
from tests.support.bundles import LARGE, open_variant
from tests.support.connections import until
from tests.support.logs import SAID, refusal
from tests.support.loops import MS, Camera, Clock, Collector
from tests.support.results import make_detections, make_frame
from tests.support.service import Site


class Source:
    """Frames as fast as they are asked for; where it stands is set by hand."""

    fps, paced = 30.0, True

    def __init__(self, count: int = 10**9) -> None:
        self.left, self.delivered, self.unreadable = count, 0, 3
        self.status, self.trouble, self.remarks = SourceStatus.OPENED, "", tuple[str, ...]()
        self.delay_ns = 0

    @property
    def ended(self) -> bool:
        return self.left == 0

    @property
    def stats(self) -> SourceStats:
        return SourceStats(delivered=self.delivered, reopenings=2, unreadable=self.unreadable)

    def latest(self, timeout_s: float) -> Frame | None:
        if not self.status.is_there:
            time.sleep(0.001)
            return None
        self.left -= 1
        self.delivered += 1
        frame = make_frame(self.delivered, "gate", time.monotonic_ns() - self.delay_ns, time.time())
        return msgspec.structs.replace(frame, delay_ns=self.delay_ns)

    def close(self) -> None:
        pass


class Watcher:
    def __init__(self, look: Callable[[Tick], object]) -> None:
        self._look = look

    def after(self, loop: Loop, tick: Tick) -> None:
        self._look(tick)


class Scene:
    def __init__(self, site: Site, source: Source, **settings: object) -> None:
        self.site, self.source, self.stop, self.observer = site, source, Stop(), Collector()
        stages, stream, self.progress = open_variant(site.bundle, LARGE), site.stream(), Progress(1e-9)
        given: list[Any] = [site.settings(**settings), Bundle.open(site.bundle), source, stages, stream]
        given += [Budget(5000.0), site.shared.controls, [self.observer]]
        self.stepping = PipelineRunner(*given)

    def run(self, *supervisors: LoopObserver, rare_lines: bool = False) -> None:
        self.stepping.run(self.stop, self.progress, lambda: [*supervisors], rare_lines=rare_lines)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_it_ends_with_its_source_and_is_summed_up(site: Site) -> None:
    scene, is_watched = Scene(site, Source(4)), list[bool]()
    scene.run(Watcher(lambda _tick: is_watched.append(scene.progress.is_watching)))
    until(lambda: len(site.link.documents("result")) == 4)
    counts = scene.stepping.counts()
    assert [counts[name] for name in ("results", "late", "hung", "stale", "budget_ms")] == [4, 0, 0, 0, 5000.0]
    assert (counts["source"].delivered, len(scene.observer.results)) == (4, 4)
    assert scene.stepping.ended_by == "end of source"
    assert 0 < scene.stepping.first_result_ns <= time.monotonic_ns()
    assert (is_watched, scene.progress.is_watching) == ([True] * 4, False)  # by the watchdog


def test_it_ends_after_its_number_of_results_or_at_a_request(site: Site) -> None:
    scene = Scene(site, Source(), frames=3)
    scene.run()
    assert (scene.stepping.ended_by, scene.source.delivered) == ("frames", 3)
    scene = Scene(site, Source())
    scene.run(Watcher(lambda _tick: scene.stop.ask("reload")))
    assert (scene.stepping.ended_by, scene.source.delivered) == (None, 1)


def test_steering_begins_once_frames_come(site: Site) -> None:
    source = Source(3)
    source.status, source.trouble = SourceStatus.OPENING, "no such device"
    scene, ticks, began = Scene(site, source), list[Tick](), list[SourceStatus]()

    def steer() -> list[LoopObserver]:
        began.append(source.status)
        return [Watcher(ticks.append)]

    def come() -> None:
        until(lambda: any("not there yet" in line for line in site.said))
        source.status, source.trouble = SourceStatus.OPENED, ""

    thread = threading.Thread(target=come)
    thread.start()
    scene.stepping.run(scene.stop, scene.progress, steer, rare_lines=True)
    thread.join()
    assert (began, ticks) == ([SourceStatus.OPENED], [Tick.ON_TIME] * 3)


def test_runs_that_hang_one_after_the_other_end_it(site: Site) -> None:
    scene = Scene(site, Source())

    def hang(_frame: Frame) -> Result:
        raise HungRunError("int8 was ended after 5 s")

    scene.stepping.loop.stages = hang
    assert "3 frames in a row" in refusal(SessionError, scene.run)
    assert (scene.progress.is_watching, scene.stepping.counts()["hung"]) == (False, 3)


@pytest.mark.parametrize(("rare_lines", "interval_s"), [(False, 10), (True, 600)])
def test_a_line_says_now_and_then_how_it_goes_and_none_is_owed_after_a_pause(
    site: Site, monkeypatch: pytest.MonkeyPatch, rare_lines: bool, interval_s: int
) -> None:
    now_ns, steps = 0, iter([interval_s - 1, 1, 0, 100 * interval_s, 0, interval_s - 1, 1, 0])
    clock = SimpleNamespace(monotonic_ns=lambda: now_ns, monotonic=time.monotonic)
    monkeypatch.setattr(stepping_module, "time", clock)
    scene, counts = Scene(site, Source(8)), list[int]()

    def count(_tick: Tick) -> None:
        nonlocal now_ns
        counts.append(sum("age p50" in line for line in site.said))
        now_ns += next(steps) * 10**9

    scene.run(Watcher(count), rare_lines=rare_lines)
    assert counts == [0, 0, 1, 1, 2, 2, 2, 3]


def test_rates_are_counted_since_the_last_look(site: Site) -> None:
    scene = Scene(site, Source(20))
    assert scene.stepping.health().fps == 0.0
    scene.run()
    first, second = scene.stepping.health(), scene.stepping.health()
    assert (first.results, first.reopenings, first.dropped, first.unreadable) == (20, 2, 0, 3)
    assert (first.fps > 0, first.age_p50_ms > 0, second.fps) == (True, True, 0.0)


# Frames that come too old, or cannot be decoded.


def test_frames_that_are_too_old_or_unreadable_are_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.service.monitors._EVERY_S", 0.05)
    source = Source(3000)
    source.delay_ns, scene = 6_000_000_000, Scene(site, source)

    def lose(_tick: Tick) -> None:
        source.unreadable += 1
        said = "".join(site.said)
        if "old when they come" in said and "could not be decoded; of a camera look at its cable" in said:
            scene.stop.ask()

    scene.run(Watcher(lose))
    assert scene.stop.is_asked()


@pytest.mark.parametrize(
    ("spells", "told"),
    [
        ([(9, 60, 5), (1, 20, 5), (9, 60, 5)], []),
        ([(200, 60, 5), (99, 20, 5), (1, 60, 5), (99, 20, 5)], ["frames are 60 ms"]),
        ([(10, 60, 5), (100, 20, 5), (10, 70, 5)], ["frames are 60 ms", "", "frames are 70 ms"]),
        ([(10, 60, 5), (200, 20, 60)], ["frames are 60 ms"]),
    ],
)
def test_frames_are_told_to_be_old_when_that_lasts(spells: list[tuple[int, float, float]], told: list[str]) -> None:
    warned = list[tuple[str, str]]()
    supervisor = LatencyMonitor(50 * MS, lambda name, line: warned.append((name, line.partition(" old")[0])))
    for frames, delay_ms, work_ms in spells:
        clock = Clock()

        def stages(frame: Frame, clock: Clock = clock, work_ms: float = work_ms) -> Result:
            clock.advance(work_ms)
            return make_detections(0, frame)

        loop = Loop(Camera(clock, 200, frames, delay_ms), stages, Collector(), Budget(50, drops=False), clock_ns=clock)
        for _ in range(frames):
            supervisor.after(loop, loop.step())
    assert warned == [("held_back", line) for line in told]
    assert [line.startswith("warning: ") for line in SAID] == [bool(line) for line in told]


@pytest.mark.parametrize(
    ("minutes", "told"),
    [
        ([(60, 600), (0, 600), (90, 600)], ["60 of 600", "", "90 of 600"]),
        ([(60, 600), (0, 0)], ["60 of 600"]),  # of a camera that is gone nothing is known
    ],
)
def test_the_unreadable_share_is_told_by_the_minute(minutes: list[tuple[int, int]], told: list[str]) -> None:
    loop: Any = None  # nobody looks at it
    warned = list[tuple[str, str]]()
    now_s, unreadable, others = 0.0, 900, 1000  # before anybody looked
    supervisor = Undecodable(
        lambda: SourceStats(delivered=others, unreadable=unreadable),
        lambda name, line: warned.append((name, line.partition(" frames")[0])),
        lambda: now_s,
    )
    for bad, frames in minutes:
        unreadable, others = unreadable + bad, others + frames - bad
        for seconds in (59.0, 1.0):
            now_s += seconds
            supervisor.after(loop, Tick.IDLE)
    assert warned == [("undecodable", line) for line in told]


# The state of the source: logged at a limited rate, and reported to the stream at every change.


class Watch:
    """A watched source with all that it speaks to, and a clock that is set by hand."""

    def __init__(self, delivered: int = 0) -> None:
        self.camera, self.states, self.said = Source(), list[dict[str, Any]](), SAID
        self.camera.delivered, self.now_s = delivered, 1000.0
        stream: Any = SimpleNamespace(report=lambda **changes: self.states.append(changes))
        self.watched = WatchedSource(self.camera, "rtsp://bob:s3cret@cam/live", stream, lambda: self.now_s)

    def look(self, status: SourceStatus, trouble: str = "", times: int = 3) -> list[str]:
        """Put the source there and look, more than once; what was said."""
        self.camera.status, self.camera.trouble = status, trouble
        before = len(self.said)
        for _ in range(times):
            self.watched.look()
        return [line.removeprefix("source rtsp://cam/live") for line in self.said[before:]]


def test_each_status_of_a_source_is_told_once() -> None:
    watch = Watch()
    for status, trouble, said in (
        (SourceStatus.OPENING, "", []),  # a camera that is there opens in a moment
        (SourceStatus.OPENED, "", [" is open"]),
        (SourceStatus.LOST, "no frame for 2 s", [": lost: no frame for 2 s"]),
        (SourceStatus.LOST, "no route", [": lost: no route"]),
        (SourceStatus.REOPENED, "", [": reopened"]),
        (SourceStatus.ENDED, "", [": ended"]),
    ):
        assert watch.look(status, trouble) == said
        assert (watch.states[-1]["source"], watch.states[-1]["trouble"] or "") == (status.value, trouble)
    assert len(watch.states) == 6
    assert watch.states[2]["since"] == watch.states[3]["since"]  # a status came when it came, whatever its reason
    assert timedelta() <= datetime.now(timezone.utc) - watch.states[-1]["since"] < timedelta(hours=1)
    assert Watch().look(SourceStatus.OPENING, "one") == [": not there yet: one; it is waited for"]


def test_a_source_that_a_reload_takes_over_is_not_told_again() -> None:
    watch = Watch(delivered=40)
    assert watch.look(SourceStatus.OPENED) == []
    assert [state["source"] for state in watch.states] == ["opened"]
    assert watch.look(SourceStatus.LOST) == [": lost"]


def test_remarks_are_told_once_when_the_camera_is_there() -> None:
    watch = Watch()
    watch.camera.remarks = ("asked for 15 frames a second, the camera gives 30", "asked for MJPG, it gives YUYV")
    assert len(watch.look(SourceStatus.OPENING, "connection refused")) == 1
    assert watch.look(SourceStatus.OPENED) == [" is open", *(f": {remark}" for remark in watch.camera.remarks)]
    assert watch.look(SourceStatus.LOST) == [": lost"]
    assert watch.look(SourceStatus.REOPENED) == [": reopened"]  # the same camera
    watch.camera.remarks = ("asked for 15 frames a second, the camera gives 25",)
    assert watch.look(SourceStatus.REOPENED) == [f": {watch.camera.remarks[0]}"]


def test_of_a_camera_that_comes_and_goes_all_the_time_people_are_told_now_and_then() -> None:
    watch = Watch()
    watch.look(SourceStatus.OPENED)
    for _ in range(50):
        watch.look(SourceStatus.LOST, "the camera ended the stream", times=1)
        watch.look(SourceStatus.REOPENED, times=1)
    assert (len(watch.said), len(watch.states)) == (10, 101)
    for untold in (91, 1):
        watch.now_s += 61
        assert watch.look(SourceStatus.LOST) == [f": lost (lines not told before it: {untold})"]
        assert watch.look(SourceStatus.REOPENED) == []  # one a minute, for as long as that goes on
