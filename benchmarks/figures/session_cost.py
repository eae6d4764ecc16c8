"""What our session costs above a bare `InferenceSession.run`, in microseconds.

Run as `python -m benchmarks.figures.session_cost`.

A model of one Relu, so that hardly anything but the call is left; everything in turn in one process, medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import IO

import click
import msgspec
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from edge_sdk.core.frame import Frame, Geometry, Prepared, Tensor
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session

LIMIT_US = 10.0
_CALLS = 25  # of one, then of the next: each in the caches that it would have alone
_SHAPES = ((1, 3, 4, 4), (1, 3, 224, 224))
_BARE, _IN_LOOP = "InferenceSession.run", "Session(prepared), as in the loop"


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=400, show_default=True)
@click.option("--json", "json_file", type=click.File("wb"), help="Write the figures here too.")
def main(rounds: int, json_file: IO[bytes] | None) -> None:
    """Print one table a shape; exit code 4 where the limit is missed."""
    print(
        f"Python {sys.version.split()[0]}, ONNX Runtime {ort.__version__}; medians of {rounds} rounds of {_CALLS} calls"
    )
    above = {}
    for shape in _SHAPES:
        found = _measure(_calls(shape), rounds)
        name = "x".join(map(str, shape))
        above[name] = found[_IN_LOOP] - found[_BARE]
        print(f"\n{name}\n\n| call | us | above the bare run, us |\n|---|---|---|")
        for call, took in found.items():
            print(f"| {call} | {took:.2f} | {took - found[_BARE]:+.2f} |")
    if json_file is not None:
        rows = {name: {"wrapper_us": round(us, 2)} for name, us in above.items()}
        json_file.write(msgspec.json.format(msgspec.json.encode(rows)))
    sys.exit(4 if max(above.values()) > LIMIT_US else 0)


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
        _BARE: lambda: bare.run(None, inputs),
        "InferenceSession.run_with_iobinding, bound once": lambda: bare.run_with_iobinding(binding),
        "Session.run, same tensor": lambda: session.run(tensor),
        _IN_LOOP: lambda: session(prepared),
        "Session.run, another tensor each time": lambda: session.run(others[next(turn) % 2]),
    }


def _measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter_ns()
            for _ in range(_CALLS):
                call()
            took[name].append((time.perf_counter_ns() - start) / _CALLS / 1e3)
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
