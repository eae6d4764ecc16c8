"""The two charts of the steps: how good each one is, and how their losses add up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_sdk_tools.chain import StepKind
from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger import Measure, Step
from edge_sdk_tools.report.axis import Axis, axis_over
from edge_sdk_tools.report.bar_chart import BarChart, Row, Tone, bar_between, whisker_over
from edge_sdk_tools.report.words import measure, points

_TICKS = 6
_LEAST_POINTS = 0.01  # of the waterfall's axis: without any loss it still has a length

_TONES: dict[StepKind, Tone] = {
    "source": "other",
    "teacher": "other",
    "fp32": "fp32",
    "simplified": "fp32",
    "int8": "int8",
    "ort": "int8",
    "arm": "int8",
}


def figure_of(step: Step, *, labelled: bool) -> Measure | None:
    """The figure that a chart of steps shows: quality, or agreement where no step has a quality."""
    return step.quality if labelled else step.agreement


def is_labelled(steps: Sequence[Step]) -> bool:
    """Whether any step was measured against labels."""
    return any(step.quality for step in steps)


def ladder(steps: Sequence[Step]) -> BarChart:
    """How good each step is, from 0 to 100 %, with its interval."""
    axis, labelled = Axis(0.0, 1.0), is_labelled(steps)
    shown = [step for step in steps if figure_of(step, labelled=labelled) or not _is_told_elsewhere(step, steps)]
    rows = []
    names = [figure.name for step in steps if (figure := figure_of(step, labelled=labelled))]
    for step in shown:
        figure = figure_of(step, labelled=labelled)
        is_reference = figure is None and not labelled and step.kind == "fp32" and names
        row = Row(step.name, step.what, "compared with" if is_reference else measure(figure))
        if figure:
            bars = (bar_between(axis, 0.0, figure.value.value, _TONES[step.kind]),)
            row = msgspec.structs.replace(row, bars=bars, whisker=whisker_over(axis, figure.value))
        rows.append(row)
    title = names[0] if names else "quality"
    return BarChart(f"{title} of each step", title, tuple(rows), axis.ticks(_TICKS, "{:.0%}"), 0.0)


def waterfall(steps: Sequence[Step]) -> BarChart:
    """What each step changed, each bar from where the step it is compared with ended."""
    starts = _starts(steps)
    ends = [start + step.change.value for start, step in zip(starts, steps, strict=True) if step.change]
    reaches = [
        start + edge
        for start, step in zip(starts, steps, strict=True)
        if step.change
        for edge in (step.change.low, step.change.high)
    ]
    axis = axis_over([*starts, *ends, *reaches], least=_LEAST_POINTS)
    in_points = Axis(100 * axis.low, 100 * axis.high)
    base = _base(steps)
    rows = tuple(
        _fall(axis, step, start, step.change)
        if step.change
        else Row(step.name, "", "where it starts" if step.kind == base else None)
        for step, start in zip(steps, starts, strict=True)
        if step.change or step.kind == base or not _is_told_elsewhere(step, steps)
    )
    return BarChart("what each step changed", "points", rows, in_points.ticks(_TICKS, "{:+g}"), axis.at(0.0))


def _is_told_elsewhere(step: Step, steps: Sequence[Step]) -> bool:
    """Whether the chart of raw outputs, or a reason, stands for a step that has no quality of its own."""
    against = {other.outputs.against for other in steps if other.outputs}
    return bool(step.outputs or step.left_out or step.kind in against)


def _starts(steps: Sequence[Step]) -> list[float]:
    """From where each step's change is drawn, -1 to 1, the first step at 0.

    A step that was not measured ends where it starts: what it lost shows in the next one that was.
    """
    ends: dict[StepKind, float] = {}
    starts, before = [], 0.0
    for step in steps:
        start = ends.get(step.against, 0.0) if step.against else before
        before = start + (step.change.value if step.change else 0.0)
        ends[step.kind] = before
        starts.append(start)
    return starts


def _fall(axis: Axis, step: Step, start: float, change: Interval) -> Row:
    tone: Tone = "loss" if change.value < 0 else "gain"
    bars = (bar_between(axis, start, start + change.value, tone),)
    detail = "no difference" if change.low == change.high == 0 else "within noise" if change.contains_zero else ""
    return Row(step.name, detail, points(change), bars, whisker_over(axis, change, start))


def _base(steps: Sequence[Step]) -> StepKind | None:
    """The step that the first change is measured from; None without any change."""
    before: StepKind | None = None
    for step in steps:
        if step.change:
            return step.against or before
        if step.quality or step.agreement or step.kind == "fp32":
            before = step.kind
    return None
