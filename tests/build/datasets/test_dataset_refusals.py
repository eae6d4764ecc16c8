"""Labels that cannot be used: each is one line that names the file, the place and what was expected."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.core.errors import DataError, one_line
from edge_sdk.tasks.spec import Task
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.datasets.reading import read_dataset
from tests.support.projects import write_pictures

LABELS = ("person", "cell phone", "dog")


def _refused(path: Path, task: Task, *expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read_dataset(path, LABELS, task)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500 + len(str(path))
    assert one_line(str(path))[:1000] in message
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("empty", "no images in it, expected .jpg .jpeg .png"),
        ("nowhere", "no such folder, or .json of COCO"),
        ("a" * 5000, "no such folder, or .json of COCO"),
        ("notes.txt", "is a file, expected a folder of images or the .json of COCO"),
    ],
)
def test_no_folder_of_images(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "empty" / "empty").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("x")
    _refused(tmp_path / name, "detection", expected)
    with pytest.raises(DataError, match=r"no images in it|no such folder|is a file, expected a folder"):
        find_images([tmp_path / name])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "labels.csv: line 1 is '', expected file,class_id or file,label"),
        (b"file;class_id\n000.png;1\n", "line 1 is 'file;class_id', expected file,class_id"),
        (b"file,class_id\n", "no images in it, expected one a line after the header"),
        (b"file,class_id\n000.png\n", "line 2: has 1 column, expected 2: file,class_id"),
        (
            b"file,label\n000.png,cell,phone\n",
            "line 2: has 3 columns, expected 2: file,label; a label with commas needs",
        ),
        (b"file,class_id\n000.png,1.5\n", "line 2: class_id is '1.5', expected a whole number"),
        (b"file,class_id\n000.png,-1\n", "line 2: class_id is -1, expected 0 to 2"),
        (b"file,class_id\n000.png,dog\n", "line 2: class_id is 'dog', expected a whole number from 0 to 2"),
        (b"file,class_id\n000.png,0\n001.png,3\n", "line 3: class_id is 3, expected 0 to 2, one a label of the model"),
        (
            b"file,label\n000.png,cellphone\n",
            "line 2: 'cellphone' is no label of the model, expected person, cell phone",
        ),
        (b"file,class_id\n000.png,0\n000.png,1\n", "line 3: '000.png' has class 1 here and 0 above; keep one line"),
        (b"file,class_id\n009.png,0\n", "line 2: no file '009.png' in "),
        (b"file,class_id\n../x/000.png,0\n", "line 2: file is '../x/000.png', expected a name relative to "),
        (b"file,class_id\n" + b"a" * 5000 + b".png,0\n", "line 2: no file 'aaaa"),
        (b"file,class_id\n" + b"a" * 200000 + b",0\n", "line 2: not comma-separated values: field larger than"),
        (b'file,class_id\n"000.png,0\n', "line 2: not comma-separated values"),
        (b"file,class_id\n\xff.png,0\n", "labels.csv: not UTF-8 (byte 14); save it as UTF-8"),
    ],
)
def test_labels_csv(tmp_path: Path, text: bytes, expected: str) -> None:
    write_pictures(tmp_path, 2)
    (tmp_path / "labels.csv").write_bytes(text)
    _refused(tmp_path, "classification", f"{tmp_path / 'labels.csv'}: ", expected)


@pytest.mark.parametrize(("labels", "task"), [("labels/000.txt", "detection"), ("masks/000.png", "segmentation")])
def test_labels_that_are_a_pipe_are_not_waited_for(tmp_path: Path, labels: str, task: Task) -> None:
    pipe = tmp_path / labels
    pipe.parent.mkdir()
    write_pictures(tmp_path / "images", 1)
    os.mkfifo(pipe)
    _refused(tmp_path, task, str(pipe), "cannot be read: it is a pipe, expected")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"0 .5 .5 .1", "has 4 numbers, expected 5: class x y width height"),
        (b"0 .5 .5 .1 .1 .9", "has 6 numbers, expected 5: class x y width height"),
        (b"dog .5 .5 .1 .1", "class is 'dog', expected a whole number from 0 to 2"),
        (b"3 .5 .5 .1 .1", "class_id is 3, expected 0 to 2"),
        (b"0 .5 nan .1 .1", "'nan' is no number"),
        (b"0 .5 .5 1e999 .1", "'1e999' is no number"),
        (b"0 .5 .5 -.1 .1", "the box is -0.1 wide and 0.1 high, expected 0 or more"),
        (b"0 .95 .5 .11 .1", "the box reaches from 0.895, 0.45 to 1.005, 0.55, expected 0 to 1"),
        (b"0 320 240 64 48", "the box reaches from 288, 216 to 352, 264, expected 0 to 1"),
        (b"0 .1 .1 .2 .2 .3 1.1", "the box reaches from 0.1, 0.1 to 0.3, 1.1, expected 0 to 1"),
    ],
)
def test_yolo(tmp_path: Path, line: bytes, expected: str) -> None:
    write_pictures(tmp_path / "images", 1)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "000.txt").write_bytes(b"0 .5 .5 .1 .1\n\n" + line + b"\n")
    _refused(tmp_path, "detection", f"{tmp_path / 'labels' / '000.txt'}: line 3: {expected}")


def test_yolo_labels_of_other_images(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 2)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "other.txt").write_text("0 .5 .5 .1 .1")
    _refused(tmp_path, "detection", "none of 1 files in labels/ belongs to an image, expected labels/NAME.txt for")


COCO = (
    '{"images": [{"id": 1, "file_name": "000.png"}],\n'
    ' "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],\n'
    ' "categories": [{"id": 1, "name": "dog"}]}'
)


def _edit(old: str, new: str) -> Callable[[], bytes]:
    assert old in COCO
    return lambda: COCO.replace(old, new).encode("latin-1")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: COCO.encode()[:-30], "not valid JSON in UTF-8: Input data was truncated; export or copy it again"),
        (_edit("dog", "d\xff\xfeg"), "not valid JSON in UTF-8: "),
        (lambda: b'{"x": ' + b"[" * 100000, "not valid JSON in UTF-8: "),
        (lambda: b"{}", "Object missing required field `images`; expected images, annotations and categories"),
        (_edit("[1, 2, 3, 4]", "[1, 2, 3]"), "Expected `array` of length 4 - at `$.annotations[0].bbox`"),
        (_edit("1, 2, 3, 4]", "1e308, 2, 1e308, 4]"), "annotations[0].bbox is [1e+308, 2.0, 1e+308, 4.0], expected"),
        (_edit("3, 4]", "-3, 4]"), "annotations[0].bbox is [1.0, 2.0, -3.0, 4.0], expected x, y, width and"),
        (_edit('"image_id": 1', '"image_id": 7'), "annotations[0].image_id is 7, expected the id of an image"),
        (_edit('"category_id": 1', '"category_id": 2'), "annotations[0].category_id is 2, expected the id of one"),
        (_edit("dog", "dgo"), "category 1: 'dgo' is no label of the model, expected person, cell phone, dog; did you"),
        (_edit('0.png"}', '0.png"}, {"id": 1, "file_name": "x.png"}'), "images[1].id is 1, which another image has"),
        (_edit("000.png", "../000.png"), "images[0]: file is '../000.png', expected a name relative to "),
        (_edit("000.png", "009.png"), "none of its 1 images is there, looked in "),
        (lambda: b'{"images": [], "annotations": [], "categories": []}', "no images in it, expected a list of them"),
    ],
)
def test_coco(tmp_path: Path, make: Callable[[], bytes], expected: str) -> None:
    write_pictures(tmp_path, 1)
    path = tmp_path / "a.json"
    path.write_bytes(make())
    _refused(path, "detection", f"{path}: ", expected)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_labels_are_read_or_refused_in_one_line(tmp_path: Path, seed: int) -> None:
    """Bytes are flipped, dropped and put in; whatever comes of it is a dataset or a DataError."""
    file, text, task = (
        ("labels.csv", b'file,class_id\n"000.png",1\n001.png,0\n', "classification"),
        ("labels.csv", b'file,label\n"000.png","dog"\n001.png,cell phone\n', "classification"),
        ("a.json", COCO.encode(), "detection"),
        ("labels/000.txt", b"0 .5 .5 .25 .25\n1 .1 .1 .2 .2 .3 .3\n", "detection"),
    )[seed]
    write_pictures(tmp_path, 2)
    write_pictures(tmp_path / "images", 2)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    pieces = (b"nan", b"-", b"1e999", b'"', b",", b"\n", b"\0", b"\xff", b"../", b"null", b"[", b"{", b"9" * 400, b"")
    complaints = []
    for _ in range(200):
        place = int(random.integers(0, len(text)))
        piece = pieces[random.integers(0, len(pieces))]
        (tmp_path / file).write_bytes(text[:place] + piece + text[place + int(random.integers(0, 4)) :])
        try:
            read_dataset(tmp_path / file if file == "a.json" else tmp_path, LABELS, task)
        except DataError as error:
            complaints.append(str(error))
    assert 0 < len(complaints) < 200
    assert all(str(tmp_path) in complaint and "\n" not in complaint for complaint in complaints)
