"""Keypoints, masks and corners belong to the objects that remain, and lie in pixels of the frame."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.frame import Detections, Frame, Geometry, Inferred, Masks, Prepared
from edge_sdk.tasks.boxes import Candidates
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.detection import draw
from edge_sdk.tasks.oriented import keep_oriented, read_oriented
from edge_sdk.tasks.spec import DetectionSpec, Thresholds
from tests.support.results import make_encoder

SIZE = (64, 64)
WORLD = Geometry(0.5, 0.5, 0.0, 8.0)  # a frame of 128 x 96, halved, with 8 pixels of padding above and below
CELLS = 84


def _detect(decoder: str, *outputs: np.ndarray, **detection: Any) -> Detections:
    spec = ModelSpec(
        model="m.onnx", name="m", task="detection", decoder=decoder, labels="l.txt", input=InputSpec(size_wh=SIZE),
        detection=DetectionSpec(**detection),
    )  # fmt: skip
    frame = Frame(np.zeros((96, 128, 3), np.uint8), 0, 0.0, 0, "camera")
    inferred = Inferred(outputs, 0, Prepared(np.empty(0, np.float32), WORLD, frame))
    result = make_stage(spec, 2, [output.shape for output in outputs])(inferred)
    assert isinstance(result, Detections)
    return result


def _output(decoder: str, objects: list[tuple[list[float], int, float, list[float]]], extras: int) -> np.ndarray:
    """The output in which these objects stand: left, top, right, bottom in input pixels, class, confidence, extras."""
    if decoder.startswith("end_to_end"):
        rows = np.zeros((1, 20, 6 + extras), np.float32)
        for place, (box, class_id, confidence, rest) in enumerate(objects):
            rows[0, place] = [*box, confidence, class_id, *rest]
        return rows
    columns = np.zeros((1, 6 + extras, CELLS), np.float32)
    for place, ((x1, y1, x2, y2), class_id, confidence, rest) in enumerate(objects):
        scores = [confidence if number == class_id else 0.0 for number in range(2)]
        columns[0, :, 7 * place] = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, *scores, *rest]
    return columns


POSES = [
    ([8.0, 16.0, 24.0, 40.0], 1, 0.9, [10.0, 20.0, 0.75, 16.0, 30.0, 0.25]),
    ([9.0, 16.0, 25.0, 40.0], 1, 0.4, [0.0] * 6),  # hidden by the first, which overlaps it
    ([40.0, 16.0, 56.0, 40.0], 0, 0.8, [48.0, float("nan"), 0.9, 50.0, 30.0, 1.0]),
]


@pytest.mark.parametrize("decoder", ["yolov8_pose", "end_to_end_pose"])
def test_keypoints_go_with_their_boxes(decoder: str) -> None:
    objects = POSES if decoder == "yolov8_pose" else [POSES[0], POSES[2]]
    got = _detect(decoder, _output(decoder, objects, 6), keypoints=(2, 3))
    assert got.xyxy.tolist() == [[16, 16, 48, 64], [80, 16, 112, 64]]
    assert got.class_id.tolist() == [1, 0]
    assert got.keypoints is not None
    assert got.keypoints.tolist() == [[[20, 24, 0.75], [32, 44, 0.25]], [[0, 0, 0], [100, 44, 1]]]
    sent = msgspec.json.decode(make_encoder().encode(got))["detections"]
    assert sent[0]["keypoints"] == [[20.0, 24.0, 0.75], [32.0, 44.0, 0.25]]
    picture = msgspec.structs.replace(got, keypoints=got.keypoints * np.float32([[[1, 1, 1], [1e30, 1, 9]]])).plot()
    assert picture[24, 20].any()
    assert not picture[44, 32].any()  # a point that is not sure
    sure = _detect(decoder, _output(decoder, [(POSES[0][0], 0, 0.9, [10.0, 20.0])], 2), keypoints=(1, 2))
    assert sure.keypoints is not None
    assert sure.keypoints.tolist() == [[[20, 24, 1]]]
    none = _detect(decoder, _output(decoder, [], 6), keypoints=(2, 3))
    assert none.keypoints is not None
    assert none.keypoints.shape == (0, 2, 3)


@pytest.mark.parametrize("decoder", ["yolov8_seg", "end_to_end_seg"])
def test_masks_lie_within_their_boxes(decoder: str) -> None:
    prototypes = np.zeros((1, 2, 16, 16), np.float32)
    prototypes[0, 0, :, :4], prototypes[0, 0, :, 4:] = 1, -1  # the left quarter: 16 input pixels, 32 of the frame
    prototypes[0, 1] = -1
    objects = [([8.0, 16.0, 24.0, 40.0], 1, 0.9, [2.0, 0.0]), ([40.0, 16.0, 56.0, 40.0], 0, 0.8, [0.0, 1.0])]
    got = _detect(decoder, _output(decoder, objects, 2), prototypes)
    assert got.mask is not None
    assert got.mask.shape == (2, 96, 128)
    expected = np.zeros((96, 128), bool)
    expected[16:64, 16:32] = True
    assert (got.mask[0] == expected).all()
    assert not got.mask[1].any()
    [outline] = got.polygons(0)
    assert {tuple(corner) for corner in outline.tolist()} == {(16, 16), (31, 16), (31, 63), (16, 63)}
    sent = msgspec.json.decode(make_encoder().encode(got))["detections"]
    assert len(sent[0]["polygons"][0]) == 4
    assert sent[1]["polygons"] == []
    for index in range(2):
        runs = got.rle(index)
        assert runs is not None
        pixels = np.repeat(np.arange(len(runs["counts"])) % 2, runs["counts"])  # as COCO reads them
        assert (pixels.reshape(runs["size"], order="F") == got.mask[index]).all()
    picture = got.plot()
    assert picture[40, 24].any()
    assert not picture[40, 40].any()
    assert not got.frame.image.any()
    none = _detect(decoder, _output(decoder, [], 2), prototypes)
    assert none.mask is not None
    assert none.mask.shape == (0, 96, 128)


@pytest.mark.parametrize("box", [[127.2, 10, 127.9, 20], [10, 95.1, 30, 95.9], [10.2, 10, 10.8, 40]])
def test_an_object_without_a_pixel_has_no_mask(box: list[float]) -> None:
    masks = Masks(np.ones((1, 1), np.float32), np.ones((1, 16, 16), np.float32), Geometry(0.125, 0.125, 0, 2))
    frame = Frame(np.zeros((96, 128, 3), np.uint8), 0, 0.0, 0, "camera")
    found = Detections(
        frame, 0, np.array([box], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64), masks=masks
    )
    assert not found.mask.any()
    assert found.rle(0) == {"size": [96, 128], "counts": [96 * 128]}
    assert found.polygons(0) == []


@pytest.mark.parametrize("decoder", ["yolov8_obb", "end_to_end_obb"])
def test_oriented_boxes_have_corners_and_an_upright_box_around_them(decoder: str) -> None:
    objects = [([18.0, 24.0, 38.0, 34.0], 1, 0.9, [math.pi / 2]), ([40.0, 20.0, 60.0, 30.0], 0, 0.8, [0.0])]
    if decoder == "yolov8_obb":
        objects.insert(1, ([18.0, 25.0, 38.0, 35.0], 1, 0.7, [math.pi / 2]))  # hidden by the first
    else:  # its rows have centres and sizes, too
        objects = [([(a + c) / 2, (b + d) / 2, c - a, d - b], *rest) for (a, b, c, d), *rest in objects]
    got = _detect(decoder, _output(decoder, objects, 1))
    assert got.corners is not None
    # Turned by a quarter, clockwise: the left top corner of 20 x 10 is the right top one of 10 x 20.
    expected = [[[66, 22], [66, 62], [46, 62], [46, 22]], [[80, 24], [120, 24], [120, 44], [80, 44]]]
    assert got.corners == pytest.approx(np.array(expected), abs=1e-4)
    assert got.xyxy == pytest.approx(np.array([[46, 22, 66, 62], [80, 24, 120, 44]]), abs=1e-4)
    assert got[1].to_dict()["detections"][0]["corners"] == pytest.approx(np.array(expected[1]), abs=1e-4)
    assert got.on(np.zeros((192, 256, 3), np.uint8)).corners == pytest.approx(got.corners * 2)
    sent = msgspec.json.decode(make_encoder().encode(got))["detections"]
    assert sent[1]["corners"] == [[80.0, 24.0], [120.0, 24.0], [120.0, 44.0], [80.0, 44.0]]
    turned = msgspec.structs.replace(got, corners=got.corners + np.float32([0, 2]))
    picture = got.frame.image.copy()
    draw(picture, turned)
    assert picture[46, 100].any()  # the lower side, and not that of the box
    assert not picture[44, 110].any()


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """The Bhattacharyya distance of the normal distributions of two boxes of centre, size and angle."""
    spreads = []
    for _, _, w, h, angle in (one, other):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        spreads.append(turn @ np.diag([w * w / 12, h * h / 12]) @ turn.T)
    mean, apart = (spreads[0] + spreads[1]) / 2, one[:2] - other[:2]
    ratio = np.linalg.det(mean) / math.sqrt(np.linalg.det(spreads[0]) * np.linalg.det(spreads[1]))
    return float(apart @ np.linalg.inv(mean) @ apart / 8 + math.log(ratio) / 2)


@pytest.mark.parametrize("iou", [0.2, 0.45, 0.7])
def test_an_oriented_box_is_hidden_by_any_stronger_one_of_its_class(iou: float) -> None:
    random = np.random.default_rng(7)
    rows = np.hstack(
        [random.uniform(0, 60, (150, 2)), random.uniform(4, 30, (150, 2)), random.uniform(-1, 3, (150, 1))]
    )
    scores = random.permutation(np.linspace(0.3, 0.9, 150)).astype(np.float32)
    classes = random.integers(0, 2, 150)
    order = np.argsort(-scores)
    expected = [
        int(place)
        for number, place in enumerate(order)
        if not any(
            classes[other] == classes[place] and 1 - math.sqrt(1 - math.exp(-_distance(rows[other], rows[place]))) > iou
            for other in order[:number]
        )
    ]
    boxes = np.hstack([rows[:, :2] - rows[:, 2:4] / 2, rows[:, 2:4]]).astype(np.float32)
    angles = rows[:, 4:].astype(np.float32)
    found = read_oriented(lambda _outputs: Candidates(boxes, scores, classes, extras=angles), [])
    assert keep_oriented(found, Thresholds(0.3, iou)).tolist() == expected
    assert 10 < len(expected) < 145


def test_large_oriented_boxes_hide_none_of_another_class() -> None:
    boxes, angles = np.array([[0, 0, 4e5, 4e5], [0, 0, 4e5, 4e5]], np.float32), np.zeros((2, 1), np.float32)
    scores = np.array([0.9, 0.8], np.float32)
    found = read_oriented(lambda _outputs: Candidates(boxes, scores, np.array([0, 1]), extras=angles), [])
    assert keep_oriented(found, Thresholds()).tolist() == [0, 1]
