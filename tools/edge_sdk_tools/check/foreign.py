"""What a file that is no ONNX model looks like, and what to do with it.

Owns the first bytes of what people have beside ONNX. Reads no further than it takes to tell.
"""

from __future__ import annotations

import codecs
from itertools import islice

from edge_sdk.bundle.model_file import Damaged, Truncated, fields
from edge_sdk_tools.check.refusal import RefusedModelError

_AGAIN = "export or copy it again"
_CORRECT = "correct `model` in model.toml"
_PYTORCH = "`edge-sdk import pytorch` makes an ONNX model of a .pth, see docs/importing.md"
_TENSORFLOW = "`edge-sdk import tensorflow` makes an ONNX model of it, see docs/importing.md"

_SIGNATURES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip such as PyTorch's .pth", _PYTORCH),
    (0, b"\x80\x02", "a Python pickle such as an old .pth", _PYTORCH),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5 such as Keras's .h5", _TENSORFLOW),
    (4, b"TFL3", "a .tflite", _TENSORFLOW),
    (4, b"ORTM", "an .ort of ONNX Runtime", f"take the .onnx that it was made from, and {_CORRECT}"),
)
"""Offset, bytes there, what has them, next step."""

_TEXTS: tuple[tuple[str, str, str], ...] = (
    ("version https://git-lfs", "a pointer of Git LFS, not the model itself", "fetch the model with `git lfs pull`"),
    ("<!doctype html", "a web page", "download the file itself, not the page that shows it"),
    ("<html", "a web page", "download the file itself, not the page that shows it"),
)
_SAMPLE = 4096  # bytes
_FIELDS = frozenset((*range(1, 9), 14, 20, 25, 26))  # of ModelProto
_MOST_FIELDS = 10_000  # a model has some dozens beside its functions


def no_model(data: bytes) -> RefusedModelError:
    """The refusal of a file that does not read as ONNX, in the words that fit what it looks like."""
    if not data:
        return RefusedModelError("not an ONNX model: the file is empty", _AGAIN)
    text = _text(data)
    if text is not None:
        kind, step = _kind_of_text(text)
    else:
        kind, step = next(((k, s) for at, mark, k, s in _SIGNATURES if data.startswith(mark, at)), ("", _AGAIN))
    if kind:
        return RefusedModelError(f"not an ONNX model: it looks like {kind} ({len(data)} bytes)", step)
    missing = _missing(data)
    if missing:
        what = f"not an ONNX model: truncated after {len(data)} bytes, at least {missing} more are missing"
        return RefusedModelError(what, _AGAIN)
    return RefusedModelError(f"not an ONNX model, or damaged ({len(data)} bytes)", _AGAIN)


def _text(data: bytes) -> str | None:
    """The beginning of a file, if it is text."""
    try:
        # A character that the sample cuts through is left out, not an error.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data[:_SAMPLE])
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c.isspace() for c in text) else None


def _kind_of_text(text: str) -> tuple[str, str]:
    begins = text.lstrip().casefold()
    for mark, kind, step in _TEXTS:
        if begins.startswith(mark):
            return kind, step
    return "text", f"give the .onnx file itself: {_CORRECT}"


def _missing(data: bytes) -> int:
    """How many bytes a file lacks that begins as a model does; 0 for any other."""
    known = 0
    try:
        for field in islice(fields(data, 0, len(data)), _MOST_FIELDS):
            if field.number not in _FIELDS:
                return 0
            known += 1
    except Truncated as cut:
        return cut.missing if known and cut.number in _FIELDS else 0
    except Damaged:
        return 0
    return 0
