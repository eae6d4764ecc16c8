"""Outputs of detectors: which is which, and what is said of those that do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import DetectionSpec, InputSpec
from edge_sdk.tasks import make_task
from edge_sdk.tasks.task import WrongLabelsError
from tests.device.decoding import spec_of

PRIORS = DetectionSpec(anchors=(((16.0, 16.0), (32.0, 32.0)), ((64.0, 64.0),)), strides=(8, 32))  # 2 * 96 + 6
SIX = [(96, 2), (24, 2), (6, 2), (96, 32), (24, 32), (6, 32)]


def _refusal(decoder: str, labels: int, shapes: list[Any], **changes: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        make_task(spec_of(decoder, **changes), labels, shapes)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("decoder", "labels", "shapes"),
    [
        ("yolov5", 2, [(1, 378, 7)]),
        ("yolov5", 2, [(1, 126, 7)]),  # YOLOX decoded in its graph
        ("yolov5", 2, [("batch", None, "values")]),
        ("yolov8", 2, [(1, 6, 126), (1, 32, 16, 24)]),
        ("yolox", 2, [(1, 126, 7)]),
        ("nanodet", 2, SIX),
        ("nanodet", 2, [(1, *shape) for shape in reversed(SIX)]),
        ("nanodet", 2, [("batch", *shape) for shape in SIX]),
        ("nanodet", 2, [(1, 126, 34)]),
        ("nanodet", 2, [(1, 128, 34)]),
        ("centerface", 1, [(1, 1, 16, 24), (1, 2, 16, 24), (1, 2, 16, 24)]),
        ("centerface", 1, [(1, 2, 16, 24), (1, 10, 16, 24), (1, 2, 16, 24), (1, 1, 16, 24)]),
        ("ssd", 2, [(1, 77, 4), (1, 77, 3)]),
        ("ssd", 1, [(1, 77, 2), (1, 77, 10), (1, 77, 4)]),
        ("ssd", 2, [(1, 9, 4), (1, 77, 4), (1, 77, 3)]),
        ("ssd", 3, [(1, 77, 4), (1, 77, 4)]),
        ("ssd", 2, [("batch", "boxes", 4), ("batch", "boxes", 3)]),
    ],
)
def test_shapes_that_are_read(decoder: str, labels: int, shapes: list[Any]) -> None:
    make_task(spec_of(decoder), labels, shapes)


@pytest.mark.parametrize(
    ("decoder", "labels", "shapes", "expected"),
    [
        ("yolox", 2, [(1, 125, 7)], "shapes 1x125x7, expected 1x126x7; check decoder, input.size_wh and the number of"),
        ("yolov5", 2, [(1, 125, 7)], "expected 1x378x7 or 1x126x7; check decoder"),
        ("nanodet", 2, SIX[:5], "expected 96x2, 24x2, 6x2, 96x32, 24x32, 6x32 or 1x96x2, 1x24x2, 1x6x2, 1x96x32, "),
        ("nanodet", 2, [(1, 130, 34)], "or 1x128x34 or 1x126x34; check decoder"),
        ("nanodet", 2, [], "the model's outputs have shapes , expected 96x2"),
        (
            "centerface",
            1,
            [(1, 1, 16, 24), (1, 2, 16, 24)],
            "have shapes 1x1x16x24, 1x2x16x24, expected 1x1x16x24, 1x2x16x24, 1x2x16x24; check decoder",
        ),
        ("centerface", 1, [(1, 1, 8, 12), (1, 2, 8, 12), (1, 2, 8, 12)], "expected 1x1x16x24, 1x2x16x24"),
        ("ssd", 2, [(1, 77, 4), (1, 76, 3)], "have shapes 1x77x4, 1x76x3, expected 1x77x4, 1x77x3; check decoder"),
        ("ssd", 2, [(1, 77, 5)], "expected 1xNx4, 1xNx3; check decoder"),
    ],
)
def test_shapes_that_are_not_read(decoder: str, labels: int, shapes: list[Any], expected: str) -> None:
    refusal = _refusal(decoder, labels, shapes)
    assert not isinstance(refusal, WrongLabelsError)
    assert expected in str(refusal)


def test_as_many_boxes_as_priors() -> None:
    make_task(spec_of("ssd", detection=PRIORS), 2, [(1, 198, 4), (1, 198, 3)])
    refusal = _refusal("ssd", 2, [(1, 77, 4), (1, 77, 3)], detection=PRIORS)
    assert "have shapes 1x77x4, 1x77x3, expected 1x198x4, 1x198x3; check decoder" in str(refusal)


@pytest.mark.parametrize(
    ("decoder", "labels", "shapes", "expected"),
    [
        ("yolox", 3, [(1, 126, 7)], "the model has 2 classes (output 1x126x7, 7 = 5 + 2 for yolox); expected one line"),
        ("nanodet", 3, SIX, "labels has 3 lines, the model has 2 classes (output 96x2); expected one line"),
        ("nanodet", 3, [(1, 128, 34)], "the model has 2 classes (output 1x128x34, 34 = 32 + 2 for nanodet)"),
        ("ssd", 20, [(1, 9, 81), (1, 9, 4)], "the model has 80 classes (output 1x9x81, 81 = 1 + 80 for ssd)"),
        (
            "ssd",
            81,
            [(1, 9, 4), (1, 9, 81)],
            '81 = 1 + 80 for ssd); is the first line "background"? Then take it out, ssd',
        ),
        ("ssd", 82, [(1, 9, 4), (1, 9, 81)], "81 = 1 + 80 for ssd); expected one line a class, in output order"),
        ("ssd", 2, [(1, 9, 4), (1, 9, 2), (1, 9, 10)], "labels has 2 lines, the model has 1 class "),
        ("centerface", 2, [(1, 1, 16, 24), (1, 2, 16, 24), (1, 2, 16, 24), (1, 10, 16, 24)], "the model has 1 class "),
    ],
)
def test_a_difference_in_classes_is_said_in_labels(decoder: str, labels: int, shapes: list[Any], expected: str) -> None:
    refusal = _refusal(decoder, labels, shapes)
    assert isinstance(refusal, WrongLabelsError)
    assert expected in str(refusal)


@pytest.mark.parametrize(
    ("decoder", "labels", "shapes", "expected"),
    [
        ("yolov8", 2, SIX, "this looks like nanodet: correct decoder in model.toml"),
        ("yolov8", 2, [(1, 126, 34)], "this looks like nanodet: correct decoder"),
        ("yolov8", 2, [(1, 126, 7)], "this looks like yolox: correct decoder"),
        ("yolox", 2, [(1, 378, 7)], "this looks like yolov5: correct decoder"),
        ("yolox", 2, [(1, 6, 126)], "this looks like yolov8: correct decoder"),
        ("nanodet", 1, [(1, 1, 16, 24), (1, 2, 16, 24), (1, 2, 16, 24)], "this looks like centerface: correct decoder"),
        ("yolov5", 2, [(1, 77, 3), (1, 77, 4)], "this looks like ssd: correct decoder"),
    ],
)
def test_outputs_that_another_decoder_reads_name_it(
    decoder: str, labels: int, shapes: list[Any], expected: str
) -> None:
    assert expected in str(_refusal(decoder, labels, shapes))


def test_outputs_of_a_detector_under_another_task_are_named() -> None:
    refusal = _refusal("softmax", 2, SIX, task="classification", input=InputSpec(size_wh=(96, 64)))
    assert "this looks like detection with nanodet: correct task and decoder in model.toml" in str(refusal)
