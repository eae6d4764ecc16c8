"""Tuning while it runs: other stages for some frames each, every frame answered, the best of them at the end."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import SessionError, StoppedError
from edge_sdk.core.frame import Classification, Frame
from edge_sdk.loop import Tick
from edge_sdk.tuning.candidates import Candidate, Limits
from edge_sdk.tuning.live import Window
from edge_sdk.tuning.tuning import Tuning, golden_camera, tune
from tests.support.bundles import open_candidate, write_variants
from tests.support.logs import SAID
from tests.support.loops import Board, Slowed
from tests.support.results import candidate, plan

TOOK_MS = {"int8": 10.0, "int8.8x8": 5.0, "fp32": 20.0}


def _board(folder: Path, changes: dict[str, float] | None = None, **options: Any) -> Board:
    took_ms = TOOK_MS | (changes or {})
    return Board(folder / "a.edge", lambda what, _n: took_ms[what.variant], **options)


def _breaks(what: Candidate, n: int) -> float:
    """Milliseconds; FP32 breaks at its eighth frame."""
    if what.variant == "fp32" and n == 7:
        raise SessionError("it broke")
    return 10.0


def _go_on_without_frames(board: Board) -> None:
    for _ in itertools.takewhile(lambda _n: not board.tuner.done, range(1000)):
        board.clock.advance(200)
        board.tuner.after(board.loop, Tick.IDLE)
        while board.tuner.is_loading:
            pass
    assert board.tuner.done


def _step_until_asked(board: Board, is_asked: threading.Event) -> None:
    """Step until a load has begun; the clock stands while others are under way, however long they take."""
    while not is_asked.is_set():
        assert not board.tuner.done
        board.tuner.after(board.loop, board.loop.step())
        while board.tuner.is_loading and not is_asked.is_set():
            time.sleep(0.0005)


def test_the_best_quality_that_keeps_the_budget_runs_at_the_end_and_every_frame_was_answered(tmp_path: Path) -> None:
    board = _board(tmp_path)
    board.run()
    [(tuned, remark)] = board.outcome
    assert tuned.chosen.candidate == board.runs() == candidate("fp32")
    assert tuned.before is not None
    assert tuned.before.candidate == candidate("int8")
    assert (tuned.before.p99_ms, tuned.chosen.p99_ms) == (10.0, 20.0)
    assert tuned.chosen.cpu_share == pytest.approx(0.6, abs=0.01)  # 20 ms of work every 33 ms
    assert tuned.meets_budget
    assert tuned.metric == "agreement with FP32"
    assert board.remembered == [tuned]
    assert not remark
    assert [r.frame.seq for r in board.sink.results] == list(range(len(board.sink.results)))
    assert board.loop.counts[Tick.LATE] == board.loop.counts[Tick.STALE] == 0
    assert board.clock.now_ns < 21e9
    assert len(tuned.measured) >= 4
    assert (board.most_alive, board.alive()) == (2, [candidate("fp32")])  # models loaded at once, and at the end
    assert tuned.line() == (
        "fp32, 1 thread (p99 20 ms, 60 % of a core) instead of int8, 1 thread (p99 10 ms, 30 % of a core); "
        "the highest quality of those that keep 50 ms"
    )


def test_a_hopeless_one_costs_two_frames_and_frames_are_not_dropped_for_it(tmp_path: Path) -> None:
    board = _board(tmp_path, {"fp32": 150.0})
    board.run()
    [(tuned, _)] = board.outcome
    assert [(str(m.candidate), m.frames) for m in tuned.measured if m.given_up] == [("fp32, 1 thread", 2)]
    assert tuned.chosen.candidate == board.runs() == candidate("int8")
    assert board.loop.counts[Tick.LATE] == 2
    # Too old are the frames that came while it ran, and none for what the drop rule expects of it.
    assert board.loop.counts[Tick.STALE] <= 2
    assert board.clock.now_ns < 21e9


def test_one_slow_frame_does_not_condemn_a_candidate(tmp_path: Path) -> None:
    board = Board(tmp_path / "a.edge", lambda _what, n: 200.0 if n == 30 else 10.0)
    board.run()
    [(tuned, _)] = board.outcome
    assert (tuned.chosen.candidate.variant, tuned.chosen.frames, tuned.meets_budget) == ("fp32", 100, True)


def test_what_does_not_load_is_passed_over_and_is_not_one_that_was_not_tried(tmp_path: Path) -> None:
    board = _board(tmp_path, refused=["fp32, 1 thread", "fp32, 2 threads"])
    board.run()
    [(tuned, _)] = board.outcome
    assert board.lines == ["tuning passes over fp32, 1 thread: no such luck"]
    assert tuned.chosen.candidate.variant == "int8"
    assert not tuned.untried
    assert not tuned.provisional


def test_one_that_fails_while_it_runs_loses_no_frame_and_home_answers_under_its_own_name(tmp_path: Path) -> None:
    board = Board(tmp_path / "a.edge", _breaks)
    board.run()
    assert board.lines == ["tuning passes over fp32, 1 thread: it broke"]
    assert board.outcome[0][0].chosen.candidate.variant == "int8"
    assert [r.frame.seq for r in board.sink.results] == list(range(len(board.sink.results)))
    assert board.named() == board.ran
    assert board.ran.count("fp32") == 7


def test_what_fails_though_it_is_promised_is_an_error_as_ever(tmp_path: Path) -> None:
    def work(_what: Candidate, n: int) -> float:
        if n == 5:
            raise SessionError("it broke")
        return 10.0

    with pytest.raises(SessionError, match="it broke"):
        Board(tmp_path / "a.edge", work).run()


def test_a_candidate_whose_outputs_are_no_numbers_fails_and_what_ran_before_answers() -> None:
    def result(frame: Frame, *, is_finite: bool) -> Classification:
        return Classification(frame, 0, np.zeros(1, np.float32), np.zeros(1, np.int64), is_finite=is_finite)

    frame = Frame(np.zeros((4, 4, 3), np.uint8), 0, 0.0, 0, "camera")

    def window(fallback: Callable[[Frame], Classification] | None) -> Window:
        stages = partial(result, is_finite=False)
        return Window(candidate(), stages, fallback, plan(), clock_ns=lambda: 0, cpu_ns=lambda: 0)

    failing = window(partial(result, is_finite=True))
    assert failing(frame).is_finite
    assert failing.failure == "its outputs are NaN or infinite"
    alone = window(None)  # what ran before is measured all the same
    assert not alone(frame).is_finite
    assert not alone.failure


def test_where_nothing_can_be_measured_nothing_is_held_either(tmp_path: Path) -> None:
    board = _board(tmp_path, frames=0)
    board.tuner.after(board.loop, Tick.ON_TIME)
    _go_on_without_frames(board)
    assert board.lines[-1] == "tuning could measure nothing: what runs stays"
    board.loop.stages = board.open(candidate("int8.8x8"))  # a governor steps down
    assert board.alive() == [candidate("int8.8x8")]


def test_a_disk_that_takes_nothing_takes_nothing_away(tmp_path: Path) -> None:
    board = _board(tmp_path, disk_is_full=True)
    board.run()
    [(tuned, remark)] = board.outcome
    assert remark == "no room"
    assert board.runs() == tuned.chosen.candidate == candidate("fp32")


@pytest.mark.parametrize(("others", "provisional"), [(0.2, False), (0.3, True)])
def test_what_was_measured_on_a_busy_machine_is_provisional(tmp_path: Path, others: float, provisional: bool) -> None:
    board = _board(tmp_path, others=others)
    board.run()
    [(tuned, _)] = board.outcome
    assert tuned.others == pytest.approx(others, abs=0.01)
    assert tuned.provisional is provisional
    took = f"other programs took {100 * others:.0f} % of the processors' time while it was measured"
    assert tuned.doubt() == (took if provisional else "")


@pytest.mark.parametrize(("fps", "fewest"), [(2, 1), (10, 3)])
def test_a_slow_camera_gets_fewer_candidates_and_not_more_time(tmp_path: Path, fps: float, fewest: int) -> None:
    board = _board(tmp_path, fps=fps)
    board.run()
    assert fewest <= len(board.outcome[0][0].measured) <= fewest + 4
    assert board.clock.now_ns < 22e9


@pytest.mark.parametrize(("seconds", "untried"), [(1.0, ("fp32",)), (20.0, ())])
def test_a_better_model_that_was_not_tried_is_named(tmp_path: Path, seconds: float, untried: tuple[str, ...]) -> None:
    board = _board(tmp_path, seconds=seconds)
    board.run()
    [(tuned, _)] = board.outcome
    assert (tuned.untried, tuned.provisional) == (untried, bool(untried))
    assert tuned.doubt() == ("there was no time for fp32" if untried else "")


@pytest.mark.parametrize(("fps", "least_s"), [(30, 20), (1, 40)])
def test_by_default_there_is_time_for_every_model(tmp_path: Path, fps: float, least_s: float) -> None:
    board = _board(tmp_path, seconds=None, fps=fps)
    assert board.tuner.plan.seconds >= least_s
    board.run()
    [(tuned, _)] = board.outcome
    assert tuned.chosen.candidate.variant == "fp32"
    assert not tuned.untried


def test_a_load_that_hangs_is_given_up_and_tuning_ends(tmp_path: Path) -> None:
    may_end = threading.Event()
    board = _board(tmp_path, hangs=may_end)
    try:
        board.run()
    finally:
        may_end.set()
    assert board.tuner.done
    assert "did not load within" in board.lines[0]
    assert board.runs() == candidate("int8")


def test_a_source_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    board = _board(tmp_path, frames=100)
    board.run()
    board.tuner.close()
    assert board.lines == ["tuning was not finished: nothing is remembered"]
    assert not board.remembered
    board.tuner.after(board.loop, Tick.ON_TIME)
    assert board.lines[1:] == []


def test_without_frames_nothing_begins_and_frames_that_stop_in_the_middle_do_not_hold_it_up(tmp_path: Path) -> None:
    board = _board(tmp_path, frames=60)
    for _ in range(3):
        board.tuner.after(board.loop, Tick.IDLE)
    assert not board.tuner.is_loading
    assert not board.lines
    board.run()
    _go_on_without_frames(board)
    assert board.outcome[0][0].chosen.candidate == candidate("int8")


def test_without_a_measurement_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The camera delivers far less than it says."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    bundle, limits = Bundle.open(write_variants(tmp_path / "a.edge")), Limits(1000)
    tuning = Tuning(bundle, limits, camera="c", variant="int8.8x8", open_stages=open_candidate)
    told = r"; mend what the lines above tell of, or give more --seconds$"
    with contextlib.closing(golden_camera(bundle, 3, "c")) as camera, pytest.raises(SessionError, match=told):
        tune(tuning, limits, camera, 1000, 0.1)
    assert SAID == ["tuning could measure nothing: what runs stays"]
    assert not (tmp_path / "state" / "tuning").exists()


def test_a_stop_while_a_model_is_tried_is_not_said_of_that_model(tmp_path: Path) -> None:
    is_asked = threading.Event()

    class Stopped(Board):
        def open(self, candidate: Candidate) -> Slowed:
            if candidate.variant == "fp32":
                is_asked.set()
                raise StoppedError
            return super().open(candidate)

    board = Stopped(tmp_path / "a.edge", lambda _candidate, _count: 5.0)
    home = board.runs()
    _step_until_asked(board, is_asked)
    board.alive()  # waits for the thread
    for _ in range(10):
        board.tuner.after(board.loop, board.loop.step())
    assert board.lines == []
    assert board.runs() == home
    board.tuner.close()
    assert board.lines == ["tuning was not finished: nothing is remembered"]
    assert board.remembered == []
