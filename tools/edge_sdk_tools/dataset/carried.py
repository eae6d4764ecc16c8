"""Carried: a dataset that holds its files' bytes, for machines that have not got the files."""

from __future__ import annotations

import msgspec

from edge_sdk.core.errors import DataError
from edge_sdk_tools.dataset.dataset import Dataset
from edge_sdk_tools.dataset.images import ImageFile, ImageSet
from edge_sdk_tools.dataset.mask import MaskTruth
from edge_sdk_tools.dataset.truth import Truth


class _CarriedImage(ImageFile, frozen=True):
    """An image whose path only names it; no bytes where it could not be read."""

    content: bytes = b""

    def data(self) -> bytes:
        return self.content


class _CarriedMask(MaskTruth, frozen=True):
    """A mask whose path only names it."""

    content: bytes = b""

    def data(self) -> bytes:
        return self.content


def carried(dataset: Dataset) -> Dataset:
    """The same dataset with all bytes in it."""
    images = ImageSet(tuple(_carried(image) for image in dataset.images.images), dataset.images.skipped)
    truths = None if dataset.truths is None else tuple(_carried_truth(truth) for truth in dataset.truths)
    return msgspec.structs.replace(dataset, images=images, truths=truths)


def _carried(image: ImageFile) -> _CarriedImage:
    try:
        content = image.data()
    except DataError:
        content = b""  # whoever reads it will say so
    return _CarriedImage(image.path, image.sha256, image.size_wh, content)


def _carried_truth(truth: Truth) -> Truth:
    return _CarriedMask(truth.path, truth.class_count, truth.data()) if isinstance(truth, MaskTruth) else truth
