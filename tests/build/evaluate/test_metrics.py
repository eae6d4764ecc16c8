"""Figures of every task and their intervals, against pycocotools, scikit-learn and scipy, and by hand."""

import contextlib
import io
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from pycocotools import mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy.special import softmax

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Detections, Frame, Geometry, Masks
from edge_sdk_tools.distillation.gate import compared_classes, mcnemar
from edge_sdk_tools.evaluate import statistics
from edge_sdk_tools.evaluate.average_precision import AveragePrecision, Boxes, judge
from edge_sdk_tools.evaluate.classification import divergences, probabilities_of, restricted, softened
from edge_sdk_tools.evaluate.detection import match
from edge_sdk_tools.evaluate.evaluation import evaluate
from edge_sdk_tools.evaluate.likeness import LabelledBoxes, Objects, likeness_of, mask_of
from edge_sdk_tools.evaluate.metrics import CALIBRATION_BINS, Pairs, calibration_error, lost_class
from edge_sdk_tools.evaluate.participants import align_labels
from edge_sdk_tools.evaluate.segmentation import overlap_of
from edge_sdk_tools.evaluate.statistics import Interval, Metric, compare, interval_of, mean_of, resample
from tests.support import models as tiny
from tests.support.absent import Lazy
from tests.support.models import changed
from tests.support.projects import hand_written_scores, write_pictures, write_project

stats = Lazy("scipy.stats")
IMAGES, CLASSES = 24, 5


def _labelled(random: np.random.Generator, objects: int) -> LabelledBoxes:
    top_left = random.uniform(0, 300, (objects, 2))
    boxes = np.concatenate([top_left, top_left + random.uniform(2, 120, (objects, 2))], axis=1)
    return LabelledBoxes(boxes, random.integers(0, CLASSES, objects), random.random(objects) < 0.15)


def _found(random: np.random.Generator, labelled: LabelledBoxes, noise: int) -> Boxes:
    """Labelled boxes moved about, some twice, and others out of nothing; confidences have ties."""
    index = random.integers(0, len(labelled.class_ids), 2 * len(labelled.class_ids)) if len(labelled.class_ids) else []
    moved = labelled.boxes_xyxy[index] + random.normal(0, 6, (len(index), 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    class_ids = np.where(random.random(len(index)) < 0.9, labelled.class_ids[index], 0)
    other = _labelled(random, noise)
    return Boxes(
        np.concatenate([moved, other.boxes_xyxy]),
        np.round(random.random(len(index) + noise), 2),
        np.concatenate([class_ids, other.class_ids]).astype(np.int64),
    )


def _xywh(box: np.ndarray) -> list[float]:
    return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]


def pycocotools_of(labelled: Sequence[LabelledBoxes], found: Sequence[Boxes]) -> tuple[float, float]:
    """MAP50-95 and mAP50 as COCO's own tools have it."""
    annotations = [
        {"id": 1 + image * 1000 + index, "image_id": image, "category_id": int(class_id) + 1, "iscrowd": int(crowd)}
        | {"bbox": _xywh(box), "area": float(np.prod(_xywh(box)[2:]))}
        for image, truth in enumerate(labelled)
        for index, (box, class_id, crowd) in enumerate(zip(truth.boxes_xyxy, truth.class_ids, truth.crowd, strict=True))
    ]
    detections = [
        {"image_id": image, "category_id": int(class_id) + 1, "bbox": _xywh(box), "score": float(confidence)}
        for image, boxes in enumerate(found)
        for box, class_id, confidence in zip(boxes.boxes_xyxy, boxes.class_ids, boxes.confidences, strict=True)
    ]
    return coco_precision(len(labelled), annotations, detections, "bbox")


def coco_precision(images: int, truths: list[Any], found: list[Any], kind: str) -> tuple[float, float]:
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": image, "width": 192, "height": 100} for image in range(images)],
            "annotations": truths,
            "categories": [{"id": c + 1} for c in range(CLASSES)],
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(found), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def _ours(labelled: Sequence[LabelledBoxes], found: Sequence[Boxes]) -> tuple[float, float]:
    curve = AveragePrecision([judge(f, t) for f, t in zip(found, labelled, strict=True)])
    ones = np.ones((1, len(labelled)))
    return float(curve.mean()(ones)[0]), float(curve.mean(1)(ones)[0])


@pytest.mark.parametrize(("objects", "noise"), [(4, 3), (12, 40), (1, 0), (30, 200), (3, 900)])
def test_average_precision_is_that_ofpycocotools_of(objects: int, noise: int) -> None:
    for seed in range(2 if noise > 100 else 4):
        random = np.random.default_rng(seed)
        labelled = [_labelled(random, int(random.integers(0, objects + 1))) for _ in range(IMAGES)]
        found = [_found(random, truth, int(random.integers(0, noise + 1))) for truth in labelled]
        assert _ours(labelled, found) == pytest.approx(pycocotools_of(labelled, found), abs=1e-6)


def test_of_two_boxes_that_overlap_alike_the_one_that_pycocotools_takes_is_taken() -> None:
    truth = LabelledBoxes(np.array([[0.0, 0, 10, 10], [2, 0, 12, 10]]), np.zeros(2, np.int64), np.zeros(2, np.bool_))
    # The first lies between both; the second overlaps the left one only.
    for second in ([-3.0, 0, 7, 10], [5.0, 0, 15, 10]):
        found = Boxes(np.array([[1.0, 0, 11, 10], second]), np.array([0.9, 0.8]), np.zeros(2, np.int64))
        assert _ours([truth], [found]) == pytest.approx(pycocotools_of([truth], [found]), abs=1e-6)


def test_resampled_images_count_as_if_they_were_there_so_often() -> None:
    random = np.random.default_rng(2)
    labelled = [_labelled(random, 6) for _ in range(8)]
    found = [_found(random, truth, 10) for truth in labelled]
    weights = random.multinomial(8, np.full(8, 1 / 8), size=20).astype(np.float64)
    curve = AveragePrecision([judge(f, t) for f, t in zip(found, labelled, strict=True)])
    repeated = [np.repeat(np.arange(8), row.astype(int)) for row in weights]
    expected = [_ours([labelled[i] for i in rows], [found[i] for i in rows])[0] for rows in repeated]
    # An image that counts twice is one step of the curve here, and two there.
    assert curve.mean()(weights) == pytest.approx(np.array(expected), abs=2e-3)


RANDOM = np.random.default_rng(11)
LOGITS = RANDOM.normal(0, 3, (400, 30))
ROWS = np.stack([probabilities_of(row[None, :], "logits") for row in LOGITS])
TRUTH = np.where(RANDOM.random(400) < 0.5, ROWS.argmax(axis=1), RANDOM.integers(0, 30, 400))


def test_probabilities_are_scipys_softmax_or_the_output_itself() -> None:
    assert pytest.approx(softmax(LOGITS, axis=1)) == ROWS
    assert probabilities_of(np.array([[1000.0, 0.0]], np.float32), "logits").tolist() == [1.0, 0.0]
    assert probabilities_of(np.array([[0.25, 0.75]], np.float32), "softmax").tolist() == [0.25, 0.75]
    assert np.isfinite(divergences(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))).all()


def test_softening_is_the_softmax_of_smaller_logits_and_restricted_rows_sum_to_one() -> None:
    for temperature in (1.0, 4.0, 0.5):
        assert softened(ROWS, temperature) == pytest.approx(softmax(LOGITS / temperature, axis=1))
    rows = restricted(np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]), np.array([2, 1]))
    assert rows == pytest.approx(np.array([[0.625, 0.375], [0.5, 0.5]]))


def test_calibration_error_is_scikit_learns_curve_weighted() -> None:
    confidences, right = ROWS.max(axis=1), ROWS.argmax(axis=1) == TRUTH
    share, confidence = Lazy("sklearn.calibration").calibration_curve(right, confidences, n_bins=CALIBRATION_BINS)
    counts = np.histogram(confidences, bins=CALIBRATION_BINS, range=(0, 1))[0]
    expected = (np.abs(share - confidence) * counts[counts > 0]).sum() / len(right)
    assert calibration_error(confidences, right) == pytest.approx(expected)
    for sure, correct, value in (
        ([1.0, 1.0], [1, 1], 0),
        ([1.0, 1.0], [0, 0], 1),
        ([0.5, 0.5], [1, 0], 0),
        ([], [], 0),
    ):
        assert calibration_error(np.array(sure), np.array(correct, np.bool_)) == pytest.approx(value)


def test_unknown_pixels_do_not_count_and_unanswered_ones_are_wrong() -> None:
    truth, answer = np.array([[[0, 0, 1, 255]], [[0, 255, 1, 1]]], np.uint8)
    overlap = overlap_of(answer, truth, 2)
    assert (overlap.both.tolist(), overlap.either.tolist()) == ([1, 1], [2, 1])


def _boxes(items: list[tuple[float, float, float, float, float, int]]) -> Boxes:
    rows = np.array(sorted(items, key=lambda item: -item[4]), np.float64).reshape(-1, 6)
    return Boxes(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))


def test_matching_is_one_to_one() -> None:
    box = (0, 0, 10, 10, 0.5, 1)
    for got, expected, matched in (
        ([(0, 0, 10, 10, 0.9, 1)], [box], [(0, 0)]),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 10, 0.5, 2)], []),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 20, 0.5, 1)], [(0, 0)]),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 21, 0.5, 1)], []),
        ([(0, 0, 10, 10, 0.9, 1), (0, 0, 10, 10, 0.8, 1)], [box], [(0, 0)]),
        ([(0, 0, 10, 10, 0.8, 1), (0, 0, 10, 9, 0.9, 1)], [box, (0, 0, 10, 8, 0.5, 1)], [(0, 0), (1, 1)]),
        ([], [box], []),
        ([box], [], []),
    ):
        assert match(_boxes(got), _boxes(expected)) == matched


def _seen(**details: Any) -> Detections:
    """Two objects of 20 x 40, far apart, in a frame of 100 x 100."""
    boxes = np.float32([[10, 10, 30, 50], [60, 10, 80, 50]])
    frame = Frame(np.zeros((100, 100, 3), np.uint8), 0, 0.0, 0, "camera")
    return Detections(frame, 0, boxes, np.float32([0.9, 0.8]), np.zeros(2, np.int64), **details)


def _points(moved: float) -> np.ndarray:
    points = np.full((2, 4, 3), 0.9, np.float32)
    points[:, :, :2] = [[[20, 20]], [[70, 20 + moved]]]
    points[1, 3] = [0, 0, 0.1]  # which no model is sure of
    return points


def _halves(second: slice) -> Masks:
    values = np.full((2, 50, 50), -1, np.float32)
    values[0, :, :25] = values[1, second] = 1
    return Masks(np.eye(2, dtype=np.float32), values, Geometry(0.5, 0.5, 0.0, 0.0))


def _turned(width: float) -> np.ndarray:
    """Two turned boxes; the second shares three sides with one of another width."""
    first, second = (cv2.boxPoints(((x, 40), (20, 40), 30)) for x in (20, 70))
    second[:2] = second[3:1:-1] + (second[:2] - second[3:1:-1]) * width / 20
    return np.float32([first, second])


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        # Of 4 points sigma is 1/4: exp(-d^2 / (8 * 1/16 * .53 * 800)).
        ({"keypoints": _points(0)}, {"keypoints": _points(20)}, math.exp(-400 / (8 / 16 * 0.53 * 800))),
        ({"masks": _halves(slice(0, 50))}, {"masks": _halves(slice(0, 15))}, 0.5),
        ({"corners": _turned(20)}, {"corners": _turned(13)}, 13 / 20),
    ],
)
def test_an_object_is_found_again_with_its_details(
    reference: dict[str, Any], found: dict[str, Any], expected: float
) -> None:
    plain, mine, theirs = (Objects.found(_seen(**details)) for details in ({}, found, reference))
    alike = likeness_of(mine, theirs)
    assert alike is not None
    assert np.diag(alike.values) == pytest.approx([1, expected], abs=1e-6)
    boxes = Boxes(plain.boxes_xyxy, np.array([0.9, 0.8]), np.zeros(2, np.int64))
    assert match(boxes, boxes, alike) == [(0, 0), (1, 1)][: 1 + (expected >= 0.5)]
    assert likeness_of(plain, theirs) is None


def test_the_mask_of_a_polygon_is_that_of_pycocotools_but_for_pixels_of_its_outline() -> None:
    random, overlaps, areas = np.random.default_rng(8), [], []
    for _ in range(40):
        around = np.sort(random.uniform(0, 2 * np.pi, 12))[:, None]
        outline = np.hstack([np.cos(around), np.sin(around)]) * random.uniform(20, 80, (12, 1)) + (150, 70)
        left, top, seen = mask_of((outline,), (300, 200))  # some reach over the upper edge
        ours = np.zeros((200, 300), np.uint8)
        ours[top : top + len(seen), left : left + seen.shape[1]] = seen
        both = [mask.encode(np.asfortranarray(ours)), *mask.frPyObjects([outline.ravel().tolist()], 200, 300)]
        overlaps.append(mask.iou(both[:1], both[1:], [0]))
        areas.append([mask.area(one) for one in both])
    assert np.mean(overlaps) > 0.98
    assert np.divide(*np.sum(areas, axis=0)) == pytest.approx(1, abs=0.002)


def test_divergence_is_from_the_reference_to_the_model(tmp_path: Path) -> None:
    model = write_project(tmp_path / "model", pictures=0)
    reference = write_project(tmp_path / "reference", model=changed(1), pictures=0)
    data = write_pictures(tmp_path / "data", 30)
    mine, theirs = (hand_written_scores(m, data) for m in (tiny.classifier(), changed(1)))
    [_, divergence] = evaluate(model, data, reference=reference).agreement
    assert divergence.name == "KL divergence (nats)"
    assert divergence.value.value == pytest.approx(stats.entropy(theirs, mine, axis=1).mean(), rel=1e-4)
    assert divergence.value.value != pytest.approx(stats.entropy(mine, theirs, axis=1).mean(), rel=1e-2)


def test_labels_are_matched_by_text() -> None:
    for others, renamed, expected in (
        (["c", "b", "a"], {}, [2, 1, 0]),
        (["A", "B", "C, the third"], {}, [0, 1, 2]),
        (["x", "a", "b", "c"], {}, [1, 2, 3]),
        (["alpha", "b", "c"], {"A": "Alpha"}, [0, 1, 2]),
        (["b", "a", "c"], {"a": "b", "b": "a"}, [0, 1, 2]),
    ):
        assert align_labels(["a", "b", "c"], others, renamed).tolist() == expected
    # Labels that occur twice keep their order; underscores and spaces are the same.
    others = ["dog", "Crane", "crane, a bird", "Traffic  light"]
    assert align_labels(["crane", "crane", "dog", "traffic_light"], others).tolist() == [1, 2, 0, 3]
    assert align_labels(["_", "", "a"], ["_", "", "a"]).tolist() == [0, 1, 2]  # no words to match by
    long, short = ["n01440764 tench, Tinca tinca", "n01443537 goldfish"], ["n01443537", "n01440764"]
    assert align_labels(["goldfish", "tench"], long).tolist() == align_labels(long, short).tolist() == [1, 0]
    for others, renamed, refused in (
        (["a", "bb", "z"], {}, r"2 of 3 .* \('b', 'c'\)"),
        (["a", "b", "c"], {"d": "a"}, r"teacher.labels: 'd' is no label of this model"),
        (["a", "b", "c"], {"a": "cat"}, r"teacher.labels: 'cat' is no label of the teacher"),
    ):
        with pytest.raises(ModelError, match=refused):
            align_labels(["a", "b", "c"], others, renamed)


# Intervals: as wide as scipy has them, paired, and as often about the truth as they say.


_DRAWN = np.random.default_rng(5)
RIGHT = (_DRAWN.random(300) < 0.7).astype(np.float64)
OTHER = np.where(_DRAWN.random(300) < 0.9, RIGHT, 1 - RIGHT)
WEIGHTS = resample(300)


def difference_of(values: NDArray[np.float64], reference: NDArray[np.float64]) -> Interval:
    found = compare(Metric("one", mean_of(values)), Metric("one", mean_of(reference)), WEIGHTS).difference
    assert found is not None
    return found


def test_the_images_as_they_are_stand_before_their_half_samples() -> None:
    assert WEIGHTS.shape == (1001, 300)
    assert set(np.unique(WEIGHTS)) == {0, 1}
    assert WEIGHTS.sum(axis=1).tolist() == [300] + 1000 * [150]
    assert np.array_equal(WEIGHTS, resample(300))
    assert [resample(count, 4).sum(axis=1).tolist() for count in (1, 3)] == [[1, 1, 1, 1, 1], [3, 1, 2, 1, 2]]


def test_a_difference_is_paired() -> None:
    found, alone = difference_of(RIGHT, OTHER), interval_of(mean_of(RIGHT)(WEIGHTS), WEIGHTS)
    assert found.high - found.low < alone.high - alone.low


def test_noise_is_a_difference_whose_interval_holds_zero() -> None:
    for lost, noise in ((0, True), (2, True), (20, False), (-20, False)):
        other = RIGHT.copy()
        other[np.flatnonzero((lost > 0) == RIGHT)[: abs(lost)]] = lost < 0
        found = difference_of(other, RIGHT)
        assert (found.value, found.contains_zero) == (pytest.approx(-lost / 300), noise)


def test_a_ratio_of_sums() -> None:
    ratio = statistics.ratio_of(np.array([1.0, 0.0, 3.0]), np.array([2.0, 0.0, 4.0]))
    assert ratio(np.array([[1.0, 1, 1], [0, 3, 0], [3, 0, 0]])) == pytest.approx([4 / 6, 0, 0.5])


def test_the_interval_holds_the_truth_and_other_images_as_often_as_it_says() -> None:
    held, weights = np.zeros(2), resample(120, 400)
    for seed in range(100):
        sample, other = (np.random.default_rng(seed).random((2, 120)) < 0.6).astype(np.float64)
        found = interval_of(mean_of(sample)(weights), weights)
        other_images = found.on_other_images((0.0, 1.0))
        held += found.low <= 0.6 <= found.high, other_images.low <= other.mean() <= other_images.high
    assert ((held >= 90) & (held <= 99)).all()
    wider = msgspec.structs.astuple(Interval(0.5, 0.4, 0.9).on_other_images((0.0, 1.0)))
    assert wider == pytest.approx((0.5, 0.5 - math.sqrt(0.02), 1.0))


@pytest.mark.parametrize("others", [3, 12, 120])
def test_the_fewer_images_make_a_difference_the_further_its_interval_reaches(others: int) -> None:
    values = np.append(np.where(np.arange(others) % 2, 1.0, -1.0), np.zeros(240 - others))
    found = interval_of(mean_of(values)(resample(240)), resample(240))
    wanted = stats.t.ppf(0.975, 2 / (1 / others - 1 / 240)) * values.std(ddof=1) / math.sqrt(240)
    assert found.high - found.value == pytest.approx(wanted, rel=0.1)


def test_classes_of_one_image_each_vary_as_their_images_do() -> None:
    box = np.array([[0.0, 0, 9, 9]])
    images = [(Boxes(box + 100 * (i % 3 == 0), np.ones(1), np.array([i])), i) for i in range(60)]
    judged = [judge(found, LabelledBoxes(box, np.array([i]), np.zeros(1, np.bool_))) for found, i in images]
    precision, weights = AveragePrecision(judged).mean(), resample(60)
    assert precision(weights) == pytest.approx(mean_of(np.arange(60) % 3 > 0)(weights))


def test_a_difference_stays_where_one_can_be() -> None:
    mine, reference = np.array([0.0, 0, 0, 0, 1]), np.array([1.0, 1, 1, 1, 0])
    for (first, second), edge in (((mine, reference), -1.0), ((reference, mine), 1.0)):
        found = compare(Metric("one", mean_of(first)), Metric("other", mean_of(second)), resample(5)).difference
        assert found.value == pytest.approx(0.6 * edge)
        assert edge in (found.low, found.high)
        assert -1 <= found.low < found.high <= 1


def test_draws_that_are_no_numbers_are_left_out() -> None:
    draws = mean_of(RIGHT)(WEIGHTS)
    known, draws[501:] = interval_of(draws[:501], WEIGHTS[:501]), np.nan
    assert msgspec.structs.astuple(interval_of(draws, WEIGHTS)) == pytest.approx(msgspec.structs.astuple(known))


@pytest.mark.parametrize("count", [1, 20])
def test_a_few_right_or_equal_answers_are_no_proof_that_all_will_be(count: int) -> None:
    metric = statistics.share_metric("top-1", np.ones(count, np.bool_))
    figure = compare(metric, metric, resample(count))
    equal = Metric("mIoU", mean_of(np.full(count, 0.5)))
    assert figure.reference == figure.value == statistics.figure_of(metric, resample(count)).value
    assert figure.value.value == figure.value.high == 1
    assert figure.value.low < 1 - 1 / (count + 4)
    for found in (figure.difference, compare(equal, equal, resample(count)).difference):
        assert found.value == 0
        assert found.low < -1 / (count + 2) < 1 / (count + 2) < found.high


def _hits(right: int, wrong: int) -> NDArray[np.bool_]:
    return np.repeat([True, False], [right, wrong])


def test_a_share_is_wilsons_and_scipys() -> None:
    # Newcombe, Two-sided confidence intervals for the single proportion (1998), table I: method 3.
    assert statistics.share_bounds(_hits(81, 182)) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert statistics.share_bounds(_hits(0, 20)) == pytest.approx((0.0, 0.1611), abs=5e-5)
    for right, wrong in ((0, 1), (3, 4), (40, 0), (649, 1)):
        expected = stats.binomtest(right, right + wrong).proportion_ci(statistics.CONFIDENCE, method="wilson")
        assert statistics.share_bounds(_hits(right, wrong)) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_paired_difference_on_few_images_is_worked_out_by_hand() -> None:
    first = np.repeat([True, True, False, False], [5, 9, 1, 5])
    second = np.repeat([True, False, True, False], [5, 9, 1, 5])
    # Half a case in each cell: 9.5 and 1.5 of 22; 8 / 22 -+ 1.959964 * sqrt(11 - 64 / 22) / 22.
    assert statistics.difference_bounds(first, second) == pytest.approx((0.110226, 0.617047), abs=1e-5)
    assert statistics.difference_bounds(second, first) == pytest.approx((-0.617047, -0.110226), abs=1e-5)


def _pairs(*classes: tuple[int, int, int, int]) -> Pairs:
    """Each class: how many both get right, only the teacher, only the student, none."""
    class_ids, teacher, student = [], [], []
    for class_id, counts in enumerate(classes):
        for (right_teacher, right_student), count in zip(((1, 1), (1, 0), (0, 1), (0, 0)), counts, strict=True):
            class_ids += [class_id] * count
            teacher += [right_teacher] * count
            student += [right_student] * count
    return Pairs(np.array(class_ids, np.int64), np.array(teacher, np.bool_), np.array(student, np.bool_))


def test_mcnemar_looks_at_the_disagreements_alone() -> None:
    for agreeing, (only_teacher, only_student) in product((0, 50), ((0, 0), (1, 0), (9, 2), (2, 9), (5, 5))):
        split = only_teacher + only_student
        expected = stats.binomtest(only_teacher, split).pvalue if split else 1
        pairs = _pairs((agreeing, only_teacher, only_student, agreeing))
        assert mcnemar(pairs.teacher, pairs.student) == pytest.approx(expected)


def test_rows_are_corrected_for_their_number_and_the_surest_stands_first() -> None:
    counts = [(10, 4, 2, 2), (3, 14, 0, 1), (4, 6, 1, 0), (5, 0, 8, 0)]
    counts.append((9, 5, 0, 1))  # five disagreements can never be enough
    raw = [stats.binomtest(t, t + s).pvalue for _, t, s, _ in counts if t + s > 5]
    rows = compared_classes(_pairs(*counts), ["a", "b", "c", "d", "e"])
    corrected = dict(zip("abcd", stats.false_discovery_control(raw), strict=True))
    assert {row.label: row.p_value for row in rows if row.label != "e"} == pytest.approx(corrected)
    assert [row.label for row in rows] == [*sorted("abcd", key=lambda label: corrected[label]), "e"]
    assert [row.label for row in rows if row.significant] == ["b", "d"]
    assert raw[3] < corrected["d"] < 0.05
    [b, *_, e] = rows
    assert (b.label, b.count, b.lost) == ("b", 18, 14)
    assert (b.teacher, b.student) == pytest.approx((17 / 18, 1 / 6))
    assert e.p_value is None
    assert compared_classes(_pairs(), []) == ()


def test_a_class_is_lost_if_half_of_it_is_and_no_chance_does_that() -> None:
    for counts, left in (((0, 6, 0, 3), 0), ((6, 6, 0, 0), 6), ((7, 6, 0, 0), None), ((0, 5, 0, 0), None)):
        said = lost_class(_pairs((50, 1, 1, 0), counts), ["red", "blue"], "FP32")
        found = counts[0] + counts[1]
        assert said == ("" if left is None else f"'blue' is lost: of {found} that FP32 finds {left} are left")
    assert "'b'" in lost_class(_pairs((3, 7, 0, 0), (0, 9, 1, 0)), ["a", "b"], "FP32")
