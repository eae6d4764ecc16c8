"""COCO: boxes in one JSON file, images in folders near it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk.core.toml import shown
from edge_sdk_tools.dataset.class_names import ClassNames
from edge_sdk_tools.dataset.coco_file import CocoFile, coco_files, image_folders, read_coco_file
from edge_sdk_tools.dataset.gathering import Found, Labelled
from edge_sdk_tools.dataset.images import Skipped
from edge_sdk_tools.dataset.listed import listed_file
from edge_sdk_tools.dataset.truth import BoxTruth
from edge_sdk_tools.dataset.walk import is_folder


def read_coco(path: Path, names: ClassNames) -> Labelled:
    """Read one file of COCO.

    Args:
        path: the .json, or a folder with exactly one, in itself or in its `annotations`.
        names: of the model's classes; categories are theirs by name.

    Raises:
        DataError: when something is wrong with it; it names the file and the entry.
    """
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
    """Rows of the annotations of each image, by its id."""
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
    """float64 (N, 4), x1, y1, x2, y2 in pixels, one an annotation."""
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
    """int64 (N,), one an annotation; a category that no annotation uses need not be a class of the model."""
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
