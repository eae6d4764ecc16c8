"""Offset weights on an emulated Cortex-A72: fewer instructions, and no sum that leaves its 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.target import load_target
from edge_sdk_tools.arm_cost import BoardOutputs, Counter
from edge_sdk_tools.convert import convert
from edge_sdk_tools.quantize import core_form

pytestmark = [pytest.mark.system, pytest.mark.arm64]

CORE = "cortex-a72"
SIDE, CHANNELS, FILTERS = 7, 72, 48
LARGEST_SUM = CHANNELS * 3 * 3 * 127 * 255
FINE = 5000.0  # what filters of random signs sum up to is some hundred times as much


def extreme_weights(limit: int, channels: int = CHANNELS) -> np.ndarray:
    """Filters of the lowest and the highest integer only: all alike, in turn, in pairs, at random; and any integers."""
    random = np.random.default_rng(4)
    weights = random.choice(np.array([-limit, limit], np.int8), (FILTERS, channels, 3, 3))
    weights[0], weights[1] = -limit, limit
    weights[2:4] = -limit
    weights[2, ::2], weights[3, 1::4] = limit, limit
    weights[3, ::4] = limit
    weights[4:8] = random.integers(-limit, limit + 1, (4, channels, 3, 3))
    return weights.astype(np.int8)


def extreme_inputs(channels: int = CHANNELS) -> list[np.ndarray]:
    """The lowest and the highest integer only, likewise."""
    random = np.random.default_rng(5)
    shape = (1, channels, SIDE, SIDE)
    drawn = [random.choice(np.array([0, 255], np.uint8), shape) for _ in range(3)]
    turns = np.where(np.arange(channels).reshape(1, -1, 1, 1) % 2, 255, 0) + np.zeros(shape)
    return [value.astype(np.uint8) for value in (np.zeros(shape), np.full(shape, 255), turns, 255 - turns, *drawn)]


def convolution(weights: np.ndarray, zero: int, step: float, groups: int = 1) -> onnx.ModelProto:
    """One convolution in QDQ form between unsigned integers, which it takes and gives as they are.

    Args:
        weights: int8.
        zero: the input's zero point.
        step: of sums, for one of the output's integers.
        groups: of channels.
    """
    channels = weights.shape[1] * groups
    constants = {
        "x_scale": np.float32(1),
        "x_zero": np.uint8(zero),
        "weights": weights,
        "scales": np.full(len(weights), 1, np.float32),
        "zeros": np.zeros(len(weights), np.int8),
        "y_scale": np.float32(step),
        "y_zero": np.uint8(128),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["weights", "scales", "zeros"], ["w"], axis=0),
        helper.make_node("Conv", ["a", "w"], ["b"], name="conv", pads=[1] * 4, group=groups),
        helper.make_node("QuantizeLinear", ["b", "y_scale", "y_zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "extremes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, channels, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, len(weights), SIDE, SIDE])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def offset_anyway(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The weights less 1, whatever comes of it."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    constants = {w.name: w for w in copy.graph.initializer}
    for name in ("weights", "zeros"):
        less = numpy_helper.to_array(constants[name]) - np.int8(1)
        constants[name].CopyFrom(numpy_helper.from_array(less, name))
    return copy


def written(proto: onnx.ModelProto, folder: Path) -> Path:
    """Its .ort file."""
    folder.mkdir()
    onnx.save(proto, folder / "model.onnx")
    return convert(folder / "model.onnx", load_target("raspberry_pi_4"), folder).model


def wrong_share(counter: Counter, model: Path, tensors: list[np.ndarray]) -> float:
    """Share of the board's outputs that are not this machine's."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with BoardOutputs(counter, model, CORE, tensors, 120) as board:
        outputs = board.finish()
    assert len(outputs) == len(tensors)
    here = [session.run(None, {"x": tensor})[0] for tensor in tensors]
    assert max(np.ptp(value) for value in here) > 50
    return float(np.mean([a != b for (a,), b in zip(outputs, here, strict=True)]))


@pytest.mark.parametrize("step", [LARGEST_SUM / 127, FINE])
@pytest.mark.parametrize("zero", [0, 128, 255])
def test_no_sum_leaves_its_bits_at_the_limits(counter: Counter, tmp_path: Path, zero: int, step: float) -> None:
    form = core_form(convolution(extreme_weights(126), zero, step), CORE)
    assert form is not None
    assert wrong_share(counter, written(form, tmp_path / "form"), extreme_inputs()) == 0


def test_one_more_would_leave_them(counter: Counter, tmp_path: Path) -> None:
    """The inputs and weights above are extremes indeed: where this passes no more, the limit is not needed any more."""
    proto = convolution(extreme_weights(127), 128, FINE)
    assert core_form(proto, CORE) is None
    assert wrong_share(counter, written(offset_anyway(proto), tmp_path / "beyond"), extreme_inputs()) > 0.01


def test_what_is_offset_takes_fewer_instructions_and_what_is_not_would_take_more(
    counter: Counter, tmp_path: Path
) -> None:
    def count(proto: onnx.ModelProto, name: str) -> int:
        return counter.count(written(proto, tmp_path / name), CORE).total

    wide = convolution(extreme_weights(126), 128, FINE)
    form = core_form(wide, CORE)
    assert form is not None
    assert count(form, "wide_form") < 0.9 * count(wide, "wide")
    deep = convolution(extreme_weights(126, 1), 128, FINE, groups=FILTERS)
    assert core_form(deep, CORE) is None
    assert count(deep, "deep") < count(offset_anyway(deep), "deep_form")
