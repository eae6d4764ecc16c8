"""The YOLO family: v4 (raw convolutions), v5 (rows), X (boxes relative to cells), v8 and 11 (columns), and FastestDet.

Each decoder computes boxes only for cells that can reach the threshold, so that the cost grows with the number of
objects, not of cells. The layouts are those of Darknet's [yolo] layer, of Ultralytics' `Detect` of v5 and of v8/11
without suppression, and of YOLOX's exporter by default: activated, but not decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.boxes import (
    MAX_CANDIDATES,
    MAX_SIZE_LOGIT,
    NO_CANDIDATES,
    STRIDES,
    Candidates,
    Floats,
    best_classes,
    cells_of,
    corner_boxes,
    level_size,
    lowest_logit,
    sigmoid,
    sizes_of,
    strongest,
)
from edge_sdk.tasks.outputs import COLUMNS, ROWS, UNIT, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import DetectionSpec, TaskSpec, Thresholds

_MINUS_HALF = np.float32(-0.5)
_FASTESTDET_STRIDE = 16


class YoloV4:
    """Reads raw heads: float (1, anchors * (5 + classes), H, W): x, y, w, h, objectness, classes, before activation.

    Box centre = (sigmoid(xy) * scale - (scale - 1) / 2 + cell) * stride, size = exp(wh) * anchor, confidence =
    sigmoid(objectness) * sigmoid(class): Darknet's yolo_layer with `scale_x_y`.

    Args:
        anchors: one list an output, of (width, height) in input pixels.
        scale_xy: one value per output; empty means 1 for all.
        grids_hw: rows and columns of cells, one pair per output.
    """

    def __init__(
        self,
        anchors: Sequence[Sequence[tuple[float, float]]],
        scale_xy: Sequence[float],
        size_wh: tuple[int, int],
        grids_hw: Sequence[tuple[int, int]],
        confidence: float,
    ) -> None:
        # A box reaches the threshold only if its objectness does; comparing logits saves the exponentials.
        self._objectness_logit = lowest_logit(confidence)
        scales = list(scale_xy) or [1.0] * len(anchors)
        self._heads = [
            ((len(head), -1, grid[0] * grid[1]), _cell_table(head, grid, size_wh, scale))
            for head, grid, scale in zip(anchors, grids_hw, scales, strict=True)
        ]

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read all heads of one frame; collect the cells above the threshold of all heads before computing boxes."""
        parts = []
        for output, (shape, table) in zip(outputs, self._heads, strict=False):
            rows = output.reshape(shape)
            found = (rows[:, 4] >= self._objectness_logit).ravel().nonzero()[0]
            if len(found):
                anchor, cell = np.divmod(found, shape[2])
                parts.append((rows[anchor, :, cell], table[found]))
        if not parts:
            return NO_CANDIDATES
        values, cells = (np.concatenate(part) for part in zip(*parts, strict=True))
        return self._read(values, cells)

    def _read(self, values: Floats, cells: Floats) -> Candidates:
        """Read float32 (K, 5 + classes) logits and their (K, 6) rows of `_cell_table`."""
        activated = values[:, :5].copy()
        activated[:, 3], class_ids = best_classes(values[:, 5:])  # the height is read from `values`; its column is free
        activated = sigmoid(activated)
        boxes = np.minimum(values[:, :4], MAX_SIZE_LOGIT)
        sizes = boxes[:, 2:]
        np.exp(sizes, out=sizes)
        sizes *= cells[:, 4:]
        # The top left corner is the centre minus half the size.
        np.multiply(sizes, _MINUS_HALF, out=boxes[:, :2])
        activated[:, :2] *= cells[:, :2]
        boxes[:, :2] += activated[:, :2]
        boxes[:, :2] += cells[:, 2:4]
        return Candidates(boxes, activated[:, 4] * activated[:, 3], class_ids)


def _cell_table(
    anchors: Sequence[tuple[float, float]], grid_hw: tuple[int, int], size_wh: tuple[int, int], scale: float
) -> Floats:
    """Return the position and anchor of each cell of one YOLOv4 head.

    Returns:
        float32 (anchors * cells, 6): factor x, y and offset x, y of the activated centre, the anchor's width and
        height; all in pixels of the input.
    """
    rows, columns = grid_hw
    y, x = np.divmod(np.arange(rows * columns), columns)
    stride_x, stride_y = size_wh[0] / columns, size_wh[1] / rows
    shift = (scale - 1) / 2
    table = np.empty((len(anchors), rows * columns, 6))
    table[:, :, 0], table[:, :, 1] = scale * stride_x, scale * stride_y
    table[:, :, 2], table[:, :, 3] = (x - shift) * stride_x, (y - shift) * stride_y
    table[:, :, 4:] = np.asarray(anchors)[:, None, :]
    return table.reshape(-1, 6).astype(np.float32)


def read_yolov5(confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read decoded rows, float (1, N, 5 + classes): centre x, y, size in input pixels, objectness, classes."""
    rows: Floats = outputs[0][0]
    rows = rows[(rows[:, 4] >= confidence).nonzero()[0]]  # by indices in a quarter of the time of a mask
    scores, class_ids = best_classes(rows[:, 5:])
    return Candidates(corner_boxes(rows), rows[:, 4] * scores, class_ids)


def read_yolov8(confidence: float, outputs: Sequence[Tensor], class_count: int | None = None) -> Candidates:
    """Read decoded columns, float (1, 4 + classes, N): centre x, y, width, height in input pixels, classes 0-1.

    With a `class_count`, the values after the classes become `extras`.
    """
    columns: Floats = outputs[0][0]
    end = len(columns) if class_count is None else 4 + class_count
    best = columns[4:end].max(axis=0)
    strong = (best >= confidence).nonzero()[0]
    if not len(strong):
        # A separate check of all scores for NaN would double the time of this function.
        highest = float(np.maximum(best.max(), columns[:4].max())) if end == len(columns) else None
        return Candidates(NO_CANDIDATES.boxes_xywh, best[strong], strong, highest)
    if len(strong) > MAX_CANDIDATES:  # gathering a column costs more than ranking it
        strong = strong[strongest(best[strong])]
    rows = columns[:, strong].T
    class_ids = rows[:, 4:end].argmax(axis=1)
    return Candidates(corner_boxes(rows), best[strong], class_ids, extras=rows[:, end:])


class YoloX:
    """Reads one row per cell, float (1, N, 5 + classes): x, y, w, h, objectness 0-1, classes 0-1.

    Box centre = (xy + cell) * stride, size = exp(wh) * stride, confidence = objectness * class.
    """

    def __init__(self, size_wh: tuple[int, int], confidence: float) -> None:
        self._confidence = confidence
        self._cells = cells_of(size_wh, STRIDES)

    def __call__(self, outputs: Sequence[Tensor], /) -> Candidates:
        """Read the output of one frame."""
        rows: Floats = outputs[0][0]
        found = (rows[:, 4] >= self._confidence).nonzero()[0]
        rows, cells = rows[found], self._cells[found]
        strides = cells[:, 2:]
        boxes = rows[:, :4].copy()
        boxes[:, :2] += cells[:, :2]
        boxes[:, :2] *= strides
        boxes[:, 2:] = sizes_of(rows[:, 2:4]) * strides
        scores, class_ids = best_classes(rows[:, 5:])
        return Candidates(corner_boxes(boxes), rows[:, 4] * scores, class_ids)


def read_fastestdet(size_wh: tuple[int, int], confidence: float, outputs: Sequence[Tensor]) -> Candidates:
    """Read float (1, 5 + classes, H, W): objectness 0-1, four numbers of the box, classes 0-1.

    Box centre = cell + tanh(xy) in cells, size = sigmoid(wh) as a fraction of the input, confidence = objectness^0.6 *
    class^0.4. Source: dog-qiuqiu/FastestDet, example/onnx-runtime.
    """
    values: Floats = outputs[0][0]
    rows, columns = values.shape[1:]
    found = np.flatnonzero(values[0] >= np.float32(confidence ** (1 / 0.6) * (1 - 1e-6)))
    values = values.reshape(len(values), -1)[:, found]
    row, column = np.divmod(found, columns)
    boxes = np.hstack([np.tanh(values[1:3].T), sigmoid(values[3:5].T)])
    boxes[:, :2] = (boxes[:, :2] + np.column_stack([column, row])) / np.array([columns, rows], np.float32)
    boxes *= np.array(size_wh * 2, np.float32)
    confidences = values[0] ** np.float32(0.6) * values[5:].max(axis=0) ** np.float32(0.4)
    return Candidates(corner_boxes(boxes), confidences, values[5:].argmax(axis=0))


def _fastestdet_layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    columns, rows = level_size(spec.input.size_wh, _FASTESTDET_STRIDE)
    return [(ModelOutput((1, 5 + label_count, rows, columns), others=5),)]


def _v4_layouts(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    """Expect one head per list of anchors; without anchors in model.toml, derive their number from the channels."""
    values = 5 + label_count
    grids = [_grid(shape) for shape in got]
    if spec.detection.anchors:
        counts = [len(anchors) for anchors in spec.detection.anchors]
        if len(grids) != len(counts):
            grids = [(ROWS, COLUMNS)] * len(counts)
    elif all(len(s) == 4 and isinstance(s[1], int) and s[1] % values == 0 for s in got) and all(
        _divides(grid, spec.input.size_wh) for grid in grids
    ):
        counts = [int(shape[1] or 0) // values for shape in got]
    else:
        return []
    heads = zip(counts, grids, strict=True)
    return [tuple(ModelOutput((1, count * values, *grid), anchors=count, others=5) for count, grid in heads)]


def _grid(shape: Shape) -> tuple[int | str, int | str]:
    """Return rows and columns of a head's cells; `ROWS` and `COLUMNS` where the output does not fix them."""
    rows, columns = shape[2:] if len(shape) == 4 else (None, None)
    return (rows, columns) if isinstance(rows, int) and isinstance(columns, int) else (ROWS, COLUMNS)


def _divides(grid: tuple[int | str, int | str], input_wh: tuple[int, int]) -> bool:
    rows, columns = grid
    return isinstance(rows, int) and isinstance(columns, int) and not (input_wh[1] % rows or input_wh[0] % columns)


def _make_v4(spec: TaskSpec, _label_count: int, layout: Layout) -> YoloV4:
    width, height = spec.input.size_wh
    grids = []
    for _, _, rows, columns in (output.shape for output in layout):
        if not isinstance(rows, int) or not isinstance(columns, int):
            raise ModelError("decoder yolov4: rows and columns of a head are not fixed; export with a fixed input size")
        if height % rows or width % columns:
            raise ModelError(
                f"decoder yolov4: a head of {columns}x{rows} cells does not divide input.size_wh {width}x{height}"
            )
        grids.append((rows, columns))
    detection, confidence = spec.detection, spec.thresholds.confidence
    return YoloV4(detection.anchors, detection.scale_xy, spec.input.size_wh, grids, confidence)


def _check_v4(detection: DetectionSpec) -> None:
    if not detection.anchors:
        raise ValueError("detection.anchors is missing, expected one list of [width, height] an output for yolov4")
    if len(detection.scale_xy) not in (0, len(detection.anchors)):
        raise ValueError("detection.scale_xy: expected as many numbers as detection.anchors has lists")


def floored_cells(input_wh: tuple[int, int]) -> int:
    """Count the cells of all levels; where a stride does not divide the input, round down as Ultralytics does."""
    return sum((input_wh[0] // stride) * (input_wh[1] // stride) for stride in STRIDES)


def _v5_layouts(spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    """Expect three boxes per cell, or one per cell as in a YOLOX that decodes boxes in its graph."""
    cells = floored_cells(spec.input.size_wh)
    return [(ModelOutput((1, count, 5 + label_count), class_axis=2, others=5),) for count in (3 * cells, cells)]


YOLOV4 = Decoder(
    name="yolov4",
    layouts=_v4_layouts,
    make=_make_v4,
    check=_check_v4,
    needs="detection.anchors",
    reads_all=True,
    usual_input=UNIT,
)
YOLOV5 = Decoder(
    name="yolov5",
    layouts=_v5_layouts,
    make=lambda spec, _label_count, _layout: partial(read_yolov5, spec.thresholds.confidence),
    box_axis=-1,
    usual_input=UNIT,
)
YOLOX = Decoder(
    name="yolox",
    layouts=lambda spec, count, _got: _v5_layouts(spec, count, _got)[1:],
    make=lambda spec, _label_count, _layout: YoloX(spec.input.size_wh, spec.thresholds.confidence),
    usual_input={"color": "BGR", "pad_anchor": "top_left"},
)
YOLOV8 = Decoder(
    name="yolov8",
    layouts=lambda spec, count, _got: [(ModelOutput((1, 4 + count, floored_cells(spec.input.size_wh)), others=4),)],
    make=lambda spec, _label_count, _layout: partial(read_yolov8, spec.thresholds.confidence),
    box_axis=1,
    usual_input=UNIT,
)
FASTESTDET = Decoder(
    name="fastestdet",
    usual_thresholds=Thresholds(0.65),
    layouts=_fastestdet_layouts,
    make=lambda spec, _count, _layout: partial(read_fastestdet, spec.input.size_wh, spec.thresholds.confidence),
    reads_all=True,
    usual_input={"resize": "stretch", "color": "BGR", **UNIT},
    # A class map of the same shape comes from a convolution; FastestDet concatenates separately activated parts.
    is_shown=lambda seen: seen[0].operator == "Concat",
)
