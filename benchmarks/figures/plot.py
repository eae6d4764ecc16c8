"""A plot of figures beside their limits, as an SVG that stands in a README in light and in dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.figures.figure import Figure

_ROW_PX, _TOP_PX, _WIDTH_PX = 30, 34, 960
_BAR_X_PX, _BAR_WIDTH_PX = 520, 240  # of the plot's left edge, and of twice the limit
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.value { fill: #59636e }
.limit { stroke: #59636e; stroke-width: 1.5 }
.whisker { stroke: #1f2328; stroke-width: 1.5 }
.reached { fill: #1a7f5a }
.missed { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .value { fill: #9198a1 } .limit { stroke: #9198a1 } .whisker { stroke: #f0f6fc }
  .reached { fill: #3fb68b } .missed { fill: #f0883e }
}"""


def write_plot(figures: Sequence[Figure], path: Path) -> None:
    """Write one row for every figure that has a limit: what was measured over it, so that shorter is better."""
    rows = [f for f in figures if f.is_reached is not None]
    height = _TOP_PX + _ROW_PX * len(rows) + 8
    limit_x = _BAR_X_PX + _BAR_WIDTH_PX / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height}" role="img" '
        'aria-label="Measured figures beside their limits">',
        f"<style>{_STYLE}</style>",
        f'<text x="{limit_x}" y="18" text-anchor="middle" class="value">its limit</text>',
    ]
    for number, figure in enumerate(rows):
        parts += _row(figure, _TOP_PX + number * _ROW_PX)
    parts += [f'<line x1="{limit_x}" x2="{limit_x}" y1="24" y2="{height - 8}" class="limit"/>', "</svg>"]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _row(figure: Figure, y: int) -> list[str]:
    middle = y + _ROW_PX / 2
    ends = (min(figure.rounds), figure.median, max(figure.rounds))
    low, median, high = sorted(_at(figure, value) for value in ends)
    width, thick = median - _BAR_X_PX, _ROW_PX - 14
    kind = "reached" if figure.is_reached else "missed"
    value = f"{figure.median:.3g}{figure.unit}, limit {figure.limit}"
    return [
        f'<text x="0" y="{middle + 4}">{escape(figure.name)}</text>',
        f'<rect x="{_BAR_X_PX}" y="{y + 7}" width="{width:.1f}" height="{thick}" rx="2" class="{kind}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" class="whisker"/>',
        f'<text x="{_BAR_X_PX + _BAR_WIDTH_PX + 12}" y="{middle + 4}" class="value">{escape(value)}</text>',
    ]


def _at(figure: Figure, value: float) -> float:
    """Where a value stands on the axis, which ends at twice the limit."""
    share = (figure.at_least or 1.0) / value if figure.at_most is None else value / figure.at_most
    return _BAR_X_PX + _BAR_WIDTH_PX / 2 * min(max(share, 0.0), 2.0)
