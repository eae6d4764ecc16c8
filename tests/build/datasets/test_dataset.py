"""Sets of images: what is found, told apart by content, split and picked; truths stay with their images."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.errors import DataError
from edge_sdk_tools.dataset import ClassTruth, Dataset, find_images, read_dataset
from tests.support.projects import picture, write_pictures


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
    with pytest.raises(DataError, match=r"000\.png: cannot be decoded"):
        image.read()
    image.path.unlink()
    with pytest.raises(DataError, match=r"000\.png: cannot be read any more: No such file"):
        image.read()


def test_grey_and_transparent_pictures_come_as_three_channels(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "grey.png"), np.zeros((8, 8), np.uint8))
    cv2.imwrite(str(tmp_path / "alpha.png"), np.ones((8, 8, 4), np.uint8))
    assert {i.read().shape for i in find_images([tmp_path]).images} == {(8, 8, 3)}


@pytest.mark.parametrize(
    "name", [".hidden.png", "._000.png", ".DS_Store", ".cache/000.png", "notes.txt", "Thumbs.db", "000.json"]
)
def test_hidden_files_and_other_files_are_passed_over(tmp_path: Path, name: str) -> None:
    write_pictures(tmp_path, 2)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"no image")
    images = find_images([tmp_path])
    assert (len(images), images.skipped) == (2, ())


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    write_pictures(tmp_path / "elsewhere", 3)
    folder = write_pictures(tmp_path / "data" / "inside", 1, first=5).parent
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "inside" / "loop").symlink_to(folder)
    images = find_images([folder])
    assert [str(i.path.relative_to(folder)) for i in images.images] == [
        "inside/005.png",
        "linked/000.png",
        "linked/001.png",
        "linked/002.png",
    ]


@pytest.mark.parametrize("decode", [True, False])
def test_images_come_in_order_of_their_paths_with_their_size(tmp_path: Path, decode: bool) -> None:
    for name in ("b.png", "a/z.png", "c/a.png", "B.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / name), picture(sum(map(ord, name)), width=30, height=20))
    images = find_images([tmp_path], decode=decode).images
    assert [str(i.path.relative_to(tmp_path)) for i in images] == ["B.png", "a/z.png", "b.png", "c/a.png"]
    assert {i.size_wh for i in images} == {(30, 20)}


def test_a_damaged_image_is_found_by_decoding_it_or_when_it_is_read(tmp_path: Path) -> None:
    data = (write_pictures(tmp_path, 2) / "000.png").read_bytes()
    (tmp_path / "000.png").write_bytes(data[: len(data) // 2])
    decoded = find_images([tmp_path])
    assert [i.path.name for i in decoded.images] == ["001.png"]
    assert decoded.unreadable == (tmp_path / "000.png",)
    looked_at = find_images([tmp_path], decode=False)
    assert looked_at.skipped == ()
    with pytest.raises(DataError, match=r"000\.png: cannot be decoded"):
        looked_at.images[0].read()


def _classes(folder: Path, count: int = 9) -> Dataset:
    write_pictures(folder, count)
    lines = "".join(f"{i:03}.png,{i}\n" for i in range(count))
    (folder / "labels.csv").write_text(f"file,class_id\n{lines}")
    return read_dataset(folder, [f"label {i}" for i in range(count)], "classification")


def _ids(dataset: Dataset) -> list[tuple[str, int]]:
    assert dataset.truths is not None
    pairs = zip(dataset.images.images, dataset.truths, strict=True)
    return [(image.path.stem, truth.class_id) for image, truth in pairs if isinstance(truth, ClassTruth)]


def test_truths_stay_with_their_images(tmp_path: Path) -> None:
    dataset = _classes(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "004.png").unlink()
    assert _ids(dataset.spread(3)) == [("000", 0), ("004", 4), ("008", 8)]
    assert dataset.spread(9) is dataset
    assert _ids(dataset.without(find_images([tmp_path / "b"]))) == [("004", 4)]
    assert _ids(dataset.picked([8, 1])) == [("008", 8), ("001", 1)]
    assert len(dataset) == 9


def test_images_without_labels_have_no_truths(tmp_path: Path) -> None:
    write_pictures(tmp_path / "day", 2)
    write_pictures(tmp_path / "night", 3)
    dataset = read_dataset(tmp_path, ["cat", "dog"], "classification")
    assert (len(dataset), dataset.truths, dataset.format, dataset.duplicates) == (3, None, "images", 2)
    assert dataset.spread(2).truths is None


@pytest.mark.parametrize(("other", "conflicts"), [(0, 0), (1, 1)])
def test_of_the_same_content_the_first_stays(tmp_path: Path, other: int, conflicts: int) -> None:
    write_pictures(tmp_path, 2)
    shutil.copy(tmp_path / "000.png", tmp_path / "zz.png")
    (tmp_path / "labels.csv").write_text(f"file,class_id\nzz.png,{other}\n001.png,1\n000.png,0\n")
    dataset = read_dataset(tmp_path, ["cat", "dog"], "classification")
    assert _ids(dataset) == [("000", 0), ("001", 1)]
    assert (dataset.duplicates, dataset.conflicts) == (1, conflicts)
