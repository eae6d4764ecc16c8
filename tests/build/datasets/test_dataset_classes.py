"""A class an image: labels.csv and class folders, and which format is chosen."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import get_args

import pytest

from edge_sdk.errors import DataError
from edge_sdk.model_spec import Task
from edge_sdk_tools.dataset import ClassTruth, Dataset, read_dataset
from tests.support.projects import write_pictures

LABELS = (
    "tench, Tinca tinca",
    "Cardigan, Cardigan Welsh corgi",
    "cardigan",
    "crane",
    "crane",
    "n02105412 kelpie",
    "crème brûlée",
    "great white shark, white shark",
    "polecat, fitch",
    "fitch",
)


def _classes(dataset: Dataset) -> dict[str, int]:
    assert dataset.truths is not None
    pairs = zip(dataset.images.images, dataset.truths, strict=True)
    return {image.path.stem: truth.class_id for image, truth in pairs if isinstance(truth, ClassTruth)}


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("file,class_id\n000.png,2\n001.png,0\n", {"000": 2, "001": 0}),
        ("\ufefffile,class_id\r\n001.png,0\r\n\r\n000.png,2\r\n", {"000": 2, "001": 0}),
        (' File , Class_ID \n"./000.png", 2 \n"001.png",1.0', {"000": 2, "001": 1}),
        ('file,label\n000.png,"Tench, tinca TINCA"\n001.png,cardigan\n', {"000": 0, "001": 2}),
        ("file,class_id\n000.png,2\n000.png,2\n", {"000": 2}),
    ],
)
def test_labels_csv(tmp_path: Path, text: str, classes: dict[str, int]) -> None:
    write_pictures(tmp_path, 3)
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8", newline="")
    dataset = read_dataset(tmp_path, LABELS, "classification")
    assert _classes(dataset) == classes
    assert dataset.format == "labels.csv"


def test_labels_csv_names_files_in_folders_of_any_suffix(tmp_path: Path) -> None:
    write_pictures(tmp_path / "deep", 2)
    (tmp_path / "deep" / "001.png").rename(tmp_path / "deep" / "001.image")
    (tmp_path / "deep" / "x.heic").write_bytes(b"x")
    names = ("deep/000.png", "deep/001.image", "deep/x.heic", "labels.csv")
    (tmp_path / "labels.csv").write_text("file,class_id\n" + "".join(f"{name},1\n" for name in names))
    dataset = read_dataset(tmp_path, LABELS, "classification")
    assert _classes(dataset) == {"000": 1, "001": 1}
    assert [s.path.name for s in dataset.images.skipped] == ["x.heic", "labels.csv"]


def test_the_background_is_no_class(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    (tmp_path / "labels.csv").write_text("file,class_id\n000.png,0\n001.png,1\n")
    labels = ("background", "cat", "dog")
    assert _classes(read_dataset(tmp_path, labels, "classification", background_class=True)) == {"000": 0, "001": 1}
    (tmp_path / "labels.csv").write_text("file,label\n000.png,cat\n001.png,dog\n")
    assert _classes(read_dataset(tmp_path, labels, "classification", background_class=True)) == {"000": 0, "001": 1}
    (tmp_path / "labels.csv").write_text("file,class_id\n000.png,2\n")
    with pytest.raises(DataError, match="line 2: class_id is 2, expected 0 to 1"):
        read_dataset(tmp_path, labels, "classification", background_class=True)


@pytest.mark.parametrize(
    ("folder", "class_id"),
    [
        ("tench, Tinca tinca", 0),
        ("Tench", 0),
        ("tinca_TINCA", 0),
        ("Cardigan", 1),
        ("cardigan", 2),
        ("n02105412", 5),
        ("Kelpie", 5),
        ("n02105412_kelpie", 5),
        (unicodedata.normalize("NFD", "Crème_brûlée"), 6),
        ("3", 3),
        ("004", 4),
        ("polecat", 8),
        ("fitch", 9),
    ],
)
def test_a_folder_is_named_by_label_synonym_or_class_id(tmp_path: Path, folder: str, class_id: int) -> None:
    write_pictures(tmp_path / folder / "deep", 1)
    dataset = read_dataset(tmp_path, LABELS, "classification")
    assert (_classes(dataset), dataset.format) == ({"000": class_id}, "class folders")


def test_a_label_that_is_a_number_goes_before_the_class_id(tmp_path: Path) -> None:
    write_pictures(tmp_path / "1", 1)
    assert _classes(read_dataset(tmp_path, ("2", "3", "1"), "classification")) == {"000": 2}


def test_class_folders_without_images_count_for_nothing(tmp_path: Path) -> None:
    write_pictures(tmp_path / "tench", 1)
    write_pictures(tmp_path, 1, first=7)
    (tmp_path / "no class").mkdir()
    (tmp_path / "no class" / "notes.txt").write_text("nothing")
    dataset = read_dataset(tmp_path, LABELS, "classification")
    assert _classes(dataset) == {"000": 0}
    assert [(s.path.name, s.reason) for s in dataset.images.skipped] == [("007.png", "lies in no class folder")]


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["tench", "crane"], "crane: 'crane' is ambiguous, the classes 3 and 4 share it; name the class by its id"),
        (["tench", "kelpies"], "kelpies: 'kelpies' is no label of the model, expected one of 10 such as 'tench, Tinca"),
        (["tench", "kelpies"], "did you mean 'kelpie'?"),
        (["kelpies"], "'kelpies' is no label of the model"),
        (["tench", "day"], "'day' is no label of the model"),
        (["0", "10"], "10: class_id is 10, expected 0 to 9"),
    ],
)
def test_folders_that_are_no_class_are_named(tmp_path: Path, folders: list[str], expected: str) -> None:
    for number, folder in enumerate(folders):
        write_pictures(tmp_path / folder, 1, first=number)
    with pytest.raises(DataError) as caught:
        read_dataset(tmp_path, LABELS, "classification")
    assert str(caught.value).startswith(f"{tmp_path}/")
    assert expected in str(caught.value)


def test_one_class_among_many_folders_makes_them_class_folders(tmp_path: Path) -> None:
    for number, folder in enumerate([*(f"a {n}" for n in range(30)), "tench"]):
        write_pictures(tmp_path / folder, 1, first=number)
    with pytest.raises(DataError, match="'a 0' is no label of the model"):
        read_dataset(tmp_path, LABELS, "classification")


@pytest.mark.parametrize(
    ("folders", "task"), [(["day", "night", "plane"], "classification"), (["tench", "crane"], "detection")]
)
def test_other_folders_are_images_without_labels(tmp_path: Path, folders: list[str], task: Task) -> None:
    for number, folder in enumerate(folders):
        write_pictures(tmp_path / folder, 1, first=number)
    assert read_dataset(tmp_path, LABELS, task).format == "images"


def _with_all_formats(folder: Path) -> Path:
    """A folder that is everything at once."""
    write_pictures(folder / "images", 2)
    write_pictures(folder / "masks", 2)
    write_pictures(folder / "tench", 1, first=5)
    (folder / "labels").mkdir()
    (folder / "labels" / "000.txt").write_text("0 .5 .5 .1 .1\n")
    (folder / "labels.csv").write_text("file,class_id\nimages/000.png,1\n")
    images = [{"id": 1, "file_name": "000.png"}]
    (folder / "a.json").write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    return folder


@pytest.mark.parametrize(
    ("task", "removed", "expected"),
    [
        ("classification", [], "labels.csv"),
        ("detection", [], "coco"),
        ("detection", ["a.json"], "yolo"),
    ],
)
def test_of_several_formats_the_first_that_fits_the_task_is_read(
    tmp_path: Path, task: Task, removed: list[str], expected: str
) -> None:
    _with_all_formats(tmp_path)
    for name in removed:
        (tmp_path / name).unlink()
    assert read_dataset(tmp_path, LABELS, task).format == expected


@pytest.mark.parametrize(
    ("kept", "task", "expected"),
    [
        ("labels.csv", "detection", "holds classes (labels.csv), but the model's task is detection; expected boxes"),
        ("a.json", "classification", "holds boxes (a COCO .json), but the model's task is classification; expected"),
        ("labels", "segmentation", "holds boxes (images/ beside labels/), but the model's task is segmentation"),
        ("masks", "detection", "holds masks (images/ beside masks/), but the model's task is detection"),
    ],
)
def test_labels_of_another_kind_are_refused(tmp_path: Path, kept: str, task: Task, expected: str) -> None:
    _with_all_formats(tmp_path)
    for name in {"labels.csv", "a.json", "labels", "masks", "tench"} - {kept}:
        (tmp_path / name).rename(tmp_path.parent / f"{tmp_path.name}-{name}")
    with pytest.raises(DataError) as caught:
        read_dataset(tmp_path, LABELS, task)
    assert expected in str(caught.value)


@pytest.mark.parametrize("task", get_args(Task))
def test_images_without_labels_do_for_every_task(tmp_path: Path, task: Task) -> None:
    dataset = read_dataset(write_pictures(tmp_path, 2), LABELS, task)
    assert (len(dataset), dataset.truths, dataset.format) == (2, None, "images")
