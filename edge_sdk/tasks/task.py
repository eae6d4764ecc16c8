"""Chooses the task's stage, and refuses output shapes that it cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from edge_sdk.errors import ModelError
from edge_sdk.frame import Inferred, Result
from edge_sdk.manifest import Manifest
from edge_sdk.model_spec import ModelSpec
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
        _expect(spec.decoder, output_shapes, [(1, label_count)])
        return Classify(spec.classification, label_count, softmax=spec.decoder == "logits")
    width, height = spec.input.size_wh
    decode: Decode
    if spec.decoder == "yolov4":
        grids = _expect_heads(spec, label_count, output_shapes)
        anchors, scale_xy = spec.detection.anchors, spec.detection.scale_xy
        decode = YoloV4(anchors, scale_xy, spec.input.size_wh, grids, spec.thresholds.confidence)
    elif spec.decoder == "yolov5":
        cells = 3 * sum((width // s) * (height // s) for s in (8, 16, 32))
        _expect(spec.decoder, output_shapes, [(1, cells, 5 + label_count)])
        decode = YoloV5(spec.thresholds.confidence)
    else:
        cells = sum((width // s) * (height // s) for s in (8, 16, 32))
        _expect(spec.decoder, output_shapes, [(1, 4 + label_count, cells)])
        decode = YoloV8(spec.thresholds.confidence)
    return Detect(decode, spec.thresholds)


def _expect_heads(spec: TaskSpec, label_count: int, output_shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """Rows and columns of every head."""
    width, height = spec.input.size_wh
    channels = [len(anchors) * (5 + label_count) for anchors in spec.detection.anchors]
    grids = [
        (shape[2], shape[3])
        for shape in output_shapes
        if len(shape) == 4 and isinstance(shape[2], int) and isinstance(shape[3], int)
    ]
    if len(grids) != len(channels) or len(grids) != len(output_shapes):
        raise ModelError(
            f"decoder yolov4: the model has {len(output_shapes)} outputs of shapes {_show(output_shapes)}, expected "
            f"{len(channels)} heads of shape (1, anchors * (5 + {label_count}), H, W), one a list of detection.anchors"
        )
    _expect(spec.decoder, output_shapes, [(1, c, *grid) for c, grid in zip(channels, grids, strict=True)])
    for rows, columns in grids:
        if height % rows or width % columns:
            raise ModelError(
                f"decoder yolov4: a head of {columns}x{rows} cells does not divide input.size_wh {width}x{height}"
            )
    return grids


def _expect(decoder: str, got: Sequence[Shape], expected: Sequence[Shape]) -> None:
    if len(got) >= len(expected) and all(_fits(g, e) for g, e in zip(got, expected, strict=False)):
        return
    raise ModelError(
        f"decoder {decoder}: the model's outputs have shapes {_show(got)}, expected {_show(expected)}; "
        "check decoder, input.size_wh and the number of labels in model.toml"
    )


def _fits(got: Shape, expected: Shape) -> bool:
    return len(got) == len(expected) and all(
        g == e for g, e in zip(got, expected, strict=True) if isinstance(g, int) and isinstance(e, int)
    )


def _show(shapes: Sequence[Shape]) -> str:
    return ", ".join("x".join(str(d) for d in shape) for shape in shapes)
