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
from edge_sdk.model_spec import load_model_spec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session
from edge_sdk.target import load_target
from edge_sdk_tools.build import build
from edge_sdk_tools.convert import convert
from edge_sdk_tools.dataset import find_images
from edge_sdk_tools.evaluate import evaluate
from edge_sdk_tools.host_cpu import host_saturates
from edge_sdk_tools.pixel_input import Way, choose_input, judged
from edge_sdk_tools.pixel_input.kernels import KernelClock, KernelRun
from edge_sdk_tools.quantize import first_recipe, quantize, simplify, watch_activations
from edge_sdk_tools.search import Choice
from tests.device import tiny
from tests.host.images import picture, write_pictures
from tests.host.projects import CLASSIFIER, DETECTOR, write_project
from tests.host.proofs import flawless_proof
from tests.host.test_evaluate_segmentation import SEGMENTER

SIDE = 128  # large enough that an operator and a pass over the picture cannot hide in noise
_WIDE = 33
_ATTEMPTS = 3  # a machine busy enough hides any gain, and then floats stay


def _run(ms: float, **counts: int) -> KernelRun:
    return KernelRun(Counter(counts), dict.fromkeys(counts, ms))


@pytest.mark.parametrize(
    ("levels_ms", "saved_ms", "clear"),
    [
        ([1.0] * 20, 1.5, True),
        ([1.0] * 15 + [9.0] * 5, 1.5, True),  # every fourth frame was disturbed
        ([1.0] * 11 + [9.0] * 9, 1.5, False),
        ([2.4, 2.6] * 10, 0.0, False),
        ([3.0] * 20, -0.5, False),
    ],
)
def test_levels_win_where_noise_cannot_have_made_the_gain(levels_ms: list[float], saved_ms: float, clear: bool) -> None:
    floats = [_run(0.5, QuantizeLinear=1, QLinearConv=3)] * 3
    levels = [_run(0.5, QLinearConv=3)] * 3
    found = judged(np.array([[2.0, ms] for ms in levels_ms]), np.full((3, 2), 50.0), floats, levels)
    assert (found.saved_ms, found.clear, found.more, found.rounds) == (saved_ms, clear, (), 3)
    assert found.floats == Way(2.0, 0.5, 50.0)
    assert found.levels.kernels_ms == 0


def test_operators_that_both_run_are_left_out_and_new_ones_named() -> None:
    floats = [_run(7.0, QuantizeLinear=1, Transpose=2, QLinearConv=3)] * 3
    levels = [_run(4.0, Cast=1, Transpose=1, QLinearConv=3)] * 3
    found = judged(np.full((5, 2), 2.0), np.full((3, 2), 50.0), floats, levels)
    assert (found.floats.kernels_ms, found.levels.kernels_ms, found.saved_ms) == (14.0, 8.0, 6.0)
    assert found.more == ("Cast",)


def test_a_convolution_of_other_channels_is_another_kernel_and_no_other_operator() -> None:
    three = [KernelRun(Counter({"QLinearConv 3": 1, "QLinearConv 8": 5}), {"QLinearConv 3": 4.0, "QLinearConv 8": 9.0})]
    four = [KernelRun(Counter({"QLinearConv 4": 1, "QLinearConv 8": 5}), {"QLinearConv 4": 1.5, "QLinearConv 8": 8.0})]
    found = judged(np.full((5, 2), 2.0), np.full((5, 2), 50.0), three * 5, four * 5)
    assert (found.floats.kernels_ms, found.levels.kernels_ms, found.saved_ms) == (4.0, 1.5, 2.5)
    assert (found.clear, found.more) == (True, ())


def test_kernels_are_those_of_each_run(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(tiny.classifier(), path)
    clock = KernelClock(path, tmp_path)
    for _ in range(3):
        clock.run(np.zeros((1, 3, 16, 16), np.float32))
    runs = clock.stop()
    assert len(runs) == 3
    assert {tuple(sorted(found.counts.items())) for found in runs} == {tuple(sorted(runs[0].counts.items()))}
    assert runs[0].operators["Softmax"] == 1
    assert any("[1,3,16,16]" in name for name in runs[0].counts)
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
    write_pictures(tmp_path / "e", 6, first=50)
    for _ in range(_ATTEMPTS):
        report = build(model, "x86_64", output, evaluation=[tmp_path / "e"])
        if report.input.dtype == "uint8":
            break
    assert report.precision == "int8", report.fallback_reason
    assert (report.input.dtype, report.input.layout) == ("uint8", "NHWC")
    assert report.input.color in ("BGR", "RGBA")  # which is faster depends on the machine
    assert report.input.saved_ms is not None
    assert report.input.saved_ms > 0
    taken = f"uint8 NHWC {report.input.color}"
    bundle = Bundle.open(output)
    manifest = bundle.manifest
    assert manifest.variants[0].tensor == InputTensor("uint8", "NHWC", report.input.color)
    assert manifest.input.color == "RGB"
    assert str(manifest.provenance.recipe["input"]).startswith(f"{taken}: the first QuantizeLinear gave")
    session, prepare = Session.open(bundle), Prepare.of(manifest)
    assert session.replay_golden(bundle, prepare) == 0
    assert session(prepare(Frame(picture(3), 0, 0.0, 0, "c"))).prepared.tensor.dtype == np.uint8
    # What calibrated is measured nowhere; the others give the figure that the build gave for the float input.
    found = evaluate(output, tmp_path / "e", reference=model)
    assert found.agreement[0].value.value == pytest.approx(report.agreement.value)
    assert bench(bundle, rounds=2).rounds == 2
    assert f"takes {taken}" in (output / "report.html").read_text()


def test_a_normalisation_without_a_zero_point_is_looked_up(tmp_path: Path) -> None:
    text = CLASSIFIER.replace("[16, 16]", f"[{SIDE}, {SIDE}]").replace("std = ", "mean = [0.5, 9.25, 127.5]\nstd = ")
    model = write_project(tmp_path / "p", text, _with_layers(tiny.classifier(size=SIDE)))
    for _ in range(_ATTEMPTS):
        report = build(model, "x86_64", tmp_path / "a.edge")
        if report.input.dtype == "uint8":
            break
    assert report.precision == "int8", report.fallback_reason
    assert (report.input.dtype, report.input.layout) == ("uint8", "NHWC")
    assert report.input.line.startswith("the device makes the integers; ")
    bundle = Bundle.open(tmp_path / "a.edge")
    tensor = bundle.manifest.variants[0].tensor
    assert tensor is not None
    assert tensor.scale is not None
    assert Session.open(bundle).replay_golden(bundle, Prepare.of(bundle.manifest)) == 0


@pytest.mark.parametrize("target_name", ["x86_64", "arm64"])
def test_a_model_whose_outputs_would_differ_stays_as_it_is(tmp_path: Path, target_name: str) -> None:
    """The file that was proved came of other weights than the ONNX model that would take integers."""
    model = write_project(tmp_path / "p")
    spec, target = load_model_spec(model), load_target(target_name)
    images = find_images([tmp_path / "p" / "pictures"])
    quantized, converted = [], []
    for name, scale in (("a", 1.0), ("b", 1.5)):
        proto = tiny.classifier()
        first = proto.graph.initializer[0]
        first.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(first) * np.float32(scale), first.name))
        folder = tmp_path / name
        folder.mkdir()
        simplified = simplify(proto, folder)
        activations = watch_activations(simplified, images, spec.input, symmetric=False)
        recipe = first_recipe(target, reduce_range=host_saturates())
        quantized.append(
            quantize(simplified, activations.ranges(recipe.calibration), recipe, folder / "int8.onnx").path
        )
        converted.append(convert(quantized[-1], target, folder))
    proof = flawless_proof(images)
    choice = Choice("int8", quantized[0], converted[1], proof)
    unchanged, trial = choose_input(choice, spec.input, target, tmp_path)
    assert unchanged is choice
    assert (trial.dtype, trial.line) == ("float32", "integers give other results on image 0 of 2")
    # ARM cores pay for a fourth channel: it is not even tried there.
    assert (tmp_path / "four").exists() == (target_name == "x86_64")


def test_the_command_says_what_the_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "a.edge"
    command = ["build", str(write_project(tmp_path)), "--target", "x86_64", "-o", str(output)]
    assert run(command) == 0
    printed = "".join(capsys.readouterr().out.split())
    said = str(Bundle.open(output).manifest.provenance.recipe["input"])
    assert said.startswith(("float32 NCHW RGB: ", "uint8 NHWC "))
    assert f"takes{''.join(said.split())}" in printed
    assert run([*command, "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)["input"]
    tensor = Bundle.open(output).manifest.variants[0].tensor
    assert found["dtype"] == ("float32" if tensor is None else tensor.dtype)
