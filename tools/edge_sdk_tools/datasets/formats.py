"""The formats of labels, each a reader of a folder, and the table of them.

Class folders: the images of a class lie in a folder of its name, at any depth. labels.csv: one image a line, with the
id or the label of its class. texts.csv: one image a line, with its text. COCO: `coco.py`. YOLO: images/ and labels/
beside each other, a text file an image with a line an object: a box, a polygon, or a box with keypoints. Masks: images/
and masks/ beside each other, a PNG of class ids an image.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk.core.toml import shown
from edge_sdk.tasks.spec import Truths
from edge_sdk_tools.datasets.class_names import ClassNames, finite_number, names_of, read_text, whole_number
from edge_sdk_tools.datasets.coco import PLACES, looks_like_coco, read_coco
from edge_sdk_tools.datasets.dataset import (
    MOST_POINTS,
    BoxTruth,
    ClassTruth,
    Format,
    Found,
    Labelled,
    LabelledObject,
    MaskTruth,
    Runs,
    Truth,
    listed_file,
    mask_size,
)
from edge_sdk_tools.datasets.images import Skipped, files_below, is_candidate, is_file, is_folder, subfolders


def are_class_folders(folder: Path, names: ClassNames) -> bool:
    """Tell whether one folder at least bears the name of a class, or a WordNet id; `day` and `night` do not."""
    here = [path.name for path in subfolders(folder)]
    return any(names.find(n) or names_of(n).synset or (_is_number(n) and int(n) < len(names)) for n in here)


def read_class_folders(folder: Path, names: ClassNames) -> Labelled:
    """Read a folder of class folders."""
    found, skipped = [], []
    class_ids: dict[str, int] = {}
    beside = [path.name for path in subfolders(folder)]
    for path in filter(is_candidate, files_below(folder)):
        first, *inside = path.relative_to(folder).parts
        if not inside:
            skipped.append(Skipped(path, "lies in no class folder"))
            continue
        if first not in class_ids:
            class_ids[first] = _class_id(folder / first, names, beside)
        found.append(Found(path, ClassTruth(class_ids[first])))
    return Labelled(found, tuple(skipped))


def _class_id(folder: Path, names: ClassNames, beside: Sequence[str]) -> int:
    """Return the class of a folder; a name that is a number is first looked up as a label, then read as a class id."""
    if _is_number(folder.name) and not names.find(folder.name):
        return names.checked(int(folder.name), str(folder))
    return names.class_id(folder.name, str(folder), beside)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


LABELS_CSV, TEXTS_CSV = "labels.csv", "texts.csv"


class TextTruth(Truth, frozen=True):
    """The text that one image shows."""

    text: str


def read_labels_csv(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/labels.csv."""
    found: dict[Path, ClassTruth] = {}
    for where, column, file, text in _csv_rows(folder, LABELS_CSV, "class_id", "label"):
        value = text.strip()
        class_id = names.class_id(value, where) if column == "label" else _numbered(value, names, where, column)
        if found.setdefault(file, ClassTruth(class_id)).class_id != class_id:
            raise DataError(
                f"{where}: {shown(file.name)} has class {class_id} here and {found[file].class_id} above; keep one line"
            )
    return Labelled([Found(file, truth) for file, truth in sorted(found.items())])


def read_texts_csv(folder: Path, _names: ClassNames) -> Labelled:
    """Read FOLDER/texts.csv."""
    texts = {file: TextTruth(text) for _, _, file, text in _csv_rows(folder, TEXTS_CSV, "text")}
    return Labelled([Found(file, text) for file, text in sorted(texts.items())])


def _csv_rows(folder: Path, name: str, *columns: str) -> Iterator[tuple[str, str, Path, str]]:
    """Yield where each line stands, the name of its second column, its image, and what that column has."""
    path, count = folder / name, 0
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = next(rows, [])
        column = header[-1].strip().casefold() if header else ""
        if [part.strip().casefold() for part in header] != ["file", column] or column not in columns:
            expected = " or ".join(f"file,{one}" for one in columns)
            raise DataError(f"{path}: line 1 is {shown(','.join(header))}, expected {expected}")
        for row in filter(None, rows):
            where, count = f"{path}: line {rows.line_num}", count + 1
            if len(row) != 2:
                found = f"has {len(row)} column{'s' if len(row) > 1 else ''}"
                what = f"a {columns[-1]} with commas needs quotes"
                raise DataError(f"{where}: {found}, expected 2: file,{column}; {what}")
            wanted = row[0].strip()
            file = listed_file(wanted, [folder], where)
            if file is None:
                what = f"no file {shown(wanted)} in {folder}"
                raise DataError(f"{where}: {what}; take the line out or copy the image there")
            yield where, column, file, row[1]
    except csv.Error as cause:
        raise DataError(f"{path}: line {rows.line_num}: not comma-separated values: {cause}") from cause
    if not count:
        raise DataError(f"{path}: no images in it, expected one a line after the header")


def _numbered(text: str, names: ClassNames, where: str, key: str) -> int:
    """Return the class id that a text is; raise a DataError where it is none of the model's."""
    class_id = whole_number(text)
    if class_id is None:
        raise DataError(f"{where}: {key} is {shown(text)}, expected a whole number from 0 to {len(names) - 1}")
    return names.checked(class_id, where)


def read_masks(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/images and FOLDER/masks; a mask has the name of its image at the same place, and ends in .png.

    Of a mask only the header is read; `MaskTruth.read` reads the rest.
    """
    pairs, lonely = _pairs(folder, MASKS, ".png")
    found = [Found(path, MaskTruth(mask, len(names)), mask_size(mask)) for path, mask in pairs if mask]
    skipped = [Skipped(path, f"no mask of this name in {MASKS}/") for path, mask in pairs if not mask]
    if skipped and not found:
        raise DataError(f"{folder}: not one image has a mask, expected {MASKS}/NAME.png for {IMAGES}/NAME.jpg")
    return Labelled(found, (*skipped, *lonely))


IMAGES, LABELS, MASKS = "images", "labels", "masks"
_MOST_ROWS, _MOST_BYTES_OF_ROWS = 10_000, 1 << 26  # of one image
_ENOUGH, _CORNERS = 10, 4  # objects that show what the lines are; points of an oriented box, which is a polygon
_OVERSHOOT = 1e-3  # of the image's side: what rounding in exporters leaves; it is cut off
_LIST_OF_CLASSES = "classes.txt"  # annotation tools leave it among the labels


def _folders(folder: Path, beside: str) -> tuple[Path, Path]:
    """Return where the images are and where their labels or masks are, if they are there: usually both in `folder`."""
    parts = folder.absolute().parts
    if IMAGES in parts and not is_folder(folder / IMAGES):
        # A folder `images`, or one below it, goes with that of the same path but for the name in its place.
        place = len(parts) - 1 - parts[::-1].index(IMAGES)
        return folder, Path(*parts[:place], beside, *parts[place + 1 :])
    return folder / IMAGES, folder / beside


def _pairs(folder: Path, beside: str, suffix: str) -> tuple[list[tuple[Path, Path | None]], tuple[Skipped, ...]]:
    """Return each image with the file of its name in the folder `beside` its own, and the files there without one."""
    home, theirs = _folders(folder, beside)
    files = {path.relative_to(theirs): path for path in files_below(theirs)}
    files = {name.with_suffix(""): path for name, path in files.items() if path.suffix.lower() == suffix}
    images = {path: path.relative_to(home).with_suffix("") for path in files_below(home)}
    pairs = [(path, files.get(name)) for path, name in images.items() if is_candidate(path)]
    lonely = set(files.values()) - {path for _, path in pairs}
    return pairs, tuple(Skipped(path, f"no image of this name in {IMAGES}/") for path in sorted(lonely))


def read_yolo(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/images and FOLDER/labels; a label has the name of its image at the same place."""
    pairs, lonely = _pairs(folder, LABELS, ".txt")
    if pairs and not any(label for _, label in pairs):
        expected = f"expected {LABELS}/NAME.txt for {IMAGES}/NAME.jpg"
        raise DataError(f"{folder}: none of {len(lonely)} files in {LABELS}/ belongs to an image, {expected}")
    rows = [_rows(label, names) for _, label in pairs]
    has_keypoints = not names.keypoints and _have_keypoints([row.values for of in rows for row in of])
    objects = [tuple(_object(row, names, has_keypoints=has_keypoints) for row in of) for of in rows]
    filled = [one.outline for of in objects for one in of]
    outlines = [outline[0] for outline in filled if outline is not None and not isinstance(outline, Runs)]
    if len(outlines) >= _ENOUGH and _are_boxes_with_keypoints(outlines):
        raise DataError(
            f"{folder}: each of {len(outlines)} objects has {outlines[0].size} numbers behind its class, which are no "
            "polygon but a box around its keypoints; keep the first five numbers of each line, or give the model's "
            "detection.keypoints in model.toml"
        )
    found = [Found(path, BoxTruth(of, is_relative=True)) for (path, _), of in zip(pairs, objects, strict=True)]
    return Labelled(found, tuple(one for one in lonely if one.path.name != _LIST_OF_CLASSES))


def _are_boxes_with_keypoints(outlines: Sequence[NDArray[np.float64]]) -> bool:
    """Tell whether lines of as many numbers each are boxes, each around the points behind it, and no polygons."""
    if {len(outline) for outline in outlines} != {len(outlines[0])} or len(outlines[0]) <= _CORNERS:
        return False
    rows = np.array(outlines)  # (N, 2 + keypoints, 2): centre, size and keypoints; (0, 0) for one that is not labelled
    points = rows[:, 2:]
    is_inside = (np.abs(points - rows[:, :1]) <= rows[:, 1:2] / 2 + _OVERSHOOT).all(axis=2)
    return bool((is_inside | (points == 0).all(axis=2)).all())


class _Row(NamedTuple):
    """One line of a label file: where it stands, its class, and the float64 numbers behind that."""

    where: str
    class_id: int
    values: NDArray[np.float64]


def _rows(path: Path | None, names: ClassNames) -> list[_Row]:
    """Return the lines of the label file of one image; without a file there are none."""
    lines = read_text(path, _MOST_BYTES_OF_ROWS).rstrip("\n").split("\n") if path else []
    if len(lines) > _MOST_ROWS:
        raise DataError(f"{path}: has {len(lines)} lines, expected {_MOST_ROWS} objects or fewer in one image")
    rows = []
    for number, line in enumerate(lines, start=1):
        where, fields = f"{path}: line {number}", line.split()
        numbers = [finite_number(field) for field in fields[1:]]
        if None in numbers:
            raise DataError(f"{where}: {shown(fields[1 + numbers.index(None)])} is no number")
        if fields:
            rows.append(_Row(where, _numbered(fields[0], names, where, "class"), np.array(numbers, np.float64)))
    return rows


def _have_keypoints(values: Sequence[NDArray[np.float64]]) -> bool:
    """Tell whether a data set's lines are boxes with keypoints, of three numbers each: the third, v, is 0, 1 or 2."""
    long = [one for one in values if len(one) > 4]
    given = len(long[0]) if long else 0
    if given % 3 != 1 or (given % 2 == 0 and given <= 10) or {len(one) for one in long} != {given}:
        return False
    table = np.array(long)  # of all: points of some polygons, at the edges of their images, look like it
    return bool(np.isin(table[:, 6::3], (0, 1, 2)).all() and table[:, 2:4].min() > 0)


def _object(row: _Row, names: ClassNames, *, has_keypoints: bool) -> LabelledObject:
    """Return the object of one line, whose coordinates are 0-1."""
    where, class_id, values = row
    width = 3 if has_keypoints and len(values) > 4 else _width_of_keypoints(values, names.keypoints, where)
    if len(values) > 4 and not width:
        outline = values.reshape(-1, 2)
        if len(outline) > MOST_POINTS:
            raise DataError(f"{where}: a polygon of {len(outline)} points, expected {MOST_POINTS} or less; simplify it")
        return LabelledObject(_extent(outline, "the polygon", where), class_id, outline=(outline.clip(0, 1),))
    middle, size = values[:2], values[2:4]
    if size.min() < 0:
        raise DataError(f"{where}: the box is {size[0]:g} wide and {size[1]:g} high, expected 0 or more")
    with np.errstate(over="ignore"):
        box_xyxy = _extent(np.stack([middle - size / 2, middle + size / 2]), "the box", where)
    if not width:
        return LabelledObject(box_xyxy, class_id)
    points = values[4:].reshape(-1, width)
    if width == 3 and not np.isin(points[:, 2], (0, 1, 2)).all():
        raise DataError(f"{where}: the third number of a keypoint, its visibility, is not 0, 1 or 2")
    is_labelled = points[:, 2] > 0 if width == 3 else (points > 0).any(axis=1)
    points = np.column_stack([points[:, :2], is_labelled])
    if points[:, 2].any():
        _extent(points[points[:, 2] > 0, :2], "the keypoints", where)
    return LabelledObject(box_xyxy, class_id, keypoints=points)


def _width_of_keypoints(values: NDArray[np.float64], count: int, where: str) -> int:
    """Return how many numbers each of `count` keypoints behind a box has, 2 or 3; 0 for a box alone, or a polygon."""
    given = len(values)
    if count and given != 4:
        if given not in (4 + 2 * count, 4 + 3 * count):
            raise DataError(
                f"{where}: has {given + 1} numbers, expected 5 (class x y width height), or {5 + 2 * count} or "
                f"{5 + 3 * count} with the model's {count} keypoints"
            )
        return (given - 4) // count
    if given < 4 or given % 2:
        forms = "5: class x y width height, or for a polygon an odd number from 7: class x1 y1 x2 y2 x3 y3 …"
        raise DataError(f"{where}: has {given + 1} numbers, expected {forms}")
    return 0


def _extent(points: NDArray[np.float64], what: str, where: str) -> tuple[float, ...]:
    """Return the box around float64 (N, 2), cut to 0-1."""
    ends = np.stack([points.min(axis=0), points.max(axis=0)])
    if ends.min() < -_OVERSHOOT or ends.max() > 1 + _OVERSHOOT:
        (left, top), (right, bottom) = ends.tolist()
        verb = "reach" if what.endswith("s") else "reaches"
        raise DataError(
            f"{where}: {what} {verb} from {left:.4g}, {top:.4g} to {right:.4g}, {bottom:.4g}, expected 0 to 1, as "
            "parts of the image's width and height"
        )
    return tuple(ends.clip(0, 1).ravel().tolist())


class LabelFormat(NamedTuple):
    """One format of labels: what it holds, its sign in words, whether a folder has it, and its reader."""

    truths: Truths
    sign: str
    is_there: Callable[[Path, ClassNames], bool]
    read: Callable[[Path, ClassNames], Labelled]


def _has_file(*places: str, of: Callable[[Path], bool] = is_file) -> Callable[[Path, ClassNames], bool]:
    return lambda folder, _: any(of(path) for place in places for path in folder.glob(place))


def _has_folder(name: str) -> Callable[[Path, ClassNames], bool]:
    return lambda folder, _: all(map(is_folder, _folders(folder, name)))


FORMATS: dict[Format, LabelFormat] = {
    LABELS_CSV: LabelFormat("classes", LABELS_CSV, _has_file(LABELS_CSV), read_labels_csv),
    TEXTS_CSV: LabelFormat("texts", TEXTS_CSV, _has_file(TEXTS_CSV), read_texts_csv),
    "class folders": LabelFormat("classes", "a folder a class", are_class_folders, read_class_folders),
    "coco": LabelFormat("boxes", "a COCO .json", _has_file(*PLACES, of=looks_like_coco), read_coco),
    "yolo": LabelFormat("boxes", "images/ beside labels/", _has_folder(LABELS), read_yolo),
    "masks": LabelFormat("masks", "images/ beside masks/", _has_folder(MASKS), read_masks),
}
"""All formats, in the order in which they are tried."""
