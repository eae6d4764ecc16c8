"""Weights that lie in other files: which files a model may name, and the reading of them.

Owns the rule: a plain relative path to a regular file in the model's own folder, and a part of it that is there. A
model comes from somebody else, and must not choose which files of this machine are read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

import msgspec
import onnx

from edge_sdk_tools.check.refusal import RefusedModelError

MOST_BYTES = 2**31 - 1
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


def read_external(folder: Path, file: str, room: int) -> bytes:
    """Read one file that a model names.

    Args:
        folder: the model's.
        file: checked by `external_part`.
        room: bytes that are left below `MOST_BYTES`.

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
        # Not blocking: a pipe would wait for a writer for ever.
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedModelError(f"{where} is no regular file", "copy the file itself there")
            if status.st_size > room:
                raise too_large(status.st_size - room)
            return opened.read(room + 1)
    except FileNotFoundError:
        raise RefusedModelError(f"{where} is missing", "copy it beside the model") from None
    except OSError as cause:
        raise RefusedModelError(
            f"{where} cannot be read: {cause.strerror}", "correct its permissions, or copy it again"
        ) from cause


def too_large(excess: int) -> RefusedModelError:
    """The refusal of a model above `MOST_BYTES`."""
    return RefusedModelError(
        f"model and weights have {MOST_BYTES + excess} bytes together, expected at most {MOST_BYTES}",
        "choose a smaller model",
    )


def _number(tensor: onnx.TensorProto, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RefusedModelError(
            f"weight {tensor.name!r} lies at {text!r} of its file, expected a number of bytes", "save the model again"
        )
    return int(text)
