"""The labels file, held against model.toml and against the model's outputs.

Owns how many labels the outputs want, and that what is said of them is said once. Whether their order is that of the
outputs no file says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec, read_labels
from edge_sdk.core.errors import ModelError
from edge_sdk.tasks.decoders import decoder_of
from edge_sdk.tasks.outputs import Output, Shape
from edge_sdk.tasks.task import WrongLabelsError, make_task
from edge_sdk_tools.check.label_lines import (
    Lines,
    Subject,
    check_background,
    check_flag,
    check_lines,
    count_advice,
    finding,
)
from edge_sdk_tools.check.report import CheckReport, Finding, TensorInfo, show_shape

_BEFORE_OUTPUTS = ("dynamic", "input", "shape", "size")
"""Rules whose errors leave open what shapes the outputs have when they are mended."""

_WRITE = "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"
_CORRECT = "correct task, decoder and input.size_wh in model.toml"


def check_labels(spec: ModelSpec, report: CheckReport) -> list[Finding]:
    """Say what is wrong with the labels, and what the decoder makes of the outputs with so many of them.

    Args:
        spec: one model.toml.
        report: on its model.
    """
    flag = list(check_flag(spec))
    try:
        labels = read_labels(Path(spec.labels))
    except ModelError as cause:
        return [finding("error", spec, str(cause), _WRITE), *flag]
    lines = Lines(labels)
    outputs = _check_outputs(spec, lines, report)
    found = [] if "background" in outputs.settles else list(check_background(spec, lines))
    found += check_lines(spec, lines, outputs.surplus, outputs.settles)
    return [*found, *flag, *outputs.findings]


class _Outputs(msgspec.Struct, frozen=True):
    """What the outputs say of the labels.

    Attributes:
        findings: one at most.
        surplus: how many lines are too many, below 0 too few; None where that is not known.
        settles: what its next step settles too.
    """

    findings: tuple[Finding, ...] = ()
    surplus: int | None = None
    settles: frozenset[Subject] = frozenset()


def _check_outputs(spec: ModelSpec, lines: Lines, report: CheckReport) -> _Outputs:
    errors = {error.rule for error in report.of("error")}
    # Without costs the graph was not looked at: the outputs are as the file declares them.
    is_open = report.costs is None or bool(errors.intersection(_BEFORE_OUTPUTS))
    if not report.outputs:
        return _Outputs()
    if is_open or any(output.shape is None for output in report.outputs):
        return _check_count(spec, lines, report.outputs)
    try:
        make_task(spec, len(lines.labels), [output.shape or () for output in report.outputs])
    except WrongLabelsError as cause:
        return _wrong_count(spec, lines, str(cause).partition("; ")[0], cause.class_count)
    except ModelError as cause:
        # Tasks put the next step behind a semicolon, where they have one.
        what, _, step = str(cause).partition("; ")
        return _Outputs((finding("error", spec, what, step or _CORRECT),))
    # An output of class ids does not show how many there are.
    return _Outputs(surplus=None if spec.decoder == "argmax" else 0)


def _check_count(spec: ModelSpec, lines: Lines, outputs: Sequence[TensorInfo]) -> _Outputs:
    """Compare the number of classes alone, which weights say and the size of the picture does not change."""
    label_count = len(lines.labels)
    counts: dict[int, TensorInfo] = {}
    for expected, output in _readings(spec, label_count, outputs):
        count = _class_count(expected, output.shape or ())
        if count is not None and count > 0:
            counts[count] = output
    if label_count in counts or len(counts) != 1:  # of two readings either may be meant
        return _Outputs()
    [(count, output)] = counts.items()
    what = (
        f"labels has {_counted(label_count, 'line', 'lines')}, the model has {_counted(count, 'class', 'classes')} "
        f"(output {show_shape(output.shape)})"
    )
    return _wrong_count(spec, lines, what, count)


def _wrong_count(spec: ModelSpec, lines: Lines, what: str, class_count: int) -> _Outputs:
    advice = count_advice(spec, lines, class_count)
    return _Outputs((finding("error", spec, what, advice.step),), len(lines.labels) - class_count, advice.settles)


def _readings(spec: ModelSpec, label_count: int, outputs: Sequence[TensorInfo]) -> Iterator[tuple[Output, TensorInfo]]:
    """What the decoder may read, each with the output that it reads it from."""
    for expected, place in decoder_of(spec).class_outputs(
        spec, label_count, [output.shape or () for output in outputs]
    ):
        yield expected, outputs[place]


def _class_count(expected: Output, got: Shape) -> int | None:
    """Classes by the one axis that follows their number, whatever the others are."""
    return expected.class_count(tuple(side if axis == expected.class_axis else None for axis, side in enumerate(got)))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
