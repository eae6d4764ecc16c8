"""Timed: what a candidate gives is judged before it is published."""

from __future__ import annotations

import numpy as np

from edge_sdk.frame import Classification, Frame
from edge_sdk.tuning.timed import Timed


def _result(frame: Frame, *, is_finite: bool) -> Classification:
    return Classification(frame, 0, np.zeros(1, np.float32), np.zeros(1, np.int64), is_finite)


def test_a_candidate_whose_outputs_are_no_numbers_fails_and_the_frame_is_answered_by_what_ran_before() -> None:
    frame = Frame(np.zeros((4, 4, 3), np.uint8), 0, 0.0, 0, "camera")
    timed = Timed(lambda f: _result(f, is_finite=False), lambda f: _result(f, is_finite=True), lambda: 0, 8)
    assert timed(frame).is_finite
    assert timed.failure == "its outputs are NaN or infinite"
    assert timed.count == 0


def test_what_ran_before_is_measured_whatever_it_gives() -> None:
    frame = Frame(np.zeros((4, 4, 3), np.uint8), 0, 0.0, 0, "camera")
    timed = Timed(lambda f: _result(f, is_finite=False), None, lambda: 0, 8)
    assert not timed(frame).is_finite
    assert (timed.failure, timed.count) == (None, 1)
