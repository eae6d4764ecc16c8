"""Tuning that ran out of time says what it did not try, and is done again; a slow camera gets what time it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.measured import candidate
from tests.device.tuned_loop import Board


def _board(folder: Path, seconds: float | None, fps: float = 30) -> Board:
    took_ms = {"int8": 10.0, "int8.8x8": 5.0, "fp32": 20.0}
    return Board(folder / "a.edge", lambda what, _n: took_ms[what.variant], seconds=seconds, fps=fps)


@pytest.mark.parametrize(("seconds", "untried"), [(1.0, ("fp32",)), (20.0, ())])
def test_a_better_model_that_was_not_tried_is_named(tmp_path: Path, seconds: float, untried: tuple[str, ...]) -> None:
    board = _board(tmp_path, seconds)
    board.run()
    [(tuned, _)] = board.outcome
    assert (tuned.untried, tuned.provisional) == (untried, bool(untried))
    assert tuned.doubt() == ("there was no time for fp32" if untried else "")


def test_a_model_that_does_not_load_is_not_one_that_was_not_tried(tmp_path: Path) -> None:
    board = Board(tmp_path / "a.edge", lambda _what, _n: 10.0, refused=[str(candidate("fp32"))])
    board.run()
    [(tuned, _)] = board.outcome
    assert not tuned.untried
    assert not tuned.provisional


@pytest.mark.parametrize(("fps", "least_s"), [(30, 20), (1, 40)])
def test_by_default_there_is_time_for_every_model(tmp_path: Path, fps: float, least_s: float) -> None:
    board = _board(tmp_path, None, fps)
    assert board.tuner.plan.seconds >= least_s
    board.run()
    [(tuned, _)] = board.outcome
    assert tuned.chosen.candidate.variant == "fp32"
    assert not tuned.untried
