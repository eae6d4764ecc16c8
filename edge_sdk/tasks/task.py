"""Chooses the task's stage, and refuses output shapes that it cannot read.

Owns the words of that refusal: of labels where only the number of classes differs, of the decoder that would fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from edge_sdk.errors import ModelError
from edge_sdk.frame import Inferred, Result
from edge_sdk.manifest import Manifest
from edge_sdk.model_spec import DECODERS, Decoder, ModelSpec
from edge_sdk.protocols import Stage
from edge_sdk.tasks.classification import Classify
from edge_sdk.tasks.detection import Decode, Detect
from edge_sdk.tasks.yolo import YoloV4, YoloV5, YoloV8

Task: TypeAlias = Stage[Inferred, Result]
Shape: TypeAlias = tuple[int | str | None, ...]


TaskSpec: TypeAlias = ModelSpec | Manifest
"""What says how outputs are read: on the workstation a model.toml, on the device a manifest."""


def make_task(spec: TaskSpec, label_count: int, output_shapes: Sequence[Shape]) -> Task:
    """Build the stage that reads these outputs.

    Args:
        spec: how outputs are read.
        label_count: lines of labels.txt.
        output_shapes: of the model; a dimension that is not fixed is a name or None and matches anything.

    Raises:
        ModelError: when the outputs are not what the decoder reads; it names expected and got.
    """
    if spec.decoder in ("logits", "softmax"):
        _expect(spec, label_count, output_shapes)
        return Classify(spec.classification, label_count, softmax=spec.decoder == "logits")
    decode: Decode
    if spec.decoder == "yolov4":
        grids = _expect_heads(spec, label_count, output_shapes)
        anchors, scale_xy = spec.detection.anchors, spec.detection.scale_xy
        decode = YoloV4(anchors, scale_xy, spec.input.size_wh, grids, spec.thresholds.confidence)
    else:
        _expect(spec, label_count, output_shapes)
        confidence = spec.thresholds.confidence
        decode = YoloV5(confidence) if spec.decoder == "yolov5" else YoloV8(confidence)
    return Detect(decode, spec.thresholds)


class _Output(msgspec.Struct, frozen=True):
    """What a decoder reads from one output.

    Attributes:
        shape: for as many classes as there are labels.
        class_axis: the axis whose size follows the number of classes: `anchors * (others + classes)`.
        anchors: boxes a cell, where they share that axis; else 1.
        others: values beside the classes: box and objectness.
    """

    shape: tuple[int, ...]
    class_axis: int = 1
    anchors: int = 1
    others: int = 0

    def class_count(self, got: Shape) -> int | None:
        """Classes of an output that differs from this one in nothing else; None when it does."""
        size = got[self.class_axis] if len(got) == len(self.shape) else None
        as_expected = (*got[: self.class_axis], self.shape[self.class_axis], *got[self.class_axis + 1 :])
        if not isinstance(size, int) or size % self.anchors or not _fits(as_expected, self.shape):
            return None
        return size // self.anchors - self.others

    def sum_of(self, class_count: int) -> str:
        """How the axis comes to its size: `255 = 3 * (5 + 80)`."""
        size, inner = self.anchors * (self.others + class_count), f"{self.others} + {class_count}"
        return f"{size} = {self.anchors} * ({inner})" if self.anchors > 1 else f"{size} = {inner}"


def _output_of(decoder: Decoder, spec: TaskSpec, label_count: int) -> _Output:
    """The one output of every decoder but yolov4."""
    if decoder in ("logits", "softmax"):
        return _Output((1, label_count))
    width, height = spec.input.size_wh
    cells = sum((width // s) * (height // s) for s in (8, 16, 32))
    if decoder == "yolov5":
        return _Output((1, 3 * cells, 5 + label_count), class_axis=2, others=5)
    return _Output((1, 4 + label_count, cells), others=4)


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
        _Output((1, len(a) * (5 + label_count), *grid), anchors=len(a), others=5)
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
    _check(spec, label_count, got, [_output_of(spec.decoder, spec, label_count)])


def _check(spec: TaskSpec, label_count: int, got: Sequence[Shape], expected: Sequence[_Output]) -> None:
    shapes = [output.shape for output in expected]
    if len(got) >= len(shapes) and all(_fits(g, e) for g, e in zip(got, shapes, strict=False)):
        return
    counts = {output.class_count(g) for output, g in zip(expected, got, strict=False)} if got else {None}
    count = counts.pop()
    if not counts and count is not None and count > 0:
        raise ModelError(_wrong_labels(spec, label_count, count, got[0], expected[0]))
    raise ModelError(
        f"decoder {spec.decoder}: the model's outputs have shapes {_show(got)}, expected {_show(shapes)}"
        + (
            _looks_like(spec, label_count, got)
            or "; check decoder, input.size_wh and the number of labels in model.toml"
        )
    )


def _wrong_labels(spec: TaskSpec, label_count: int, class_count: int, got: Shape, expected: _Output) -> str:
    """The message for a labels file that does not belong to the model."""
    lines = "1 line" if label_count == 1 else f"{label_count} lines"
    classes = "1 class" if class_count == 1 else f"{class_count} classes"
    said = f"labels has {lines}, the model has {classes} (output {_show([got])}"
    if spec.task == "detection":
        return f"{said}, {expected.sum_of(class_count)} for {spec.decoder}); expected one line a class, in output order"
    hint = {
        1: 'is the first class "background"? Then it needs a line of its own and [classification] '
        "background_class = true",
        -1: 'is the first line "background"? Then take it out, the model has no such class',
    }.get(class_count - label_count, "expected one line a class, in output order")
    return f"{said}); {hint}"


def _looks_like(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> str:
    """A hint, when these are exactly the shapes that another decoder of the task reads."""
    for other in DECODERS[spec.task]:
        if other != spec.decoder and _reads(other, spec, label_count, got):
            anchors = " and give detection.anchors" if other == "yolov4" else ""
            return f"; this looks like {other}: correct decoder{anchors} in model.toml"
    return ""


def _reads(decoder: Decoder, spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> bool:
    if decoder != "yolov4":
        return bool(got) and got[0] == _output_of(decoder, spec, label_count).shape
    width, height = spec.input.size_wh
    channels = [s[1] for s in got if len(s) == 4]
    return (
        0 < len(got) == len(_grids(got))
        and all(isinstance(c, int) and c % (5 + label_count) == 0 for c in channels)
        and all(height % rows == 0 and width % columns == 0 for rows, columns in _grids(got))
    )


def _fits(got: Shape, expected: Shape) -> bool:
    return len(got) == len(expected) and all(
        g == e for g, e in zip(got, expected, strict=True) if isinstance(g, int) and isinstance(e, int)
    )


def _show(shapes: Sequence[Shape]) -> str:
    return ", ".join("x".join(str(d) for d in shape) for shape in shapes)
