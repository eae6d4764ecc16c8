"""Images and labels that are found, kept once, split and measured on; what cannot be used is one line."""

import io
import os
import shutil
import struct
import zlib
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from edge_sdk.core.errors import DataError, one_line
from edge_sdk.tasks.spec import Task
from edge_sdk_tools.datasets.dataset import BoxTruth, ClassTruth, Dataset, LabelledObject, find_images
from edge_sdk_tools.datasets.reading import read_dataset
from tests.support.logs import refusal
from tests.support.projects import picture, write_pictures


def test_the_same_content_counts_once(tmp_path: Path) -> None:
    a, b = write_pictures(tmp_path / "a", 3), write_pictures(tmp_path / "b" / "deep", 4)
    images = find_images([a, b.parent])
    assert (len(images), len(images.without(find_images([a])))) == (4, 1)


@pytest.mark.parametrize(("count", "kept", "held"), [(2, 1, 1), (3, 2, 1), (8, 6, 2)])
def test_every_fourth_image_is_held_out(tmp_path: Path, count: int, kept: int, held: int) -> None:
    calibration, evaluation = find_images([write_pictures(tmp_path, count)]).hold_out()
    assert (len(calibration), len(evaluation)) == (kept, held)
    assert len(calibration.without(evaluation)) == kept


def test_an_image_that_goes_away_is_an_error(tmp_path: Path) -> None:
    [image] = find_images([write_pictures(tmp_path, 1)]).images
    assert np.array_equal(image.read(), picture(0))
    image.path.write_bytes(b"gone")
    assert "000.png: cannot be decoded" in refusal(DataError, image.read)
    image.path.unlink()
    assert "000.png: cannot be read any more: No such file" in refusal(DataError, image.read)


@pytest.mark.parametrize("name", [".hidden.png", ".cache/000.png", "notes.txt"])
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
    names = [str(i.path.relative_to(folder)) for i in find_images([folder]).images]
    assert names == ["inside/005.png", "linked/000.png", "linked/001.png", "linked/002.png"]


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
    assert [one.path.name for one in decoded.images] == ["001.png"]
    assert [one.path for one in decoded.skipped] == [tmp_path / "000.png"]
    looked_at = find_images([tmp_path], decode=False)
    assert looked_at.skipped == ()
    assert "000.png: cannot be decoded" in refusal(DataError, looked_at.images[0].read)


def _ids(dataset: Dataset) -> list[tuple[str, int]]:
    assert dataset.truths is not None
    pairs = zip(dataset.images.images, dataset.truths, strict=True)
    return [(image.path.stem, truth.class_id) for image, truth in pairs if isinstance(truth, ClassTruth)]


def test_truths_stay_with_their_images(tmp_path: Path) -> None:
    lines = "".join(f"{i:03}.png,{i}\n" for i in range(9))
    (write_pictures(tmp_path / "a", 9) / "labels.csv").write_text(f"file,class_id\n{lines}")
    dataset = read_dataset(tmp_path / "a", [f"label {i}" for i in range(9)], "classification")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "004.png").unlink()
    assert _ids(dataset.spread(3)) == [("000", 0), ("004", 4), ("008", 8)]
    assert dataset.spread(20) == dataset
    assert _ids(dataset.without(find_images([tmp_path / "b"]))) == [("004", 4)]
    assert _ids(dataset.picked([8, 1])) == [("008", 8), ("001", 1)]
    assert len(dataset) == 9


def test_images_are_dealt_out_class_by_class_and_always_alike(tmp_path: Path) -> None:
    write_pictures(tmp_path / "a", 12)
    rows = "".join(f"{i:03}.png,{int(i > 7)}\n" for i in range(12))
    (tmp_path / "a" / "labels.csv").write_text(f"file,class_id\n{rows}")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "000.png").rename(tmp_path / "b" / "zzz.png")
    (tmp_path / "b" / "labels.csv").write_text(f"file,class_id\n{rows.replace('000.png', 'zzz.png')}")
    parts, again = (read_dataset(tmp_path / name, ["x", "y"], "classification").stratified_split(2) for name in "ab")
    assert [Counter(class_id for _, class_id in _ids(part)) for part in parts] == [{0: 4, 1: 2}, {0: 4, 1: 2}]
    assert not {i.sha256 for i in parts[0].images.images} & {i.sha256 for i in parts[1].images.images}
    renamed = [[stem.replace("zzz", "000") for stem, _ in _ids(part)] for part in again]
    assert [sorted(stems) for stems in renamed] == [[stem for stem, _ in _ids(part)] for part in parts]


def test_boxes_are_dealt_out_by_the_class_that_fewest_pictures_show(tmp_path: Path) -> None:
    images = find_images([write_pictures(tmp_path, 8)])
    boxes = [[0, 1] if i % 4 == 0 else [0] if i % 4 < 3 else [] for i in range(8)]
    truths = tuple(BoxTruth(tuple(LabelledObject((0, 0, 0, 0), one) for one in of)) for of in boxes)
    for part in Dataset(images, truths, "yolo").stratified_split(2):
        assert part.truths is not None
        assert sorted(len(t.objects) for t in part.truths if isinstance(t, BoxTruth)) == [0, 1, 1, 2]


def test_images_without_labels_have_no_truths(tmp_path: Path) -> None:
    write_pictures(tmp_path / "day", 2)
    write_pictures(tmp_path / "night", 3)
    dataset = read_dataset(tmp_path, ["cat", "dog"], "classification")
    assert (len(dataset), dataset.truths, dataset.format, dataset.duplicates) == (3, None, "images", 2)
    assert dataset.spread(2).truths is None


def _encoded(kind: str, orientation: int = 1, **options: object) -> bytes:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    tags = {} if kind in ("BMP", "PPM") or orientation == 1 else {"exif": exif.tobytes()}
    pixels = np.zeros((20, 30, 4), np.uint8) if kind == "PNG" else picture(0, width=30, height=20)
    Image.fromarray(pixels).save(buffer, kind, **tags, **options)
    return buffer.getvalue()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _huge_png(width: int, height: int) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(bytes(5000))) + _chunk(b"IEND", b"")


def _huge_jpeg() -> bytes:
    data = _encoded("JPEG")
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">HH", 40000, 50000) + data[place + 4 :]


def _huge_webp(**kind: object) -> bytes:
    """A small picture whose header says 16383 x 16382."""
    data = bytearray(_encoded("WEBP", **kind))
    if data[12:16] == b"VP8X":
        data[24:30] = (16382).to_bytes(3, "little") + (16381).to_bytes(3, "little")
    elif data[12:16] == b"VP8L":
        data[21:25] = (16382 | 16381 << 14).to_bytes(4, "little")
    else:
        data[26:30] = struct.pack("<HH", 16383, 16382)
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [*(("JPEG", turn) for turn in range(1, 9)), ("PNG", 6), ("WEBP", 6), ("BMP", 1), ("PPM", 1)],
)
def test_the_size_is_that_of_the_picture_as_exif_turns_it(tmp_path: Path, kind: str, orientation: int) -> None:
    (tmp_path / "a.jpg").write_bytes(_encoded(kind, orientation))
    [image] = find_images([tmp_path], decode=False).images
    assert image.size_wh == ((20, 30) if orientation > 4 else (30, 20))
    assert image.read().shape == (*image.size_wh[::-1], 3)


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.heic", b"x", ".heic: edge-sdk does not read it; convert it to JPEG or PNG"),
        ("a.jpg", b"", "an empty file"),
        ("a.png", b"<html>404</html>", "not an image, or its header is damaged"),
        ("a.webp", _encoded("WEBP")[:24], "not an image, or its header is damaged"),
        ("a.png", _huge_png(8192, 8193), "8192x8193 pixels, more than 67 million"),
        ("a.jpg", _huge_jpeg(), "50000x40000 pixels, more than 67 million"),
        ("a.webp", _huge_webp(), "16383x16382 pixels, more than 67 million"),
        ("a.webp", _huge_webp(lossless=True), "16383x16382 pixels, more than 67 million"),
        ("a.webp", _huge_webp(exif=_encoded("JPEG")[20:60]), "16383x16382 pixels, more than 67 million"),
        ("a.ppm", b"P6 30000 30000 255\n", "30000x30000 pixels, more than 67 million"),
    ],
)
def test_what_cannot_be_used_is_skipped(tmp_path: Path, name: str, data: bytes, reason: str, decode: bool) -> None:
    write_pictures(tmp_path / "good", 1)
    (tmp_path / name).write_bytes(data)
    images = find_images([tmp_path], decode=decode)
    assert len(images) == 1
    assert [(s.path, s.reason) for s in images.skipped] == [(tmp_path / name, reason)]


def test_a_large_image_within_the_limit_passes_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_huge_png(8192, 8192))
    assert [image.size_wh for image in find_images([tmp_path], decode=False).images] == [(8192, 8192)]


def test_damaged_exif_turns_nothing(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\x7f\xff")
    assert [image.size_wh for image in find_images([tmp_path]).images] == [(30, 20)]


def test_files_that_are_no_files_are_skipped(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, 1)
    os.mkfifo(folder / "pipe.jpg")
    (folder / "nothing.jpg").symlink_to("nowhere.jpg")
    (folder / "itself.jpg").symlink_to("itself.jpg")
    (folder / "sparse.png").touch()
    os.truncate(folder / "sparse.png", 2_000_000_000)
    assert {s.path.name: s.reason for s in find_images([folder]).skipped} == {
        "pipe.jpg": "cannot be read: it is a pipe, expected a regular file",
        "nothing.jpg": "cannot be read: No such file or directory",
        "itself.jpg": "cannot be read: Too many levels of symbolic links",
        "sparse.png": "cannot be read: more than 1024 MiB, expected a smaller file",
    }


def test_every_flipped_byte_of_a_header_gives_an_image_or_a_reason(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(300):
        data = bytearray(_encoded(("JPEG", "PNG", "WEBP", "BMP", "PPM")[number % 5], 6))
        data[random.integers(0, min(len(data), 200))] = random.integers(0, 256)
        (tmp_path / f"{number:03}.jpg").write_bytes(data)
    images = find_images([tmp_path], decode=False)
    duplicates = read_dataset(tmp_path, ["cat"], "detection").duplicates
    assert len(images) + len(images.skipped) + duplicates == 300
    assert {bool(skipped.reason) for skipped in images.skipped} == {True}


def test_where_nothing_can_be_used_the_first_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(b"x")
    (tmp_path / "b.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match=r"no usable images in it, 2 files were skipped; .*a\.heic: \.heic: "):
        find_images([tmp_path])


LABELS = ("person", "cell phone", "dog")


def _refused(path: Path, task: Task, *expected: str, keypoints: int = 0) -> None:
    message = refusal(DataError, read_dataset, path, LABELS, task, keypoints=keypoints)
    assert len(message) < 500 + len(str(path))
    assert [part for part in (one_line(str(path))[:1000], *expected) if part not in message] == []


def test_no_folder_of_images(tmp_path: Path) -> None:
    (tmp_path / "empty" / "empty").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("x")
    for name, expected in (
        ("empty", "no images in it, expected .jpg .jpeg .png"),
        ("a" * 5000, "no such folder, or .json of COCO"),
        ("notes.txt", "is a file, expected a folder of images or the .json of COCO"),
    ):
        _refused(tmp_path / name, "detection", expected)
        assert expected.partition(",")[0] in refusal(DataError, find_images, [tmp_path / name])


def test_labels_csv(tmp_path: Path) -> None:
    write_pictures(tmp_path, 2)
    for text, expected in (
        (b"file;class_id\n000.png;1\n", "line 1 is 'file;class_id', expected file,class_id"),
        (b"file,class_id\n", "no images in it, expected one a line after the header"),
        (b"file,label\n000.png,cell,phone\n", "line 2: has 3 columns, expected 2: file,label; a label with commas"),
        (b"file,class_id\n000.png,dog\n", "line 2: class_id is 'dog', expected a whole number from 0 to 2"),
        (b"file,class_id\n000.png,0\n001.png,3\n", "line 3: class_id is 3, expected 0 to 2, one a label of the model"),
        (b"file,label\n000.png,cellphone\n", "line 2: 'cellphone' is no label of the model, expected person, cell"),
        (b"file,class_id\n000.png,0\n000.png,1\n", "line 3: '000.png' has class 1 here and 0 above; keep one line"),
        (b"file,class_id\n009.png,0\n", "line 2: no file '009.png' in "),
        (b"file,class_id\n../x/000.png,0\n", "line 2: file is '../x/000.png', expected a name relative to "),
        (b"file,class_id\n" + b"a" * 5000 + b".png,0\n", "line 2: no file 'aaaa"),
        (b"file,class_id\n" + b"a" * 200000 + b",0\n", "line 2: not comma-separated values: field larger than"),
        (b"file,class_id\n\xff.png,0\n", "labels.csv: not UTF-8 (byte 14); save it as UTF-8"),
    ):
        (tmp_path / "labels.csv").write_bytes(text)
        _refused(tmp_path, "classification", f"{tmp_path / 'labels.csv'}: ", expected)


@pytest.mark.parametrize(("labels", "task"), [("labels/000.txt", "detection"), ("masks/000.png", "segmentation")])
def test_labels_that_are_a_pipe_are_not_waited_for(tmp_path: Path, labels: str, task: Task) -> None:
    pipe = tmp_path / labels
    pipe.parent.mkdir()
    write_pictures(tmp_path / "images", 1)
    os.mkfifo(pipe)
    _refused(tmp_path, task, str(pipe), "cannot be read: it is a pipe, expected")


def test_yolo(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 1)
    (tmp_path / "labels").mkdir()
    file = tmp_path / "labels" / "000.txt"
    for line, expected in (
        ("0 .5 .5 .1", "has 4 numbers, expected 5: class x y width height"),
        ("dog .5 .5 .1 .1", "class is 'dog', expected a whole number from 0 to 2"),
        ("3 .5 .5 .1 .1", "class_id is 3, expected 0 to 2"),
        ("0 .5 nan .1 .1", "'nan' is no number"),
        ("0 .5 .5 -.1 .1", "the box is -0.1 wide and 0.1 high, expected 0 or more"),
        ("0 .95 .5 .11 .1", "the box reaches from 0.895, 0.45 to 1.005, 0.55, expected 0 to 1"),
        ("0 .1 .1 .2 .2 .3 1.1", "the polygon reaches from 0.1, 0.1 to 0.3, 1.1, expected 0 to 1"),
        ("0 .5 .5 .1 .1 .5 1.2 2", "the keypoints reach from 0.5, 1.2 to 0.5, 1.2, expected 0 to 1"),
        ("0" + " .1 .2" * 10_001, "a polygon of 10001 points, expected 10000 or less; simplify it"),
    ):
        file.write_text(f"0 .5 .5 .1 .1\n\n{line}\n")
        _refused(tmp_path, "detection", f"{file}: line 3: {expected}")
    file.write_text("0 .1 .1 .2 .2 .3 .3 .4 .1")
    with pytest.raises(DataError, match=r"line 1: has 9 numbers, expected 5 .*, or 11 or 14 with the model's 3 keyp"):
        read_dataset(tmp_path, LABELS, "detection", keypoints=3)
    file.write_text("0 .5 .5 .9 .9 .3 .3 .4 .1 .6 .6\n" * 10)
    _refused(tmp_path, "detection", "each of 10 objects has 10 numbers behind its class, which are no polygon but a")
    file.rename(file.with_name("other.txt"))
    _refused(tmp_path, "detection", "none of 1 files in labels/ belongs to an image, expected labels/NAME.txt for")


COCO = (
    '{"images": [{"id": 1, "file_name": "000.png"}],\n'
    ' "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],\n'
    ' "categories": [{"id": 1, "name": "dog"}]}'
)


def _edit(old: str, new: str) -> bytes:
    assert old in COCO
    return COCO.replace(old, new).encode("latin-1")


def test_coco(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    path = tmp_path / "a.json"
    for data, expected in (
        (COCO.encode()[:-30], "not valid JSON in UTF-8: Input data was truncated; export or copy it again"),
        (_edit("dog", "d\xff\xfeg"), "not valid JSON in UTF-8: "),
        (b'{"x": ' + b"[" * 100000, "not valid JSON in UTF-8: "),
        (b"{}", "Object missing required field `images`; expected images, annotations and categories"),
        (_edit("[1, 2, 3, 4]", "[1, 2, 3]"), "Expected `array` of length 4 - at `$.annotations[0].bbox`"),
        (_edit("1, 2, 3, 4]", "1e308, 2, 1e308, 4]"), "annotations[0].bbox is [1e+308, 2.0, 1e+308, 4.0], expected"),
        (_edit("3, 4]", "-3, 4]"), "annotations[0].bbox is [1.0, 2.0, -3.0, 4.0], expected x, y, width and"),
        (_edit('"image_id": 1', '"image_id": 7'), "annotations[0].image_id is 7, expected the id of an image"),
        (_edit('"category_id": 1', '"category_id": 2'), "annotations[0].category_id is 2, expected the id of one"),
        (_edit("dog", "dgo"), "category 1: 'dgo' is no label of the model, expected person, cell phone, dog; did you"),
        (_edit('0.png"}', '0.png"}, {"id": 1, "file_name": "x.png"}'), "images[1].id is 1, which another image has"),
        (_edit("000.png", "../000.png"), "images[0]: file is '../000.png', expected a name relative to "),
        (_edit("3, 4]", '3, 4], "keypoints": [1, 2, 2]'), "annotations[0].keypoints is no list of 6 numbers, expect"),
        (_edit("000.png", "009.png"), "none of its 1 images is there, looked in "),
    ):
        path.write_bytes(data)
        _refused(path, "detection", f"{path}: ", expected, keypoints=2)


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
