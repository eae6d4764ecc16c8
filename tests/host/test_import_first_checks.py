"""What is cheap to check is checked before PyTorch or TensorFlow is loaded, which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.host.projects import CLASSIFIER, write_project

BLOCKED = "import sys; sys.modules.update(torch=None, onnxscript=None, tensorflow=None, tf2onnx=None)"
"""Loading one of them would end with exit code 8."""


@pytest.mark.parametrize(
    ("source", "options", "exit_code", "expected"),
    [
        (["pytorch", "none.py:net"], [], 2, "none.py: no such Python file"),
        (["pytorch", "none.pt2"], [], 2, "none.pt2: no such file, expected a torch.export archive"),
        (["pytorch", "a.py:net"], ["--weights", "none.pth"], 2, "none.pth: no such weights file"),
        (["pytorch", "a.py:net"], ["--images", "none"], 2, "none: "),
        (["pytorch", "a.py:net"], ["--target", "none"], 2, "none"),
        (["pytorch", "a.py:net"], ["--model", "none.toml"], 2, "none.toml: "),
        (["pytorch", "a.py:net"], ["--model", "shape.toml"], 2, "size_wh"),
        (["pytorch", "a.py:net"], ["--model", "unwritable.toml"], 1, "/proc/model.onnx: cannot be written: "),
        (["onnx", "none.onnx"], [], 2, "none.onnx: no such file; SOURCE is the ONNX file to import\n"),
        (["onnx", "a.py/none.onnx"], [], 2, "a.py/none.onnx: no such file; SOURCE is the ONNX file to import\n"),
        (["onnx", "."], [], 2, "edge-sdk: .: is a folder; SOURCE is the ONNX file to import\n"),
        (["onnx", "a" * 300], [], 2, "a: cannot be read: File name too long; SOURCE is the ONNX file to import\n"),
        (["tensorflow", "none.keras"], [], 2, "none.keras: no such file or folder; SOURCE is a .tflite, .keras or .h5"),
        (["tensorflow", "a.py"], [], 2, "a.py: expected a .tflite, .keras or .h5 file, or the folder of a SavedModel"),
        (["tensorflow", "a.keras"], ["--model", "unwritable.toml"], 1, "/proc/model.onnx: cannot be written: "),
    ],
)
def test_before_the_framework_is_loaded(
    tmp_path: Path, source: list[str], options: list[str], exit_code: int, expected: str
) -> None:
    toml = write_project(tmp_path, CLASSIFIER.replace("model.onnx", "new.onnx"), pictures=0)
    toml.with_name("shape.toml").write_text(CLASSIFIER.replace("[16, 16]", "[16]"))
    toml.with_name("unwritable.toml").write_text(CLASSIFIER.replace("model.onnx", "/proc/model.onnx"))
    for name in ("a.py", "a.keras"):
        (tmp_path / name).touch()
    code = f"{BLOCKED}; from edge_sdk.cli import main; main(sys.argv[1:])"
    arguments = ["import", *source, "--model", "model.toml", *options]
    program = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_folder_of_a_darknet_import_is_tried_first(tmp_path: Path) -> None:
    code = "import sys; from edge_sdk.cli import main; main(sys.argv[1:])"
    arguments = ["import", "darknet", "none.cfg", "none.weights", "--labels", "none.txt", "-o", "/proc/yolo/v4"]
    program = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("edge-sdk: /proc/yolo/v4: cannot be written: ")
