"""The labels file, held against model.toml and against the model's outputs.

Every fault is said once: advice about too many or too few lines names the line and settles what follows from it.
Whether the order of the lines is that of the outputs no file says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec, read_labels
from edge_sdk.core.errors import ModelError
from edge_sdk.tasks.decoders import decoder_of
from edge_sdk.tasks.outputs import ModelOutput, Shape
from edge_sdk.tasks.task import WrongLabelsError, labels_hint, make_task
from edge_sdk_tools.check.report import CheckReport, Finding, Severity, TensorInfo, show_shape

Subject: TypeAlias = Literal["background", "empty", "twice"]
"""What lines are spoken of for."""

ONE_A_CLASS = "write one line a class, in output order"
_FLAG = "background_class = true under [classification]"
_SHOWN = 5
_LONGEST_SHOWN = 40  # characters of a label


class Lines:
    """The lines of one labels file; numbers begin with 1."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels

    @cached_property
    def numbers(self) -> dict[str, list[int]]:
        """The lines of each label, empty ones left out."""
        found: dict[str, list[int]] = {}
        for number, label in enumerate(self.labels, start=1):
            if label:
                found.setdefault(label, []).append(number)
        return found

    @property
    def background(self) -> list[int]:
        """Lines that are `background`, or `__background__` as torchvision writes it."""
        return [n for n, label in enumerate(self.labels, start=1) if label.strip("_ ").casefold() == "background"]

    @property
    def empty(self) -> list[int]:
        """Lines without a label."""
        return [n for n, label in enumerate(self.labels, start=1) if not label]

    @property
    def again(self) -> list[int]:
        """Lines whose label an earlier line has."""
        return sorted(number for numbers in self.numbers.values() for number in numbers[1:])


class Advice(msgspec.Struct, frozen=True):
    """What to do about too many or too few lines."""

    step: str
    settles: frozenset[Subject] = frozenset()


def count_advice(spec: ModelSpec, lines: Lines, class_count: int) -> Advice:
    """Find the line that is too much or missing, as far as the lines show it."""
    surplus = len(lines.labels) - class_count
    if surplus > 0:
        return _advice_for_more(spec, lines, surplus)
    hint = labels_hint(spec, len(lines.labels), class_count)
    if lines.background or hint.startswith("expected"):
        return Advice(ONE_A_CLASS)
    if _counts_from_background(spec):
        step = "the file lacks the line for output 0: write `background` as line 1, as background_class = true says"
        return Advice(step, frozenset(["background"]))
    return Advice(hint)


def _advice_for_more(spec: ModelSpec, lines: Lines, surplus: int) -> Advice:
    empty, background, again = lines.empty, lines.background, lines.again
    if len(empty) == surplus:
        return Advice(f"take out the empty {_numbered(empty)}", frozenset(["empty"]))
    if surplus == 1 and background:
        step = f"take out line {background[0]}, 'background': the model has no such class"
        if not _counts_from_background(spec):
            return Advice(step, frozenset(["background"]))
        if background[0] == 1:
            return Advice(f"take out the line that is too much; if that is line 1, {_FLAG} too")
        return Advice(ONE_A_CLASS)
    if len(again) == surplus:
        those = "that label" if surplus == 1 else "those labels"
        step = f"take out {_numbered(again)}, if the model has {those} once: an earlier line has the same"
        return Advice(step, frozenset(["twice"]))
    if surplus == 1 and spec.decoder == "ssd" and spec.detection.background_class:
        return Advice(
            f"if no score is the background's, set background_class = false under [detection]; else {ONE_A_CLASS}"
        )
    return Advice(ONE_A_CLASS)


def check_flag(spec: ModelSpec) -> Iterator[Finding]:
    """Say so where background_class stands in a model.toml that does not use it."""
    if spec.task != "classification" and spec.classification.background_class:
        what = f"background_class = true in model.toml does nothing in {spec.task}: class_id counts all lines from 0"
        step = "take it out; only a classifier's class_id begins behind its background"
        yield Finding(severity="note", rule="labels", where="model.toml", what=what, next_step=step)


def check_background(spec: ModelSpec, lines: Lines) -> Iterator[Finding]:
    """Hold the line of the background against what model.toml says of it."""
    if spec.task != "classification":
        return
    numbers, count = lines.background, len(lines.labels)
    first = f"{spec.labels}: line 1 is {_shown(lines.labels[0])}"
    if spec.classification.background_class and 1 not in numbers:
        found = f"'background' is line {numbers[0]} of {count}" if numbers else "no line is 'background'"
        if count in numbers:
            found = f"'background' is line {count} of {count}: the file looks reversed or shifted"
        what = f"{first}, expected 'background', because background_class = true in model.toml; {found}"
        step = "write the lines in output order, 'background' first; if output 0 is a class, take out background_class"
        # Some call it void, or say it in another language: only a line elsewhere proves a fault.
        yield finding("error" if numbers else "warning", spec, what, step)
    elif not spec.classification.background_class and 1 in numbers:
        what = f"{first}, and model.toml does not say so: class_id 0 is the background"
        yield finding("warning", spec, what, f"set {_FLAG}: class_id then begins behind it")
    elif not spec.classification.background_class and numbers:
        last = count if count in numbers else numbers[0]
        what = (
            f"{spec.labels}: 'background' is line {last} of {count}, so output {last - 1} is the background? "
            "Most models have it as output 0"
        )
        step = (
            f"nothing to do, if output {last - 1} is; if output 0 is, the file is reversed or shifted: "
            f"write 'background' first and set {_FLAG}"
        )
        yield finding("warning", spec, what, step)


def check_lines(
    spec: ModelSpec, lines: Lines, surplus: int | None, settled: Collection[Subject] = ()
) -> Iterator[Finding]:
    """Name lines that are empty, and labels that are there more than once.

    Args:
        spec: one model.toml.
        lines: of its labels file.
        surplus: how many of them are too many, below 0 too few; None where that is not known.
        settled: what has been said.
    """
    if lines.empty and "empty" not in settled:
        verb = "is" if len(lines.empty) == 1 else "are"
        what = f"{spec.labels}: {_numbered(lines.empty)} {verb} empty, and counted as a label"
        step = "write the label of that output"
        # Without the line there would be one too few.
        can_go = surplus is None or surplus > 0
        yield finding("warning", spec, what, f"{step}, or take the line out" if can_go else step)
    if "twice" in settled:
        return
    twice = [f"{_shown(label)} in lines {_joined(found)}" for label, found in lines.numbers.items() if len(found) > 1]
    if twice:
        more = f" and {len(twice) - _SHOWN} more" if len(twice) > _SHOWN else ""
        what = f"{spec.labels}: the same label for several outputs: {', '.join(twice[:_SHOWN])}{more}"
        step = "give each output a label of its own, unless they are meant as one: results differ in class_id only"
        yield finding("note", spec, what, step)


def finding(severity: Severity, spec: ModelSpec, what: str, next_step: str) -> Finding:
    """Make a finding about the labels file."""
    return Finding(severity=severity, rule="labels", where=spec.labels, what=what, next_step=next_step)


def _counts_from_background(spec: ModelSpec) -> bool:
    return spec.task == "classification" and spec.classification.background_class


def _shown(label: str) -> str:
    return repr(label if len(label) <= _LONGEST_SHOWN else f"{label[:_LONGEST_SHOWN]}…")


def _numbered(numbers: Sequence[int]) -> str:
    return f"line{'' if len(numbers) == 1 else 's'} {_joined(numbers)}"


def _joined(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else "")


_BEFORE_OUTPUTS = ("dynamic", "input", "shape", "size")
"""Rules whose errors leave open what shapes the outputs have when they are mended."""

_WRITE = "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"
_CORRECT = "correct task, decoder and input.size_wh in model.toml"


def check_labels(spec: ModelSpec, report: CheckReport) -> list[Finding]:
    """Say what is wrong with the labels, and what the decoder makes of the outputs with so many of them."""
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
    """The findings about the labels that the model's outputs give.

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


def _readings(
    spec: ModelSpec, label_count: int, outputs: Sequence[TensorInfo]
) -> Iterator[tuple[ModelOutput, TensorInfo]]:
    """What the decoder may read, each with the output that it reads it from."""
    for expected, place in decoder_of(spec).class_outputs(
        spec, label_count, [output.shape or () for output in outputs]
    ):
        yield expected, outputs[place]


def _class_count(expected: ModelOutput, got: Shape) -> int | None:
    """Classes by the one axis that follows their number, whatever the others are."""
    return expected.class_count(tuple(side if axis == expected.class_axis else None for axis, side in enumerate(got)))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
