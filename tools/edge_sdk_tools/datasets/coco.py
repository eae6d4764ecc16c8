"""Read COCO datasets: boxes in one JSON file, and images in folders near it.

The module has the schema of the JSON file, reads it, and finds the folders of its images. Polygons, masks and other
parts of the file are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import open_regular, read_regular
from edge_sdk.core.toml import shown
from edge_sdk_tools.datasets.class_names import ClassNames
from edge_sdk_tools.datasets.dataset import BoxTruth
from edge_sdk_tools.datasets.finding import Found, Labelled, listed_file
from edge_sdk_tools.datasets.images import Skipped, is_folder

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
    """Read one file."""
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
    """Read one file of COCO."""
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
        raise DataError(f"{path}: {_none_there(len(skipped), folders)}")
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
    """Return the row numbers of each image's annotations, by the id of the image."""
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
    class_ids: dict[int, int] = {}
    for index, annotation in enumerate(coco.annotations):
        used = annotation.category_id
        if used not in class_ids:
            if used not in categories:
                raise DataError(
                    f"{path}: annotations[{index}].category_id is {used}, expected the id of one of its "
                    f"{len(categories)} categories"
                )
            class_ids[used] = names.class_id(categories[used], f"{path}: category {used}")
    return np.array([class_ids[a.category_id] for a in coco.annotations], np.int64)


def _none_there(count: int, folders: Sequence[Path]) -> str:
    if not count:
        return "no images in it, expected a list of them"
    return f"none of its {count} images is there, looked in {', '.join(map(str, folders))}; put them into one of these"
