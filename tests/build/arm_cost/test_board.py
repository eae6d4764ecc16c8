"""The board that is not here: an estimate in the bundle and the report, a gate that only fails what is clear."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk.bundle.target import load_target
from edge_sdk.cli.root import run
from edge_sdk.core.errors import EdgeError, LatencyGateError, ModelError
from edge_sdk_tools.arm_cost import estimate
from edge_sdk_tools.arm_cost.counter import Counter, Counts, board_outputs
from edge_sdk_tools.arm_cost.instructions import CLASSES
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.variants import Request
from edge_sdk_tools.prove import golden
from tests.support import models as tiny
from tests.support.projects import write_project
from tests.support.reports import from_json


class _Fixed:
    """A counter that always counts the same: the real one is tested where an emulator is."""

    def __init__(self, million: float, fault: EdgeError | None = None, *, fp32_times: float = 3) -> None:
        self.million, self.fault, self.fp32_times = million, fault, fp32_times
        self.environment = dict(os.environ)
        self.key = "fixed"

    def board_python(self, _cpu: str) -> list[str]:
        """This machine's own stands for the board's."""
        return [sys.executable]

    def count(self, model: Path, cpu: str, *, time_limit_s: float) -> Counts:
        if self.fault is not None:
            raise self.fault
        assert time_limit_s > 0
        total = round(self.million * (1 if model.suffix == ".ort" else self.fp32_times) * 1e6)
        return Counts(model.name, cpu, "1.31.1", total, {**dict.fromkeys(CLASSES, 0), "sdot": total})


def _use(monkeypatch: pytest.MonkeyPatch, counter: _Fixed) -> None:
    monkeypatch.setattr(estimate, "find_counter", lambda: cast("Counter", counter))


def test_an_estimate_is_promised_reported_and_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _use(monkeypatch, _Fixed(60))
    model, bundle = write_project(tmp_path), tmp_path / "a.edge"
    assert run(["build", str(model), "--target", "raspberry_pi_5", "-o", str(bundle)]) == 0
    assert "estimate for cortex-a76, one thread: 60 million instructions, " in capsys.readouterr().out
    promised = Bundle.open(bundle).manifest.variants[0].estimate
    assert promised.million_instructions == 60
    assert promised.low_ms == pytest.approx(promised.latency_ms / 1.35)
    assert promised.high_ms == pytest.approx(promised.latency_ms * 1.35)
    ledger = from_json((bundle / "report.json").read_bytes())
    assert ledger.boards == (promised,)
    arm = ledger.steps[-1]
    assert (arm.kind, arm.what, arm.left_out) == ("arm", "the same file on an emulated cortex-a76", "")
    assert (arm.outputs.against, arm.outputs.images, arm.outputs.identical) == ("ort", 3, True)
    assert "not a bit of its outputs differs, on 3 images" in (bundle / "report.html").read_text()


def test_the_board_s_counts_decide_whether_int8_gains_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This machine says that INT8 is twice as fast; the board says that it takes 1.25 times as long."""
    monkeypatch.setattr(golden, "interleaved_latency_ms", lambda *_: [10.0, 20.0])
    _use(monkeypatch, _Fixed(60, fp32_times=0.8))
    model, bundle = write_project(tmp_path), tmp_path / "a.edge"
    assert run(["build", str(model), "--target", "raspberry_pi_5", "-o", str(bundle)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "THE BUNDLE CARRIES FP32" in out
    assert "FP32 11.8 ms on one thread of cortex-a76, by counted instructions: it gains nothing" in out


@pytest.mark.parametrize(
    ("target", "int8_ms", "carried"), [("raspberry_pi_5", 13.0, "int8"), ("raspberry_pi_5", 16.0, "fp32")]
)
def test_a_time_here_says_less_of_another_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, int8_ms: float, carried: str
) -> None:
    monkeypatch.setattr(golden, "interleaved_latency_ms", lambda *_: [int8_ms, 10.0])
    assert build(write_project(tmp_path), target, tmp_path / "a.edge").precision == carried


def test_without_a_counter_nothing_is_estimated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, bundle = write_project(tmp_path), tmp_path / "a.edge"
    assert run(["build", str(model), "--target", "raspberry_pi_5", "-o", str(bundle)]) == 0
    assert "estimate" not in capsys.readouterr().out
    assert Bundle.open(bundle).manifest.variants[0].estimate is None
    ledger = from_json((bundle / "report.json").read_bytes())
    assert (ledger.boards, ledger.steps[-1].kind, ledger.steps[-1].outputs) == ((), "arm", None)
    assert ledger.steps[-1].left_out == "not run: `edge-sdk arm-cost setup` installs an emulator"


def test_a_budget_that_the_board_clearly_cannot_keep_fails_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _use(monkeypatch, _Fixed(100_000))
    model, bundle = write_project(tmp_path), tmp_path / "a.edge"
    assert run(["build", str(model), "--target", "raspberry_pi_4", "-o", str(bundle)]) == 4
    said = capsys.readouterr().err.splitlines()[-1]
    assert "one inference takes an estimated" in said
    assert "raise [budget] latency_ms" in said
    assert not bundle.exists()


def test_what_all_threads_and_the_worst_error_might_save_is_no_failure() -> None:
    target = load_target("raspberry_pi_5")
    assert target.intra_op_num_threads == 2
    estimate.check_latency(None, target, 100)
    estimate.check_latency(BoardEstimate("cortex-a76", 900.0, 270, 200, 365), target, 100)
    with pytest.raises(LatencyGateError, match="so 2 threads cannot keep the budget of 100 ms"):
        estimate.check_latency(BoardEstimate("cortex-a76", 900.0, 271, 201, 366), target, 100)


def test_an_emulator_that_fails_says_nothing_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_project(tmp_path)
    _use(monkeypatch, _Fixed(1, EdgeError("the emulator died")))
    assert run(["build", str(model), "--target", "raspberry_pi_5", "-o", str(tmp_path / "a.edge")]) == 0
    _use(monkeypatch, _Fixed(1, ModelError("ONNX Runtime on an emulated cortex-a76 cannot run it")))
    assert run(["build", str(model), "--target", "raspberry_pi_5", "-o", str(tmp_path / "b.edge")]) == 2


@pytest.mark.parametrize("target", ["x86_64", "raspberry_pi_zero_2w"])
def test_cores_that_nobody_can_count_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    _use(monkeypatch, _Fixed(1))
    for name in (target, "arm64", "jetson_orin_nano"):
        assert estimate.board_counter(load_target(name), tiny.classifier()) is None
    assert build(write_project(tmp_path), target, tmp_path / "a.edge").boards == ()
    steps = from_json((tmp_path / "a.edge" / "report.json").read_bytes()).steps
    left_out = [step.left_out for step in steps if step.kind == "arm"]
    assert [said.startswith("not run: nothing here emulates ") for said in left_out] == [True] * (target != "x86_64")


class _BySize(_Fixed):
    """A counter for which other sizes than the first cost far more."""

    def count(self, model: Path, cpu: str, *, time_limit_s: float) -> Counts:
        self.million = 100_000 if "32x32" in str(model) else 60
        return super().count(model, cpu, time_limit_s=time_limit_s)


def test_a_further_model_over_the_budget_is_left_out_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_project(tmp_path)
    _use(monkeypatch, _Fixed(60))
    build(model, "raspberry_pi_4", tmp_path / "a.edge", variants=Request(sizes=((32, 32),)))
    estimates = [v.estimate for v in Bundle.open(tmp_path / "a.edge").manifest.variants]
    assert [e.million_instructions for e in estimates if e] == [60, 60]
    _use(monkeypatch, _BySize(60))
    report = build(model, "raspberry_pi_4", tmp_path / "b.edge", variants=Request(sizes=((32, 32),)))
    assert [v.name for v in Bundle.open(tmp_path / "b.edge").manifest.variants] == ["int8"]
    assert report.variants[1].problem is not None
    assert "cannot keep the budget" in report.variants[1].problem


@pytest.mark.parametrize("relative", [False, True])
def test_outputs_of_a_board_are_those_of_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", "." if relative else str(tmp_path))
    onnx.save(tiny.classifier(), "model.onnx")
    tensors = [np.full((1, 3, 16, 16), value, np.float32) for value in (0.1, 0.5, 0.9)]
    session = ort.InferenceSession("model.onnx")
    counter = cast("Counter", _Fixed(1))
    with board_outputs(counter, Path("model.onnx"), "cortex-a76", tensors, 60) as finish:
        outputs = finish()
    for (got,), tensor in zip(outputs, tensors, strict=True):
        np.testing.assert_array_equal(got, session.run(None, {"images": tensor})[0])
    with board_outputs(counter, Path("model.onnx"), "cortex-a76", tensors, 0) as finish:
        assert len(finish()) == 1
    Path("junk.onnx").write_bytes(b"junk")
    with (
        board_outputs(counter, Path("junk.onnx"), "cortex-a76", tensors, 60) as finish,
        pytest.raises(EdgeError, match="the emulated cortex-a76 ended with 3: ") as caught,
    ):
        finish()
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junk.onnx", "model.onnx"]
