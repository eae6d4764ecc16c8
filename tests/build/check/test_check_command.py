"""`edge-sdk check` as users call it: the table, the JSON, the exit code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from edge_sdk.cli.root import run
from edge_sdk_tools.check import CheckReport
from edge_sdk_tools.check.report import Finding
from edge_sdk_tools.check.screen import render
from tests.support import models as tiny
from tests.support.projects import write_project
from tests.support.reports import SIZE, report_on


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_model_that_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(write_project(tmp_path, pictures=0)), "--target", "raspberry_pi_5"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0] == f"tiny for raspberry_pi_5, ONNX Runtime {ort.__version__}"
    assert lines[-1] == "passed: 0 errors, 0 warnings"
    text = " ".join(captured.out.split())
    for said in (
        "model.onnx, 2.2 kB format opset 17, IR version 9",
        "images: float 1x3x16x16",
        "probabilities: float 1x3",
        "CPU: 6 of 6 nodes, by kernels of ONNX Runtime 1.31.1, by operator, opset and type",
    ):
        assert said in text
    assert re.search(r"Conv +│ +2 │ +27\.6 k │ 100\.0% │ yes", captured.out)
    assert "\x1b" not in captured.out  # no colours where nobody sees them


def test_a_model_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.classifier(classes=4)
    model.opset_import[0].version = 26
    path = write_project(tmp_path, model=model, pictures=0)
    assert run(["check", str(path), "--target", "arm64", "--prove-runtime", "1.20.1"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"edge-sdk: {path}: 2 errors, named above\n"
    assert "failed: 2 errors, 0 warnings" in captured.out
    text = " ".join(captured.out.split())
    assert "error opset 26, but ONNX Runtime 1.20.1 on arm64 runs up to 21 → export it with a lower opset" in text
    assert "labels has 3 lines, the model has 4 classes" in text


def test_json_holds_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(write_project(tmp_path, pictures=0)), "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=CheckReport)
    assert report.passed
    assert (report.name, report.model, report.target) == ("tiny", str(tmp_path / "model.onnx"), None)
    assert report.costs is not None
    assert report.costs.macs == 27648
    assert [output.shape for output in report.outputs] == [(1, 3)]


def test_json_of_a_failure_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_project(tmp_path, pictures=0)
    (tmp_path / "model.onnx").write_bytes(b"PK")
    assert run(["check", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    report = msgspec.json.decode(captured.out, type=CheckReport)
    assert [(finding.rule, finding.where) for finding in report.findings] == [("file", str(tmp_path / "model.onnx"))]
    assert captured.err == f"edge-sdk: {path}: 1 error, named in the JSON\n"


def test_a_file_that_is_something_else_is_named_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, pictures=0)
    (tmp_path / "model.onnx").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    assert run(["check", "model.toml"]) == 2
    captured = capsys.readouterr()
    text = " ".join(captured.out.split())
    assert "error model.onnx: not an ONNX model: it looks like text (13 bytes) → give the .onnx file itself" in text
    assert captured.err == "edge-sdk: model.toml: 1 error, named above\n"


def test_what_cannot_be_counted_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.classifier(size=24, batch="N")
    path = write_project(tmp_path, model=model, pictures=0)
    assert run(["check", str(path)]) == 2
    text = " ".join(capsys.readouterr().out.split())
    assert "multiply-accumulates unknown activations unknown" in text
    assert "→ set size_wh = [24, 24] under [input] in model.toml" in text
    assert run(["check", str(path), "--json"]) == 2
    document = msgspec.json.decode(capsys.readouterr().out)
    assert (document["costs"]["macs"], document["costs"]["peak_activation_bytes"]) == (None, None)
    assert {use["macs"] for use in document["operators"]} == {None, 0}
    assert document["costs"]["parameters"] > 0


def test_without_a_model_there_is_a_report_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, pictures=0)
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "labels.txt").unlink()
    monkeypatch.chdir(tmp_path)
    assert run(["check", "model.toml"]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("tiny for this machine\n")
    text = " ".join(captured.out.split())
    assert "model.onnx: no such model file → put it there, or correct `model` in model.toml" in text
    assert "labels.txt: no such labels file → write one label a line" in text
    assert captured.err == "edge-sdk: model.toml: 2 errors, named above\n"
    assert run(["check", "model.toml", "--json"]) == 2
    report = msgspec.json.decode(capsys.readouterr().out, type=CheckReport)
    assert [finding.rule for finding in report.findings] == ["file", "labels"]


@pytest.mark.parametrize("arguments", [["none.toml"], ["model.toml", "--target", "arm46"]])
def test_json_of_what_is_no_question_about_a_model(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path, pictures=0)
    monkeypatch.chdir(tmp_path)
    assert run(["check", *arguments, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("edge-sdk: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model.onnx"], "expected a model.toml"),
        (["none.toml"], "none.toml"),
        (["model.toml", "--target", "arm46"], "did you mean arm64?"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_usage(
    tmp_path: Path,
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_project(tmp_path, pictures=0)
    monkeypatch.chdir(tmp_path)
    assert run(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_a_relative_path_in_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path / "project", pictures=0)
    monkeypatch.chdir(tmp_path)
    assert run(["check", "project/model.toml"]) == 0
    assert run(["check", "project/model.toml", "--json"]) == 0


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_the_table_fits_the_terminal(tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    nodes = [helper.make_node("Frobnicate", ["images"], ["y"], domain="com.example.a.rather.long.domain")]
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {"y": [1, 3, SIZE, SIZE]})
    model.opset_import.append(helper.make_opsetid("com.example.a.rather.long.domain", 1))
    lines = _plain(render(report_on(tmp_path, model, target="jetson_orin_nano"))).splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert all(line == line.rstrip() for line in lines)
    assert lines[-1] == "failed: 1 error, 0 warnings"
    assert any("TensorRT" in line for line in lines)


def test_lines_of_80_columns_break_between_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    model = tiny.classifier(size=SIZE, opset=11)
    model.producer_name, model.producer_version = "pytorch", "2.13.0"
    model.graph.initializer[0].raw_data = np.full(216, np.nan, np.float32).tobytes()
    lines = _plain(render(report_on(tmp_path, model, target="jetson_orin_nano"))).splitlines()
    for whole in (
        "  model                 model.onnx, 2.2 kB",
        "  format                opset 11, used as 13, IR version 9",
        "  written by            pytorch 2.13.0",
        "            by ONNX Runtime 1.23's docs/OperatorKernels.md (operator, opset)",
        "            by kernels of ONNX Runtime 1.20.1, by operator, opset and type",
    ):
        assert whole in lines
    step = next(index for index, line in enumerate(lines) if "→ the training diverged" in line)
    assert lines[step].index("the") == len(lines[step + 1]) - len(lines[step + 1].lstrip())


def test_what_a_file_says_of_itself_is_no_markup() -> None:
    """Names that look like instructions for the terminal's library stay what they are."""
    finding = Finding(severity="warning", rule="x", what="node '[bold red]' is [/]", next_step="[link=x]")
    report = CheckReport(name="[red]x", model="[/].onnx", target=None, onnxruntime="1", opset=17, findings=(finding,))
    text = _plain(render(report))
    assert "[red]x for this machine" in text
    assert "node '[bold red]' is [/]" in text
    assert "→ [link=x]" in text


def test_a_long_list_of_operators_is_cut(tmp_path: Path) -> None:
    names = [
        "Abs",
        "Acos",
        "Asin",
        "Atan",
        "Ceil",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "HardSigmoid",
        "LeakyRelu",
    ]
    names += [
        "Neg",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
    ]
    nodes = [helper.make_node(n, [f"x{i}" if i else "images"], [f"x{i + 1}"]) for i, n in enumerate(names)]
    model = tiny.model(nodes, [1, 3, SIZE, SIZE], {f"x{len(names)}": [1, 3, SIZE, SIZE]})
    assert onnx.checker.check_model(model) is None
    assert "and 2 more" in _plain(render(report_on(tmp_path, model)))
