"""Agreement and datasets: counted by hand."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.errors import DataError
from edge_sdk.frame import Detections, Frame
from edge_sdk_tools.dataset import find_images
from edge_sdk_tools.evaluate import box_iou, match_detections
from edge_sdk_tools.host_latency import interleaved_latency_ms
from tests.host.images import picture, write_pictures

FRAME = Frame(np.zeros((100, 100, 3), np.uint8), 0, 0.0, 0, "camera")


def _detections(*items: tuple[float, float, float, float, float, int]) -> Detections:
    array = np.array(items, np.float32).reshape(-1, 6)
    order = np.argsort(-array[:, 4])
    array = array[order]
    return Detections(FRAME, 0, array[:, :4], array[:, 4], array[:, 5].astype(np.int64))


def test_iou_of_known_boxes() -> None:
    a = np.array([[0, 0, 10, 10], [0, 0, 0, 0]], np.float32)
    b = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30], [0, 0, 0, 0]], np.float32)
    assert box_iou(a, b) == pytest.approx(np.array([[1, 1 / 3, 0, 0], [0, 0, 0, 0]]))


@pytest.mark.parametrize(
    ("got", "expected", "matched"),
    [
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 10, 0.5, 1)], 1),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 10, 0.5, 2)], 0),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 20, 0.5, 1)], 1),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 21, 0.5, 1)], 0),
        ([(0, 0, 10, 10, 0.9, 1), (0, 0, 10, 10, 0.8, 1)], [(0, 0, 10, 10, 0.5, 1)], 1),
        ([], [(0, 0, 10, 10, 0.5, 1)], 0),
        ([(0, 0, 10, 10, 0.9, 1)], [], 0),
    ],
)
def test_matching_is_one_to_one(got: list, expected: list, matched: int) -> None:
    assert match_detections(_detections(*got), _detections(*expected)) == matched


def test_the_same_content_counts_once(tmp_path: Path) -> None:
    write_pictures(tmp_path / "a", 3)
    write_pictures(tmp_path / "b" / "deep", 4)
    images = find_images([tmp_path / "a", tmp_path / "b"])
    assert len(images) == 4
    assert len(images.without(find_images([tmp_path / "a"]))) == 1


@pytest.mark.parametrize(("count", "kept", "held"), [(2, 1, 1), (3, 2, 1), (4, 3, 1), (8, 6, 2), (100, 75, 25)])
def test_every_fourth_image_is_held_out(tmp_path: Path, count: int, kept: int, held: int) -> None:
    calibration, evaluation = find_images([write_pictures(tmp_path, count)]).hold_out()
    assert (len(calibration), len(evaluation)) == (kept, held)
    assert len(calibration.without(evaluation)) == kept


def test_spread_takes_first_and_last(tmp_path: Path) -> None:
    images = find_images([write_pictures(tmp_path, 9)])
    assert [i.path.stem for i in images.spread(3).images] == ["000", "004", "008"]
    assert images.spread(20) is images


def test_an_image_that_goes_away_is_an_error(tmp_path: Path) -> None:
    [image] = find_images([write_pictures(tmp_path, 1)]).images
    assert np.array_equal(image.read(), picture(0))
    image.path.write_bytes(b"gone")
    with pytest.raises(DataError, match="cannot be read any more"):
        image.read()


def test_grey_and_transparent_pictures_come_as_three_channels(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "grey.png"), np.zeros((8, 8), np.uint8))
    cv2.imwrite(str(tmp_path / "alpha.png"), np.ones((8, 8, 4), np.uint8))
    assert {i.read().shape for i in find_images([tmp_path]).images} == {(8, 8, 3)}


def test_latency_is_measured_in_turn() -> None:
    calls: list[str] = []
    medians = interleaved_latency_ms([lambda: calls.append("a"), lambda: calls.append("b")])
    assert len(medians) == 2
    assert calls[4:8] == ["a", "b", "a", "b"]
