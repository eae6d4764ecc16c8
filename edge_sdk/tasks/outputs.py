"""`Decoder`: what a decoder expects of a model's outputs, and the search for them among the outputs of a model.

Outputs are identified by their shapes, because exporters differ in the order of outputs, and some name them wrongly.
Each family's file defines its `Decoder`s. `tasks.decoders` lists them, builds stages with them and words their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from edge_sdk.core.errors import ModelError
from edge_sdk.tasks.spec import DetectionSpec, Task, TaskSpec, Thresholds

Shape: TypeAlias = tuple[int | str | None, ...]
"""Shape of an output; a dimension that is not fixed is a name or None and matches anything."""

IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
UNIT = {"std": (255.0, 255.0, 255.0)}
SYMMETRIC = {"mean": (127.5, 127.5, 127.5), "std": (127.5, 127.5, 127.5)}
"""Usual normalisations of inputs, as keys of [input]: ImageNet's, to the range 0-1, and to the range -1 to 1."""

NORMALISING = ("BatchNormalization", "Div", "LpNormalization")
"""Operators whose values are embeddings, not class scores, where a model ends in one of them."""

ROWS, COLUMNS = "H", "W"
"""Placeholders in an expected shape for the rows and columns of cells, which match any size."""


class ModelOutput(msgspec.Struct, frozen=True):
    """An output that a decoder expects.

    Attributes:
        shape: expected shape for the given number of labels; `ROWS` and `COLUMNS` match any size.
        class_axis: the axis whose size follows the number of classes: `anchors * (others + classes)`; None without one.
        anchors: boxes per cell if they share that axis; else 1.
        others: number of values other than classes: box and objectness.
    """

    shape: Shape
    class_axis: int | None = 1
    anchors: int = 1
    others: int = 0

    def fits(self, got: Shape) -> bool:
        """Tell whether an output has the expected shape; dimensions that are not fixed match anything."""
        return len(got) == len(self.shape) and all(
            g == e for g, e in zip(got, self.shape, strict=True) if isinstance(g, int) and isinstance(e, int)
        )

    def covers(self, got: Shape, input_wh: tuple[int, int]) -> bool:
        """Tell whether rows and columns of cells, if any, have the aspect ratio of the input.

        Where a stride does not divide the input, exporters round: each side may have one cell more or less.
        """
        if ROWS not in self.shape or len(got) != len(self.shape):
            return len(got) == len(self.shape)
        rows, columns = got[self.shape.index(ROWS)], got[self.shape.index(COLUMNS)]
        if not isinstance(rows, int) or not isinstance(columns, int):
            return False
        width, height = input_wh
        return min(rows, columns) > 1 and abs(rows * width - columns * height) <= width + height

    def class_count(self, got: Shape) -> int | None:
        """Return the number of classes of an output that matches the expected shape in all other axes; else None."""
        axis = self.class_axis
        size = got[axis] if axis is not None and len(got) == len(self.shape) else None
        if axis is None or not isinstance(size, int) or size % self.anchors:
            return None
        as_expected = (*got[:axis], self.shape[axis], *got[axis + 1 :])
        return size // self.anchors - self.others if self.fits(as_expected) else None

    def sum_of(self, class_count: int) -> str:
        """Return the formula of the class axis's size: `255 = 3 * (5 + 80)`."""
        size, inner = self.anchors * (self.others + class_count), f"{self.others} + {class_count}"
        return f"{size} = {self.anchors} * ({inner})" if self.anchors > 1 else f"{size} = {inner}"


Layout: TypeAlias = tuple[ModelOutput, ...]
"""The outputs that a decoder reads together, in the decoder's own order."""


class SeenOutput(Protocol):
    """One output of a model as the examination of the model's file describes it."""

    @property
    def name(self) -> str:
        """The output's name; exporters choose it freely."""

    @property
    def shape(self) -> Shape | None:
        """The output's shape; None if not even the number of dimensions is known."""

    @property
    def operator(self) -> str:
        """The operator type of the node that computes the output; empty if there is no such node."""


class BareOutput(msgspec.Struct, frozen=True):
    """A `SeenOutput` of which only the shape is known."""

    shape: Shape | None
    name: str = ""
    operator: str = ""


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """One way of reading a model's outputs: one entry of the table in `tasks.decoders`.

    Attributes:
        layouts: (spec, label_count, shapes of the model) -> the layouts that the decoder reads, the likeliest first.
        make: (spec, label_count, layout) -> the reader of one layout, as the task's stage takes it: for detection a
            `boxes.Decode` or a `boxes.Reader`, for segmentation a function from an output to a class map, for
            classification one from scores to classes and confidences; None for tasks whose stage reads the outputs
            itself. Raises ModelError for unreadable shapes.
        check: raises ValueError with the key's name if the [detection] section lacks a key that the decoder needs.
        needs: the key that a hint names beside the decoder; empty if the decoder needs none.
        reads_first: whether the decoder reads only the model's first output and ignores all others.
        reads_all: whether a layout lists all outputs, in the model's order; else outputs are found by shape.
        thresholds: keys of [thresholds] that apply to the models; None for those of the task.
        suppresses: whether the stage suppresses overlaps; False if the model's graph does.
        usual_input: keys of [input] with which models of this kind are trained, where these differ from the defaults.
        usual_thresholds: the [thresholds] with which models of this kind are mostly used.
        usual_labels: labels of models of this kind; used if their number fits and no other source gives labels.
        is_vague: whether many other models have outputs of these shapes, so that shapes alone never select it.
        said: the task's name in Ultralytics' metadata for models of this kind.
        usual_count: number of COCO classes of most such models; used if the outputs do not show the number.
        box_axis: axis that has the four numbers of a box in pixels before scores 0-1; None if there is no such axis.
        is_shown: (outputs in the layout's order) -> evidence of names and operators where several decoders fit the
            shapes: True for this decoder, False against it, None if they show nothing.
        section: (all outputs) -> the [detection] section for these outputs, as far as names and operators show it.
    """

    name: str
    task: Task = "detection"
    layouts: Callable[[TaskSpec, int, Sequence[Shape]], Sequence[Layout]]
    make: Callable[[TaskSpec, int, Layout], Any]
    check: Callable[[DetectionSpec], None] = lambda _detection: None
    needs: str = ""
    reads_first: bool = False
    reads_all: bool = False
    usual_input: dict[str, Any] = {}
    usual_thresholds: Thresholds = Thresholds()
    usual_labels: tuple[str, ...] = ()
    thresholds: tuple[str, ...] | None = None
    suppresses: bool = True
    is_vague: bool = False
    said: str = "detect"
    usual_count: int = 80
    box_axis: int | None = None
    is_shown: Callable[[Sequence[SeenOutput]], bool | None] = lambda _seen: None
    section: Callable[[Sequence[SeenOutput]], DetectionSpec] = lambda _seen: DetectionSpec()

    def find(self, spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> tuple[Layout, tuple[int, ...]] | None:
        """Find the outputs that the decoder reads.

        Returns:
            The first matching layout, and for each of its outputs the index among the model's outputs; equal shapes
            match in order. None if no layout matches.
        """
        got = self.readable(got)
        for layout in self.layouts(spec, label_count, got):
            places = self._places(layout, got)
            if places is not None:
                return layout, places
        return None

    def is_likely(self, spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> bool:
        """Tell whether the outputs have fixed shapes and are exactly those that this decoder reads."""
        found = self.find(spec, label_count, got)
        return (
            found is not None
            and len(found[0]) > 0
            and all(isinstance(side, int) for shape in self.readable(got) for side in shape)
            and all(output.covers(got[place], spec.input.size_wh) for output, place in zip(*found, strict=True))
        )

    def readings(self, spec: TaskSpec, got: Sequence[Shape]) -> Iterator[tuple[int | None, Layout, tuple[int, ...]]]:
        """Yield each number of classes for which the decoder reads all these outputs; None if they do not show it.

        The layout and indices of `find` follow each number. Shapes that are unreadable or not fixed yield nothing.
        """
        counts = (output.class_count(got[place]) for output, place in self.class_outputs(spec, 1, got))
        for count in dict.fromkeys([*(count for count in counts if count is not None and count > 0), None]):
            found = self.find(spec, count or 1, got) if self.is_likely(spec, count or 1, got) else None
            if found is not None and len(found[1]) == len(got):
                has_classes = any(output.class_axis is not None for output in found[0])
                if has_classes is (count is not None):
                    yield count, *found

    def class_outputs(
        self, spec: TaskSpec, label_count: int, got: Sequence[Shape]
    ) -> Iterator[tuple[ModelOutput, int]]:
        """Yield each expected output that may contain the classes, with the index of the model's output."""
        got = self.readable(got)
        layouts = self.layouts(spec, label_count, got)
        longest = max((len(layout) for layout in layouts if len(layout) <= len(got)), default=0)
        for place, shape in enumerate(got):
            for layout in layouts:
                if len(layout) != longest:
                    continue
                if self.reads_all and len(got) == len(layout):
                    yield layout[place], place
                elif not self.reads_all:
                    yield from ((output, place) for output in layout if not _holds_no_classes(layout, output, shape))

    def readable(self, got: Sequence[Shape]) -> Sequence[Shape]:
        """Return the shapes that the decoder compares with its layouts: all, or the first with `reads_first`."""
        return got[:1] if self.reads_first else got

    def _places(self, layout: Layout, got: Sequence[Shape]) -> tuple[int, ...] | None:
        if self.reads_all and len(layout) != len(got):
            return None
        places: list[int] = []
        for expected in layout:
            place = next((i for i, shape in enumerate(got) if i not in places and expected.fits(shape)), None)
            if place is None:
                return None
            places.append(place)
        return tuple(places)


def check_one_label(decoder: str, found: str, label_count: int) -> None:
    """Raise ModelError unless there is exactly one label, for decoders of models with a single class."""
    if label_count != 1:
        raise ModelError(f"decoder {decoder}: finds {found}, expected one label, got {label_count}")


def _holds_no_classes(layout: Layout, output: ModelOutput, shape: Shape) -> bool:
    """Tell whether an output's shape shows that it contains no classes."""
    axis = output.class_axis
    return axis is None or any(
        len(o.shape) == len(shape) and o.class_axis is None and o.shape[axis] == shape[axis] for o in layout
    )
