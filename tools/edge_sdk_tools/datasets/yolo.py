"""Masks: images/ and masks/ beside each other, a PNG of class ids an image.

YOLO: images/ and labels/ beside each other, a text file an image with a line an object.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_sdk.core.errors import DataError
from edge_sdk.core.toml import shown
from edge_sdk_tools.datasets.class_names import ClassNames, finite_number, read_text, whole_number
from edge_sdk_tools.datasets.dataset import BoxTruth, MaskTruth, mask_size
from edge_sdk_tools.datasets.finding import Found, Labelled
from edge_sdk_tools.datasets.images import Skipped, files_below, is_candidate

MASK_IMAGES, MASKS = "images", "masks"


def read_masks(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/images and FOLDER/masks; a mask has the name of its image at the same place, and ends in .png.

    Of a mask only the header is read; `MaskTruth.read` reads the rest.
    """
    masks = {path.relative_to(folder / MASKS).with_suffix(""): path for path in _pngs(folder / MASKS)}
    found, skipped, wanted = [], [], set()
    for path in filter(is_candidate, files_below(folder / MASK_IMAGES)):
        name = path.relative_to(folder / MASK_IMAGES).with_suffix("")
        mask = masks.get(name)
        if mask is None:
            skipped.append(Skipped(path, f"no mask of this name in {MASKS}/"))
        else:
            wanted.add(name)
            found.append(Found(path, MaskTruth(mask, len(names)), mask_size(mask)))
    if skipped and not found:
        raise DataError(f"{folder}: not one image has a mask, expected {MASKS}/NAME.png for {MASK_IMAGES}/NAME.jpg")
    lonely = [mask for name, mask in masks.items() if name not in wanted]
    return Labelled(found, (*skipped, *(Skipped(mask, f"no image of this name in {MASK_IMAGES}/") for mask in lonely)))


def _pngs(folder: Path) -> list[Path]:
    return [path for path in files_below(folder) if path.suffix.lower() == ".png"]


IMAGES, LABELS = "images", "labels"
_OVERSHOOT = 1e-3  # of the image's side: what rounding in exporters leaves; it is cut off
_LIST_OF_CLASSES = "classes.txt"  # annotation tools leave it among the labels


def read_yolo(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/images and FOLDER/labels; a label has the name of its image at the same place."""
    labels = _labels_by_name(folder / LABELS)
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


def _labels_by_name(folder: Path) -> dict[Path, Path]:
    """Label files by their name below `folder`, without the suffix."""
    files = (path for path in files_below(folder) if path.suffix.lower() == ".txt")
    return {path.relative_to(folder).with_suffix(""): path for path in files}


def _read_boxes(path: Path | None, names: ClassNames) -> BoxTruth:
    """The objects of one image; without a file there are none."""
    lines = read_text(path).split("\n") if path else []
    rows = [_row(line.split(), names, f"{path}: line {n}") for n, line in enumerate(lines, start=1) if line.strip()]
    boxes_xyxy = np.array([box for _, box in rows], np.float64).reshape(-1, 4)
    class_ids = np.array([class_id for class_id, _ in rows], np.int64)
    return BoxTruth(boxes_xyxy, class_ids, np.zeros(len(rows), np.bool_), relative=True)


def _row(fields: Sequence[str], names: ClassNames, where: str) -> tuple[int, tuple[float, ...]]:
    """Class id and x1, y1, x2, y2, 0-1."""
    numbers = [finite_number(field) for field in fields[1:]]
    values = [number for number in numbers if number is not None]
    class_id = whole_number(fields[0])
    if class_id is None:
        raise DataError(f"{where}: class is {shown(fields[0])}, expected a whole number from 0 to {len(names) - 1}")
    if len(values) < len(numbers):
        raise DataError(f"{where}: {shown(fields[1 + numbers.index(None)])} is no number")
    if len(values) < 4 or len(values) % 2:
        raise DataError(f"{where}: has {len(fields)} numbers, expected 5: class x y width height")
    names.checked(class_id, where)
    return class_id, _cut(_box(values, where) if len(values) == 4 else _around(values), where)


def _box(values: Sequence[float], where: str) -> tuple[float, float, float, float]:
    x, y, width, height = values
    if width < 0 or height < 0:
        raise DataError(f"{where}: the box is {width:g} wide and {height:g} high, expected 0 or more")
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _around(values: Sequence[float]) -> tuple[float, float, float, float]:
    """The box around a polygon of x1 y1 x2 y2 x3 y3 and more."""
    return min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])


def _cut(box_xyxy: tuple[float, float, float, float], where: str) -> tuple[float, ...]:
    if min(box_xyxy) < -_OVERSHOOT or max(box_xyxy) > 1 + _OVERSHOOT:
        raise DataError(
            f"{where}: the box reaches from {box_xyxy[0]:.4g}, {box_xyxy[1]:.4g} to {box_xyxy[2]:.4g}, "
            f"{box_xyxy[3]:.4g}, expected 0 to 1, as parts of the image's width and height"
        )
    return tuple(min(max(side, 0.0), 1.0) for side in box_xyxy)
