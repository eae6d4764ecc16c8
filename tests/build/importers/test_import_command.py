"""`edge-sdk import`: what is printed, and the exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from edge_sdk.cli.root import run
from edge_sdk.model_spec import load_model_spec
from tests.build.importers.test_darknet import HEAD, YOLO, conv, write_network
from tests.support.projects import MODELS, write_pictures, write_project


def write_source(folder: Path) -> tuple[str, str]:
    toml = write_project(folder, pictures=0)
    (folder / "model.onnx").rename(folder / "source.onnx")
    return str(folder / "source.onnx"), str(toml)


def test_help_names_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("darknet", "onnx", "pytorch", "tensorflow"))


def test_figures_and_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, toml = write_source(tmp_path)
    assert run(["import", "onnx", source, "--model", toml]) == 0
    captured = capsys.readouterr()
    assert "\ncompared on 8 inputs, none of them a real image\nmade by the export gate\n" in captured.out
    assert f"\nwrote {tmp_path / 'model.onnx'}\n" in captured.out
    assert "\n0.00 MB, opset 17, 6 nodes, input 1x3x16x16 NCHW\n" in captured.out
    assert all(len(line) <= 80 for line in captured.out.splitlines() if str(tmp_path) not in line)
    assert captured.out.endswith(f"next: edge-sdk build {toml} --target TARGET --calibration FOLDER\n")
    assert captured.err == "edge-sdk: warning: no real image was compared; give some with --images FOLDER\n"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, toml = write_source(tmp_path)
    write_pictures(tmp_path / "pictures", 2)
    (tmp_path / "model.onnx").write_bytes(b"an older model")
    arguments = ["--target", "arm64", "--images", str(tmp_path / "pictures"), "--json"]
    assert run(["import", "onnx", source, "--model", toml, *arguments]) == 0
    captured = capsys.readouterr()
    report = msgspec.json.decode(captured.out)
    assert (report["model"], report["images"], report["replaced"]) == (str(tmp_path / "model.onnx"), 2, True)
    assert report["outputs"][0]["name"] == "probabilities"
    assert captured.err == ""


@pytest.mark.parametrize("by_option", [True, False])
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_option: bool
) -> None:
    source, toml = write_source(tmp_path)
    pictures = write_pictures(tmp_path / "pictures", 2)
    broken = [pictures / f"broken{index}.png" for index in range(4)]
    for path in broken:
        path.write_text("no image")
    options = ["--images", str(pictures)] if by_option else []  # else the calibration folder of model.toml
    assert run(["import", "onnx", source, "--model", toml, *options]) == 0
    first, *named, last = capsys.readouterr().err.splitlines()
    assert first == "edge-sdk: warning: files that were skipped: 4"
    assert [line.split(": ")[0] for line in named] == [f"  {path}" for path in broken[:3]]
    assert last == "  and 1 more, all of them in --json"
    assert run(["import", "onnx", source, "--model", toml, *options, "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    assert report["images"] == 2
    assert [one["path"] for one in report["skipped"]] == list(map(str, broken))
    assert all(one["reason"] for one in report["skipped"])


def write_darknet(folder: Path) -> list[str]:
    _, cfg, weights, labels = write_network(folder, [conv(4), HEAD, YOLO], np.random.default_rng(7))
    return ["import", "darknet", str(cfg), str(weights), "--labels", str(labels), "-o", str(folder / "out")]


def test_darknet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write_darknet(tmp_path)
    assert run(arguments) == 0
    toml = tmp_path / "out" / "model.toml"
    assert capsys.readouterr().out.startswith(f"wrote {toml}, its .onnx and labels.txt\nnext: edge-sdk build {toml} ")
    assert onnx.load(load_model_spec(toml).model).graph.node


def test_darknet_as_json_under_another_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*write_darknet(tmp_path), "--name", "other", "--json"]) == 0
    toml = tmp_path / "out" / "model.toml"
    assert msgspec.json.decode(capsys.readouterr().out) == {"model_toml": str(toml)}
    assert load_model_spec(toml).name == "other"


def test_darknet_keeps_a_model_toml_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.toml").write_text("# what somebody wrote by hand")
    assert run(write_darknet(tmp_path)) == 2
    assert "model.toml: exists; choose another folder with -o" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.toml"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "expected"),
    [
        (["import", "caffe"], 2, "No such command 'caffe'"),
        (["import", "onnx"], 2, "Missing argument 'SOURCE'"),
        (["import", "onnx", "a.onnx"], 2, "Missing option '--model'"),
        (["import", "onnx", __file__, "--model", "none.toml"], 2, "none.toml: "),
        (["import", "darknet", "none.cfg", "none.weights", "--labels", "none", "-o", "out"], 2, "none.cfg: "),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int, expected: str
) -> None:
    assert run(arguments) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("missing", "arguments", "remedy"),
    [
        ("torch", ["pytorch", "{}/a.py:b"], "pip install -c constraints.txt '.[torch]'"),
        ("onnxscript", ["pytorch", "{}/a.py:b"], "pip install -c constraints.txt '.[torch]'"),
        ("onnx", ["onnx", "{}/a.onnx"], "pip install -c constraints.txt '.[host]'"),
        ("tensorflow", ["tensorflow", "{}/a.tflite"], "pip install tensorflow tf2onnx"),
    ],
)
def test_a_missing_package_is_named(tmp_path: Path, missing: str, arguments: list[str], remedy: str) -> None:
    if missing == "onnxscript" and find_spec("torch") is None:
        pytest.skip("PyTorch is the extra [torch], and is missed first")
    toml = write_project(tmp_path, pictures=0)
    for name in ("a.py", "a.onnx", "a.tflite"):
        (tmp_path / name).touch()
    code = f"import sys; sys.modules[{missing!r}] = None; from edge_sdk.cli import main; main(sys.argv[1:])"
    program = [sys.executable, "-c", code, "import", arguments[0], arguments[1].format(tmp_path)]
    program += ["--model", str(toml)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 8
    assert done.stderr.startswith(f"edge-sdk: `edge-sdk import {arguments[0]}` ")
    assert f"needs {missing}" in done.stderr
    assert done.stderr.endswith(f"{remedy}\n")
    assert done.stderr.count("\n") == 1


def test_exporters_and_users_code_are_not_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is the extra [torch]")
    pytest.importorskip("onnxscript", reason="PyTorch's exporter is the extra [torch]")
    toml = write_project(tmp_path, pictures=0)
    toml.write_text(toml.read_text().replace('"softmax"', '"logits"'))
    assert run(["import", "pytorch", f"{MODELS}:noisy", "--model", str(toml), "--json"]) == 0
    captured = capfd.readouterr()
    assert msgspec.json.decode(captured.out)["opset"] == 18
    assert captured.err == ""


def test_pytorch_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the extra [torch]")
    pytest.importorskip("onnxscript", reason="PyTorch's exporter is the extra [torch]")
    toml = write_project(tmp_path, pictures=1)
    toml.write_text(toml.read_text().replace('"softmax"', '"logits"'))
    torch.save({"last.bias": torch.zeros(1)}, tmp_path / "weights.pth")
    command = ["import", "pytorch", f"{MODELS}:net", "--model", str(toml)]
    assert run([*command, "--weights", str(tmp_path / "weights.pth")]) == 2
    assert "weights.pth: does not fit" in capsys.readouterr().err
    assert run([*command, "--dynamic-batch", "--target", "arm64", "--images", str(tmp_path / "pictures")]) == 0
    printed = capsys.readouterr().out
    assert "\ncompared on 10 inputs, 1 of them real images\nmade by torch.export of PyTorch" in printed
    assert f"\nwrote {tmp_path / 'model.onnx'}, replacing what was there\n" in printed
    assert "input batchx3x16x16 NCHW\n" in printed
