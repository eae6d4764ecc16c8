"""Compare the labels file with model.toml and with the model's outputs.

If there are too many or too few lines, that is the only finding. Whether the order of the lines is that of the outputs
shows only where the file's metadata name the classes, or where the lines are those of a list with a name, such as COCO.
`resemblance` says what outputs look like that no decoder reads, so that nobody looks for the fault in model.toml.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import ModelError, one_line
from edge_sdk.core.logs import counted
from edge_sdk.tasks.boxes import cell_count
from edge_sdk.tasks.decoders import TABLE, WrongLabelsError, decoder_of, labels_hint, make_stage
from edge_sdk.tasks.outputs import SeenOutput, Shape
from edge_sdk.tasks.spec import TRAITS, Task
from edge_sdk_tools.check.report import CheckReport, Finding, Severity
from edge_sdk_tools.datasets.class_names import LISTS, read_labels

_FLAG = "background_class = true under [classification]"
_SHOWN = 5
_MOST_CLASSES = 10_000
_LONGEST_SHOWN = 40  # characters of a label


def check_background(spec: ModelSpec, labels: Sequence[str]) -> Iterator[Finding]:
    """Compare the label of the background, which torchvision writes `__background__`, with model.toml."""
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
    """Name empty lines and repeated labels; `is_counted` says that there is one line for each output."""
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
    """Return the labels in a file's metadata: Ultralytics' `names` or PaddleOCR's `character`; () if there are none."""
    if "character" in metadata:
        return tuple(metadata["character"].removesuffix("\n").split("\n"))
    found = literal_in(metadata.get("names", ""))
    named = dict(enumerate(found)) if isinstance(found, list) else found
    if not isinstance(named, dict) or not 0 < len(named) <= _MOST_CLASSES or set(named) != set(range(len(named))):
        return ()
    return tuple(one_line(str(named[number])).strip() or f"class_{number}" for number in range(len(named)))


def _check_order(spec: ModelSpec, labels: Sequence[str], report: CheckReport) -> Iterator[Finding]:
    """Compare the order of the labels with the names in the metadata, or else with the named list that they match."""
    said = names_in(report.metadata)
    first = int(not said and spec.classification.background_class)
    own = [label if said else label.split(",")[0] for label in labels[first:]]
    lists: dict[str, Sequence[str]] = {"the names in the file's metadata have": said} if said else {}
    for name, ordered in (lists or {f"{name} has": read_labels(path) for name, path in LISTS.items()}).items():
        places = {label: number for number, label in enumerate(ordered) if ordered.count(label) == 1}
        known = [(places[label], number) for number, label in enumerate(own) if label in places]
        moved = [(place, number) for place, number in known if place != number]
        # Where every name of the list is known, one moved name is enough; else half of the known ones must have moved.
        least = 1 if len(known) == len(places) else len(known) / 2
        if len(own) != len(ordered) or len(known) < _MOSTLY * len(own) or len(moved) < least:
            continue
        number = moved[0][1]
        is_there = f"line {number + first + 1} is {_shown(own[number])}, and {name} {_shown(ordered[number])} there"
        step = "write these, in their order"
        step += "" if said else "; nothing to do if the model was trained in this order"
        yield finding("error" if said else "warning", spec, f"{spec.labels}: {is_there}", step)
        return


_MOSTLY = 0.75  # from this share of its lines found in a list, a labels file counts as that list
_BEFORE_OUTPUTS = ("dynamic", "input", "shape", "size")
"""Rules after whose errors the outputs' shapes are not known: they may change when the error is corrected."""

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
    """Name another decoder whose signs (names and operators of the outputs) are there when the given one's are not."""
    shapes, own = [output.shape or () for output in report.outputs], decoder_of(spec)
    found = own.find(spec, label_count, shapes) if report.outputs and all(shapes) else None
    if found is None or TRAITS[spec.task].is_of_whole_picture:
        return
    if own.is_shown([report.outputs[place] for place in found[1]]):
        return
    for other in TABLE:
        places = next((places for _, _, places in other.readings(spec, shapes)), ()) if other is not own else ()
        if places and other.is_shown([report.outputs[place] for place in places]):
            what = f"decoder: the outputs look like those that {other.name} reads ({other.task})"
            step = f'nothing to do, if boxes are right; else set decoder = "{other.name}"'
            yield finding("warning", spec, f"{what}, and not {spec.decoder}", step)


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
    """Return whether the outputs show the number of classes; raise WrongLabelsError if the lines are not as many."""
    errors = {error.rule for error in report.of("error")}
    # Without costs the graph was not looked at: the outputs are as the file declares them.
    is_open = report.costs is None or bool(errors.intersection(_BEFORE_OUTPUTS))
    if not report.outputs or is_open or any(output.shape is None for output in report.outputs):
        return False
    shapes = [output.shape or () for output in report.outputs]
    make_stage(spec, len(labels), shapes)
    # An output of class ids does not show how many there are.
    return any(decoder_of(spec).class_outputs(spec, len(labels), shapes))


_STRIDES = (4, 8, 16, 32, 64, 128)
_ANCHORS = (1, 2, 3, 6, 9)


def resemblance(outputs: Sequence[SeenOutput], size_wh: tuple[int, int]) -> str:
    """Return `; this looks like ...` for the outputs of a model with an input of this size; empty for unknown ones."""
    shapes = [output.shape or () for output in outputs]
    found = _several_outputs(shapes, size_wh) if len(shapes) > 1 else ""
    if len(shapes) == 1:
        found = _one_output(shapes[0], outputs[0].operator)
    found = found or _cells(shapes, size_wh)
    return f"; this looks like {found}" if found else ""


def _one_output(shape: Shape, operator: str) -> str:
    if len(shape) == 3 and operator == "Softmax":
        return f"{shape[2]} characters at each of {shape[1]} places: text, with --task text"
    if len(shape) == 4 and 17 in shape[1::2]:
        return "17 heatmaps of a person's keypoints; a class map of 17 classes needs --decoder logits"
    if len(shape) == 2 and isinstance(shape[1], int):
        return f"one row of {shape[1]} values: a classifier, or an embedding"
    return ""


def _several_outputs(shapes: Sequence[Shape], size_wh: tuple[int, int]) -> str:
    boxes = [shape[1] for shape in shapes if len(shape) == 3 and shape[2] == 4]
    if len(shapes) > 4 and any(sum(shape == (1, count) for shape in shapes) > 2 for count in boxes):
        return (
            "all outputs of TensorFlow's Detection API: tensorflow_nms reads detection_boxes, detection_classes, "
            "detection_scores and num_detections, so export these four alone"
        )
    if found := _levels(shapes, size_wh):
        return found
    strides = [_stride_of(shape, size_wh) for shape in shapes]
    if all(strides) and len(set(strides)) == len(strides):
        # 1x(A * (5 + C))xHxW, 1xHxWx(A * (5 + C)) or 1xAxHxWx(5 + C) at each stride
        words = f"raw heads of {counted(len(shapes), 'stride')} ({', '.join(map(str, strides))})"
        return f"{words}: a YOLO whose boxes are not decoded; export it with its last layer, or give yolov4 its anchors"
    if all(strides) and len(set(strides)) == 1:
        return f"{len(shapes)} maps at stride {strides[0]}: a detector of CenterNet's kind, or heatmaps of keypoints"
    return ""


def _levels(shapes: Sequence[Shape], size_wh: tuple[int, int]) -> str:
    """Recognise detectors with one output for each level and kind of value: rows of cells, of 1, 4 or more values."""
    rows = [shape[-2:] for shape in shapes if len(shape) in (2, 3)]
    sides = {
        anchors * cell_count(size_wh, stride): (stride, anchors) for anchors in _ANCHORS[::-1] for stride in _STRIDES
    }
    known = [(sides[count], values) for count, values in rows if count in sides and isinstance(values, int)]
    strides = {stride for (stride, _), _ in known}
    kinds = Counter(values for _, values in known)
    if len(known) < len(shapes) or len(strides) < 2 or 4 not in kinds:
        return ""
    words = f"{len(shapes)} outputs of {counted(len(strides), 'stride')}"
    points = [values // 2 for values in kinds if values > 4 and values % 2 == 0]
    if kinds[1] and points:
        kind = "YuNet" if kinds[1] > kinds[4] else "SCRFD"
        return f"{words} with {points[0]} keypoints: a face detector of {kind}'s kind"
    return f"{words}: a detector with scores and boxes apart"


def _cells(shapes: Sequence[Shape], size_wh: tuple[int, int]) -> str:
    """Recognise detectors with one row or one column for each cell."""
    for strides in ((8, 16, 32), (8, 16, 32, 64), (8, 16, 32, 64, 128)):
        for anchors in _ANCHORS:
            count = anchors * cell_count(size_wh, *strides)
            for shape in shapes:
                if len(shape) == 3 and count in shape[1:]:
                    values = shape[1] if shape[2] == count else shape[2]
                    each = f"{anchors if anchors > 1 else 'one'} for each cell of the strides"
                    return f"a detector with {values} values a box, {each} {', '.join(map(str, strides))}"
    return ""


def _stride_of(shape: Shape, size_wh: tuple[int, int]) -> int:
    """Return the stride of a map of cells, in any order of its axes; 0 if the shape is no such map."""
    for stride in _STRIDES:
        cells = (-(-size_wh[1] // stride), -(-size_wh[0] // stride))
        if len(shape) in (4, 5) and any(tuple(shape[i : i + 2]) == cells for i in range(1, len(shape) - 1)):
            return stride
    return 0
