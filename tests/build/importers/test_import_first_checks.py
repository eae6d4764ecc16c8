"""What is cheap to check is checked before PyTorch or TensorFlow is loaded, which takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import CLASSIFIER, write_project

_CASES: list[tuple[list[str], list[str], int, str]] = [
    (["pytorch", "none.py:net"], [], 2, "none.py: no such file; expected a Python file"),
    (["pytorch", "none.pt2"], [], 2, "none.pt2: no such file; expected a torch.export archive"),
    (
        ["pytorch", "a.py:net"],
        ["--weights", "none.pth"],
        2,
        "none.pth: no such file; expected a file of torch.save",
    ),
    (["pytorch", "a.py:net"], ["--images", "none"], 2, "none: "),
    (["pytorch", "a.py:net"], ["--target", "none"], 2, "none"),
    (["pytorch", "a.py:net"], ["--model", "none.toml"], 2, "none.toml: "),
    (["pytorch", "a.py:net"], ["--model", "shape.toml"], 2, "size_wh"),
    (["pytorch", "a.py:net"], ["--model", "unwritable.toml"], 1, "/proc/model.onnx: cannot be written: "),
    (["onnx", "none.onnx"], [], 2, "none.onnx: no such file; SOURCE is the ONNX file to import\n"),
    (["onnx", "a.py/none.onnx"], [], 2, "a.py/none.onnx: no such file; SOURCE is the ONNX file to import\n"),
    (["onnx", "."], [], 2, ".: cannot be read: it is a folder, expected a regular file; SOURCE is the ONNX file"),
    (["onnx", "a" * 300], [], 2, "a: File name too long (see `edge-sdk import onnx --help`)\n"),
    (
        ["onnx", "pipe.onnx"],
        [],
        2,
        "pipe.onnx: cannot be read: it is a pipe, expected a regular file; SOURCE is the",
    ),
    (["pytorch", "pipe.pt2"], [], 2, "pipe.pt2: cannot be read: it is a pipe, expected a regular file; expected a"),
    (["pytorch", "pipe.pt"], [], 2, "pipe.pt: cannot be read: it is a pipe, expected a regular file; expected a"),
    (["pytorch", "a.py:net"], ["--weights", "pipe.pt"], 2, "pipe.pt: cannot be read: it is a pipe, expected a"),
    (["pytorch", "huge.py:net"], [], 2, "huge.py: has 32212254720 bytes; expected a Python file\n"),
    (
        ["tensorflow", "pipe.keras"],
        [],
        2,
        "pipe.keras: cannot be read: it is a pipe, expected a regular file; SOUR",
    ),
    (["onnx", "\udcff.onnx"], [], 2, ".onnx: its path is not valid UTF-8, which ONNX Runtime cannot take"),
    (["tensorflow", "none.keras"], [], 2, "none.keras: no such file or folder; SOURCE is a .tflite, .keras or .h5"),
    (["tensorflow", "a.py"], [], 2, "a.py: expected a .tflite, .keras or .h5 file, or the folder of a SavedModel"),
    (["tensorflow", "a.keras"], ["--model", "unwritable.toml"], 1, "/proc/model.onnx: cannot be written: "),
]

_PROGRAM = """
import contextlib, io, json, sys
sys.modules.update(torch=None, onnxscript=None, tensorflow=None, tf2onnx=None)  # loading one of them is exit code 8
from edge_sdk.cli.root import run
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each case, all in one process that has never loaded a framework."""
    folder = tmp_path_factory.mktemp("imported")
    toml = write_project(folder, CLASSIFIER.replace("model.onnx", "new.onnx"), pictures=0)
    toml.with_name("shape.toml").write_text(CLASSIFIER.replace("[16, 16]", "[16]"))
    toml.with_name("unwritable.toml").write_text(CLASSIFIER.replace("model.onnx", "/proc/model.onnx"))
    for name in ("a.py", "a.keras", "\udcff.onnx"):
        (folder / name).touch()
    for name in ("pipe.onnx", "pipe.pt2", "pipe.pt", "pipe.keras"):
        os.mkfifo(folder / name)
    with (folder / "huge.py").open("wb") as file:
        file.truncate(30 << 30)
    commands = [["import", *source, "--model", "model.toml", *options] for source, options, _, _ in _CASES]
    program = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(program, input=json.dumps(commands), capture_output=True, text=True, check=True, cwd=folder)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(_CASES)))
def test_before_the_framework_is_loaded(answers: list[tuple[int, str, str]], number: int) -> None:
    _, _, exit_code, expected = _CASES[number]
    code, output, errors = answers[number]
    assert (code, output) == (exit_code, "")
    assert expected in errors
    assert errors.count("\n") == 1


def test_the_folder_of_a_darknet_import_is_tried_first(tmp_path: Path) -> None:
    code = "import sys; from edge_sdk.cli import main; main(sys.argv[1:])"
    arguments = ["import", "darknet", "none.cfg", "none.weights", "--labels", "none.txt", "-o", "/proc/yolo/v4"]
    program = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("edge-sdk: /proc/yolo/v4: cannot be written: ")
