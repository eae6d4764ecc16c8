"""Two charts over all steps: what each adds to the error of the raw outputs, and what each takes of disk and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edge_sdk_tools.chain import OutputChange
from edge_sdk_tools.ledger import Step
from edge_sdk_tools.report.axis import Axis, axis_over
from edge_sdk_tools.report.bar_chart import Bar, BarChart, Row, Tone, bar_between
from edge_sdk_tools.report.words import images, megabytes, relative

_TICKS = 6
_LEAST_ERROR = 0.01
_LEAST_MB = 1e-3


def errors(steps: Sequence[Step]) -> BarChart:
    """What each step adds to the error of the raw outputs; then the sum of that, and what was measured in all.

    Independent errors add up as squares. Where the two last bars differ, the steps' errors are not independent: they
    cancel each other, or point the same way.
    """
    names = {step.kind: step.name for step in steps}
    changed = [(step, step.outputs) for step in steps if step.outputs]
    chain = _shipped_chain(steps)
    own = [change.relative_error for _, change in changed if change.relative_error is not None]
    summed = math.sqrt(sum(change.relative_error**2 for change in chain if change.relative_error is not None))
    total = chain[-1].total_error if chain else None
    axis = axis_over([*own, summed, total or 0.0], least=_LEAST_ERROR)
    rows = [_own(axis, step.name, change, names.get(change.against, change.against)) for step, change in changed]
    if total is not None:
        ends = f"FP32 to {names.get('ort', 'the end')}, which ships"
        rows.append(_bar(axis, "sum of these steps", "root of the sum of squares", summed, "other"))
        rows.append(_bar(axis, "measured in all", ends, total, "other"))
    in_percent = Axis(100 * axis.low, 100 * axis.high)
    return BarChart(
        "what each step adds to the error of the raw outputs", "error over signal", tuple(rows),
        in_percent.ticks(_TICKS, "{:g}%"), axis.at(0.0),
    )  # fmt: skip


def costs(steps: Sequence[Step]) -> BarChart:
    """Size of the file above, memory at its peak below, of every step of which either is known."""
    known = [step for step in steps if step.size_mb is not None or step.peak_memory_mb is not None]
    figures = [x for step in known for x in (step.size_mb, step.peak_memory_mb) if x is not None]
    axis = axis_over(figures, least=_LEAST_MB)
    rows = tuple(_cost(axis, step) for step in known)
    return BarChart("file and memory of each step", "MB", rows, axis.ticks(_TICKS), 0.0)


def _shipped_chain(steps: Sequence[Step]) -> list[OutputChange]:
    """From the float model to the file that ships, each step measured from the one before it; in that order."""
    changes = {step.kind: step.outputs for step in steps if step.outputs}
    chain: list[OutputChange] = []
    change = changes.get("ort")
    while change is not None and change.relative_error is not None:
        chain.insert(0, change)
        change = None if change.against == "fp32" else changes.get(change.against)
    return chain


def _own(axis: Axis, name: str, change: OutputChange, against: str) -> Row:
    beside = f"beside {against}, {_inputs(change)}"
    if change.identical:
        return Row(name, beside, "not a bit differs", (bar_between(axis, 0.0, 0.0, "gain"),))
    if change.relative_error is None:
        return Row(name, beside, f"largest difference {change.largest:.2g}")
    return _bar(axis, name, beside, change.relative_error, "loss")


def _bar(axis: Axis, name: str, detail: str, error: float, tone: Tone) -> Row:
    return Row(name, detail, relative(error), (bar_between(axis, 0.0, error, tone),))


def _inputs(change: OutputChange) -> str:
    if change.images == change.inputs:
        return images(change.images)
    return f"{change.inputs} inputs, {change.images} of them images"


def _cost(axis: Axis, step: Step) -> Row:
    pairs: tuple[tuple[float | None, Tone, float], ...] = (
        (step.size_mb, "fp32", 4.0),
        (step.peak_memory_mb, "int8", 15.0),
    )
    bars = tuple(Bar(0.0, axis.at(size), tone, y_px, 9.0) for size, tone, y_px in pairs if size is not None)
    return Row(step.name, "", " / ".join(megabytes(size) or "not measured" for size, _, _ in pairs), bars)
