"""Labels of each kind: labels.csv, class folders, COCO's JSON, YOLO's text files, masks, and which of them is read."""

import io
import json
import os
import shutil
import struct
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_sdk.core.errors import DataError
from edge_sdk.tasks.spec import Task
from edge_sdk_tools.datasets.dataset import IGNORE, BoxTruth, ClassTruth, Dataset
from edge_sdk_tools.datasets.reading import read_dataset
from tests.support.configs import write_files
from tests.support.logs import refusal
from tests.support.projects import picture, write_pictures

CLASSES = (
    *("tench, Tinca tinca", "Cardigan, Cardigan Welsh corgi", "cardigan", "crane", "crane", "n02105412 kelpie"),
    *("crème brûlée", "great white shark, white shark", "polecat, fitch", "fitch"),
)


def _class_ids(dataset: Dataset) -> dict[str, int]:
    pairs = zip(dataset.images.images, dataset.truths, strict=True)
    return {image.path.stem: truth.class_id for image, truth in pairs if isinstance(truth, ClassTruth)}


def _skipped(dataset: Dataset) -> list[tuple[str, str]]:
    return [(skipped.path.name, skipped.reason) for skipped in dataset.images.skipped]


def test_labels_csv(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    for text, classes in (
        ("\ufefffile,class_id\r\n001.png,0\r\n\r\n000.png,2\r\n", {"000": 2, "001": 0}),
        (' File , Class_ID \n"./000.png", 2 \n"001.png",1.0', {"000": 2, "001": 1}),
        ('file,label\n000.png,"Tench, tinca TINCA"\n001.png,cardigan\n', {"000": 0, "001": 2}),
        ("file,class_id\n000.png,2\n000.png,2\n", {"000": 2}),
    ):
        (tmp_path / "labels.csv").write_text(text, encoding="utf-8", newline="")
        dataset = read_dataset(tmp_path, CLASSES, "classification")
        assert (_class_ids(dataset), dataset.format) == (classes, "labels.csv")


def test_labels_csv_names_files_in_folders_of_any_suffix(tmp_path: Path) -> None:
    write_pictures(tmp_path / "deep", 2)
    (tmp_path / "deep" / "001.png").rename(tmp_path / "deep" / "001.image")
    (tmp_path / "deep" / "x.heic").write_bytes(b"x")
    names = ("deep/000.png", "deep/001.image", "deep/x.heic", "labels.csv")
    (tmp_path / "labels.csv").write_text("file,class_id\n" + "".join(f"{name},1\n" for name in names))
    dataset = read_dataset(tmp_path, CLASSES, "classification")
    assert _class_ids(dataset) == {"000": 1, "001": 1}
    assert [s.path.name for s in dataset.images.skipped] == ["x.heic", "labels.csv"]


def test_class_folders_without_images_count_for_nothing(tmp_path: Path) -> None:
    write_pictures(tmp_path / "tench", 1)
    write_pictures(tmp_path, 1, first=7)
    write_files(tmp_path, {"no class/notes.txt": "nothing"})
    dataset = read_dataset(tmp_path, CLASSES, "classification")
    assert (_class_ids(dataset), _skipped(dataset)) == ({"000": 0}, [("007.png", "lies in no class folder")])


@pytest.mark.parametrize("rows", ["class_id\n000.png,0\n001.png,1\n", "label\n000.png,cat\n001.png,dog\n"])
def test_the_background_is_no_class(tmp_path: Path, rows: str) -> None:
    write_pictures(tmp_path, 2)
    labels = ("background", "cat", "dog")
    (tmp_path / "labels.csv").write_text(f"file,{rows}")
    assert _class_ids(read_dataset(tmp_path, labels, "classification", background_class=True)) == {"000": 0, "001": 1}
    (tmp_path / "labels.csv").write_text("file,class_id\n000.png,2\n")
    with pytest.raises(DataError, match="line 2: class_id is 2, expected 0 to 1"):
        read_dataset(tmp_path, labels, "classification", background_class=True)


def test_a_folder_is_named_by_label_synonym_or_class_id(tmp_path: Path) -> None:
    names = {"tench, Tinca tinca": 0, "Cardigan": 1, "cardigan": 2, "n02105412": 5, "n02105412_kelpie": 5, "fitch": 9}
    names |= {"n01440764_tench": 0, "Kelpie": 5, unicodedata.normalize("NFD", "Crème_brûlée"): 6}
    for place, (folder, class_id) in enumerate(names.items()):
        write_pictures(tmp_path / str(place) / folder / "deep", 1)
        dataset = read_dataset(tmp_path / str(place), CLASSES, "classification")
        assert (_class_ids(dataset), dataset.format) == ({"000": class_id}, "class folders"), folder


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["tench", "crane"], "crane: 'crane' is ambiguous, the classes 3 and 4 share it; name the class by its id"),
        (["tench", "kelpies"], "kelpies: 'kelpies' is no label of the model, expected one of 10 such as 'tench, Tinca"),
        ([*(f"a {n}" for n in range(30)), "tench"], "'a 0' is no label of the model (nor are 29 of the 30 names"),
        (["0", "10"], "10: class_id is 10, expected 0 to 9"),
        (["n00007846"], "give a labels file whose lines begin with WordNet ids, or name the folders as the labels"),
    ],
)
def test_folders_that_are_no_class_are_named(tmp_path: Path, folders: list[str], expected: str) -> None:
    for number, folder in enumerate(folders):
        write_pictures(tmp_path / folder, 1, first=number)
    said = refusal(DataError, read_dataset, tmp_path, CLASSES, "classification")
    assert said.startswith(f"{tmp_path}/")
    assert expected in said


@pytest.mark.parametrize(
    ("folders", "task"),
    [(["day", "night", "plane"], "classification"), (["tench", "crane"], "detection"), (["."], "segmentation")],
)
def test_other_folders_are_images_without_labels(tmp_path: Path, folders: list[str], task: Task) -> None:
    for number, folder in enumerate(folders):
        write_pictures(tmp_path / folder, 1, first=number)
    assert read_dataset(tmp_path, CLASSES, task).format == "images"


@pytest.mark.parametrize(
    ("kept", "task", "expected"),
    [
        ("labels.csv a.json labels masks tench", "classification", "labels.csv"),
        ("labels.csv a.json labels masks tench", "detection", "coco"),
        ("labels.csv", "detection", "holds classes (labels.csv), but the model's task is detection; expected boxes"),
        ("a.json", "classification", "holds boxes (a COCO .json), but the model's task is classification; expected"),
        ("masks", "detection", "holds masks (images/ beside masks/), but the model's task is detection"),
    ],
)
def test_of_several_formats_the_first_that_fits_is_read(tmp_path: Path, kept: str, task: Task, expected: str) -> None:
    write_pictures(tmp_path / "images", 2)
    if "masks" in kept:
        write_pictures(tmp_path / "masks", 2)
    if "tench" in kept:
        write_pictures(tmp_path / "tench", 1, first=5)
    coco = {"images": [{"id": 1, "file_name": "000.png"}], "annotations": [], "categories": []}
    texts = {"labels.csv": "file,class_id\nimages/000.png,1", "a.json": json.dumps(coco), "labels": "0 .5 .5 .1 .1"}
    for name in texts.keys() & kept.split():
        write_files(tmp_path, {"labels/000.txt" if name == "labels" else name: texts[name]})
    if " " in kept:
        assert read_dataset(tmp_path, CLASSES, task).format == expected
    else:
        assert expected in refusal(DataError, read_dataset, tmp_path, CLASSES, task)


OBJECTS = ("person", "cell phone", "dog")
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
    return {image.path.name: truth for image, truth in zip(dataset.images.images, dataset.truths, strict=True)}


def test_coco(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    (tmp_path / "labels.json").write_text(json.dumps(_coco()))
    dataset = read_dataset(tmp_path, OBJECTS, "detection")
    assert dataset.format == "coco"
    first, second, third = dataset.truths
    assert [one[:3] for one in first.objects] == [((1.5, 2.25, 11.5, 22.25), 1, False), ((46, 1, 50, 1), 0, False)]
    assert [one[1:3] for one in second.objects] == [(0, True)]
    assert third.objects == ()


@pytest.mark.parametrize(
    ("file", "images"),
    [("instances_val2017.json", "val2017"), ("annotations/instances_val2017.json", "images/val2017")],
)
def test_images_lie_near_the_json(tmp_path: Path, file: str, images: str) -> None:
    write_pictures(tmp_path / images, 3)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps(_coco()))
    for data in (tmp_path / file, tmp_path):
        dataset = read_dataset(data, OBJECTS, "detection")
        assert (len(dataset), dataset.format) == (3, "coco")


def test_an_image_of_another_size_than_was_annotated_is_skipped(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(2, width=48, height=40)).save(tmp_path / "002.png", exif=exif.tobytes())
    (tmp_path / "a.json").write_text(json.dumps(_coco()))
    dataset = read_dataset(tmp_path, OBJECTS, "detection")
    assert _skipped(dataset) == [("002.png", "40x48 pixels, its labels were drawn on 48x40")]


def test_ids_may_be_strings_and_sizes_left_out(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    images = [{"id": "one", "file_name": "./000.png"}, {"id": "two", "file_name": "002.png"}]
    whole = _coco(images=images, annotations=[_annotation("one", 1, [1, 2, 3, 4])])
    (tmp_path / "a.json").write_text(json.dumps(whole))
    dataset = read_dataset(tmp_path, OBJECTS, "detection")
    assert [one.class_id for one in _boxes(dataset)["000.png"].objects] == [0]
    assert _skipped(dataset) == [("002.png", "listed in a.json and not there")]


def test_other_json_beside_it_is_passed_over(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(_coco(), indent=1).encode())
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "._a.json").write_text(json.dumps(_coco()))
    os.mkfifo(tmp_path / "other.json")
    assert len(read_dataset(tmp_path, OBJECTS, "detection")) == 3
    (tmp_path / "b.json").write_text(json.dumps(_coco()))
    with pytest.raises(DataError, match=r"2 COCO files in it \(a.json, b.json\), expected one; give the .json"):
        read_dataset(tmp_path, OBJECTS, "detection")


def test_yolo(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 1)
    for line, class_id, box_xyxy in (
        ("1 0.5 0.5 0.25 0.5", 1, [0.375, 0.25, 0.625, 0.75]),
        ("2.0\t.5 .5 1 1e0 ", 2, [0, 0, 1, 1]),
        ("1 0.1 0.2 0.5 0.9 0.3 0.4 -0.0005 1.0005", 1, [0, 0.2, 0.5, 1]),
        ("0 0.5 0.5 0.25 0.5 0.4 0.4 2 0.5 0.6 1 0 0 0", 0, [0.375, 0.25, 0.625, 0.75]),
        ("0 0.5 0.5 0.25 0.5" + " 0.4 0.4 2" * 4, 0, [0.375, 0.25, 0.625, 0.75]),
        ("0 0.5 0.5 0.25 0.5 0.4 0.4 1 0.3 0.6 1", 0, [0.25, 0.3, 1, 1]),
    ):
        write_files(tmp_path, {"labels/000.txt": f"{line}\n\n0 .5 .5 .1 .1"})
        dataset = read_dataset(tmp_path, OBJECTS, "detection")
        [truth] = dataset.truths
        assert dataset.format == "yolo"
        assert [one[1:3] for one in truth.objects] == [(class_id, False), (0, False)]
        assert truth.objects[0].box_xyxy == pytest.approx(np.array(box_xyxy) * [48, 40, 48, 40], abs=1e-12)


def test_yolo_lines_with_more_than_a_box(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 1)
    for lines, keypoints, outlines, points in (
        ("0 .5 .5 1 1 .2 .4 2 0 0 0 .3 .4 1", 0, [None], [[[9.6, 16, 1], [0, 0, 0], [14.4, 16, 1]]]),
        ("0 .5 .5 1 1 .2 .4 0 0", 2, [None], [[[9.6, 16, 1], [0, 0, 0]]]),
        ("0 .5 .5 1 1 .2 .4 .3 .4", 0, [[[[24, 20], [48, 40], [9.6, 16], [14.4, 16]]]], [None]),
        ("0 .5 .5 1 1 .2 .4 .3 .4\n0 .5 .5 1 1", 0, [[[[24, 20], [48, 40], [9.6, 16], [14.4, 16]]], None], [None] * 2),
        ("", 0, [], []),
    ):
        write_files(tmp_path, {"labels/000.txt": lines})
        [truth] = read_dataset(tmp_path, OBJECTS, "detection", keypoints=keypoints).truths
        for one, *expected in zip(truth.objects, outlines, points, strict=True):
            for got, wanted in zip((one.outline, one.keypoints), expected, strict=True):
                assert got is wanted or np.array(got) == pytest.approx(np.array(wanted))


def test_yolo_labels_lie_as_their_images_do(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images" / "val" / "day", 2)
    write_pictures(tmp_path / "images", 1, first=5)
    texts = {"val/day/001.txt": "2 .5 .5 .1 .1\r\n1 .5 .5 .1 .1", "000.txt": "0 .5 .5 .1 .1", "classes.txt": "person"}
    write_files(tmp_path / "labels", texts)
    dataset = read_dataset(tmp_path, OBJECTS, "detection")
    assert _skipped(dataset) == [("000.txt", "no image of this name in images/")]
    for folder, more in (("", {"005.png": []}), ("images/val", {})):
        dataset = read_dataset(tmp_path / folder, OBJECTS, "detection")
        found = {name: [one.class_id for one in truth.objects] for name, truth in _boxes(dataset).items()}
        assert found == {"000.png": [], "001.png": [2, 1]} | more


LABELS = ("road", "car", "sky")
IDS = np.resize(np.array([0, 1, 2, IGNORE], np.uint8), (40, 48))


def _png(ids: np.ndarray = IDS, mode: str = "L", **more: object) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(ids)
    if mode == "P":
        # No conversion of these colours to grey levels could lead back to the class ids.
        image.putpalette([(7 * i + c) % 256 for i in range(256) for c in (200, 90, 30)])
    elif mode != "L":
        image = image.convert(mode)
    image.save(buffer, "PNG", **more)
    return buffer.getvalue()


def _masks(folder: Path, data: bytes) -> Path:
    write_pictures(folder / "images", 1)
    (folder / "masks").mkdir(exist_ok=True)
    (folder / "masks" / "000.png").write_bytes(data)
    return folder


def test_masks_are_class_ids(tmp_path: Path) -> None:
    for data, ids in ((_png(), IDS), (_png(mode="P"), IDS), (_png(IDS % 3, mode="P", bits=2), IDS % 3)):
        dataset = read_dataset(_masks(tmp_path, data), LABELS, "segmentation")
        mask = dataset.truths[0].read()
        assert (dataset.format, mask.dtype, np.array_equal(mask, ids)) == ("masks", np.uint8, True)


def test_masks_lie_as_their_images_do(tmp_path: Path) -> None:
    _masks(tmp_path, _png())
    write_pictures(tmp_path / "images" / "deep", 2, first=5)
    (tmp_path / "masks" / "deep").mkdir()
    for name in ("deep/006.png", "007.png"):
        (tmp_path / "masks" / name).write_bytes(_png())
    dataset = read_dataset(tmp_path, LABELS, "segmentation")
    assert [i.path.name for i in dataset.images.images] == ["000.png", "006.png"]
    reasons = {"005.png": "no mask of this name in masks/", "007.png": "no image of this name in images/"}
    assert dict(_skipped(dataset)) == reasons
    for image in dataset.images.images:
        image.path.unlink()
    with pytest.raises(DataError, match=r"not one image has a mask, expected masks/NAME\.png for images/NAME\.jpg"):
        read_dataset(tmp_path, LABELS, "segmentation")


def test_what_is_no_mask_is_refused_at_once(tmp_path: Path) -> None:
    for data, expected in (
        (_png(mode="RGB"), "the mask holds RGB colours; expected a PNG of 8-bit grey levels or of palette indices"),
        (_png()[:24] + b"\4" + _png()[25:], "the mask holds 4-bit grey levels; expected"),
        (_png()[:20], "the mask is no PNG; expected"),
        (_png()[:16] + struct.pack(">II", 40000, 40000) + _png()[24:], "the mask has 40000x40000 pixels, expected 67"),
    ):
        said = refusal(DataError, read_dataset, _masks(tmp_path, data), LABELS, "segmentation")
        assert said.startswith(f"{tmp_path / 'masks' / '000.png'}: {expected}")


def test_what_only_reading_shows_is_refused(tmp_path: Path) -> None:
    for change, expected in (
        (lambda path: path.write_bytes(_png(IDS % 3 + 1)), "the mask holds class 3, expected 0 to 2, or 255 for what"),
        (lambda path: path.write_bytes(_png()[:-30]), "mask cannot be decoded; copy or export it again"),
        (lambda path: path.unlink(), "mask cannot be read: No such file"),
    ):
        [truth] = read_dataset(_masks(tmp_path, _png()), LABELS, "segmentation").truths
        change(truth.path)
        assert refusal(DataError, truth.read).startswith(f"{truth.path}: {expected}")


@pytest.mark.parametrize(
    ("file", "first", "second", "task", "conflicts"),
    [
        ("labels/{}.txt", b"0 .5 .5 .1 .1", b"0 .5 .5 .1 .1", "detection", 0),
        ("labels/{}.txt", b"0 .5 .5 .1 .1", b"0 .5 .5 .1 .2", "detection", 1),
        ("labels/{}.txt", b"0 .5 .5 .1 .1", b"", "detection", 1),
        ("masks/{}.png", _png(), _png(), "segmentation", 0),
        ("masks/{}.png", _png(), _png(IDS % 3), "segmentation", 1),
        ("labels.csv", b"", b"file,class_id\nimages/copy.png,0\nimages/000.png,0\n", "classification", 0),
        ("labels.csv", b"", b"file,class_id\nimages/copy.png,0\nimages/000.png,1\n", "classification", 1),
    ],
)
def test_the_same_picture_with_other_labels_is_counted(
    tmp_path: Path, file: str, first: bytes, second: bytes, task: Task, conflicts: int
) -> None:
    """Of images with the same content, the first one by name is used."""
    write_pictures(tmp_path / "images", 1)
    shutil.copy(tmp_path / "images" / "000.png", tmp_path / "images" / "copy.png")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file.format("000")).write_bytes(first)
    (tmp_path / file.format("copy")).write_bytes(second)
    dataset = read_dataset(tmp_path, LABELS, task)
    assert [image.path.name for image in dataset.images.images] == ["000.png"]
    assert (dataset.duplicates, dataset.conflicts) == (1, conflicts)
