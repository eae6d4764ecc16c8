"""Settings of a session: what each one does, and not only that it arrives.

Counts of threads and kernels, memory, and processor time by wide margins: nothing here needs a quiet machine.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from edge_sdk.session import Event, Session, SessionSettings
from tests.device import tiny

RANDOM = np.random.default_rng(0)


def _open(model: onnx.ModelProto, **settings: Any) -> Session:
    return Session(model.SerializeToString(), SessionSettings(**settings), "m")


def _profile(folder: Path, model: onnx.ModelProto, runs: int = 1, **settings: Any) -> list[Event]:
    session = _open(model, profile_prefix=str(folder / "profile"), **settings)
    for _ in range(runs):
        session.run(np.zeros(session.input_shape, np.float32))
    return session.stop_profile()


def _convolutions(branches: int = 1, depth: int = 4, channels: int = 48, side: int = 64) -> onnx.ModelProto:
    """Convolutions, each with batch normalization and ReLU, in branches that need nothing of each other."""
    weights: dict[str, np.ndarray] = {f"n{i}": np.full(channels, 0.5, np.float32) for i in range(4)}
    nodes, ends = [], []
    for branch in range(branches):
        last, inputs = "images", 3
        for index in range(depth):
            name = f"{branch}_{index}"
            weights[f"w{name}"] = RANDOM.normal(0, 0.05, (channels, inputs, 3, 3)).astype(np.float32)
            nodes += [
                helper.make_node("Conv", [last, f"w{name}"], [f"c{name}"], name=f"conv{name}", pads=[1] * 4),
                helper.make_node("BatchNormalization", [f"c{name}", "n0", "n1", "n2", "n3"], [f"b{name}"]),
                helper.make_node("Relu", [f"b{name}"], [f"r{name}"]),
            ]
            last, inputs = f"r{name}", channels
        ends.append(last)
    nodes.append(helper.make_node("Concat", ends, ["out"], axis=1))
    return tiny.model(nodes, [1, 3, side, side], {"out": [1, branches * channels, side, side]}, weights)


def test_each_graph_level_fuses_more(tmp_path: Path) -> None:
    kernels = {
        level: Counter(e.args["op_name"] for e in _profile(tmp_path, _convolutions(), graph_level=level) if e.is_kernel)
        for level in ("disabled", "basic", "extended", "all")
    }
    assert (kernels["disabled"]["BatchNormalization"], kernels["disabled"]["Relu"]) == (4, 4)
    assert (kernels["basic"]["BatchNormalization"], kernels["basic"]["Relu"]) == (0, 4)
    assert (kernels["extended"]["BatchNormalization"], kernels["extended"]["Relu"]) == (0, 0)
    assert kernels["all"]["Relu"] == 0
    if platform.machine() == "x86_64":  # ARM has no kernels in blocks of channels
        assert (kernels["extended"]["ReorderOutput"], kernels["all"]["ReorderOutput"] > 0) == (0, True)


def _threads() -> dict[str, float]:
    """Processor seconds of each thread of this process."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[task.name] = (int(fields[11]) + int(fields[12])) / tick
    return found


@pytest.mark.parametrize("count", [1, 2, 4])
def test_threads_inside_an_operator_exist_and_work(count: int) -> None:
    keeps_the_watchdog = _open(tiny.classifier())
    before = set(_threads())
    session = _open(_convolutions(), intra_op_num_threads=count)
    workers = set(_threads()) - before
    assert len(workers) == count - 1  # the caller's is one of them
    tensor, busy = np.zeros(session.input_shape, np.float32), 0.0
    start = time.process_time()
    while count > 1 and time.process_time() - start < 1.0:
        session.run(tensor)
    busy = sum(seconds for task, seconds in _threads().items() if task in workers)
    del keeps_the_watchdog
    assert busy >= 0.1 * (count > 1)  # of one second of work: fair shares are .5 and .75


def _overlaps(events: list[Event]) -> int:
    """Pairs of kernels of which one began before the other had ended."""
    kernels = sorted((e for e in events if e.is_kernel and e.args["op_name"] == "Conv"), key=lambda e: e.ts)
    return sum(
        late.ts < early.ts + early.dur for place, early in enumerate(kernels) for late in kernels[place + 1 : place + 4]
    )


def test_on_the_cpu_branches_run_in_turn_whatever_is_asked(tmp_path: Path) -> None:
    """Why nothing here asks for more than one: the threads are there, and branches run in turn all the same."""
    model = _convolutions(branches=4, depth=2)
    keeps_the_watchdog = _open(tiny.classifier())
    before = set(_threads())
    session = _open(model, inter_op_num_threads=4)
    assert len(set(_threads()) - before) > 1
    del session, keeps_the_watchdog
    for count in (1, 4):
        assert _overlaps(_profile(tmp_path, model, runs=5, inter_op_num_threads=count)) == 0


def _idle_cost(run: Callable[[], object]) -> float:
    """Processor seconds of waiting for .6 s, in pieces of 20 ms after a run each."""
    busy = 0.0
    for _ in range(30):
        run()
        start = time.process_time()
        time.sleep(0.02)
        busy += time.process_time() - start
    return busy


@pytest.mark.parametrize("spins", [False, True])
def test_between_two_runs_threads_cost_nothing(spins: bool) -> None:
    session = _open(_convolutions(), intra_op_num_threads=2, allow_spinning=spins)
    tensor = np.zeros(session.input_shape, np.float32)
    ours_s = _idle_cost(lambda: session.run(tensor))
    name = session.input_name
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    bare = ort.InferenceSession(_convolutions().SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert _idle_cost(lambda: bare.run(None, {name: tensor})) > 5 * ours_s


def _convolutions_far_apart(layers: int = 20, between: int = 30, channels: int = 16, side: int = 16) -> onnx.ModelProto:
    """Small convolutions that two threads share, and between them running sums, which one thread takes alone."""
    weights, nodes, last = {"axis": np.array(3, np.int64)}, list[onnx.NodeProto](), "images"
    for layer in range(layers):
        weights[f"w{layer}"] = RANDOM.normal(0, 0.05, (channels, channels, 3, 3)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[1] * 4))
        last = f"c{layer}"
        for index in range(between):
            nodes.append(helper.make_node("CumSum", [last, "axis"], [f"s{layer}_{index}"]))
            last = f"s{layer}_{index}"
    nodes.append(helper.make_node("Identity", [last], ["out"]))
    shape = (1, channels, side, side)
    return tiny.model(nodes, shape, {"out": shape}, weights)


def test_within_a_run_threads_spin_only_where_they_are_told_to() -> None:
    """Processor time of all threads but the caller's: between two convolutions they either spin or sleep."""
    model = _convolutions_far_apart()
    sessions = {spins: _open(model, intra_op_num_threads=2, allow_spinning=spins) for spins in (True, False)}
    tensor, spent_ns = np.zeros((1, 16, 16, 16), np.float32), dict.fromkeys(sessions, 0)
    for _ in range(20):
        for spins, session in sessions.items():
            start_ns = time.process_time_ns() - time.thread_time_ns()
            for _ in range(5):
                session.run(tensor)
            spent_ns[spins] += time.process_time_ns() - time.thread_time_ns() - start_ns
    assert spent_ns[True] > 3 * spent_ns[False]  # eight to forty times as much, quiet or busy


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.parametrize(("arena", "keeps"), [(True, True), (False, False)])
def test_the_arena_keeps_memory_between_runs(arena: bool, keeps: bool) -> None:
    # Tensors of 64 MiB between an input and an output that are small.
    nodes = [
        helper.make_node("Resize", ["images", "", "scales"], ["large"]),
        helper.make_node("Sqrt", ["large"], ["root"]),
        helper.make_node("GlobalMaxPool", ["root"], ["out"]),
    ]
    weights = {"scales": np.array([1, 1, 128, 128], np.float32)}
    session = _open(tiny.model(nodes, [1, 1, 32, 32], {"out": [1, 1, 1, 1]}, weights), arena=arena)
    before = _resident_mib()
    for _ in range(2):
        session.run(np.ones((1, 1, 32, 32), np.float32))
    assert (_resident_mib() - before > 50) is keeps


def test_weights_are_laid_out_once_or_at_each_run() -> None:
    """A convolution of one pixel: without prepacking nearly all of its cost is in laying the weights out."""
    channels = 512
    weights = {
        "scale": np.float32(0.1).reshape(()),
        "zero": np.uint8(0).reshape(()),
        "w": RANDOM.integers(-99, 99, (channels, channels, 1, 1), np.int8),
        "w_zero": np.int8(0).reshape(()),
    }
    inputs = ["q", "scale", "zero", "w", "scale", "w_zero", "scale", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["images", "scale", "zero"], ["q"]),
        helper.make_node("QLinearConv", inputs, ["c"]),
        helper.make_node("DequantizeLinear", ["c", "scale", "zero"], ["out"]),
    ]
    shape = (1, channels, 1, 1)
    model = tiny.model(nodes, shape, {"out": shape}, weights)
    sessions = {prepacking: _open(model, prepacking=prepacking) for prepacking in (True, False)}
    spent = dict.fromkeys(sessions, 0.0)
    tensor = RANDOM.random(shape, np.float32)
    for _ in range(20):
        for prepacking, session in sessions.items():
            start = time.process_time()
            for _ in range(5):
                session.run(tensor)
            spent[prepacking] += time.process_time() - start
    assert spent[False] > 2 * spent[True]


def test_settings_are_told_apart_by_what_they_hold() -> None:
    settings = SessionSettings()
    assert settings == SessionSettings()
    assert hash(settings) == hash(SessionSettings())
    assert msgspec.structs.replace(settings, intra_op_num_threads=2) != settings
