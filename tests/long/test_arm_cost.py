"""Counting for real: an emulated core, an arm64 ONNX Runtime and the plugin, on a small convolution."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.errors import ModelError
from edge_sdk.target import load_target
from edge_sdk_tools.arm_cost import BoardOutputs, Counter, estimate
from edge_sdk_tools.arm_cost.counter import CPUS, Cpu

pytestmark = [pytest.mark.system, pytest.mark.arm64]

SIDE, CHANNELS, FILTERS, KERNEL = 32, 32, 64, 3
MACS = SIDE * SIDE * CHANNELS * FILTERS * KERNEL * KERNEL
SAME = 1.001  # counts of the same thing differ by at most .1 %


def convolution(path: Path, *, integer: bool) -> Path:
    """One convolution, in float or between 8-bit types as ONNX Runtime's quantizer writes it."""
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (FILTERS, CHANNELS, KERNEL, KERNEL)).astype(np.int8)
    kind = TensorProto.UINT8 if integer else TensorProto.FLOAT
    constants = {"w": weight if integer else weight.astype(np.float32) / 127}
    inputs = ["x", "w"]
    if integer:
        scale, zero = np.float32(0.02), np.uint8(128)
        constants |= {"x_scale": scale, "x_zero": zero, "w_scale": scale, "w_zero": np.int8(0)}
        constants |= {"y_scale": np.float32(20), "y_zero": zero}
        inputs = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
    graph = helper.make_graph(
        [helper.make_node("QLinearConv" if integer else "Conv", inputs, ["y"], pads=[1] * 4)],
        "convolution",
        [helper.make_tensor_value_info("x", kind, ["batch", CHANNELS, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", kind, ["batch", FILTERS, SIDE, SIDE])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


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


def test_a_model_says_the_same_there_as_here(counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolution(tmp_path / "int8.onnx", integer=True)
    random = np.random.default_rng(1)
    tensors = [random.integers(0, 256, (1, CHANNELS, SIDE, SIDE)).astype(np.uint8) for _ in range(2)]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with BoardOutputs(counter, model, "cortex-a76", tensors, 60) as board:
        outputs = board.finish()
    for (got,), tensor in zip(outputs, tensors, strict=True):
        np.testing.assert_array_equal(got, session.run(None, {"x": tensor})[0])
    # A build keeps its files in a folder that may be named relatively.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", ".")
    assert counter.count(Path("int8.onnx"), "cortex-a76").total > 0
    with BoardOutputs(counter, Path("int8.onnx"), "cortex-a76", tensors[:1], 60) as board:
        np.testing.assert_array_equal(board.finish()[0][0], outputs[0][0])
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]
