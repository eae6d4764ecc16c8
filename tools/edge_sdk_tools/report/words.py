"""Figures as words, as the command line has them: shares in percent, differences in points, sizes in MB of 1e6 bytes.

Every function passes None on: what was not measured has no words here, the page says so.
"""

from __future__ import annotations

import math

from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger import Measure

_SPACE = "\N{NO-BREAK SPACE}"
"""A figure and its unit stay on one line, and so do the ends of an interval."""

_HUNDREDTH = 0.01
_WHOLE_MS = 10
_NEGLIGIBLE = 1e-5


def percent(share: float | None) -> str | None:
    """`82.8%`."""
    return None if share is None else f"{_settled(100 * share):.1f}%"


def measure(figure: Measure | None) -> str | None:
    """`82.8% [79.7 to 85.7]`, without its name."""
    if figure is None:
        return None
    value, low, high = (_settled(100 * x) for x in (figure.value.value, figure.value.low, figure.value.high))
    return f"{value:.1f}% [{low:.1f}{_SPACE}to{_SPACE}{high:.1f}]"


def points(change: Interval | None) -> str | None:
    """`-0.5 [-2.0 to +0.8]`, in hundredths."""
    if change is None:
        return None
    value, low, high = (_settled(100 * x) for x in (change.value, change.low, change.high))
    return f"{value:+.1f} [{low:+.1f}{_SPACE}to{_SPACE}{high:+.1f}]"


def points_alone(change: float | None) -> str | None:
    """`-0.5`."""
    return None if change is None else f"{_settled(100 * change):+.1f}"


def times(ratio: float | None) -> str | None:
    """`0.54x`."""
    return None if ratio is None else f"{ratio:.2f}x"


def megabytes(size_mb: float | None) -> str | None:
    """`4.99 MB`; `141 MB` of many, kB where megabytes would say little."""
    if size_mb is None:
        return None
    if 0 < size_mb < 0.1:
        return f"{size_mb * 1e3:,.1f}{_SPACE}kB"
    return f"{size_mb:,.0f}{_SPACE}MB" if size_mb >= 100 else f"{size_mb:.2f}{_SPACE}MB"


def octets(size: int | None) -> str | None:
    """Bytes as `4.99 MB`, `1.2 kB` or `16 B`."""
    if size is None:
        return None
    return f"{size}{_SPACE}B" if size < 1000 else megabytes(size / 1e6)


def decibels(ratio_db: float | None) -> str | None:
    """`31.2 dB`."""
    return None if ratio_db is None else f"{_settled(ratio_db):.1f}{_SPACE}dB"


def relative(error: float | None) -> str | None:
    """`9.1% (20.9 dB)`: an amplitude over the signal's, and the signal over it."""
    if error is None:
        return None
    if error <= 0:
        return "0%"
    share = f"{100 * error:.2g}%" if error < _HUNDREDTH else f"{_settled(100 * error):.1f}%"
    shown = f"below{_SPACE}0.001%" if error < _NEGLIGIBLE else share
    return f"{shown} ({decibels(-20 * math.log10(error))})"


def images(count: int) -> str:
    """`1 image`, `8 images`."""
    return f"{count} image{'' if count == 1 else 's'}"


def millions(count: float | None) -> str | None:
    """`79.0 M`."""
    return None if count is None else f"{count:,.1f}{_SPACE}M"


def milliseconds(low_ms: float | None, high_ms: float | None) -> str | None:
    """`4.1 to 17 ms`; of what is known of it, and no finer than an estimate is."""
    known = [
        f"{value:.0f}" if value >= _WHOLE_MS else f"{value:.1f}" for value in (low_ms, high_ms) if value is not None
    ]
    return f"{' to '.join(known)}{_SPACE}ms" if known else None


def _settled(value: float) -> float:
    """Rounded to a tenth; never a minus zero."""
    return round(value, 1) + 0.0
