"""The files of a model: its own, and those that it names because its weights lie there.

Owns the rule: a plain relative path to a regular file in the model's own folder, and a part of it that is there. A
model comes from somebody else, and must not choose which files of this machine are read.
"""

from __future__ import annotations

import os
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.core.files import open_regular
from edge_sdk_tools.check.refusal import RefusedModelError

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 2**31 - 1
"""Largest model with everything in it: protobuf's own limit for a message."""


class Part(msgspec.Struct, frozen=True):
    """A part of a file.

    Attributes:
        file: relative to the model's folder.
        offset: in bytes.
        length: in bytes; None up to the file's end.
    """

    file: str
    offset: int
    length: int | None


def external_part(tensor: onnx.TensorProto) -> Part:
    """Read where a tensor's data lies.

    Raises:
        RefusedModelError: the path is not a plain relative one, or a number is none.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = entries.get("location", "")
    path = PurePosixPath(file)
    if not file or path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file or str(path) != file:
        raise RefusedModelError(
            f"weight {tensor.name!r} lies in {file!r}, expected a file in the model's own folder, by a plain relative "
            "path",
            "put it there and save the model again",
        )
    length = entries.get("length")
    return Part(file, _number(tensor, entries.get("offset", "0")), None if length is None else _number(tensor, length))


def open_model(path: Path) -> BufferedReader:
    """Open the file of a model itself.

    Raises:
        RefusedModelError: it is missing, no regular file, or cannot be opened.
    """
    step = "put it there, or correct `model` in model.toml"
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise RefusedModelError("no such model file", step) from None
    except OSError as cause:
        raise RefusedModelError(f"the model cannot be read: {cause.strerror}", step) from cause


def read_opened(file: BufferedReader, room: int) -> bytes:
    """Read a whole file.

    Args:
        file: a regular file, opened.
        room: bytes that are left below `MAX_BYTES`.

    Raises:
        RefusedModelError: it is larger, or cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    if size > room:
        raise too_large(size - room)
    try:
        return file.read(size)  # not all the room: so much memory would be taken before anything is read
    except OSError as cause:
        raise RefusedModelError(f"it cannot be read: {cause.strerror}", "copy it again") from cause


def read_external(folder: Path, file: str, room: int) -> bytes:
    """Read one file that a model names.

    Args:
        folder: the model's.
        file: checked by `external_part`.
        room: bytes that are left below `MAX_BYTES`.

    Raises:
        RefusedModelError: it is missing, outside the folder, no regular file, or too large.
    """
    path = folder / file
    where = f"{file!r}, which holds weights,"
    try:
        resolved = path.resolve(strict=True)
        if not resolved.is_relative_to(folder.resolve()):
            raise RefusedModelError(
                f"{where} is a link that leads out of the model's folder", "copy the file itself there"
            )
        with open_regular(resolved, follow_links=False) as opened:
            return read_opened(opened, room)
    except FileNotFoundError:
        raise RefusedModelError(f"{where} is missing", "copy it beside the model") from None
    except (OSError, RuntimeError) as cause:  # RuntimeError: links that lead in a circle, up to Python 3.12
        why = getattr(cause, "strerror", None) or "its links lead in a circle"
        raise RefusedModelError(f"{where} cannot be read: {why}", "copy the file itself there") from cause


def too_large(excess: int) -> RefusedModelError:
    """The refusal of a model above `MAX_BYTES`."""
    return RefusedModelError(
        f"model and weights have {MAX_BYTES + excess} bytes together, expected at most {MAX_BYTES}",
        "choose a smaller model",
    )


def _number(tensor: onnx.TensorProto, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RefusedModelError(
            f"weight {tensor.name!r} lies at {text!r} of its file, expected a number of bytes", "save the model again"
        )
    return int(text)
