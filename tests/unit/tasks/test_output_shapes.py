"""Output shapes: which a decoder reads, and what is said of those that it does not read."""

from typing import Any

import pytest

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.errors import ModelError
from edge_sdk.tasks.decoders import WrongLabelsError, make_stage
from edge_sdk.tasks.spec import ClassificationSpec, DetectionSpec

TWO_HEADS = DetectionSpec(anchors=(((10.0, 20.0), (30.0, 15.0)), ((40.0, 40.0),)))
PRIORS = DetectionSpec(anchors=(((16.0, 16.0), (32.0, 32.0)), ((64.0, 64.0),)), strides=(8, 32))  # 2 * 96 + 6
FACES = [(1, 1, 16, 24), (1, 2, 16, 24), (1, 2, 16, 24)]
SIX = [(96, 2), (24, 2), (6, 2), (96, 32), (24, 32), (6, 32)]


def _make(kind: str, labels: int, shapes: list[Any], **changes: Any) -> None:
    """Build the task of a decoder of detection, or of "task decoder", for an input of 96x64."""
    task, _, decoder = kind.rpartition(" ")
    fields = {
        "input": InputSpec(size_wh=(96, 64)),
        "detection": TWO_HEADS if decoder == "yolov4" else DetectionSpec(),
        **changes,
    }
    spec = ModelSpec(model="m.onnx", name="m", task=task or "detection", decoder=decoder, labels="l.txt", **fields)  # type: ignore[arg-type]
    make_stage(spec, labels, shapes)


def _refusal(kind: str, labels: int, shapes: list[Any], **changes: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        _make(kind, labels, shapes, **changes)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "labels", "shapes"),
    [
        ("yolov5", 2, [(1, 126, 7)]),  # YOLOX decoded in its graph
        ("yolov5", 2, [("batch", None, "values")]),
        ("yolov8", 2, [(1, 6, 126), (1, 32, 16, 24)]),
        ("nanodet", 2, [("batch", *shape) for shape in reversed(SIX)]),
        ("centerface", 1, [(1, 2, 16, 24), (1, 10, 16, 24), (1, 2, 16, 24), (1, 1, 16, 24)]),
        ("ssd", 2, [(1, 9, 4), (1, 77, 4), (1, 77, 3)]),
        ("ssd", 2, [("batch", "boxes", 4), ("batch", "boxes", 3)]),
        ("segmentation logits", 3, [(1, 3, 5, 9), (1, 3, 4, 4)]),
        ("segmentation logits", 3, [("batch", "classes", None, None)]),
        ("segmentation argmax", 2, [("batch", 16, "columns")]),
    ],
)
def test_shapes_that_are_read(kind: str, labels: int, shapes: list[Any]) -> None:
    _make(kind, labels, shapes)


@pytest.mark.parametrize(
    ("kind", "labels", "shapes", "expected"),
    [
        ("yolov8", 3, [(1, 126, 7)], "shapes 1x126x7, expected 1x7x126; check decoder, input.size_wh and the number"),
        ("nanodet", 2, SIX[:5], "expected 96x2, 24x2, 6x2, 2x2, 96x32, 24x32, 6x32, 2x32 or 1x96x2, 1x24x2, "),
        ("ssd", 2, [(1, 77, 4), (1, 76, 3)], "have shapes 1x77x4, 1x76x3, expected 1x77x4, 1x77x3; check decoder"),
        ("yolov4", 2, [(1, 14, 5, 5), (1, 7, 2, 3)], "5x5 cells does not divide input.size_wh 96x64"),
        # Heads that disagree, or that leave no class, say nothing of labels.
        ("yolov4", 3, [(1, 14, 4, 6), (1, 9, 2, 3)], "the model's outputs have shapes 1x14x4x6, 1x9x2x3"),
        ("segmentation logits", 3, [(1, 9, 4)], "have shapes 1x9x4, expected 1x3xHxW or 1xHxWx3; check decoder"),
        # One score a cell.
        ("segmentation logits", 1, [(1, 1, 64, 64)], "has one value a cell, expected one a label; if it is a class id"),
        # Labels that no class map can hold.
        ("segmentation logits", 256, [(1, 256, 8, 8)], "labels has 256 lines, expected 2 to 255 for segmentation; a "),
        ("segmentation argmax", 1, [(1, 8, 8)], "labels has 1 line, expected 2 to 255 for segmentation; what is none"),
    ],
)
def test_shapes_that_are_not_read(kind: str, labels: int, shapes: list[Any], expected: str) -> None:
    refusal = _refusal(kind, labels, shapes)
    assert not isinstance(refusal, WrongLabelsError)
    assert expected in str(refusal)


def test_as_many_boxes_as_priors() -> None:
    _make("ssd", 2, [(1, 198, 4), (1, 198, 3)], detection=PRIORS)
    refusal = _refusal("ssd", 2, [(1, 77, 4), (1, 77, 3)], detection=PRIORS)
    assert "1x77x4, 1x77x3, expected 1x198x4, 1x198x3; check decoder" in str(refusal)


@pytest.mark.parametrize(
    ("kind", "labels", "shapes", "expected"),
    [
        ("yolov8", 2, [(1, 84, 126)], "labels has 2 lines, the model has 80 classes (output 1x84x126, 84 = 4 + 80 for"),
        ("yolov4", 3, [(1, 14, 4, 6), (1, 7, 2, 3)], "2 classes (output 1x14x4x6, 14 = 2 * (5 + 2) for"),
        ("centerface", 2, FACES, "the model has 1 class "),
        ("ssd", 81, [(1, 9, 4), (1, 9, 81)], 'is the first line "background"? Then take it out, ssd'),
        ("ssd", 3, [(1, 9, 4), (1, 9, 3)], "is no score the background's? Then set background_class = false under"),
        ("classification softmax", 1000, [(1, 1001)], 'is the first class "background"? Then it needs a line of its '),
        ("classification logits", 1002, [(1, 1001)], "1002 lines, the model has 1001 classes (output 1x1001); is the"),
        ("classification logits", 80, [(1, 1001)], "(output 1x1001); expected one line a class, in output"),
    ],
)
def test_a_difference_in_classes_is_said_in_labels(kind: str, labels: int, shapes: list[Any], expected: str) -> None:
    refusal = _refusal(kind, labels, shapes)
    assert isinstance(refusal, WrongLabelsError)
    assert expected in str(refusal)
    assert ("background_class = true" in str(refusal)) is (kind == "classification softmax")


def test_where_model_toml_says_so_the_background_is_no_question() -> None:
    for labels, hint in [
        (1000, 'is the line for output 0 missing? Then write "background" as line 1'),
        (1002, "is one of the lines empty, or there twice? Then take it out"),
        (999, "expected one line a class, in output order"),
    ]:
        has_background = ClassificationSpec(background_class=True)
        refusal = _refusal("classification softmax", labels, [(1, 1001)], classification=has_background)
        assert (type(refusal), getattr(refusal, "class_count", 0)) == (WrongLabelsError, 1001)
        assert str(refusal).endswith(f"(output 1x1001); {hint}")


@pytest.mark.parametrize(
    ("kind", "labels", "shapes", "expected"),
    [
        ("yolov8", 2, [(1, 378, 7)], "yolov5: correct decoder in"),
        ("yolov8", 2, [(1, 21, 4, 6), (1, 21, 2, 3)], "yolov4: correct decoder and give detection.anchors in"),
        ("segmentation logits", 3, [(1, 16, 24)], "argmax: correct decoder in"),
        ("segmentation argmax", 2, [(1, 21, 4, 6)], "detection with yolov4: correct task and decoder and give"),
        ("classification logits", 3, [(1, 3, 16, 24)], "segmentation with logits: correct task and decoder in"),
    ],
)
def test_the_task_or_decoder_that_would_fit_is_named(kind: str, labels: int, shapes: list[Any], expected: str) -> None:
    assert f"; this looks like {expected}" in str(_refusal(kind, labels, shapes))


@pytest.mark.parametrize(
    ("kind", "labels", "shapes"),
    [
        ("yolov8", 2, [(1, 22, 4, 6), (1, 21, 2, 3)]),
        ("yolov8", 3, [(1, 7, 64)]),
    ],
)
def test_no_other_decoder_is_named_where_none_fits(kind: str, labels: int, shapes: list[Any]) -> None:
    assert "; check decoder" in str(_refusal(kind, labels, shapes))


def test_a_stride_that_does_not_divide_the_input_is_rounded() -> None:
    for rows, columns, height in ((65, 65, 520), (64, 65, 520), (43, 64, 347)):
        spec = InputSpec(size_wh=(520, height))
        refusal = _refusal("classification logits", 3, [(1, 3, rows, columns)], input=spec)
        assert "this looks like segmentation" in str(refusal)
