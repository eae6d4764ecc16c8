"""Loops of the library: sources and sinks of one's own, by `run` or by iteration."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sdk import Bundle, Frame, Image, Loop, Model, Result, Tick
from edge_sdk.errors import CameraError, UsageError
from tests.device.graded import write_graded

_PICTURE: Image = np.random.default_rng(3).integers(0, 256, (48, 80, 3), np.uint8)


class Pictures:
    """A source of one's own, that gives what it was given."""

    paced = False

    def __init__(self, *given: Any) -> None:
        self._given, self._next = given, 0

    @property
    def ended(self) -> bool:
        return self._next == len(self._given)

    def latest(self, timeout_s: float) -> Any:
        self._next += 1
        return self._given[self._next - 1]

    def close(self) -> None:
        pass


class Seqs:
    """A sink of one's own."""

    def __init__(self) -> None:
        self.seqs: list[int] = []

    def put(self, result: Result) -> None:
        self.seqs.append(result.frame.seq)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_graded(tmp_path / "graded.edge", latency_ms=50.0)


@pytest.fixture
def model(folder: Path) -> Model:
    return Model.open(Bundle.open(folder))


def _frames(count: int) -> list[Frame]:
    return [Frame.of(_PICTURE, seq=seq) for seq in range(count)]


def test_a_source_and_a_sink_of_ones_own(model: Model) -> None:
    sink, observer = Seqs(), Seqs()
    loop = model.loop(Pictures(*_frames(4)), sink, observers=[observer])
    assert isinstance(loop, Loop)
    loop.run()
    assert sink.seqs == observer.seqs == [0, 1, 2, 3]
    assert sum(loop.counts.values()) == 4


def test_a_loop_gives_each_result_once_it_was_delivered(model: Model) -> None:
    sink = Seqs()
    seen = []
    for result in model.loop(Pictures(None, *_frames(3), None), sink, latency_ms=1e6):
        assert sink.seqs[-1] == result.frame.seq
        seen.append(result.frame.seq)
    assert seen == sink.seqs == [0, 1, 2]


class Touchy(Seqs):
    """Fails at one frame."""

    def put(self, result: Result) -> None:
        if result.frame.seq == 1:
            raise ZeroDivisionError("of the user's own")
        super().put(result)


@pytest.mark.parametrize("role", ["sink", "observer"])
def test_what_a_sink_of_ones_own_raises_reaches_whoever_runs_the_loop_and_it_goes_on(model: Model, role: str) -> None:
    sink = Touchy()
    source = Pictures(*_frames(4))
    loop = model.loop(source, sink) if role == "sink" else model.loop(source, None, observers=[sink])
    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        loop.run()
    loop.run()
    assert sink.seqs == [0, 2, 3]


def test_without_a_sink_results_are_still_counted_and_timed(model: Model) -> None:
    loop = model.loop(Pictures(*_frames(3)), latency_ms=1e6)
    ages = [loop.last_age_ns for _ in loop]
    assert loop.counts[Tick.ON_TIME] == 3
    assert all(0 < loop.last_run_ns <= loop.last_serial_ns <= age for age in ages[-1:])


def test_the_budget_is_the_bundles_unless_another_is_given(model: Model) -> None:
    class Live(Pictures):
        paced = True

    old = [Frame(_PICTURE, 0, 0.0, seq, "old") for seq in range(5)]  # captured when the machine started
    assert model.latency_budget_ms == 50.0
    loop = model.loop(Live(*old))
    loop.run()
    assert (loop.counts[Tick.LATE], loop.counts[Tick.STALE]) == (1, 4)  # one a second runs whatever its age
    patient = model.loop(Live(*old), latency_ms=1e12)
    patient.run()
    assert patient.counts[Tick.ON_TIME] == 5
    in_turn = model.loop(Pictures(*old))
    in_turn.run()
    assert in_turn.counts[Tick.LATE] == 5


@pytest.mark.parametrize("latency_ms", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(model: Model, latency_ms: float) -> None:
    with pytest.raises(UsageError, match="expected milliseconds above 0"):
        model.loop(Pictures(), latency_ms=latency_ms)


def test_a_loop_over_a_source_that_never_ends_is_stopped_by_another_thread(model: Model) -> None:
    class Endless(Pictures):
        ended = False

        def latest(self, timeout_s: float) -> Frame:
            return Frame.of(_PICTURE)

    loop, sink = model.loop(Endless(), latency_ms=1e6), Seqs()
    runner = threading.Thread(target=loop.run)
    runner.start()
    while not loop.counts[Tick.ON_TIME]:
        assert runner.is_alive()
    loop.stop()
    runner.join(60)
    assert not runner.is_alive()
    assert sink.seqs == []


def test_a_source_that_gives_bare_arrays_is_told_how_to_make_frames(model: Model) -> None:
    loop = model.loop(Pictures(_PICTURE, *_frames(1)))
    with pytest.raises(CameraError, match=r"latest\(\) gave ndarray, expected None or a Frame; Frame\.of\(image\)"):
        loop.run()
    assert [result.frame.seq for result in loop] == [0]  # it goes on


def test_parts_of_the_wrong_kind_are_one_line(folder: Path, model: Model) -> None:
    path: Any = folder
    with pytest.raises(UsageError, match=r"expected a Bundle; Bundle\.open\(path\)"):
        Model.open(path)
    location: Any = "0"
    with pytest.raises(UsageError, match=r"the source is '0', expected one with latest\(\); open_source"):
        model.loop(location)
    function: Any = print
    for parts in ({"sink": function}, {"observers": [Seqs(), function]}):
        with pytest.raises(UsageError, match=r"the sink is .*print.*, expected an object with put"):
            model.loop(Pictures(), **parts)
