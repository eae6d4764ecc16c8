"""Output: what a decoder reads from one output of a model.

Owns the shapes, by task and decoder; those of detectors are in `layout`. Which one a model has, and the words where
none fits, are not here.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from edge_sdk.model_spec import Decoder, InputSpec, Task

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
