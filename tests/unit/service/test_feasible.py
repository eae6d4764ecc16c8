"""A budget that this machine cannot keep: what starts, what is said, and with which exit code."""

import itertools
import os
import re
import time
import weakref
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import IncompatibleError
from edge_sdk.core.frame import Inferred, Prepared
from edge_sdk.core.machine import CpuTime
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session, Stages
from edge_sdk.service import model_selector
from edge_sdk.service.model_selector import ModelSelector, StartChoice, VariantTime, choose_start, time_stages
from edge_sdk.service.settings import PipelineSettings
from tests.support.bundles import LARGE, SMALL, edit_manifest, write_graded
from tests.support.logs import SAID
from tests.support.pictures import write_video
from tests.support.program import Cli


@pytest.fixture(autouse=True)
def _not_tried_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused here is refused at once, whatever else this machine does."""
    monkeypatch.setattr(model_selector, "_REFUSAL_S", 0.0)
    monkeypatch.setattr(model_selector, "_PATIENCE_S", 0.0)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_graded(tmp_path / "graded.edge", side=96, width=16))


def _counted(bundle: Bundle) -> tuple[Stages, list[object]]:
    """Stages, and what they have run."""
    stages, runs = Stages.open(bundle), list[object]()
    task = stages.task
    stages.task = lambda inferred: runs.append(inferred) or task(inferred)  # type: ignore[func-returns-value]
    return stages, runs


@pytest.mark.parametrize(("goldens", "is_run"), [(1.9, True), (2.1, False)])
def test_what_took_double_the_budget_is_not_run_once_more(bundle: Bundle, goldens: float, is_run: bool) -> None:
    stages, runs = _counted(bundle)
    stages.session.replay_ns = 10**12
    assert time_stages(stages, goldens * 10**6) is None
    assert bool(runs) is is_run


def test_beside_busy_programs_it_is_measured_for_longer(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_selector, "_PATIENCE_S", 0.2)
    (stages, runs), seconds = _counted(bundle), itertools.count(1.0)
    taken: Any = time_stages(stages, 1e-4, read_cpu_time=lambda: CpuTime(passed := next(seconds), passed, 0.0))
    assert len(runs) > 7
    said = str(model_selector.budget_refusal(bundle, StartChoice(stages, (taken,), fits=False), 1.0, fixed=True))
    others = r"; other programs take 100% of \d+ processors? \(load average [\d.]+\), and it was tried for 0 s: stop"
    assert re.search(others, said)


def test_beside_busy_programs_a_start_is_tried_again_before_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs end while it is tried: then the best variant starts."""
    monkeypatch.setattr(model_selector, "_REFUSAL_S", 60.0)
    timed: list[str] = []

    def beside_others(stages: Stages, *_: object) -> VariantTime | None:
        timed.append(stages.variant)
        assert bool(SAID) == (len(timed) > 2)  # said before the first new try
        is_quiet = len(timed) > 4
        return None if is_quiet else VariantTime(stages.variant, 1, 50.0, (1.0, 48.0, 1.0), others=0.8)

    monkeypatch.setattr(model_selector, "time_stages", beside_others)
    start = Board(tmp_path, {}).start(1, threads=())
    assert (start.stages.variant, start.fits) == (LARGE, True)
    assert timed == [LARGE, SMALL, LARGE, SMALL, LARGE]
    [line] = SAID
    assert re.match(r"other programs take 80% of .*: before the budget is refused, it is tried for 60 s", line)


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "v.avi", range(20), fps=50)


def test_run_refuses_with_numbers_and_code_4(bundle: Bundle, video: Path, cli: Cli) -> None:
    edit_manifest(bundle.path, latency_budget_ms=0.0001)
    out, err = cli(4, "run", bundle.path, "--source", video)
    cannot = f"this board cannot keep 0.0001 ms from capture to outbox: its fastest model, {SMALL} takes"
    assert out == ""
    assert all(words in err.splitlines()[-1] for words in (cannot, f"; {LARGE} takes ", "--best-effort"))


@pytest.mark.parametrize("source", ["--best-effort", "images"])
def test_best_effort_and_images_that_are_never_dropped_run_all_the_same_with_a_warning(
    bundle: Bundle, video: Path, source: str, cli: Cli
) -> None:
    cv2.imwrite(str(video.parent / "one.png"), np.zeros((32, 32, 3), np.uint8))
    edit_manifest(bundle.path, latency_budget_ms=0.0001)
    options = [video, "--best-effort"] if source == "--best-effort" else [video.parent / "one.png"]
    out, err = cli(0, "run", bundle.path, "--json", "--source", *options)
    assert "warning: " in err
    *results, summary = [msgspec.json.decode(line) for line in out.splitlines()]
    assert {r["model"]["variant"] for r in results} == {SMALL if source == "--best-effort" else LARGE}
    assert summary["results"] == summary["late"] == len(results) >= 1


class _Slowed:
    def __init__(self, session: Session, pause_s: float) -> None:
        self.inference, self.replay_ns = session.inference, 0
        self._session, self._pause_s = session, pause_s

    def __call__(self, prepared: Prepared) -> Inferred:
        time.sleep(self._pause_s)
        return self._session(prepared)


class Board:
    """Where each number of threads takes as long as a test says, whatever this machine does; real models run too."""

    def __init__(
        self, folder: Path, seconds: dict[tuple[str, int], float], refused: tuple[str, int | None] = ("", 0)
    ) -> None:
        self.folder, self._seconds, self._refused = write_graded(folder / "graded.edge"), seconds, refused

    def open(self, variant: str, threads: int | None = None) -> Stages:
        if (variant, threads) == self._refused:
            raise IncompatibleError("not here")
        settings = SessionSettings(intra_op_num_threads=threads or 1)
        stages = Stages.open(Bundle.open(self.folder).with_primary(variant), settings)
        stages.session.replay_ns = 0
        slowed = _Slowed(stages.session, self._seconds.get((variant, stages.threads), 0.0))
        stages.session = slowed  # type: ignore[assignment]
        return stages

    def start(self, own: int, threads: tuple[int, ...]) -> StartChoice:
        """Choose what keeps 30 ms, from the large variant on its own number of threads on."""
        stages, bundle = [self.open(LARGE, own)], Bundle.open(self.folder)
        first = weakref.ref(stages[0])

        def open_one(variant: str, threads: int | None) -> Stages:
            assert first() is None, "two models are loaded"
            return self.open(variant, threads)

        return choose_start(bundle, stages, 30, open_one, threads=threads, fixed=False)


@pytest.mark.parametrize(
    ("own", "allowed", "slow", "runs"),
    [(1, (1, 2), 1, (LARGE, 2)), (2, (1, 2), 2, (LARGE, 1)), (1, (1,), 1, (SMALL, 1))],
    ids=["more", "fewer", "none"],
)
def test_threads_that_keep_the_budget_start_the_same_variant(
    tmp_path: Path, own: int, allowed: tuple[int, ...], slow: int, runs: tuple[str, int]
) -> None:
    start = Board(tmp_path, {(LARGE, slow): 0.04}).start(own, threads=allowed)
    assert ((start.stages.variant, start.stages.threads), start.fits) == (runs, True)
    assert [(t.variant, t.threads) for t in start.too_slow] == [(LARGE, slow)]
    assert f"the budget is 30 ms, and {LARGE} takes " in start.reason(30)


@pytest.mark.parametrize(
    ("refused", "runs", "what"),
    [((LARGE, 1), (SMALL, True), f"{LARGE} on 1 thread"), ((SMALL, None), (LARGE, False), SMALL)],
    ids=["threads", "variant"],
)
def test_a_variant_or_a_number_of_threads_that_does_not_load_is_said_and_left_out(
    tmp_path: Path, refused: tuple[str, int | None], runs: tuple[str, bool], what: str
) -> None:
    seconds = {(LARGE, 1): 0.05, (LARGE, 2): 0.04}
    start = Board(tmp_path, seconds, refused=refused).start(2, threads=(1, 2))
    assert (start.stages.variant, start.fits) == runs
    assert [f"{what} does not load here and is left out: not here"] == SAID


@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="of more cores one is left, and of one there is no more")
@pytest.mark.parametrize("tune", [True, False])
def test_a_run_says_with_which_threads_it_starts(tmp_path: Path, tune: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    board = Board(tmp_path, {(LARGE, 1): 0.06})
    settings = PipelineSettings(bundle=board.folder, source="0", tune=tune)
    steering = ModelSelector(settings, Bundle.open(board.folder), SessionSettings(), 50.0, lambda: False)
    steering._stages = [board.open(LARGE)]
    monkeypatch.setattr(steering, "open_with", board.open)
    steering.settle()
    stages = steering.take_stages()
    if tune:
        assert (stages.variant, stages.threads, steering.open_beside(LARGE).threads) == (LARGE, 2, 2)
        [line] = SAID
        assert line.startswith(f"{LARGE} runs on 2 threads here, not on 1: the budget is 50 ms, and {LARGE} takes ")
    else:
        assert (stages.variant, stages.threads, steering.open_beside(LARGE).threads, SAID) == (SMALL, 1, 1, [])
