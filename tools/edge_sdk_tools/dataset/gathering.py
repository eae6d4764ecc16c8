"""Gathering: files and what readers know of them become images of different content.

Owns that the same content counts once. Every file is read once, here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from edge_sdk_tools.dataset.images import ImageFile, ImageSet, Skipped
from edge_sdk_tools.dataset.inspection import inspect
from edge_sdk_tools.dataset.truth import Truth, same_truth


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


class Gathered(msgspec.Struct, frozen=True):
    """Images of different content, their truths in the same order, and the counts of a `Dataset`."""

    images: ImageSet
    truths: tuple[Truth | None, ...]
    duplicates: int
    conflicts: int


def gather(found: Iterable[Found], *, decode: bool) -> Gathered:
    """Read every file; of those with the same content keep the first.

    Args:
        found: in the order that the images shall have.
        decode: decode each image; else only its header is looked at.
    """
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
    return Gathered(images, tuple(truth for _, truth in kept.values()), duplicates, conflicts)


def _fitting(item: Found, image: ImageFile | Skipped) -> ImageFile | Skipped:
    """The image, unless its truth was drawn on a picture of another size: it would lie elsewhere."""
    if isinstance(image, Skipped) or item.drawn_on_wh is None or item.drawn_on_wh == image.size_wh:
        return image
    (width, height), (drawn_width, drawn_height) = image.size_wh, item.drawn_on_wh
    return Skipped(item.path, f"{width}x{height} pixels, its labels were drawn on {drawn_width}x{drawn_height}")
