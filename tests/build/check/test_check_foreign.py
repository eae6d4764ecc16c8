"""Files that are no ONNX model: the gate says what they look like, and what to do with them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from edge_sdk.model_spec import load_model_spec
from edge_sdk_tools.check import examine
from edge_sdk_tools.check.foreign import no_model
from tests.support import models as tiny
from tests.support.projects import write_project

AGAIN = "export or copy it again"
MODEL = tiny.classifier().SerializeToString()


def _zip() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("weights/data.pkl", b"x")
    return written.getvalue()


@pytest.mark.parametrize(
    ("data", "what", "step"),
    [
        (b"", ": the file is empty", AGAIN),
        (b"import torch\n", ": it looks like text (13 bytes)", "give the .onnx file itself"),
        # The sample may end within a character.
        (("x" + "\u00e4" * 4000).encode(), ": it looks like text (8001 bytes)", "give the .onnx file itself"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            ": it looks like a pointer of Git LFS",
            "fetch the model with",
        ),
        (b"\n<!DOCTYPE html>\n<html>", ": it looks like a web page", "download the file itself"),
        (_zip(), ": it looks like a zip such as PyTorch's .pth (", "`edge-sdk import pytorch` makes an ONNX model"),
        (b"\x80\x02\x8a\nl\xfc", ": it looks like a Python pickle", "`edge-sdk import pytorch`"),
        (b"\x89HDF\r\n\x1a\n\0", ": it looks like HDF5", "`edge-sdk import tensorflow`"),
        (b"\x1c\0\0\0TFL3\0", ": it looks like a .tflite", "`edge-sdk import tensorflow`"),
        (b"\x1c\0\0\0ORTM\0", ": it looks like an .ort", "take the .onnx that it was made from"),
        (MODEL[:1000], ": truncated after 1000 bytes, at least ", AGAIN),
        (MODEL[:1], ", or damaged (1 bytes)", AGAIN),
        (bytes(100), ", or damaged (100 bytes)", AGAIN),
        (MODEL + MODEL, ", or damaged (", AGAIN),
        (b"\x08\x08\x83", ", or damaged (3 bytes)", AGAIN),
        # No field of a model: whatever it is, it was never one.
        (b"\x78\x01\x3a\x7f", ", or damaged (4 bytes)", AGAIN),
        (b"\x08\x08\x7a\x7f", ", or damaged (4 bytes)", AGAIN),
    ],
)
def test_what_a_file_looks_like(tmp_path: Path, data: bytes, what: str, step: str) -> None:
    refusal = no_model(data)
    assert refusal.what.startswith(f"not an ONNX model{what}")
    assert refusal.next_step.startswith(step)


@pytest.mark.parametrize("data", [b"", b"import torch\n", _zip(), MODEL[:1000]])
def test_the_file_is_named(tmp_path: Path, data: bytes) -> None:
    path = write_project(tmp_path, pictures=0)
    (tmp_path / "model.onnx").write_bytes(data)
    [finding] = examine(load_model_spec(path)).findings
    refusal = no_model(data)
    assert (finding.rule, finding.where) == ("file", str(tmp_path / "model.onnx"))
    assert finding.what == f"{tmp_path / 'model.onnx'}: {refusal.what}"
    assert finding.next_step == refusal.next_step


def test_a_truncated_file_says_how_much_is_missing() -> None:
    whole = tiny.classifier()
    whole.ClearField("opset_import")  # the graph is then the last field
    data = whole.SerializeToString()
    assert no_model(data[:-7]).what.endswith(f"truncated after {len(data) - 7} bytes, at least 7 more are missing")
