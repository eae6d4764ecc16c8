"""Quantization: types as the target says, the decoding tail found by structure, integers proved, local noise."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType, create_calibrator, quantize_dynamic

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import DataError, IncompatibleError, ModelError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.check.gate import check_model, examine
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.graph import profile
from edge_sdk_tools.quantize.calibration import (
    CALIBRATIONS,
    Activations,
    Histogram,
    calibration_warnings,
    every_of,
    range_of,
    watch_activations,
)
from edge_sdk_tools.quantize.convert import convert, integer_mac_share
from edge_sdk_tools.quantize.quantize import Quantized, Recipe, first_recipe, quantize, quantized_proto
from edge_sdk_tools.quantize.simplified import Simplified, decoding_tail, join_hard_sigmoids, simplify, weighted_macs
from edge_sdk_tools.search.sensitivity import LayerNoise, local_noise
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.models import Head
from tests.support.program import Cli
from tests.support.projects import CLASSIFIER, picture, write_pictures, write_project


def _quantize(folder: Path, target: str, model: onnx.ModelProto | None = None, text: str = CLASSIFIER) -> Quantized:
    spec: ModelSpec = load_model_spec(write_project(folder, text, model))
    work = folder / "work"
    work.mkdir()
    proto = check_model(spec, load_target(target)).proto if model is None else model
    simplified = simplify(proto, work)
    activations = watch_activations(simplified, find_images([folder / "pictures"]), spec.input, symmetric=False)
    recipe = first_recipe(load_target(target), reduce_range=load_target(target).reduce_range)
    return quantize(simplified, activations.ranges(recipe.calibration), recipe, work / "int8.onnx")


@pytest.mark.parametrize(("target", "largest"), [("x86_64", 127), ("x86_64_avx2", 64)])
def test_types_and_scales_are_what_the_target_wants(tmp_path: Path, target: str, largest: int) -> None:
    """Weights have seven bits where the product saturates and a scale a channel, activations are unsigned."""
    proto = onnx.load(_quantize(tmp_path, target).path)
    values = {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}
    weights = [value for value in values.values() if value.ndim == 4]
    assert {w.dtype for w in weights} == {np.dtype(np.int8)}
    assert max(int(np.abs(w.astype(int)).max()) for w in weights) == largest
    zero_points = [values[n.input[2]] for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    assert {z.dtype for z in zero_points} == {np.dtype(np.uint8)}
    scales = [values[n.input[1]] for n in proto.graph.node if n.op_type == "DequantizeLinear"]
    assert sorted(s.size for s in scales if s.ndim) == [3, 3, 8, 8]


def test_hosts_whose_products_saturate_are_known() -> None:
    flags = ("fpu avx2 avx512_vnni", "fpu avx2 avx_vnni", "fpu avx2")
    assert [profile.saturates("x86_64", f"flags : {found}") for found in flags] == [False, False, True]
    assert not profile.saturates("aarch64", "Features : fp asimd")


def test_each_machine_has_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, loses, name in (
        ("x86_64", False, "x86_64"),
        ("x86_64", True, "x86_64_avx2"),
        ("aarch64", False, "arm64"),
    ):
        monkeypatch.setattr(profile, "host_saturates", lambda loses=loses: loses)
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        assert profile.host_target() == name
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "this machine is riscv64, expected x86_64 or aarch64" in refusal(IncompatibleError, profile.host_target)


def test_scores_survive_beside_boxes_because_the_tail_is_float(tmp_path: Path) -> None:
    """Boxes of tens beside scores of 0-1 in one output: together in INT8 the scores would have a few levels."""
    head, outputs = tiny.yolov8()
    proto = head.model(*outputs)
    quantized = _quantize(tmp_path, "arm64", proto, CLASSIFIER.replace("[16, 16]", "[8, 8]"))
    converted = convert(quantized.path, load_target("arm64"), tmp_path / "work")
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 1.0
    prepare = Prepare(load_model_spec(tmp_path / "model.toml").input)
    tensor = prepare.normalise(prepare.resize(picture(3)))
    got = Session(converted.model.read_bytes(), SessionSettings(), "int8").run(tensor)[0]
    [expected] = _said(proto, tensor)
    assert expected[:, :4].max() > 10
    assert np.abs(got[:, 4:] - expected[:, 4:]).max() < 0.1
    assert len(np.unique(got[:, 4:])) > 20


_HARD = ("h = Add(x, three)", "c = Clip(h, zero, six)")
_JOINED = ["HardSigmoid", "Mul"]


def test_a_hard_swish_of_several_nodes_becomes_a_hard_sigmoid_and_a_product() -> None:
    for lines, operators in (
        ((*_HARD, "m = Mul(x, c)", "y = Div(m, six)"), _JOINED),
        ((*_HARD, "m = Mul(c, x)", "y = Mul(sixth, m)"), _JOINED),
        ((*_HARD, "d = Div(c, six)", "y = Mul(d, x)"), _JOINED),
        (("h = Add(three, x)", *_HARD[1:], "d = Mul(c, sixth)", "y = Mul(x, d)"), _JOINED),
        ((*_HARD, "y = Div(c, six)"), _JOINED[:1]),
        ((*_HARD, "m = Mul(x, c)", "y = Div(m, three)"), ["Add", "Clip", "Mul", "Div"]),
        ((*_HARD, "y = Div(six, c)"), ["Add", "Clip", "Div"]),
        (("h = Add(x, six)", *_HARD[1:], "m = Mul(x, c)", "y = Div(m, six)"), ["Add", "Clip", "Mul", "Div"]),
        ((*_HARD, "d = Div(c, six)", "y = Mul(d, c)"), ["Add", "Clip", "Div", "Mul"]),
    ):
        constants = "<float three = {3}, float six = {6}, float zero = {0}, float sixth = {0.16666667}>"
        proto = _numbered(f"(float[9, 99] x) => (float[9, 99] y) {constants} {{ {' '.join(lines)} }}")
        x = np.random.default_rng(0).uniform(-9, 9, (9, 99)).astype(np.float32)
        before = _said(proto, x)
        join_hard_sigmoids(proto)
        assert [node.op_type for node in proto.graph.node] == operators
        np.testing.assert_allclose(_said(proto, x), before, rtol=1e-6, atol=1e-6)


def _numbered(text: str) -> onnx.ModelProto:
    """A graph whose nodes are named by their numbers."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> g {text}')
    for number, node in enumerate(proto.graph.node):
        node.name = str(number)
    return proto


def _said(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    return [output.copy() for output in Session(proto.SerializeToString(), SessionSettings(), "m").run(x)]


def _in_integers(proto: onnx.ModelProto, reach: float, folder: Path) -> onnx.ModelProto:
    """Every tensor has the same range."""
    simplified = simplify(proto, folder).proto
    ranges = {name: (-reach, reach) for node in simplified.graph.node for name in (*node.input, *node.output)}
    return quantized_proto(simplified, ranges, first_recipe(load_target("arm64"), reduce_range=False), [])


def test_hard_swish_and_hard_sigmoid_compute_in_integers_alone(tmp_path: Path) -> None:
    """A HardSigmoid is the scale of what it reads; the one whose input the product reads too is a table of bytes."""
    hard = "HardSigmoid<alpha=0.16666667, beta=0.5>"
    proto = _numbered(f"""(float[1,8,9,9] x) => (float[1,8,9,9] y) <float[8,8,1,1] w> {{
        a = Conv(x, w) h = {hard}(a) b = Mul(a, h) m = ReduceMean<axes=[2,3]>(b) s = Conv(m, w) t = {hard}(s)
        y = Mul(b, t) }}""")
    weights = 2 * np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    x = np.random.default_rng(0).uniform(-4, 4, (1, 8, 9, 9)).astype(np.float32)
    x += np.linspace(-4, 4, 8, dtype=np.float32).reshape(1, 8, 1, 1)
    int8 = _in_integers(proto, 16.0, tmp_path)
    kinds = Counter(node.op_type for node in int8.graph.node)
    [got], [expected] = _said(int8, x), _said(proto, x)
    assert (kinds["HardSigmoid"], kinds["ReduceMean"], kinds["LeakyRelu"]) == (0, 0, 1)
    # x, b and y are each rounded by at most half a step, the gates by little.
    assert np.abs(got - expected).max() < 2 * 32 / 255
    assert np.abs(expected).max() > 10


def test_a_hard_sigmoid_leaves_the_scale_of_an_output_that_it_reads(tmp_path: Path) -> None:
    proto = _numbered("""(float[1,8,9,9] x) => (float[1,8,9,9] y, float[1,8,9,9] a) <float[8,8,1,1] w> {
        a = Conv(x, w) h = HardSigmoid<alpha=0.16666667, beta=0.5>(a) y = Conv(h, w) }""")
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1), "w"))
    x = np.random.default_rng(0).uniform(-8, 8, (1, 8, 9, 9)).astype(np.float32)
    for got, expected in zip(_said(_in_integers(proto, 8.0, tmp_path), x), _said(proto, x), strict=True):
        np.testing.assert_allclose(got, expected, atol=2 * 16 / 255)


def test_macs_are_those_of_the_definition(tmp_path: Path) -> None:
    quantized = _quantize(tmp_path, "arm64")
    assert quantized.macs == {"first": 8 * 8 * 8 * 3 * 9, "second": 3 * 8 * 8 * 8 * 9}
    assert quantized.float_nodes == ("GlobalAveragePool_3", "Flatten_4", "Softmax_5")
    assert weighted_macs(onnx.load(quantized.path.parent / "simplified.onnx"), "Conv") == quantized.macs


def test_a_file_that_runs_in_float_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted without the fusions, it looks quantized and computes in float: this is what the proof is for."""
    quantized, target = _quantize(tmp_path, "arm64"), load_target("arm64")
    monkeypatch.setenv("ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL", "basic")
    converted = convert(quantized.path, target, tmp_path / "work")
    assert integer_mac_share(converted.model, quantized.macs, tmp_path) == 0.0


_FAILED = r"^{} failed: AssertionError \(test_quantize\.py:\d+\)$"


def _assert(*_arguments: object, **_named: object) -> None:
    raise AssertionError  # as a bare `assert` of ONNX Runtime's own tools does


@pytest.mark.parametrize(
    ("module", "part", "act", "error", "expected"),
    [
        ("simplified", "quant_pre_process", _assert, ModelError, _FAILED.format("quantization")),
        ("quantize", "quantized_proto", _assert, ModelError, _FAILED.format("quantization")),
        ("convert", "convert_onnx_models_to_ort", _assert, ModelError, _FAILED.format("conversion to ORT format")),
        # As ONNX Runtime leaves it on a full disk, without a word; what it says of the disk is not the model's fault.
        ("simplified", "quant_pre_process", lambda _, made, **_options: Path(made).touch(), ModelError, "nothing was"),
        ("simplified", "quant_pre_process", lambda *_, **_options: Path("gone/x").read_bytes(), OSError, "gone/x"),
    ],
)
def test_what_fails_in_a_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, part: str, act: Callable[..., object],
    error: type[Exception], expected: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.modules[f"edge_sdk_tools.quantize.{module}"], part, act)
    with pytest.raises(error, match=expected):
        convert(_quantize(tmp_path, "arm64").path, load_target("arm64"), tmp_path / "work")


FAMILIES: dict[str, Callable[[], tuple[Head, list[str]]]] = {
    "yolov5": tiny.yolov5,
    "yolov7": tiny.yolov7_for_suppression,
    "yolov8": tiny.yolov8,
    "yolov8 by a product with a column": partial(tiny.yolov8, "column"),
    "yolov8 by a product with a vector": partial(tiny.yolov8, "vector"),
    "yolox": tiny.yolox,
    "nanodet": tiny.nanodet,
    "nanodet-plus": tiny.nanodet_plus,
    "ssd": tiny.ssd,
    "ssd, decoded": partial(tiny.ssd, decoded=True),
    "ssd, logits": partial(tiny.ssd, logits=True),
    "centerface": tiny.centerface,
    "one class": tiny.one_class_map,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tail_is_what_decodes_and_every_layer_is_left_to_the_integers(tmp_path: Path, family: str) -> None:
    head, outputs = FAMILIES[family]()
    proto = head.model(*outputs)
    assert list(decoding_tail(proto)) == head.tail != []
    simplified = simplify(proto, tmp_path)
    tail = {node.op_type for node in simplified.proto.graph.node if node.name in simplified.tail}
    integers = {node.op_type for node in simplified.proto.graph.node if node.name not in simplified.tail}
    assert len(simplified.macs) == sum(node.op_type == "Conv" for node in proto.graph.node) - ("Conv" in tail)
    assert integers <= {"Conv", "Sigmoid", "Mul"}
    assert tail & {"Sigmoid", "Softmax", "Concat", "Transpose", "Reshape", "Split"}


_DRAWN = np.random.default_rng(5)
VALUES = _DRAWN.normal(0.5, 0.2, (1, 3, 64, 64)).astype(np.float32)
VALUES[0, 0, 0, :3] = 3.0  # outliers, which percentiles cut off
WEIGHTS = _DRAWN.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)
WEIGHTS[0] *= 30  # one channel that would spoil a scale for all


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Simplified:
    node = helper.make_node("Conv", ["images", "w"], ["y"], name="layer")
    proto = tiny.model([node], [1, 3, 64, 64], {"y": [1, 8, 62, 62]}, {"w": WEIGHTS})
    return simplify(proto, tmp_path_factory.mktemp("model"))


def _noise(model: Simplified, folder: Path, **settings: object) -> tuple[list[LayerNoise], onnx.ModelProto]:
    recipe: Recipe = msgspec.structs.replace(
        first_recipe(load_target("x86_64"), reduce_range=False), **{"calibration": "min-max", **settings}
    )
    seen = {name: Histogram() for name in ("images", "y")}
    for histogram, values in zip(seen.values(), (VALUES, 10 * VALUES), strict=True):
        histogram.add(values)
    activations = Activations(seen, 1, 1, (0,), ())
    quantized = onnx.load(quantize(model, activations.ranges(recipe.calibration), recipe, folder / "int8.onnx").path)
    return list(local_noise(model, activations, quantized)), quantized


def _share(error: np.ndarray, signal: np.ndarray) -> float:
    return float((error.astype(np.float64) ** 2).sum() / (signal.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize(
    ("calibration", "reduce_range", "largest_integer"), [("min-max", False, 127), ("percentile 99.99", True, 64)]
)
def test_local_noise_is_the_noise_of_the_very_integers(
    model: Simplified, tmp_path: Path, calibration: str, *, reduce_range: bool, largest_integer: int
) -> None:
    [layer], quantized = _noise(model, tmp_path, calibration=calibration, reduce_range=reduce_range)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    scale, zero = constants["images_scale"], int(constants["images_zero_point"])
    rounded = (np.clip(np.round(VALUES / scale) + zero, 0, 255) - zero) * scale
    activation, weight = (10 ** (-db / 10) for db in (layer.activation_sqnr_db, layer.weight_sqnr_db))
    assert activation == pytest.approx(_share(rounded - VALUES, VALUES), rel=0.05)
    scales = np.abs(WEIGHTS).max(axis=(1, 2, 3), keepdims=True) / largest_integer
    assert weight == pytest.approx(_share(np.round(WEIGHTS / scales) * scales - WEIGHTS, WEIGHTS), rel=0.05)
    assert (layer.node, layer.operator, layer.macs_share) == ("layer", "Conv", 1.0)
    assert layer.sqnr_db == pytest.approx(-10 * np.log10(activation + weight))


def test_a_model_that_is_quantized_already_is_refused_by_name(tmp_path: Path) -> None:
    onnx.save(tiny.classifier(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QUInt8)
    model = write_project(tmp_path / "again", model=onnx.load(tmp_path / "int8.onnx"))
    with pytest.raises(ModelError, match=r"model\.onnx: is quantized already \(.*ConvInteger.*expected float"):
        build(model, "x86_64", tmp_path / "a.edge")
    assert not list(tmp_path.glob("*a.edge*"))
    report = examine(load_model_spec(model))  # `check` finds what `build` refuses
    assert (report.passed, [error.rule for error in report.of("error")]) == (False, ["quantized"])


# Calibration: what every tensor holds is counted in one pass; images that calibrate badly are warned of.


RANDOM = np.random.default_rng(11)


def _histogram(*parts: np.ndarray) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part.astype(np.float32))
    return histogram


def test_ranges_are_no_round_numbers() -> None:
    """Scales with simple ratios make sums that lie half-way between two integers, which CPUs round differently."""
    ends = np.array(_histogram(RANDOM.normal(size=50_000)).spanned(0.999), np.float32)
    assert (ends.view(np.uint32) & 0xFFFF).all()


def test_entropy_cuts_a_few_outliers_and_keeps_what_is_even() -> None:
    outliers = np.concatenate([RANDOM.normal(size=200_000), [80.0, -60.0]])
    low, high = range_of(_histogram(outliers), "entropy")
    assert -16 < low < -2.5 < 2.5 < high < 16
    assert range_of(_histogram(RANDOM.random(200_000) * 4 - 2), "entropy") == pytest.approx((-2, 2), abs=0.05)


def test_a_fused_activation_speaks_for_its_convolution(tmp_path: Path) -> None:
    apart, together = _watched(tmp_path / "a", symmetric=True), _watched(tmp_path / "b", symmetric=False)
    assert set(apart.histograms) == set(together.histograms)
    [relu] = [node for node in tiny.classifier().graph.node if node.op_type == "Relu"]
    assert together.histograms[relu.input[0]] is together.histograms[relu.output[0]]
    assert apart.histograms[relu.input[0]].low < 0 <= apart.histograms[relu.output[0]].low


def test_a_tensor_that_is_no_number_is_named(tmp_path: Path) -> None:
    proto = tiny.classifier()
    proto.graph.initializer[1].raw_data = np.full(8, np.nan, np.float32).tobytes()
    with pytest.raises(ModelError, match=r"tensor '.*' holds values that are no numbers; check the weights"):
        _watched(tmp_path, proto)


def test_the_span_is_that_of_the_sorted_values() -> None:
    count = 200_000
    for drawn in (RANDOM.normal(size=count), RANDOM.lognormal(sigma=2, size=count) - 1, -RANDOM.random(count) * 1e-3):
        values = drawn.astype(np.float32)
        histogram, ordered = _histogram(*np.array_split(values, 7)), np.sort(values)
        assert histogram.counts.sum() == len(values)
        assert (histogram.low, histogram.high) == (values.min(), values.max())
        for share in (0.9, 0.999, 0.99999):
            low, high = histogram.spanned(share)
            cut = round((1 - share) / 2 * len(values))
            for got, place in ((low, cut), (high, len(values) - 1 - cut)):  # bins are 0.8 % wide
                about = ordered[max(0, place - 1) : place + 2]
                slack = 0.008 * np.abs(about).max() + 1e-12
                assert about.min() - slack <= got <= about.max() + slack
            assert histogram.low <= low <= high <= histogram.high


def test_a_constant_has_its_own_range() -> None:
    for calibration, value in product(CALIBRATIONS, (0.0, 3.25, -7.5)):
        assert range_of(_histogram(np.full(100, value)), calibration) == (value, value)


def test_enough_values_are_counted_and_every_column_has_its_turn() -> None:
    shapes = ((96, 112, 112), (3, 640, 640), (7, 7, 1280), (1, 1, 1000), (255, 13, 13))
    for images, (channels, height, width) in product((1, 10, 100, 300, 5000), shapes):
        size = channels * height * width
        counted = np.arange(0, size, every_of(size, images))
        assert min(size * images, 1_000_000) <= len(counted) * images <= 9_000_000 + images * 1000
        assert len(counted) < width or set(counted % width) == set(range(width))


def _watched(
    folder: Path, model: onnx.ModelProto | None = None, *, symmetric: bool = True, images: ImageSet | None = None
) -> Activations:
    """Watch the activations of a project, which is written where there is none."""
    path = folder / "model.toml"
    spec = load_model_spec(path if path.exists() else write_project(folder, CLASSIFIER, model))
    (folder / "work").mkdir()
    simplified = simplify(onnx.load(spec.model), folder / "work")
    images = images or find_images([folder / "pictures"])
    return watch_activations(simplified, images, spec.input, symmetric=symmetric, jobs=2)


def test_smallest_and_largest_are_those_of_onnx_runtimes_calibrator(tmp_path: Path) -> None:
    found = _watched(tmp_path)
    prepare = Prepare(load_model_spec(tmp_path / "model.toml").input)
    paths = sorted((tmp_path / "pictures").iterdir())
    tensors = iter([{"images": prepare.normalise(prepare.resize(cv2.imread(str(p)))).copy()} for p in paths])
    calibrator = create_calibrator(
        tmp_path / "work" / "simplified.onnx", augmented_model_path=str(tmp_path / "augmented.onnx"),
        calibrate_method=CalibrationMethod.MinMax,
    )  # fmt: skip
    calibrator.collect_data(SimpleNamespace(get_next=lambda: next(tensors, None)))
    expected = calibrator.compute_data()
    assert (found.images, len(found.histograms) >= 4) == (len(paths), True)
    for name, histogram in found.histograms.items():
        low, high = expected[name].range_value
        assert (histogram.low, histogram.high) == pytest.approx((np.ravel(low)[0], np.ravel(high)[0]), abs=1e-5)


def test_equal_pictures_are_counted_as_one(tmp_path: Path) -> None:
    write_project(tmp_path)
    for index, path in enumerate(sorted((tmp_path / "pictures").iterdir())):
        # The pictures differ, and are equal once they are made small.
        cv2.imwrite(str(path), np.full((64 + index, 64 + index, 3), 90, np.uint8))
    found = _watched(tmp_path, symmetric=False)
    assert (found.images, found.different) == (12, 1)


def test_images_that_cannot_be_read_calibrate_nothing(tmp_path: Path) -> None:
    write_project(tmp_path)
    images = find_images([tmp_path / "pictures"])
    for path in (tmp_path / "pictures").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"none of 12 calibration images can be read; .*000\.png: "):
        _watched(tmp_path, images=images)


_LABELS = ("a", "b", "c")


def _activations(answers: tuple[int, ...], *, different: int = 12, second: float = 0.5) -> Activations:
    histograms = {"moving": _histogram(np.array([-2, 3.5])), "still": _histogram(np.array([0.25, second]))}
    return Activations(histograms, len(answers), different, answers, ())


def test_each_doubt_has_its_line() -> None:
    for activations, labels, known, expected in (
        (_activations((0, 1) * 6), _LABELS, (), []),
        (_activations((1,) * 12), (), (), []),  # no classifier
        (_activations((0,) * 12), ("a",), (), []),  # it knows one class only
        (_activations((1,) * 12), _LABELS, ("a", "c") * 6, []),  # files know better than the model
        (_activations((1,) * 12), _LABELS, (), ["all 12 calibration images look like 'b' to FP32"]),
        (_activations((0, 1) * 6), _LABELS, ("c",) * 12, ["all 12 calibration images are labelled 'c'"]),
        (_activations((0,) * 12, different=1), _LABELS, (), ["all 12 calibration images are the same once prepared"]),
        (_activations((0, 1)), _LABELS, (), ["few images calibrate: 2, give 10 or more"]),
        (_activations((0, 1) * 6, second=0.25), _LABELS, (), ["tensors with one value on all 12 calibration"]),
    ):
        lines = calibration_warnings(activations, labels, known)
        assert len(lines) == len(expected)
        assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines
        assert all("(from -2 to 3.5)" in line for line in lines if "so ranges" in line)


def test_a_doubt_is_on_the_screen_and_in_the_report(tmp_path: Path, cli: Cli) -> None:
    model = write_project(tmp_path, pictures=0)
    write_pictures(tmp_path / "pictures" / "b", 12)  # a folder of one class
    start = "all 6 calibration images are labelled 'b', so ranges (from "
    printed = cli(0, "build", model, "--target", "x86_64", "-o", tmp_path / "a.edge")
    assert f"edge-sdk: warning: {start}" in printed.err
    warnings = json.loads((tmp_path / "a.edge" / "report.json").read_text())["warnings"]
    assert any(line.startswith(start) for line in warnings)
    assert start[:40] in (tmp_path / "a.edge" / "report.html").read_text().replace("&#39;", "'")
