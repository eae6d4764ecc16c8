"""`python -m benchmarks.session_cost`: what our session costs above a bare `InferenceSession.run`, in microseconds.

A model of one Relu, so that hardly anything but the call is left; everything in turn in one process, medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from edge_sdk.frame import Frame, Geometry, Prepared, Tensor
from edge_sdk.session import Session, SessionSettings

ROUNDS = 400
CALLS = 25  # of one, then of the next: each in the caches that it would have alone
SHAPES = ((1, 3, 4, 4), (1, 3, 224, 224))


def main() -> None:
    """Measure and print one table a shape."""
    print(
        f"Python {sys.version.split()[0]}, ONNX Runtime {ort.__version__}; medians of {ROUNDS} rounds of {CALLS} calls"
    )
    for shape in SHAPES:
        found = _measure(_calls(shape))
        bare = found["InferenceSession.run"]
        print(f"\n{'x'.join(map(str, shape))}\n\n| call | us | above the bare run, us |\n|---|---|---|")
        for name, took in found.items():
            print(f"| {name} | {took:.2f} | {took - bare:+.2f} |")


def _calls(shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    model, tensor = _relu(shape), np.zeros(shape, np.float32)
    session = Session(model, SessionSettings(), "relu")
    bare, inputs = session.inference, {session.input_name: tensor}
    binding = _bound(bare, tensor)
    frame = Frame(np.zeros((8, 8, 3), np.uint8), 0, 0.0, 0, "camera")
    prepared = Prepared(tensor, Geometry(1.0, 1.0, 0.0, 0.0), frame)
    others = (tensor, tensor.copy())
    turn = iter(range(sys.maxsize))
    return {
        "InferenceSession.run": lambda: bare.run(None, inputs),
        "InferenceSession.run_with_iobinding, bound once": lambda: bare.run_with_iobinding(binding),
        "Session.run, same tensor": lambda: session.run(tensor),
        "Session(prepared), as in the loop": lambda: session(prepared),
        "Session.run, another tensor each time": lambda: session.run(others[next(turn) % 2]),
    }


def _measure(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            took[name].append((time.perf_counter_ns() - start) / CALLS / 1e3)
    return {name: statistics.median(values) for name, values in took.items()}


def _bound(session: ort.InferenceSession, tensor: Tensor) -> ort.IOBinding:
    binding, output = session.io_binding(), np.empty_like(tensor)
    binding.bind_input("x", "cpu", 0, np.float32, tensor.shape, tensor.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, output.shape, output.ctypes.data)
    return binding


def _relu(shape: tuple[int, ...]) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
