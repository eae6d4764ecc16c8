"""The images in folders and lists, each content once; what cannot be used is skipped with its reason.

Every file is read once, here. A list reaches nothing outside of its folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from edge_sdk.core.errors import DataError
from edge_sdk.core.toml import shown
from edge_sdk_tools.datasets.dataset import Dataset, Format, Truth, same_truth
from edge_sdk_tools.datasets.images import (
    SUFFIXES,
    ImageFile,
    ImageSet,
    Skipped,
    files_below,
    inspect,
    is_candidate,
    is_file,
    is_folder,
)


class Found(msgspec.Struct, frozen=True):
    """A file that a reader names.

    Attributes:
        path: of the image.
        truth: what the reader knows of it; None where nothing is known.
        drawn_on_wh: width and height that the truth was drawn on, in pixels, where the format says so.
    """

    path: Path
    truth: Truth | None = None
    drawn_on_wh: tuple[int, int] | None = None


class Labelled(msgspec.Struct, frozen=True):
    """What a reader finds: images with their truths, and the files that it left out."""

    found: Sequence[Found]
    skipped: tuple[Skipped, ...] = ()


def gather(found: Iterable[Found], kind: Format = "images", *, decode: bool) -> Dataset:
    """Read every file; of those with the same content keep the first."""
    kept: dict[str, tuple[ImageFile, Truth | None]] = {}
    skipped: list[Skipped] = []
    duplicates = conflicts = 0
    for item in found:
        image = _fitting(item, inspect(item.path, decode=decode))
        if isinstance(image, Skipped):
            skipped.append(image)
        elif image.sha256 in kept:
            duplicates += 1
            conflicts += not same_truth(kept[image.sha256][1], item.truth)
        else:
            kept[image.sha256] = image, item.truth
    images = ImageSet(tuple(image for image, _ in kept.values()), tuple(skipped))
    truths = tuple(truth for _, truth in kept.values() if truth is not None)
    return Dataset(images, None if kind == "images" else truths, kind, duplicates, conflicts)


def _fitting(item: Found, image: ImageFile | Skipped) -> ImageFile | Skipped:
    """The image, unless its truth was drawn on a picture of another size: it would lie elsewhere."""
    if isinstance(image, Skipped) or item.drawn_on_wh is None or item.drawn_on_wh == image.size_wh:
        return image
    (width, height), (drawn_width, drawn_height) = image.size_wh, item.drawn_on_wh
    return Skipped(item.path, f"{width}x{height} pixels, its labels were drawn on {drawn_width}x{drawn_height}")


def find_images(folders: Sequence[Path], *, decode: bool = True) -> ImageSet:
    """Find every usable image below `folders`, each content once.

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


def listed_file(name: str, folders: Sequence[Path], where: str) -> Path | None:
    """The file of this name in the first folder that has it, or None."""
    relative = PurePosixPath(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        raise DataError(f"{where}: file is {shown(name)}, expected a name relative to {folders[0]} and inside it")
    return next((folder / name for folder in folders if is_file(folder / name)), None)
