"""Class maps painted over pictures, and the legend."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.annotate import Annotator
from edge_sdk.annotate.annotator import class_colour
from edge_sdk.frame import NO_CLASS, Frame, Geometry, Image, Segmentation

GREY = 90
LABELS = ["background", "road", "car", "tree"]


def _grey(width: int, height: int) -> Image:
    return np.full((height, width, 3), GREY, np.uint8)


def _segmentation(image: Image, class_map: np.ndarray, labels: int = 4) -> Segmentation:
    height, width = image.shape[:2]
    rows, columns = class_map.shape
    shares = np.bincount(class_map.ravel(), minlength=256)[:labels] / class_map.size
    return Segmentation(
        frame=Frame(image, 0, 0.0, 0, "c"),
        inference_ns=1,
        class_map=class_map.astype(np.uint8),
        geometry=Geometry(columns / width, rows / height, 0.0, 0.0),
        shares=shares.astype(np.float32),
    )


def _tags(image: Image, class_id: int) -> np.ndarray:
    """Rows in which the legend shows a class: its tag is wide and of the full colour, unlike the lines."""
    here = (image == class_colour(class_id)).all(axis=2)[:, :60]
    return np.flatnonzero(here.sum(axis=1) > 20)


def test_classes_are_painted_where_they_are_and_the_background_is_not() -> None:
    class_map = np.zeros((4, 4), np.uint8)
    class_map[2:, 2:] = 1
    class_map[2:, :2] = NO_CLASS
    image = _grey(400, 400)
    Annotator(LABELS).draw(image, _segmentation(image.copy(), class_map))
    expected = 0.6 * GREY + 0.4 * np.array(class_colour(1))
    assert image[300, 300] == pytest.approx(expected, abs=1)
    for y, x in ((150, 300), (199, 300), (300, 100), (300, 199)):
        assert image[y, x].tolist() == [GREY] * 3


@pytest.mark.parametrize("label", ["background", "__background__", "Background"])
def test_the_background_is_known_by_its_label(label: str) -> None:
    image = _grey(200, 200)
    Annotator([label, "road"]).draw(image, _segmentation(image.copy(), np.zeros((4, 4), np.uint8), 2))
    assert (image == GREY).all()
    Annotator(["road", label]).draw(image, _segmentation(image.copy(), np.zeros((4, 4), np.uint8), 2))
    assert (image[150:] != GREY).any(axis=2).all()


def test_a_line_runs_along_the_border_of_a_class() -> None:
    class_map = np.ones((2, 2), np.uint8)
    class_map[:, 1] = 2
    image = _grey(1280, 720)
    Annotator(LABELS).draw(image, _segmentation(image.copy(), class_map))
    assert image[500, 639].tolist() == list(class_colour(1))
    assert image[500, 640].tolist() == list(class_colour(2))
    assert image[500, 600].tolist() != list(class_colour(1))


def test_the_legend_names_the_largest_first_and_leaves_specks_and_background_out() -> None:
    class_map = np.zeros((20, 20), np.uint8)
    class_map[10:, :] = 2
    class_map[5:10, :8] = 3
    class_map[0, 0] = 1
    image = _grey(640, 360)
    result = _segmentation(image.copy(), class_map)
    Annotator(LABELS).draw(image, result)
    assert 0 < _tags(image, 2).min() < _tags(image, 3).min()
    assert not len(_tags(image, 0))
    assert not len(_tags(_drawn(class_map, [0.4, 0.004, 0.5, 0.09]), 1))
    assert len(_tags(_drawn(class_map, [0.4, 0.006, 0.5, 0.09]), 1))


def _drawn(class_map: np.ndarray, shares: list[float]) -> Image:
    image = _grey(640, 360)
    result = _segmentation(image.copy(), class_map)
    result.shares[:] = shares
    Annotator(LABELS).draw(image, result)
    return image


def test_the_legend_has_five_classes_and_leaves_half_of_the_picture_free() -> None:
    class_map = np.arange(64, dtype=np.uint8).reshape(8, 8) % 8
    labels = [f"label {i}" for i in range(8)]
    image = _grey(640, 360)
    Annotator(labels).draw(image, _segmentation(image.copy(), class_map, 8))
    assert [len(_tags(image, i)) > 0 for i in range(8)] == [True] * 5 + [False] * 3
    low = _grey(320, 60)
    Annotator(labels).draw(low, _segmentation(low.copy(), class_map, 8))
    assert [len(_tags(low, i)) > 0 for i in range(8)] == [True] * 2 + [False] * 6


@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 2), (20, 10), (641, 359)])
def test_any_size_of_picture_and_map(width: int, height: int) -> None:
    for class_map in (np.full((1, 1), 3, np.uint8), np.full((90, 70), NO_CLASS, np.uint8)):
        image = _grey(width, height)
        Annotator(["Äpfel" * 40, "", "b", "c"]).draw(image, _segmentation(image.copy(), class_map))
        assert image.shape == (height, width, 3)
        assert bool((image == GREY).all()) == bool(class_map[0, 0] == NO_CLASS)


def test_a_classifiers_background_does_not_move_the_names_of_segments() -> None:
    class_map = np.ones((4, 4), np.uint8)
    drawn = []
    for background_class in (False, True):
        image = _grey(640, 360)
        annotator = Annotator(LABELS, background_class=background_class)
        annotator.draw(image, _segmentation(image.copy(), class_map))
        drawn.append(image)
    np.testing.assert_array_equal(drawn[0], drawn[1])
