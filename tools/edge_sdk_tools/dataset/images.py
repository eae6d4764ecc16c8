"""Images: one file, and a set of files of different content.

Owns the values and the decoding of one image. What a folder holds is found by `finding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import msgspec
import numpy as np

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import read_regular
from edge_sdk.core.frame import Image
from edge_sdk.sources.opencv import set_up_opencv

MAX_BYTES = 1 << 30
"""Of one image file: 67 million pixels of 16 bits in four channels, and no compression, are 540 MB."""

_EVERY_NTH_HELD_OUT = 4


class ImageFile(msgspec.Struct, frozen=True):
    """One image.

    Attributes:
        path: of the file.
        sha256: of its bytes, in hex.
        size_wh: width and height as its header says, in pixels, turned as EXIF says: those of what `read` gives.
    """

    path: Path
    sha256: str
    size_wh: tuple[int, int]

    def data(self) -> bytes:
        """The file's bytes.

        Raises:
            DataError: when it is not there any more.
        """
        try:
            return read_regular(self.path, MAX_BYTES)
        except OSError as cause:
            raise DataError(f"{self.path}: cannot be read any more: {cause.strerror}") from cause

    def read(self) -> Image:
        """The picture as uint8 (H, W, 3), BGR, turned as EXIF says.

        Raises:
            DataError: when it is not there any more, or cannot be decoded.
        """
        image = decode(self.data())
        if image is None:
            raise DataError(f"{self.path}: cannot be decoded, expected a whole image; leave it out or copy it again")
        return image


class Skipped(msgspec.Struct, frozen=True):
    """A file that was left out, and why."""

    path: Path
    reason: str


class ImageSet(msgspec.Struct, frozen=True):
    """Images of different content, in order of their paths, and the files that were skipped."""

    images: tuple[ImageFile, ...]
    skipped: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def unreadable(self) -> tuple[Path, ...]:
        """The paths of what was skipped."""
        return tuple(s.path for s in self.skipped)

    def without(self, other: ImageSet) -> ImageSet:
        """Those whose content is not in `other`."""
        return self.picked(self.places_without(other))

    def spread(self, count: int) -> ImageSet:
        """At most `count` images, evenly spread over the set."""
        return self if count >= len(self.images) else self.picked(self.places_spread(count))

    def hold_out(self) -> tuple[ImageSet, ImageSet]:
        """Split into (calibration, evaluation): every fourth image, and at least one, is held out."""
        held = set(range(_EVERY_NTH_HELD_OUT - 1, len(self.images), _EVERY_NTH_HELD_OUT)) or {len(self.images) - 1}
        kept = tuple(image for i, image in enumerate(self.images) if i not in held)
        return ImageSet(kept, self.skipped), ImageSet(tuple(self.images[i] for i in sorted(held)))

    def places_without(self, other: ImageSet) -> list[int]:
        """Indices of those whose content is not in `other`."""
        known = {image.sha256 for image in other.images}
        return [i for i, image in enumerate(self.images) if image.sha256 not in known]

    def places_spread(self, count: int) -> list[int]:
        """Indices of `count` images, evenly spread, the first and the last among them."""
        return [int(i) for i in np.linspace(0, len(self.images) - 1, count).round()]

    def picked(self, places: Sequence[int]) -> ImageSet:
        """The images at these indices, with all that was skipped."""
        return ImageSet(tuple(self.images[i] for i in places), self.skipped)


def decode(data: bytes) -> Image | None:
    """The picture as uint8 (H, W, 3), BGR, turned as EXIF says; None where OpenCV cannot read it."""
    if not data:
        return None
    set_up_opencv()  # OpenCV says on stderr what is wrong with an image; whoever skips it says so too
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        return None
    return None if image is None else image.astype(np.uint8, copy=False)
