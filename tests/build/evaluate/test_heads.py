"""Each decoder's quality by `edge-sdk evaluate` equals that of an independent count for outputs of known truth.

The models look at one pixel and return what an encoder, written here from the family's definition, made of the objects
of that picture: boxes near the truth, of a wrong class, of nothing and, where overlaps are to be suppressed, twice.
Boxes and masks are counted by pycocotools, anomalies by scikit-learn, texts and vectors by plain loops.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import onnx
import pytest
from pycocotools import mask

from edge_sdk.core.errors import DataError
from edge_sdk.core.frame import Detections
from edge_sdk.tasks.decoders import DECODERS
from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.evaluate.evaluation import evaluate
from edge_sdk_tools.evaluate.likeness import LabelledBoxes
from edge_sdk_tools.evaluate.model import open_subject
from tests.build.evaluate.test_metrics import coco_precision, pycocotools_of
from tests.support.absent import Lazy
from tests.support.models import parsed
from tests.support.projects import write_project

INPUT, FRAME, PICTURES = (96, 64), (192, 100), 3
SCALE, ABOVE = 0.5, 7  # letterboxed: half the frame's size, seven pixels of padding above
STRIDES = (8, 16, 32)
FAR = -30.0  # a logit of nothing


class Seen(NamedTuple):
    """One object that a model reports; the box in pixels of the input."""

    x1: float
    y1: float
    x2: float
    y2: float
    class_id: int
    confidence: float

    @property
    def centre(self) -> tuple[float, float]:
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2

    @property
    def size(self) -> tuple[float, float]:
        return self.x2 - self.x1, self.y2 - self.y1

    @property
    def middle(self) -> list[float]:
        return [*self.centre, *self.size]


def _objects(number: int, classes: int, twice: bool) -> tuple[list[Seen], list[Seen]]:
    """Return the true objects of a picture, and those that the model reports."""
    random = np.random.default_rng(number)
    truths, seen = [], []
    for place in range(6):
        row, column = divmod(place, 3)
        x, y = np.array([column * 32 + 16, row * 25 + 19.5]) + random.uniform(-2, 2, 2)
        width, height = random.uniform(18, 26), random.uniform(14, 20)
        truth = Seen(x - width / 2, y - height / 2, x + width / 2, y + height / 2, int(random.integers(classes)), 1)
        x1, y1, x2, y2 = (np.array(truth[:4]) + random.uniform(-2, 2, 4)).tolist()
        class_id = truth.class_id if random.random() < 0.8 else int(random.integers(classes))
        if place != number:  # the model finds something there, and there is nothing
            truths.append(truth)
        if place != 5 - number:  # an object that the model misses
            seen.append(Seen(x1, y1, x2, y2, class_id, 0.3 + 0.1 * ((place * 5 + number) % 6) + 0.01 * place))
    if twice:
        one = seen[0]
        seen.append(one._replace(x1=one.x1 + 4.5, x2=one.x2 + 4.5, confidence=one.confidence - 0.02))
    return truths, seen


# The encoders: objects of a picture -> outputs without their first axis of 1.

Encoder = Callable[[Sequence[Seen], int], list[np.ndarray]]


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _factors(confidence: float, power: int = 1) -> tuple[float, float]:
    """Split a power of a confidence into two factors, neither of which ranks the objects as their product does."""
    number, whole = round(confidence * 100), confidence**power  # the last digit is the object's number
    return (whole**0.1, whole**0.9) if number % 2 else (whole**0.9, whole**0.1)


def _cells(seen: Sequence[Seen], strides: Sequence[int] = STRIDES) -> Iterator[tuple[Seen, int, int, int, int]]:
    """Yield each object with the index, stride, column and row of its cell; objects take the levels in turn."""
    for index, one in enumerate(seen):
        stride = strides[index % len(strides)]
        sizes = [-(-INPUT[0] // s) * -(-INPUT[1] // s) for s in strides[: index % len(strides)]]
        column, row = (int(middle // stride) for middle in one.centre)
        yield one, sum(sizes) + row * -(-INPUT[0] // stride) + column, stride, column, row


def _yolov8(extras: Callable[[Seen, int], list[float]], count: int, further: Encoder | None = None) -> Encoder:
    def encode(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
        output = np.zeros((4 + classes + count, 126))
        for number, (one, place, *_) in enumerate(_cells(seen)):
            output[:4, place], output[4 + one.class_id, place] = one.middle, one.confidence
            output[4 + classes :, place] = extras(one, number)
        return [output, *(further(seen, classes) if further else [])]

    return encode


def _rows(
    extras: Callable[[Seen, int], list[float]],
    count: int,
    further: Encoder | None = None,
    box: Callable[[Seen], Sequence[float]] = lambda one: one[:4],
) -> Encoder:
    def encode(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
        output = np.zeros((20, 6 + count))
        for number, one in enumerate(seen):
            output[number] = *box(one), one.confidence, one.class_id, *extras(one, number)
        return [output, *(further(seen, classes) if further else [])]

    return encode


def _points(one: Seen, _number: int = 0, moved_px: float = 0) -> list[float]:
    """17 keypoints along the object's diagonal, each surely seen, and moved to the right."""
    (width, height), parts = one.size, np.linspace(0, 1, 17)
    return [v for part in parts for v in (one.x1 + part * width + moved_px, one.y1 + part * height, 1)]


def _prototypes(_seen: Sequence[Seen], _classes: int) -> list[np.ndarray]:
    return [np.ones((8, 16, 24))]


def _turned(_one: Seen, _number: int, angle: float = 0.0) -> list[float]:
    return [angle]


def _one_mask(_one: Seen, number: int) -> list[float]:
    return np.eye(8)[number].tolist()


def _yolov5(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
    output = np.zeros((378, 5 + classes))
    for one, place, *_ in _cells(seen):
        output[3 * place, :4] = one.middle
        output[3 * place, [4, 5 + one.class_id]] = _factors(one.confidence)
    return [output]


def _yolox(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
    output = np.zeros((126, 5 + classes))
    for one, place, stride, column, row in _cells(seen):
        (x, y), (w, h) = one.centre, one.size
        output[place, :4] = x / stride - column, y / stride - row, math.log(w / stride), math.log(h / stride)
        output[place, [4, 5 + one.class_id]] = _factors(one.confidence)
    return [output]


def _yolov4(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
    """Two anchors in each of three heads, and centres that reach beyond their cell."""
    heads = [np.full((2 * (5 + classes), INPUT[1] // s, INPUT[0] // s), FAR) for s in STRIDES]
    for number, (one, _, stride, column, row) in enumerate(_cells(seen)):
        (x, y), (w, h) = (np.array(one.centre) / stride - (column, row) + 0.1) / 1.2, one.size
        cell = heads[STRIDES.index(stride)][number % 2 * (5 + classes) :, row, column]
        cell[:4] = _logit(x), _logit(y), math.log(w / (16, 30)[number % 2]), math.log(h / (16, 20)[number % 2])
        cell[[4, 5 + one.class_id]] = list(map(_logit, _factors(one.confidence)))
    return heads


def _fastestdet(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
    output = np.zeros((5 + classes, 4, 6))
    for one, _, _, column, row in _cells(seen, [16]):
        (x, y), (w, h) = one.centre, one.size
        offsets = math.atanh(x / 16 - column), math.atanh(y / 16 - row)
        first, second = _factors(one.confidence)
        output[:5, row, column] = first ** (1 / 0.6), *offsets, _logit(w / INPUT[0]), _logit(h / INPUT[1])
        output[5 + one.class_id, row, column] = second ** (1 / 0.4)
    return [output]


def _nanodet(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
    """Each side between two of the eight bins, by the logarithms of their shares; cells have their centres."""
    output = np.zeros((126, classes + 32))
    for one, place, stride, column, row in _cells(seen):
        x, y = (column + 0.5) * stride, (row + 0.5) * stride
        output[place, one.class_id] = one.confidence
        for side, distance in enumerate((x - one.x1, y - one.y1, one.x2 - x, one.y2 - y)):
            low, part = divmod(distance / stride, 1)
            bins = np.full(8, FAR)
            bins[int(low)], bins[int(low) + 1] = math.log(1 - part), math.log(part)
            output[place, classes + side * 8 :][:8] = bins
    return [output]


def _maps(seen: Sequence[Seen], classes: int, faces: bool) -> list[np.ndarray]:
    """CenterNet's maps; CenterFace's have y before x, logarithms of sizes, and a centre of half a cell."""
    heat, size, offset = np.zeros((classes, 16, 24)), np.zeros((2, 16, 24)), np.zeros((2, 16, 24))
    for one, _, _, column, row in _cells(seen, [4]):
        (x, y), (w, h) = np.array(one.centre) / 4, np.array(one.size) / 4
        heat[one.class_id, row, column] = one.confidence
        size[:, row, column] = [math.log(h), math.log(w)] if faces else [w, h]
        offset[:, row, column] = [y - row - 0.5, x - column - 0.5] if faces else [x - column, y - row]
    return [heat, size, offset]


def _levels(rows: np.ndarray, anchors: int = 1) -> list[np.ndarray]:
    return np.split(rows, np.cumsum([anchors * 96, anchors * 24]))


def _yunet(seen: Sequence[Seen], _classes: int) -> list[np.ndarray]:
    first, second, boxes = np.zeros((126, 1)), np.zeros((126, 1)), np.zeros((126, 4))
    for one, place, stride, column, row in _cells(seen):
        (x, y), (w, h) = one.centre, one.size
        first[place], second[place] = _factors(one.confidence, 2)
        boxes[place] = x / stride - column, y / stride - row, math.log(w / stride), math.log(h / stride)
    return [*_levels(first), *_levels(second), *_levels(boxes)]


def _scrfd(seen: Sequence[Seen], _classes: int) -> list[np.ndarray]:
    scores, sides = np.zeros((252, 1)), np.zeros((252, 4))
    for one, place, stride, column, row in _cells(seen):
        x, y = column * stride, row * stride
        scores[2 * place + 1] = one.confidence
        sides[2 * place + 1] = np.array([x - one.x1, y - one.y1, one.x2 - x, one.y2 - y]) / stride
    return [*_levels(scores, 2), *_levels(sides, 2)]


def _corners(seen: Sequence[Seen]) -> np.ndarray:
    return np.array([one[:4] for one in seen]) / (INPUT * 2)


def _ultraface(seen: Sequence[Seen], _classes: int) -> list[np.ndarray]:
    boxes, scores = np.zeros((354, 4)), np.tile([1.0, 0.0], (354, 1))
    for place, (one, corners) in enumerate(zip(seen, _corners(seen), strict=True)):
        boxes[place * 50], scores[place * 50] = corners, [1 - one.confidence, one.confidence]
    return [boxes, scores]


def _prior(one: Seen, centre: tuple[float, ...], sides: tuple[float, ...], variances: tuple[float, ...]) -> list[float]:
    offset = [(m - c) / side / variances[0] for m, c, side in zip(one.centre, centre, sides, strict=True)]
    return [*offset, *(math.log(length / side) / variances[1] for length, side in zip(one.size, sides, strict=True))]


def _ssd(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
    """One prior of 16x16 pixels in each cell."""
    boxes, scores = np.zeros((126, 4)), np.zeros((126, 1 + classes))
    for one, place, stride, column, row in _cells(seen):
        boxes[place] = _prior(one, ((column + 0.5) * stride, (row + 0.5) * stride), (16, 16), (0.1, 0.2))
        scores[place, 1 + one.class_id] = one.confidence
    return [boxes, scores]


def _efficientdet(seen: Sequence[Seen], classes: int) -> list[np.ndarray]:
    """Nine priors in each cell of five levels: three sizes from four strides on, each with three proportions."""
    count = 9 * (96 + 24 + 6 + 2 + 1)
    boxes, scores = np.zeros((count, 4)), np.zeros((count, classes))
    for one, place, stride, column, row in _cells(seen, STRIDES):
        which = place % 9
        sides = tuple(4 * stride * 2 ** (which // 3 / 3) * part for part in ((1, 1), (1.4, 0.7), (0.7, 1.4))[which % 3])
        x, y, w, h = _prior(one, ((column + 0.5) * stride, (row + 0.5) * stride), sides, (1, 1))
        boxes[9 * place + which], scores[9 * place + which, one.class_id] = [y, x, h, w], one.confidence
    return [boxes, scores]


def _queries(seen: Sequence[Seen], classes: int, no_object: bool) -> list[np.ndarray]:
    boxes, logits = np.zeros((20, 4)), np.full((20, classes + no_object), FAR)
    logits[:, classes:] = 0
    for place, one in enumerate(seen):
        boxes[place] = np.array(one.middle) / (INPUT * 2)
        logits[place, one.class_id] = _logit(one.confidence)
    return [boxes, logits]


def _suppressed(seen: Sequence[Seen], _classes: int, order: list[int], size: tuple[int, ...]) -> list[np.ndarray]:
    """Boxes, classes from 1 on, and scores."""
    boxes, found, scores = np.zeros((20, 4)), np.zeros(20), np.zeros(20)
    for place, one in enumerate(seen):
        boxes[place] = (np.array(one[:4]) / size)[order]
        found[place], scores[place] = one.class_id + 1, one.confidence
    return [boxes, found, scores]


def _inner(one: Seen) -> tuple[int, int, int, int]:
    """The cells of the inner part of a line of text: left, top, right and bottom, all of them inside."""
    return math.ceil(one.x1) + 4, math.ceil(one.y1) + 4, int(one.x2) - 4, int(one.y2) - 4


def _db(seen: Sequence[Seen], _classes: int) -> list[np.ndarray]:
    output = np.zeros((1, INPUT[1], INPUT[0]))
    for one in seen:
        left, top, right, bottom = _inner(one)
        output[0, top : bottom + 1, left : right + 1] = one.confidence
    return [output]


def _grown(one: Seen) -> Seen:
    """What PaddleOCR makes of the inner part: as far outside as its area over its perimeter, times 1.5."""
    left, top, right, bottom = _inner(one)
    by = 1.5 * (right - left) * (bottom - top) / (2 * (right - left + bottom - top))
    return one._replace(x1=left - by, y1=top - by, x2=right + by, y2=bottom + by)


def _movenet(seen: Sequence[Seen], _classes: int, moved_px: float = 0) -> list[np.ndarray]:
    output = np.zeros((6, 56))
    for place, one in enumerate(seen):
        points = np.array(_points(one, 0, moved_px)).reshape(17, 3) / [*INPUT, 1]
        output[place, :51] = points[:, [1, 0, 2]].ravel()
        output[place, 51:] = *_corners([one])[0][[1, 0, 3, 2]], one.confidence
    return [output]


HEADS: dict[str, tuple[Encoder, str]] = {
    "yolov4": (
        _yolov4,
        "scale_xy = [1.2, 1.2, 1.2]\nanchors = [[[16, 16], [30, 20]], [[16, 16], [30, 20]], [[16, 16], [30, 20]]]",
    ),
    "yolov5": (_yolov5, ""),
    "yolox": (_yolox, ""),
    "yolov8": (_yolov8(lambda *_: [], 0), ""),
    "yolov8_pose": (_yolov8(_points, 51), "keypoints = [17, 3]"),
    "yolov8_seg": (_yolov8(_one_mask, 8, _prototypes), ""),
    "yolov8_obb": (_yolov8(_turned, 1), ""),
    "fastestdet": (_fastestdet, ""),
    "nanodet": (_nanodet, ""),
    "centernet": (lambda seen, classes: _maps(seen, classes, faces=False), ""),
    "centerface": (lambda seen, classes: _maps(seen, classes, faces=True), ""),
    "yunet": (_yunet, ""),
    "scrfd": (_scrfd, ""),
    "ultraface": (_ultraface, ""),
    "ssd": (_ssd, "anchors = [[[16, 16]], [[16, 16]], [[16, 16]]]\nstrides = [8, 16, 32]"),
    "efficientdet": (_efficientdet, ""),
    "detr": (lambda seen, classes: _queries(seen, classes, no_object=False), ""),
    "detr_softmax": (lambda seen, classes: _queries(seen, classes, no_object=True), ""),
    "tensorflow_nms": (lambda seen, classes: _suppressed(seen, classes, [1, 0, 3, 2], INPUT * 2), ""),
    "torchvision_nms": (lambda seen, classes: _suppressed(seen, classes, [0, 1, 2, 3], (1,)), ""),
    "end_to_end": (_rows(lambda *_: [], 0), ""),
    "end_to_end_pose": (_rows(_points, 51), "keypoints = [17, 3]"),
    "end_to_end_seg": (_rows(_one_mask, 8, _prototypes), ""),
    "end_to_end_obb": (_rows(_turned, 1, box=lambda one: one.middle), ""),
    "detr_end_to_end": (_rows(lambda *_: [], 0, box=lambda one: np.array(one.middle) / (INPUT * 2)), ""),
    "movenet": (_movenet, ""),
    "db": (_db, ""),
}
MOVED_PX = 1.5
POSES = {
    "yolov8_pose": _yolov8(partial(_points, moved_px=MOVED_PX), 51),
    "end_to_end_pose": _rows(partial(_points, moved_px=MOVED_PX), 51),
    "movenet": partial(_movenet, moved_px=MOVED_PX),
}
OF_ONE_CLASS = ("centerface", "yunet", "scrfd", "ultraface", "movenet", "db")
ALONE = ("fastestdet", "centerface")  # one level of cells, in which two near objects share a cell


def _model(pictures: Sequence[list[np.ndarray]], *, has_batch: bool) -> onnx.ModelProto:
    """Return a model whose outputs are those of the picture whose number is the value of the middle pixel."""
    middle = (INPUT[1] // 2) * INPUT[0] + INPUT[0] // 2
    weights = {"all": np.array([-1]), "at": np.array([middle] if has_batch else middle)}
    weights |= {"first": np.array(0, np.float32), "last": np.array(len(pictures) - 1, np.float32)}
    text = "flat = Reshape(images, all) level = Gather(flat, at) near = Clip(level, first, last) "
    text += "number = Cast<to: int = 7>(near) "
    shapes: dict[str, Sequence[int | str]] = {}
    for place, outputs in enumerate(zip(*pictures, strict=True)):
        weights[f"t{place}"] = np.stack(outputs).astype(np.float32)
        text += f"y{place} = Gather<axis: int = 0>(t{place}, number) "
        shapes[f"y{place}"] = [*([1] if has_batch else []), *outputs[0].shape]
    return parsed(text, shapes, weights, shape=(1, 3, INPUT[1], INPUT[0]))


def _toml(task: str, decoder: str, more: str) -> str:
    return f"""
model = "model.onnx"
name = "heads"
task = "{task}"
decoder = "{decoder}"
labels = "labels.txt"
[input]
size_wh = [{INPUT[0]}, {INPUT[1]}]
{more}
"""


def _write(
    folder: Path, decoder: str, pictures: Sequence[Sequence[Seen]], classes: int, encode: Encoder | None = None
) -> Path:
    usual, section = HEADS[decoder]
    encode = encode or usual
    text = _toml("detection", decoder, f"[detection]\n{section}")
    model = _model([encode(seen, classes) for seen in pictures], has_batch=decoder != "torchvision_nms")
    return write_project(folder, text, model, labels="a\nb\nc\n"[: 2 * classes], pictures=0)


def _in_frame(seen: Sequence[Seen]) -> np.ndarray:
    boxes = [((x1, (y1 - ABOVE)), (x2, (y2 - ABOVE))) for x1, y1, x2, y2, *_ in seen]
    return np.clip(np.array(boxes).reshape(-1, 2, 2) / SCALE, 0, FRAME).reshape(-1, 4)


def _pictures(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        cv2.imwrite(str(folder / f"{number}.png"), np.full((FRAME[1], FRAME[0], 3), number, np.uint8))
    return folder


def _text_files(folder: Path, lines: Sequence[Sequence[str]]) -> Path:
    """Write pictures, each with a file of its labels."""
    _pictures(folder / "images", len(lines))
    (folder / "labels").mkdir()
    for number, objects in enumerate(lines):
        (folder / "labels" / f"{number}.txt").write_text("\n".join(objects))
    return folder


def _coco_file(folder: Path, annotations: Sequence[dict[str, Any]]) -> Path:
    """Write pictures with annotations as COCO has them; classes are a, b and c."""
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(PICTURES)]
    categories = [{"id": place + 1, "name": name} for place, name in enumerate("abc")]
    file = {"images": images, "annotations": list(annotations), "categories": categories}
    (_pictures(folder, PICTURES) / "labels.json").write_text(json.dumps(file))
    return folder


def _line(one: Seen, *values: np.ndarray) -> str:
    return " ".join([str(one.class_id), *(f"{value:.6f}" for value in np.concatenate([v.ravel() for v in values]))])


def _box(one: Seen) -> np.ndarray:
    """Centre and size, parts of the frame's."""
    first, last = _in_frame([one]).reshape(2, 2) / FRAME
    return np.stack([(first + last) / 2, last - first])


@pytest.mark.parametrize("decoder", HEADS)
def test_quality_is_that_of_pycocotools(tmp_path: Path, decoder: str) -> None:
    classes = 1 if decoder in OF_ONE_CLASS else 3
    twice = DECODERS["detection"][decoder].suppresses and decoder not in ALONE
    pictures = [_objects(number, classes, twice) for number in range(PICTURES)]
    toml = _write(tmp_path / "project", decoder, [seen for _, seen in pictures], classes)
    truths = [truth for truth, _ in pictures]
    lines = [[_line(one, _box(one)) for one in truth] for truth in truths]
    found = evaluate(toml, _text_files(tmp_path / "data", lines))
    kept = [seen[:-1] if twice else seen for _, seen in pictures]
    kept = [[_grown(one) for one in seen] for seen in kept] if decoder == "db" else kept
    wanted = _box_precision(list(zip(truths, kept, strict=True)))
    assert 0.1 < wanted[0] < 0.95
    assert [figure.value.value for figure in found.quality[:2]] == pytest.approx(wanted, abs=0.005)


def test_f1_counts_what_overlaps_by_half_or_more(tmp_path: Path) -> None:
    truth = [Seen(10, 12, 30, 32, 0, 1), Seen(50, 12, 70, 32, 0, 1)]
    moved_px = (6.3, 7.0)  # IoU .521 and .481
    seen = [
        one._replace(x1=one.x1 + by, x2=one.x2 + by, confidence=0.9) for one, by in zip(truth, moved_px, strict=True)
    ]
    data = _text_files(tmp_path / "data", [[_line(one, _box(one)) for one in truth]])
    found = evaluate(_write(tmp_path / "project", "end_to_end", [seen], 1), data)
    assert [figure.value.value for figure in found.quality if figure.name == "F1"] == [0.5]


def _box_precision(pictures: Sequence[tuple[Sequence[Seen], Sequence[Seen]]]) -> tuple[float, float]:
    """Return pycocotools' mAP50-95 and mAP50 of the boxes of each picture: the true ones, and those seen."""
    labelled, expected = [], []
    for truth, seen in pictures:
        ids = [np.array([one.class_id for one in of]) for of in (truth, seen)]
        labelled.append(LabelledBoxes(_in_frame(truth), ids[0], np.zeros(len(truth), np.bool_)))
        expected.append(Boxes(_in_frame(seen), np.array([one.confidence for one in seen]), ids[1]))
    return pycocotools_of(labelled, expected)


@pytest.mark.parametrize("decoder", ["yolov8_seg", "end_to_end_seg"])
def test_masks_are_counted_as_by_pycocotools(tmp_path: Path, decoder: str) -> None:
    """Ellipses in the true boxes are found as ellipses in the seen boxes, of which a model reports quadratic forms.

    Each mask is that of a plain computation, weighted sums of the input's size, without the padding, to the frame, but
    for pixels of its outline.
    """

    def ellipses(seen: Sequence[Seen], _classes: int) -> list[np.ndarray]:
        y, x = np.mgrid[2 : INPUT[1] : 4, 2 : INPUT[0] : 4]
        forms = [
            1 - sum(((p - m) * 2 / s) ** 2 for p, m, s in zip((x, y), o.centre, o.size, strict=True)) for o in seen
        ]
        return [np.stack([*forms, *[np.zeros(x.shape)] * (8 - len(seen))])]

    pictures = [_objects(number, 3, twice=False) for number in range(PICTURES)]
    encode = (_rows if decoder == "end_to_end_seg" else _yolov8)(_one_mask, 8, ellipses)
    toml = _write(tmp_path / "project", decoder, [seen for _, seen in pictures], 3, encode)
    around = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    circle = np.stack([np.cos(around), np.sin(around)], axis=1)
    subject = open_subject(toml).open()
    truths, masks, lines = [], [], []
    for number, (truth, seen) in enumerate(pictures):
        boxes = _in_frame(truth).reshape(-1, 2, 2)
        outlines = [box.mean(axis=0) + circle * (box[1] - box[0]) / 2 for box in boxes]
        lines.append([_line(one, outline / FRAME) for one, outline in zip(truth, outlines, strict=True)])
        for one, outline in zip(truth, outlines, strict=True):
            truths.append((number, one.class_id, 1.0, mask.encode(np.asfortranarray(_within(outline)))))
        found = subject(np.full((*FRAME[::-1], 3), number, np.uint8)).result
        assert isinstance(found, Detections)
        plain = sorted(
            zip(seen, _in_frame(seen), ellipses(seen, 3)[0], strict=False), key=lambda one: -one[0].confidence
        )
        for place, (one, box, form) in enumerate(plain):
            values = cv2.resize(form.astype(np.float32), INPUT)[ABOVE : INPUT[1] - ABOVE]
            drawn = (cv2.resize(values, FRAME) > 0).astype(np.uint8)
            (left, top), (right, bottom) = np.ceil(box - 0.5).astype(int).reshape(2, 2).tolist()
            drawn[:top], drawn[bottom:], drawn[:, :left], drawn[:, right:] = 0, 0, 0, 0
            rle = mask.frPyObjects(found.rle(place), *FRAME[::-1])
            assert mask.iou([rle], [mask.encode(np.asfortranarray(drawn))], [0]) > 0.98
            masks.append((number, one.class_id, one.confidence, rle))
    figures = {figure.name: figure.value.value for figure in evaluate(toml, _text_files(tmp_path / "d", lines)).quality}
    expected = _mask_precision(truths, masks)
    assert 0.1 < expected[0] < 0.95
    assert (figures["mask mAP50-95"], figures["mask mAP50"]) == pytest.approx(expected, abs=0.005)
    assert (figures["mAP50-95"], figures["mAP50"]) == pytest.approx(_box_precision(pictures), abs=0.005)
    annotated = _annotations(truths)
    for place, one in enumerate(annotated):
        one |= {"iscrowd": int(place % 4 == 0), "keypoints": [0, 0, 0]}  # keypoints are nothing to masks
    expected = coco_precision(PICTURES, annotated, _annotations(masks), "segm")
    figures = {one.name: one.value.value for one in evaluate(toml, _coco_file(tmp_path / "c", annotated)).quality}
    assert (figures["mask mAP50-95"], figures["mask mAP50"]) == pytest.approx(expected, abs=0.005)
    annotated[0]["segmentation"] = [[1, 2, 3]]
    warnings = evaluate(toml, _coco_file(tmp_path / "gap", annotated)).warnings
    assert "which objects in 1 of 3 images lack, first in 0.png (its object 1)" in warnings[-1]


@pytest.mark.parametrize("decoder", ["yolov8_obb", "end_to_end_obb"])
def test_oriented_boxes_are_counted_as_pycocotools_counts_their_polygons(tmp_path: Path, decoder: str) -> None:
    fine = 8  # parts of a pixel

    def smaller(one: Seen) -> Seen:
        (x, y), (w, h) = one.centre, one.size
        return one._replace(x1=x - 0.4 * w, y1=y - 0.4 * h, x2=x + 0.4 * w, y2=y + 0.4 * h)

    def corners(one: Seen, angle: float) -> np.ndarray:
        return (cv2.boxPoints((one.centre, one.size, math.degrees(angle))) - (0, ABOVE)) / SCALE

    def rle(one: Seen, angle: float) -> Any:
        points = (corners(one, angle) * fine).ravel().tolist()
        return mask.frPyObjects([points], FRAME[1] * fine, FRAME[0] * fine)[0]

    turned = partial(_turned, angle=0.2)
    encode = _rows(turned, 1, box=lambda one: one.middle) if decoder == "end_to_end_obb" else _yolov8(turned, 1)
    pictures = [[list(map(smaller, of)) for of in _objects(number, 3, twice=False)] for number in range(PICTURES)]
    toml = _write(tmp_path / "project", decoder, [seen for _, seen in pictures], 3, encode)
    lines = [[_line(one, corners(one, 0.1) / FRAME) for one in truth] for truth, _ in pictures]
    found = {figure.name: figure.value.value for figure in evaluate(toml, _text_files(tmp_path / "d", lines)).quality}
    truths, seen = (
        [(number, one.class_id, one.confidence, rle(one, angle)) for number, of in enumerate(pictures) for one in of[i]]
        for i, angle in ((0, 0.1), (1, 0.2))
    )
    expected = _mask_precision(truths, seen)
    assert 0.1 < expected[0] < 0.95
    assert (found["oriented mAP50-95"], found["oriented mAP50"]) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("decoder", POSES)
def test_keypoints_are_counted_as_by_pycocotools_and_as_like_as_its_formula_says(tmp_path: Path, decoder: str) -> None:
    """Some points are not labelled; of an object without any, COCO expects nothing, and excuses one detection."""
    sigmas = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)  # of pycocotools, thousandths
    pictures = [_objects(number, 1, twice=False) for number in range(PICTURES)]
    toml, reference = (
        _write(tmp_path / name, decoder, [seen for _, seen in pictures], 1, encode)
        for name, encode in (("project", None), ("reference", POSES[decoder]))
    )
    random, lines, truths, seen, likeness = np.random.default_rng(3), list[list[str]](), [], [], []

    def points(one: Seen) -> np.ndarray:
        return (np.array(_points(one)).reshape(17, 3) - (0, ABOVE, 0)) / (SCALE, SCALE, 1)

    for number, of in enumerate(pictures):
        lines.append([])
        for place, (one, (x1, y1, x2, y2)) in enumerate(zip(of[0], _in_frame(of[0]).tolist(), strict=True)):
            visible = random.integers(0, 3, 17) * (place != number + 1)
            labelled = points(one) * (1, 1, 0) + np.outer(visible, (0, 0, 1))
            lines[-1].append(_line(one, _box(one), labelled / (*FRAME, 1)))
            truths.append(
                {"id": len(truths) + 1, "image_id": number, "category_id": 1, "iscrowd": 0}
                | {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": 0.53 * (x2 - x1) * (y2 - y1)}
                | {"keypoints": labelled.ravel().tolist(), "num_keypoints": int((visible > 0).sum())}
            )
        for one, (x1, y1, x2, y2) in zip(of[1], _in_frame(of[1]).tolist(), strict=True):
            keypoints = points(one).ravel().tolist()
            seen.append({"image_id": number, "category_id": 1, "score": one.confidence, "keypoints": keypoints})
            area, square = 0.53 * (x2 - x1) * (y2 - y1), (MOVED_PX / SCALE) ** 2
            likeness.append(np.mean([math.exp(-square / (2 * (2 * sigma / 1000) ** 2 * area)) for sigma in sigmas]))
    found = evaluate(toml, _text_files(tmp_path / "data", lines), reference=reference)
    expected = coco_precision(PICTURES, truths, seen, "keypoints")
    quality, agreement = ({figure.name: figure.value.value for figure in of} for of in (found.quality, found.agreement))
    assert 0.1 < expected[0] < 0.95
    assert (quality["pose mAP50-95"], quality["pose mAP50"]) == pytest.approx(expected, abs=0.005)
    assert agreement["keypoints of those matched (OKS)"] == pytest.approx(np.mean(likeness), abs=0.005)
    assert agreement["detections matched (F1)"] == 1
    truths = [one for one in truths if one["image_id"]]  # the first picture has nothing labelled
    for place, one in enumerate(truths):
        one |= {"area": one["area"] * 2, "iscrowd": int(place % 4 == 0)}
    expected = coco_precision(PICTURES, truths, seen, "keypoints")
    figures = {one.name: one.value.value for one in evaluate(toml, _coco_file(tmp_path / "c", truths)).quality}
    assert (figures["pose mAP50-95"], figures["pose mAP50"]) == pytest.approx(expected, abs=0.005)


def _within(outline: np.ndarray) -> np.ndarray:
    """Return uint8 (H, W), 1 for the pixels whose centre lies on the right of all sides of a convex polygon."""
    y, x = np.mgrid[: FRAME[1], : FRAME[0]] + 0.5
    sides = zip(outline, np.roll(outline, -1, axis=0), strict=True)
    right = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) >= 0 for (ax, ay), (bx, by) in sides]
    return np.all(right, axis=0).astype(np.uint8)


def _mask_precision(truths: Sequence[tuple[Any, ...]], found: Sequence[tuple[Any, ...]]) -> tuple[float, float]:
    """Return pycocotools' mAP50-95 and mAP50 of masks: picture, class, confidence, RLE."""
    return coco_precision(PICTURES, _annotations(truths), _annotations(found), "segm")


def _annotations(masks: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [
        {"id": place + 1, "image_id": picture, "category_id": class_id + 1, "score": sure, "iscrowd": 0}
        | {"segmentation": rle | {"counts": rle["counts"].decode()}}
        | {"area": float(mask.area(rle)), "bbox": mask.toBbox(rle).tolist()}
        for place, (picture, class_id, sure, rle) in enumerate(masks)
    ]


@pytest.mark.parametrize("decoder", DECODERS["classification"])
def test_top_1_and_top_5_are_those_of_a_plain_count(tmp_path: Path, decoder: str) -> None:
    scores = np.random.default_rng(3).dirichlet(np.ones(8), PICTURES)
    truths = [int(scores[0].argmax()), int(np.argsort(scores[1])[-3]), int(scores[2].argmin())]
    given = np.log(scores / (1 - scores)) if decoder == "sigmoid_logits" else scores
    model = _model([[row] for row in (np.log(scores) if decoder == "logits" else given)], has_batch=True)
    assert _figures(tmp_path, "classification", decoder, model, "abcdefgh", truths) == {
        "top-1": pytest.approx(1 / 3),
        "top-5": pytest.approx(2 / 3),
    }


def _figures(
    folder: Path,
    task: str,
    decoder: str,
    model: onnx.ModelProto,
    labels: str,
    truths: Sequence[int | str],
    more: str = "",
) -> dict[str, float]:
    """Return what evaluate counts of a model that looks at the pictures' numbers; truths are classes or texts."""
    text = _toml(task, decoder, more)
    if (folder / "project" / "labels.npz").exists():
        text = text.replace("labels.txt", "labels.npz")
    toml = write_project(folder / "project", text, model, labels="".join(f"{label}\n" for label in labels), pictures=0)
    data = _pictures(folder / "data", len(truths))
    name, column = ("texts.csv", "text") if task == "text" else ("labels.csv", "class_id")
    rows = [f'{number}.png,"{truth}"' for number, truth in enumerate(truths)]
    (data / name).write_text("\n".join([f"file,{column}", *rows]) + "\n")
    return {figure.name: figure.value.value for figure in evaluate(toml, data).quality}


@functools.cache
def _edits(a: str, b: str) -> int:
    """The textbook's recursion."""
    if not a or not b:
        return len(a) + len(b)
    return min(_edits(a[1:], b) + 1, _edits(a, b[1:]) + 1, _edits(a[1:], b[1:]) + (a[0] != b[0]))


def test_texts_are_read_and_counted_as_by_plain_loops(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    pictures = random.dirichlet(np.full(7, 0.1), (30, 12))  # of each step: blank, a, b, c, d, e, space
    read = []
    for steps in pictures:
        best = [int(step.argmax()) for step in steps]
        new = [one for before, one in zip([0, *best], best, strict=False) if one not in (0, before)]
        read.append("".join("-abcde "[character] for character in new))
    truths = ["".join(c if random.random() < 0.9 else "x" * random.integers(3) for c in text) for text in read]
    model = _model([[steps] for steps in pictures], has_batch=True)
    edits = [_edits(*pair) for pair in zip(read, truths, strict=True)]
    assert 0.1 < edits.count(0) / len(edits) < 0.9
    assert _figures(tmp_path, "text", "ctc", model, "abcde", truths) == {
        "characters (1 - CER)": pytest.approx(1 - sum(edits) / sum(map(len, truths)), abs=0.005),
        "whole texts": pytest.approx(edits.count(0) / len(edits), abs=0.005),
    }
    (tmp_path / "data" / "texts.csv").write_text("file,text\n0.png\n")
    with pytest.raises(DataError, match=r"texts\.csv: line 2: has 1 column, expected 2"):
        evaluate(tmp_path / "project" / "model.toml", tmp_path / "data")


def test_vectors_are_named_and_verified_as_by_plain_loops(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    centres, truths = random.normal(0, 1, (4, 6)), random.integers(0, 4, 30).tolist()
    known = np.vstack([centres, centres]) + random.normal(0, 0.3, (8, 6))
    shown = (centres[truths] + random.normal(0, 0.8, (30, 6))) * random.uniform(0.1, 9, (30, 1))
    (tmp_path / "project").mkdir()
    np.savez(tmp_path / "project" / "labels.npz", names=np.array([*"abcdabcd"]), vectors=known.astype(np.float32))

    def cosine(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / math.sqrt((one @ one) * (other @ other)))

    named = [max((cosine(one, other), place % 4) for place, other in enumerate(known)) for one in shown]
    right = [sure >= 0.7 and name == truth for (sure, name), truth in zip(named, truths, strict=True)]
    same, other = ([], [])
    for one, two in itertools.permutations(range(30), 2):
        (same if truths[one] == truths[two] else other).append(cosine(shown[one], shown[two]) >= 0.7)
    more = "[thresholds]\nconfidence = 0.7"
    model = _model([[vector] for vector in shown], has_batch=True)
    assert _figures(tmp_path, "embedding", "vector", model, "abcd", truths, more) == {
        "top-1": pytest.approx(np.mean(right), abs=0.005),
        "verification accuracy": pytest.approx((np.mean(same) + 1 - np.mean(other)) / 2, abs=0.005),
    }


def test_anomalies_are_ranked_as_by_scikit_learn(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    maps, truths = random.uniform(0, 150, (30, 8, 12)), random.integers(0, 2, 30).tolist()
    maps[np.arange(30), 3, 5] += 60 * np.array(truths) * random.random(30)
    maps[:, [0, 7]] += 100  # in the padding
    scores = maps[:, 1:7].max(axis=(1, 2)) / 200
    more = "[thresholds]\nconfidence = 0.75\n[anomaly]\nscore_range = [0, 200]"
    assert _figures(
        tmp_path, "anomaly", "score", _model([[cells] for cells in maps], has_batch=True), "ab", truths, more
    ) == {
        "AUROC": pytest.approx(Lazy("sklearn.metrics").roc_auc_score(truths, scores), abs=0.005),
        "right decisions": pytest.approx(np.mean((scores >= 0.75) == truths), abs=0.005),
    }


def test_every_decoder_of_objects_is_measured() -> None:
    assert set(DECODERS["detection"]) == set(HEADS)
