"""The labels file, held against model.toml and against the model's outputs.

Owns what can be known of labels: how many there are, what the first says, which are empty or there twice. Whether their
order is that of the outputs no file says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import ModelSpec, read_labels
from edge_sdk.tasks import make_task
from edge_sdk.tasks.output import Output, Shape, outputs_of
from edge_sdk_tools.check.report import CheckReport, Finding, Severity, TensorInfo, show_shape

_BEFORE_OUTPUTS = ("dynamic", "input", "shape", "size")
"""Rules whose errors leave open what shapes the outputs have when they are mended."""

_WRITE = "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"
_ONE_A_CLASS = "write one line a class, in output order"
_CORRECT = "correct task, decoder and input.size_wh in model.toml"
_SHOWN = 5
_LONGEST_SHOWN = 40  # characters of a label


def check_labels(spec: ModelSpec, report: CheckReport) -> list[Finding]:
    """Say what is wrong with the labels, and what the decoder makes of the outputs with so many of them.

    Args:
        spec: one model.toml.
        report: on its model.
    """
    try:
        labels = read_labels(Path(spec.labels))
    except ModelError as cause:
        return [_finding("error", spec, str(cause), _WRITE)]
    return [*_check_background(spec, labels), *_check_lines(spec, labels), *_check_outputs(spec, len(labels), report)]


def _check_background(spec: ModelSpec, labels: Sequence[str]) -> Iterator[Finding]:
    """Hold the first line against what model.toml says of it."""
    if spec.task != "classification":
        return
    lines = [number for number, label in enumerate(labels, start=1) if _is_background(label)]
    first = f"{spec.labels}: line 1 is {_shown(labels[0])}"
    if spec.classification.background_class and 1 not in lines:
        found = f"'background' is line {lines[0]} of {len(labels)}" if lines else "no line is 'background'"
        what = f"{first}, expected 'background', because background_class = true in model.toml; {found}"
        step = "write the lines in output order, 'background' first; if output 0 is a class, take out background_class"
        yield _finding("error", spec, what, step)
    elif not spec.classification.background_class and 1 in lines:
        what = f"{first}, and model.toml does not say so: class_id 0 is the background"
        step = "with background_class = true under [classification] class_id begins after it"
        yield _finding("note", spec, what, step)


def _check_lines(spec: ModelSpec, labels: Sequence[str]) -> Iterator[Finding]:
    """Name lines that are empty, and labels that are there more than once."""
    numbers: dict[str, list[int]] = {}
    for number, label in enumerate(labels, start=1):
        numbers.setdefault(label, []).append(number)
    empty = numbers.pop("", [])
    if empty:
        what = f"{spec.labels}: {_lines(empty)} empty, and counted as a label"
        yield _finding("warning", spec, what, "write the label of that output, or take the line out")
    twice = [f"{_shown(label)} in lines {_joined(found)}" for label, found in numbers.items() if len(found) > 1]
    if twice:
        more = f" and {len(twice) - _SHOWN} more" if len(twice) > _SHOWN else ""
        what = f"{spec.labels}: the same label for several outputs: {', '.join(twice[:_SHOWN])}{more}"
        step = "give each output a label of its own, unless they are meant as one: results differ in class_id only"
        yield _finding("note", spec, what, step)


def _check_outputs(spec: ModelSpec, label_count: int, report: CheckReport) -> list[Finding]:
    errors = {finding.rule for finding in report.of("error")}
    # Without costs the graph was not looked at: the outputs are as the file declares them.
    is_open = report.costs is None or bool(errors.intersection(_BEFORE_OUTPUTS))
    if not report.outputs:
        return []
    if is_open or any(output.shape is None for output in report.outputs):
        return _check_count(spec, label_count, report.outputs)
    try:
        make_task(spec, label_count, [output.shape or () for output in report.outputs])
    except ModelError as cause:
        # Tasks put the next step behind a semicolon, where they have one.
        what, _, step = str(cause).partition("; ")
        return [_finding("error", spec, what, _ONE_A_CLASS if step.startswith("expected") else step or _CORRECT)]
    return []


def _check_count(spec: ModelSpec, label_count: int, outputs: Sequence[TensorInfo]) -> list[Finding]:
    """Compare the number of classes alone, which weights say and the size of the picture does not change."""
    counts: dict[int, TensorInfo] = {}
    for expected, output in _readings(spec, label_count, outputs):
        count = _class_count(expected, output.shape or ())
        if count is not None and count > 0:
            counts[count] = output
    if label_count in counts or len(counts) != 1:  # of two readings either may be meant
        return []
    [(count, output)] = counts.items()
    what = (
        f"labels has {_counted(label_count, 'line', 'lines')}, the model has {_counted(count, 'class', 'classes')} "
        f"(output {show_shape(output.shape)})"
    )
    return [_finding("error", spec, what, _ONE_A_CLASS)]


def _readings(spec: ModelSpec, label_count: int, outputs: Sequence[TensorInfo]) -> Iterator[tuple[Output, TensorInfo]]:
    """What the decoder may read, each with the output that it reads it from."""
    if spec.decoder != "yolov4":
        for expected in outputs_of(spec.task, spec.decoder, spec.input, label_count):
            yield expected, outputs[0]
    elif len(outputs) == len(spec.detection.anchors):
        for anchors, output in zip(spec.detection.anchors, outputs, strict=True):
            count = len(anchors)
            yield Output((1, count * (5 + label_count), "H", "W"), anchors=count, others=5), output


def _class_count(expected: Output, got: Shape) -> int | None:
    """Classes by the one axis that follows their number, whatever the others are."""
    return expected.class_count(tuple(side if axis == expected.class_axis else None for axis, side in enumerate(got)))


def _is_background(label: str) -> bool:
    """`background`, and `__background__` as torchvision writes it."""
    return label.strip("_ ").casefold() == "background"


def _finding(severity: Severity, spec: ModelSpec, what: str, next_step: str) -> Finding:
    return Finding(severity=severity, rule="labels", where=spec.labels, what=what, next_step=next_step)


def _shown(label: str) -> str:
    return repr(label if len(label) <= _LONGEST_SHOWN else f"{label[:_LONGEST_SHOWN]}…")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _lines(numbers: Sequence[int]) -> str:
    return f"line {numbers[0]} is" if len(numbers) == 1 else f"lines {_joined(numbers)} are"


def _joined(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else "")
