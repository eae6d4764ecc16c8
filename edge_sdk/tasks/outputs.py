"""Layout: the outputs that a detector's decoder reads together, told apart by their shapes.

Exporters differ in the order of several outputs and some name them wrongly, so neither decides. YOLOv4's heads, which
belong to lists of anchors, are not here.

Output: what a decoder reads from one output of a model.

Owns the shapes, by task and decoder; those of detectors are in `layout`. Which one a model has, and the words where
none fits, are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from edge_sdk.bundle.model_spec import Decoder, DetectionSpec, InputSpec, Task
from edge_sdk.tasks import centerface, nanodet, yolox
from edge_sdk.tasks.arrays import cell_count, level_size
from edge_sdk.tasks.ssd import prior_count

Shape: TypeAlias = tuple[int | str | None, ...]
"""Of an output; a dimension that is not fixed is a name or None and matches anything."""

_ROWS, _COLUMNS = "H", "W"


class Output(msgspec.Struct, frozen=True):
    """What a decoder reads from one output.

    Attributes:
        shape: for as many classes as there are labels; H and W are as many rows and columns of cells as the model has.
        class_axis: the axis whose size follows the number of classes: `anchors * (others + classes)`; None without one.
        anchors: boxes a cell, where they share that axis; else 1.
        others: values beside the classes: box and objectness.
    """

    shape: Shape
    class_axis: int | None = 1
    anchors: int = 1
    others: int = 0

    def fits(self, got: Shape) -> bool:
        """Whether an output has this shape, as far as it says one."""
        return _fits(got, self.shape)

    def resembles(self, got: Shape, input_wh: tuple[int, int]) -> bool:
        """Whether an output says that it is this one, and leaves nothing open."""
        return all(isinstance(d, int) for d in got) and self.fits(got) and self.covers(got, input_wh)

    def covers(self, got: Shape, input_wh: tuple[int, int]) -> bool:
        """Whether the cells, where there are any, have the proportions of the input.

        A stride that does not divide the input is rounded: each side may have a cell more or less than it should.
        """
        if _ROWS not in self.shape or len(got) != len(self.shape):
            return len(got) == len(self.shape)
        rows, columns = got[self.shape.index(_ROWS)], got[self.shape.index(_COLUMNS)]
        if not isinstance(rows, int) or not isinstance(columns, int):
            return False
        width, height = input_wh
        return min(rows, columns) > 1 and abs(rows * width - columns * height) <= width + height

    def class_count(self, got: Shape) -> int | None:
        """Classes of an output that differs from this one in nothing else; None when it does."""
        axis = self.class_axis
        size = got[axis] if axis is not None and len(got) == len(self.shape) else None
        if axis is None or not isinstance(size, int) or size % self.anchors:
            return None
        as_expected = (*got[:axis], self.shape[axis], *got[axis + 1 :])
        return size // self.anchors - self.others if self.fits(as_expected) else None

    def sum_of(self, class_count: int) -> str:
        """How the axis comes to its size: `255 = 3 * (5 + 80)`."""
        size, inner = self.anchors * (self.others + class_count), f"{self.others} + {class_count}"
        return f"{size} = {self.anchors} * ({inner})" if self.anchors > 1 else f"{size} = {inner}"


def outputs_of(task: Task, decoder: Decoder, spec: InputSpec, label_count: int) -> tuple[Output, ...]:
    """The shapes that a decoder of another task than detection takes for its one output; the likelier first."""
    if task == "segmentation":
        return _maps(decoder, spec, label_count)
    return (Output((1, label_count)),)


def _maps(decoder: Decoder, spec: InputSpec, label_count: int) -> tuple[Output, ...]:
    if decoder == "argmax":
        return Output((1, _ROWS, _COLUMNS), None), Output((1, 1, _ROWS, _COLUMNS), None)
    planes = Output((1, label_count, _ROWS, _COLUMNS), class_axis=1)
    cells = Output((1, _ROWS, _COLUMNS, label_count), class_axis=3)
    return (planes, cells) if spec.layout == "NCHW" else (cells, planes)


def _fits(got: Shape, expected: Shape) -> bool:
    return len(got) == len(expected) and all(
        g == e for g, e in zip(got, expected, strict=True) if isinstance(g, int) and isinstance(e, int)
    )


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
