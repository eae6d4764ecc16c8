"""Operators and types against the kernel table of a runtime: what it lacks is named, what it works around is said."""

import runpy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edge_sdk.bundle.target import load_target, target_names
from edge_sdk_tools.check import operators
from edge_sdk_tools.graph.index import Value
from tests.support import models as tiny
from tests.support.reports import SIZE, network, only, report_on


def test_every_version_that_a_target_names_has_a_table() -> None:
    for target in map(load_target, target_names()):
        table = operators.kernel_table(target.min_onnxruntime)
        assert (table.onnxruntime, table.max_opset) == (target.min_onnxruntime, target.max_opset)


def test_the_nearest_older_table_is_used() -> None:
    for wanted, expected in (("1.20.2", "1.20.1"), ("1.21.0", "1.20.1"), ("1.23.2", "1.23.2"), ("99.0", "1.31.1")):
        assert operators.kernel_table(wanted).onnxruntime == expected
    assert operators.kernel_table("1.20.0") is None


def test_the_installed_runtimes_table_is_what_was_committed(tmp_path: Path) -> None:
    generator = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "scripts" / "kernel_tables.py"))
    before = operators.KERNEL_TABLES.read_bytes()
    known = operators.kernel_table(ort.__version__)
    if known is None or known.onnxruntime != ort.__version__:
        pytest.skip(f"there is no table of ONNX Runtime {ort.__version__}")
    file = tmp_path / "kernels.json"
    file.write_bytes(before)
    generator["main"].__globals__["KERNEL_TABLES"] = file
    generator["main"]([])
    assert file.read_bytes() == before


def test_which_versions_a_kernel_implements() -> None:
    # A newer version of the operator may compute something else.
    versions = ((13, None, 14), (13, 18, 18), (13, 18, 19), (13, 18, 12))
    assert [operators.implements(*one) for one in versions] == [False, True, False, False]


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_what_becomes_of_a_node_in_1_20_1_was_seen_in_the_real_one(domain: str) -> None:
    table = operators.kernel_table("1.20.1")
    assert table is not None
    for operator, element, opset, kind in (
        ("Relu", "float", 17, "runs"),
        ("Relu", "float16", 17, "casts"),
        ("Relu", "bfloat16", 17, "type"),
        ("TopK", "int16", 17, "type"),
        ("HardSwish", "float", 17, "runs"),  # by its body: HardSigmoid and Mul
        ("Mish", "float", 18, "runs"),  # Softplus, Tanh, Mul
        ("Frobnicate", "float", 17, "missing"),
        ("DeformConv", "float", 19, "missing"),
        ("Constant", "float", 17, "runs"),
        ("Conv", "", 17, "runs"),  # what is not known of a type matches
    ):
        values = {name: Value(element, (1, 8, 8, 2)) for name in ("x", "y")} if element else {}
        node = helper.make_node(operator, ["x"], ["y"], domain=domain)
        assert table.judge(node, values, {"": opset}).kind == kind, operator


def test_an_operator_of_other_opsets_only() -> None:
    """Relu of opset 17 is that of 14."""
    kernels = {"ai.onnx": {"Relu": (operators.Kernel(13, None, {"T": "float"}),)}}
    table = operators.KernelTable(onnxruntime="1.0.0", max_opset=21, max_ir_version=10, type_sets={}, kernels=kernels)
    node = helper.make_node("Relu", ["x"], ["y"], name="r")
    verdict, runs = (table.judge(node, {}, {"": opset}) for opset in (17, 13))
    assert (verdict.kind, runs.kind) == ("version", "runs")
    [finding] = operators.check_kernels([(node, verdict)], "ONNX Runtime 1.0.0", 17)
    assert finding.what == "node 'r': ONNX Runtime 1.0.0's CPU provider has Relu, but not as opset 17 defines it"


def test_cuda_goes_by_the_operators_version() -> None:
    node = helper.make_node("Resize", ["x"], ["y"])
    assert [operators.coverage("CUDAExecutionProvider", [node], {"": opset}).taken for opset in (18, 19)] == [1, 0]
    unknown = operators.coverage("XnnpackExecutionProvider", [node], {"": 17})
    assert (unknown.source, unknown.taken, unknown.unknown) == ("unknown", 0, ("Resize",))


def test_a_runtime_older_than_every_table(tmp_path: Path) -> None:
    report = report_on(tmp_path, tiny.classifier(size=SIZE), version="1.18.0")
    assert "brings no table of ONNX Runtime 1.18.0" in only(report, "kernel").what
    assert (report.passed, report.kernel_table, report.providers) == (True, "", ())


def test_a_type_without_a_kernel_is_named_with_those_that_have_one(tmp_path: Path) -> None:
    for element, name, severity, tail in (
        (np.float64, "double", "error", ""),
        (np.float16, "float16", "warning", "; it will run in float, between Casts"),
    ):
        number = helper.np_dtype_to_tensor_dtype(np.dtype(element))
        text = f"""a = Cast<to = {number}>(images) first = Conv<pads = [1, 1, 1, 1]>(a, w) c = Cast<to = 1>(first)
            y = ReduceMean<axes = [2, 3]>(c)"""
        report = report_on(tmp_path, network(text, {"y": [1, 3, 1, 1]}, {"w": np.ones((3, 3, 3, 3), element)}))
        finding = only(report, "kernel")
        said = f"node 'first': Conv of tensor({name}): ONNX Runtime 1.20.1's CPU provider has it for float{tail}"
        assert (finding.severity, finding.where, finding.what) == (severity, "first", said)
        assert report.providers[-1].not_taken == (("Conv",) if severity == "error" else ())


def test_the_same_trouble_is_said_once(tmp_path: Path) -> None:
    model = network("a = Cast<to = 16>(images) b = Relu(a) c = Relu(b) d = Relu(c) y = Cast<to = 1>(d)")
    assert only(report_on(tmp_path, model), "kernel").what.startswith("node 'b' and 2 more: Relu of tensor(bfloat16)")


def test_operators_that_are_not_there(tmp_path: Path) -> None:
    for operator, rule, expected in (
        ("Gelu", "unknown-operator", "ONNX has no operator Gelu in opset 17"),  # since 20
        ("Upsample", "unknown-operator", "ONNX has no operator Upsample in opset 17"),  # until 9
        ("com.example.Frobnicate", "custom-operator", "custom operator com.example.Frobnicate"),
        ("com.microsoft.Frobnicate", "custom-operator", "custom operator com.microsoft.Frobnicate"),
    ):
        model = network(f"a = {operator}(images, scales) y = Relu(a)", weights={"scales": np.ones(4, np.float32)})
        [finding] = report_on(tmp_path, model).findings  # ONNX's own words for it are not repeated
        assert (finding.rule, expected in finding.what) == (rule, True)
    # ONNX Runtime's own are there.
    assert report_on(tmp_path, network("y = com.microsoft.QuickGelu(images)")).passed


def _choice(*branches: str, element: int = TensorProto.FLOAT) -> onnx.ModelProto:
    output = [helper.make_tensor_value_info("o", element, None)]
    graphs = [helper.make_graph(network(text).graph.node, "branch", [], output) for text in branches]
    model = network("y = Cast<to = 1>(choice)", weights={"c": np.array(True)})
    node = helper.make_node("If", ["c"], ["choice"], name="choice", then_branch=graphs[0], else_branch=graphs[1])
    model.graph.node.insert(0, node)
    return model


def test_control_flow_is_named(tmp_path: Path) -> None:
    report = report_on(tmp_path, _choice("o = Relu(images)", "o = Erf(images)"))
    finding = only(report, "control-flow")
    assert (finding.severity, finding.where) == ("warning", "choice")
    assert "what is inside stays float" in finding.what
    assert {use.name for use in report.operators} == {"If", "Relu", "Erf", "Cast"}
    branch = "a = Cast<to = 16>(images) o = Relu(a)"  # what is inside is judged too
    report = report_on(tmp_path, _choice(branch, branch, element=TensorProto.BFLOAT16))
    assert "Relu of tensor(bfloat16)" in only(report, "kernel").what


def test_the_providers_of_a_jetson(tmp_path: Path) -> None:
    text = """a = Relu(images) b = Mish(a) c = Det(images) d = Unsqueeze(c, axes) e = Mul(b, d)
        y = GlobalAveragePool(e)"""
    model = network(text, {"y": [1, 3, 1, 1]}, {"axes": np.array([2, 3])}, opset=18)
    report = report_on(tmp_path, model, target="jetson_orin_nano")
    assert report.passed, report.findings
    rows = [(row.provider.removesuffix("ExecutionProvider"), row) for row in report.providers]
    assert [(name, row.not_taken, row.unknown) for name, row in rows] == [
        ("Tensorrt", ("Det",), ("Mish",)),
        ("CUDA", ("Det", "Mish"), ()),
        ("CPU", (), ()),
    ]
    assert [row.taken for _, row in rows[1:]] == [4, 6]
