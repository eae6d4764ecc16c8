"""Images in: what is in a folder, told apart by content.

Owns the finding. An image that cannot be used is skipped with its reason, never fatal by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_sdk.core.errors import DataError
from edge_sdk_tools.dataset.gathering import Found, gather
from edge_sdk_tools.dataset.images import ImageSet, Skipped
from edge_sdk_tools.dataset.inspection import SUFFIXES, is_candidate
from edge_sdk_tools.dataset.walk import files_below, is_file, is_folder


def find_images(folders: Sequence[Path], *, decode: bool = True) -> ImageSet:
    """Find every usable image below `folders`, each content once.

    Args:
        folders: searched in turn, with everything in them.
        decode: decode each image, and skip what is damaged. Without it only headers are looked at: for those who
            decode every image once anyway.

    Raises:
        DataError: when a folder is not there, or there is not one usable image in all of them.
    """
    images = gather((Found(path) for path in _candidates(folders)), decode=decode).images
    if not images:
        raise no_images(", ".join(str(f) for f in folders), images.skipped)
    return images


def no_images(where: str, skipped: Sequence[Skipped]) -> DataError:
    """The error of a folder without one usable image; it says why the first that was skipped was."""
    if not skipped:
        return DataError(f"{where}: no images in it, expected {' '.join(SUFFIXES)}")
    one = len(skipped) == 1
    return DataError(
        f"{where}: no usable images in it, {len(skipped)} file{' was' if one else 's were'} skipped; the first: "
        f"{skipped[0].path}: {skipped[0].reason}"
    )


def _candidates(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if not is_folder(folder):
            what = "is a file, expected a folder of images" if is_file(folder) else "no such folder of images"
            raise DataError(f"{folder}: {what}")
        yield from filter(is_candidate, files_below(folder))
