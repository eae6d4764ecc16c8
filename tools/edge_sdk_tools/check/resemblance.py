"""Say what outputs look like that no decoder reads, so that nobody looks for the fault in model.toml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from edge_sdk.core.logs import counted
from edge_sdk.tasks.boxes import cell_count
from edge_sdk.tasks.outputs import SeenOutput, Shape

_STRIDES = (4, 8, 16, 32, 64, 128)
_ANCHORS = (1, 2, 3, 6, 9)


def resemblance(outputs: Sequence[SeenOutput], size_wh: tuple[int, int]) -> str:
    """Return `; this looks like ...` for the outputs of a model with an input of this size; empty for unknown ones."""
    shapes = [output.shape or () for output in outputs]
    if len(shapes) == 1 and len(shapes[0]) == 3 and outputs[0].operator == "Softmax":
        _, places, characters = shapes[0]
        return f"; this looks like {characters} characters at each of {places} places: text, with --task text"
    for look in (_detection_api, _keypoints, _levels, _heads, _heatmap, _cells, _rows):
        if found := look(shapes, size_wh):
            return f"; this looks like {found}"
    return ""


def _detection_api(shapes: Sequence[Shape], _size_wh: tuple[int, int]) -> str:
    boxes = [shape[1] for shape in shapes if len(shape) == 3 and shape[2] == 4]
    if len(shapes) > 4 and any(sum(shape == (1, count) for shape in shapes) > 2 for count in boxes):
        return (
            "all outputs of TensorFlow's Detection API: tensorflow_nms reads detection_boxes, detection_classes, "
            "detection_scores and num_detections, so export these four alone"
        )
    return ""


def _keypoints(shapes: Sequence[Shape], _size_wh: tuple[int, int]) -> str:
    if len(shapes) == 1 and len(shapes[0]) == 4 and 17 in shapes[0][1::2]:
        return "17 heatmaps of a person's keypoints; a class map of 17 classes needs --decoder logits"
    return ""


def _levels(shapes: Sequence[Shape], size_wh: tuple[int, int]) -> str:
    """Name detectors with an output a level and kind: rows of cells, of 1, 4 and more values."""
    rows = [shape[-2:] for shape in shapes if len(shape) in (2, 3)]
    sides = {
        anchors * cell_count(size_wh, stride): (stride, anchors) for anchors in _ANCHORS[::-1] for stride in _STRIDES
    }
    known = [(sides[count], values) for count, values in rows if count in sides and isinstance(values, int)]
    strides = {stride for (stride, _), _ in known}
    kinds = Counter(values for _, values in known)
    if len(known) < len(shapes) or len(strides) < 2 or 4 not in kinds:
        return ""
    words = f"{len(shapes)} outputs of {counted(len(strides), 'stride')}"
    points = [values // 2 for values in kinds if values > 4 and values % 2 == 0]
    if kinds[1] and points:
        kind = "YuNet" if kinds[1] > kinds[4] else "SCRFD"
        return f"{words} with {points[0]} keypoints: a face detector of {kind}'s kind"
    return f"{words}: a detector with scores and boxes apart"


def _heads(shapes: Sequence[Shape], size_wh: tuple[int, int]) -> str:
    """Name raw heads of YOLO: 1x(A * (5 + C))xHxW, 1xHxWx(A * (5 + C)) or 1xAxHxWx(5 + C) at each stride."""
    strides = [_stride_of(shape, size_wh) for shape in shapes]
    if len(shapes) < 2 or not all(strides) or len(set(strides)) < len(strides):
        return ""
    words = f"raw heads of {counted(len(shapes), 'stride')} ({', '.join(map(str, strides))})"
    return f"{words}: a YOLO whose boxes are not decoded; export it with its last layer, or give yolov4 its anchors"


def _heatmap(shapes: Sequence[Shape], size_wh: tuple[int, int]) -> str:
    maps = [shape for shape in shapes if _stride_of(shape, size_wh)]
    if len(shapes) > 1 and len(maps) == len(shapes):
        stride = _stride_of(shapes[0], size_wh)
        return f"{len(shapes)} maps at stride {stride}: a detector of CenterNet's kind, or heatmaps of keypoints"
    return ""


def _cells(shapes: Sequence[Shape], size_wh: tuple[int, int]) -> str:
    """Name detectors with one row or column a cell."""
    for strides in ((8, 16, 32), (8, 16, 32, 64), (8, 16, 32, 64, 128)):
        for anchors in _ANCHORS:
            count = anchors * cell_count(size_wh, *strides)
            for shape in shapes:
                if len(shape) == 3 and count in shape[1:]:
                    values = shape[1] if shape[2] == count else shape[2]
                    each = (
                        f"{anchors} for each cell of the strides" if anchors > 1 else "one for each cell of the strides"
                    )
                    return f"a detector with {values} values a box, {each} {', '.join(map(str, strides))}"
    return ""


def _rows(shapes: Sequence[Shape], _size_wh: tuple[int, int]) -> str:
    if len(shapes) == 1 and len(shapes[0]) == 2 and isinstance(shapes[0][1], int):
        return f"one row of {shapes[0][1]} values: a classifier, or an embedding"
    return ""


def _stride_of(shape: Shape, size_wh: tuple[int, int]) -> int:
    """Return the stride of a map of cells, in any order of its axes; 0 for what is none."""
    for stride in _STRIDES:
        cells = (-(-size_wh[1] // stride), -(-size_wh[0] // stride))
        if len(shape) in (4, 5) and any(tuple(shape[i : i + 2]) == cells for i in range(1, len(shape) - 1)):
            return stride
    return 0
