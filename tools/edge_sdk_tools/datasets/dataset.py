"""Datasets: images with their ground truth, a class, boxes or a mask each, and how they are found.

Of images in folders and lists each content is kept once, and what cannot be used is skipped with its reason; a list
reaches nothing outside of its folders. `carried` returns a dataset that holds the bytes of its files, for machines that
do not have the files.
"""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from edge_sdk.core.errors import DataError, raising
from edge_sdk.core.files import open_regular, read_regular
from edge_sdk.core.toml import shown
from edge_sdk_tools.datasets.images import (
    MAX_PIXELS,
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

IGNORE = 255
"""Value of mask pixels that are not scored; PASCAL VOC and Cityscapes use the same value."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">8s8xIIBB")  # signature; IHDR: (length, name), width, height, bit depth, colour type
_GREY, _PALETTE = 0, 3
_MOST_BYTES = 1 << 28  # twice the size of the largest mask without compression
_KINDS = {2: "RGB colours", 4: "grey levels with transparency", 6: "RGB colours with transparency"}
_EXPECTED = "expected a PNG of 8-bit grey levels or of palette indices, one class id a pixel"


class Truth(msgspec.Struct, frozen=True):
    """What the labels say of one image."""


class MaskTruth(Truth, frozen=True):
    """The class of every pixel of an image, 0 to `class_count` - 1 or `IGNORE`, in a PNG of grey levels or a palette.

    `content` holds its bytes for machines that do not have the file.
    """

    path: Path
    class_count: int = IGNORE
    content: bytes | None = None

    def data(self) -> bytes:
        """Return the file's bytes."""
        if self.content is not None:
            return self.content
        with raising(DataError, f"{self.path}: mask cannot be read"):
            return read_regular(self.path, _MOST_BYTES)

    def read(self) -> NDArray[np.uint8]:
        """Return the mask as uint8 (H, W): class ids, and `IGNORE`."""
        data = self.data()
        _size_of(data[: _HEADER.size], self.path)
        try:
            with PngImageFile(io.BytesIO(data)) as image:
                mask = np.array(image, np.uint8)
        except (OSError, ValueError, SyntaxError) as cause:
            raise DataError(f"{self.path}: mask cannot be decoded; copy or export it again") from cause
        wrong = mask[(mask >= self.class_count) & (mask != IGNORE)]
        if wrong.size:
            expected = f"expected 0 to {self.class_count - 1}, or {IGNORE} for what does not count"
            raise DataError(f"{self.path}: the mask holds class {wrong[0]}, {expected}")
        return mask


def mask_size(path: Path) -> tuple[int, int]:
    """Return the width and height of a mask in pixels, from the header of its PNG."""
    with raising(DataError, f"{path}: mask cannot be read"), open_regular(path) as file:
        head = file.read(_HEADER.size)
    return _size_of(head, path)


def _size_of(head: bytes, path: Path) -> tuple[int, int]:
    if len(head) < _HEADER.size or not head.startswith(_SIGNATURE):
        raise DataError(f"{path}: the mask is no PNG; {_EXPECTED}")
    _, width, height, bits, kind = _HEADER.unpack(head)
    # Pillow stretches grey levels of fewer bits to 0-255; it does not stretch palette indices.
    if kind == _GREY and bits != 8:
        raise DataError(f"{path}: the mask holds {bits}-bit grey levels; {_EXPECTED}")
    if kind not in (_GREY, _PALETTE):
        raise DataError(f"{path}: the mask holds {_KINDS.get(kind, f'colours of unknown type {kind}')}; {_EXPECTED}")
    if width * height > MAX_PIXELS:
        raise DataError(f"{path}: the mask has {width}x{height} pixels, expected {MAX_PIXELS // 10**6} million or less")
    return width, height


class ClassTruth(Truth, frozen=True):
    """The class of one image, counted from 0 as `Classification.class_ids` does; a background class is not counted."""

    class_id: int


MOST_POINTS = 10_000
"""The most points of one polygon: those of an annotation tool have some hundred."""


class Runs(NamedTuple):
    """A mask as int64 run lengths, column by column, outside and inside by turns, and its height and width."""

    counts: NDArray[np.int64]
    size_hw: tuple[int, int]


Outline: TypeAlias = tuple[NDArray[np.float64], ...] | Runs
"""What an object fills: the polygons of its parts, float64 (points, 2) each, or a mask."""


class LabelledObject(NamedTuple):
    """One object.

    Attributes:
        class_id: line number in the labels file, from 0.
        is_crowd: whether the box is around many objects. By COCO's rules a detector need not find such a box, and
            detections in it do not count as wrong.
        outline: what the object fills; None if that is not labelled.
        keypoints: float64 (K, 3), x, y, and 1 for a labelled point, else 0; None if they are not labelled.
        area_px: what the object fills of its box by its label; None if that is not labelled.
    """

    box_xyxy: tuple[float, ...]
    class_id: int
    is_crowd: bool = False
    outline: Outline | None = None
    keypoints: NDArray[np.float64] | None = None
    area_px: float | None = None


class BoxTruth(Truth, frozen=True, eq=False):
    """The objects in one image, in its pixels; a reader may give them in parts of its sides, 0-1 (`is_relative`)."""

    objects: tuple[LabelledObject, ...]
    is_relative: bool = False

    def in_pixels(self, size_wh: tuple[int, int]) -> BoxTruth:
        """Return the same objects in pixels of the image, not clipped."""
        if not self.is_relative:
            return self
        sides, objects = np.array(size_wh, np.float64), []
        for one in self.objects:
            box, outline = tuple((np.array(one.box_xyxy) * np.tile(sides, 2)).tolist()), one.outline
            if outline is not None and not isinstance(outline, Runs):
                outline = tuple(part * sides for part in outline)
            points = None if one.keypoints is None else one.keypoints * [*sides, 1]
            objects.append(one._replace(box_xyxy=box, outline=outline, keypoints=points))
        return BoxTruth(tuple(objects))


def same_truth(a: Truth | None, b: Truth | None) -> bool:
    """Tell whether two truths are equal; the order of boxes counts, and masks are compared by their files' bytes."""
    if isinstance(a, BoxTruth) and isinstance(b, BoxTruth):
        return _equal(a.objects, b.objects)
    if isinstance(a, MaskTruth) and isinstance(b, MaskTruth):
        return a.data() == b.data()
    return a == b


def _equal(a: object, b: object) -> bool:
    """Compare arrays, and tuples of them."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return np.array_equal(a, b)  # type: ignore[arg-type]  # object arrays and None are compared too


Format: TypeAlias = str
"""A name of the table of formats, or `images` where there are no labels."""


class Dataset(msgspec.Struct, frozen=True):
    """Images of different content, in order of their paths, with their truths.

    Attributes:
        truths: one for each image, in the same order; None for images without labels.
        duplicates: number of files left out because an image of the same content came before them.
        conflicts: number of duplicates whose truth differs from that of the image before them.
    """

    images: ImageSet
    truths: tuple[Truth, ...] | None
    format: Format
    duplicates: int = 0
    conflicts: int = 0

    def __len__(self) -> int:
        return len(self.images)

    def without(self, other: ImageSet) -> Dataset:
        """Return the images whose content is not in `other`."""
        return self.picked(self.images.places_without(other))

    def spread(self, count: int) -> Dataset:
        """Return at most `count` images with their truths, evenly spread over the dataset."""
        return self.picked(self.images.places_spread(count))

    def stratified_split(self, parts: int) -> list[Dataset]:
        """Split the images into parts, each with its share of every class; see `stratified_indices`."""
        return [self.picked(places) for places in self.stratified_indices(parts)]

    def stratified_indices(self, parts: int) -> list[list[int]]:
        """Return the indices of the images in each part of a stratified split; the same images are always split alike.

        Each part has its share of every class. A picture with boxes counts for the rarest of its classes. Within a
        class the order is that of the contents' SHA-256, in place of a random one.
        """
        shown = [_classes_of(truth) for truth in self.truths or [None] * len(self)]
        counts = Counter(class_id for classes in shown for class_id in classes)
        rarest = [min(classes, key=lambda class_id: (counts[class_id], class_id), default=-1) for classes in shown]
        order = sorted(range(len(self)), key=lambda i: (rarest[i], self.images.images[i].sha256))
        return [sorted(order[part::parts]) for part in range(parts)]

    def mask_contents(self) -> list[bytes]:
        """Return the bytes of every mask file; the truths themselves hold only paths."""
        return [truth.data() for truth in self.truths or () if isinstance(truth, MaskTruth)]

    def picked(self, places: Sequence[int]) -> Dataset:
        """Return the images at the indices `places`, with their truths."""
        truths = None if self.truths is None else tuple(self.truths[i] for i in places)
        return msgspec.structs.replace(self, images=self.images.picked(places), truths=truths)


def _classes_of(truth: Truth | None) -> set[int]:
    if isinstance(truth, BoxTruth):
        return {one.class_id for one in truth.objects}
    return {truth.class_id} if isinstance(truth, ClassTruth) else set()


def carried(dataset: Dataset) -> Dataset:
    """Return the same dataset with the bytes of all its files in it."""
    images = ImageSet(tuple(_carried(image) for image in dataset.images.images), dataset.images.skipped)
    truths = dataset.truths and tuple(
        msgspec.structs.replace(truth, content=truth.data()) if isinstance(truth, MaskTruth) else truth
        for truth in dataset.truths
    )
    return msgspec.structs.replace(dataset, images=images, truths=truths)


def _carried(image: ImageFile) -> ImageFile:
    try:
        return msgspec.structs.replace(image, content=image.data())
    except DataError:
        return msgspec.structs.replace(image, content=b"")  # the error is raised when the image is read


class Found(msgspec.Struct, frozen=True):
    """A file that a reader names, with what it knows of it.

    `drawn_on_wh` are width and height in pixels that the truth was drawn on, where the format says so.
    """

    path: Path
    truth: Truth | None = None
    drawn_on_wh: tuple[int, int] | None = None


class Labelled(msgspec.Struct, frozen=True):
    """What a reader finds: images with their truths, and the files that it left out."""

    found: Sequence[Found]
    skipped: tuple[Skipped, ...] = ()


def gather(found: Iterable[Found], kind: Format = "images", *, decode: bool) -> Dataset:
    """Read every file; of those with the same content keep the first.

    A truth that was drawn on a picture of another size would lie elsewhere: such an image is skipped.
    """
    kept: dict[str, tuple[ImageFile, Truth | None]] = {}
    skipped: list[Skipped] = []
    duplicates = conflicts = 0
    for item in found:
        image = inspect(item.path, decode=decode)
        if isinstance(image, Skipped):
            skipped.append(image)
        elif item.drawn_on_wh not in (None, image.size_wh):
            (width, height), (drawn_width, drawn_height) = image.size_wh, item.drawn_on_wh
            why = f"{width}x{height} pixels, its labels were drawn on {drawn_width}x{drawn_height}"
            skipped.append(Skipped(item.path, why))
        elif image.sha256 in kept:
            duplicates += 1
            conflicts += not same_truth(kept[image.sha256][1], item.truth)
        else:
            kept[image.sha256] = image, item.truth
    images = ImageSet(tuple(image for image, _ in kept.values()), tuple(skipped))
    pairs = [(image, truth) for image, truth in kept.values() if truth is not None]
    truths = tuple(of.in_pixels(image.size_wh) if isinstance(of, BoxTruth) else of for image, of in pairs)
    return Dataset(images, None if kind == "images" else truths, kind, duplicates, conflicts)


def find_images(folders: Sequence[Path], *, decode: bool = True) -> ImageSet:
    """Find every usable image below `folders`, each content once; a DataError says that there is none, or no folder."""
    for folder in folders:
        if not is_folder(folder):
            what = "is a file, expected a folder of images" if is_file(folder) else "no such folder of images"
            raise DataError(f"{folder}: {what}")
    files = (path for folder in folders for path in files_below(folder) if is_candidate(path))
    images = gather(map(Found, files), decode=decode).images
    if not images:
        raise no_images(", ".join(str(f) for f in folders), images.skipped)
    return images


def no_images(where: str, skipped: Sequence[Skipped]) -> DataError:
    """Return the error about a folder without a usable image; it says why the first file was skipped."""
    if not skipped:
        return DataError(f"{where}: no images in it, expected {' '.join(SUFFIXES)}")
    files = "1 file was" if len(skipped) == 1 else f"{len(skipped)} files were"
    first = f"{skipped[0].path}: {skipped[0].reason}"
    return DataError(f"{where}: no usable images in it, {files} skipped; the first: {first}")


def listed_file(name: str, folders: Sequence[Path], where: str) -> Path | None:
    """Return the file of this name in the first folder that has it, or None."""
    relative = PurePosixPath(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        raise DataError(f"{where}: file is {shown(name)}, expected a name relative to {folders[0]} and inside it")
    return next((folder / name for folder in folders if is_file(folder / name)), None)
