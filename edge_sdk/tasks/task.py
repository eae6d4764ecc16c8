"""Chooses the task's stage, and refuses output shapes that it cannot read.

Owns the words of that refusal: of labels where only the number of classes differs, of the task or decoder that would
fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from edge_sdk.bundle.manifest import Manifest
from edge_sdk.bundle.model_spec import DECODERS, Decoder, ModelSpec
from edge_sdk.bundle.model_spec import Task as TaskName
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import NO_CLASS, Inferred, Result
from edge_sdk.core.protocols import Stage
from edge_sdk.tasks.centerface import CenterFace
from edge_sdk.tasks.classification import Classify
from edge_sdk.tasks.detection import Decode, Detect
from edge_sdk.tasks.nanodet import NanoDet
from edge_sdk.tasks.outputs import Layout, Output, Shape, arrange, is_plus, layouts_of, other_counts, outputs_of
from edge_sdk.tasks.segmentation import ClassIds, HighestScore, Segment
from edge_sdk.tasks.ssd import Ssd
from edge_sdk.tasks.yolo import YoloV4, YoloV5, YoloV8
from edge_sdk.tasks.yolox import YoloX

Task: TypeAlias = Stage[Inferred, Result]


TaskSpec: TypeAlias = ModelSpec | Manifest
"""What says how outputs are read: on the workstation a model.toml, on the device a manifest."""


class WrongLabelsError(ModelError):
    """Labels whose number alone does not fit the outputs.

    Args:
        message: the whole sentence; the next step stands behind a semicolon.
        class_count: classes of the model.
    """

    def __init__(self, message: str, class_count: int) -> None:
        super().__init__(message)
        self.class_count = class_count


def make_task(spec: TaskSpec, label_count: int, output_shapes: Sequence[Shape]) -> Task:
    """Build the stage that reads these outputs.

    Args:
        spec: how outputs are read.
        label_count: lines of labels.txt.
        output_shapes: of the model; a dimension that is not fixed is a name or None and matches anything.

    Raises:
        WrongLabelsError: when they fit another number of labels.
        ModelError: when the outputs are not what the decoder reads; it names expected and got.
    """
    if spec.task == "segmentation":
        return _make_segment(spec, label_count, output_shapes)
    if spec.task == "classification":
        _expect(spec, label_count, output_shapes)
        return Classify(spec.classification, label_count, softmax=spec.decoder == "logits")
    return _make_detect(spec, label_count, output_shapes)


def _make_detect(spec: TaskSpec, label_count: int, output_shapes: Sequence[Shape]) -> Detect:
    confidence = spec.thresholds.confidence
    if spec.decoder == "yolov4":
        grids = _expect_heads(spec, label_count, output_shapes)
        anchors, scale_xy = spec.detection.anchors, spec.detection.scale_xy
        heads = YoloV4(anchors, scale_xy, spec.input.size_wh, grids, confidence)
        return Detect(heads, range(len(grids)), spec.thresholds)
    layout, places = _expect_layout(spec, label_count, output_shapes)
    return Detect(_decoder_of(spec, label_count, layout), places, spec.thresholds)


def _decoder_of(spec: TaskSpec, label_count: int, layout: Layout) -> Decode:
    size_wh, detection, confidence = spec.input.size_wh, spec.detection, spec.thresholds.confidence
    if spec.decoder == "nanodet":
        return NanoDet(size_wh, label_count, detection.reg_max, confidence, is_plus=is_plus(layout, size_wh))
    if spec.decoder == "ssd":
        return Ssd(detection, size_wh, confidence)
    if spec.decoder == "yolox":
        return YoloX(size_wh, confidence)
    if spec.decoder == "centerface":
        return CenterFace(confidence)
    return YoloV5(confidence) if spec.decoder == "yolov5" else YoloV8(confidence)


def _expect_layout(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> tuple[Layout, tuple[int, ...]]:
    """How a detector's outputs are read, and which is which."""
    layouts = _layouts(spec, spec.decoder, label_count, got)
    for layout in layouts:
        places = arrange(layout, got)
        if places is not None:
            return layout, places
    for count in other_counts(layouts, got):
        for layout in _layouts(spec, spec.decoder, count, got):
            places = arrange(layout, got)
            if places is not None:
                classes, place = next((o, p) for o, p in zip(layout, places, strict=True) if o.class_axis is not None)
                raise WrongLabelsError(_wrong_labels(spec, label_count, count, got[place], classes), count)
    shown = " or ".join(_show([output.shape for output in layout]) for layout in layouts)
    raise _misfit(spec, label_count, got, shown)


def _layouts(spec: TaskSpec, decoder: Decoder, label_count: int, got: Sequence[Shape]) -> tuple[Layout, ...]:
    return layouts_of(decoder, spec.detection, spec.input.size_wh, label_count, got)


def _make_segment(spec: TaskSpec, label_count: int, output_shapes: Sequence[Shape]) -> Segment:
    output = _expect_map(spec, label_count, output_shapes)
    if not 2 <= label_count <= NO_CLASS:
        hint = (
            'what is none of them is a class too: give it a line such as "background"'
            if label_count < 2
            else f"a class map has one byte a cell, and {NO_CLASS} says that there is no class"
        )
        raise ModelError(f"labels has {_lines(label_count)}, expected 2 to {NO_CLASS} for segmentation; {hint}")
    read = ClassIds(label_count) if output.class_axis is None else HighestScore(output.class_axis)
    return Segment(read, label_count, spec.input.size_wh)


def _expect_map(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Output:
    """Which of the shapes that the decoder takes the first output has."""
    first = got[0] if got else ()
    choices = outputs_of(spec.task, spec.decoder, spec.input, label_count)
    likely, *others = sorted(choices, key=lambda c: not c.covers(first, spec.input.size_wh))
    if likely.class_count(first) == 1:
        raise ModelError(
            f"decoder logits: output {_show([first])} has one value a cell, expected one a label; if it is a class id, "
            'the decoder is "argmax"; if it is a score, let the model compare it with its threshold and use "argmax" '
            "with two labels"
        )
    found = next((c for c in (likely, *others) if c.fits(first)), None)
    if found is None:
        _check(spec, label_count, got, [likely], _show([c.shape for c in choices], " or "))
    return found or likely


def _expect_heads(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> list[tuple[int, int]]:
    """Rows and columns of every head."""
    width, height = spec.input.size_wh
    anchors = spec.detection.anchors
    grids = _grids(got)
    if len(grids) != len(anchors) or len(grids) != len(got):
        raise ModelError(
            f"decoder yolov4: the model has {len(got)} outputs of shapes {_show(got)}, expected {len(anchors)} heads "
            f"of shape (1, anchors * (5 + {label_count}), H, W), one a list of detection.anchors"
            + _looks_like(spec, label_count, got)
        )
    heads = [
        Output((1, len(a) * (5 + label_count), *grid), anchors=len(a), others=5)
        for a, grid in zip(anchors, grids, strict=True)
    ]
    _check(spec, label_count, got, heads)
    for rows, columns in grids:
        if height % rows or width % columns:
            raise ModelError(
                f"decoder yolov4: a head of {columns}x{rows} cells does not divide input.size_wh {width}x{height}"
            )
    return grids


def _grids(shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """Rows and columns of the outputs that may be heads of yolov4."""
    return [(s[2], s[3]) for s in shapes if len(s) == 4 and isinstance(s[2], int) and isinstance(s[3], int)]


def _expect(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> None:
    _check(spec, label_count, got, outputs_of(spec.task, spec.decoder, spec.input, label_count))


def _check(
    spec: TaskSpec, label_count: int, got: Sequence[Shape], expected: Sequence[Output], shown: str | None = None
) -> None:
    """Refuse outputs of other shapes; `shown` says what was expected where there is a choice."""
    if len(got) >= len(expected) and all(e.fits(g) for g, e in zip(got, expected, strict=False)):
        return
    counts = {output.class_count(g) for output, g in zip(expected, got, strict=False)} if got else {None}
    count = counts.pop()
    if not counts and count is not None and count > 0:
        raise WrongLabelsError(_wrong_labels(spec, label_count, count, got[0], expected[0]), count)
    raise _misfit(spec, label_count, got, shown or _show([output.shape for output in expected]))


def _misfit(spec: TaskSpec, label_count: int, got: Sequence[Shape], expected: str) -> ModelError:
    """The refusal of outputs that are of other shapes."""
    return ModelError(
        f"decoder {spec.decoder}: the model's outputs have shapes {_show(got)}, expected {expected}"
        + (
            _looks_like(spec, label_count, got)
            or "; check decoder, input.size_wh and the number of labels in model.toml"
        )
    )


def _wrong_labels(spec: TaskSpec, label_count: int, class_count: int, got: Shape, expected: Output) -> str:
    """The message for a labels file that does not belong to the model."""
    classes = "1 class" if class_count == 1 else f"{class_count} classes"
    said = f"labels has {_lines(label_count)}, the model has {classes} (output {_show([got])}"
    if spec.task == "detection" and expected.others:
        said = f"{said}, {expected.sum_of(class_count)} for {spec.decoder}"
    return f"{said}); {labels_hint(spec, label_count, class_count)}"


def labels_hint(spec: TaskSpec, label_count: int, class_count: int) -> str:
    """The next step where labels are too many or too few, as far as their number says it."""
    missing = class_count - label_count
    if spec.decoder == "ssd" and spec.detection.background_class and missing == -1:
        return (
            'is the first line "background"? Then take it out, ssd never reports it; is no score the background\'s? '
            "Then set background_class = false under [detection]"
        )
    if spec.task == "detection" or abs(missing) != 1:
        return "expected one line a class, in output order"
    if spec.task == "classification" and spec.classification.background_class:
        if missing > 0:
            return 'is the line for output 0 missing? Then write "background" as line 1'
        return "is one of the lines empty, or there twice? Then take it out"
    if missing > 0:
        flag = " and [classification] background_class = true" if spec.task == "classification" else ""
        return f'is the first class "background"? Then it needs a line of its own{flag}'
    return 'is the first line "background", or another one empty or there twice? Then take it out'


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _looks_like(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> str:
    """A hint, when these are exactly the shapes that another decoder reads; those of the same task come first."""
    for task in sorted(DECODERS, key=lambda t: t != spec.task):
        for other in DECODERS[task]:
            if (task, other) != (spec.task, spec.decoder) and _reads(task, other, spec, label_count, got):
                anchors = " and give detection.anchors" if other == "yolov4" else ""
                if task == spec.task:
                    return f"; this looks like {other}: correct decoder{anchors} in model.toml"
                return f"; this looks like {task} with {other}: correct task and decoder{anchors} in model.toml"
    return ""


def _reads(task: TaskName, decoder: Decoder, spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> bool:
    if decoder != "yolov4" and task == "detection":
        known = all(isinstance(d, int) for shape in got for d in shape)
        layouts = _layouts(spec, decoder, label_count, got)
        return known and any(arrange(layout, got) is not None for layout in layouts)
    if task == "segmentation" and label_count < 2:
        return False
    if decoder != "yolov4":
        choices = outputs_of(task, decoder, spec.input, label_count)
        return bool(got) and any(c.resembles(got[0], spec.input.size_wh) for c in choices)
    width, height = spec.input.size_wh
    channels = [s[1] for s in got if len(s) == 4]
    return (
        0 < len(got) == len(_grids(got))
        and all(isinstance(c, int) and c % (5 + label_count) == 0 for c in channels)
        and all(height % rows == 0 and width % columns == 0 for rows, columns in _grids(got))
    )


def _show(shapes: Sequence[Shape], separator: str = ", ") -> str:
    return separator.join("x".join(str(d) for d in shape) for shape in shapes)
