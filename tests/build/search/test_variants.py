"""Variants: sizes and precisions of one bundle, each measured, each within its gates or left out."""

import re
from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Difference, Rating, ratings
from edge_sdk.bundle.target import load_target
from edge_sdk.cli.root import run
from edge_sdk.core.errors import AccuracyGateError, ModelError, SizeGateError, UsageError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk.tasks.decoders import make_stage
from edge_sdk_tools.build import variants
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.variants import Request, parse_sizes
from edge_sdk_tools.prove import parity
from edge_sdk_tools.prove.golden import replay_variants
from edge_sdk_tools.quantize.convert import MAKERS, bare, float_file, with_half_weights
from edge_sdk_tools.quantize.quantize import Recipe
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.search import variant as search_variant
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.models import flat_detector, mixer, wide_classifier
from tests.support.program import Cli
from tests.support.projects import CLASSIFIER, DETECTOR, write_labelled, write_project
from tests.support.reports import from_json


def test_each_is_carried_with_what_the_device_needs_to_choose(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=tiny.wide_classifier())
    request = Request(sizes=((24, 32), (16, 16)), precisions=frozenset({"fp32", "fp16"}))
    report = build(model, "x86_64", tmp_path / "a.edge", variants=request)
    bundle = Bundle.open(tmp_path / "a.edge")
    found = {v.name: v for v in bundle.manifest.variants}
    assert list(found) == [row.name for row in report.variants] == ["int8", "int8.24x32", "fp32", "fp16"]
    assert bundle.manifest.input.size_wh == found["int8"].size_wh == (16, 16)
    assert found["int8.24x32"].size_wh == (24, 32)
    assert [v.integer_mac_share for v in found.values()] == [1.0, 1.0, None, None]
    assert [v.agreement is None for v in found.values()] == [False, False, True, False]
    assert all(v.host_latency_ms > 0 and v.quality is None and v.estimate is None for v in found.values())
    assert "com.microsoft:QLinearConv" in found["int8.24x32"].operators
    assert "ai.onnx:Cast" in found["fp16"].operators
    assert set(bundle.manifest.operators) == {name for v in found.values() for name in v.operators}
    assert [v.file.rpartition(".")[2] for v in found.values()] == ["ort", "ort", "onnx", "onnx"]
    config = bundle.read("required_operators_and_types.config").decode()
    for text in ("QLinearConv", "# model.fp32.onnx is ONNX", "# model.fp16.onnx is ONNX"):
        assert text in config
    assert not [text for text in ("model.int8", str(tmp_path)) if text in config]
    replay_variants(bundle)
    for name, variant in found.items():
        one = bundle.with_primary(name)
        session = Session.open(one)
        make_stage(one.manifest, len(bundle.labels()), session.output_shapes)
        taken = one.manifest.taken
        assert (session.input_shape, session.input_dtype) == (taken.shape(variant.size_wh), taken.dtype)
        assert one.manifest.input.size_wh == variant.size_wh


def test_a_size_has_ranges_of_its_own(tmp_path: Path) -> None:
    model = write_project(tmp_path, CLASSIFIER.replace("[16, 16]", "[256, 256]"), tiny.summer(256), pictures=32)
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=((16, 16),)))
    # Sums over 65536 pixels are 256 times those over 256: in the ranges of the first all of these would be one integer.
    assert [row.problem for row in report.variants] == [None, None]
    small = Bundle.open(tmp_path / "a.edge").with_primary("int8.16x16")
    assert max(float(abs(output - 1 / 3).max()) for output in [outputs[0] for _, outputs in small.golden()]) > 0.1


def test_the_difference_is_of_pairs_and_tuning_has_it(tmp_path: Path) -> None:
    float_model = tiny.wide_classifier()
    model = write_project(tmp_path, model=float_model)
    data = write_labelled(tmp_path / "labelled", float_model, 40, wrong=20)
    request = Request(sizes=((8, 8),), precisions=frozenset({"fp32"}))
    report = build(model, "x86_64", tmp_path / "a.edge", evaluation=[data], variants=request)
    manifest = Bundle.open(tmp_path / "a.edge").manifest
    by_name = {v.name: v.quality for v in manifest.variants}
    for row, quality in zip(report.variants, by_name.values(), strict=True):
        assert (row.metric, row.value, quality.images) == (quality.metric, quality.value, 40)
        assert quality.fp32 == by_name["fp32"].value
        assert quality.difference.value == pytest.approx(quality.value - quality.fp32)
    itself = by_name["fp32"].difference
    assert itself == Difference("fp32", 0.0, -itself.high, itself.high)
    int8, shown = by_name["int8"], report.quality[0].difference
    assert int8.difference == Difference("fp32", shown.value, shown.low, shown.high)
    # Every second image is right, so that its own interval is wide; where float says the same, the difference's is not.
    assert int8.difference.high - int8.difference.low < int8.high - int8.low
    metric, rated = ratings(manifest)
    assert metric == "top-1"
    assert rated["fp32"] == Rating(0.5, like_reference=True)
    assert rated["int8"].like_reference
    for name, quality in by_name.items():
        assert rated[name] == Rating(quality.value, like_reference=quality.difference.may_be_noise)


def test_what_does_not_hold_is_left_out_and_said(tmp_path: Path, cli: Cli) -> None:
    text = CLASSIFIER + "\n[gates]\nint8_min_agreement = 0.6\n"
    model = write_project(tmp_path, text, tiny.adder(), labels="a\nb\n", pictures=32)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--sizes", "256,12"]
    out = cli(0, *command).out
    assert "int8.256x256 IS LEFT OUT because INT8 agrees with FP32 on" in out
    assert [v.name for v in Bundle.open(tmp_path / "a.edge").manifest.variants] == ["int8", "int8.12x12"]
    assert not list((tmp_path / "a.edge").glob("*256*"))
    with pytest.raises(AccuracyGateError, match=r"int8\.256x256: INT8 agrees with FP32 on .* leave that size out"):
        build(model, "x86_64", tmp_path / "b.edge", require_int8=True, variants=Request(sizes=((256, 256),)))
    assert not (tmp_path / "b.edge").exists()


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_called_slow_was_timed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: bool) -> None:
    # Noise, which nothing real gives on demand: the first proof is of the first model, the second of the other size.
    times = iter([[5.0, 10.0], [20.0, 10.0]])
    monkeypatch.setattr(parity, "interleaved_latency_ms", lambda *_: next(times))
    again = [9.0, 5.0, 20.0, 10.0] if twice else [9.0, 5.0, 4.0, 10.0]
    monkeypatch.setattr(variants, "interleaved_latency_ms", lambda *_: again)
    model = write_project(tmp_path, model=tiny.wide_classifier())
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=((24, 24),)))
    assert (report.variants[1].problem is not None) is twice
    assert report.variants[1].latency_ratio == again[2] / 9.0
    assert len(Bundle.open(tmp_path / "a.edge").manifest.variants) == (1 if twice else 2)


def test_the_size_gate_is_for_each_model(tmp_path: Path) -> None:
    text = CLASSIFIER + "\n[gates]\nmax_size_mb = {}\n"
    model = write_project(tmp_path, text.format(0.05), tiny.wide_classifier())
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(precisions=frozenset({"fp32"})))
    assert "gates.max_size_mb allows 0.05" in report.variants[1].problem
    assert [v.name for v in Bundle.open(tmp_path / "a.edge").manifest.variants] == ["int8"]
    (tmp_path / "model.toml").write_text(text.format(0.001))
    with pytest.raises(SizeGateError):
        build(model, "x86_64", tmp_path / "b.edge", variants=Request(precisions=frozenset({"fp32"})))


def test_the_command_shows_a_row_for_each_model(tmp_path: Path, cli: Cli) -> None:
    model = write_project(tmp_path, model=tiny.wide_classifier())
    command = ["build", str(model), "--target", "arm64", "-o", str(tmp_path / "a.edge"), "--with-fp32"]
    out = cli(0, *command, "--sizes", "32").out
    for text in ("variants; time against the FP32 model as given, here", "int8.32x32", "fp32"):
        assert text in out
    assert "Models in the bundle" in (tmp_path / "a.edge" / "report.html").read_text()
    rows = from_json((tmp_path / "a.edge" / "report.json").read_bytes()).variants
    assert [(row.name, row.problem) for row in rows] == [("int8", None), ("int8.32x32", None), ("fp32", None)]
    assert rows[2].model_mb > 2 * rows[0].model_mb


YOLOV8 = DETECTOR.replace("yolov4", "yolov8").replace("[detection]\nanchors = [[[16, 16]]]\n", "")
_SCORES = CLASSIFIER.replace("classification", "segmentation").replace("[16, 16]", "[32, 32]")
_LOGITS = _SCORES.replace("softmax", "logits")


def test_sizes_are_read_and_what_is_no_size_is_refused() -> None:
    assert parse_sizes("640x384, 416,416x416,320") == ((640, 384), (416, 416), (320, 320))
    for text in ("", "416,", "416x", "41.5", "-8", "640*384", "٤١٦", "4", "416x9000"):
        assert "--sizes" in refusal(UsageError, parse_sizes, text)


MODELS = {
    "free sides": (CLASSIFIER, None, "a\nb\nc\n", (20, 28)),
    "yolov4": (DETECTOR, tiny.head_detector(), "red\nblue\n", (96, 48)),
    "yolov5": (YOLOV8.replace("yolov8", "yolov5"), flat_detector(yolov5=True), "red\nblue\n", (96, 32)),
    "yolov8": (YOLOV8, flat_detector(), "red\nblue\n", (32, 96)),
    "logits": (_LOGITS, tiny.segmenter(), "none\nred\nblue\n", (48, 24)),
    "argmax": (_SCORES.replace("softmax", "argmax"), tiny.segmenter(argmax=True), "none\nred\nblue\n", (24, 48)),
}


def _free_sides() -> onnx.ModelProto:
    proto = tiny.classifier()
    for axis, name in ((2, "height"), (3, "width")):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return proto


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_bundle_runs_at_the_other_size(tmp_path: Path, kind: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text, proto, labels, size_wh = MODELS[kind]
    model = write_project(tmp_path, text, proto or _free_sides(), labels=labels)
    build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=(size_wh,)))
    red = np.full((60, 90, 3), 110, np.uint8)
    red[..., 2] = 255
    cv2.imwrite(str(tmp_path / "red.png"), red)
    for variant in ("int8", f"int8.{size_wh[0]}x{size_wh[1]}"):
        flags = ["--source", str(tmp_path / "red.png"), "--variant", variant, "-q", "--trial-seconds", "0"]
        assert run(["run", str(tmp_path / "a.edge"), *flags]) == 0
    first, other = map(msgspec.json.decode, capsysbinary.readouterr().out.splitlines())
    [key] = {*first} & {"classes", "detections", "segments"}
    assert first[key][0]["label"] == other[key][0]["label"]


def _pooled_flat(size: int = 16) -> onnx.ModelProto:
    """Flattens a map, so that its last layer has weights for one size only."""
    random = np.random.default_rng(7)
    shapes = {"w1": (4, 3, 3, 3), "w2": (size * size, 3)}
    weights = {name: random.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    text = """first = Conv<pads=[1,1,1,1], strides=[2,2]>(images, w1) flat = Flatten(first) last = Gemm(flat, w2)
        probabilities = Softmax<axis=1>(last)"""
    return tiny.parsed(text, {"probabilities": [1, 3]}, weights, shape=[1, 3, size, size])


def test_a_model_for_one_size_is_refused_before_anything_slow(tmp_path: Path, cli: Cli) -> None:
    for text, proto, labels, size_wh, expected in (
        (CLASSIFIER, _pooled_flat(), "a\nb\nc\n", (24, 24), "last"),
        (YOLOV8, flat_detector(fixed_rows=True), "red\nblue\n", (96, 96), ""),
        (YOLOV8, flat_detector(offsets=True), "red\nblue\n", (96, 96), "place"),
    ):
        model = write_project(tmp_path, text, proto, labels=labels, pictures=0)  # nothing there to calibrate with
        size = f"{size_wh[0]}x{size_wh[1]}"
        command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--sizes", size]
        [line] = [line for line in cli(2, *command).err.splitlines() if "cannot" in line]
        said = f"model.onnx: --sizes {size}: the model cannot have this input size: "
        for text in (said, "export it with dynamic height and width", expected):
            assert text in line
        assert (".building-" in line, (tmp_path / "a.edge").exists()) == (False, False)


@pytest.mark.parametrize("kind", ["yolov4", "logits"])
def test_a_size_between_cells_is_refused(tmp_path: Path, kind: str) -> None:
    text, proto, labels, _ = MODELS[kind]
    model = write_project(tmp_path, text, proto, labels=labels, pictures=0)
    expected = r"layers divide its input by (16|4), expected a multiple of that: try (48x48|44x44|40x40)"
    with pytest.raises(UsageError, match=expected):
        build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=((42, 42),)))


def test_a_size_at_which_nothing_is_found_says_so(tmp_path: Path, cli: Cli) -> None:
    model = write_project(tmp_path, DETECTOR, tiny.head_detector(), labels="red\nblue\n", pictures=0)
    (tmp_path / "pictures").mkdir()
    for index in range(12):  # a bright cell of 64 pixels; of 16 pixels the only cell is dark
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[:16, :16] = (240 - index, 240, 250)
        cv2.imwrite(str(tmp_path / "pictures" / f"{index}.png"), picture)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--sizes"]
    error = cli(3, *command, "16").err.splitlines()[-1]
    assert re.search("at 16x16: .*finds nothing.*leave that size out$", error)
    assert not (tmp_path / "a.edge").exists()


# Precisions: float as ONNX or ORT, with half weights, and dynamic INT8 for products.


_SECRET = "/home/somebody/train.py"


def _exported() -> onnx.ModelProto:
    """A model with all that exporters and ONNX Runtime leave in a file."""
    proto = wide_classifier()
    proto.ir_version = 12
    proto.doc_string = proto.graph.doc_string = proto.graph.input[0].doc_string = _SECRET
    proto.metadata_props.add(key="trained by", value=_SECRET)
    for part in (*proto.graph.node, *proto.graph.initializer):
        part.doc_string = _SECRET
        part.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=_SECRET)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    proto.graph.value_info.append(helper.make_tensor_value_info("c1", TensorProto.FLOAT, [1, 32, 8, 8]))
    proto.training_info.add().algorithm.name = _SECRET
    return proto


def _written(folder: Path, proto: onnx.ModelProto, target: str) -> Path:
    folder.mkdir()
    onnx.save(proto, folder / "source.onnx")
    return float_file(folder / "source.onnx", load_target(target), folder).model


def test_what_travels_is_what_it_computes_and_nothing_else(tmp_path: Path) -> None:
    file = _written(tmp_path / "a", _exported(), "x86_64")
    data = file.read_bytes()
    assert data == _written(tmp_path / "b", _exported(), "x86_64").read_bytes()
    assert _SECRET.encode() not in data
    proto = onnx.load_model_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    assert [(one.domain, one.version) for one in proto.opset_import] == [("", tiny.OPSET)]
    # IR version 8 is the format of opset 17.
    assert (proto.ir_version, len(proto.graph.value_info), len(proto.training_info)) == (8, 0, 0)
    tensor = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    said = [Session(d, SessionSettings(), "m").run(tensor)[0] for d in (data, wide_classifier().SerializeToString())]
    assert said[0].tobytes() == said[1].tobytes()


def test_operator_sets_of_inner_graphs_stay() -> None:
    inner = onnx.parser.parse_graph("inner () => (float[1] y) { y = com.microsoft.Gelu(images) }")
    node = helper.make_node("If", ["c"], ["out"], then_branch=inner, else_branch=inner)
    proto = tiny.model([node], [1], {"out": [1]}, {"c": np.array(True)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert [one.domain for one in bare(proto).opset_import] == ["", "com.microsoft"]


@pytest.mark.parametrize(
    ("target", "suffix", "step"), [("x86_64_avx2", "onnx", "ONNX file"), ("arm64", "ort", "ORT file")]
)
def test_where_float_is_carried_it_travels_as_its_target_likes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, suffix: str, step: str
) -> None:
    # A model that is slower in INT8 for certain is none of a few kilobytes.
    monkeypatch.setattr(parity, "interleaved_latency_ms", lambda *_: [20.0, 10.0])
    monkeypatch.setattr(search_variant, "kernels_ms", lambda model, *_: 20.0 if "carried" in model.name else 10.0)
    path = write_project(tmp_path, model=wide_classifier(), pictures=16)
    request = Request(sizes=((24, 24),), precisions=frozenset({"fp16"}))
    build(path, target, tmp_path / "a.edge", bundle_version=1, variants=request)
    bundle = Bundle.open(tmp_path / "a.edge")
    files = [(name, f"model.{name}.{suffix}") for name in ("fp32", "fp32.24x24", "fp16")]
    assert [(v.name, v.file) for v in bundle.manifest.variants] == files
    replay_variants(bundle)
    shipped = next(one for one in from_json(bundle.read("report.json")).steps if one.shipped)
    assert (shipped.name, shipped.size_mb) == (step, len(bundle.read(f"model.fp32.{suffix}")) / 1e6)
    assert shipped.peak_memory_mb is not None
    config = bundle.read("required_operators_and_types.config").decode()
    said = [text in config for text in ("Conv", "is ONNX, which no reduced ONNX Runtime reads")]
    assert said == [suffix == "ort", suffix == "onnx"]
    assert all(any(name.endswith(":Conv") for name in one.operators) for one in bundle.manifest.variants)


def test_half_weights_halve_the_file_and_stay_half(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=wide_classifier())
    build(model, "x86_64", tmp_path / "a.edge", variants=Request(precisions=frozenset({"fp32", "fp16"})))
    bundle = Bundle.open(tmp_path / "a.edge")
    half, whole = (len(bundle.read(f"model.{name}.onnx")) for name in ("fp16", "fp32"))
    weights = sum(numpy_helper.to_array(w).size for w in wide_classifier().graph.initializer)
    assert whole - half > 1.8 * weights
    outputs = []
    for name in ("fp16", "fp32"):
        one = bundle.with_primary(name)
        [(image, _), *_] = one.golden()
        session, prepare = Session.open(one), Prepare.of(one.manifest)
        assert session.replay_golden(one, prepare) == 0
        outputs.append(session.run(prepare.normalise(image))[0].copy())
    assert 0 < np.abs(outputs[0] - outputs[1]).max() < 1e-2


def test_a_weight_beyond_float16_is_refused() -> None:
    proto = wide_classifier()
    weight = next(w for w in proto.graph.initializer if w.name == "w2")
    weight.CopyFrom(numpy_helper.from_array(np.full((64, 64), 70_000, np.float32), "w2"))
    assert "weight 'w2' holds values beyond 65504" in refusal(ModelError, with_half_weights, proto)


def test_products_are_quantized_dynamically_and_run_in_integers(tmp_path: Path) -> None:
    model = write_project(tmp_path, model=mixer())
    report = build(model, "x86_64", tmp_path / "a.edge", variants=Request(precisions=frozenset({"int8_dynamic"})))
    assert [(row.name, row.problem) for row in report.variants] == [("int8", None), ("int8_dynamic", None)]
    bundle = Bundle.open(tmp_path / "a.edge")
    dynamic = bundle.manifest.variants[1]
    assert (dynamic.precision, dynamic.integer_mac_share) == ("int8_dynamic", 1.0)
    assert any("MatMulInteger" in name or "DynamicQuantizeMatMul" in name for name in dynamic.operators)
    assert len(bundle.read(dynamic.file)) < 0.6 * onnx.load(tmp_path / "model.onnx").ByteSize()
    replay_variants(bundle)


@pytest.mark.parametrize(("reduce_range", "largest"), [(False, 127), (True, 64)])
def test_dynamic_weights_have_seven_bits_where_needed(tmp_path: Path, reduce_range: bool, largest: int) -> None:
    recipe = Recipe(precision="int8_dynamic", reduce_range=reduce_range)
    made = MAKERS[recipe.precision].write(simplify(mixer(16, 64), tmp_path), {}, recipe, tmp_path / "dynamic.onnx")
    assert sorted(made.macs.values()) == [64 * 3, 16 * 64 * 4 * 64, 16 * 64 * 4 * 64]
    arrays = map(numpy_helper.to_array, onnx.load(made.path).graph.initializer)
    integers = [array for array in arrays if array.dtype == np.int8 and array.ndim == 2]
    assert max(int(np.abs(array.astype(int)).max()) for array in integers) == largest


def test_dynamic_is_never_offered_for_convolutions(tmp_path: Path, cli: Cli) -> None:
    model = write_project(tmp_path, model=wide_classifier(), pictures=0)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--with-dynamic"]
    said = "0% of the model's multiply-accumulates are matrix products with weights.*slower than in float; leave it out"
    assert re.search(said, cli(2, *command).err)
