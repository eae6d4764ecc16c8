"""Layout: the outputs that a detector's decoder reads together, told apart by their shapes.

Exporters differ in the order of several outputs and some name them wrongly, so neither decides. YOLOv4's heads, which
belong to lists of anchors, are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from edge_sdk.model_spec import Decoder, DetectionSpec
from edge_sdk.tasks import centerface, nanodet, yolox
from edge_sdk.tasks.grid import cell_count, level_size
from edge_sdk.tasks.output import Output, Shape
from edge_sdk.tasks.ssd import prior_count

Layout: TypeAlias = tuple[Output, ...]
"""In the decoder's own order."""

_YOLO_STRIDES = (8, 16, 32)


def layouts_of(
    decoder: Decoder, detection: DetectionSpec, input_wh: tuple[int, int], label_count: int, got: Sequence[Shape]
) -> tuple[Layout, ...]:
    """What a detector's decoder but yolov4 takes; of several the likelier first.

    Args:
        decoder: of a detector.
        detection: its section of model.toml.
        input_wh: the model's input in pixels.
        label_count: lines of labels.txt.
        got: the model's outputs; SSD that decodes its boxes itself has as many as it likes.
    """
    if decoder == "nanodet":
        return _nanodet(detection, input_wh, label_count)
    if decoder == "centerface":
        width, height = level_size(input_wh, centerface.STRIDE)
        pair = Output((1, 2, height, width), None)
        return ((Output((1, label_count, height, width)), pair, pair),)
    if decoder == "ssd":
        background = int(detection.background_class)
        return tuple(
            (Output((1, count, 4), None), Output((1, count, background + label_count), class_axis=2, others=background))
            for count in _box_counts(detection, input_wh, got)
        )
    return tuple((output,) for output in _yolo(decoder, input_wh, label_count))


def is_plus(layout: Layout, input_wh: tuple[int, int]) -> bool:
    """Whether one of nanodet's layouts is NanoDet-Plus: one output of four levels."""
    return len(layout) == 1 and layout[0].shape[1] == cell_count(input_wh, *nanodet.PLUS_STRIDES)


def arrange(layout: Layout, got: Sequence[Shape]) -> tuple[int, ...] | None:
    """Which output is which: for each of the layout its place among the model's; None where one is missing.

    Of equal shapes the first is the layout's first.
    """
    places: list[int] = []
    for expected in layout:
        place = next((i for i, shape in enumerate(got) if i not in places and expected.fits(shape)), None)
        if place is None:
            return None
        places.append(place)
    return tuple(places)


def class_outputs(layouts: Sequence[Layout], got: Sequence[Shape]) -> Iterator[tuple[Output, int]]:
    """What may hold the classes, in the model's order, each with the place of the output that may be it."""
    longest = max((len(layout) for layout in layouts if len(layout) <= len(got)), default=0)
    for place, shape in enumerate(got):
        for layout in layouts:
            if len(layout) == longest:
                yield from ((output, place) for output in layout if not _is_other(layout, output, shape))


def other_counts(layouts: Sequence[Layout], got: Sequence[Shape]) -> list[int]:
    """Numbers of classes that single outputs would fit, in the model's order."""
    counts = (output.class_count(got[place]) for output, place in class_outputs(layouts, got))
    return list(dict.fromkeys(count for count in counts if count is not None and count > 0))


def _is_other(layout: Layout, output: Output, shape: Shape) -> bool:
    """Whether an output's size says that it is one of those that hold no classes."""
    axis = output.class_axis
    return axis is None or any(
        len(o.shape) == len(shape) and o.class_axis is None and o.shape[axis] == shape[axis] for o in layout
    )


def _yolo(decoder: Decoder, input_wh: tuple[int, int], label_count: int) -> tuple[Output, ...]:
    width, height = input_wh
    strides = yolox.STRIDES if decoder == "yolox" else _YOLO_STRIDES
    cells = sum((width // s) * (height // s) for s in strides)
    if decoder == "yolov8":
        return (Output((1, 4 + label_count, cells), others=4),)
    boxes = (cells,) if decoder == "yolox" else (3 * cells, cells)
    return tuple(Output((1, count, 5 + label_count), class_axis=2, others=5) for count in boxes)


def _nanodet(detection: DetectionSpec, input_wh: tuple[int, int], label_count: int) -> tuple[Layout, ...]:
    sides = 4 * (detection.reg_max + 1)
    levels = [cell_count(input_wh, stride) for stride in nanodet.STRIDES]
    plus = cell_count(input_wh, *nanodet.PLUS_STRIDES)
    flat = (*(Output((n, label_count)) for n in levels), *(Output((n, sides), None) for n in levels))
    batched = (
        *(Output((1, n, label_count), class_axis=2) for n in levels),
        *(Output((1, n, sides), None) for n in levels),
    )
    joined = ((Output((1, count, label_count + sides), class_axis=2, others=sides),) for count in (plus, sum(levels)))
    return (flat, batched, *joined)


def _box_counts(detection: DetectionSpec, input_wh: tuple[int, int], got: Sequence[Shape]) -> list[int | str]:
    if detection.strides:
        return [prior_count(detection, input_wh)]
    counts: list[int | str] = [s[1] for s in got if len(s) == 3 and s[2] == 4 and isinstance(s[1], int)]
    return list(dict.fromkeys(counts)) or ["N"]
