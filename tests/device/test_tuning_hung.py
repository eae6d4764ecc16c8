"""A model that hangs while it is loaded for tuning: the stream goes on, and is steered again. A stop is no hang."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from edge_sdk.errors import StoppedError
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


def test_a_stop_while_a_model_is_tried_is_not_said_of_that_model(tmp_path: Path) -> None:
    is_asked = threading.Event()

    class Stopped(Board):
        def open(self, candidate: Candidate) -> Slowed:
            if candidate.variant == "fp32":
                is_asked.set()
                raise StoppedError
            return super().open(candidate)

    board = Stopped(tmp_path / "a.edge", lambda _candidate, _count: 5.0)
    home, deadline = board.runs(), time.monotonic() + 60
    while not is_asked.is_set():
        assert time.monotonic() < deadline, "waited in vain"
        board.tuner.after(board.loop, board.loop.step())
    board.alive()  # waits for the thread
    for _ in range(10):
        board.tuner.after(board.loop, board.loop.step())
    assert board.lines == []
    assert board.runs() == home
    board.tuner.close()
    assert board.lines == ["tuning was not finished: nothing is remembered"]
    assert board.remembered == []
