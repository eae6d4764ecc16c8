"""Graphs that take levels: the same outputs to the last bit, or a reason in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from edge_sdk.frame import Frame
from edge_sdk.lookup import integer_tables
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings
from edge_sdk.target import load_target
from edge_sdk_tools.dataset import find_images
from edge_sdk_tools.host_cpu import host_saturates
from edge_sdk_tools.pixel_input import LevelGraph, level_graphs, level_model, with_fourth_channel
from edge_sdk_tools.quantize import first_recipe, pixel_range, quantize, simplify, watch_activations
from tests.device import tiny
from tests.host.images import picture, write_pictures

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
        (tiny.classifier(size=SIDE), CENTRED, ["NHWC BGR", "NCHW RGB"]),
        (tiny.classifier(size=SIDE), msgspec.structs.replace(CENTRED, color="BGR"), ["NHWC BGR", "NCHW BGR"]),
        (_in_nhwc(tiny.classifier(size=SIDE)), msgspec.structs.replace(SPEC, layout="NHWC"), ["NHWC BGR", "NCHW RGB"]),
        (_convolution(3, group=3), CENTRED, ["NHWC RGB", "NCHW RGB"]),
        (_convolution(1, group=1), msgspec.structs.replace(CENTRED, color="GRAY"), ["NCHW GRAY"]),
    ],
    ids=["zero mean", "a mean", "BGR", "NHWC", "depthwise", "gray"],
)
def test_levels_give_every_bit_that_floats_give(
    tmp_path: Path, model: onnx.ModelProto, spec: InputSpec, expected: list[str]
) -> None:
    """With the letterbox's padding and the convolution's own, before conversion and after it, for both machines."""
    proto = _quantized(tmp_path / "q", model, spec)
    graphs = _graphs(proto, spec)
    assert [f"{graph.tensor.layout} {graph.tensor.color}" for graph in graphs] == expected
    floats = _outputs(proto.SerializeToString(), Prepare(spec))
    assert len(set(floats)) == len(floats)  # every picture has another result
    four = with_fourth_channel(proto, spec)
    assert (four is not None) == ("BGR" in expected[0])  # as soon as convolutions of all channels alone read the input
    assert four is None or four.tensor.color == spec.color + "A"
    for number, graph in enumerate([*graphs, *([four] if four else [])]):
        onnx.checker.check_model(graph.proto, full_check=True)
        for target in ("x86_64", "arm64"):
            folder = tmp_path / f"{number}_{target}"
            folder.mkdir()
            converted = level_model(graph, load_target(target), folder).converted
            prepare = Prepare(spec, graph.tensor)
            assert _outputs(graph.proto.SerializeToString(), prepare) == floats
            assert _outputs(converted.model.read_bytes(), prepare) == floats


def test_a_per_tensor_scale_lets_colours_change_places_too(tmp_path: Path) -> None:
    proto = _quantized(tmp_path / "q", tiny.classifier(size=SIDE), SPEC, per_channel=False)
    [graph, _] = _graphs(proto, SPEC)
    assert graph.tensor.color == "BGR"
    prepare = Prepare(SPEC, graph.tensor)
    assert _outputs(graph.proto.SerializeToString(), prepare) == _outputs(proto.SerializeToString(), Prepare(SPEC))


def test_weights_that_serve_another_layer_too_keep_their_colours(tmp_path: Path) -> None:
    model = _convolution(3, group=1)
    model.graph.node.insert(1, helper.make_node("Conv", ["images", "w"], ["d"], name="second", pads=[1] * 4))
    model.graph.node.insert(2, helper.make_node("Relu", ["d"], ["planes"], name="relu"))
    model.graph.node.insert(3, helper.make_node("Add", ["c", "planes"], ["sum"], name="add"))
    model.graph.node[-1].input[0] = "sum"
    proto = _quantized(tmp_path / "q", model, SPEC)
    [graph, _] = _graphs(proto, SPEC)
    prepare = Prepare(SPEC, graph.tensor)
    assert _outputs(graph.proto.SerializeToString(), prepare) == _outputs(proto.SerializeToString(), Prepare(SPEC))


@pytest.mark.parametrize("spec", [SPEC, CENTRED, InputSpec(size_wh=(SIDE, SIDE), mean=(255.0,) * 3, std=(0.5,) * 3)])
def test_the_input_of_a_build_has_an_integer_for_every_level(spec: InputSpec) -> None:
    found = pixel_range(spec)
    assert not isinstance(found, str)
    low, high = found
    assert (high - low) / 255 == pytest.approx(1 / spec.std[0], rel=1e-12)
    assert -low * spec.std[0] == spec.mean[0]


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        ((127.5,) * 3, (127.5,) * 3, "input.mean is 127.5, and a zero point is a whole number of 0-255"),
        ((256.0,) * 3, (128.0,) * 3, "input.mean is 256, and a zero point"),
        ((-1.0,) * 3, (128.0,) * 3, "input.mean is -1, and a zero point"),
        ((0.0,) * 3, (-255.0,) * 3, "input.std is -255, and a scale is positive"),
        ((0.0,) * 3, (58.0, 57.0, 57.0), "input.mean and input.std differ between channels"),
        ((124.0, 116.0, 104.0), (1.0,) * 3, "input.mean and input.std differ between channels"),
    ],
)
def test_integers_that_are_no_levels_are_made_on_the_device(tmp_path: Path, mean: Any, std: Any, expected: str) -> None:
    spec = InputSpec(size_wh=(SIDE, SIDE), mean=mean, std=std)
    found = pixel_range(spec)
    assert isinstance(found, str)
    assert found.startswith(expected)
    proto = _quantized(tmp_path / "q", tiny.classifier(size=SIDE), spec)
    floats = _outputs(proto.SerializeToString(), Prepare(spec))
    assert len(set(floats)) == len(floats)  # every picture has another result
    four = with_fourth_channel(proto, spec)
    assert four is not None
    for graph in (four, *_graphs(proto, spec)):
        assert graph.tensor.scale is not None
        assert _outputs(graph.proto.SerializeToString(), Prepare(spec, graph.tensor)) == floats


def test_a_gray_input_asks_for_its_own_channel_only() -> None:
    spec = InputSpec(size_wh=(SIDE, SIDE), color="GRAY", mean=(0.0, 9.5, 9.5), std=(255.0, 1.0, 1.0))
    assert pixel_range(spec) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"float_nodes": ("first",)}, "Conv reads the input in float"),
        ({"activation_type": "QInt8"}, "the input's integers are int8, and those of a device uint8"),
    ],
)
def test_a_graph_whose_integers_are_no_levels_stays_as_it_is(tmp_path: Path, changes: Any, expected: str) -> None:
    assert level_graphs(_quantized(tmp_path / "q", tiny.classifier(size=SIDE), SPEC, **changes), SPEC) == expected


def test_a_pool_before_the_first_layer_is_float(tmp_path: Path) -> None:
    proto = _quantized(tmp_path / "q", tiny.segmenter(SIDE), SPEC)
    assert level_graphs(proto, SPEC) == "AveragePool reads the input in float"


def test_a_range_from_dark_pictures_has_no_integer_for_bright_levels(tmp_path: Path) -> None:
    half = msgspec.structs.replace(SPEC, std=(510.0,) * 3)  # what calibrates seems half as bright as what will come
    proto = _quantized(tmp_path / "q", tiny.classifier(size=SIDE), half, known=False)
    [graph, _] = _graphs(proto, SPEC)
    tables = integer_tables(SPEC, graph.tensor)
    assert [table[[0, 1, 127, 128, 255]].tolist() for table in tables] == [[0, 2, 254, 255, 255]] * 3
    floats = _outputs(proto.SerializeToString(), Prepare(SPEC))
    assert _outputs(graph.proto.SerializeToString(), Prepare(SPEC, graph.tensor)) == floats
