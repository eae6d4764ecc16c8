"""What makes a record sound: numbers that are numbers, in their range, and texts that any file can hold.

JSON has no NaN: it would be written as null, and null says "not measured". So it is refused where it arises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from edge_sdk_tools.evaluate import Interval

_UNWRITABLE = re.compile("[\ud800-\udfff\x00-\x08\x0b-\x1f\x7f]")  # HTML has no way to write them, UTF-8 for some none
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

BOUNDS = {
    "size_mb": (0.0, math.inf),
    "latency_ratio": (0.0, math.inf),
    "peak_memory_mb": (0.0, math.inf),
    "board_minstructions": (0.0, math.inf),
    "latency_budget_ms": (0.0, math.inf),
    "macs_share": (0.0, 1.0),
    "loss": (-1.0, 1.0),
    "change": (-1.0, 1.0),
    "least_change": (-1.0, 0.0),
    "fp32_bytes": (0.0, math.inf),
    "int8_bytes": (0.0, math.inf),
    "images": (0.0, math.inf),
    "inputs": (0.0, math.inf),
    "largest": (0.0, math.inf),
    "largest_share": (0.0, math.inf),
    "relative_error": (0.0, math.inf),
    "total_error": (0.0, math.inf),
    "cosine": (-1.0, 1.0),
    "top1_agreement": (0.0, 1.0),
}
"""Of every number of a record, by the name of its field."""


def settle(record: msgspec.Struct) -> None:
    """Check the numbers of a record that was just made, and make its texts writable, in place.

    A file may have a name that is no Unicode; a build must not fail over it when all is done but the report.

    Raises:
        ValueError: a number is NaN or infinite, out of its range, or outside its own interval.
    """
    for field in record.__struct_fields__:
        value = getattr(record, field)
        where = f"{type(record).__name__}.{field}"
        if isinstance(value, (int, float, Interval)) and not isinstance(value, bool):
            _check_number(where, field, value)
        else:
            clean = _writable(value)
            if clean != value:
                msgspec.structs.force_setattr(record, field, clean)


def check_bounds(where: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside low to high.

    Raises:
        ValueError: it is, or it is no finite number.
    """
    if not math.isfinite(value):
        raise ValueError(f"{where} is {value}, expected a finite number, or None where nothing was measured")
    if not low <= value <= high:
        expected = f"{low:g} or more" if math.isinf(high) else f"{low:g} to {high:g}"
        raise ValueError(f"{where} is {value}, expected {expected}")


def check_order(kinds: Sequence[str], order: Sequence[str]) -> None:
    """Refuse steps that are there twice, or out of order.

    Raises:
        ValueError: they are.
    """
    places = [order.index(kind) for kind in kinds]
    if places != sorted(set(places)):
        raise ValueError(f"Ledger.steps are {', '.join(kinds)}; expected each once, in the order {', '.join(order)}")


def check_one(where: str, flags: Sequence[bool]) -> None:
    """Refuse a choice that was made twice.

    Raises:
        ValueError: it was.
    """
    if sum(flags) > 1:
        raise ValueError(f"{where}: {sum(flags)}, expected one at most")


def _check_number(where: str, field: str, value: float | Interval) -> None:
    low, high = BOUNDS.get(field, (-math.inf, math.inf))
    if not isinstance(value, Interval):
        check_bounds(where, value, low, high)
        return
    for number in (value.low, value.high):
        check_bounds(where, number, -math.inf, math.inf)
    check_bounds(where, value.value, low, high)
    if not value.low <= value.value <= value.high:
        raise ValueError(
            f"{where} is {value.value}, expected a figure inside its interval, {value.low} to {value.high}"
        )


def _writable(value: object) -> object:
    """The same value; what no file can hold is replaced in a text, a tuple of texts, and a dict of texts."""
    if isinstance(value, str):
        return _UNWRITABLE.sub(_REPLACEMENT, value)
    if isinstance(value, tuple):
        return tuple(_writable(item) for item in value)
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return value
