"""The formats of labels, each a reader of a folder, and the table of them.

Class folders: the images of a class lie in a folder of its name, at any depth. labels.csv: one image a line, with the
id or the label of its class. texts.csv: one image a line, with its text. COCO: boxes in one JSON file, and images in
folders near it, with polygons, masks or keypoints where it has them. YOLO: images/ and labels/ beside each other, a
text file an image with a line an object: a box, a polygon, or a box with keypoints. Masks: images/ and masks/ beside
each other, a PNG of class ids an image.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

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


_LOOKS_LIKE_COCO = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
_LOOKED_AT = 65536  # bytes that are searched for the first list, before which a COCO file has at most `info`
_MOST_PIXELS = 67_000_000  # of a mask, as of an image
_MOST_BYTES = 4 << 30  # about the size of the largest public files, for two million pictures
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CocoImage(msgspec.Struct, frozen=True, gc=False):
    """One image of a COCO file; width and height are those of the picture that was annotated."""

    id: int | str
    file_name: str
    width: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    height: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None


class CocoAnnotation(msgspec.Struct, frozen=True, gc=False):
    """One annotated object of a COCO file, in pixels.

    The box is x and y of the upper left corner, width and height. Segmentation and keypoints are read later, because
    what has no use for them takes files in which they are wrong.
    """

    image_id: int | str
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int | bool = 0
    area: float | None = None
    segmentation: msgspec.Raw = msgspec.Raw(b"null")
    keypoints: msgspec.Raw = msgspec.Raw(b"null")


class CocoRuns(msgspec.Struct, frozen=True):
    """A mask as run lengths, column by column, outside and inside by turns; a text is pycocotools' form of them."""

    counts: list[int] | str
    size: tuple[int, int]  # height and width


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
    objects = _objects_by_image(coco, names, path)
    folders = image_folders(path)
    found, skipped = [], []
    for index, image in enumerate(coco.images):
        file = listed_file(image.file_name, folders, f"{path}: images[{index}]")
        if file is None:
            skipped.append(Skipped(folders[0] / image.file_name, f"listed in {path.name} and not there"))
            continue
        size_wh = (int(image.width), int(image.height)) if image.width and image.height else None
        found.append(Found(file, _box_truth(objects[image.id], relative=False), size_wh))
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


class _Object(NamedTuple):
    """One object; its box may be around many (`is_crowd`). Outline, keypoints and area are as in `BoxTruth`."""

    box_xyxy: tuple[float, ...]
    class_id: int
    is_crowd: bool = False
    outline: NDArray[np.float64] | None = None
    keypoints: NDArray[np.float64] | None = None
    area: float | None = None


def _objects_by_image(coco: CocoFile, names: ClassNames, path: Path) -> dict[int | str, list[_Object]]:
    """Return the objects of each image, in pixels; categories that are not used need not be classes of the model."""
    objects: dict[int | str, list[_Object]] = {}
    for index, image in enumerate(coco.images):
        if image.id in objects:
            raise DataError(f"{path}: images[{index}].id is {shown(image.id)}, which another image has too")
        objects[image.id] = []
    categories = {category.id: category.name for category in coco.categories}
    if len(categories) < len(coco.categories):
        raise DataError(f"{path}: two of its {len(coco.categories)} categories have one id; give each its own")
    beside = [categories[used] for used in {a.category_id for a in coco.annotations} if used in categories]
    class_ids: dict[int, int] = {}
    for index, a in enumerate(coco.annotations):
        where, used, (x, y, width, height) = f"{path}: annotations[{index}]", a.category_id, a.bbox
        box_xyxy = x, y, x + width, y + height
        if a.image_id not in objects:
            raise DataError(f"{where}.image_id is {shown(a.image_id)}, expected the id of an image")
        if min(width, height) < 0 or not all(map(math.isfinite, box_xyxy)):
            expected = "expected x, y, width and height in pixels, width and height 0 or more"
            raise DataError(f"{where}.bbox is {list(a.bbox)}, {expected}")
        if used not in categories:
            raise DataError(
                f"{where}.category_id is {used}, expected the id of one of its {len(categories)} categories"
            )
        if used not in class_ids:
            class_ids[used] = names.class_id(categories[used], f"{path}: category {used}", beside)
        keypoints = _keypoints(a.keypoints, names.keypoints, f"{where}.keypoints")
        outline = _outline(a.segmentation)
        objects[a.image_id].append(_Object(box_xyxy, class_ids[used], bool(a.iscrowd), outline, keypoints, a.area))
    return objects


def _keypoints(annotated: msgspec.Raw, count: int, where: str) -> NDArray[np.float64] | None:
    """Return the keypoints of an annotation as in `BoxTruth`, `count` or, where that is 0, any; None without them."""
    try:
        values = np.array(msgspec.json.decode(annotated, type=list[float] | None) or (), np.float64)
    except msgspec.ValidationError:
        values = np.array([math.nan])
    is_right = len(values) % 3 == 0 and np.isfinite(values).all() and np.isin(values[2::3], (0, 1, 2)).all()
    if count and len(values) and not (is_right and len(values) == 3 * count):
        expected = f"expected x, y and v of each of the model's {count} keypoints"
        raise DataError(f"{where} is no list of {3 * count} numbers, {expected}")
    if not len(values) or not is_right:
        return None
    points = values.reshape(-1, 3)
    return np.column_stack([points[:, :2], points[:, 2] > 0])


_FARTHEST = 1e6  # pixels from the image's corner, where polygons are cut


def _outline(annotated: msgspec.Raw) -> NDArray[np.float64] | None:
    """Return one polygon around the parts of a segmentation; None if there is none, or it is no mask."""
    try:
        mask = msgspec.json.decode(annotated, type=list[list[float]] | CocoRuns | None)
        parts = _columns(mask) if isinstance(mask, CocoRuns) else [np.reshape(part, (-1, 2)) for part in mask or ()]
    except ValueError:
        return None
    most = _MOST_CORNERS if isinstance(mask, CocoRuns) else _MOST_POINTS
    if not parts or min(map(len, parts)) < 3 or sum(map(len, parts)) > most:
        return None
    # By the even-odd rule a way that is gone twice is no edge: from part to part, and back.
    starts = [part[:1] for part in parts]
    closed = [piece for part, start in zip(parts, starts, strict=True) for piece in (part, start)]
    return np.concatenate([*closed, *starts[::-1]], dtype=np.float64).clip(-_FARTHEST, _FARTHEST)


def _columns(mask: CocoRuns) -> list[NDArray[np.int64]]:
    """Return the rectangles, one pixel wide, of a mask's run lengths; raise a ValueError where they are none."""
    (height, width), counts = mask.size, mask.counts
    counts = _lengths(counts) if isinstance(counts, str) else counts
    if min(height, width, *counts) < 0 or sum(counts) != height * width or height * width > _MOST_PIXELS:
        raise ValueError
    pixels = np.repeat(np.arange(len(counts)) % 2, counts).astype(np.int8).reshape(width, height)
    changes = np.diff(np.pad(pixels, [(0, 0), (1, 1)]), axis=1)
    (x, top), bottom = (changes > 0).nonzero(), (changes < 0).nonzero()[1]
    corners = np.stack([x, top, x + 1, top, x + 1, bottom, x, bottom], axis=1)
    return list(corners.reshape(-1, 4, 2))


def _lengths(text: str) -> list[int]:
    """Return the run lengths of pycocotools' text: five bits a character from `0`, the lowest first.

    The sixth bit says that more follow. From the fourth on, a number is the difference to the one two before it.
    """
    lengths, value, shift = list[int](), 0, 0
    for code in text.encode():
        bits = code - ord("0")
        value |= (bits & 31) << shift
        shift += 5
        if shift > 40:
            raise ValueError
        if not bits & 32:
            value -= (bits & 16) << (shift - 4)  # the highest bit is the sign
            lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
            value = shift = 0
    return lengths


def _box_truth(objects: Sequence[_Object], *, relative: bool) -> BoxTruth:
    outlines = tuple(one.outline for one in objects if one.outline is not None)
    keypoints = tuple(one.keypoints for one in objects if one.keypoints is not None)
    areas = [one.area for one in objects]
    are_alike = len(keypoints) == len(objects) and len(set(map(len, keypoints))) < 2
    return BoxTruth(
        np.array([one.box_xyxy for one in objects], np.float64).reshape(-1, 4),
        np.array([one.class_id for one in objects], np.int64),
        np.array([one.is_crowd for one in objects], np.bool_),
        relative,
        outlines if len(outlines) == len(objects) else None,
        keypoints if are_alike else None,
        None if None in areas else np.array(areas, np.float64),
    )


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
_MOST_POINTS = 10_000  # of one polygon: those of an annotation tool have some hundred
_MOST_CORNERS = 100_000  # of one mask of run lengths: that of a crowd has some ten thousand
_ENOUGH, _CORNERS = 10, 4  # objects that show what the lines are; points of an oriented box, which is a polygon
_OVERSHOOT = 1e-3  # of the image's side: what rounding in exporters leaves; it is cut off
_LIST_OF_CLASSES = "classes.txt"  # annotation tools leave it among the labels


def _folders(folder: Path, beside: str) -> tuple[Path, Path]:
    """Return where the images are and where their labels or masks are, if they are there.

    Both are in the folder; or it is `images`, or lies in it, and the path of the other has `beside` in that place.
    """
    parts = folder.absolute().parts
    if IMAGES in parts and not is_folder(folder / IMAGES):
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
    truths = [
        _box_truth([_object(row, names, has_keypoints=has_keypoints) for row in of], relative=True) for of in rows
    ]
    outlines = [outline for truth in truths for outline in truth.outlines or ()]
    if len(outlines) >= _ENOUGH and _are_boxes_with_keypoints(outlines):
        raise DataError(
            f"{folder}: each of {len(outlines)} objects has {outlines[0].size} numbers behind its class, which are no "
            "polygon but a box around its keypoints; keep the first five numbers of each line, or give the model's "
            "detection.keypoints in model.toml"
        )
    found = [Found(path, truth) for (path, _), truth in zip(pairs, truths, strict=True)]
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
    lines = read_text(path, _MOST_BYTES_OF_ROWS).split("\n") if path else []
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
    """Tell whether a data set's lines are boxes with keypoints, each with a third number 0, 1 or 2 for its visibility.

    A polygon's points at the edges of its image look like it, but hardly those of all its polygons.
    """
    long = [one for one in values if len(one) > 4]
    given = len(long[0]) if long else 0
    if given % 3 != 1 or (given % 2 == 0 and given <= 10) or {len(one) for one in long} != {given}:
        return False
    table = np.array(long)
    return bool(np.isin(table[:, 6::3], (0, 1, 2)).all() and table[:, 2:4].min() > 0)


def _object(row: _Row, names: ClassNames, *, has_keypoints: bool) -> _Object:
    """Return the object of one line, whose coordinates are 0-1."""
    where, class_id, values = row
    width = 3 if has_keypoints and len(values) > 4 else _width_of_keypoints(values, names.keypoints, where)
    if len(values) > 4 and not width:
        outline = values.reshape(-1, 2)
        if len(outline) > _MOST_POINTS:
            raise DataError(
                f"{where}: a polygon of {len(outline)} points, expected {_MOST_POINTS} or less; simplify it"
            )
        return _Object(_extent(outline, "the polygon", where), class_id, outline=outline.clip(0, 1))
    middle, size = values[:2], values[2:4]
    if size.min() < 0:
        raise DataError(f"{where}: the box is {size[0]:g} wide and {size[1]:g} high, expected 0 or more")
    with np.errstate(over="ignore"):
        box_xyxy = _extent(np.stack([middle - size / 2, middle + size / 2]), "the box", where)
    if not width:
        return _Object(box_xyxy, class_id)
    points = values[4:].reshape(-1, width)
    if width == 3 and not np.isin(points[:, 2], (0, 1, 2)).all():
        raise DataError(f"{where}: the third number of a keypoint, its visibility, is not 0, 1 or 2")
    is_labelled = points[:, 2] > 0 if width == 3 else (points > 0).any(axis=1)
    points = np.column_stack([points[:, :2], is_labelled])
    if points[:, 2].any():
        _extent(points[points[:, 2] > 0, :2], "the keypoints", where)
    return _Object(box_xyxy, class_id, keypoints=points)


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


def _has_file(name: str) -> Callable[[Path, ClassNames], bool]:
    return lambda folder, _: is_file(folder / name)


def _has_folder(name: str) -> Callable[[Path, ClassNames], bool]:
    return lambda folder, _: all(map(is_folder, _folders(folder, name)))


FORMATS: dict[Format, LabelFormat] = {
    LABELS_CSV: LabelFormat("classes", LABELS_CSV, _has_file(LABELS_CSV), read_labels_csv),
    TEXTS_CSV: LabelFormat("texts", TEXTS_CSV, _has_file(TEXTS_CSV), read_texts_csv),
    "class folders": LabelFormat("classes", "a folder a class", are_class_folders, read_class_folders),
    "coco": LabelFormat("boxes", "a COCO .json", lambda folder, _: bool(coco_files(folder)), read_coco),
    "yolo": LabelFormat("boxes", "images/ beside labels/", _has_folder(LABELS), read_yolo),
    "masks": LabelFormat("masks", "images/ beside masks/", _has_folder(MASKS), read_masks),
}
"""All formats, in the order in which they are tried."""
