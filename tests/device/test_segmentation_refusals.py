"""Outputs that are no segmentation, or another task's: what is said, and what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import DetectionSpec, InputSpec, ModelSpec
from edge_sdk.tasks import make_task

SPEC = ModelSpec(
    model="m.onnx",
    name="m",
    task="segmentation",
    decoder="logits",
    labels="l.txt",
    input=InputSpec(size_wh=(64, 64)),
)


def _refusal(labels: int, shapes: list[Any], **changes: Any) -> str:
    with pytest.raises(ModelError) as caught:
        make_task(msgspec.structs.replace(SPEC, **changes), labels, shapes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("decoder", "labels", "shapes"),
    [
        ("logits", 3, [(1, 3, 64, 64)]),
        ("logits", 3, [(1, 64, 64, 3)]),
        ("logits", 3, [(1, 3, 5, 9)]),
        ("logits", 3, [(1, 3, 8, 8), (1, 3, 4, 4)]),
        ("logits", 3, [("batch", "classes", None, None)]),
        ("logits", 255, [(1, 255, 8, 8)]),
        ("argmax", 3, [(1, 64, 64)]),
        ("argmax", 3, [(1, 1, 16, 16)]),
        ("argmax", 2, [("batch", 16, "columns")]),
    ],
)
def test_shapes_that_are_read(decoder: Any, labels: int, shapes: list[Any]) -> None:
    make_task(msgspec.structs.replace(SPEC, decoder=decoder), labels, shapes)


@pytest.mark.parametrize(
    ("decoder", "labels", "shapes", "expected"),
    [
        (
            "logits",
            20,
            [(1, 19, 8, 8)],
            "labels has 20 lines, the model has 19 classes (output 1x19x8x8); is the first",
        ),
        ("logits", 20, [(1, 8, 8, 21)], 'the model has 21 classes (output 1x8x8x21); is the first class "background"?'),
        ("logits", 80, [(1, 21, 8, 8)], "(output 1x21x8x8); expected one line a class, in output order"),
        ("logits", 1, [(1, 3, 8, 8)], "labels has 1 line, the model has 3 classes"),
        (
            "logits",
            3,
            [(1, 4, 8)],
            "decoder logits: the model's outputs have shapes 1x4x8, expected 1x3xHxW or 1xHxWx3",
        ),
        ("logits", 3, [], "expected 1x3xHxW or 1xHxWx3; check decoder"),
        ("logits", 3, [(2, 3, 8, 8)], "have shapes 2x3x8x8, expected 1x3xHxW"),
        ("argmax", 3, [(1, 2, 8, 8)], "have shapes 1x2x8x8, expected 1xHxW or 1x1xHxW; check decoder"),
        ("argmax", 3, [(64, 64)], "have shapes 64x64, expected 1xHxW or 1x1xHxW"),
        # One score a cell.
        ("logits", 1, [(1, 1, 64, 64)], "1x1x64x64 has one value a cell, expected one a label; if it is a class id"),
        ("logits", 2, [(1, 1, 64, 64)], "if it is a score, let the model compare it with its threshold"),
        ("logits", 2, [(1, 64, 64, 1)], "output 1x64x64x1 has one value a cell"),
        # Labels that no class map can hold.
        ("logits", 256, [(1, 256, 8, 8)], "labels has 256 lines, expected 2 to 255 for segmentation; a class map has"),
        ("argmax", 300, [(1, 8, 8)], "labels has 300 lines, expected 2 to 255 for segmentation; a class map has one"),
        ("argmax", 1, [(1, 8, 8)], "labels has 1 line, expected 2 to 255 for segmentation; what is none of them is a"),
    ],
)
def test_what_is_no_segmentation(decoder: str, labels: int, shapes: list[Any], expected: str) -> None:
    assert expected in _refusal(labels, shapes, decoder=decoder)


def test_a_difference_in_classes_is_no_matter_of_a_classifiers_background() -> None:
    assert "background_class" not in _refusal(20, [(1, 21, 8, 8)])


@pytest.mark.parametrize(
    ("task", "decoder", "labels", "shapes", "expected"),
    [
        ("segmentation", "logits", 3, [(1, 16, 16)], "this looks like argmax: correct decoder in model.toml"),
        ("segmentation", "argmax", 3, [(1, 3, 16, 16)], "this looks like logits: correct decoder in model.toml"),
        ("segmentation", "argmax", 3, [(1, 16, 16, 3)], "this looks like logits: correct decoder in model.toml"),
        # A detector of 80 classes would have this shape too.
        ("segmentation", "logits", 80, [(1, 84, 84)], "this looks like argmax: correct decoder in model.toml"),
        ("segmentation", "logits", 3, [(1, 3)], "this looks like classification with logits: correct task and decoder"),
        (
            "segmentation",
            "logits",
            3,
            [(1, 7, 84)],
            "this looks like detection with yolov8: correct task and decoder in",
        ),
        (
            "segmentation",
            "argmax",
            2,
            [(1, 21, 4, 4), (1, 21, 2, 2)],
            "this looks like detection with yolov4: correct task and decoder and give detection.anchors",
        ),
        ("classification", "logits", 3, [(1, 3, 16, 16)], "this looks like segmentation with logits: correct task and"),
        ("classification", "softmax", 3, [(1, 16, 16, 3)], "this looks like segmentation with logits: correct task"),
        ("classification", "logits", 3, [(1, 64, 64)], "this looks like segmentation with argmax: correct task and"),
        # A classifier that was exported without its last reshape.
        ("classification", "logits", 3, [(1, 3, 1, 1)], "expected 1x3; check decoder"),
        ("classification", "logits", 3, [(1, 3, 60, 2)], "expected 1x3; check decoder"),
        ("classification", "logits", 3, [(1, 3, "rows", 64)], "expected 1x3; check decoder"),
        ("detection", "yolov8", 3, [(1, 3, 16, 16)], "this looks like segmentation with logits: correct task and"),
        ("detection", "yolov4", 3, [(1, 64, 64)], "this looks like segmentation with argmax: correct task and"),
        ("detection", "yolov8", 3, [(1, 7, 64)], "expected 1x7x84; check decoder"),
    ],
)
def test_the_task_that_would_fit_is_named(
    task: str, decoder: str, labels: int, shapes: list[Any], expected: str
) -> None:
    anchors = DetectionSpec(anchors=(((10.0, 20.0), (30.0, 15.0)),))
    assert expected in _refusal(labels, shapes, task=task, decoder=decoder, detection=anchors)


@pytest.mark.parametrize(("rows", "columns"), [(65, 65), (64, 65), (43, 64)])
def test_a_stride_that_does_not_divide_the_input_is_rounded(rows: int, columns: int) -> None:
    said = _refusal(
        3, [(1, 3, rows, columns)], task="classification", input=InputSpec(size_wh=(520, 347 if rows == 43 else 520))
    )
    assert "this looks like segmentation" in said
