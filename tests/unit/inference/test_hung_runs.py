"""Runs that come to no end: ended by the watchdog, and the session goes on."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.core.errors import HungRunError
from edge_sdk.core.frame import Frame, Image
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import RunGuard, Session, Watchdog, guarded
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.stages import Stages
from tests.support.bundles import endless, open_real_bundle, picture

BRIGHT, DARK = picture(255), picture(50)


def _session(limit_s: float = 1.0) -> Session:
    return Session(endless().SerializeToString(), SessionSettings(limit_s=limit_s), "endless.onnx")


def test_a_run_that_does_not_end_is_ended_and_the_next_one_works() -> None:
    session = _session()
    [before] = session.run(DARK)
    before = before.copy()
    for _ in range(2):
        with pytest.raises(HungRunError) as caught:
            session.run(BRIGHT)
        assert str(caught.value) == "endless.onnx: a run did not finish within 1 s and was ended"
        assert np.array_equal(session.run(DARK)[0], before)


def test_only_the_twin_that_hangs_is_ended() -> None:
    session = _session()
    twin = session.clone()
    hangs: list[HungRunError] = []

    def hang() -> None:
        try:
            twin.run(BRIGHT)
        except HungRunError as error:
            hangs.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    runs = 0
    while thread.is_alive():
        session.run(DARK)
        runs += 1
    assert len(hangs) == 1
    assert runs > 10


def test_a_flag_that_comes_too_late_costs_one_more_run() -> None:
    """The watchdog looks while a run goes on, and tells when it is over."""
    session = _session()
    [expected] = session.run(DARK)
    expected = expected.copy()
    guard: RunGuard = session._guard
    guard.options.terminate = True
    with pytest.raises(HungRunError):
        session.run(DARK)
    assert np.array_equal(session.run(DARK)[0], expected)


def test_the_guard_counts_its_own_looks_and_no_clock() -> None:
    """A process that was stopped for an hour is looked at once when it goes on: that is no hour of running."""
    guard = RunGuard(limit_s=1.0)
    guard.steps = 1
    guard.look(0.25)  # seen for the first time: it may have begun just now
    for _ in range(3):
        guard.look(0.25)
    assert not guard.options.terminate
    guard.look(0.25)
    assert guard.options.terminate


def test_a_watchdog_that_could_not_start_is_started_with_the_next_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watchdog = Watchdog()
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            watchdog.watch(RunGuard(0.05))
    guard = RunGuard(0.02)
    guard.steps = 1
    watchdog.watch(guard)
    end = time.monotonic() + 20
    while not guard.options.terminate and time.monotonic() < end:
        time.sleep(0.005)
    assert guard.options.terminate


def test_the_watchdog_ends_with_the_last_session() -> None:
    session = _session(limit_s=0.05)
    guard = weakref.ref(session._guard)
    assert "edge-watchdog" in {thread.name for thread in threading.enumerate()}
    del session
    gc.collect()
    assert guard() is None
    # Another session is watched whether the thread is about to leave or has left.
    again = guarded(0.05)
    again.steps = 1
    end = time.monotonic() + 20
    while not again.options.terminate and time.monotonic() < end:
        time.sleep(0.01)
    assert again.options.terminate


def _frame(level: int) -> Frame:
    image: Image = np.full((16, 16, 3), level, np.uint8)
    return Frame(image, time.monotonic_ns(), 0.0, 0, "camera")


def test_golden_raises_the_limit_to_what_the_board_needs(tmp_path: Path) -> None:
    bundle = open_real_bundle(tmp_path / "a.edge", endless())
    stages = Stages.open(bundle, SessionSettings(limit_s=0.2))
    limit_s = stages.session._guard.limit_s  # a golden input may have taken longer than a tenth of it
    assert limit_s >= 0.2
    with pytest.raises(HungRunError, match=rf"model\.int8\.ort: a run did not finish within {limit_s:g} s"):
        stages(_frame(255))
    session = Session.open(bundle, SessionSettings(limit_s=1e-9))
    session.replay_golden(bundle, Prepare.of(bundle.manifest))
    assert session._guard.limit_s > 1e-9


def test_the_limit_follows_the_budget(tmp_path: Path) -> None:
    bundle = open_real_bundle(tmp_path / "a.edge", endless(), latency_budget_ms=100.0)
    assert SessionSettings.of(bundle.manifest).limit_s == 5.0
    bundle = open_real_bundle(tmp_path / "b.edge", endless(), latency_budget_ms=2000.0)
    assert SessionSettings.of(bundle.manifest).limit_s == 20.0
