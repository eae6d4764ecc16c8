"""Files that were made to do harm, or that took some: one clear line, and nothing happens to whoever asked."""

import random
import resource
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.core.errors import ModelError
from edge_sdk_tools.check import dry_run
from edge_sdk_tools.check.gate import examine
from edge_sdk_tools.check.report import CheckReport, RefusedModelError
from edge_sdk_tools.check.sandbox import Limits, run_limited
from tests.support import models as tiny
from tests.support.bundles import endless_of_hostile
from tests.support.logs import refusal
from tests.support.program import Cli
from tests.support.projects import CLASSIFIER, write_project
from tests.support.reports import IMAGE, SIZE, network, only, report_on


def _examine(folder: Path, model: onnx.ModelProto | bytes) -> CheckReport:
    path = write_project(folder, CLASSIFIER.replace("[16, 16]", f"[{SIZE}, {SIZE}]"), pictures=0)
    (folder / "model.onnx").write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return examine(load_model_spec(path))


def _functions(calls: Iterable[str]) -> onnx.ModelProto:
    """A chain of functions, each of which calls the next one of these."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = network("y = local.f0(images)")
    for level, called in enumerate(calls):
        inside = [helper.make_node(called, ["x"], ["y"], domain="local")]
        model.functions.append(helper.make_function("local", f"f{level}", ["x"], ["y"], inside, imports))
    return model


def _declares(dims: list[int]) -> onnx.ModelProto:
    model = network("y = Add(images, w)")
    model.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims))
    return model


def _without_output() -> onnx.ModelProto:
    model = network("y = Relu(images)", opset=11)
    model.graph.node.insert(0, helper.make_node("Resize", ["images"], []))
    return model


def _branch_output(name: str, element: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A type in a branch only ONNX's inference sees."""
    value = helper.make_tensor_value_info(name, element, IMAGE)
    branch = helper.make_graph([helper.make_node("Relu", ["images"], ["z"])], "b", [], [value])
    model = network("y = If(c)", weights={"c": np.array(True)})
    model.graph.node[0].attribute.extend(helper.make_attribute(f"{kind}_branch", branch) for kind in ("then", "else"))
    return model


def _named(name: str) -> onnx.ModelProto:
    model = network("y = Relu(images)")
    model.graph.node[0].name = name
    return model


def _stored_in(location: bytes) -> bytes:
    model = _declares([1])
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="LOCATION")
    return model.SerializeToString().replace(b"LOCATION", location)


@pytest.mark.parametrize(
    ("make", "rule", "expected"),
    [
        (lambda: _functions(f"f{level + 1}" for level in range(2001)), "file", "exceeds limit"),
        (lambda: _functions(("f1", "f2", "f1")), "file", "functions cannot be put in the place of their calls"),
        (lambda: _declares([25, 1000, 1000, 1000]), "file", "holds 0 values, expected 25000000000"),
        (lambda: _declares([2**62, 2**62]), "file", "holds 0 values"),
        (lambda: _declares([-5]), "file", "no type and shape that ONNX knows"),
        (lambda: network("y = Relu(images)", {"y": [1000, 1000, 1000, 100]}), "size", "400 GB, expected 1 at most"),
        (lambda: network("y = Relu(images)", {"y": [-(2**40)] * 4}), "size", "a side below 0"),
        (lambda: _branch_output("z", 100), "shape", "Inferred elem type differs from existing elem type: (1) vs (100)"),
        (lambda: _without_output(), "file", "node '' (Resize) has no output"),
        (lambda: _branch_output("evil\n"), "file", "names that are no printable text"),
        (lambda: _stored_in(b"\xff_______"), "file", "names that are no printable text"),
        (lambda: _named("evil\n\x1b[31m"), "file", "names that are no printable text"),
        (lambda: _named("x" * 100_000), "file", "names that are no printable text"),
        (lambda: _named("x").SerializeToString() * 2, "file", "not an ONNX model"),
        (lambda: b"\x3a\xff\xff\xff\xff\x0f" + bytes(100), "file", "not an ONNX model"),
    ],
    ids=[
        *("chain", "cycle", "100 GB", "overflow", "negative", "output", "far below 0"),
        *("element type", "resize", "branch", "location", "terminal", "long name", "twice", "length"),
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
    assert (finding.line.isprintable(), len(finding.line) < 1000) == (True, True)


@pytest.mark.sandbox
def test_memory_that_only_a_run_wants_is_not_given(tmp_path: Path) -> None:
    """40 GB, which come out of arithmetic that no inference follows."""
    text = """a = Exp(powers) b = Cast<to = 7>(a) big = ConstantOfShape(b) c = ReduceMax<keepdims = 0>(big)
        y = Add(images, c)"""
    model = network(text, weights={"powers": np.array([10.0, 10.0, 3.0], np.float32)})
    assert "bad_alloc" in only(_examine(tmp_path, model), "run").what
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 6 * 2**20  # KiB: 6 GiB


@pytest.mark.sandbox
def test_damaged_files_never_get_past_the_process(tmp_path: Path) -> None:
    """A flipped bit can make ONNX or ONNX Runtime crash: every answer is a report or one line."""
    data = tiny.classifier(size=SIZE).SerializeToString()
    numbers = random.Random(4)
    outcomes = set()
    for number in range(4):
        damaged = bytearray(data)
        for _ in range(numbers.choice([1, 4, 16])):
            damaged[numbers.randrange(len(damaged))] ^= 1 << numbers.randrange(8)
        try:
            report = _examine(tmp_path / str(number), bytes(damaged))
        except ModelError as cause:
            outcomes.add(str(cause))
        else:
            outcomes.update(["refused"] * (not report.passed), (finding.line for finding in report.findings))
    assert "refused" in outcomes
    assert all(outcome.isprintable() for outcome in outcomes)


_LIMITS = Limits(memory_mb=300, cpu_s=2, wall_s=200)
_PROGRAM = """
import os, sys, time
from edge_sdk.inference import trial as limited
from edge_sdk_tools.check.sandbox import read_request, write_answer
{before}
request = read_request().decode()
{what}
write_answer(request.upper().encode())
"""


def _run(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, limits: Limits = _LIMITS, before: str = ""
) -> bytes:
    (tmp_path / "program.py").write_text(_PROGRAM.format(what=what, before=before))
    # A second program of the same size in the same second would be taken for the first, by its compiled file.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    return run_limited("program", b"request", limits)


def test_a_process_that_dies_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for what, wall_s, expected in (
        ("os.kill(os.getpid(), 11)", 200, "the process that examined it crashed (SIGSEGV)"),
        ("os.kill(os.getpid(), 9)", 200, "was killed, perhaps for want of memory"),
        ("while True: pass", 200, "took more than 2 s of CPU"),
        ("time.sleep(600)", 1, "was not examined within 1 s"),
    ):
        limits = msgspec.structs.replace(_LIMITS, wall_s=wall_s)
        assert expected in refusal(ModelError, _run, tmp_path, what, monkeypatch, limits)


def test_a_loop_without_an_end_is_ended_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_LOOPS_CPU_S", 0.2)
    with pytest.raises(RefusedModelError, match=r"a model with a loop ran for 0\.2 s of CPU on one image"):
        dry_run.trial_run(endless_of_hostile(), {}, {})


def test_memory_is_limited_and_less_is_allowed_of_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = "\ntry:\n    bytearray({} * 2**20)\nexcept MemoryError:\n    request = 'none'\n"
    for asked, free, expected in ((200, None, b"REQUEST"), (400, None, b"NONE"), (150, 100 * 2**20, b"NONE")):
        before = f"limited.free_bytes = lambda: {free}"
        assert _run(tmp_path, ask.format(asked), monkeypatch, before=before) == expected


def test_no_core_file_and_no_file_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "msgspec.py").write_text("raise SystemExit('imported from the working folder')")
    monkeypatch.chdir(tmp_path / "here")
    look = "\nimport resource\nrequest = f'{resource.getrlimit(resource.RLIMIT_CORE)} {os.listdir()}'"
    assert _run(tmp_path, look, monkeypatch) == b"(0, 0) []"


@pytest.mark.sandbox
@pytest.mark.parametrize("is_debugging", [True, False])
def test_where_a_fault_of_ours_is_told_to_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, is_debugging: bool
) -> None:
    (tmp_path / "program.py").write_text("def inner():\n    raise ValueError('ours')\ninner()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("edge_sdk_tools.check.gate._MODULE", "program")
    monkeypatch.setenv("EDGE_SDK_DEBUG", "1" if is_debugging else "")
    said = cli(1, "check", write_project(tmp_path, pictures=0)).err
    assert said.endswith(
        "edge-sdk: this is a bug in edge-sdk: RuntimeError: ValueError: ours; set EDGE_SDK_DEBUG=1 to see where\n"
    )
    assert (f'{tmp_path / "program.py"}", line 2, in inner' in said) is is_debugging
