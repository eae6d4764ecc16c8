"""`edge-sdk tune`, and `edge-sdk run` with what it found: real sessions, real time, a tiny bundle of three variants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.session import onnxruntime_version
from edge_sdk.stages import Stages
from edge_sdk.tuning import Candidate, Tuned, Tuning
from edge_sdk.tuning import tune as tune_module
from edge_sdk.tuning.tuning import open_candidate
from tests.device.numbered import write_video
from tests.device.variant_bundles import write_variants

QUICK = ("--seconds", "1.5", "--latency-ms", "1000")
FPS = 100


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "edge-sdk" / "tuning"


@pytest.fixture
def bundle(tmp_path: Path, state: Path) -> Path:
    return write_variants(tmp_path / "a.edge")


def _tune(bundle: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> Tuned:
    assert run(["tune", str(bundle), *QUICK, "--fps", str(FPS), "--json", *flags]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    return msgspec.json.decode(captured.out, type=Tuned)


def test_the_best_quality_is_chosen_and_remembered(
    bundle: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = _tune(bundle, capsys)
    assert tuned.chosen.candidate.variant == "fp32"
    assert tuned.meets_budget
    assert tuned.before is not None
    assert tuned.before.candidate.variant == "int8"
    assert all(0 < m.p50_ms <= m.p99_ms for m in tuned.measured)
    [record] = state.iterdir()
    remembered = msgspec.json.decode(record.read_bytes())["tuned"]
    assert msgspec.convert(remembered, Tuned) == tuned


def test_a_variant_that_is_named_is_the_only_one(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = _tune(bundle, capsys, "--variant", "model.int8.8x8.ort")
    assert {m.candidate.variant for m in tuned.measured} == {"int8.8x8"}


def test_the_table_says_what_was_before_what_is_after_and_why(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", str(bundle), *QUICK, "--fps", str(FPS), "--cpu-share", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"tiny 1 at {FPS} frames a second"
    assert f"ONNX Runtime {onnxruntime_version()}" in lines[1]
    assert lines[2] == "budget 1000 ms, CPU at most 100 % of a core; quality is agreement with FP32"
    assert lines[4].split() == ["p50", "ms", "p99", "ms", "CPU", "quality"]
    [promised] = [line for line in lines if "promised" in line]
    assert promised.startswith("int8, 1 thread ")
    [chosen] = [line for line in lines if "chosen" in line]
    assert chosen.startswith("fp32, ")
    assert "100.0 %" in chosen
    assert lines.pop() == f"next    `edge-sdk run --camera camera` starts with it, at about {FPS} frames a second"
    if lines[-1].startswith("doubt   other programs took "):  # the machine was busy
        del lines[-1]
    assert all(len(line) <= 100 for line in lines)
    assert lines[-3].startswith("before  int8, 1 thread: p99 ")
    assert lines[-2].startswith("after   fp32, ")
    assert lines[-1].startswith("why     the highest quality of those that keep 1000 ms and a CPU share of 1")


def test_a_budget_that_nothing_keeps_is_exit_code_4(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_slow_board(*arguments: object, **options: object) -> tuple[Tuned, str]:
        tuned, remark = real(*arguments, **options)
        return msgspec.structs.replace(tuned, meets_budget=False, reason="a budget of 1 ms cannot be kept"), remark

    real: Callable[..., tuple[Tuned, str]] = tune_module.tune
    monkeypatch.setattr("edge_sdk.cli.tune.tune", on_a_slow_board)
    assert run(["tune", str(bundle), *QUICK, "--fps", str(FPS)]) == 4
    captured = capsys.readouterr()
    assert "after " in captured.out
    [line] = captured.err.splitlines()
    assert line == f"edge-sdk: {bundle}: nothing keeps the limits here: a budget of 1 ms cannot be kept"


def test_a_folder_that_cannot_be_written_is_said_once_and_stops_nothing(
    bundle: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state.parent.mkdir(parents=True)
    state.write_bytes(b"")  # a file where the folder should be: root, too, cannot write into it
    assert run(["tune", str(bundle), *QUICK, "--fps", str(FPS)]) == 0
    captured = capsys.readouterr()
    assert "after   fp32, " in captured.out
    [line] = captured.err.splitlines()
    assert line.startswith(f"edge-sdk: warning: not remembered: {state}")


def test_run_takes_what_tune_found_for_the_same_wish_only(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _tune(bundle, capsys)
    video = write_video(tmp_path / "v.avi", range(300), fps=FPS)
    command = ["run", str(bundle), "--source", str(video), "--frames", "3"]
    cases = [
        ([], True),
        (["--no-tune"], False),
        (["--camera", "other"], False),
        (["--cpu-share", "0.5"], False),
        (["--variant", "int8"], False),
    ]
    for flags, expected in cases:
        latency = ["--latency-ms", "1000"]
        assert run([*command, *latency, *flags]) == 0
        error = capsys.readouterr().err
        assert (f": {found.chosen.candidate} (p99 " in error) is expected, flags
        tunes = (
            "--camera" in flags or "--cpu-share" in flags or (found.provisional and not flags)
        )  # the machine was busy
        assert ("tuning for 100 frames a second" in error) is tunes, flags
    assert run([*command, "--latency-ms", "999"]) == 0
    assert "tuned at" not in capsys.readouterr().err


def test_other_variants_are_opened_with_what_was_found(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _tune(bundle, capsys)
    tried: list[Candidate] = []

    def note(opened: Bundle, candidate: Candidate) -> Stages:
        tried.append(candidate)
        return open_candidate(opened, candidate)

    whole, limits = Bundle.open(bundle), found.limits
    tuning = Tuning(whole, limits, camera="camera", variant=None, say=lambda _line: None, open_stages=note)
    assert tuning.open_variant("int8.8x8").variant == "int8.8x8"
    assert tuning.open().variant == "fp32"
    assert tuning.open_variant("int8.8x8").variant == "int8.8x8"
    threads = [c.intra_op_num_threads for c in tried]
    assert threads == [1, found.chosen.candidate.intra_op_num_threads, found.chosen.candidate.intra_op_num_threads]


def test_another_rate_is_tuned_anew_and_a_damaged_record_too(
    bundle: Path, tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _tune(bundle, capsys)
    slower = write_video(tmp_path / "v.avi", range(100), fps=50)
    command = ["run", str(bundle), "--source", str(slower), "--frames", "3", "--latency-ms", "1000"]
    assert run(command) == 0
    error = capsys.readouterr().err
    why = " again, because other programs took" if found.provisional else ", and not 100: what runs best is measured"
    assert f"tuning for 50 frames a second{why}" in error
    [record] = state.iterdir()
    record.write_bytes(b"{}")
    assert run(command) == 0
    error = capsys.readouterr().err
    assert f"tuning anew: {record} is of another version of edge-sdk" in error
    assert "tuned at" not in error
    assert "tuning was not finished: nothing is remembered" in error


def test_images_are_not_tuned_on_nor_run_by_what_was_tuned(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _tune(bundle, capsys)
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((16, 16, 3), np.uint8))
    assert run(["run", str(bundle), "--source", str(tmp_path / "one.png"), "--latency-ms", "1000"]) == 0
    error = capsys.readouterr().err
    assert "stopped by end of source; 1 results" in error
    assert "tuned at" not in error
    assert "tuning for" not in error


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        (["--source", "IMAGE"], 2, "images have no pace to tune at"),
        (["--source", "VIDEO"], 1, "the source ended before tuning did; give a longer one, or fewer --seconds"),
        (["--source", "VIDEO", "--fps", "5"], 2, "--fps is of the pictures that come without --source"),
        (["--variant", "none"], 2, "has no variant 'none'"),
        (["--camera", "a/b"], 2, "camera"),
        (["--fps", "nan"], 2, "--fps"),
        (["--cpu-share", "0"], 2, "--cpu-share"),
        (["--seconds", "-1"], 2, "--seconds"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    code: int,
    expected: str,
) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((16, 16, 3), np.uint8))
    places = {"IMAGE": str(tmp_path / "one.png"), "VIDEO": str(write_video(tmp_path / "v.avi", range(10), fps=FPS))}
    assert run(["tune", str(bundle), *(places.get(flag, flag) for flag in flags)]) == code
    captured = capsys.readouterr()
    assert not captured.out
    assert expected in captured.err.splitlines()[-1]
    assert "Traceback" not in captured.err


def test_inspect_shows_what_is_remembered(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(bundle)]) == 0
    assert "tuned " not in capsys.readouterr().out
    tuned = _tune(bundle, capsys, "--camera", "gate")
    assert run(["inspect", str(bundle)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tuned ")]
    assert line.startswith(f"tuned       camera gate, {FPS} frames a second, 1000 ms: fp32, 1 thread (p99 ")
    assert run(["inspect", str(bundle), "--json"]) == 0
    [record] = msgspec.json.decode(capsys.readouterr().out)["tuned"]
    assert msgspec.convert(record["tuned"], Tuned) == tuned
