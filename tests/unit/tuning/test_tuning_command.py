"""`edge-sdk tune`, `edge-sdk run` with what it found, and `edge-sdk bench` with settings, on a tiny bundle."""

from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.tuning.candidates import Limits, Tuned
from edge_sdk.tuning.tuning import Records, Request, TunedMachine
from tests.support.bundles import write_variants
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
    """With real sessions in real time."""
    assert "tuned " not in cli(0, "inspect", bundle).out
    options = ["--seconds", "1.5", "--latency-ms", "1000", "--fps", str(FPS), "--camera", "gate", "--json"]
    captured = cli(0, "tune", bundle, *options)
    assert not captured.err
    tuned = msgspec.json.decode(captured.out, type=Tuned)
    assert tuned.chosen.candidate.variant == "fp32"
    assert tuned.meets_budget
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
    lines = cli(0, "tune", bundle, "--fps", FPS).out.splitlines()
    assert lines.pop(1).endswith(f"ONNX Runtime {TunedMachine.here().onnxruntime}")
    assert lines == [
        "tiny 1 at 100 frames a second",
        "budget 1000 ms, CPU at most 100 % of a core; quality is agreement with FP32",
        "",
        "                    p50 ms   p99 ms    CPU   quality",
        "int8, 1 thread       10.00    12.50   30 %    95.0 %  promised",
        "fp32, 2 threads      40.00    50.00   60 %   100.0 %  chosen",
        "",
        "before  int8, 1 thread: p99 12.5 ms, 30 % of a core",
        "after   fp32, 2 threads: p99 50 ms, 60 % of a core",
        "why     the highest quality of those that keep 1000 ms and a CPU share of 1",
        "next    `edge-sdk run --camera camera` starts with it, at about 100 frames a second",
    ]


def test_a_budget_that_nothing_keeps_is_exit_code_4_and_what_is_not_remembered_is_said(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    why = "a budget of 1 ms cannot be kept"
    late = msgspec.structs.replace(TUNED, meets_budget=False, reason=why, others=0.9, provisional=True)
    _comes_to(monkeypatch, late, "STATE cannot be written")
    captured = cli(4, "tune", bundle, "--fps", FPS)
    assert "\nafter " in captured.out
    assert "\nnext " not in captured.out
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
    assert f"tuning anew: {record} is of another version of edge-sdk" in error
    assert "tuned at" not in error
    assert "tuning was not finished: nothing is remembered" in error


def test_images_are_neither_tuned_on_nor_run_as_tuned(bundle: Path, record: Path, tmp_path: Path, cli: Cli) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((16, 16, 3), np.uint8))
    error = cli(0, "run", bundle, "--source", tmp_path / "one.png", "--latency-ms", "1000").err
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
        (["--fps", "0"], 2, "--fps"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    bundle: Path, tmp_path: Path, cli: Cli, flags: list[str], code: int, expected: str
) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((16, 16, 3), np.uint8))
    places = {"IMAGE": str(tmp_path / "one.png"), "VIDEO": str(write_video(tmp_path / "v.avi", range(10), fps=FPS))}
    captured = cli(code, "tune", bundle, *(places.get(flag, flag) for flag in flags))
    assert not captured.out
    assert expected in captured.err.splitlines()[-1]
    assert "Traceback" not in captured.err


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
