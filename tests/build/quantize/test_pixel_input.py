"""Models that take uint8 levels: the same outputs to the last bit or a reason in words, and the race against floats."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from edge_sdk.bench import bench
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import InputTensor
from edge_sdk.bundle.model_spec import InputSpec, load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.core.frame import Frame
from edge_sdk.inference.prepare import Prepare, integer_tables
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.evaluate.evaluation import evaluate
from edge_sdk_tools.graph.profile import ProfiledSession, host_saturates
from edge_sdk_tools.quantize.calibration import pixel_range, watch_activations
from edge_sdk_tools.quantize.convert import convert
from edge_sdk_tools.quantize.forms import LevelGraph, core_form, in_blocks, level_graphs, with_fourth_channel
from edge_sdk_tools.quantize.quantize import first_recipe, quantize
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.search.shipped_form import KernelRun, Way, choose_input, judged, kernel_runs, level_model
from tests.support import models as tiny
from tests.support.projects import DETECTOR, SEGMENTER, picture, write_pictures, write_project
from tests.support.reports import flawless_proof, model_variant

SIDE = 24
SPEC = InputSpec(size_wh=(SIDE, SIDE), std=(255.0,) * 3)
CENTRED = msgspec.structs.replace(SPEC, mean=(127.0,) * 3, std=(128.0,) * 3)


def _quantized(
    folder: Path, model: onnx.ModelProto, spec: InputSpec, *, known: bool = True, **changes: Any
) -> onnx.ModelProto:
    """Quantized as a build does it; without `known` the pictures alone tell the input's range."""
    folder.mkdir(exist_ok=True)
    recipe = first_recipe(load_target("x86_64"), reduce_range=host_saturates())
    recipe = msgspec.structs.replace(recipe, **changes)
    simplified = simplify(model, folder)
    images = find_images([write_pictures(folder / "pictures", 6)])
    activations = watch_activations(simplified, images, spec, symmetric=recipe.is_symmetric)
    if not known:
        activations = msgspec.structs.replace(activations, known={})
    return onnx.load(quantize(simplified, activations.ranges(recipe.calibration), recipe, folder / "int8.onnx").path)


def _graphs(proto: onnx.ModelProto, spec: InputSpec) -> list[LevelGraph]:
    found = level_graphs(proto, spec)
    assert not isinstance(found, str), found
    return found


def _outputs(model: bytes, prepare: Prepare) -> list[bytes]:
    session = Session(model, SessionSettings(), "m")
    pictures = [picture(index, width=50, height=31) for index in range(4)]
    noise = np.random.default_rng(0).integers(0, 256, (31, 50, 3), np.uint8)
    return [
        output.tobytes()
        for image in (*pictures, noise)
        for output in session.run(prepare(Frame(image, 0, 0.0, 0, "c")).tensor)
    ]


def _in_nhwc(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model as TensorFlow would export it."""
    model.graph.node[0].input[0] = "planes"
    model.graph.node.insert(0, helper.make_node("Transpose", ["images"], ["planes"], name="t", perm=[0, 3, 1, 2]))
    image = helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, [1, SIDE, SIDE, 3])
    model.graph.input[0].CopyFrom(image)
    return model


def _convolution(channels: int, group: int) -> onnx.ModelProto:
    weights = np.random.default_rng(3).normal(0, 0.5, (6, channels // group, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["images", "w"], ["c"], name="first", group=group, pads=[1] * 4)
    last = helper.make_node("GlobalAveragePool", ["c"], ["out"], name="last")
    return tiny.model([node, last], [1, channels, SIDE, SIDE], {"out": [1, 6, 1, 1]}, {"w": weights})


@pytest.mark.parametrize(
    ("model", "spec", "expected"),
    [
        (tiny.classifier(size=SIDE), SPEC, ["NHWC BGR", "NCHW RGB"]),
        (tiny.classifier(size=SIDE), msgspec.structs.replace(CENTRED, color="BGR"), ["NHWC BGR", "NCHW BGR"]),
        (_in_nhwc(tiny.classifier(size=SIDE)), msgspec.structs.replace(SPEC, layout="NHWC"), ["NHWC BGR", "NCHW RGB"]),
        (_convolution(3, group=3), CENTRED, ["NHWC RGB", "NCHW RGB"]),
        (_convolution(1, group=1), msgspec.structs.replace(CENTRED, color="GRAY"), ["NCHW GRAY"]),
    ],
    ids=["zero mean", "BGR and a mean", "NHWC", "depthwise", "gray"],
)
def test_levels_are_exact(tmp_path: Path, model: onnx.ModelProto, spec: InputSpec, expected: list[str]) -> None:
    """With the letterbox's padding and the convolution's own, before conversion and after it, for both machines."""
    proto = _quantized(tmp_path / "q", model, spec)
    graphs = _graphs(proto, spec)
    assert [f"{graph.tensor.layout} {graph.tensor.color}" for graph in graphs] == expected
    floats = _outputs(proto.SerializeToString(), Prepare(spec))
    assert len(set(floats)) == len(floats)  # every picture has another result
    four = with_fourth_channel(proto, spec, graphs[0].tensor)
    assert (four is not None) == ("BGR" in expected[0])  # as soon as convolutions of all channels alone read the input
    assert four is None or four.tensor.color == spec.color + "A"
    blocks = in_blocks(graphs[0])
    assert (blocks is not None) == (four is not None)
    for number, graph in enumerate([*graphs, *(one for one in (four, blocks) if one)]):
        onnx.checker.check_model(graph.proto, full_check=True)
        for target in ("x86_64", "arm64"):
            converted = level_model(graph, load_target(target), tmp_path / f"{number}_{target}").converted
            prepare = Prepare(spec, graph.tensor)
            assert _outputs(graph.proto.SerializeToString(), prepare) == floats
            assert _outputs(converted.model.read_bytes(), prepare) == floats


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        (tiny.classifier(size=SIDE), SPEC),
        (tiny.classifier(size=SIDE), CENTRED),
        (_convolution(1, group=1), msgspec.structs.replace(CENTRED, color="GRAY")),
    ],
    ids=["levels", "a mean", "gray"],
)
def test_a_graph_of_signed_integers_takes_them_too(tmp_path: Path, model: onnx.ModelProto, spec: InputSpec) -> None:
    signed = core_form(_quantized(tmp_path / "q", model, spec), "cortex-a76")
    assert signed is not None
    path = tmp_path / "signed.onnx"
    onnx.save(signed, path)
    target = load_target("raspberry_pi_5")
    floats = _outputs(convert(path, target, tmp_path).model.read_bytes(), Prepare(spec))
    for number, graph in enumerate(_graphs(signed, spec)):
        model = level_model(graph, target, tmp_path / str(number)).converted.model.read_bytes()
        assert graph.tensor.dtype == Session(model, SessionSettings(), "signed").input_dtype.name == "int8"
        assert _outputs(model, Prepare(spec, graph.tensor)) == floats


@pytest.mark.parametrize(("shared", "changes", "color"), [(False, {"per_channel": False}, "BGR"), (True, {}, "RGB")])
def test_colours_swap_unless_weights_are_shared(tmp_path: Path, shared: bool, changes: Any, color: str) -> None:
    model = tiny.classifier(size=SIDE)
    if shared:
        first = "c = Conv<group=1, pads=[1,1,1,1]>(images, w)"  # written otherwise, or the two would become one
        text = f"{first} d = Conv<pads=[1,1,1,1]>(images, w) e = Relu(d) f = Add(c, e)"
        weights = {"w": np.random.default_rng(3).normal(0, 0.5, (6, 3, 3, 3)).astype(np.float32)}
        outputs = {"out": [1, 6, 1, 1]}
        model = tiny.parsed(f"{text} out = GlobalAveragePool(f)", outputs, weights, shape=[1, 3, SIDE, SIDE])
    proto = _quantized(tmp_path / "q", model, SPEC, **changes)
    graph = _graphs(proto, SPEC)[0]
    assert graph.tensor.color == color
    prepare = Prepare(SPEC, graph.tensor)
    assert _outputs(graph.proto.SerializeToString(), prepare) == _outputs(proto.SerializeToString(), Prepare(SPEC))


def test_integers_that_are_no_levels_are_made_on_the_device(tmp_path: Path) -> None:
    for mean, std, expected in (
        ((127.5,) * 3, (127.5,) * 3, "input.mean is 127.5, and a zero point is a whole number of 0-255"),
        ((256.0,) * 3, (128.0,) * 3, "input.mean is 256, and a zero point"),
        ((0.0,) * 3, (-255.0,) * 3, "input.std is -255, and a scale is positive"),
        ((124.0, 116.0, 104.0), (1.0,) * 3, "input.mean and input.std differ between channels"),
    ):
        spec = InputSpec(size_wh=(SIDE, SIDE), mean=mean, std=std)
        assert str(pixel_range(spec)).startswith(expected)
        proto = _quantized(tmp_path / "q", tiny.classifier(size=SIDE), spec)
        floats = _outputs(proto.SerializeToString(), Prepare(spec))
        assert len(set(floats)) == len(floats)  # every picture has another result
        graphs = _graphs(proto, spec)
        four = with_fourth_channel(proto, spec, graphs[0].tensor)
        assert four is not None
        for graph in (four, *graphs):
            assert graph.tensor.scale is not None
            assert _outputs(graph.proto.SerializeToString(), Prepare(spec, graph.tensor)) == floats


def test_integers_that_are_no_levels_stay(tmp_path: Path) -> None:
    for model, changes, expected in (
        (tiny.classifier(size=SIDE), {"float_nodes": ("first",)}, "Conv reads the input in float"),
        (tiny.segmenter(SIDE), {}, "AveragePool reads the input in float"),
    ):
        assert str(level_graphs(_quantized(tmp_path / "q", model, SPEC, **changes), SPEC)).startswith(expected)


def test_a_range_from_dark_pictures_has_no_integer_for_bright_levels(tmp_path: Path) -> None:
    half = msgspec.structs.replace(SPEC, std=(510.0,) * 3)  # what calibrates seems half as bright as what will come
    proto = _quantized(tmp_path / "q", tiny.classifier(size=SIDE), half, known=False)
    [graph, _] = _graphs(proto, SPEC)
    tables = integer_tables(SPEC, graph.tensor)
    assert [table[[0, 1, 127, 128, 255]].tolist() for table in tables] == [[0, 2, 254, 255, 255]] * 3
    floats = _outputs(proto.SerializeToString(), Prepare(SPEC))
    assert _outputs(graph.proto.SerializeToString(), Prepare(SPEC, graph.tensor)) == floats


_LARGE = 128  # large enough that an operator and a pass over the picture cannot hide in noise
_WIDE = 33
_ATTEMPTS = 3  # a machine busy enough hides any gain, and then floats stay


def _kernels(ms: float, **counts: int) -> KernelRun:
    return KernelRun(Counter(counts), dict.fromkeys(counts, ms))


def test_a_race_is_decided_by_medians_of_what_only_one_runs() -> None:
    # A convolution of other channels is another kernel, and no other operator.
    floats = [_kernels(0.5, **{"QuantizeLinear": 1, "Transpose": 2, "QLinearConv 8": 3, "QLinearConv 3": 1})] * 3
    levels = [_kernels(0.25, **{"Cast": 1, "Transpose": 1, "QLinearConv 8": 3, "QLinearConv 4": 1})] * 3
    for levels_ms, saved_ms in (
        ([1.0] * 11 + [9.0] * 9, 1.75),  # nearly every second frame was disturbed
        ([2.4, 2.6] * 10, 0.25),
        ([3.0] * 20, -0.25),
    ):
        found = judged(np.array([[2.0, ms] for ms in levels_ms]), np.full((3, 2), 50.0), floats, levels)
        assert (found.saved_ms, found.more, found.rounds) == (saved_ms, ("Cast",), 3)
        assert (found.floats, found.levels.kernels_ms) == (Way(2.0, 1.5, 50.0), 0.75)


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
    layers = (("spread", "images", "wide", 1), ("same", "wide", "wide_too", 1), ("gather", "wide_too", "through", 0))
    for index, (name, read, made, pad) in enumerate(layers):
        node = helper.make_node("Conv", [read, name], [made], name=f"{name}_conv", pads=[pad] * 4)
        model.graph.node.insert(index, node)
    return model


def _project(folder: Path, task: str) -> Path:
    if task == "detection":
        text = DETECTOR.replace("[64, 64]", f"[{_LARGE}, {_LARGE}]")
        return write_project(folder, text, _with_layers(tiny.head_detector(_LARGE)), labels="red\nblue\n")
    text = SEGMENTER.replace("[32, 32]", f"[{_LARGE}, {_LARGE}]")
    return write_project(folder, text, _with_layers(tiny.segmenter(_LARGE)), labels="background\nred\nblue\n")


@pytest.mark.parametrize("task", ["detection", pytest.param("segmentation", marks=pytest.mark.long)])
def test_a_build_takes_levels(tmp_path: Path, task: str) -> None:
    model, output = _project(tmp_path / "p", task), tmp_path / "a.edge"
    write_pictures(tmp_path / "e", 6, first=50)
    for _ in range(_ATTEMPTS):
        report = build(model, "x86_64", output, evaluation=[tmp_path / "e"])
        if report.input.dtype == "uint8":
            break
    assert (report.precision, report.input.dtype, report.input.layout) == ("int8", "uint8", "NHWC")
    assert report.input.color in ("BGR", "RGBA")  # which is faster depends on the machine
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
        _quantized(tmp_path / name, proto, spec.input)
        quantized.append(tmp_path / name / "int8.onnx")
        converted.append(convert(quantized[-1], target, tmp_path / name))
    proof = flawless_proof(images)
    choice = model_variant(proof, spec=spec, onnx=quantized[0], converted=converted[1])
    unchanged, trial = choose_input(choice, target, tmp_path)
    assert unchanged is choice
    assert (trial.dtype, trial.line) == ("float32", "integers give other results on image 0 of 2")
    # ARM cores pay for a fourth channel: it is not even tried there.
    assert (tmp_path / "four").exists() == (target_name == "x86_64")


def test_kernels_are_those_of_each_run(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(tiny.classifier(), path)
    session = ProfiledSession(path, tmp_path)
    for _ in range(3):
        session.run(np.zeros((1, 3, 16, 16), np.float32))
    runs = kernel_runs(session)
    assert [found.counts for found in runs] == [runs[0].counts] * 3
    assert runs[0].operators["Softmax"] == 1
    assert any("[1,3,16,16]" in name for name in runs[0].counts)
    assert all(found.ms.keys() == found.counts.keys() for found in runs)
    assert list(tmp_path.iterdir()) == [path]
