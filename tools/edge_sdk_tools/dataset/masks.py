"""Masks: images/ and masks/ beside each other, a PNG of class ids an image."""

from __future__ import annotations

from pathlib import Path

from edge_sdk.core.errors import DataError
from edge_sdk_tools.dataset.class_names import ClassNames
from edge_sdk_tools.dataset.gathering import Found, Labelled
from edge_sdk_tools.dataset.images import Skipped
from edge_sdk_tools.dataset.inspection import is_candidate
from edge_sdk_tools.dataset.mask import MaskTruth, mask_size
from edge_sdk_tools.dataset.walk import files_below

IMAGES, MASKS = "images", "masks"


def read_masks(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/images and FOLDER/masks; a mask has the name of its image at the same place, and ends in .png.

    Of a mask only the header is read; `MaskTruth.read` reads the rest.

    Args:
        folder: holds both.
        names: of the model's classes.

    Raises:
        DataError: when a mask is no PNG of class ids, or not one belongs to an image.
    """
    masks = {path.relative_to(folder / MASKS).with_suffix(""): path for path in _pngs(folder / MASKS)}
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


def _pngs(folder: Path) -> list[Path]:
    return [path for path in files_below(folder) if path.suffix.lower() == ".png"]
