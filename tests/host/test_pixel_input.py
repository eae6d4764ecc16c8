"""Levels or floats: the race's rules, and builds of every task whose models take levels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from edge_sdk.bench import bench
from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.frame import Frame
from edge_sdk.manifest import InputTensor
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session
from edge_sdk_tools.build import BuildReport, build
from edge_sdk_tools.evaluate import evaluate
from edge_sdk_tools.pixel_input import Way, judged
from edge_sdk_tools.pixel_input.kernels import KernelClock, KernelRun
from tests.device import tiny
from tests.host.images import picture, write_pictures
from tests.host.projects import CLASSIFIER, DETECTOR, write_project
from tests.host.test_evaluate_segmentation import SEGMENTER

SIDE = 128  # large enough that an operator and a pass over the picture cannot hide in noise
_WIDE = 33
LEVELS = InputTensor("uint8", "NHWC", "BGR")


def _run(ms: float, **counts: int) -> KernelRun:
    return KernelRun(Counter(counts), dict.fromkeys(counts, ms))


def _rounds(floats_ms: list[float], levels_ms: list[float]) -> np.ndarray:
    """Preparation as given, a run of 50 ms."""
    return np.array([[[a, 50.0], [b, 50.0]] for a, b in zip(floats_ms, levels_ms, strict=True)])


@pytest.mark.parametrize(
    ("levels_ms", "saved_ms", "clear"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], 1.5, True),
        ([1.0, 1.0, 1.0, 1.0, 9.0], 1.5, True),  # one round was disturbed
        ([1.0, 1.0, 1.0, 9.0, 9.0], 1.5, False),
        ([2.0, 3.0, 2.6, 2.4, 2.5], 0.0, False),
        ([3.0, 3.0, 3.0, 3.0, 3.0], -0.5, False),
    ],
)
def test_levels_win_where_three_rounds_of_four_are_faster(levels_ms: list[float], saved_ms: float, clear: bool) -> None:
    floats = [_run(0.5, QuantizeLinear=1, QLinearConv=3)] * 5
    levels = [_run(0.5, QLinearConv=3)] * 5
    found = judged(_rounds([2.0] * 5, levels_ms), floats, levels)
    assert (found.saved_ms, found.clear, found.more, found.rounds) == (saved_ms, clear, (), 5)
    assert found.floats == Way(2.0, 0.5, 50.0)
    assert found.levels.kernels_ms == 0


def test_operators_that_both_run_are_left_out_and_new_ones_named() -> None:
    floats = [_run(7.0, QuantizeLinear=1, Transpose=2, QLinearConv=3)] * 5
    levels = [_run(4.0, Cast=1, Transpose=1, QLinearConv=3)] * 5
    found = judged(_rounds([2.0] * 5, [2.0] * 5), floats, levels)
    assert (found.floats.kernels_ms, found.levels.kernels_ms, found.saved_ms) == (14.0, 8.0, 6.0)
    assert found.more == ("Cast",)


def test_kernels_are_those_of_each_run(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(tiny.classifier(), path)
    clock = KernelClock(path, tmp_path)
    for _ in range(3):
        clock.run(np.zeros((1, 3, 16, 16), np.float32))
    runs = clock.stop()
    assert len(runs) == 3
    assert {tuple(sorted(found.counts.items())) for found in runs} == {tuple(sorted(runs[0].counts.items()))}
    assert runs[0].counts["Softmax"] == 1
    assert all(found.ms.keys() == found.counts.keys() for found in runs)
    assert list(tmp_path.iterdir()) == [path]


def _with_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model behind convolutions that change nothing, with so much work that integers are faster."""
    spread = np.zeros((_WIDE, 3, 3, 3), np.float32)
    same = np.zeros((_WIDE, _WIDE, 3, 3), np.float32)
    gather = np.zeros((3, _WIDE, 1, 1), np.float32)
    channels = np.arange(_WIDE)
    spread[channels, channels % 3, 1, 1] = same[channels, channels, 1, 1] = 1
    gather[channels % 3, channels] = 3 / _WIDE
    weights = {"spread": spread, "same": same, "gather": gather}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    model.graph.node[0].input[0] = "through"
    for index, (name, read, made, pad) in enumerate(
        [("spread", "images", "wide", 1), ("same", "wide", "wide_too", 1), ("gather", "wide_too", "through", 0)]
    ):
        node = helper.make_node("Conv", [read, name], [made], name=f"{name}_conv", pads=[pad] * 4)
        model.graph.node.insert(index, node)
    return model


def _project(folder: Path, task: str) -> Path:
    if task == "classification":
        return write_project(
            folder, CLASSIFIER.replace("[16, 16]", f"[{SIDE}, {SIDE}]"), _with_layers(tiny.classifier(size=SIDE))
        )
    if task == "detection":
        text = DETECTOR.replace("[64, 64]", f"[{SIDE}, {SIDE}]")
        return write_project(folder, text, _with_layers(tiny.head_detector(SIDE)), labels="red\nblue\n")
    text = SEGMENTER.replace("[32, 32]", f"[{SIDE}, {SIDE}]")
    return write_project(folder, text, _with_layers(tiny.segmenter(SIDE)), labels="background\nred\nblue\n")


@pytest.mark.parametrize("task", ["classification", "detection", "segmentation"])
def test_a_build_of_every_task_takes_levels(tmp_path: Path, task: str) -> None:
    model, output = _project(tmp_path / "p", task), tmp_path / "a.edge"
    report = build(model, "x86_64", output, evaluation=[write_pictures(tmp_path / "e", 6, first=50)])
    assert report.precision == "int8", report.fallback_reason
    assert (report.input.dtype, report.input.layout, report.input.color) == ("uint8", "NHWC", "BGR")
    assert report.input.saved_ms is not None
    assert report.input.saved_ms > 0
    bundle = Bundle.open(output)
    manifest = bundle.manifest
    assert manifest.variants[0].tensor == LEVELS
    assert manifest.input.color == "RGB"
    assert str(manifest.provenance.recipe["input"]).startswith("uint8 NHWC BGR: the first QuantizeLinear gave")
    session, prepare = Session.open(bundle), Prepare.of(manifest)
    assert session.replay_golden(bundle, prepare) == 0
    assert session(prepare(Frame(picture(3), 0, 0.0, 0, "c"))).prepared.tensor.dtype == np.uint8
    # What calibrated is measured nowhere; the others give the figure that the build gave for the float input.
    found = evaluate(output, tmp_path / "e", reference=model)
    assert found.agreement[0].value.value == pytest.approx(report.agreement.value)
    assert bench(bundle, rounds=2).rounds == 2
    assert "takes uint8 NHWC BGR" in (output / "report.html").read_text()


def test_a_mean_decides_what_a_bundle_takes(tmp_path: Path) -> None:
    text = CLASSIFIER.replace("[16, 16]", f"[{SIDE}, {SIDE}]")
    reports: list[BuildReport] = []
    for name, mean in (("a", 0.0), ("b", 0.5)):
        changed = text.replace("std = ", f"mean = [{mean}, {mean}, {mean}]\nstd = ")
        model = write_project(tmp_path / name, changed, _with_layers(tiny.classifier(size=SIDE)))
        reports.append(build(model, "x86_64", tmp_path / f"{name}.edge"))
    assert [report.input.dtype for report in reports] == ["uint8", "float32"]
    assert reports[1].input.line == "input.mean is 0.5, and a zero point is a whole number of 0-255"
    assert Bundle.open(tmp_path / "b.edge").manifest.variants[0].tensor is None


def test_the_command_says_what_the_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CLASSIFIER.replace("std = ", "mean = [127.5, 127.5, 127.5]\nstd = ")
    model = write_project(tmp_path, text)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge")]
    assert run(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "takes float32 NCHW RGB: input.mean is 127.5, and a zero point is a whole number of 0-255" in printed
    assert run([*command, "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["input"]["dtype"] == "float32"
