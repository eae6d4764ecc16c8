"""The charts of the report page, as rows of bars, points and texts for its templates; all widths are in percent.

Figures are written as on the command line: shares in percent, differences in points, sizes in MB of 1e6 bytes. The
functions that write a figure return None for None, and the page then says "not measured".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from edge_sdk.core.logs import counted
from edge_sdk_tools.evaluate.statistics import SHARE, Interval
from edge_sdk_tools.prove.parity import OutputChange, StepKind
from edge_sdk_tools.report.schema import Candidate, LayerSensitivity, Measure, OperatorSize, Step
from edge_sdk_tools.search.sensitivity import LayerNoise

Tone: TypeAlias = Literal["fp32", "int8", "other", "loss", "gain", "float"]
"""What a bar stands for; the style sheet has a colour for each tone, in light and dark."""
_SPACE = "\N{NO-BREAK SPACE}"  # keeps a figure and its unit on one line, and also the ends of an interval
MOST_ROWS, MOST_NOISY = 20, 12
"""Layers that are visible at once, and in the chart of the noise that they read; few of a hundred layers matter."""
_TICKS = 6
_LEAST = 0.01  # length of an axis of shares, which it has even without any loss
_LEAST_MB = 1e-3
_DRAWN_DB = (-40.0, 200.0)  # range that is drawn: longer bars show nothing more, and powers of ten would overflow
HEIGHT_PX = 340
_TOP_PX, _BOTTOM_PX = 28, 300
_LEFT, _RIGHT = 9.0, 95.0  # percent of the width; the numbers of the axis are to the left
_INTEGER_STEPS, _FLOAT_STEPS = ("int8", "ort", "arm"), ("fp32", "simplified")


class Tick(msgspec.Struct, frozen=True):
    """A number on an axis: its position in percent of the axis, and its text."""

    at: float
    text: str


class Axis(msgspec.Struct, frozen=True):
    """The range of numbers that an axis shows, in the unit of what is drawn; `low` is below `high`."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return the position of a value on the axis, 0-100; a value beyond an end gets the position of that end."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def ticks(self, form: str) -> tuple[Tick, ...]:
        """Return a few numbers between the ends, in steps of 1, 2, 2.5 or 5 times a power of ten, with their texts."""
        least = (self.high - self.low) / (_TICKS - 1)
        power = 10.0 ** math.floor(math.log10(least))
        step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        numbers = [round(index * step, 12) + 0.0 for index in range(first, last + 1)]
        return tuple(
            Tick(self.at(number), form.format(number) if number else form.format(0).lstrip("+"))
            for number in numbers[:_TICKS]
        )


def axis_over(values: Iterable[float], *, least: float, holds: float | None = 0.0) -> Axis:
    """Return an axis that holds all finite values and `holds`, at least `least` long, so that one value has one too."""
    known = [*values, *(() if holds is None else (holds,))] or [0.0]
    low, high = min(known), max(known)
    missing = least - (high - low)
    if missing <= 0:
        return Axis(low, high)
    if holds is not None and holds in (low, high):  # extend the other end, so that the axis still ends at `holds`
        return Axis(low, high + missing) if holds == low else Axis(low - missing, high)
    return Axis(low - missing / 2, high + missing / 2)


class Bar(msgspec.Struct, frozen=True):
    """One bar of a chart: start and width in percent of the chart's, top and height within its row of 28 pixels."""

    start: float
    width: float
    tone: Tone
    y_px: float = 7.0
    height_px: float = 14.0


class Row(msgspec.Struct, frozen=True):
    """One row of a chart: its figures as text, for None the page shows "not measured"; bars only of what was.

    `whisker` is an interval, in percent of the chart's width.
    """

    label: str
    detail: str
    value: str | None
    bars: tuple[Bar, ...] = ()
    whisker: Interval | None = None


class BarChart(msgspec.Struct, frozen=True):
    """A bar chart: rows on one axis, whose 0 is at `zero` percent; the page shows the folded ones on demand."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    zero: float
    folded: tuple[Row, ...] = ()


def _bars(axis: Axis, start: float, end: float, tone: Tone) -> tuple[Bar, ...]:
    """Return the one bar between two values, whichever of them is larger."""
    low, high = sorted((axis.at(start), axis.at(end)))
    return (Bar(low, round(high - low, 2), tone),)


def _two_bars(
    axis: Axis, values: Sequence[float | None], tones: tuple[Tone, Tone] = ("fp32", "int8")
) -> tuple[Bar, ...]:
    places = zip(values, tones, (4.0, 15.0), strict=True)
    return tuple(Bar(0.0, axis.at(value), tone, y_px, 9.0) for value, tone, y_px in places if value is not None)


def _whisker(axis: Axis, interval: Interval, base: float = 0.0) -> Interval:
    """Return the whisker of an interval that is counted from `base`."""
    return Interval(*(axis.at(base + edge) for edge in (interval.value, interval.low, interval.high)))


def percent(share: float | None) -> str | None:
    """Write a share, such as `82.8%`."""
    return None if share is None else f"{_settled(100 * share):.1f}%"


def measure(figure: Measure | None) -> str | None:
    """Write a figure with its interval, without its name: `82.8% [79.7 to 85.7]`."""
    if figure is None:
        return None
    found, is_share = (figure.value.value, figure.value.low, figure.value.high), figure.unit == SHARE
    value, low, high = (f"{_settled(100 * x):.1f}" if is_share else f"{x:.3g}" for x in found)
    return f"{value}{'%' if is_share else ''} [{low}{_SPACE}to{_SPACE}{high}]"


def points(change: Interval | None) -> str | None:
    """Write a difference in points (hundredths) with its interval: `-0.5 [-2.0 to +0.8]`."""
    if change is None:
        return None
    value, low, high = (_settled(100 * x) for x in (change.value, change.low, change.high))
    return f"{value:+.1f} [{low:+.1f}{_SPACE}to{_SPACE}{high:+.1f}]"


def times(ratio: float | None) -> str | None:
    """Write a ratio, such as `0.54x`."""
    return None if ratio is None else f"{ratio:.2f}x"


def megabytes(size_mb: float | None) -> str | None:
    """Write a size: `4.99 MB`, `141 MB` from 100 MB on, and kB below 0.1 MB."""
    if size_mb is None:
        return None
    if 0 < size_mb < 0.1:
        return f"{size_mb * 1e3:,.1f}{_SPACE}kB"
    return f"{size_mb:,.0f}{_SPACE}MB" if size_mb >= 100 else f"{size_mb:.2f}{_SPACE}MB"


def decibels(ratio_db: float | None) -> str | None:
    """Write a ratio in decibels, such as `31.2 dB`."""
    return None if ratio_db is None else f"{_settled(ratio_db):.1f}{_SPACE}dB"


def relative(error: float | None) -> str | None:
    """Write an error over the signal's amplitude, in percent and as a signal-to-noise ratio: `9.1% (20.9 dB)`."""
    if error is None:
        return None
    if error <= 0:
        return "0%"
    share = f"{100 * error:.2g}%" if error < 0.01 else f"{_settled(100 * error):.1f}%"
    shown = f"below{_SPACE}0.001%" if error < 1e-5 else share
    return f"{shown} ({decibels(-20 * math.log10(error))})"


def millions(count: float | None) -> str | None:
    """Write a number of millions, such as `79.0 M`."""
    return None if count is None else f"{count:,.1f}{_SPACE}M"


def milliseconds(low_ms: float | None, high_ms: float | None) -> str | None:
    """Write an estimate in milliseconds, such as `4.1 to 17 ms`; an end that is None is left out."""
    known = [f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}" for ms in (low_ms, high_ms) if ms is not None]
    return f"{' to '.join(known)}{_SPACE}ms" if known else None


def _settled(value: float) -> float:
    return round(value, 1) + 0.0


def _chart(
    title: str, unit: str, rows: list[Row], axis: Axis, *, form: str = "{:g}%", factor: int = 100, most: int = MOST_ROWS
) -> BarChart:
    """Return a chart with at most so many visible rows, whose axis is written in percent, or in what `form` says."""
    ticks = Axis(factor * axis.low, factor * axis.high).ticks(form)
    return BarChart(title, unit, tuple(rows[:most]), ticks, axis.at(0.0), tuple(rows[most:]))


def sensitivity(layers: Sequence[LayerSensitivity]) -> BarChart:
    """Return the chart of what quantizing each layer does to the outputs, the noisiest first."""
    axis = axis_over([_noise(layer.sqnr_db) or 0.0 for layer in layers], least=_LEAST)
    rows = []
    for layer in sorted(layers, key=_worst_first):
        harm = _noise(layer.sqnr_db)
        bars = () if harm is None else _bars(axis, 0.0, harm, "loss" if layer.is_integer else "float")
        kind = f"{layer.operator}, {'integer' if layer.is_integer else 'left float'}"
        rows.append(Row(layer.node, kind + _work(layer), decibels(layer.sqnr_db), bars))
    return _chart("what each layer's integers cost", "noise over signal", rows, axis)


def noise(layers: Sequence[LayerNoise]) -> BarChart:
    """Return the chart of the noise that each layer reads, the worst first: activations above, weights below."""
    both = [_noise(db) for layer in layers for db in (layer.activation_sqnr_db, layer.weight_sqnr_db)]
    axis = axis_over([one for one in both if one is not None], least=_LEAST)
    rows = []
    for layer in sorted(layers, key=_worst_first):
        bars = _two_bars(axis, (_noise(layer.activation_sqnr_db), _noise(layer.weight_sqnr_db)), ("int8", "float"))
        rows.append(Row(layer.node, layer.operator + _work(layer), decibels(layer.sqnr_db), bars))
    return _chart("noise that each layer reads", "noise over signal", rows, axis, most=MOST_NOISY)


def _worst_first(layer: LayerSensitivity | LayerNoise) -> tuple[bool, float, str]:
    return layer.sqnr_db is None, layer.sqnr_db or 0.0, layer.node


def _work(layer: LayerSensitivity | LayerNoise) -> str:
    work = percent(layer.macs_share)
    return f", {work} of MACs" if work else ""


def sizes(operators: Sequence[OperatorSize]) -> BarChart:
    """Return the chart of the bytes of weights by type of operator, FP32 above INT8."""
    axis = axis_over([size / 1e6 for one in operators for size in (one.fp32_bytes, one.int8_bytes)], least=1e-6)
    rows = []
    for operator in operators:
        both = (operator.fp32_bytes, operator.int8_bytes)
        texts = [f"{size}{_SPACE}B" if size < 1000 else f"{megabytes(size / 1e6)}" for size in both]
        bars = _two_bars(axis, [size / 1e6 for size in both])
        rows.append(Row(operator.operator, "", " → ".join(texts), bars))
    return _chart("weights by type of operator", "MB", rows, axis, form="{:g}", factor=1)


def _noise(sqnr_db: float | None) -> float | None:
    """Return the amplitude of the noise over that of the signal: 20 dB are 10 %."""
    if sqnr_db is None:
        return None
    low, high = _DRAWN_DB
    return float(10 ** (-min(max(sqnr_db, low), high) / 20))


def errors(steps: Sequence[Step]) -> BarChart:
    """Return the chart of what each step adds to the error of the raw outputs, then their sum and the measured total.

    Independent errors add up as squares. Where the two last bars differ, the errors of the steps are not independent:
    they cancel or reinforce each other.
    """
    names = {step.kind: step.name for step in steps}
    changed = [(step, step.outputs) for step in steps if step.outputs]
    chain = _shipped_chain(steps)
    own = [change.relative_error for _, change in changed if change.relative_error is not None]
    summed = math.sqrt(sum(change.relative_error**2 for change in chain if change.relative_error is not None))
    total = chain[-1].total_error if chain else None
    axis = axis_over([*own, summed, total or 0.0], least=_LEAST)
    rows = [_own(axis, step.name, change, names.get(change.against, change.against)) for step, change in changed]
    if total is not None:
        ends = f"FP32 to {names.get('ort', 'the end')}, which ships"
        rows.append(_bar(axis, "sum of these steps", "root of the sum of squares", summed, "other"))
        rows.append(_bar(axis, "measured in all", ends, total, "other"))
    return _chart("what each step adds to the error of the raw outputs", "error over signal", rows, axis)


def costs(steps: Sequence[Step]) -> BarChart:
    """Return the chart of file size (above) and peak memory (below) of every step for which either is known."""
    known = [step for step in steps if step.size_mb is not None or step.peak_memory_mb is not None]
    figures = [x for step in known for x in (step.size_mb, step.peak_memory_mb) if x is not None]
    axis = axis_over(figures, least=_LEAST_MB)
    rows = []
    for step in known:
        both = (step.size_mb, step.peak_memory_mb)
        texts = [megabytes(size) or "not measured" for size in both]
        rows.append(Row(step.name, "", " / ".join(texts), _two_bars(axis, both)))
    return _chart("file and memory of each step", "MB", rows, axis, form="{:g}", factor=1)


def _shipped_chain(steps: Sequence[Step]) -> list[OutputChange]:
    """Return the steps from the float model to the shipped file, each measured against the one before."""
    changes = {step.kind: step.outputs for step in steps if step.outputs}
    chain: list[OutputChange] = []
    change = changes.get("ort")
    while change is not None and change.relative_error is not None:
        chain.insert(0, change)
        change = None if change.against == "fp32" else changes.get(change.against)
    return chain


def _own(axis: Axis, name: str, change: OutputChange, against: str) -> Row:
    inputs = "" if change.images == change.inputs else f"{change.inputs} inputs, "
    beside = (
        f"beside {against}, {inputs}{f'{change.images} of them images' if inputs else counted(change.images, 'image')}"
    )
    if change.identical:
        return Row(name, beside, "not a bit differs", _bars(axis, 0.0, 0.0, "gain"))
    if change.relative_error is None:
        return Row(name, beside, f"largest difference {change.largest:.2g}")
    return _bar(axis, name, beside, change.relative_error, "loss")


def _bar(axis: Axis, name: str, detail: str, error: float, tone: Tone) -> Row:
    return Row(name, detail, relative(error), _bars(axis, 0.0, error, tone))


class Point(msgspec.Struct, frozen=True):
    """One recipe as a point of the scatter chart: percent of the width, pixels from the top, and all of it in words."""

    number: int
    x: float
    y_px: float
    top_px: float
    bottom_px: float
    state: str
    title: str


class Scatter(msgspec.Struct, frozen=True):
    """The scatter chart of the recipes, latency against change in quality; `left_out` of them lack one of both."""

    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    gate_px: float | None
    left_out: int


def scatter(candidates: Sequence[Candidate], least_change: float | None) -> Scatter | None:
    """Return the scatter chart of the recipes, or None where no recipe has both latency and change."""
    numbered = enumerate(candidates, start=1)
    drawn = [(n, c, c.change, c.latency_ratio) for n, c in numbered if c.change and c.latency_ratio is not None]
    if not drawn:
        return None
    gate = None if least_change is None else 100 * least_change
    reaches = [100 * edge for _, _, change, _ in drawn for edge in (change.low, change.high)]
    across = _wider(axis_over([ratio for _, _, _, ratio in drawn], least=0.1, holds=None))
    upwards = _wider(axis_over([*reaches, *(() if gate is None else (gate,))], least=1.0))
    placed = []
    for number, candidate, change, ratio in drawn:
        state = "chosen" if candidate.chosen else "held" if candidate.held else "missed"
        words = f"{number}: {candidate.recipe}; {points(change)} points, {times(ratio)}; {state}"
        y_px, top_px, bottom_px = (_y(upwards.at(100 * value)) for value in (change.value, change.high, change.low))
        placed.append(Point(number, _x(across.at(ratio)), y_px, top_px, bottom_px, state, words))
    return Scatter(
        tuple(sorted(placed, key=lambda point: point.state == "chosen")),
        tuple(Tick(_x(tick.at), tick.text) for tick in across.ticks("{:g}x")),
        tuple(Tick(_y(tick.at), tick.text) for tick in upwards.ticks("{:+g}")),
        None if gate is None else _y(upwards.at(gate)),
        len(candidates) - len(drawn),
    )


def _wider(axis: Axis) -> Axis:
    margin = 0.08 * (axis.high - axis.low)  # so that no point lies on the edge
    return Axis(axis.low - margin, axis.high + margin)


def _x(along: float) -> float:
    return round(_LEFT + (_RIGHT - _LEFT) * along / 100, 2)


def _y(along: float) -> float:
    return round(_BOTTOM_PX - (_BOTTOM_PX - _TOP_PX) * along / 100, 1)


def ladder(steps: Sequence[Step]) -> BarChart:
    """Return the chart of each step's quality, 0 to 100 %, with its interval; without labels, of its agreement."""
    axis, labelled = Axis(0.0, 1.0), any(step.quality for step in steps)
    figures = [step.quality if labelled else step.agreement for step in steps]
    names = [figure.name for figure in figures if figure]
    rows = []
    for step, figure in zip(steps, figures, strict=True):
        if figure is None and _is_told_elsewhere(step, steps):
            continue
        is_reference = figure is None and not labelled and step.kind == "fp32" and names
        tone: Tone = "int8" if step.kind in _INTEGER_STEPS else "fp32" if step.kind in _FLOAT_STEPS else "other"
        bars = _bars(axis, 0.0, figure.value.value, tone) if figure else ()
        whisker = _whisker(axis, figure.value) if figure else None
        rows.append(Row(step.name, step.what, "compared with" if is_reference else measure(figure), bars, whisker))
    title = names[0] if names else "quality"
    return _chart(f"{title} of each step", title, rows, axis)


def waterfall(steps: Sequence[Step]) -> BarChart:
    """Return the chart of what each step changed; its bar starts where that of the step it is compared with ends."""
    starts = _starts(steps)
    changed = [(start, step.change) for start, step in zip(starts, steps, strict=True) if step.change]
    reaches = [start + edge for start, change in changed for edge in (change.value, change.low, change.high)]
    axis = axis_over([*starts, *reaches], least=_LEAST)
    base, rows = _base(steps), list[Row]()
    for step, start in zip(steps, starts, strict=True):
        change = step.change
        if change:
            same = change.low == change.high == 0
            detail = "no difference" if same else "other images may show none" if change.contains_zero else ""
            bars = _bars(axis, start, start + change.value, "loss" if change.value < 0 else "gain")
            rows.append(Row(step.name, detail, points(change), bars, _whisker(axis, change, start)))
        elif step.kind == base or not _is_told_elsewhere(step, steps):
            rows.append(Row(step.name, "", "where it starts" if step.kind == base else None))
    return _chart("what each step changed", "points", rows, axis, form="{:+g}")


def _is_told_elsewhere(step: Step, steps: Sequence[Step]) -> bool:
    """Tell whether the page shows a step elsewhere: in the chart of raw outputs, or as left out with a reason."""
    against = {other.outputs.against for other in steps if other.outputs}
    return bool(step.outputs or step.left_out or step.kind in against)


def _starts(steps: Sequence[Step]) -> list[float]:
    """Return where each step's bar starts, -1 to 1, the first at 0; that of one not measured ends there too."""
    ends: dict[StepKind, float] = {}
    starts, before = [], 0.0
    for step in steps:
        start = ends.get(step.against, 0.0) if step.against else before
        before = start + (step.change.value if step.change else 0.0)
        ends[step.kind] = before
        starts.append(start)
    return starts


def _base(steps: Sequence[Step]) -> StepKind | None:
    before: StepKind | None = None
    for step in steps:
        if step.change:
            return step.against or before
        if step.quality or step.agreement or step.kind == "fp32":
            before = step.kind
    return None
