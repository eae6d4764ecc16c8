"""COCO's JSON: boxes, polygons, masks and keypoints of many images in one file, and the images in folders near it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import open_regular, read_regular
from edge_sdk.core.toml import shown
from edge_sdk_tools.datasets.class_names import ClassNames
from edge_sdk_tools.datasets.dataset import (
    MOST_POINTS,
    BoxTruth,
    Found,
    Labelled,
    LabelledObject,
    Outline,
    Runs,
    listed_file,
)
from edge_sdk_tools.datasets.images import Skipped, is_folder

PLACES = ("[!.]*.json", "annotations/[!.]*.json")  # of the file in a folder
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
    area: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
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


def looks_like_coco(path: Path) -> bool:
    """Tell whether a file begins as COCO's do."""
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
        found.append(Found(file, BoxTruth(tuple(objects[image.id])), size_wh))
    if not found:
        searched = ", ".join(map(str, folders))
        where = f"none of its {len(skipped)} images is there, looked in {searched}; put them into one of these"
        raise DataError(f"{path}: {where if skipped else 'no images in it, expected a list of them'}")
    return Labelled(sorted(found, key=lambda item: item.path), tuple(skipped))


def _the_file(path: Path) -> Path:
    if not is_folder(path):
        return path
    files = sorted(file for place in PLACES for file in path.glob(place) if looks_like_coco(file))
    if len(files) != 1:
        listed = ", ".join(file.name for file in files)
        raise DataError(f"{path}: {len(files)} COCO files in it ({listed}), expected one; give the .json that is meant")
    return files[0]


def _objects_by_image(coco: CocoFile, names: ClassNames, path: Path) -> dict[int | str, list[LabelledObject]]:
    """Return the objects of each image, in pixels; categories that are not used need not be classes of the model."""
    objects: dict[int | str, list[LabelledObject]] = {}
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
        if min(width, height) < 0 or not all(abs(end) <= _FARTHEST for end in box_xyxy):
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
        objects[a.image_id].append(
            LabelledObject(box_xyxy, class_ids[used], bool(a.iscrowd), outline, keypoints, a.area)
        )
    return objects


def _keypoints(annotated: msgspec.Raw, count: int, where: str) -> NDArray[np.float64] | None:
    """Return an annotation's keypoints as `LabelledObject` has them, `count` or, if that is 0, any, or None."""
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
    points = values.reshape(-1, 3).clip(-_FARTHEST, _FARTHEST)
    return np.column_stack([points[:, :2], points[:, 2] > 0])


_FARTHEST = 1e6  # pixels from the image's corner, further than any image reaches


def _outline(annotated: msgspec.Raw) -> Outline | None:
    """Return what an annotation's segmentation fills; None if there is none, or it is neither polygons nor a mask."""
    try:
        given = msgspec.json.decode(annotated, type=list[list[float]] | CocoRuns | None)
        if isinstance(given, CocoRuns):
            return _runs(given)
        parts = [np.reshape(part, (-1, 2)).clip(-_FARTHEST, _FARTHEST) for part in given or ()]
    except (ValueError, OverflowError):
        return None
    is_right = parts and min(map(len, parts)) > 2 and sum(map(len, parts)) <= MOST_POINTS
    return tuple(parts) if is_right else None


def _runs(mask: CocoRuns) -> Runs:
    """Return the run lengths of a mask; raise a ValueError where they do not fill it."""
    (height, width), counts = mask.size, mask.counts
    lengths = np.array(_lengths(counts) if isinstance(counts, str) else counts, np.int64)
    if min(height, width) < 1 or height * width > _MOST_PIXELS or (lengths < 0).any() or (lengths > _MOST_PIXELS).any():
        raise ValueError
    if lengths.sum() != height * width or not lengths[1::2].any():
        raise ValueError
    return Runs(lengths, mask.size)


def _lengths(text: str) -> list[int]:
    """Return the run lengths of pycocotools' text: five bits a character from `0`, the lowest first."""
    lengths, value, shift = list[int](), 0, 0
    for code in text.encode():
        bits = code - ord("0")
        value |= (bits & 31) << shift
        shift += 5
        if shift > 40:
            raise ValueError
        if not bits & 32:  # or else more follow; from the fourth on a number is the difference to the one two before
            value -= (bits & 16) << (shift - 4)  # the highest bit is the sign
            lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
            value = shift = 0
    return lengths
