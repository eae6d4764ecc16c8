"""Text files of labels: read as UTF-8, with or without a byte order mark."""

from __future__ import annotations

import math
import re
from pathlib import Path

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import read_regular

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # float() takes nan and 1_0 too
_MOST_BYTES = 1 << 30  # ten million images, a line of 100 bytes each
_EXACT = 2**53  # from here on a float skips whole numbers


def read_text(path: Path) -> str:
    """The text of one file, its lines ended by newlines.

    Raises:
        DataError: when it cannot be read or is not UTF-8.
    """
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise DataError(f"{path}: not UTF-8 (byte {cause.start}); save it as UTF-8") from cause
    except OSError as cause:
        raise DataError(f"{path}: cannot be read: {cause.strerror}") from cause
    return text.replace("\r\n", "\n").replace("\r", "\n")


def finite_number(text: str) -> float | None:
    """The number that `text` is, or None: nan and inf are none."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def whole_number(text: str) -> int | None:
    """The whole number that `text` is, or None; 3.0 is one."""
    value = finite_number(text)
    return int(value) if value is not None and value.is_integer() and abs(value) < _EXACT else None
