"""Counting for real: an emulated core, an arm64 ONNX Runtime and the plugin, on small convolutions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import ModelError
from edge_sdk_tools.arm_cost.counter import CPUS, Counter, Cpu, board_outputs
from edge_sdk_tools.arm_cost.estimate import estimate
from edge_sdk_tools.graph.profile import host_saturates
from edge_sdk_tools.quantize.convert import convert
from edge_sdk_tools.quantize.forms import core_form

pytestmark = [pytest.mark.system, pytest.mark.arm64]

SIDE, CHANNELS, FILTERS, KERNEL = 32, 32, 64, 3
MACS = SIDE * SIDE * CHANNELS * FILTERS * KERNEL * KERNEL
SAME = 1.001  # counts of the same thing differ by at most .1 %


def convolution(path: Path, *, integer: bool) -> Path:
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (FILTERS, CHANNELS, KERNEL, KERNEL)).astype(np.int8)
    constants = {"w": weight if integer else weight.astype(np.float32) / 127}
    inputs = ["x", "w"]
    if integer:
        scale, zero = np.float32(0.02), np.uint8(128)
        constants |= {"x_scale": scale, "x_zero": zero, "w_scale": scale, "w_zero": np.int8(0)}
        constants |= {"y_scale": np.float32(20), "y_zero": zero}
        inputs = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
    of = f"{'uint8' if integer else 'float'}[batch,"
    text = f"""convolution ({of}{CHANNELS},{SIDE},{SIDE}] x) => ({of}{FILTERS},{SIDE},{SIDE}] y)
        {{ y = {"QLinearConv" if integer else "Conv"}<pads=[1,1,1,1]>({", ".join(inputs)}) }}"""
    onnx.save(_model(text, constants, ir_version=8), path)
    return path


def _model(text: str, constants: Mapping[str, np.ndarray], ir_version: int) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


@pytest.mark.parametrize("cpu", CPUS)
def test_int8_costs_fewer_instructions_and_the_kernels_are_the_core_s(
    counter: Counter, tmp_path: Path, cpu: Cpu
) -> None:
    fp32 = counter.count(convolution(tmp_path / "fp32.onnx", integer=False), cpu)
    int8 = counter.count(convolution(tmp_path / "int8.onnx", integer=True), cpu)
    assert int8.total < fp32.total
    assert sum(fp32.by_class.values()) == fp32.total
    # Four products in an instruction of floats, eight in a widening one, sixteen in a dot product; some for the edges.
    assert MACS / 4 <= fp32.by_class["fmla"] < MACS / 4 * 1.2
    assert fp32.integer_share < 0.01
    assert int8.integer_share > 0.99
    dots = int8.by_class["sdot"] + int8.by_class["udot"]
    if cpu == "cortex-a76":
        assert MACS / 16 <= dots < MACS / 16 * 1.2
    else:
        assert dots == 0
        assert int8.by_class["smlal"] >= MACS / 8


def test_the_same_model_counts_the_same_twice(counter: Counter, tmp_path: Path) -> None:
    model = convolution(tmp_path / "int8.onnx", integer=True)
    first, second = (counter.count(model, "cortex-a76") for _ in range(2))
    assert 1 / SAME < first.total / second.total < SAME
    estimated = estimate(first, load_target("raspberry_pi_5"))
    assert estimated is not None
    assert estimated.low_ms < estimated.latency_ms < estimated.high_ms


def test_a_file_that_is_no_model_is_one_line(counter: Counter, tmp_path: Path) -> None:
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"junk")
    with pytest.raises(ModelError, match=r"junk\.onnx: ONNX Runtime on an emulated cortex-a76 cannot run it") as caught:
        counter.count(junk, "cortex-a76")
    assert "\n" not in str(caught.value)


_SATURATES = pytest.mark.skipif(host_saturates(), reason="sums of INT8 saturate on this CPU, which has no VNNI")


@_SATURATES
def test_a_model_says_the_same_there_as_here(counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolution(tmp_path / "int8.onnx", integer=True)
    random = np.random.default_rng(1)
    tensors = [random.integers(0, 256, (1, CHANNELS, SIDE, SIDE)).astype(np.uint8) for _ in range(2)]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with board_outputs(counter, model, "cortex-a76", tensors, 60) as board:
        outputs = board()
    for (got,), tensor in zip(outputs, tensors, strict=True):
        np.testing.assert_array_equal(got, session.run(None, {"x": tensor})[0])
    # A build keeps its files in a folder that may be named relatively.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", ".")
    assert counter.count(Path("int8.onnx"), "cortex-a76").total > 0
    with board_outputs(counter, Path("int8.onnx"), "cortex-a76", tensors[:1], 60) as board:
        np.testing.assert_array_equal(board()[0][0], outputs[0][0])
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]


# Offset weights on a Cortex-A72: fewer instructions, and no sum that leaves its 16 bits.

CORE = "cortex-a72"
_SIDE, _CHANNELS, _FILTERS = 7, 72, 48
LARGEST_SUM = _CHANNELS * 3 * 3 * 127 * 255
FINE = 5000.0  # what filters of random signs sum up to is some hundred times as much


def extreme_weights(limit: int, channels: int = _CHANNELS) -> np.ndarray:
    """Filters of the lowest and the highest integer only: all alike, in turn, in pairs, at random; and any integers."""
    random = np.random.default_rng(4)
    weights = random.choice(np.array([-limit, limit], np.int8), (_FILTERS, channels, 3, 3))
    weights[0], weights[1] = -limit, limit
    weights[2:4] = -limit
    weights[2, ::2], weights[3, 1::4] = limit, limit
    weights[3, ::4] = limit
    weights[4:8] = random.integers(-limit, limit + 1, (4, channels, 3, 3))
    return weights.astype(np.int8)


def extreme_inputs() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    shape = (1, _CHANNELS, _SIDE, _SIDE)
    drawn = [random.choice(np.array([0, 255], np.uint8), shape) for _ in range(3)]
    turns = np.where(np.arange(_CHANNELS).reshape(1, -1, 1, 1) % 2, 255, 0) + np.zeros(shape)
    return [value.astype(np.uint8) for value in (np.zeros(shape), np.full(shape, 255), turns, 255 - turns, *drawn)]


def extremes(weights: np.ndarray, zero: int, step: float, groups: int = 1) -> onnx.ModelProto:
    """One convolution in QDQ form between unsigned integers; a step is as much of a sum as one of the output's."""
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
    text = f"""extremes (uint8[1,{channels},{_SIDE},{_SIDE}] x) => (uint8[1,{len(weights)},{_SIDE},{_SIDE}] y) {{
        a = DequantizeLinear(x, x_scale, x_zero) w = DequantizeLinear<axis=0>(weights, scales, zeros)
        b = Conv<pads=[1,1,1,1], group={groups}>(a, w) y = QuantizeLinear(b, y_scale, y_zero) }}"""
    proto = _model(text, constants, ir_version=9)
    proto.graph.node[2].name = "conv"
    return proto


def offset_anyway(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The weights less 1, whatever comes of it."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    constants = {w.name: w for w in copy.graph.initializer}
    for name in ("weights", "zeros"):
        less = numpy_helper.to_array(constants[name]) - np.int8(1)
        constants[name].CopyFrom(numpy_helper.from_array(less, name))
    return copy


def written(proto: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir()
    onnx.save(proto, folder / "model.onnx")
    return convert(folder / "model.onnx", load_target("raspberry_pi_4"), folder).model


def wrong_share(counter: Counter, model: Path, tensors: list[np.ndarray]) -> float:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with board_outputs(counter, model, CORE, tensors, 120) as board:
        outputs = board()
    assert len(outputs) == len(tensors)
    here = [session.run(None, {"x": tensor})[0] for tensor in tensors]
    assert max(np.ptp(value) for value in here) > 50
    return float(np.mean([a != b for (a,), b in zip(outputs, here, strict=True)]))


@_SATURATES
@pytest.mark.parametrize("step", [LARGEST_SUM / 127, FINE])
@pytest.mark.parametrize("zero", [0, 128, 255])
def test_no_sum_leaves_its_bits_at_the_limits(counter: Counter, tmp_path: Path, zero: int, step: float) -> None:
    form = core_form(extremes(extreme_weights(126), zero, step), CORE)
    assert form is not None
    assert wrong_share(counter, written(form, tmp_path / "form"), extreme_inputs()) == 0


def test_one_more_would_leave_them(counter: Counter, tmp_path: Path) -> None:
    """The inputs and weights above are extremes indeed: where this passes no more, the limit is not needed any more."""
    proto = extremes(extreme_weights(127), 128, FINE)
    assert core_form(proto, CORE) is None
    assert wrong_share(counter, written(offset_anyway(proto), tmp_path / "beyond"), extreme_inputs()) > 0.01


def test_what_is_offset_takes_fewer_instructions_and_what_is_not_would_take_more(
    counter: Counter, tmp_path: Path
) -> None:
    def count(proto: onnx.ModelProto, name: str) -> int:
        return counter.count(written(proto, tmp_path / name), CORE).total

    wide = extremes(extreme_weights(126), 128, FINE)
    form = core_form(wide, CORE)
    assert form is not None
    assert count(form, "wide_form") < 0.9 * count(wide, "wide")
    deep = extremes(extreme_weights(126, 1), 128, FINE, groups=_FILTERS)
    assert core_form(deep, CORE) is None
    assert count(deep, "deep") < count(offset_anyway(deep), "deep_form")
