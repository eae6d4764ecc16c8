"""A model that hangs while it is loaded for tuning: the stream goes on, and is steered again. A stop is no hang."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.camera import open_source
from edge_sdk.daemon.loader import LIMIT_S
from edge_sdk.daemon.self_tuning import SelfTuning
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.errors import StoppedError
from edge_sdk.session import SessionSettings
from edge_sdk.tuning import Candidate, Limits
from tests.device.numbered import write_video
from tests.device.tuned_loop import Board, Slowed
from tests.device.variant_bundles import write_variants


@pytest.mark.parametrize("limit_s", [120, 240])
def test_tuning_is_given_up_for_a_model_that_hangs_and_what_ran_stays(tmp_path: Path, limit_s: float) -> None:
    may_end = threading.Event()

    class Hung(Board):
        def open(self, candidate: Candidate) -> Slowed:
            if candidate.variant == "fp32":
                assert may_end.wait(60)
            return super().open(candidate)

    board = Hung(tmp_path / "a.edge", lambda _candidate, _count: 5.0, load_limit_s=limit_s)
    home = board.runs()
    while not board.tuner.done:
        assert not board.camera.ended, "waited in vain"
        board.tuner.after(board.loop, board.loop.step())
    assert board.lines == [
        f"tuning is given up: fp32, 1 thread was not loaded after {limit_s} s; what runs stays. "
        "The next start tries again, unless it is given --variant with a model that loads"
    ]
    assert board.clock() > limit_s * 1e9
    assert board.runs() == home
    assert board.remembered == []
    before = len(board.sink.results)
    for _ in range(10):
        board.tuner.after(board.loop, board.loop.step())
    assert len(board.sink.results) == before + 10
    may_end.set()


@pytest.mark.parametrize("trial_s", [0.0, 60.0, 180.0])
def test_a_trial_may_take_all_its_time_before_tuning_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial_s: float
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    video = tmp_path / "a.avi"
    write_video(video, [1, 2])
    settings = PipelineSettings(bundle=bundle.path, source=str(video), trial_s=trial_s)
    session = SessionSettings.of(bundle.manifest)
    tuning = SelfTuning(settings, bundle, session, Limits(100), lambda _line: None, lambda: False)
    with contextlib.closing(open_source(str(video))) as source:
        tuner = tuning.supervisor(tuning.open(), source)
    assert tuner is not None
    # Its process has 30 s to start, and what it found sound is loaded once more.
    assert tuner.load_limit_s > trial_s + 30 + LIMIT_S


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
