"""Files that were made to do harm, or that took some: one clear line, and nothing happens to whoever asked."""

from __future__ import annotations

import itertools
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import InputSpec, load_model_spec
from edge_sdk_tools.check import CheckReport, examine
from edge_sdk_tools.check.job import Job, Runtime
from edge_sdk_tools.check.limited import Limits, run_limited
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, write_project
from tests.support.reports import SIZE, only, report_on

pytestmark = pytest.mark.sandbox

_SHAPE = [1, 3, SIZE, SIZE]


def _examine(folder: Path, model: onnx.ModelProto | bytes) -> CheckReport:
    """In the limited process."""
    path = write_project(folder, CLASSIFIER.replace("[16, 16]", f"[{SIZE}, {SIZE}]"), pictures=0)
    (folder / "model.onnx").write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return examine(load_model_spec(path))


def _functions(depth: int, calls: int) -> onnx.ModelProto:
    """A chain of functions, each of which calls the next one `calls` times."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = tiny.model([helper.make_node("f0", ["images"], ["y"], domain="local")], _SHAPE, {"y": _SHAPE})
    for level in range(depth):
        values = ["x", *(f"v{i}" for i in range(calls - 1)), "y"]
        nodes = [helper.make_node(f"f{level + 1}", [a], [b], domain="local") for a, b in itertools.pairwise(values)]
        model.functions.append(helper.make_function("local", f"f{level}", ["x"], ["y"], nodes, imports))
    last = [helper.make_node("Relu", ["x"], ["y"])]
    model.functions.append(helper.make_function("local", f"f{depth}", ["x"], ["y"], last, imports))
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def _calls_itself() -> onnx.ModelProto:
    model = _functions(3, 1)
    model.functions[3].node[0].op_type = "f1"
    model.functions[3].node[0].domain = "local"
    return model


def _declares(dims: list[int]) -> onnx.ModelProto:
    model = tiny.model([helper.make_node("Add", ["images", "w"], ["y"])], _SHAPE, {"y": _SHAPE})
    model.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims))
    return model


def _named(name: str) -> onnx.ModelProto:
    return tiny.model([helper.make_node("Relu", ["images"], ["y"], name=name)], _SHAPE, {"y": _SHAPE})


def _output(shape: list[int]) -> onnx.ModelProto:
    return tiny.model([helper.make_node("Relu", ["images"], ["y"])], _SHAPE, {"y": shape})


def _element_type(number: int) -> onnx.ModelProto:
    """In a branch, where only ONNX's inference sees it."""
    model = _branch_output("z")
    model.graph.node[0].attribute[1].g.output[0].type.tensor_type.elem_type = number
    return model


def _in_segments() -> onnx.ModelProto:
    model = _declares([0])
    model.graph.initializer[0].segment.begin = 1
    return model


def _found() -> onnx.ModelProto:
    """An output of NonZero, whose sides only a run tells."""
    model = tiny.model([helper.make_node("NonZero", ["images"], ["y"])], _SHAPE, {"y": [-5, "n"]})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


def _without_output(operator: str) -> onnx.ModelProto:
    nodes = [helper.make_node(operator, ["images"], []), helper.make_node("Relu", ["images"], ["y"])]
    return tiny.model(nodes, _SHAPE, {"y": _SHAPE}, opset=11)


def _branch_output(name: str) -> onnx.ModelProto:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["images"], ["z"])], "b", [], [helper.make_tensor_value_info(name, 1, _SHAPE)]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return tiny.model([node], _SHAPE, {"y": _SHAPE}, {"c": np.array(True)})


def _stored_in(location: bytes) -> bytes:
    model = _declares([1])
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="LOCATION")
    return model.SerializeToString().replace(b"LOCATION", location)


def _nodes(count: int) -> bytes:
    """A graph of so many empty nodes: two bytes each."""
    content = b"\x0a\x00" * count
    size, length = bytearray(), len(content)
    while length >= 128:
        size.append(length & 127 | 128)
        length >>= 7
    return b"\x3a" + bytes([*size, length]) + content


@pytest.mark.parametrize(
    ("make", "rule", "expected"),
    [
        (lambda: _functions(2000, 1), "file", "functions call functions more than 100 deep"),
        (lambda: _functions(3000, 1), "file", "functions call functions more than 100 deep"),
        (_calls_itself, "file", "calls itself"),
        (lambda: _declares([25, 1000, 1000, 1000]), "file", "holds 0 values, expected 25000000000"),
        (lambda: _declares([2**62, 2**62]), "file", "holds 0 values"),
        (lambda: _declares([-5]), "file", "no type and shape that ONNX knows"),
        (lambda: _declares([2**62] * 2000), "file", "x… and holds 0 values, expected 9223372036854775807"),
        (_in_segments, "file", "constant 'w' is written in segments"),
        (lambda: _output([1000, 1000, 1000, 100]), "size", "400 GB, expected 1 at most"),
        (lambda: _output([2**40] * 4), "size", "9.22e+09 GB, expected 1 at most"),
        (lambda: _output([-(2**40)] * 4), "size", "a side below 0"),
        (_found, "dynamic", "shape -5xn: dimension 0 (-5) is known only when node 'NonZero_0' (NonZero) has run"),
        (lambda: _element_type(100), "shape", "Inferred elem type differs from existing elem type: (1) vs (100)"),
        (lambda: _without_output("Resize"), "file", "node '' (Resize) has no output"),
        (lambda: _without_output("Constant"), "file", "node '' (Constant) has no output"),
        (lambda: _branch_output("evil\n"), "file", "names that are no printable text"),
        (lambda: _stored_in(b"\xff_______"), "file", "names that are no printable text"),
        (lambda: _named("evil\n\x1b[31m"), "file", "names that are no printable text"),
        (lambda: _named("x" * 100_000), "file", "names that are no printable text"),
        (lambda: _named("x").SerializeToString() * 2, "file", "not an ONNX model"),
        (lambda: _nodes(600_000), "file", "more than 500000 nodes and weights"),
        (lambda: b"\x08\x08" * 600_000, "file", "not an ONNX model"),
        (lambda: b"\x3a\xff\xff\xff\xff\x0f" + bytes(100), "file", "not an ONNX model"),
    ],
    ids=[
        *("chain of 2000", "chain of 3000", "cycle", "100 GB", "overflow", "negative", "many sides", "segments"),
        *("output", "far", "far below 0", "found", "element type", "resize", "constant", "branch", "location"),
        *("terminal", "long name", "twice", "many nodes", "many fields", "length"),
    ],
)
def test_what_can_be_seen_before_anything_is_loaded(
    tmp_path: Path, make: Callable[[], onnx.ModelProto | bytes], rule: str, expected: str
) -> None:
    report = report_on(tmp_path, make())
    assert not report.passed
    assert msgspec.msgpack.encode(report)  # as it crosses to whoever asked
    finding = only(report, rule)
    assert expected in finding.what
    assert finding.line.isprintable()
    assert len(finding.line) < 1000


def test_functions_that_grow_without_end(tmp_path: Path) -> None:
    """2^60 nodes in 4 kB; in the limited process, because a gate that let them through would take all memory."""
    report = _examine(tmp_path, _functions(60, 2))
    assert "more than 100000 nodes once its functions are put in place" in only(report, "file").what


def _hidden(powers: list[float]) -> onnx.ModelProto:
    """A tensor whose size comes out of arithmetic that no inference follows."""
    nodes = [
        helper.make_node("Exp", ["powers"], ["e"]),
        helper.make_node("Cast", ["e"], ["shape"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["shape"], ["big"]),
        helper.make_node("ReduceMax", ["big"], ["m"], keepdims=0),
        helper.make_node("Add", ["images", "m"], ["y"]),
    ]
    return tiny.model(nodes, _SHAPE, {"y": _SHAPE}, {"powers": np.array(powers, np.float32)})


@pytest.mark.parametrize("powers", [[10.0, 10.0, 5.3], [10.0, 10.0, 3.0]], ids=["100 GB", "40 GB"])
def test_memory_that_only_a_run_wants_is_not_given(tmp_path: Path, powers: list[float]) -> None:
    report = _examine(tmp_path, _hidden(powers))
    assert not report.passed
    assert "bad_alloc" in only(report, "run").what or "memory" in only(report, "run").what
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 6 * 2**20  # KiB: 6 GiB


def test_a_model_that_never_ends_is_ended(tmp_path: Path) -> None:
    """With limits of its own: the gate's are for real models."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Sin", ["v"], ["v2"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, _SHAPE),
        ],
        [
            helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v2", TensorProto.FLOAT, _SHAPE),
        ],
    )
    loop = helper.make_node("Loop", ["n", "go", "images"], ["y"], body=body)
    model = tiny.model([loop], _SHAPE, {"y": _SHAPE}, {"n": np.array(10**15), "go": np.array(True)})
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    runtime = Runtime(None, None, ("CPUExecutionProvider",), None, None)
    job = Job("endless", os.fsencode(path), InputSpec(size_wh=(SIZE, SIZE)), runtime, wants_model=False)
    limits = Limits(memory_mb=1000, cpu_s=2, wall_s=100)
    with pytest.raises(ModelError, match=r"^examining it took more than 2 s of CPU"):
        run_limited("edge_sdk_tools.check.inside", msgspec.msgpack.encode(job), limits)


def _bytes_without_large_weights() -> bytes:
    model = tiny.classifier(size=SIZE)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model.SerializeToString()


def _outcome(folder: Path, data: bytes) -> list[str]:
    try:
        report = _examine(folder, data)
    except ModelError as cause:
        return [str(cause)]
    return ["passed" if report.passed else "refused", *(finding.line for finding in report.findings)]


def test_damaged_files_never_get_past_the_process(tmp_path: Path) -> None:
    """A flipped bit can make ONNX or ONNX Runtime crash: every answer is a report or one line."""
    data = _bytes_without_large_weights()
    numbers = random.Random(4)
    outcomes = set()
    for number in range(4):
        damaged = bytearray(data)
        for _ in range(numbers.choice([1, 4, 16])):
            damaged[numbers.randrange(len(damaged))] ^= 1 << numbers.randrange(8)
        outcomes.update(_outcome(tmp_path / str(number), bytes(damaged)))
    assert "refused" in outcomes
    assert all(outcome.isprintable() for outcome in outcomes)


@pytest.mark.parametrize("cut", [0, 1, 10, 100, 1000])
def test_truncated_files(tmp_path: Path, cut: int) -> None:
    data = _bytes_without_large_weights()
    report = report_on(tmp_path, data[: len(data) - 1 - cut])
    assert only(report, "file").what.startswith("not an ONNX model")


def test_the_caller_keeps_its_own_limits(tmp_path: Path) -> None:
    before = [resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_CORE)]
    folder = Path.cwd()
    assert _examine(tmp_path, tiny.classifier(size=SIZE)).passed
    assert [
        resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
    ] == before
    assert Path.cwd() == folder


def test_a_profile_that_is_not_whole_leaves_shapes_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ONNX Runtime leaves it on a full disk, without a word."""
    end_profiling = ort.InferenceSession.end_profiling

    def cut(session: ort.InferenceSession) -> str:
        path = end_profiling(session)
        Path(path).write_bytes(b"[{")
        return path

    model = _hidden([0.0, 0.0, 0.0])
    seen = report_on(tmp_path / "seen", model).costs
    monkeypatch.setattr(ort.InferenceSession, "end_profiling", cut)
    unseen = report_on(tmp_path / "unseen", model).costs
    assert seen is not None
    assert unseen is not None
    assert unseen.unknown_nodes > seen.unknown_nodes == 0
