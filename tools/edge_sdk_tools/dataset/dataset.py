"""Dataset: images and what is known of them, side by side.

Owns that both stay aligned. Knows nothing of files and formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from edge_sdk_tools.dataset.images import ImageSet
from edge_sdk_tools.dataset.mask import MaskTruth
from edge_sdk_tools.dataset.truth import Truth

Format: TypeAlias = Literal["images", "labels.csv", "class folders", "coco", "yolo", "masks"]


class Dataset(msgspec.Struct, frozen=True):
    """Images of different content with their truths.

    Attributes:
        images: in order of their paths, and the files that were skipped.
        truths: one an image, in the same order; None where nothing is known.
        format: as which it was read.
        duplicates: files left out because an image of the same content came before them.
        conflicts: those among the duplicates whose truth is another one.
    """

    images: ImageSet
    truths: tuple[Truth, ...] | None
    format: Format
    duplicates: int = 0
    conflicts: int = 0

    def __len__(self) -> int:
        return len(self.images)

    def without(self, other: ImageSet) -> Dataset:
        """Those whose content is not in `other`."""
        return self.picked(self.images.places_without(other))

    def spread(self, count: int) -> Dataset:
        """At most `count` images, evenly spread over the set, with their truths."""
        return self if count >= len(self) else self.picked(self.images.places_spread(count))

    def mask_contents(self) -> list[bytes]:
        """Of every mask among the truths the file's bytes: a truth itself has only its path."""
        return [truth.data() for truth in self.truths or () if isinstance(truth, MaskTruth)]

    def picked(self, places: Sequence[int]) -> Dataset:
        """The images at `places`, with their truths."""
        truths = None if self.truths is None else tuple(self.truths[i] for i in places)
        return msgspec.structs.replace(self, images=self.images.picked(places), truths=truths)
