"""`edge-sdk tune`, `run` with what it found, `bench` with settings, and tuning while results go out."""

import contextlib
import itertools
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.core.errors import SessionError, StoppedError
from edge_sdk.core.frame import Classification, Frame
from edge_sdk.loop import Tick
from edge_sdk.tuning.candidates import Candidate, Limits, Tuned
from edge_sdk.tuning.live import Window
from edge_sdk.tuning.tuning import Records, Request, TunedMachine, Tuning, golden_camera, tune
from tests.support.bundles import open_candidate, write_variants
from tests.support.logs import SAID
from tests.support.loops import Board, Slowed
from tests.support.pictures import write_video
from tests.support.program import Cli
from tests.support.results import candidate, measurement, plan

FPS = 100
LIMITS = Limits(1000, 1.0)
TUNED = Tuned.of(
    plan(limits=LIMITS, fps=FPS, metric="agreement with FP32"),
    [
        measurement(candidate(), 12.5, cpu_share=0.3, quality=0.95, p50_ms=10),
        measurement(candidate("fp32", threads=2), 50, cpu_share=0.6, quality=1.0, p50_ms=40),
    ],
    seconds=9,
    others=0.0,
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "edge-sdk" / "tuning"


@pytest.fixture
def bundle(tmp_path: Path, state: Path) -> Path:
    return write_variants(tmp_path / "a.edge")


@pytest.fixture
def record(bundle: Path, state: Path) -> Path:
    """What was found for the camera named `camera`, as a run for 1000 ms looks for it."""
    request = Request(digest=Bundle.open(bundle).digest, camera="camera", variant=None, limits=Limits(1000.0))
    Records(state).remember(request, TunedMachine.here(), TUNED)
    return state / request.file_name


def test_the_best_quality_is_chosen_and_remembered(bundle: Path, state: Path, cli: Cli) -> None:
    assert "tuned " not in cli(0, "inspect", bundle).out
    options = ["--seconds", "1.5", "--latency-ms", "1000", "--fps", str(FPS), "--camera", "gate", "--json"]
    captured = cli(0, "tune", bundle, *options)
    assert not captured.err
    tuned = msgspec.json.decode(captured.out, type=Tuned)
    assert (tuned.chosen.candidate.variant, tuned.meets_budget) == ("fp32", True)
    assert tuned.before is not None
    assert tuned.before.candidate.variant == "int8"
    assert all(0 < m.p50_ms <= m.p99_ms for m in tuned.measured)
    [kept] = state.iterdir()
    assert msgspec.convert(msgspec.json.decode(kept.read_bytes())["tuned"], Tuned) == tuned
    [line] = [line for line in cli(0, "inspect", bundle).out.splitlines() if line.startswith("tuned ")]
    assert line.startswith(f"tuned       camera gate, {FPS} frames a second, 1000 ms: {tuned.chosen.candidate} (p99 ")
    [shown] = msgspec.json.decode(cli(0, "inspect", bundle, "--json").out)["tuned"]
    assert msgspec.convert(shown["tuned"], Tuned) == tuned


def test_a_variant_that_is_named_is_the_only_one(bundle: Path, cli: Cli) -> None:
    options = ["--seconds", "0.3", "--latency-ms", "1000", "--fps", str(FPS), "--json"]
    tuned = msgspec.json.decode(cli(0, "tune", bundle, *options, "--variant", "model.int8.8x8.ort").out, type=Tuned)
    assert {m.candidate.variant for m in tuned.measured} == {"int8.8x8"}


def _comes_to(monkeypatch: pytest.MonkeyPatch, tuned: Tuned, remark: str = "") -> None:
    monkeypatch.setattr("edge_sdk.cli.tune.tune", lambda *_arguments, **_options: (tuned, remark))


def test_the_table_says_before_after_and_why(bundle: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    _comes_to(monkeypatch, TUNED)
    text = " ".join(cli(0, "tune", bundle, "--fps", FPS).out.split())
    for line in (
        "budget 1000 ms, CPU at most 100 % of a core; quality is agreement with FP32",
        "fp32, 2 threads 40.00 50.00 60 % 100.0 % chosen",
        "after fp32, 2 threads: p99 50 ms, 60 % of a core why the highest quality of those that keep 1000 ms",
    ):
        assert line in text


def test_a_budget_that_nothing_keeps_is_exit_code_4_and_what_is_not_remembered_is_said(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    why = "a budget of 1 ms cannot be kept"
    late = msgspec.structs.replace(TUNED, meets_budget=False, reason=why, others=0.9, provisional=True)
    _comes_to(monkeypatch, late, "STATE cannot be written")
    captured = cli(4, "tune", bundle, "--fps", FPS)
    assert ("\nafter " in captured.out, "\nnext " in captured.out) == (True, False)
    assert "\ndoubt   other programs took 90 % of the processors' time" in captured.out
    assert captured.err.splitlines() == [
        "edge-sdk: warning: not remembered: STATE cannot be written",
        f"edge-sdk: {bundle}: nothing keeps the limits here: {why}",
    ]


def test_run_takes_what_was_found_for_the_same_wish_only(bundle: Path, record: Path, tmp_path: Path, cli: Cli) -> None:
    video = write_video(tmp_path / "v.avi", range(300), fps=FPS)
    command = ["run", str(bundle), "--source", str(video), "--frames", "3", "--latency-ms", "1000"]
    for flags, takes, tunes in [
        ([], True, False),
        (["--no-tune"], False, False),
        (["--camera", "other"], False, True),
        (["--variant", "int8"], False, False),
    ]:
        error = cli(0, *command, *flags).err
        assert (": fp32, 2 threads (p99 " in error) is takes, flags
        assert ("tuning for 100 frames a second" in error) is tunes, flags


def test_another_rate_and_a_damaged_record_are_tuned_anew(bundle: Path, record: Path, tmp_path: Path, cli: Cli) -> None:
    slower = write_video(tmp_path / "v.avi", range(100), fps=50)
    command = ["run", str(bundle), "--source", str(slower), "--frames", "3", "--latency-ms", "1000"]
    error = cli(0, *command).err
    assert "tuning for 50 frames a second, and not 100: what runs best is measured" in error
    record.write_bytes(b"{}")
    error = cli(0, *command).err
    assert f"tuning anew: {record} was written by another version of edge-sdk" in error
    assert ("tuned at" in error, "tuning was not finished: nothing is remembered" in error) == (False, True)


def test_images_are_neither_tuned_on_nor_run_as_tuned(bundle: Path, record: Path, tmp_path: Path, cli: Cli) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((16, 16, 3), np.uint8))
    error = cli(0, "run", bundle, "--source", tmp_path / "one.png", "--latency-ms", "1000").err
    said = [words in error for words in ("stopped by end of source; 1 result,", "tuned at", "tuning for")]
    assert said == [True, False, False]


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        (["--source", "IMAGE"], 2, "images have no pace to tune at"),
        (["--source", "VIDEO"], 1, "the source ended before tuning did; give a longer one, or fewer --seconds"),
        (["--source", "VIDEO", "--fps", "5"], 2, "--fps is of the pictures that come without --source"),
        (["--variant", "none"], 2, "has no variant 'none'"),
        (["--fps", "0"], 2, "--fps"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    bundle: Path, tmp_path: Path, cli: Cli, flags: list[str], code: int, expected: str
) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((16, 16, 3), np.uint8))
    places = {"IMAGE": str(tmp_path / "one.png"), "VIDEO": str(write_video(tmp_path / "v.avi", range(10), fps=FPS))}
    captured = cli(code, "tune", bundle, *(places.get(flag, flag) for flag in flags))
    assert (captured.out, expected in captured.err.splitlines()[-1]) == ("", True), captured.err


@pytest.mark.parametrize(
    ("options", "threads", "spinning"),
    [
        (["--variant", "int8.8x8"], 1, False),
        (["--threads", "2", "--spin"], 2, True),
        (["--threads", "3", "--no-spin"], 3, False),
    ],
)
def test_bench_runs_the_variant_threads_and_spinning_that_are_given(
    bundle: Path, capsysbinary: pytest.CaptureFixture[bytes], options: list[str], threads: int, spinning: bool
) -> None:
    assert run(["bench", str(bundle), "--rounds", "1", "--json", *options]) == 0
    report = msgspec.json.decode(capsysbinary.readouterr().out)
    assert (report["threads"], report["spinning"]) == (threads, spinning)
    assert report["variant"] == ("int8.8x8" if "--variant" in options else "int8")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("none.png", "none.png: no such image"),
        ("/dev/zero", "/dev/zero: image cannot be read: it is a device, expected a regular file"),
        ("empty.png", "empty.png: not an image that can be read, or of more than 67 million pixels"),
    ],
)
def test_a_frame_of_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, image: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.png").touch()
    assert cli(2, "bench", write_variants(tmp_path / "a.edge"), "--image", image).err == f"edge-sdk: {expected}\n"


# Tuning while it runs: other stages for some frames each, every frame answered, the best of them at the end.


def _board(folder: Path, changes: dict[str, float] | None = None, **options: Any) -> Board:
    took_ms = {"int8": 10.0, "int8.8x8": 5.0, "fp32": 20.0, **(changes or {})}
    return Board(folder / "a.edge", lambda what, _n: took_ms[what.variant], **options)


def _go_on_without_frames(board: Board) -> None:
    for _ in itertools.takewhile(lambda _n: not board.tuner.done, range(1000)):
        board.clock.advance(200)
        board.tuner.after(board.loop, Tick.IDLE)
        while board.tuner.is_loading:
            pass
    assert board.tuner.done


def test_the_best_quality_that_keeps_the_budget_runs_at_the_end_and_every_frame_was_answered(tmp_path: Path) -> None:
    board = _board(tmp_path)
    board.run()
    [(tuned, remark)] = board.outcome
    assert tuned.chosen.candidate == board.runs() == candidate("fp32")
    assert tuned.chosen.cpu_share == pytest.approx(0.6, abs=0.01)  # 20 ms of work every 33 ms
    assert (tuned.meets_budget, tuned.metric, remark) == (True, "agreement with FP32", "")
    assert board.remembered == [tuned]
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
    tuned = board.run_to_its_end()
    assert [(str(m.candidate), m.frames) for m in tuned.measured if m.given_up] == [("fp32, 1 thread", 2)]
    assert tuned.chosen.candidate == board.runs() == candidate("int8")
    assert board.loop.counts[Tick.LATE] == 2
    # Too old are the frames that came while it ran, and none for what the drop rule expects of it.
    assert board.loop.counts[Tick.STALE] <= 2
    assert board.clock.now_ns < 21e9


def test_one_slow_frame_does_not_condemn_a_candidate(tmp_path: Path) -> None:
    tuned = Board(tmp_path / "a.edge", lambda _what, n: 200.0 if n == 30 else 10.0).run_to_its_end()
    assert (tuned.chosen.candidate.variant, tuned.chosen.frames, tuned.meets_budget) == ("fp32", 100, True)


def test_what_does_not_load_is_passed_over_and_is_not_one_that_was_not_tried(tmp_path: Path) -> None:
    board = _board(tmp_path, refused=["fp32, 1 thread", "fp32, 2 threads"])
    tuned = board.run_to_its_end()
    assert board.lines == ["tuning passes over fp32, 1 thread: no such luck"]
    assert (tuned.chosen.candidate.variant, tuned.untried, tuned.provisional) == ("int8", (), False)


def test_one_that_fails_while_it_runs_loses_no_frame_and_home_answers_under_its_own_name(tmp_path: Path) -> None:
    breaks = Mock(side_effect=SessionError("it broke"))
    board = Board(tmp_path / "a.edge", lambda what, n: breaks() if (what.variant, n) == ("fp32", 7) else 10.0)
    assert board.run_to_its_end().chosen.candidate.variant == "int8"
    assert board.lines == ["tuning passes over fp32, 1 thread: it broke"]
    assert [r.frame.seq for r in board.sink.results] == list(range(len(board.sink.results)))
    assert board.named() == board.ran
    assert board.ran.count("fp32") == 7


def test_what_fails_though_it_is_promised_is_an_error_as_ever(tmp_path: Path) -> None:
    work = Mock(side_effect=[*[10.0] * 5, SessionError("it broke")])
    with pytest.raises(SessionError, match="it broke"):
        Board(tmp_path / "a.edge", work).run()


def test_a_candidate_whose_outputs_are_no_numbers_fails_and_what_ran_before_answers() -> None:
    def result(frame: Frame, *, is_finite: bool) -> Classification:
        return Classification(frame, 0, np.zeros(1, np.float32), np.zeros(1, np.int64), is_finite=is_finite)

    frame, stages = Frame(np.zeros((4, 4, 3), np.uint8), 0, 0.0, 0, "camera"), partial(result, is_finite=False)
    # The model that ran before is still measured.
    for fallback, failure in ((partial(result, is_finite=True), "its outputs are NaN or infinite"), (None, "")):
        window = Window(candidate(), stages, fallback, plan(), clock_ns=lambda: 0, cpu_ns=lambda: 0)
        assert (window(frame).is_finite, window.failure) == (bool(fallback), failure)


def test_where_nothing_can_be_measured_nothing_is_held_either(tmp_path: Path) -> None:
    board = _board(tmp_path, frames=0)
    board.tuner.after(board.loop, Tick.ON_TIME)
    _go_on_without_frames(board)
    assert board.lines[-1] == "tuning could measure nothing: what runs stays"
    board.loop.stages = board.open(candidate("int8.8x8"))  # a governor steps down
    assert board.alive() == [candidate("int8.8x8")]


def test_a_disk_that_takes_nothing_takes_nothing_away(tmp_path: Path) -> None:
    board = _board(tmp_path, disk_is_full=True)
    tuned = board.run_to_its_end()
    assert board.outcome == [(tuned, "no room")]
    assert board.runs() == tuned.chosen.candidate == candidate("fp32")


@pytest.mark.parametrize(("others", "provisional"), [(0.2, False), (0.3, True)])
def test_what_was_measured_on_a_busy_machine_is_provisional(tmp_path: Path, others: float, provisional: bool) -> None:
    tuned = _board(tmp_path, others=others).run_to_its_end()
    assert (tuned.others, tuned.provisional) == (pytest.approx(others, abs=0.01), provisional)
    took = f"other programs took {100 * others:.0f} % of the processors' time while it was measured"
    assert tuned.doubt() == (took if provisional else "")


@pytest.mark.parametrize(("fps", "fewest"), [(2, 1), (10, 3)])
def test_a_slow_camera_gets_fewer_candidates_and_not_more_time(tmp_path: Path, fps: float, fewest: int) -> None:
    board = _board(tmp_path, fps=fps)
    assert fewest <= len(board.run_to_its_end().measured) <= fewest + 4
    assert board.clock.now_ns < 22e9


@pytest.mark.parametrize(("int8_ms", "chosen"), [(700.0, "int8"), (1100.0, "int8.8x8")])
def test_a_slow_board_gets_time_to_find_what_keeps_a_long_budget(tmp_path: Path, int8_ms: float, chosen: str) -> None:
    board = _board(tmp_path, {"int8": int8_ms, "int8.8x8": int8_ms / 3, "fp32": int8_ms * 3}, budget_ms=1000)
    assert board.run_to_its_end().chosen.candidate.variant == chosen


@pytest.mark.parametrize(("seconds", "untried"), [(1.0, ("fp32",)), (20.0, ())])
def test_a_better_model_that_was_not_tried_is_named(tmp_path: Path, seconds: float, untried: tuple[str, ...]) -> None:
    tuned = _board(tmp_path, seconds=seconds).run_to_its_end()
    assert (tuned.untried, tuned.provisional) == (untried, bool(untried))
    assert tuned.doubt() == ("there was no time for fp32" if untried else "")


@pytest.mark.parametrize(("fps", "least_s"), [(30, 20), (1, 40)])
def test_by_default_there_is_time_for_every_model(tmp_path: Path, fps: float, least_s: float) -> None:
    board = _board(tmp_path, seconds=None, fps=fps)
    assert board.tuner.plan.seconds >= least_s
    tuned = board.run_to_its_end()
    assert (tuned.chosen.candidate.variant, tuned.untried) == ("fp32", ())


def test_a_load_that_hangs_is_given_up_and_tuning_ends(tmp_path: Path) -> None:
    may_end = threading.Event()
    board = _board(tmp_path, hangs=may_end)
    with contextlib.ExitStack() as stack:
        stack.callback(may_end.set)
        board.run()
    assert (board.tuner.done, "did not load within" in board.lines[0]) == (True, True)
    assert board.runs() == candidate("int8")


def test_a_source_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    board = _board(tmp_path, frames=100)
    board.run()
    board.tuner.close()
    board.tuner.after(board.loop, Tick.ON_TIME)
    assert (board.lines, board.remembered) == (["tuning was not finished: nothing is remembered"], [])


def test_without_frames_nothing_begins_and_frames_that_stop_in_the_middle_do_not_hold_it_up(tmp_path: Path) -> None:
    board = _board(tmp_path, frames=60)
    for _ in range(3):
        board.tuner.after(board.loop, Tick.IDLE)
    assert (board.tuner.is_loading, board.lines) == (False, [])
    board.run()
    _go_on_without_frames(board)
    assert board.outcome[0][0].chosen.candidate == candidate("int8")


def test_without_a_measurement_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    bundle, limits = Bundle.open(write_variants(tmp_path / "a.edge")), Limits(1000)
    tuning = Tuning(bundle, limits, camera="c", variant="int8.8x8", open_stages=open_candidate)
    told = r"; mend what the lines above report, or give more --seconds$"
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
    while not is_asked.is_set():  # the clock stands while others are loaded, however long they take
        assert not board.tuner.done
        board.tuner.after(board.loop, board.loop.step())
        while board.tuner.is_loading and not is_asked.is_set():
            time.sleep(0.0005)
    board.alive()  # waits for the thread
    for _ in range(10):
        board.tuner.after(board.loop, board.loop.step())
    assert (board.lines, board.runs()) == ([], home)
    board.tuner.close()
    assert (board.lines, board.remembered) == (["tuning was not finished: nothing is remembered"], [])
