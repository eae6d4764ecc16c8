"""Decoders of detectors and classifiers read each output as a slow, independent reading of its definition does."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.frame import Classification, Detections, Frame, Geometry, Inferred, Prepared
from edge_sdk.tasks import detection
from edge_sdk.tasks.boxes import Candidates
from edge_sdk.tasks.centernet import read_centernet
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.detection import suppress
from edge_sdk.tasks.spec import ClassificationSpec, DetectionSpec, Thresholds
from edge_sdk.tasks.yolo import read_yolov8

SIZE = (96, 64)
SPEC = ModelSpec(
    model="m.onnx", name="m", task="detection", decoder="yolov8", labels="l.txt", input=InputSpec(size_wh=SIZE),
    thresholds=Thresholds(confidence=0.3, iou=1.0),  # no suppression, so that every box can be compared
)  # fmt: skip
ANCHORS = (((10.0, 20.0), (30.0, 15.0)), ((40.0, 40.0),))
Found = tuple[float, int, list[float]]
"""Confidence, class and box as left, top, right, bottom."""


def _spec(decoder: str, **changes: Any) -> ModelSpec:
    return msgspec.structs.replace(SPEC, decoder=decoder, **changes)


def _inferred(spec: ModelSpec, *outputs: np.ndarray) -> Inferred:
    width, height = spec.input.size_wh
    frame = Frame(np.zeros((height, width, 3), np.uint8), 0, 0.0, 0, "camera")
    return Inferred(outputs, 0, Prepared(np.empty(0, np.float32), Geometry(1.0, 1.0, 0.0, 0.0), frame))


def _detect(spec: ModelSpec, labels: int, *outputs: np.ndarray) -> Detections:
    lent = [output.copy() for output in outputs]
    with np.errstate(all="ignore"):
        result = make_stage(spec, labels, [o.shape for o in outputs])(_inferred(spec, *lent))
    for output in lent:
        output[...] = 0  # a result owns its arrays
    assert isinstance(result, Detections)
    return result


def _check(got: Detections, expected: list[Found], size_wh: tuple[int, int] = SIZE) -> None:
    """Compare detections: most confident first, clipped to the frame, without those that have no area there."""
    limits = [*size_wh, *size_wh]
    rows = [(c, k, [min(max(v, 0.0), m) for v, m in zip(box, limits, strict=True)]) for c, k, box in expected]
    rows = sorted((r for r in rows if r[2][2] > r[2][0] and r[2][3] > r[2][1]), key=lambda r: -r[0])
    assert len(rows) > 5
    assert got.confidence == pytest.approx([r[0] for r in rows], abs=1e-5)
    assert got.class_id.tolist() == [r[1] for r in rows]
    assert got.xyxy == pytest.approx(np.array([r[2] for r in rows]), abs=2e-3)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _best_of(scores: list[float]) -> tuple[float, int]:
    """Return the highest score and the first class that has it."""
    return max(scores), scores.index(max(scores))


def _box(cx: float, cy: float, w: float, h: float) -> list[float]:
    return [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]


def _random() -> np.random.Generator:
    return np.random.default_rng(11)


def _uniform(*shape: int) -> np.ndarray:
    return _random().uniform(0, 0.5, shape).astype(np.float32)


def _cells(size_wh: tuple[int, int], strides: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Column, row and stride of each cell, as the flattened maps of all levels have them."""
    width, height = size_wh
    return [
        (x, y, stride)
        for stride in strides
        for y, x in product(range(math.ceil(height / stride)), range(math.ceil(width / stride)))
    ]


def _nanodet(scores: np.ndarray, sides: np.ndarray, strides: tuple[int, ...], middle: float) -> list[Found]:
    """Read NanoDet's outputs: each side is the mean of its distribution over 0, 1, ... strides."""
    expected: list[Found] = []
    for classes, logits, (x, y, stride) in zip(scores.tolist(), sides, _cells(SIZE, strides), strict=True):
        score, class_id = _best_of(classes)
        if score >= 0.3:
            powers = np.exp(logits.astype(float).reshape(4, -1))
            left, top, right, bottom = (np.average(range(powers.shape[1]), weights=p) for p in powers)
            cx, cy = x + middle, y + middle
            expected.append((score, class_id, [stride * v for v in (cx - left, cy - top, cx + right, cy + bottom)]))
    return expected


def _nanodet_parts(cells: int, classes: int, bins: int = 8) -> tuple[np.ndarray, np.ndarray]:
    return _uniform(cells, classes), _random().normal(0, 2, (cells, 4 * bins)).astype(np.float32)


@pytest.mark.parametrize(
    ("classes", "order", "batched"),
    [
        (3, [5, 4, 3, 2, 1, 0], True),
        # As many classes as bins, or as cells of NanoDet-Plus: the first are taken for scores.
        (32, [0, 3, 1, 4, 2, 5], False),
        (128, [0, 3, 1, 4, 2, 5], False),
        (3, [*range(8)], True),  # PicoDet
    ],
)
def test_nanodet_finds_its_outputs_by_their_shapes(classes: int, order: list[int], batched: bool) -> None:
    strides, splits = ((8, 16, 32), [96, 120]) if len(order) == 6 else ((8, 16, 32, 64), [96, 120, 126])
    scores, sides = _nanodet_parts(len(_cells(SIZE, strides)), classes)
    outputs = [*np.split(scores, splits), *np.split(sides, splits)]
    shuffled = [outputs[i][None] if batched else outputs[i] for i in order]
    _check(_detect(_spec("nanodet"), classes, *shuffled), _nanodet(scores, sides, strides, 0.5))


def test_nanodet_plus_in_one_output_measures_from_the_corners_of_its_cells() -> None:
    strides = (8, 16, 32, 64)
    scores, sides = _nanodet_parts(len(_cells(SIZE, strides)), 5, 11)
    got = _detect(
        _spec("nanodet", detection=DetectionSpec(reg_max=10)), 5, np.concatenate([scores, sides], axis=1)[None]
    )
    _check(got, _nanodet(scores, sides, strides, 0.0))


def _check_points(got: Detections, expected: list[tuple[float, list[float]]]) -> None:
    """Find the landmarks of each object among these of its confidence, which cells of other levels may have too."""
    assert got.keypoints is not None
    for confidence, row in zip(got.confidence.tolist(), got.keypoints, strict=True):
        rows = [points for its, points in expected if abs(its - confidence) < 1e-6]
        assert min(np.abs(row[:, :2].ravel() - points).max() for points in rows) < 2e-3


@pytest.mark.parametrize("order", [[3, 1, 0, 2], [0, 1, 2]])
def test_centerface_has_height_and_y_first(order: list[int]) -> None:
    heat = _uniform(1, 1, 16, 24)
    scale, offset = _random().normal(1, 0.5, (2, 1, 2, 16, 24)).astype(np.float32)
    outputs = [heat, scale, offset, _uniform(1, 10, 16, 24)]
    expected: list[Found] = []
    points = []
    for y, x in product(range(16), range(24)):
        if heat[0, 0, y, x] >= 0.3:
            h, w = (math.exp(v) * 4 for v in scale[0, :, y, x].tolist())
            cy, cx = (y + offset[0, 0, y, x] + 0.5) * 4, (x + offset[0, 1, y, x] + 0.5) * 4
            expected.append((float(heat[0, 0, y, x]), 0, _box(cx, cy, w, h)))
            left, top = expected[-1][2][:2]
            parts = outputs[3][0, :, y, x].tolist()
            marks = [v for py, px in zip(parts[::2], parts[1::2], strict=True) for v in (left + px * w, top + py * h)]
            points.append((expected[-1][0], marks))
    got = _detect(_spec("centerface"), 1, *(outputs[i] for i in order))
    _check(got, expected)
    if 3 in order:
        _check_points(got, points)


@pytest.mark.parametrize("scores", ["probabilities", "logits"])
def test_centernet_has_an_object_at_each_peak(scores: Any) -> None:
    heat = _random().uniform(0, 0.9, (1, 2, 16, 24)).astype(np.float32)
    size, offset = _random().uniform(0, 4, (2, 1, 2, 16, 24)).astype(np.float32)
    expected: list[Found] = []
    for k, y, x in product(range(2), range(16), range(24)):
        around = heat[0, k, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
        if heat[0, k, y, x] >= 0.3 and heat[0, k, y, x] == around.max():
            (w, h), (dx, dy) = size[0, :, y, x].tolist(), offset[0, :, y, x].tolist()
            expected.append((float(heat[0, k, y, x]), k, [4 * v for v in _box(x + dx, y + dy, w, h)]))
    given = np.log(heat / (1 - heat)) if scores == "logits" else heat
    spec = _spec("centernet", detection=DetectionSpec(scores=scores))
    _check(_detect(spec, 2, given, size, offset), expected)


def test_fastestdet_cells_have_activated_parts() -> None:
    output = _uniform(1, 8, 4, 6) * 2
    output[0, 1:5] = _random().normal(0, 1, (4, 4, 6))
    expected: list[Found] = []
    for y, x in product(range(4), range(6)):
        objectness, tx, ty, tw, th, *classes = output[0, :, y, x].tolist()
        score, class_id = _best_of(classes)
        if (sure := objectness**0.6 * score**0.4) >= 0.3:
            cx, cy = (x + math.tanh(tx)) * 16, (y + math.tanh(ty)) * 16
            expected.append((sure, class_id, _box(cx, cy, _sigmoid(tw) * 96, _sigmoid(th) * 64)))
    _check(_detect(_spec("fastestdet"), 3, output), expected)


def test_movenet_encloses_the_points_of_one_person() -> None:
    points = _random().uniform(0.1, 0.9, (1, 1, 17, 3)).astype(np.float32)
    points[..., :3, 2] = 0.05
    one = _detect(_spec("movenet"), 1, points)
    y, x, score = points[0, 0].T
    assert one.confidence.tolist() == pytest.approx([score[3:].mean()])
    assert one.xyxy[0] == pytest.approx([x.min() * 96, y.min() * 64, x.max() * 96, y.max() * 64], abs=1e-3)
    assert one.keypoints == pytest.approx(points[0][..., [1, 0, 2]] * [96, 64, 1], abs=1e-3)
    assert len(_detect(_spec("movenet"), 1, np.full((1, 1, 17, 3), 0.09, np.float32))) == 0


@pytest.mark.parametrize(
    ("decoder", "order", "batched"),
    [
        ("yunet", range(12), True),
        ("yunet", [11, 4, 2, 0, 1, 3, 5, 6, 8, 7, 9, 10], True),
        ("yunet", range(9), True),
        ("scrfd", range(9), True),
        ("scrfd", range(9), False),
    ],
)
def test_faces_have_landmarks_where_the_model_tells_them(decoder: str, order: Sequence[int], batched: bool) -> None:
    anchors = 1 if decoder == "yunet" else 2
    scores, boxes, marks = ([_uniform(1, anchors * n, values) for n in (96, 24, 6)] for values in (1, 4, 10))
    if anchors == 1:
        scores = [3 * score - 0.2 for score in scores]  # of which those beyond 0 and 1 are cut
    outputs = [*scores * (3 - anchors), *boxes, *marks]
    expected: list[Found] = []
    points = []
    rows = zip(*(np.concatenate(kind, axis=1)[0].tolist() for kind in (scores, boxes, marks)), strict=True)
    cells = [cell for cell in _cells(SIZE, (8, 16, 32)) for _ in range(anchors)]
    for ([value], (a, b, c, d), own), (x, y, stride) in zip(rows, cells, strict=True):
        if (score := min(max(value, 0.0), 1.0)) >= 0.3:
            is_middle = decoder == "yunet"
            box = _box(x + a, y + b, math.exp(c), math.exp(d)) if is_middle else [x - a, y - b, x + c, y + d]
            expected.append((score, 0, [v * stride for v in box]))
            points.append((score, [(v + (x, y)[i % 2]) * stride for i, v in enumerate(own)]))
    got = _detect(_spec(decoder), 1, *(outputs[i] if batched else outputs[i][0] for i in order))
    _check(got, expected)
    if len(order) == len(outputs):
        _check_points(got, points)


@pytest.mark.parametrize("joined", [True, False])
def test_detr_counts_each_likely_class_of_a_query(joined: bool) -> None:
    boxes, logits = _random().uniform(0.2, 0.7, (40, 4)).astype(np.float32), _random().normal(-1, 1, (40, 3))
    expected: list[Found] = []
    for (cx, cy, w, h), row in zip(boxes.tolist(), logits.astype(np.float32).tolist(), strict=True):
        box = [v * side for v, side in zip(_box(cx, cy, w, h), (96, 64, 96, 64), strict=True)]
        expected += [(_sigmoid(logit), number, box) for number, logit in enumerate(row) if _sigmoid(logit) >= 0.3]
    scores = logits.astype(np.float32)
    if joined:
        probabilities = np.array([[_sigmoid(v) for v in row] for row in scores.tolist()], np.float32)
        outputs = [np.concatenate([boxes, probabilities], axis=1)[None]]
    else:
        outputs = [scores[None], boxes[None]]
    _check(_detect(_spec("detr", thresholds=Thresholds(0.3, 0.45)), 3, *outputs), expected)


@pytest.mark.parametrize(
    ("decoder", "order", "first"),
    [
        ("tensorflow_nms", (0, 1, 2, 3), 1),
        ("tensorflow_nms", (2, 0, 3, 1), 0),  # as newer .tflite files have them
        ("torchvision_nms", (0, 2, 1), 1),
        ("efficientdet", (), 1),
    ],
)
def test_what_a_graph_has_suppressed_is_told_apart_by_its_numbers(decoder: str, order: Any, first: int) -> None:
    corners = np.sort(_random().uniform(0.1, 0.9, (20, 2, 2)), axis=1).reshape(20, 4).astype(np.float32)
    scores = np.sort(_random().uniform(0, 1, 20).astype(np.float32))[::-1]
    scores[16:] = corners[16:] = 0
    classes = np.arange(20) % 5 + first - 1  # labels 0, 1 and 2, one below and one above
    classes[16:] = 0
    pixels = corners * np.float32([96, 64, 96, 64])
    expected = [
        (float(score), int(number) - first, box)
        for score, number, box in zip(scores, classes, pixels.tolist(), strict=True)
        if score >= 0.3 and 0 <= number - first < 3
    ]
    turned = [1, 0, 3, 2]
    if decoder == "tensorflow_nms":
        parts = [corners[:, turned][None], classes.astype(np.float32)[None], scores[None], np.float32([16])]
    elif decoder == "torchvision_nms":
        parts = [pixels, classes.astype(np.int64), scores]
    else:
        columns = np.zeros(20), pixels[:, turned], scores, classes
        parts, order = [np.column_stack(columns).astype(np.float32)[None]], (0,)
    spec = _spec(decoder, detection=DetectionSpec(background_class=first == 1))
    _check(_detect(spec, 3, *(parts[place] for place in order)), expected)


@pytest.mark.parametrize("empty", [[0.0, 1, 2, 1], [1.0, 0, 1, 1]])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])  # boxes, classes, scores, and scores first
def test_a_frame_without_objects_does_not_take_classes_for_scores(order: tuple[int, ...], empty: list[float]) -> None:
    spec = _spec("tensorflow_nms", detection=DetectionSpec(background_class=False))
    boxes, none = np.tile(np.float32([0, 0, 1, 1]), (1, 4, 1)), np.zeros((1, 4), np.float32)
    shapes = (1, 4, 4), (1, 4), (1, 4)
    stage = make_stage(spec, 3, [shapes[place] for place in order])
    if max(empty) < 2:  # from the numbers alone it is not known; an earlier frame has shown it
        parts = boxes, np.float32([[1, 0, 1, 2]]), np.float32([[0.9, 0.4, 0, 0]])
        assert stage(_inferred(spec, *(parts[place] for place in order))).class_id.tolist() == [1, 0]
    parts = boxes, np.float32([empty]), none
    assert len(stage(_inferred(spec, *(parts[place] for place in order)))) == 0


def _ssd_box(values: list[float], order: str) -> list[float]:
    return values if order == "xyxy" else [values[1], values[0], values[3], values[2]]


@pytest.mark.parametrize(
    ("order", "unit", "background", "swapped"),
    [
        ("xyxy", "fraction", True, False),
        ("yxyx", "fraction", False, True),
        ("xyxy", "pixel", False, False),
        ("yxyx", "pixel", True, True),
    ],
)
def test_ssd_that_decodes_its_boxes(order: Any, unit: Any, background: bool, swapped: bool) -> None:
    first = _random().uniform(0, 0.8, (50, 2))
    boxes = np.concatenate([first, first + _random().uniform(0.1, 0.5, (50, 2))], axis=1).astype(np.float32)
    boxes *= 1 if unit == "fraction" else 60
    scores = _uniform(50, 5)
    scores[:, 0] = 0.9 if background else scores[:, 0]  # likelier than all others, and never reported
    expected: list[Found] = []
    for box, row in zip(boxes.tolist(), scores.tolist(), strict=True):
        score, class_id = _best_of(row[background:])
        if score >= 0.3:
            size = SIZE * 2 if unit == "fraction" else (1, 1, 1, 1)
            expected.append((score, class_id, [v * of for v, of in zip(_ssd_box(box, order), size, strict=True)]))
    spec = _spec("ssd", detection=DetectionSpec(box_order=order, box_unit=unit, background_class=background))
    outputs = (scores[None], boxes[None]) if swapped else (boxes[None], scores[None])
    _check(_detect(spec, 5 - background, *outputs), expected)


@pytest.mark.parametrize(("kind", "order"), [("probabilities", "xyxy"), ("logits", "yxyx")])
@pytest.mark.parametrize("background", [True, False])
def test_ssd_with_priors(background: bool, kind: Any, order: Any) -> None:
    size = (90, 60)  # stride 100 leaves one cell, stride 16 rounds up to 6 x 4
    levels = zip((16, 100), ANCHORS, strict=True)
    priors = [(cell, anchor) for s, anchors in levels for cell in _cells(size, (s,)) for anchor in anchors]
    offsets = _random().normal(0, 2, (1, len(priors), 4)).astype(np.float32)
    scores = _random().normal(0, 2, (1, len(priors), 3)).astype(np.float32)
    probabilities = 1 / (1 + np.exp(-scores[0]))
    if kind == "probabilities":
        scores = _uniform(1, len(priors), 3)
        probabilities = scores[0]
    elif background:
        probabilities = np.exp(scores[0]) / np.exp(scores[0]).sum(axis=1, keepdims=True)
    expected: list[Found] = []
    for ((x, y, stride), (aw, ah)), row, values in zip(
        priors, offsets[0].tolist(), probabilities.tolist(), strict=True
    ):
        score, class_id = _best_of(values[background:])
        if score >= 0.3:
            dx, dy, dw, dh = _ssd_box(row, order)
            cx, cy = (x + 0.5) * stride + dx * 0.2 * aw, (y + 0.5) * stride + dy * 0.2 * ah
            expected.append((score, class_id, _box(cx, cy, aw * math.exp(dw * 0.3), ah * math.exp(dh * 0.3))))
    written: Any = {"anchors": ANCHORS, "strides": (16, 100), "variances": (0.2, 0.3), "scores": kind}
    detection = DetectionSpec(**written, background_class=background, box_order=order)
    spec = _spec("ssd", detection=detection, input=InputSpec(size_wh=size))
    _check(_detect(spec, 3 - background, offsets, scores), expected, size)


def test_end_to_end_keeps_overlapping_boxes_and_leaves_out_class_ids_without_a_label() -> None:
    corners = _random().uniform(0, 48, (300, 4)).astype(np.float32)
    corners[:, 2:] += corners[:, :2]
    corners[1] = corners[0]  # the same box twice, of which suppression would leave one
    confidences = np.sort(_random().uniform(0, 1, 300).astype(np.float32))[::-1]
    class_ids = np.arange(300, dtype=np.float32) % 5 - 1  # -1 to 3, and there are labels 0 to 2
    class_ids[1] = class_ids[0] = 1
    rows = zip(confidences.tolist(), class_ids.tolist(), corners.tolist(), strict=True)
    expected = [(score, int(class_id), box) for score, class_id, box in rows if score >= 0.3 and 0 <= class_id < 3]
    spec = _spec("end_to_end", thresholds=Thresholds(confidence=0.3, iou=0.45))
    _check(_detect(spec, 3, np.column_stack((corners, confidences, class_ids))[None]), expected)


def _zeros_of_levels(anchors: int, values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.zeros((1, anchors * n, values), np.float32) for n in (96, 24, 6))


SILENT = {
    "yolov4": (np.full((1, 14, 4, 6), -50, np.float32), np.full((1, 7, 2, 3), -50, np.float32)),
    "yolov5": (np.zeros((1, 378, 7), np.float32),),
    "yolov8": (np.zeros((1, 6, 126), np.float32),),
    "yolox": (np.zeros((1, 126, 7), np.float32),),
    "nanodet": (np.zeros((1, 128, 34), np.float32),),
    "centerface": tuple(np.zeros((1, n, 16, 24), np.float32) for n in (1, 2, 2)),
    "ssd": (np.zeros((1, 9, 4), np.float32), np.zeros((1, 9, 3), np.float32)),
    "end_to_end": (np.zeros((1, 300, 6), np.float32),),
    "yunet": (*_zeros_of_levels(1, 1), *_zeros_of_levels(1, 1), *_zeros_of_levels(1, 4)),
    "scrfd": (*_zeros_of_levels(2, 1), *_zeros_of_levels(2, 4)),
    "detr": (np.zeros((1, 300, 6), np.float32),),
    "detr_end_to_end": (np.zeros((1, 300, 6), np.float32),),
    "detr_softmax": (np.zeros((1, 100, 4), np.float32), np.float32([[[0, 0, 9]] * 100])),
    "centernet": tuple(np.zeros((1, 2, 16, 24), np.float32) for _ in range(3)),
    "fastestdet": (np.zeros((1, 7, 4, 6), np.float32),),
    "movenet": (np.zeros((1, 1, 17, 3), np.float32),),
    "tensorflow_nms": (np.zeros((1, 126, 4), np.float32), *np.zeros((2, 1, 126), np.float32)),
    "torchvision_nms": (np.zeros((126, 4), np.float32), *np.zeros((2, 126), np.float32)),
    "ultraface": (np.zeros((1, 354, 4), np.float32), np.zeros((1, 354, 2), np.float32)),
    "yolov8_obb": (np.zeros((1, 7, 126), np.float32),),
    "end_to_end_obb": (np.zeros((1, 300, 7), np.float32),),
}


_OF_FEW_PLACES = ("centernet", "detr_softmax", "fastestdet", "movenet")


def _labels_of(decoder: str) -> int:
    return 1 if decoder in ("centerface", "yunet", "scrfd", "movenet", "ultraface") else 2


@pytest.mark.parametrize("decoder", [*SILENT, "no place at all"])
def test_nothing_found_is_an_empty_result(decoder: str) -> None:
    outputs: Any = SILENT.get(decoder, (np.zeros((1, 0, 4), np.float32), np.zeros((1, 0, 3), np.float32)))
    detection = DetectionSpec(anchors=ANCHORS if decoder == "yolov4" else ())
    got = _detect(_spec(decoder if decoder in SILENT else "ssd", detection=detection), _labels_of(decoder), *outputs)
    assert (got.xyxy.shape, len(got.confidence), len(got.class_id)) == ((0, 4), 0, 0)


@pytest.mark.parametrize("decoder", ["yolox", "nanodet", "centerface", "yunet", "ssd", "end_to_end", "detr"])
def test_boxes_of_no_size_or_of_any_stop_nothing(decoder: str) -> None:
    """Scores that count, of boxes that are no numbers: what is found has finite numbers."""
    for value in (np.nan, np.inf, 1e30):
        outputs = [np.full_like(output, value) for output in SILENT[decoder]]
        scores = {"yolox": outputs[0][..., 4:], "nanodet": outputs[0][..., :2], "centerface": outputs[0]}
        scores["end_to_end"] = scores["detr"] = outputs[0][..., 4:]  # the class id is 0.9, too, which is read as 1
        for output in outputs[:6] if decoder == "yunet" else [scores.get(decoder, outputs[-1])]:
            output[...] = 0.9
        assert np.isfinite(_detect(_spec(decoder), _labels_of(decoder), *outputs).xyxy).all()


def _places(output: np.ndarray, decoder: str) -> np.ndarray:
    """View one output as places x values."""
    if decoder in ("tensorflow_nms", "torchvision_nms"):
        return output.reshape(126, -1)
    values = output.reshape(output.shape[1:])
    return (
        values.reshape(values.shape[0], -1).T if decoder in ("yolov4", "yolov8", "yolov8_obb", "centerface") else values
    )


def _one_object(decoder: str) -> tuple[ModelSpec, list[np.ndarray], tuple[int, slice], tuple[int, int]]:
    """A spec, outputs with an object at place 5, (output, columns) of scores and (output, first column) of boxes."""
    spec = _spec(decoder, detection=DetectionSpec(anchors=(((10.0, 14.0),),) if decoder == "yolov4" else ()))
    on_boxes = (0, 0)
    if decoder in ("yolov5", "yolov8", "yolov8_obb", "yolox"):
        end = 6 if decoder == "yolov8_obb" else None
        outputs, scores = [np.full_like(SILENT[decoder][0], 0.01)], (0, slice(4, end))
        _places(outputs[0], decoder)[:, :4] = 8.0 if decoder != "yolox" else 0.0
    elif decoder == "yolov4":
        outputs, scores = [np.full((1, 7, 8, 12), -9.0, np.float32)], (0, slice(4, None))
        _places(outputs[0], decoder)[5] = 3.0
    elif decoder == "nanodet":
        outputs, scores, on_boxes = [np.full((1, 126, 2 + 32), 0.01, np.float32)], (0, slice(0, 2)), (0, 2)
    elif decoder in ("ssd", "ultraface"):
        count, values = (126, 3) if decoder == "ssd" else (354, 2)
        boxes = np.tile(np.float32([0.1, 0.1, 0.4, 0.4]), (1, count, 1))
        outputs, scores = [boxes, np.full((1, count, values), 0.01, np.float32)], (1, slice(1, None))
    elif decoder in ("tensorflow_nms", "torchvision_nms"):
        outputs, scores = [np.zeros_like(output) for output in SILENT[decoder]], (2, slice(None))
        outputs[0][..., 2:], outputs[1][...] = 0.5, 1
        outputs[0] *= 1 if decoder == "tensorflow_nms" else 60
    elif decoder == "detr":
        outputs, scores = [np.tile(np.float32([0.3, 0.3, 0.2, 0.2, -1, 0.01]), (1, 300, 1))], (0, slice(5, None))
    elif decoder in ("yunet", "scrfd"):
        outputs, scores = [output.copy() for output in SILENT[decoder]], (0, slice(None))
        for output in outputs[3:]:  # sides of one stride; of YuNet the second scores, and exp(1) strides
            output[...] = 1.0
        on_boxes = (len(outputs) - 3, 0)
    elif "end_to_end" in decoder:
        row = [0.3, 0.3, 0.2, 0.2, 0.01, 0] if decoder == "detr_end_to_end" else [8, 8, 24, 24, 0.01, 0]
        row += [0] * (decoder == "end_to_end_obb")
        outputs, scores = [np.tile(np.float32(row), (1, 126, 1))], (0, slice(4, 5))
    else:
        scale, offset = np.ones((2, 1, 2, 16, 24), np.float32)
        outputs, scores, on_boxes = [np.full((1, 1, 16, 24), 0.01, np.float32), scale, offset], (0, slice(None)), (1, 0)
    _places(outputs[scores[0]], decoder)[5, scores[1]] = 0.9
    return spec, outputs, scores, on_boxes


@pytest.mark.parametrize("decoder", ["yolov8", "nanodet", "centerface", "ssd", "detr"])
def test_a_confidence_that_equals_the_threshold_counts(decoder: str) -> None:
    for confidence in (0.0, 0.25, 0.7, 1.0):
        spec, outputs, (index, columns), _ = _one_object(decoder)
        spec = msgspec.structs.replace(spec, thresholds=Thresholds(confidence, 1.0))
        labels = _labels_of(decoder)
        scores = _places(outputs[index], decoder)[:, columns]
        scores[...] = -1
        scores[5, -1] = confidence
        got = _detect(spec, labels, *outputs)
        assert got.confidence.tolist() == pytest.approx([confidence])
        assert got.class_id.tolist() == [labels - 1]
        scores[5, -1] = confidence - 0.001
        assert len(_detect(spec, labels, *outputs).confidence) == 0


def test_boxes_are_mapped_to_the_frame_and_those_in_the_padding_are_none() -> None:
    output = np.zeros((1, 6, 126), np.float32)
    output[0, :, :2] = np.transpose([[32, 4, 10, 6, 0.9, 0], [32, 32, 10, 10, 0.8, 0]])
    # 16 pixels of padding above and below a frame of 192 x 64 that was halved.
    frame = Frame(np.zeros((64, 192, 3), np.uint8), 0, 0.0, 0, "camera")
    inferred = Inferred((output,), 0, Prepared(np.empty(0, np.float32), Geometry(0.5, 0.5, 0.0, 16.0), frame))
    result = make_stage(SPEC, 2, [output.shape])(inferred)
    assert (result.xyxy.tolist(), result.confidence.tolist()) == ([[54, 22, 74, 42]], pytest.approx([0.8]))


@pytest.mark.parametrize(
    ("decoder", "row", "options", "expected"),
    [
        # Classes that do not exclude each other: all that reach the threshold.
        ("sigmoid", [0.1, 0.4, 0.9, 0.29, 0.3], {}, {2: 0.9, 1: 0.4, 4: 0.3}),
        ("sigmoid", [0.2], {}, {}),
        ("sigmoid_logits", [-900.0, 0.0, 2.0], {}, {2: _sigmoid(2), 1: 0.5}),
        ("softmax", [0.1, 0.2, 0.7], {"top_k": 2}, {2: 0.7, 1: 0.2}),
        ("softmax", [0.0, 0.25, 0.25, 0.25, 0.25], {"top_k": 3}, {1: 0.25, 2: 0.25, 3: 0.25}),  # of equals the first
        ("softmax", [0.1, 0.2, 0.7], {"background_class": True, "top_k": 3}, {1: 0.7, 0: 0.2, -1: 0.1}),
        ("logits", [1000.0, 999.0, -1000.0], {"top_k": 5}, {0: _sigmoid(1), 1: _sigmoid(-1), 2: 0.0}),
    ],
)
def test_the_likeliest_classes_are_sorted(decoder: str, row: list[float], options: Any, expected: Any) -> None:
    got = _classify(decoder, row, ClassificationSpec(**options))
    assert got.class_id.tolist() == [*expected]
    assert got.confidence == pytest.approx([*expected.values()])


def _classify(decoder: str, row: list[float], classification: ClassificationSpec) -> Classification:
    spec = _spec(decoder, task="classification", classification=classification)
    result = make_stage(spec, len(row), [(1, len(row))])(_inferred(spec, np.array([row], np.float32)))
    assert isinstance(result, Classification)
    return result


# Outputs that are no numbers: every task says so, and no task says so of minus infinity, by which models say "never".


@pytest.mark.parametrize("decoder", ["yolov5", "yolov8", "yolox"])
def test_a_detector_that_finds_nothing_says_whether_its_outputs_are_numbers(decoder: str) -> None:
    [silent] = SILENT[decoder]
    for value, is_finite in ((np.nan, False), (np.inf, False), (-np.inf, False), (-1e30, True)):
        assert _detect(_spec(decoder), 2, np.full_like(silent, value)).is_finite is is_finite
    other = np.zeros((1, 3), np.float32)  # an output that nothing reads
    assert _detect(_spec(decoder), 2, other, silent).is_finite
    other[0, 1] = np.nan
    assert not _detect(_spec(decoder), 2, other, silent).is_finite


@pytest.mark.parametrize("decoder", [name for name in SILENT if name not in _OF_FEW_PLACES])
def test_a_place_or_a_box_that_is_no_number_is_seen_beside_an_object(decoder: str) -> None:
    labels = _labels_of(decoder)
    for place in (0, 95):
        spec, outputs, (index, columns), _ = _one_object(decoder)
        whole = _detect(spec, labels, *outputs)
        assert (len(whole.confidence), whole.is_finite) == (1, True)
        _places(outputs[index], decoder)[place, columns] = np.nan
        found = _detect(spec, labels, *outputs)
        assert not found.is_finite
        assert found.confidence.tolist() == whole.confidence.tolist()
        assert found.xyxy.tolist() == whole.xyxy.tolist()
    # Sizes of the others are exponentials, which are cut before they overflow.
    for value in (np.nan, np.inf) if decoder in ("yolov5", "yolov8", "nanodet", "ssd") else (np.nan,):
        spec, outputs, _, (boxes, first) = _one_object(decoder)
        for output in outputs:
            if len(_places(output, decoder)) > 40:  # the finest level, where there are several
                _places(output, decoder)[40] = _places(output, decoder)[5]
        _places(outputs[boxes], decoder)[40, first] = value
        found = _detect(spec, labels, *outputs)
        assert (len(found.confidence), found.is_finite) == (1, False)


def test_a_nan_that_begins_later_is_seen_within_some_frames_and_then_in_every_one() -> None:
    spec = _spec("yolov8", input=InputSpec(size_wh=(640, 640)))
    output = np.zeros((1, 6, 8400), np.float32)
    output[0, :, 5] = 0.9
    task, inferred = make_stage(spec, 2, [output.shape]), _inferred(spec, output)
    assert [task(inferred).is_finite for _ in range(8)] == [True] * 8
    output[0, 5, 4000] = np.nan
    seen = [task(inferred).is_finite for _ in range(20)]  # of 50400 values each 12th frame's are looked at
    assert seen == [True] * 4 + [False] * 16
    output[0, 5, 4000] = 0.0
    assert task(inferred).is_finite


@pytest.mark.parametrize("decoder", ["softmax", "logits", "sigmoid", "sigmoid_logits"])
def test_a_classifier_says_so_wherever_the_nan_is(decoder: str) -> None:
    assert _classify(decoder, [0.5, 0.3, 0.2], ClassificationSpec()).is_finite
    for place in range(3):
        row = [0.5, 0.3, 0.2]
        row[place] = math.nan
        with np.errstate(all="ignore"):
            assert not _classify(decoder, row, ClassificationSpec()).is_finite


# Suppression: the greedy definition, and boxes that must not disturb others.


def _iou(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    area = [(r[2] - r[0]) * (r[3] - r[1]) for r in (a, b)]
    return width * height / (sum(area) - width * height)


@pytest.mark.parametrize(
    ("count", "span", "iou"), [(40, 60, 0.45), (200, 60, 0.45), (300, 60, 0.5), (300, 400, 0.0), (450, 3, 0.5)]
)
@pytest.mark.parametrize("is_small", [False, True])
def test_suppression_equals_the_greedy_definition(
    count: int, span: int, iou: float, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few boxes, many, and many in one place take different ways; whole numbers give equal confidences and limits."""
    if is_small:  # an OpenCV without its engine for networks
        monkeypatch.setattr(detection, "_opencv_suppression", lambda: None)
    random = np.random.default_rng(5)
    corners = random.integers(-20, span, (count, 2))
    boxes = np.concatenate([corners, corners + random.integers(5, 30, (count, 2))], axis=1).astype(np.float32)
    scores = (random.integers(30, 99, count) / 100).astype(np.float32)
    classes = random.integers(0, 3, count) * (span > 3)
    sizes = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    got = suppress(Candidates(sizes, scores, classes), Thresholds(confidence=0.4, iou=iou))

    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        if scores[index] < np.float32(0.4):
            break
        rivals = [k for k in kept if classes[k] == classes[index]]
        if all(_iou(boxes[k].tolist(), boxes[index].tolist()) <= iou for k in rivals):
            kept.append(index)
    assert got.tolist() == kept


def test_noise_costs_no_more_than_the_strongest_thousand() -> None:
    """A head that sees something in every cell yields its strongest thousand, and only those are compared."""
    random, places = np.random.default_rng(3), np.stack(np.divmod(np.arange(5000), 100), axis=1) * 10
    boxes = np.concatenate([places, np.full((5000, 2), 5)], axis=1).astype(np.float32)  # none overlaps another
    scores, classes = random.integers(50, 90, 5000).astype(np.float32) / 100, random.integers(0, 3, 5000)
    order = np.argsort(-scores, kind="stable")
    assert suppress(Candidates(boxes, scores, classes), Thresholds()).tolist() == order[:300].tolist()
    output = np.zeros((1, 4 + 3, 5000), np.float32)
    output[0, :2], output[0, 2:4] = (boxes[:, :2] + boxes[:, 2:] / 2).T, boxes[:, 2:].T
    output[0, 4 + classes, np.arange(5000)] = scores
    read, chosen = read_yolov8(0.25, [output]), np.sort(order[:1000])
    assert np.array_equal(read.boxes_xywh, boxes[chosen])
    assert np.array_equal(read.class_ids, classes[chosen])


def test_of_a_noisy_heatmap_the_strongest_peaks_are_found() -> None:
    heat = np.random.default_rng(4).uniform(0.3, 1, (1, 8, 64, 64)).astype(np.float32)
    read = read_centernet(0.25, False, [heat, *np.ones((2, 1, 2, 64, 64), np.float32)])
    around = np.stack([cv2.dilate(of_class, np.ones((3, 3))) for of_class in heat[0]])
    peaks = np.sort(heat[0][heat[0] == around])[::-1]
    assert np.sort(read.confidences)[::-1][:300].tolist() == peaks[:300].tolist()
    assert len(read.confidences) < 10_000 < np.count_nonzero(heat > 0.25)


_HUGE = [3e38, 3e38, 20, 20]
_NO_BOXES = [
    [value if n == column else 100.0 for n in range(4)] for value in (np.inf, -np.inf, np.nan) for column in range(4)
]


@pytest.mark.parametrize(
    ("boxes", "scores", "classes", "kept"),
    [
        ([[-200, -200, 210, 210], [300, 300, 200, 200]], [0.9, 0.8], [1, 0], [0, 1]),  # beyond the border
        ([_HUGE, [10, 10, 20, 20], _HUGE], [0.9, 0.8, 0.7], [0, 0, 0], [1]),  # their sum is beyond all numbers
        *(([[10, 10, 20, 20], box, [40, 10, 20, 20]], [0.5, 0.9, 0.6], [0, 0, 0], [2, 0]) for box in _NO_BOXES),
    ],
)
def test_strange_boxes_suppress_no_other(boxes: Any, scores: Any, classes: Any, kept: list[int]) -> None:
    given = np.array(boxes, np.float32)
    found = suppress(Candidates(given, np.array(scores, np.float32), np.array(classes)), Thresholds())
    assert found.tolist() == kept
    np.testing.assert_array_equal(given, np.array(boxes, np.float32))
