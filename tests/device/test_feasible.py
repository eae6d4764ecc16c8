"""A budget that this machine cannot keep: what starts, what is said, and with which exit code."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.daemon.feasible import Start, VariantTime, _worth_trying, choose_start, refusal, time_stages
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.steering import Steering
from edge_sdk.errors import IncompatibleError
from edge_sdk.frame import Inferred, Prepared
from edge_sdk.session import Session, SessionSettings
from edge_sdk.stages import Stages
from tests.device.bundles import edit_manifest
from tests.device.graded import LARGE, SMALL, open_variant, write_graded
from tests.device.numbered import write_video

NEVER_MS = 1e-4


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_graded(tmp_path / "graded.edge", side=96, width=16))


def test_a_run_inside_the_budget_is_enough(bundle: Bundle) -> None:
    assert time_stages(Stages.open(bundle), 60_000) is None


@pytest.mark.parametrize(("goldens", "is_run"), [(1.9, True), (2.1, False)])
def test_what_took_half_the_budget_for_golden_is_not_run_once_more(
    bundle: Bundle, goldens: float, is_run: bool
) -> None:
    stages = Stages.open(bundle)
    runs: list[object] = []
    task = stages.task
    stages.task = lambda inferred: runs.append(inferred) or task(inferred)  # type: ignore[func-returns-value]
    stages.session.replay_ns = 10**12
    assert time_stages(stages, goldens * 10**6) is None
    assert bool(runs) is is_run


def test_the_best_run_is_what_counts_and_its_parts_are_all_of_it(bundle: Bundle) -> None:
    taken = time_stages(Stages.open(bundle), NEVER_MS)
    assert taken is not None
    assert taken.variant == LARGE
    assert taken.least_ms == pytest.approx(sum(taken.parts_ms))
    assert 0 < taken.least_ms <= taken.median_ms
    assert taken.parts_ms[1] > taken.parts_ms[2]


def test_the_best_variant_that_fits_starts_and_the_reason_has_the_numbers(bundle: Bundle) -> None:
    taken = time_stages(Stages.open(bundle), NEVER_MS)
    assert taken is not None
    budget_ms = taken.least_ms / 3
    first = Stages.open(bundle)
    gone, stages = weakref.ref(first), [first]
    del first

    def open_one(variant: str, threads: int | None) -> Stages:
        assert gone() is None, "two models are loaded"
        return open_variant(bundle.path, variant)

    start = choose_start(bundle, stages, budget_ms, open_one, fixed=False, say=pytest.fail)
    assert (start.stages.variant, start.fits) == (SMALL, True)
    assert [t.variant for t in start.too_slow] == [LARGE]
    assert f"the budget is {budget_ms:g} ms, and {LARGE} takes" in start.reason(budget_ms)


def test_where_nothing_fits_it_is_the_fastest(bundle: Bundle) -> None:
    start = choose_start(
        bundle,
        [Stages.open(bundle)],
        NEVER_MS,
        lambda variant, threads: open_variant(bundle.path, variant),
        fixed=False,
        say=pytest.fail,
    )
    assert (start.stages.variant, start.fits) == (SMALL, False)
    text = str(refusal(bundle, start, NEVER_MS, fixed=False))
    assert f"its fastest model, {SMALL} takes " in text
    assert f"; {LARGE} takes " in text
    assert "--best-effort" in text
    assert "\n" not in text


def test_a_fixed_variant_is_the_only_one_that_is_tried(bundle: Bundle) -> None:
    start = choose_start(bundle, [Stages.open(bundle)], NEVER_MS, pytest.fail, fixed=True, say=pytest.fail)
    assert [t.variant for t in start.too_slow] == [LARGE]
    assert "choose another --variant" in str(refusal(bundle, start, NEVER_MS, fixed=True))


def test_a_variant_that_does_not_load_is_said_and_left_out(bundle: Bundle) -> None:
    said: list[str] = []

    def only_large(variant: str, threads: int | None) -> Stages:
        if variant != LARGE:
            raise IncompatibleError("not here")
        return open_variant(bundle.path, variant)

    start = choose_start(bundle, [Stages.open(bundle)], NEVER_MS, only_large, fixed=False, say=said.append)
    assert (start.stages.variant, start.fits) == (LARGE, False)
    assert said == [f"{SMALL} does not load here and is left out: not here"]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "v.avi", range(20), fps=50)


def test_run_refuses_with_the_numbers_and_exit_code_4(
    bundle: Bundle, video: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_manifest(bundle.path, latency_budget_ms=0.0001)
    assert run(["run", str(bundle.path), "--source", str(video)]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert "this board cannot keep 0.0001 ms from capture to outbox: its fastest model, int8.8x8 takes" in last
    assert "Traceback" not in captured.err


def test_best_effort_runs_all_the_same_and_says_so(
    bundle: Bundle, video: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    edit_manifest(bundle.path, latency_budget_ms=0.0001)
    assert run(["run", str(bundle.path), "--source", str(video), "--best-effort", "--json"]) == 0
    captured = capsysbinary.readouterr()
    assert b"warning: " in captured.err
    *results, summary = [msgspec.json.decode(line) for line in captured.out.splitlines()]
    assert {r["model"]["variant"] for r in results} == {SMALL}
    assert summary["results"] == summary["late"] == len(results) >= 1


def test_images_in_turn_are_never_dropped_and_so_never_refused(
    bundle: Bundle, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((32, 32, 3), np.uint8))
    edit_manifest(bundle.path, latency_budget_ms=0.0001)
    assert run(["run", str(bundle.path), "--source", str(tmp_path / "one.png")]) == 0
    captured = capsysbinary.readouterr()
    assert b"warning: " in captured.err
    assert msgspec.json.decode(captured.out)["model"]["variant"] == LARGE


class _Slowed:
    """A session that takes longer."""

    def __init__(self, session: Session, pause_s: float) -> None:
        self.inference, self.replay_ns = session.inference, 0
        self._session, self._pause_s = session, pause_s

    def __call__(self, prepared: Prepared) -> Inferred:
        time.sleep(self._pause_s)
        return self._session(prepared)


class Board:
    """Where each number of threads takes as long as a test says, whatever this machine does; real models run too."""

    def __init__(self, folder: Path, seconds: dict[tuple[str, int], float]) -> None:
        self.folder, self.seconds = folder, seconds
        self.opened: list[tuple[str, int]] = []

    def open(self, variant: str, threads: int | None = None) -> Stages:
        settings = SessionSettings(intra_op_num_threads=threads or 1)
        stages = Stages.open(Bundle.open(self.folder).led_by(variant), settings)
        stages.session.replay_ns = 0
        slowed = _Slowed(stages.session, self.seconds.get((variant, stages.threads), 0.0))
        stages.session = slowed  # type: ignore[assignment]
        self.opened.append((variant, stages.threads))
        return stages

    def start(self, budget_ms: float, threads: tuple[int, ...], say: Callable[[str], None] = pytest.fail) -> Start:
        stages = [self.open(LARGE)]
        return choose_start(
            Bundle.open(self.folder), stages, budget_ms, self.open, threads=threads, fixed=False, say=say
        )


def _missing(parts_ms: tuple[float, float, float], threads: int) -> VariantTime:
    return VariantTime(LARGE, threads, sum(parts_ms), sum(parts_ms), parts_ms)


@pytest.mark.parametrize(
    ("taken", "threads", "expected"),
    [
        (None, (1, 2, 4), []),
        (_missing((1, 38, 1), 1), (1, 2, 4), [4, 2]),
        (_missing((1, 70, 1), 1), (1, 2, 4), [4]),
        (_missing((1, 98, 1), 1), (1, 2, 4), []),  # 26.5 ms at best
        (_missing((21, 10, 1), 1), (1, 2, 4), []),  # threads are the model's alone
        (_missing((1, 28, 1), 2), (1, 2), [1]),
        (_missing((1, 48, 1), 2), (1, 2), []),
        (_missing((1, 48, 1), 4), (1, 2), [2, 1]),  # more than there are cores: they wait for each other
    ],
)
def test_threads_are_tried_where_they_may_keep_20_ms(
    taken: VariantTime | None, threads: tuple[int, ...], expected: list[int]
) -> None:
    assert _worth_trying(taken, threads, 20.0) == expected


def test_threads_that_keep_the_budget_start_the_same_variant(tmp_path: Path) -> None:
    board = Board(write_graded(tmp_path / "graded.edge"), {(LARGE, 1): 0.06})
    start = board.start(50, threads=(1, 2))
    assert (start.stages.variant, start.stages.threads, start.fits) == (LARGE, 2, True)
    start = board.start(50, threads=(1,))
    assert (start.stages.variant, start.stages.threads, start.fits) == (SMALL, 1, True)
    assert [t.variant for t in start.too_slow] == [LARGE]


def test_fewer_threads_than_are_promised_start_where_they_keep_the_budget(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "graded.edge")
    board = Board(folder, {(LARGE, 2): 0.06})
    stages = [board.open(LARGE, 2)]
    start = choose_start(Bundle.open(folder), stages, 50, board.open, threads=(1, 2), fixed=False, say=pytest.fail)
    assert (start.stages.variant, start.stages.threads, start.fits) == (LARGE, 1, True)
    assert "int8 takes 6" in start.reason(50)
    assert " ms on 2 threads (" in start.reason(50)


def test_a_budget_is_refused_when_no_number_of_threads_keeps_it_and_the_best_of_each_is_named(tmp_path: Path) -> None:
    slow = {(LARGE, 1): 0.07, (LARGE, 2): 0.09, (SMALL, 1): 0.055, (SMALL, 2): 0.08}
    folder = write_graded(tmp_path / "graded.edge")
    board = Board(folder, slow)
    stages = [board.open(LARGE, 2)]
    start = choose_start(Bundle.open(folder), stages, 50, board.open, threads=(1, 2), fixed=False, say=pytest.fail)
    assert not start.fits
    assert [(t.variant, t.threads) for t in start.too_slow] == [(LARGE, 1), (SMALL, 1)]
    assert (start.stages.variant, start.stages.threads) == (SMALL, 1)
    text = str(refusal(Bundle.open(folder), start, 50, fixed=False))
    assert " ms on 1 thread (prepare " in text
    assert f"; {LARGE} takes 7" in text


def test_a_number_of_threads_that_does_not_load_is_said_and_left_out(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "graded.edge")
    board, said = Board(folder, {(LARGE, 2): 0.06}), list[str]()

    def not_on_one(variant: str, threads: int | None) -> Stages:
        if (variant, threads) == (LARGE, 1):
            raise IncompatibleError("not here")
        return board.open(variant, threads)

    stages = [board.open(LARGE, 2)]
    start = choose_start(Bundle.open(folder), stages, 50, not_on_one, threads=(1, 2), fixed=False, say=said.append)
    assert (start.stages.variant, start.fits) == (SMALL, True)
    assert said == [f"{LARGE} on 1 thread does not load here and is left out: not here"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="of more cores one is left, and of one there is no more")
@pytest.mark.parametrize("tune", [True, False])
def test_a_run_says_with_which_threads_it_starts_and_keeps_them_unless_it_must_not_tune(
    tmp_path: Path, tune: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    board, said = Board(write_graded(tmp_path / "graded.edge"), {(LARGE, 1): 0.06}), list[str]()
    settings = PipelineSettings(bundle=board.folder, source="0", tune=tune)
    steering = Steering(settings, Bundle.open(board.folder), SessionSettings(), 50.0, said.append, lambda: False)
    steering._stages = [board.open(LARGE)]
    monkeypatch.setattr(steering._tuning, "open_variant", board.open)
    steering.settle(paced=True)
    stages = steering.take_stages()
    if tune:
        assert (stages.variant, stages.threads, steering._threads_of(LARGE)) == (LARGE, 2, 2)
        [line] = said
        assert line.startswith(f"{LARGE} runs on 2 threads here, not on 1: the budget is 50 ms, and {LARGE} takes ")
    else:
        assert (stages.variant, stages.threads, steering._threads_of(LARGE), said) == (SMALL, 1, 1, [])
