"""The formats of labels, each a reader of a folder, and the table of them.

Class folders: the images of a class lie in a folder of its name, at any depth. labels.csv: one image a line, with the
id or the label of its class. texts.csv: one image a line, with its text. COCO: boxes in one JSON file, and images in
folders near it; polygons, masks and other parts of the file are ignored. YOLO: images/ and labels/ beside each other, a
text file an image with a line an object: a box, a polygon, or a box with keypoints. Masks: images/ and masks/ beside
each other, a PNG of class ids an image.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import open_regular, read_regular
from edge_sdk.core.toml import shown
from edge_sdk.tasks.spec import Truths
from edge_sdk_tools.datasets.class_names import ClassNames, finite_number, names_of, read_text, whole_number
from edge_sdk_tools.datasets.dataset import (
    BoxTruth,
    ClassTruth,
    Format,
    Found,
    Labelled,
    MaskTruth,
    Truth,
    listed_file,
    mask_size,
)
from edge_sdk_tools.datasets.images import Skipped, files_below, is_candidate, is_file, is_folder, subfolders


def are_class_folders(folder: Path, names: ClassNames) -> bool:
    """Tell whether one folder at least bears the name of a class, or a WordNet id; `day` and `night` do not."""
    here = [path.name for path in subfolders(folder)]
    return any(
        names.find(name) or names_of(name).synset or (_is_number(name) and int(name) < len(names)) for name in here
    )


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
        class_id = names.class_id(value, where) if column == "label" else _csv_class_id(value, names, where)
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
            file = listed_file(row[0].strip(), [folder], where)
            if file is None:
                raise DataError(
                    f"{where}: no file {shown(row[0].strip())} in {folder}; take the line out or copy the image there"
                )
            yield where, column, file, row[1]
    except csv.Error as cause:
        raise DataError(f"{path}: line {rows.line_num}: not comma-separated values: {cause}") from cause
    if not count:
        raise DataError(f"{path}: no images in it, expected one a line after the header")


def _csv_class_id(value: str, names: ClassNames, where: str) -> int:
    class_id = whole_number(value)
    if class_id is None:
        raise DataError(f"{where}: class_id is {shown(value)}, expected a whole number from 0 to {len(names) - 1}")
    return names.checked(class_id, where)


_LOOKS_LIKE_COCO = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
_LOOKED_AT = 65536  # bytes that are searched for the first list, before which a COCO file has at most `info`
_MOST_BYTES = 4 << 30  # about the size of the largest public files, for two million pictures
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CocoImage(msgspec.Struct, frozen=True, gc=False):
    """One image of a COCO file; width and height are those of the picture that was annotated."""

    id: int | str
    file_name: str
    width: float | None = None
    height: float | None = None

    @property
    def size_wh(self) -> tuple[int, int] | None:
        """Width and height in pixels; None where the file lacks one of them."""
        return (int(self.width), int(self.height)) if self.width and self.height else None


class CocoAnnotation(msgspec.Struct, frozen=True, gc=False):
    """One annotated box of a COCO file: x and y of the upper left corner, width and height, in pixels."""

    image_id: int | str
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int | bool = 0


class CocoCategory(msgspec.Struct, frozen=True, gc=False):
    """One category of a COCO file: the id that annotations refer to, and its name."""

    id: int
    name: str


class CocoFile(msgspec.Struct, frozen=True):
    """The parts of a COCO file that are read."""

    images: list[CocoImage]
    annotations: list[CocoAnnotation]
    categories: list[CocoCategory]


def read_coco_file(path: Path) -> CocoFile:
    """Read a COCO file; raise DataError."""
    try:
        data = read_regular(path, _MOST_BYTES).removeprefix(_BYTE_ORDER_MARK)
        return msgspec.json.decode(data, type=CocoFile)
    except OSError as cause:
        raise DataError(f"{path}: cannot be read: {cause.strerror}") from cause
    except msgspec.ValidationError as cause:
        raise DataError(f"{path}: {cause}; expected images, annotations and categories as COCO has them") from cause
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise DataError(f"{path}: not valid JSON in UTF-8: {cause}; export or copy it again") from cause


def coco_files(folder: Path) -> list[Path]:
    """Return the .json files in `folder` and in its `annotations` that look like COCO's, in order of their paths."""
    files = (*folder.glob("*.json"), *(folder / "annotations").glob("*.json"))
    return sorted(path for path in files if not path.name.startswith(".") and _looks_like_coco(path))


def image_folders(path: Path) -> list[Path]:
    """List the folders in which the images of this file are searched, in order.

    Beside it, in `images`, or in a folder of its name: for instances_val2017.json also `val2017`. As COCO itself keeps
    its files in `annotations`, all this is true of the folder above that one too.
    """
    homes = [path.parent, *([path.parent.parent] if path.parent.name == "annotations" else [])]
    split = path.stem.rpartition("_")[2]
    names = (".", "images", path.stem, split, f"images/{split}")
    folders = dict.fromkeys(home / name for home in homes for name in names)
    return [folder for folder in folders if is_folder(folder)]


def _looks_like_coco(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return _LOOKS_LIKE_COCO.search(file.read(_LOOKED_AT)) is not None
    except OSError:
        return False


def read_coco(path: Path, names: ClassNames) -> Labelled:
    """Read a COCO file, or the one in a folder."""
    path = _the_file(path)
    coco = read_coco_file(path)
    rows = _rows_by_image(coco, path)
    boxes_xyxy = _boxes(coco, path)
    class_ids = _class_ids(coco, names, path)
    crowd = np.array([bool(a.iscrowd) for a in coco.annotations], np.bool_)
    folders = image_folders(path)
    found, skipped = [], []
    for index, image in enumerate(coco.images):
        file = listed_file(image.file_name, folders, f"{path}: images[{index}]")
        if file is None:
            skipped.append(Skipped(folders[0] / image.file_name, f"listed in {path.name} and not there"))
            continue
        of = rows[image.id]
        found.append(Found(file, BoxTruth(boxes_xyxy[of], class_ids[of], crowd[of], relative=False), image.size_wh))
    if not found:
        searched = ", ".join(map(str, folders))
        where = f"none of its {len(skipped)} images is there, looked in {searched}; put them into one of these"
        raise DataError(f"{path}: {where if skipped else 'no images in it, expected a list of them'}")
    return Labelled(sorted(found, key=lambda item: item.path), tuple(skipped))


def _the_file(path: Path) -> Path:
    if not is_folder(path):
        return path
    files = coco_files(path)
    if len(files) != 1:
        listed = ", ".join(file.name for file in files)
        raise DataError(f"{path}: {len(files)} COCO files in it ({listed}), expected one; give the .json that is meant")
    return files[0]


def _rows_by_image(coco: CocoFile, path: Path) -> dict[int | str, list[int]]:
    rows: dict[int | str, list[int]] = {}
    for index, image in enumerate(coco.images):
        if image.id in rows:
            raise DataError(f"{path}: images[{index}].id is {shown(image.id)}, which another image has too")
        rows[image.id] = []
    for index, annotation in enumerate(coco.annotations):
        if annotation.image_id not in rows:
            raise DataError(
                f"{path}: annotations[{index}].image_id is {shown(annotation.image_id)}, expected the id of an image"
            )
        rows[annotation.image_id].append(index)
    return rows


def _boxes(coco: CocoFile, path: Path) -> NDArray[np.float64]:
    """Return the boxes of all annotations: float64 (N, 4), x1, y1, x2, y2 in pixels."""
    boxes = np.array([a.bbox for a in coco.annotations], np.float64).reshape(-1, 4)
    with np.errstate(over="ignore"):
        xyxy = np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])
    wrong = np.flatnonzero((boxes[:, 2:] < 0).any(axis=1) | ~np.isfinite(xyxy).all(axis=1))
    if wrong.size:
        raise DataError(
            f"{path}: annotations[{wrong[0]}].bbox is {boxes[wrong[0]].tolist()}, expected x, y, width and height in "
            "pixels, width and height 0 or more"
        )
    return xyxy


def _class_ids(coco: CocoFile, names: ClassNames, path: Path) -> NDArray[np.int64]:
    """Return the class id of each annotation, int64 (N,); unused categories need not be classes of the model."""
    categories = {category.id: category.name for category in coco.categories}
    beside = [categories[used] for used in {a.category_id for a in coco.annotations} if used in categories]
    class_ids: dict[int, int] = {}
    for index, annotation in enumerate(coco.annotations):
        used = annotation.category_id
        if used not in class_ids:
            if used not in categories:
                raise DataError(
                    f"{path}: annotations[{index}].category_id is {used}, expected the id of one of its "
                    f"{len(categories)} categories"
                )
            class_ids[used] = names.class_id(categories[used], f"{path}: category {used}", beside)
    return np.array([class_ids[a.category_id] for a in coco.annotations], np.int64)


def read_masks(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/images and FOLDER/masks; a mask has the name of its image at the same place, and ends in .png.

    Of a mask only the header is read; `MaskTruth.read` reads the rest.
    """
    masks = _by_name(folder / MASKS, ".png")
    found, skipped, wanted = [], [], set()
    for path in filter(is_candidate, files_below(folder / IMAGES)):
        name = path.relative_to(folder / IMAGES).with_suffix("")
        mask = masks.get(name)
        if mask is None:
            skipped.append(Skipped(path, f"no mask of this name in {MASKS}/"))
        else:
            wanted.add(name)
            found.append(Found(path, MaskTruth(mask, len(names)), mask_size(mask)))
    if skipped and not found:
        raise DataError(f"{folder}: not one image has a mask, expected {MASKS}/NAME.png for {IMAGES}/NAME.jpg")
    lonely = [mask for name, mask in masks.items() if name not in wanted]
    return Labelled(found, (*skipped, *(Skipped(mask, f"no image of this name in {IMAGES}/") for mask in lonely)))


def _by_name(folder: Path, suffix: str) -> dict[Path, Path]:
    """Return the files below a folder with this suffix by their paths in it, without the suffix."""
    files = (path for path in files_below(folder) if path.suffix.lower() == suffix)
    return {path.relative_to(folder).with_suffix(""): path for path in files}


IMAGES, LABELS, MASKS = "images", "labels", "masks"
_MOST_POINTS = 10_000  # of one polygon: those of an annotation tool have some hundred
_OVERSHOOT = 1e-3  # of the image's side: what rounding in exporters leaves; it is cut off
_LIST_OF_CLASSES = "classes.txt"  # annotation tools leave it among the labels


def read_yolo(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/images and FOLDER/labels; a label has the name of its image at the same place."""
    labels = _by_name(folder / LABELS, ".txt")
    images = [path for path in files_below(folder / IMAGES) if is_candidate(path)]
    named = [(path, path.relative_to(folder / IMAGES).with_suffix("")) for path in images]
    found = [Found(path, _read_boxes(labels.get(name), names)) for path, name in named]
    wanted = {name for _, name in named}
    if images and not wanted & labels.keys():
        raise DataError(
            f"{folder}: none of {len(labels)} files in {LABELS}/ belongs to an image, expected {LABELS}/NAME.txt for "
            f"{IMAGES}/NAME.jpg"
        )
    lonely = [path for name, path in labels.items() if name not in wanted and path.name != _LIST_OF_CLASSES]
    return Labelled(found, tuple(Skipped(path, f"no image of this name in {IMAGES}/") for path in lonely))


def _read_boxes(path: Path | None, names: ClassNames) -> BoxTruth:
    """Return the objects of one image; without a file there are none."""
    lines = read_text(path).split("\n") if path else []
    rows = [_row(line.split(), names, f"{path}: line {n}") for n, line in enumerate(lines, start=1) if line.strip()]
    outlines = [row.points for row in rows if row.kind == "polygon"]
    keypoints = [row.points for row in rows if row.kind == "keypoints"]
    return BoxTruth(
        np.array([row.box_xyxy for row in rows], np.float64).reshape(-1, 4),
        np.array([row.class_id for row in rows], np.int64),
        np.zeros(len(rows), np.bool_),
        relative=True,
        outlines=tuple(outlines) if len(outlines) == len(rows) else None,
        keypoints=tuple(keypoints) if len(keypoints) == len(rows) and len(set(map(len, keypoints))) < 2 else None,
    )


class _Row(NamedTuple):
    """One line: `points` are a polygon, float64 (points, 2), or keypoints, (K, 3), or none where it is a box."""

    class_id: int
    box_xyxy: NDArray[np.float64]
    kind: Literal["box", "polygon", "keypoints"]
    points: NDArray[np.float64]


def _row(fields: Sequence[str], names: ClassNames, where: str) -> _Row:
    """Read one line, whose coordinates are 0-1."""
    numbers = [finite_number(field) for field in fields[1:]]
    class_id = whole_number(fields[0])
    if class_id is None:
        raise DataError(f"{where}: class is {shown(fields[0])}, expected a whole number from 0 to {len(names) - 1}")
    if None in numbers:
        raise DataError(f"{where}: {shown(fields[1 + numbers.index(None)])} is no number")
    values = np.array(numbers, np.float64)
    points, width = np.empty((0, 3)), _width_of_keypoints(values, names.keypoints, where)
    names.checked(class_id, where)
    if len(values) > 4 and not width:
        points = values.reshape(-1, 2)
        if len(points) > _MOST_POINTS:
            raise DataError(f"{where}: a polygon of {len(points)} points, expected {_MOST_POINTS} or less; simplify it")
        return _Row(class_id, _extent(points, "the polygon", where).ravel(), "polygon", points.clip(0, 1))
    middle, size = values[:2], values[2:4]
    if size.min() < 0:
        raise DataError(f"{where}: the box is {size[0]:g} wide and {size[1]:g} high, expected 0 or more")
    with np.errstate(over="ignore"):
        box = _extent(np.stack([middle - size / 2, middle + size / 2]), "the box", where)
    if width:
        points = np.pad(values[4:].reshape(-1, width), [(0, 0), (0, 3 - width)], constant_values=1)
        points[:, 2] = points[:, 2] > 0
        if points[:, 2].any():
            _extent(points[points[:, 2] > 0, :2], "the keypoints", where)
    return _Row(class_id, box.ravel(), "keypoints" if width else "box", points)


def _width_of_keypoints(values: NDArray[np.float64], count: int, where: str) -> int:
    """Return how many numbers each keypoint behind a box has, 2 or 3; 0 where there is a box alone, or a polygon.

    Without the model's `count` a row has keypoints if every third number says 0, 1 or 2, how visible one is.
    """
    given = len(values)
    if count and given != 4:
        if given not in (4 + 2 * count, 4 + 3 * count):
            raise DataError(
                f"{where}: has {given + 1} numbers, expected 5 (class x y width height), or {5 + 2 * count} or "
                f"{5 + 3 * count} with the model's {count} keypoints"
            )
        return (given - 4) // count
    if given > 4 and given % 3 == 1 and (given % 2 or given > 10) and np.isin(values[6::3], (0, 1, 2)).all():
        return 3
    if given < 4 or given % 2:
        raise DataError(f"{where}: has {given + 1} numbers, expected 5: class x y width height")
    return 0


def _extent(points: NDArray[np.float64], what: str, where: str) -> NDArray[np.float64]:
    """Return the first and last x and y of float64 (N, 2), cut to 0-1: float64 (2, 2)."""
    ends = np.stack([points.min(axis=0), points.max(axis=0)])
    if ends.min() < -_OVERSHOOT or ends.max() > 1 + _OVERSHOOT:
        (left, top), (right, bottom) = ends.tolist()
        verb = "reach" if what.endswith("s") else "reaches"
        raise DataError(
            f"{where}: {what} {verb} from {left:.4g}, {top:.4g} to {right:.4g}, {bottom:.4g}, expected 0 to 1, as "
            "parts of the image's width and height"
        )
    return ends.clip(0, 1)


class LabelFormat(NamedTuple):
    """One format of labels: what it holds, its sign in words, whether a folder has it, and its reader."""

    truths: Truths
    sign: str
    is_there: Callable[[Path, ClassNames], bool]
    read: Callable[[Path, ClassNames], Labelled]


def _has_folders(folder: Path, *names: str) -> bool:
    return all(is_folder(folder / name) for name in names)


FORMATS: dict[Format, LabelFormat] = {
    "labels.csv": LabelFormat("classes", "labels.csv", lambda folder, _: is_file(folder / LABELS_CSV), read_labels_csv),
    TEXTS_CSV: LabelFormat("texts", TEXTS_CSV, lambda folder, _: is_file(folder / TEXTS_CSV), read_texts_csv),
    "class folders": LabelFormat("classes", "a folder a class", are_class_folders, read_class_folders),
    "coco": LabelFormat("boxes", "a COCO .json", lambda folder, _: bool(coco_files(folder)), read_coco),
    "yolo": LabelFormat(
        "boxes", "images/ beside labels/", lambda folder, _: _has_folders(folder, IMAGES, LABELS), read_yolo
    ),
    "masks": LabelFormat(
        "masks", "images/ beside masks/", lambda folder, _: _has_folders(folder, IMAGES, MASKS), read_masks
    ),
}
"""All formats, in the order in which they are tried."""
