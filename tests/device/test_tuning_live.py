"""Tuning while it runs: other stages for some frames each, every frame answered, the best of them at the end."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import SessionError
from edge_sdk.loop import Tick
from edge_sdk.tuning import Candidate
from edge_sdk.tuning.paced_image import PacedImage
from tests.device.measured import candidate
from tests.device.tuned_loop import Board


def _ms(**by_variant: float) -> dict[str, float]:
    return {"int8": 10.0, "int8.8x8": 5.0, "fp32": 20.0, **by_variant}


def _board(folder: Path, by_variant: dict[str, float], **changes: object) -> Board:
    return Board(folder / "a.edge", lambda what, _n: by_variant[what.variant], **changes)  # type: ignore[arg-type]


def _breaks(what: Candidate, n: int) -> float:
    """Milliseconds; FP32 breaks at its eighth frame."""
    if what.variant == "fp32" and n == 7:
        raise SessionError("it broke")
    return 10.0


def test_the_best_quality_that_keeps_the_budget_runs_at_the_end_and_every_frame_was_answered(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms())
    board.run()
    [(tuned, remark)] = board.outcome
    assert tuned.chosen.candidate == board.runs() == candidate("fp32")
    assert tuned.before is not None
    assert tuned.before.candidate == candidate("int8")
    assert (tuned.before.p99_ms, tuned.chosen.p99_ms) == (10.0, 20.0)
    # 20 ms of work every 33 ms.
    assert tuned.chosen.cpu_share == pytest.approx(0.6, abs=0.01)
    assert tuned.meets_budget
    assert tuned.metric == "agreement with FP32"
    assert board.remembered == [tuned]
    assert not remark
    assert [r.frame.seq for r in board.sink.results] == list(range(len(board.sink.results)))
    assert board.loop.counts[Tick.LATE] == board.loop.counts[Tick.STALE] == 0
    assert board.clock.now_ns < 21e9
    assert tuned.line() == (
        "fp32, 1 thread (p99 20 ms, 60 % of a core) instead of int8, 1 thread (p99 10 ms, 30 % of a core); "
        "the highest quality of those that keep 50 ms"
    )


def test_whoever_names_the_variant_of_a_result_hears_of_each_change(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms())
    board.run()
    assert board.named() == board.ran
    assert set(board.ran) == {"int8", "fp32"}
    board.run(steps=1)
    assert board.variants[-1][1] == board.runs().variant == "fp32"


def test_a_frame_that_home_answers_for_a_candidate_bears_homes_name(tmp_path: Path) -> None:
    board = Board(tmp_path / "a.edge", _breaks)
    board.run()
    assert board.named() == board.ran
    assert board.ran.count("fp32") == 7


def test_two_models_at_most_are_loaded_at_once(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms())
    board.run()
    assert len(board.outcome[0][0].measured) >= 4
    assert board.most_alive == 2


def test_a_hopeless_one_costs_two_frames_and_frames_are_not_dropped_for_it(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms(fp32=150.0))
    board.run()
    [(tuned, _)] = board.outcome
    given_up = [m for m in tuned.measured if m.given_up]
    assert [(str(m.candidate), m.frames) for m in given_up] == [("fp32, 1 thread", 2)]
    assert tuned.chosen.candidate == board.runs() == candidate("int8")
    assert board.loop.counts[Tick.LATE] == 2
    # Too old are the frames that came while it ran, and none for what the drop rule expects of it.
    assert board.loop.counts[Tick.STALE] <= 2
    assert board.clock.now_ns < 21e9


def test_where_nothing_keeps_the_budget_the_fastest_runs_and_that_is_said(tmp_path: Path) -> None:
    board = _board(tmp_path, {"int8": 90.0, "int8.8x8": 60.0, "fp32": 150.0})
    board.run()
    [(tuned, _)] = board.outcome
    assert not tuned.meets_budget
    assert tuned.p99_ms == pytest.approx(60.0)
    assert board.runs().variant == "int8.8x8"
    assert tuned.reason.startswith("a budget of 50 ms cannot be kept here: the fastest of ")


def test_one_slow_frame_does_not_condemn_a_candidate(tmp_path: Path) -> None:
    board = Board(tmp_path / "a.edge", lambda _what, n: 200.0 if n == 30 else 10.0)
    board.run()
    [(tuned, _)] = board.outcome
    assert tuned.chosen.candidate.variant == "fp32"
    assert tuned.chosen.frames == 100
    assert tuned.meets_budget


def test_what_does_not_load_is_passed_over(tmp_path: Path) -> None:
    refused = ["fp32, 1 thread", "fp32, 2 threads"]
    board = _board(tmp_path, _ms(), refused=refused)
    board.run()
    assert board.lines == [f"tuning passes over {what}: no such luck" for what in refused[:1]]
    assert board.outcome[0][0].chosen.candidate.variant == "int8"


def test_one_that_fails_while_it_runs_loses_no_frame(tmp_path: Path) -> None:
    board = Board(tmp_path / "a.edge", _breaks)
    board.run()
    assert board.lines == ["tuning passes over fp32, 1 thread: it broke"]
    assert board.outcome[0][0].chosen.candidate.variant == "int8"
    assert [r.frame.seq for r in board.sink.results] == list(range(len(board.sink.results)))


def test_once_it_is_done_only_what_runs_is_held(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms())
    board.run()
    assert board.alive() == [candidate("fp32")]


def test_where_nothing_can_be_measured_nothing_is_held_either(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms(), frames=0)
    board.tuner.after(board.loop, Tick.ON_TIME)
    for _ in itertools.takewhile(lambda _n: not board.tuner.done, range(1000)):
        board.clock.advance(200)
        board.tuner.after(board.loop, Tick.IDLE)
        while board.tuner.is_loading:
            pass
    assert board.lines[-1] == "tuning could measure nothing: what runs stays"
    board.loop.stages = board.open(candidate("int8.8x8"))  # a governor steps down
    assert board.alive() == [candidate("int8.8x8")]


def test_what_fails_though_it_is_promised_is_an_error_as_ever(tmp_path: Path) -> None:
    def work(_what: Candidate, n: int) -> float:
        if n == 5:
            raise SessionError("it broke")
        return 10.0

    board = Board(tmp_path / "a.edge", work)
    with pytest.raises(SessionError, match="it broke"):
        board.run()


@pytest.mark.parametrize(("usable", "restarts"), [((2, 2, 1), 1), ((2, 1, 2, 1, 2, 1), 2)])
def test_cores_that_come_or_go_are_noticed(tmp_path: Path, usable: tuple[int, ...], restarts: int) -> None:
    board = _board(tmp_path, _ms(), usable=usable)
    board.run()
    assert len(board.lines) == restarts
    assert board.lines[0] == "cores that may be used: 1 now, 2 before; tuning anew"
    assert board.outcome[0][0].chosen.candidate.variant == "fp32"
    if restarts == 1:
        assert not [m for m in board.outcome[0][0].measured if m.candidate.intra_op_num_threads > 1]


def test_cores_that_went_after_the_last_candidate_are_noticed_too(tmp_path: Path) -> None:
    calm = _board(tmp_path / "calm", _ms())
    calm.run()
    loads = sum(m.candidate != candidate("int8") for m in calm.outcome[0][0].measured)
    board = _board(tmp_path / "late", _ms(), usable=[2] * (loads + 1) + [1])
    board.run()
    assert len(board.lines) == 1
    assert len(board.remembered) == 1
    assert not [m for m in board.remembered[0].measured if m.candidate.intra_op_num_threads > 1]


def test_a_disk_that_takes_nothing_takes_nothing_away(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms(), disk_is_full=True)
    board.run()
    [(tuned, remark)] = board.outcome
    assert remark == "no room"
    assert board.runs() == tuned.chosen.candidate == candidate("fp32")


@pytest.mark.parametrize(("others", "provisional"), [(0.0, False), (0.2, False), (0.3, True), (0.9, True)])
def test_what_was_measured_on_a_busy_machine_is_provisional(tmp_path: Path, others: float, provisional: bool) -> None:
    board = _board(tmp_path, _ms(), others=others)
    board.run()
    [(tuned, _)] = board.outcome
    assert tuned.others == pytest.approx(others, abs=0.01)
    assert tuned.provisional is provisional
    took = f"other programs took {100 * others:.0f} % of the processors' time while it was measured"
    assert tuned.doubt() == (took if provisional else "")


@pytest.mark.parametrize(("fps", "fewest"), [(2, 1), (10, 3)])
def test_a_slow_camera_gets_fewer_candidates_and_not_more_time(tmp_path: Path, fps: float, fewest: int) -> None:
    board = _board(tmp_path, _ms(), fps=fps)
    board.run()
    assert fewest <= len(board.outcome[0][0].measured) <= fewest + 4
    assert board.clock.now_ns < 22e9


def test_a_source_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms(), frames=100)
    board.run()
    board.tuner.close()
    assert board.lines == ["tuning was not finished: nothing is remembered"]
    assert not board.remembered
    board.tuner.after(board.loop, Tick.ON_TIME)
    assert board.lines[1:] == []


def test_without_frames_nothing_begins(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms())
    for _ in range(3):
        board.tuner.after(board.loop, Tick.IDLE)
    board.tuner.close()
    assert not board.lines
    assert board.runs() == candidate("int8")


def test_frames_that_stop_in_the_middle_do_not_hold_it_up(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms(), fps=30, frames=60)
    board.run()
    for _ in itertools.takewhile(lambda _n: not board.tuner.done, range(1000)):
        board.clock.advance(200)
        board.tuner.after(board.loop, Tick.IDLE)
        while board.tuner.is_loading:
            pass
    assert board.outcome[0][0].chosen.candidate == candidate("int8")


def test_other_stages_do_not_pay_for_those_before_them(tmp_path: Path) -> None:
    board = _board(tmp_path, _ms(int8=60.0))
    for _ in range(100):
        board.loop.step()
    assert board.loop.counts[Tick.STALE] > 50  # one a second runs
    stale = board.loop.counts[Tick.STALE]
    board.loop.stages = board.open(candidate("int8.8x8"))
    for _ in range(100):
        board.loop.step()
    assert board.loop.counts[Tick.STALE] == stale


def test_a_picture_comes_at_its_pace_and_never_before_its_time() -> None:
    camera = PacedImage(np.zeros((2, 2, 3), np.uint8), 200, "gate")
    frames = []
    while len(frames) < 20:
        frame = camera.latest(1.0)
        assert frame is not None
        assert frame.captured_ns <= time.monotonic_ns()
        frames.append(frame)
    assert [f.seq for f in frames] == sorted({f.seq for f in frames})
    assert {round((f.captured_ns - frames[0].captured_ns) / 5e6 - f.seq, 3) for f in frames} == {0}
    slow = PacedImage(np.zeros((2, 2, 3), np.uint8), 0.1, "gate")
    assert slow.latest(0.01) is not None
    assert slow.latest(0.01) is None
    assert not slow.ended
