"""Boxes: COCO's JSON and YOLO's text files, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from edge_sdk.errors import DataError
from edge_sdk_tools.dataset import BoxTruth, Dataset, read_dataset
from tests.support.projects import picture, write_pictures

LABELS = ("person", "cell phone", "dog")
CATEGORIES = [{"id": 7, "name": "Cell Phone"}, {"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}]


def _annotation(image_id: object, category_id: int, bbox: list[float], **more: object) -> dict[str, object]:
    return {"image_id": image_id, "category_id": category_id, "bbox": bbox, **more}


def _coco(count: int = 3, **more: object) -> dict[str, object]:
    """Pictures of 48 x 40; the first has two objects, the second a crowd, others none."""
    return {
        "info": {"year": 2017},
        "images": [{"id": i, "file_name": f"{i:03}.png", "width": 48, "height": 40} for i in range(count)],
        "annotations": [
            _annotation(0, 7, [1.5, 2.25, 10, 20], id=5, segmentation=[[1, 2, 3]], area=3.5),
            _annotation(1, 1, [0, 0, 48, 40], id=6, iscrowd=1, segmentation={"counts": "x"}),
            _annotation(0, 1, [46, 1, 4, 0], id=7, iscrowd=0),
        ],
        "categories": CATEGORIES,
        **more,
    }


def _boxes(dataset: Dataset) -> dict[str, BoxTruth]:
    assert dataset.truths is not None
    pairs = zip(dataset.images.images, dataset.truths, strict=True)
    return {image.path.name: truth for image, truth in pairs if isinstance(truth, BoxTruth)}


def test_coco(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    (tmp_path / "labels.json").write_text(json.dumps(_coco()))
    dataset = read_dataset(tmp_path, LABELS, "detection")
    boxes = _boxes(dataset)
    assert dataset.format == "coco"
    first, second, third = boxes["000.png"], boxes["001.png"], boxes["002.png"]
    assert first.boxes_xyxy.tolist() == [[1.5, 2.25, 11.5, 22.25], [46, 1, 50, 1]]
    assert (first.class_ids.tolist(), first.crowd.tolist(), first.relative) == ([1, 0], [False, False], False)
    assert (second.class_ids.tolist(), second.crowd.tolist()) == ([0], [True])
    assert (third.boxes_xyxy.shape, third.boxes_xyxy.dtype) == ((0, 4), np.float64)
    assert first.in_pixels((480, 400)) is first.boxes_xyxy


def test_boxes_are_those_of_pycocotools_to_the_last_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(tmp_path, 4)
    random = np.random.default_rng(0)
    drawn = [_annotation(int(i), 1, (random.random(4) * 20).tolist(), id=n) for n, i in enumerate([0, 3, 0, 2, 0, 3])]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(_coco(4, annotations=[{**a, "area": 1, "iscrowd": 0} for a in drawn])))
    reference = COCO(str(path))
    for name, truth in _boxes(read_dataset(path, LABELS, "detection")).items():
        bboxes = np.array([a["bbox"] for a in reference.imgToAnns[int(name[:3])]]).reshape(-1, 4)
        assert np.array_equal(truth.boxes_xyxy[:, :2], bboxes[:, :2])
        assert np.array_equal(truth.boxes_xyxy[:, 2:], bboxes[:, :2] + bboxes[:, 2:])


@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("coco.json", "."),
        ("coco.json", "images"),
        ("my_street.json", "my_street"),
        ("instances_val2017.json", "val2017"),
        ("instances_val2017.json", "images/val2017"),
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("annotations/instances_val2017.json", "."),
    ],
)
def test_images_lie_near_the_json(tmp_path: Path, file: str, images: str) -> None:
    write_pictures(tmp_path / images, 3)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps(_coco()))
    for data in (tmp_path / file, tmp_path):
        dataset = read_dataset(data, LABELS, "detection")
        assert (len(dataset), dataset.format) == (3, "coco")


def test_images_that_are_not_there_are_skipped_and_named(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    (tmp_path / "a.json").write_text(json.dumps(_coco(5)))
    dataset = read_dataset(tmp_path, LABELS, "detection")
    assert [s.path.name for s in dataset.images.skipped] == ["002.png", "003.png", "004.png"]
    assert {s.reason for s in dataset.images.skipped} == {"listed in a.json and not there"}
    assert len(dataset) == 2


def test_an_image_of_another_size_than_was_annotated_is_skipped(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(2, width=48, height=40)).save(tmp_path / "002.png", exif=exif.tobytes())
    (tmp_path / "a.json").write_text(json.dumps(_coco()))
    dataset = read_dataset(tmp_path, LABELS, "detection")
    assert [(s.path.name, s.reason) for s in dataset.images.skipped] == [
        ("002.png", "40x48 pixels, its labels were drawn on 48x40")
    ]


def test_ids_may_be_strings_and_sizes_left_out(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    images = [{"id": "one", "file_name": "./000.png"}]
    (tmp_path / "a.json").write_text(
        json.dumps(_coco(images=images, annotations=[_annotation("one", 1, [1, 2, 3, 4])]))
    )
    assert _boxes(read_dataset(tmp_path, LABELS, "detection"))["000.png"].class_ids.tolist() == [0]


def test_other_json_beside_it_is_passed_over(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(_coco(), indent=1).encode())
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "._a.json").write_text(json.dumps(_coco()))
    assert len(read_dataset(tmp_path, LABELS, "detection")) == 3
    (tmp_path / "b.json").write_text(json.dumps(_coco()))
    with pytest.raises(DataError, match=r"2 COCO files in it \(a.json, b.json\), expected one; give the .json"):
        read_dataset(tmp_path, LABELS, "detection")


def _yolo(folder: Path, *lines: str) -> Path:
    write_pictures(folder / "images", 1)
    (folder / "labels").mkdir()
    (folder / "labels" / "000.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("line", "class_id", "box_xyxy"),
    [
        ("1 0.5 0.5 0.25 0.5", 1, [0.375, 0.25, 0.625, 0.75]),
        ("2.0\t.5 .5 1 1e0 ", 2, [0, 0, 1, 1]),
        ("0 0.5 0.5 1.001 1.001", 0, [0, 0, 1, 1]),
        ("0 0.25 0.25 0 0", 0, [0.25, 0.25, 0.25, 0.25]),
        ("1 0.1 0.2 0.5 0.9 0.3 0.4", 1, [0.1, 0.2, 0.5, 0.9]),
        ("1 0.1 0.2 0.5 0.9 0.3 0.4 -0.0005 1.0005", 1, [0, 0.2, 0.5, 1]),
    ],
)
def test_yolo(tmp_path: Path, line: str, class_id: int, box_xyxy: list[float]) -> None:
    dataset = read_dataset(_yolo(tmp_path, line, "", "0 .5 .5 .1 .1"), LABELS, "detection")
    truth = _boxes(dataset)["000.png"]
    assert dataset.format == "yolo"
    assert truth.boxes_xyxy[0] == pytest.approx(box_xyxy, abs=1e-12)
    assert (truth.class_ids.tolist(), truth.crowd.tolist(), truth.relative) == ([class_id, 0], [False, False], True)
    assert truth.in_pixels((48, 40))[0] == pytest.approx(np.array(box_xyxy) * [48, 40, 48, 40])


def test_yolo_labels_lie_as_their_images_do(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images" / "val" / "day", 2)
    write_pictures(tmp_path / "images", 1, first=5)
    (tmp_path / "labels" / "val" / "day").mkdir(parents=True)
    (tmp_path / "labels" / "val" / "day" / "001.txt").write_text("2 .5 .5 .1 .1\r\n1 .5 .5 .1 .1")
    (tmp_path / "labels" / "000.txt").write_text("0 .5 .5 .1 .1")
    (tmp_path / "labels" / "classes.txt").write_text("person\n")
    dataset = read_dataset(tmp_path, LABELS, "detection")
    assert {n: t.class_ids.tolist() for n, t in _boxes(dataset).items()} == {
        "000.png": [],
        "001.png": [2, 1],
        "005.png": [],
    }
    assert [(s.path.name, s.reason) for s in dataset.images.skipped] == [
        ("000.txt", "no image of this name in images/")
    ]


@pytest.mark.parametrize(("second", "conflicts"), [("0 .5 .5 .1 .1\n", 0), ("0 .5 .5 .1 .2\n", 1), ("", 1)])
def test_the_same_picture_with_other_boxes_is_counted(tmp_path: Path, second: str, conflicts: int) -> None:
    _yolo(tmp_path, "0 .5 .5 .1 .1")
    (tmp_path / "images" / "copy.png").write_bytes((tmp_path / "images" / "000.png").read_bytes())
    (tmp_path / "labels" / "copy.txt").write_text(second)
    dataset = read_dataset(tmp_path, LABELS, "detection")
    assert (len(dataset), dataset.duplicates, dataset.conflicts) == (1, 1, conflicts)
