"""A stream's loop, stepped until there is a reason to stop: what is looked at, said and counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.camera import SourceStats, SourceStatus
from edge_sdk.daemon import stepping as stepping_module
from edge_sdk.daemon.obeying import Obeying
from edge_sdk.daemon.stepping import Stepping
from edge_sdk.errors import HungRunError, SessionError
from edge_sdk.frame import Frame, Result
from edge_sdk.health.progress import Progress
from edge_sdk.loop import Loop, Supervisor, Tick
from edge_sdk.publishing import PublisherStats
from edge_sdk.stop import Stop
from tests.device.delivery import WAIT_S, until
from tests.device.graded import LARGE, open_variant
from tests.device.results import make_frame
from tests.device.site import Site
from tests.device.test_loop import Collector


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
    """A supervisor that calls a function after every step."""

    def __init__(self, look: Callable[[Tick], object]) -> None:
        self._look = look

    def after(self, loop: Loop, tick: Tick) -> None:
        self._look(tick)


class Scene:
    def __init__(self, site: Site, source: Source, **settings: object) -> None:
        self.site, self.source, self.stop, self.observer = site, source, Stop(), Collector()
        stages = open_variant(site.bundle, LARGE)
        self.progress = Progress(1e-9)
        stream = site.stream()
        obeying = Obeying(site.shared.controls, stream, Bundle.open(site.bundle), is_paced=True)
        self.stepping = Stepping(
            site.settings(**settings),
            source,
            stages,
            stream,
            Budget(5000.0),
            site.said.append,
            obeying,
            [self.observer],
        )

    def run(self, *supervisors: Supervisor, rare_lines: bool = False) -> None:
        self.stepping.run(self.stop, self.progress, lambda: [*supervisors], rare_lines=rare_lines)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_it_ends_with_its_source_and_is_summed_up(site: Site) -> None:
    scene = Scene(site, Source(4))
    scene.run()
    until(lambda: len(site.link.documents("result")) == 4)
    summary = scene.stepping.summary("end of source", site.outlet.stats())
    assert scene.stepping.ended_by == "end of source"
    assert (summary.camera, summary.results, summary.late, summary.hung, summary.stale) == ("gate", 4, 0, 0, 0)
    assert (summary.budget_ms, summary.source.delivered, summary.lines) == (5000.0, 4, None)
    assert isinstance(summary.publisher, PublisherStats)
    assert len(scene.observer.results) == 4
    assert 0 < scene.stepping.first_result_ns <= time.monotonic_ns()


def test_it_ends_after_so_many_results(site: Site) -> None:
    scene = Scene(site, Source(), frames=3)
    scene.run()
    assert (scene.stepping.ended_by, scene.source.delivered) == ("frames", 3)


def test_a_request_ends_it_without_a_reason_of_its_own(site: Site) -> None:
    scene = Scene(site, Source())
    scene.run(Watcher(lambda _tick: scene.stop.ask("reload")))
    assert (scene.stepping.ended_by, scene.source.delivered) == (None, 1)


def test_what_steers_begins_once_frames_come(site: Site) -> None:
    source = Source(3)
    source.status, source.trouble = SourceStatus.OPENING, "no such device"
    scene, ticks = Scene(site, source), list[Tick]()
    began = list[SourceStatus]()

    def steer() -> list[Supervisor]:
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
    assert [line for line in site.said if line.startswith("source")] == [
        "source pattern:64x48@50: not there yet: no such device; it is waited for",
        "source pattern:64x48@50 is open",
    ]


def test_the_watchdog_sees_every_step_and_nothing_after_the_last(site: Site) -> None:
    scene, is_any = Scene(site, Source(5)), list[bool]()
    scene.run(Watcher(lambda _tick: is_any.append(scene.progress.is_any)))
    assert is_any == [True] * 5
    assert not scene.progress.is_any


def test_runs_that_hang_one_after_the_other_end_it(site: Site) -> None:
    scene = Scene(site, Source())

    def hang(_frame: Frame) -> Result:
        raise HungRunError("int8 was ended after 5 s")

    scene.stepping.loop.stages = hang
    with pytest.raises(SessionError, match="3 frames in a row"):
        scene.run()
    assert not scene.progress.is_any
    assert scene.stepping.summary("signal", None).hung == 3


def test_how_it_goes_is_said_now_and_then_and_no_line_is_owed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping_module, "_OFTEN_NS", 50_000_000)
    scene, steps = Scene(site, Source(40)), list[int]()

    def sleep_once(_tick: Tick) -> None:
        steps.append(1)
        if len(steps) == 1:
            time.sleep(1.0)  # as a process that was stopped

    scene.run(Watcher(sleep_once))
    lines = [line for line in site.said if "results" in line]
    assert 1 <= len(lines) < 15
    assert "age p50" in lines[0]


def test_how_it_does_is_counted_since_the_last_look(site: Site) -> None:
    scene = Scene(site, Source(20))
    assert scene.stepping.health().fps == 0.0
    scene.run()
    first, second = scene.stepping.health(), scene.stepping.health()
    assert first.fps > 0
    assert (first.results, first.reopenings, first.dropped, first.unreadable) == (20, 2, 0, 3)
    assert first.age_p50_ms
    assert second.fps == 0.0


def test_frames_that_cannot_be_decoded_are_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.daemon.undecodable._EVERY_S", 0.05)
    source = Source(3000)
    scene = Scene(site, source)

    def lose(_tick: Tick) -> None:
        source.unreadable += 1
        if any("could not be decoded; look at the camera's cable" in line for line in site.said):
            scene.stop.ask()

    scene.run(Watcher(lose))
    assert any(line.startswith("warning: ") for line in site.said)


def test_frames_that_come_too_old_for_the_budget_are_told(site: Site) -> None:
    source = Source(20)
    source.delay_ns = 6_000_000_000
    Scene(site, source).run()
    [line] = [line for line in site.said if line.startswith("warning: ")]
    assert "frames are 6000 ms old when they come" in line
    assert "above the budget of 5000 ms; raise latency_ms" in line


def test_it_may_be_asked_how_it_does_while_it_steps(site: Site) -> None:
    """Another thread asks: what it gets is of one moment or the next, and nothing fails."""
    scene, seen = Scene(site, Source()), list[int]()
    thread = threading.Thread(target=scene.run)
    thread.start()
    deadline = time.monotonic() + WAIT_S
    while len(set(seen)) < 100:
        assert time.monotonic() < deadline
        seen.append(scene.stepping.health().results)
        assert scene.stepping.summary("signal", None).results >= seen[-1]
    scene.stop.ask()
    thread.join()
    assert seen == sorted(seen)
