"""Compare the labels file with model.toml and with the model's outputs.

If there are too many or too few lines, that is the only finding. Whether the order of the lines is that of the outputs
shows only where the file's metadata name the classes, or where the lines are those of COCO.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import ModelError, one_line
from edge_sdk.tasks.decoders import TABLE, WrongLabelsError, decoder_of, labels_hint, make_stage
from edge_sdk.tasks.spec import TRAITS, Task
from edge_sdk_tools.check.report import CheckReport, Finding, Severity
from edge_sdk_tools.check.resemblance import resemblance
from edge_sdk_tools.datasets.class_names import LISTS, read_labels

_FLAG = "background_class = true under [classification]"
_SHOWN = 5
_MOST_CLASSES = 10_000
_LONGEST_SHOWN = 40  # characters of a label


def check_background(spec: ModelSpec, labels: Sequence[str]) -> Iterator[Finding]:
    """Hold the line of the background, or `__background__` as torchvision writes it, against model.toml."""
    if not TRAITS[spec.task].is_of_whole_picture:
        return
    numbers = [n for n, label in enumerate(labels, start=1) if label.strip("_ ").casefold() == "background"]
    count = len(labels)
    first = f"{spec.labels}: line 1 is {_shown(labels[0])}"
    if spec.classification.background_class and 1 not in numbers:
        last = count if count in numbers else next(iter(numbers), 0)
        found = f"'background' is line {last} of {count}" if numbers else "no line is 'background'"
        found += ": the file looks reversed or shifted" if count in numbers else ""
        what = f"{first}, expected 'background', because background_class = true in model.toml; {found}"
        step = "write the lines in output order, 'background' first; if output 0 is a class, take out background_class"
        # Some call it void, or say it in another language: only a line elsewhere proves a fault.
        yield finding("error" if numbers else "warning", spec, what, step)
    elif not spec.classification.background_class and numbers:
        line = 1 if 1 in numbers else numbers[-1]
        what = f"{spec.labels}: line {line} of {count} is {_shown(labels[line - 1])}, and model.toml does not say so"
        step = f"if output 0 is the background, write it first and set {_FLAG}: class_id then begins behind it"
        yield finding("warning", spec, what, step if line == 1 else f"nothing to do, if output {line - 1} is; {step}")


def check_lines(spec: ModelSpec, labels: Sequence[str], *, is_counted: bool) -> Iterator[Finding]:
    """Name lines that are empty, and labels that are there more than once; `is_counted`: there is one an output."""
    places: dict[str, list[int]] = {}
    for number, label in enumerate(labels, start=1):
        places.setdefault(label, []).append(number)
    if empty := places.pop("", []):
        lines = "line {} is" if len(empty) == 1 else "lines {} are"
        what = f"{spec.labels}: {lines.format(_joined(empty))} empty, and counted as a label"
        step = "write the label of that output"
        yield finding("warning", spec, what, step if is_counted else f"{step}, or take the line out")
    twice = [f"{_shown(label)} in lines {_joined(found)}" for label, found in places.items() if len(found) > 1]
    if twice:
        more = f" and {len(twice) - _SHOWN} more" if len(twice) > _SHOWN else ""
        what = f"{spec.labels}: the same label for several outputs: {', '.join(twice[:_SHOWN])}{more}"
        step = "give each output a label of its own, unless they are meant as one: results differ in class_id only"
        yield finding("note", spec, what, step)


def finding(severity: Severity, spec: ModelSpec, what: str, next_step: str) -> Finding:
    """Make a finding about the labels file."""
    return Finding(severity=severity, rule="labels", where=spec.labels, what=what, next_step=next_step)


def _shown(label: str) -> str:
    return repr(label if len(label) <= _LONGEST_SHOWN else f"{label[:_LONGEST_SHOWN]}…")


def _joined(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else "")


def literal_in(text: str) -> Any:
    """Return the value of a Python literal, as Ultralytics writes its metadata; None for anything else."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def names_in(metadata: dict[str, str]) -> tuple[str, ...]:
    """Return the labels that Ultralytics writes as a dict of class ids, or PaddleOCR as a dictionary; () without."""
    if "character" in metadata:
        return tuple(metadata["character"].removesuffix("\n").split("\n"))
    found = literal_in(metadata.get("names", ""))
    named = dict(enumerate(found)) if isinstance(found, list) else found
    if not isinstance(named, dict) or not 0 < len(named) <= _MOST_CLASSES or set(named) != set(range(len(named))):
        return ()
    return tuple(one_line(str(named[number])).strip() or f"class_{number}" for number in range(len(named)))


def _check_order(spec: ModelSpec, labels: Sequence[str], report: CheckReport) -> Iterator[Finding]:
    """Compare the order of the labels with that of the names in the metadata, or else with the list that they are."""
    said = names_in(report.metadata)
    first = int(not said and spec.classification.background_class)
    own = [label if said else label.split(",")[0] for label in labels[first:]]
    lists = {"the names in the file's metadata have": said} if said else {}
    lists |= {} if said else {f"{name} has": read_labels(path) for name, path in LISTS.items()}
    for name, ordered in lists.items():
        places = {label: number for number, label in enumerate(ordered) if ordered.count(label) == 1}
        known = [(places[label], number) for number, label in enumerate(own) if label in places]
        moved = [(place, number) for place, number in known if place != number]
        # In a list that is known to the last name none moves by itself.
        least = 1 if len(known) == len(places) else len(known) / 2
        if len(own) != len(ordered) or len(known) < _MOSTLY * len(own) or len(moved) < least:
            continue
        number = moved[0][1]
        is_there = f"line {number + first + 1} is {_shown(own[number])}, and {name} {_shown(ordered[number])} there"
        step = "write these, in their order"
        step += "" if said else "; nothing to do if the model was trained in this order"
        yield finding("error" if said else "warning", spec, f"{spec.labels}: {is_there}", step)
        return


_MOSTLY = 0.75  # share of the lines that are names of a list, from which they are that list
_BEFORE_OUTPUTS = ("dynamic", "input", "shape", "size")
"""Rules whose errors leave open what shapes the outputs have when they are mended."""

_WRITE = "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"
_CORRECT = "correct task, decoder and input.size_wh in model.toml"


def check_labels(spec: ModelSpec, report: CheckReport) -> list[Finding]:
    """Return what is wrong with the labels, and whether the decoder can read the outputs with this number of them."""
    try:
        labels = read_labels(Path(spec.labels))
    except ModelError as cause:
        return [finding("error", spec, str(cause), _WRITE)]
    is_counted, wrong = False, [*_check_said(spec, report)]
    try:
        is_counted = _check_outputs(spec, labels, report)
    except WrongLabelsError as cause:
        step = labels_hint(spec, len(labels), cause.class_count).replace("expected", "write", 1)
        return wrong or [finding("error", spec, str(cause).partition("; ")[0], step)]
    except ModelError as cause:
        # Tasks put the next step behind a semicolon, where they have one.
        what, _, step = str(cause).partition("; ")
        seen = "" if "this looks like" in step else resemblance(report.outputs, spec.input.size_wh)
        wrong = wrong or [finding("error", spec, f"{what}{seen}", step or _CORRECT)]
    lines = [*check_lines(spec, labels, is_counted=is_counted), *_check_order(spec, labels, report)]
    wrong += [] if wrong else _check_others(spec, len(labels), report)
    return [*check_background(spec, labels), *lines, *wrong, *_check_probabilities(spec, report)]


ULTRALYTICS_TASKS: dict[str, Task] = {
    **dict.fromkeys(("detect", "pose", "segment", "obb"), "detection"),
    "classify": "classification",
}
"""The task of this SDK for each task that Ultralytics' metadata may name and a decoder reads."""


def _check_said(spec: ModelSpec, report: CheckReport) -> Iterator[Finding]:
    """Compare the decoder with the task that Ultralytics' metadata name."""
    said = report.metadata.get("task", "")
    reads = decoder_of(spec).said if spec.task == "detection" else spec.task
    if said in ULTRALYTICS_TASKS and (
        ULTRALYTICS_TASKS[said] != spec.task or (spec.task == "detection" and reads != said)
    ):
        what = f"the file's metadata say task {said}, and model.toml says task {spec.task} with decoder {spec.decoder}"
        step = "correct task and decoder in model.toml; `edge-sdk init` writes those that fit"
        yield finding("error", spec, what, step)


def _check_others(spec: ModelSpec, label_count: int, report: CheckReport) -> Iterator[Finding]:
    """Name a decoder that names and operators of the outputs speak for, where they do not speak for the given one."""
    shapes, own = [output.shape or () for output in report.outputs], decoder_of(spec)
    found = own.find(spec, label_count, shapes) if report.outputs and all(shapes) else None
    if found is None or TRAITS[spec.task].is_of_whole_picture:
        return
    if own.is_shown([report.outputs[place] for place in found[1]]):
        return
    for other in TABLE:
        places = next((places for _, _, places in other.readings(spec, shapes)), ()) if other is not own else ()
        if places and other.is_shown([report.outputs[place] for place in places]):
            what = (
                f"decoder: the outputs look like those that {other.name} reads ({other.task}), and not {spec.decoder}"
            )
            step = f'nothing to do, if boxes are right; else set decoder = "{other.name}"'
            yield finding("warning", spec, what, step)


_NO_PROBABILITIES = ("Add", "Conv", "Gemm", "MatMul")
_WITHOUT = {"softmax": "logits", "sigmoid": "sigmoid_logits"}


def _check_probabilities(spec: ModelSpec, report: CheckReport) -> Iterator[Finding]:
    """Tell probabilities from logits, and softmax from sigmoid, by the operator that computes a classifier's output."""
    outputs = report.outputs
    if not (outputs and TRAITS[spec.task].is_of_whole_picture) or any(
        error.rule in _BEFORE_OUTPUTS for error in report.of("error")
    ):
        return
    operator, name = outputs[0].operator, outputs[0].name
    if operator in ("Softmax", "Sigmoid") and spec.decoder != operator.lower():
        what = f"decoder: output {name} comes from a {operator}, so that it has probabilities already"
        step = "" if operator == "Softmax" else "; its classes do not exclude each other"
        yield finding("error", spec, what, f'set decoder = "{operator.lower()}"{step}')
    elif spec.decoder in _WITHOUT and operator in _NO_PROBABILITIES:
        what = f"decoder: output {name} comes from a {operator} and has no probabilities"
        yield finding("error", spec, what, f'set decoder = "{_WITHOUT[spec.decoder]}"')


def _check_outputs(spec: ModelSpec, labels: Sequence[str], report: CheckReport) -> bool:
    """Tell whether the number of lines is known to be that of the outputs; raise WrongLabelsError if it is not."""
    errors = {error.rule for error in report.of("error")}
    # Without costs the graph was not looked at: the outputs are as the file declares them.
    is_open = report.costs is None or bool(errors.intersection(_BEFORE_OUTPUTS))
    if not report.outputs or is_open or any(output.shape is None for output in report.outputs):
        return False
    shapes = [output.shape or () for output in report.outputs]
    make_stage(spec, len(labels), shapes)
    # An output of class ids does not show how many there are.
    return any(decoder_of(spec).class_outputs(spec, len(labels), shapes))
