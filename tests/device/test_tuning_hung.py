"""A model that hangs while it is loaded for tuning: the stream goes on, and is steered again."""

from __future__ import annotations

import threading
from pathlib import Path

from edge_sdk.tuning import Candidate
from tests.device.tuned_loop import Board, Slowed


def test_tuning_is_given_up_for_a_model_that_hangs_and_what_ran_stays(tmp_path: Path) -> None:
    may_end = threading.Event()

    class Hung(Board):
        def open(self, candidate: Candidate) -> Slowed:
            if candidate.variant == "fp32":
                assert may_end.wait(60)
            return super().open(candidate)

    board = Hung(tmp_path / "a.edge", lambda _candidate, _count: 5.0)
    home = board.runs()
    while not board.tuner.done:
        assert not board.camera.ended, "waited in vain"
        board.tuner.after(board.loop, board.loop.step())
    assert board.lines == ["tuning is given up: a model was not loaded after 120 s; what runs stays"]
    assert board.runs() == home
    assert board.remembered == []
    before = len(board.sink.results)
    for _ in range(10):
        board.tuner.after(board.loop, board.loop.step())
    assert len(board.sink.results) == before + 10
    may_end.set()
