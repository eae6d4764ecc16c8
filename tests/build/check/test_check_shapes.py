"""What the check does to a model: it fixes sides, raises old opsets, and names all that is wrong."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk_tools.check.costs import node_macs
from edge_sdk_tools.check.model_file import put_weights, read_model
from edge_sdk_tools.graph.index import Value
from tests.support.reports import IMAGE, SIZE, examined, network, only, report_on


def _pooled(shape: Sequence[int | str] = IMAGE) -> onnx.ModelProto:
    return network("y = GlobalAveragePool(images)", {"y": ["n", 3, "h", "w"]}, shape=shape)


@pytest.mark.parametrize("shape", [IMAGE, ["batch", 3, "height", "width"], ["a", "b", "c", "d"], None])
def test_free_sides_are_fixed_from_model_toml(tmp_path: Path, shape: list[int | str] | None) -> None:
    model = _pooled(shape or IMAGE)
    if shape is None:  # of unknown rank
        model.graph.input[0].type.tensor_type.ClearField("shape")
    found = examined(tmp_path, model)
    assert found.report.passed, found.report.findings
    image = found.report.input
    assert (image.name, image.type, image.shape) == ("images", "float", (1, 3, SIZE, SIZE))
    proto = onnx.ModelProto.FromString(found.skeleton)
    sides = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*proto.graph.input, *proto.graph.output)]
    assert sides == [[1, 3, SIZE, SIZE], [1, 3, 1, 1]]


def test_an_image_of_another_shape(tmp_path: Path) -> None:
    for shape, expected in (
        ([2, 3, SIZE, SIZE], "has shape 2x3x8x8, model.toml says 1x3x8x8 (NCHW, RGB); frames come one at a time"),
        (["n", 16, "w", 3], '; set size_wh = [8, 16] and layout = "NHWC" under [input] in model.toml'),
        ([1, 3, 4, 4], "; correct input.size_wh, input.color or input.layout in model.toml"),
        ([], "has shape scalar"),
    ):
        report = report_on(tmp_path, _pooled(shape))
        assert expected in only(report, "input").line
        assert not report.passed


def test_a_free_size_at_which_layers_do_not_meet(tmp_path: Path) -> None:
    for shape, expected in (
        (["n", 3, "h", "w"], "at 8x8, expected multiples of 32; the nearest are size_wh = [32, 32] and [32, 32]"),
        ([1, 3, SIZE, SIZE], "ncompatible dimensions"),
    ):
        half = "p = MaxPool <kernel_shape=[2, 2]> (images)\n y = Add(images, p)"
        model = network(half, {"y": ["n", 3, "h", "w"]}, shape=shape)
        assert expected in only(report_on(tmp_path, model), "shape").line


def test_inputs_that_are_no_image(tmp_path: Path) -> None:
    for elements, expected in (
        ([TensorProto.UINT16], "input 'images' is UINT16, expected FLOAT"),
        ([77], "input 'images' is of unknown type 77"),
        ([TensorProto.FLOAT, TensorProto.INT64], "has 2 inputs, expected one image input (images, more)"),
        ([], "has 0 inputs, expected one image input"),
    ):
        model = _pooled()
        del model.graph.input[:]
        for name, element in zip(("images", "more"), elements, strict=False):
            model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, IMAGE))
            model.graph.input[-1].type.tensor_type.elem_type = element
        assert expected in only(report_on(tmp_path, model), "input").what


def test_an_output_of_free_shape(tmp_path: Path) -> None:
    text = """boxes = Reshape(images, box_shape) scores = Reshape(images, score_shape)
        suppress = NonMaxSuppression(boxes, scores, most) y = Cast<to = 1>(suppress)"""
    weights = {"box_shape": np.array([1, 48, 4]), "score_shape": np.array([1, 4, 48]), "most": np.array([10])}
    suppressed = network(text, {"y": ["detections", 3]}, weights)
    nonzero = network("find = NonZero(images) y = Cast<to = 1>(find)", {"y": [4, "found"]})
    for model, *expected in (
        (suppressed, "'suppress' (NonMaxSuppression)", "dimension 0", "nms=False"),
        (nonzero, "'find' (NonZero)", "dimension 1", "cut the model before that node"),
    ):
        finding = only(report_on(tmp_path, model), "dynamic")
        assert (finding.severity, finding.where) == ("error", "y")
        assert all(part in finding.line for part in expected)


def test_shapes_are_found(tmp_path: Path) -> None:
    weights = {
        "zero": np.array([0]), "rest": np.array([-1]), "powers": np.log([1, 12, 4, 4]).astype(np.float32),
        "w": np.ones((5, 12, 1, 1), np.float32),
    }  # fmt: skip
    inside_only = "a = NonZero(images) b = Cast<to = 1>(a) y = ReduceSum<keepdims = 0>(b)"
    as_exporters_flatten = "a = Shape(images) b = Gather(a, zero) c = Concat<axis = 0>(b, rest) y = Reshape(images, c)"
    by_arithmetic = """a = Exp(powers) b = Round(a) c = Cast<to = 7>(b) d = Reshape(images, c)
        y = Conv<kernel_shape = [1, 1]>(d, w)"""
    for text, shape in ((inside_only, ()), (as_exporters_flatten, (1, 3 * SIZE * SIZE)), (by_arithmetic, (1, 5, 4, 4))):
        used = {name: value for name, value in weights.items() if name in re.findall(r"\w+", text)}
        model = network(text, {"y": [*"abcd"[: len(shape)]]}, used, shape=["n", 3, "h", "w"])
        report = report_on(tmp_path, model)
        assert report.passed, report.findings
        assert (report.outputs[0].shape, report.costs.unknown_nodes) == (shape, 0)


def test_every_contradiction_is_named(tmp_path: Path) -> None:
    weights = {"five": np.ones((5, 1, 1), np.float32), "flat": np.ones((3, 3), np.float32)}
    model = network("a = Add(images, five) b = MatMul(images, flat) y = Mul(images, five)", weights=weights)
    report = report_on(tmp_path, model)
    assert {f.where for f in report.of("error") if f.rule == "shape"} == {"a", "b", "y"}
    assert all("Error" not in finding.what for finding in report.findings)


def test_what_only_onnxs_checker_sees(tmp_path: Path) -> None:
    report = report_on(tmp_path, network("y = Relu(later) later = Abs(images)"))
    assert "topologically sorted" in only(report, "onnx").what


def test_a_failure_at_run_time_is_named(tmp_path: Path) -> None:
    """The index comes out of arithmetic that no inference follows."""
    text = "index = Cast<to = 7>(nine) beyond = Gather<axis = 1>(images, index) y = Relu(beyond)"
    model = network(text, {"y": [1, 1, SIZE, SIZE]}, {"nine": np.array([9], np.float32)})
    finding = only(report_on(tmp_path, model), "run")
    assert (finding.severity, "beyond" in finding.what or "Gather" in finding.what) == ("error", True)


def test_a_tensor_that_no_device_holds(tmp_path: Path) -> None:
    text = "big = ConstantOfShape(shape) most = ReduceMax<keepdims = 0>(big) y = Add(images, most)"
    finding = only(report_on(tmp_path, network(text, weights={"shape": np.array([500, 1000, 1000])})), "size")
    assert re.search(r"^tensor 'big' of node 'big' \(ConstantOfShape\).*2 GB, expected 1 at most", finding.what)


def test_functions_are_put_in_place(tmp_path: Path) -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = network("y = local.outer(images)")
    for name, inside, domain in (("inner", "Relu", ""), ("outer", "inner", "local")):
        nodes = [helper.make_node(inside, ["x"], ["y"], domain=domain)]
        model.functions.append(helper.make_function("local", name, ["x"], ["y"], nodes, imports))
    found = examined(tmp_path, model)
    assert found.report.passed, found.report.findings
    proto = onnx.ModelProto.FromString(found.skeleton)
    assert ([node.op_type for node in proto.graph.node], len(proto.functions)) == (["Relu"], 0)
    model.functions[0].opset_import[0].version = 12
    assert "was written for another opset" in only(report_on(tmp_path, model), "file").what


def test_real_weights_where_shapes_follow_from_values(tmp_path: Path) -> None:
    """With zeros for weights NonZero would find nothing, and TopK of nothing is an error."""
    text = "a = Flatten(images) b = Gemm(a, w, bias) c = NonZero(b) d = Cast<to = 1>(c) y, i = TopK<axis = 1>(d, five)"
    weights = {"w": np.ones((192, 2000), np.float32), "five": np.array([5])}
    weights["bias"] = np.ones(2000, np.float32)  # large enough to be cut out
    assert report_on(tmp_path, network(text, {"y": [2, 5]}, weights)).passed
    weights["bias"] = np.zeros(2000, np.float32)
    assert "TopK" in only(report_on(tmp_path, network(text, {"y": [2, 5]}, weights)), "run").what


def test_sparse_weights_are_refused(tmp_path: Path) -> None:
    model = _pooled()
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("w_indices", TensorProto.INT64, [1], [2]))
    assert "holds sparse weights" in only(report_on(tmp_path, model), "file").what


def test_a_list_of_findings_has_an_end(tmp_path: Path) -> None:
    nodes = [f"x{i + 1} = RandomNormalLike({f'x{i}' if i else 'images'})" for i in range(150)]
    report = report_on(tmp_path, network(" ".join(nodes), {"x150": IMAGE}))
    assert len(report.findings) == 101
    assert only(report, "more").what == "50 more findings are left out"


def _old(opset: int, text: str, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """A model that declares no shape of its output: inference or the trial run has to find it."""
    model = network(text, weights=weights, opset=opset)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def _upsample(opset: int, mode: str, factor: float) -> onnx.ModelProto:
    operator = "Resize" if opset > 9 else "Upsample"
    if opset < 9:
        return _old(opset, f'y = {operator}<mode = "{mode}", scales = [1.0, 1.0, {factor}, {factor}]>(images)')
    scales = np.array([1, 1, factor, factor], np.float32)
    return _old(opset, f'y = {operator}<mode = "{mode}">(images, scales)', {"scales": scales})


def _layers(opset: int, batch: int | str = "N") -> onnx.ModelProto:
    """Weights that are large enough to be cut out, and a free batch."""
    text = """a = Conv<pads = [1, 1, 1, 1]>(images, w) b = GlobalAveragePool(a) c = Flatten(b)
        y = Gemm<transB = 1>(c, m, bias)"""
    random, shapes = np.random.default_rng(3), {"w": (64, 3, 3, 3), "m": (32, 64), "bias": (32,)}
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return network(text, {"y": [batch, 32]}, weights, shape=[batch, 3, SIZE, SIZE], opset=opset)


_OLD = [
    *(_old(opset, "y = Softmax<axis = 1>(images)") for opset in (7, 12)),
    *(_upsample(*o) for o in itertools.product((7, 9, 10), ("nearest", "linear"), (2.0, 1.5))),
    _old(11, "a = ReduceSum<axes = [2, 3]>(images) y = Squeeze<axes = [2, 3]>(a)"),
    *map(_layers, (7, 12)),
]


def _name(model: onnx.ModelProto) -> str:
    return f"{model.graph.node[-1].op_type} {model.opset_import[0].version}"


def _run(model: onnx.ModelProto, image: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": image})[0])


@pytest.mark.parametrize("original", _OLD, ids=_name)
def test_an_old_opset_computes_the_same_after_raising(tmp_path: Path, original: onnx.ModelProto) -> None:
    found = examined(tmp_path, original)
    assert found.report.passed, found.report.findings
    assert found.report.used_opset == 13
    raised = onnx.ModelProto.FromString(found.skeleton)
    put_weights(raised, read_model(tmp_path / "model.onnx").weights)
    image = np.random.default_rng(1).normal(size=(1, 3, SIZE, SIZE)).astype(np.float32)
    before, after = _run(original, image), _run(raised, image)
    assert found.report.outputs[0].shape == before.shape
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_a_conversion_that_changes_the_result_is_refused(tmp_path: Path) -> None:
    """onnx's converter leaves Hardmax alone, which meant all axes from the given one on before opset 13."""
    [finding] = report_on(tmp_path, _old(11, "y = Hardmax<axis = 1>(images)")).of("error")
    assert finding.what == "raising opset 11 to 13 changes what it computes: output 'y' is off by up to 1"


def test_an_opset_outside_the_range(tmp_path: Path) -> None:
    for opset, expected in (
        (6, "opset 6, expected 7 or higher"),
        (-3, "opset -3, expected 7 or higher"),
        (None, "names no ai.onnx opset"),
        (22, "opset 22, but ONNX Runtime 1.20.1 on arm64 runs up to 21"),
    ):
        model = _layers(13)
        if opset is None:
            del model.opset_import[:]
        else:
            model.opset_import[0].version = opset
        [finding] = report_on(tmp_path, model).of("error")
        assert expected in finding.what
        assert finding.next_step.startswith("export it")


def test_a_newer_ir_version_is_lowered_and_said(tmp_path: Path) -> None:
    model = _layers(17)
    model.ir_version = 11 if onnx.IR_VERSION >= 11 else 10
    found = examined(tmp_path, model)
    assert (found.report.passed, found.report.ir_version) == (True, model.ir_version)
    assert onnx.ModelProto.FromString(found.skeleton).ir_version == 10
    said = [f.what for f in found.report.findings if f.rule == "ir-version"]
    assert len(said) == (model.ir_version > 10)


@pytest.mark.parametrize("version", [0, onnx.IR_VERSION + 1])
def test_an_ir_version_that_nobody_knows(tmp_path: Path, version: int) -> None:
    model = _layers(17)
    model.ir_version = version
    [finding] = report_on(tmp_path, model).findings
    assert f"IR version {version}, expected 1 to {onnx.IR_VERSION}" in finding.what


def test_weights_of_a_very_old_file_are_no_inputs_any_more(tmp_path: Path) -> None:
    """Before IR version 4 every weight was an input too; then it could not be folded."""
    model = _layers(9)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims)))
    found = examined(tmp_path, model)
    assert found.report.passed, found.report.findings
    raised = onnx.ModelProto.FromString(found.skeleton)
    put_weights(raised, read_model(tmp_path / "model.onnx").weights)
    assert [i.name for i in raised.graph.input] == ["images"]


# Weights that are no numbers, what training left behind, and what a model costs, worked out by hand.


def _conv(weight: np.ndarray) -> onnx.ModelProto:
    text = "c = Conv<pads = [1, 1, 1, 1]>(images, w) y = GlobalAveragePool(c)"
    return network(text, {"y": [1, weight.shape[0], 1, 1]}, {"w": weight})


def _with(value: float, count: int, filters: int) -> np.ndarray:
    weight = np.ones((filters, 3, 3, 3), np.float32)
    weight.reshape(-1)[5 : 5 + count] = value
    return weight


@pytest.mark.parametrize("filters", [4, 64])  # small ones stay in the skeleton, large ones are cut out
@pytest.mark.parametrize(
    ("value", "rule", "expected"),
    [
        (np.nan, "nan-weight", "weight 'w': 3 of its {} values are NaN"),
        (np.inf, "infinite-weight", "weight 'w' of Conv: 3 of its {} values are infinite"),
    ],
)
def test_weights_that_are_no_numbers(tmp_path: Path, filters: int, value: float, rule: str, expected: str) -> None:
    finding = only(report_on(tmp_path, _conv(_with(value, 3, filters))), rule)
    assert (finding.severity, finding.where, finding.what) == ("error", "w", expected.format(filters * 27))


def test_of_other_floating_point_types_and_of_constant_nodes_too(tmp_path: Path) -> None:
    text = "f = Cast<to = 1>(w) c = Conv(images, f) y = GlobalAveragePool(c)"
    for element in (np.float16, np.float64):
        model = network(text, {"y": [1, 64, 1, 1]}, {"w": _with(np.nan, 2, 64).astype(element)})
        assert "2 of its" in only(report_on(tmp_path, model), "nan-weight").what
    value = numpy_helper.from_array(_with(np.nan, 1, 4), "value")
    model = _conv(np.ones((4, 3, 3, 3), np.float32))
    del model.graph.initializer[:]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=value))
    assert only(report_on(tmp_path, model), "nan-weight").where == "w"


def test_infinities_that_are_meant(tmp_path: Path) -> None:
    """Bounds of Clip, a mask that is added before Softmax, what Where fills in, the start of a maximum."""
    mask = np.zeros((1, 3, SIZE, SIZE), np.float32)
    mask[..., 4:] = -np.inf
    text = """a = Clip(images, , most) b = Add(a, mask) c = Softmax<axis = 3>(b) d = Greater(c, half)
        e = Where(d, least, c) f = Max(e, least) y = GlobalMaxPool(f)"""
    weights = {"most": np.float32(np.inf), "least": np.float32(-np.inf), "half": np.float32(0.5), "mask": mask}
    model = network(text, {"y": [1, 3, 1, 1]}, {name: np.asarray(value) for name, value in weights.items()})
    assert report_on(tmp_path, model).findings == ()


def _normalized(variance: list[float], attributes: str = "") -> onnx.ModelProto:
    ones = np.ones(3, np.float32)
    weights = {"s": ones, "b": ones, "m": ones, "v": np.array(variance, np.float32)}
    return network(f"y = BatchNormalization{attributes}(images, s, b, m, v)", weights=weights)


def test_a_variance_below_zero(tmp_path: Path) -> None:
    finding = only(report_on(tmp_path, _normalized([1, -2, 3])), "variance")
    assert "'v' of BatchNormalization goes down to -2" in finding.what
    assert report_on(tmp_path, _normalized([1, 0, 3])).passed


def _dropout(mode: str, constant: str = "") -> onnx.ModelProto:
    weights = {"half": np.array(0.5, np.float32), "on": np.array(True), "off": np.array(False)}
    return network(f"{constant} y = Dropout(images, half{mode})", weights=weights)


def test_what_training_left_behind(tmp_path: Path) -> None:
    for model, expected in (
        (_dropout(", on"), "node 'y' (Dropout) drops values at random"),
        (_dropout(", yes", "yes = Constant<value = bool {1}>()"), "node 'y' (Dropout) drops values at random"),
        (_normalized([1, 1, 1], "<training_mode = 1>"), "node 'y' (BatchNormalization) is in training mode"),
        (network("a = RandomNormalLike(images) y = Add(images, a)"), "node 'a' (RandomNormalLike) draws random num"),
    ):
        finding = only(report_on(tmp_path, model), "training")
        assert (finding.severity, finding.what[: len(expected)]) == ("error", expected)
        assert finding.next_step.startswith("export it")


@pytest.mark.parametrize("mode", ["", ", off"])
def test_a_dropout_that_does_nothing_is_fine(tmp_path: Path, mode: str) -> None:
    model = _dropout(mode)
    model.training_info.add().algorithm.name = "sgd"
    [note] = report_on(tmp_path, model).findings
    assert (note.rule, note.severity) == ("training", "note")  # of the instructions for training


def test_multiply_accumulates() -> None:
    for operator, inputs, output, attributes, expected in (
        # output 16x5x5, each from 3x3x3
        ("Conv", [(1, 3, 8, 8), (16, 3, 3, 3)], (1, 16, 5, 5), {}, 16 * 5 * 5 * 27),
        # depthwise: one channel a filter
        ("Conv", [(1, 8, 6, 6), (8, 1, 3, 3), (8,)], (1, 8, 6, 6), {"group": 8}, 8 * 6 * 6 * 9),
        ("QLinearConv", [(1, 3, 8, 8), (), (), (16, 3, 3, 3)], (1, 16, 5, 5), {}, 16 * 5 * 5 * 27),
        # every one of 3x8x8 inputs goes through 16x2x2
        ("ConvTranspose", [(1, 3, 8, 8), (3, 16, 2, 2)], (1, 16, 16, 16), {}, 3 * 8 * 8 * 16 * 4),
        ("MatMul", [(2, 7, 5), (5, 4)], (2, 7, 4), {}, 2 * 7 * 4 * 5),
        ("Gemm", [(2, 5), (5, 4), (4,)], (2, 4), {}, 2 * 4 * 5),
        ("Gemm", [(5, 2), (5, 4)], (2, 4), {"transA": 1}, 2 * 4 * 5),
        ("Relu", [(1, 3, 8, 8)], (1, 3, 8, 8), {}, 0),
    ):
        values = {f"x{index}": Value("float", shape) for index, shape in enumerate(inputs)}
        node = helper.make_node(operator, [*values], ["y"], **attributes)
        assert node_macs(node, {**values, "y": Value("float", output)}) == expected, operator


def test_the_peak_is_what_lives_at_once(tmp_path: Path) -> None:
    text = "a = Conv(images, w1) b = Conv(a, w2) c = Relu(b) y = Concat<axis = 1>(a, c)"
    weights = {"w1": np.ones((4, 3, 1, 1), np.float32), "w2": np.ones((2, 4, 1, 1), np.float32)}
    report = report_on(tmp_path, network(text, {"y": [1, 6, SIZE, SIZE]}, weights))
    costs, area = report.costs, SIZE * SIZE
    # At the last node a (4), c (2) and y (6); images and b are free by then.
    assert (costs.peak_activation_bytes, costs.peak_node) == ((4 + 2 + 6) * area * 4, "y")
    assert (costs.macs, costs.unknown_nodes) == (area * (4 * 3 + 2 * 4), 0)
    assert (costs.parameters, costs.weight_bytes) == (12 + 8, 80)
    operators = [(use.name, use.nodes, use.macs) for use in report.operators]
    assert operators == [("Conv", 2, area * 20), ("Concat", 1, 0), ("Relu", 1, 0)]


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    report = report_on(tmp_path, network('y = Einsum<equation = "nchw,nchw->nchw">(images, images)'))
    assert only(report, "costs").what == "the multiply-accumulates of Einsum are not counted"


def test_more_than_the_board_has(tmp_path: Path) -> None:
    text = "a = Tile(images, times) b = Neg(a) c = Add(a, b) y = ReduceMean<axes = [2, 3]>(c)"
    model = network(text, {"y": [1, 3, 1, 1]}, {"times": np.array([1, 1, 1000, 1000])})
    finding = only(report_on(tmp_path, model, target="raspberry_pi_zero_2w"), "memory")
    said = "weights and activations take 549 MiB even in INT8, raspberry_pi_zero_2w has 512"
    assert (finding.where, finding.what) == ("c", said)
