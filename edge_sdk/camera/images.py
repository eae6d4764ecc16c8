"""Folders of images, and single images: each delivered in turn, read when it is asked for."""

from __future__ import annotations

import time
from pathlib import Path

from edge_sdk.camera.capture import set_up_opencv
from edge_sdk.camera.picture_size import MOST_READ_PX, decode
from edge_sdk.camera.rotation import turned
from edge_sdk.camera.stats import SourceStats, SourceStatus
from edge_sdk.errors import CameraError
from edge_sdk.frame import Frame, Image
from edge_sdk.location import IMAGE_SUFFIXES, kind_of
from edge_sdk.permission import want_of_permission
from edge_sdk.source_options import AS_IT_COMES, SourceOptions

_EXPECTED = f"expected whole JPEG, PNG, BMP, WebP or PPM files of {MOST_READ_PX / 1e6:.1f} million pixels at most"


class ImageFiles:
    """A `Source` of image files, sorted by name; those that cannot be read are left out and counted.

    Args:
        path: a folder, or one image.
        camera: the stream's name.
        options: rotation and repetition.

    Raises:
        CameraError: no image there, none that can be read, or no file can be read at present.
    """

    fps = 1.0
    paced = False
    trouble = ""
    remarks: tuple[str, ...] = ()

    def __init__(self, path: Path, camera: str, options: SourceOptions = AS_IT_COMES) -> None:
        set_up_opencv()
        self._path, self._options = path, options
        self._camera = camera
        self._paths = _image_paths(path)
        self._index = 0
        self._seq = -1
        self._delivered = 0
        self._unreadable = 0
        self._first = self._next_readable()
        if self._first is None:
            raise self._none_readable()

    @property
    def ended(self) -> bool:
        """True once every image was delivered or found unreadable, or the source was closed."""
        return self._first is None and self._index >= len(self._paths)

    @property
    def stats(self) -> SourceStats:
        """Counts so far."""
        return SourceStats(delivered=self._delivered, unreadable=self._unreadable)

    @property
    def status(self) -> SourceStatus:
        """Opened or ended."""
        return SourceStatus.ENDED if self.ended else SourceStatus.OPENED

    def latest(self, timeout_s: float) -> Frame | None:
        """The next image that can be read, or None when there is none left.

        Raises:
            CameraError: no file can be read at present, which says nothing of the images, or none of those that are
                repeated; asked again, it goes on.
        """
        image, self._first = self._first, None
        if image is None:
            image = self._next_readable()
        if image is None:
            if self.ended:
                return None
            raise self._none_readable()
        self._delivered += 1
        return Frame(image, time.monotonic_ns(), time.time(), self._seq, self._camera)

    def close(self) -> None:
        """Deliver nothing more; may be called twice."""
        self._first = None
        self._index = len(self._paths)

    def _next_readable(self) -> Image | None:
        for _ in self._paths:  # of those that are repeated one round
            if self._index >= len(self._paths):
                break
            image = _read(self._paths[self._index])
            self._index += 1
            if self._options.repeat:
                self._index %= len(self._paths)
            self._seq += 1
            if image is not None:
                return turned(image, self._options.rotate)
            self._unreadable += 1
        return None

    def _none_readable(self) -> CameraError:
        _image_paths(self._path)  # which says that none is there
        why = next(filter(None, map(want_of_permission, self._paths)), _EXPECTED)
        return CameraError(f"{self._path}: none of {len(self._paths)} images can be read; {why}")


def _image_paths(path: Path) -> list[Path]:
    kind_of(str(path.absolute()))  # which says that nothing is there
    denied = want_of_permission(path)
    if denied:
        raise CameraError(f"{path}: {denied}")
    try:
        found = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as cause:
        raise CameraError(f"{path}: cannot be read: {cause.strerror}") from cause
    images = [item for item in found if item.suffix.lower() in IMAGE_SUFFIXES and item.is_file()]
    if not images:
        raise CameraError(f"{path}: no image in it, expected files ending in {' '.join(IMAGE_SUFFIXES)}")
    return images


def _read(path: Path) -> Image | None:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, PermissionError):  # of this one alone; others may be there
        return None
    except OSError as cause:  # of descriptors or of the disk: the next one, too, would be called broken
        raise CameraError(f"{path}: cannot be read: {cause.strerror}") from cause
    # Decoded from memory: there OpenCV 5 refuses a truncated JPEG, where reading the file gives a half-grey picture.
    return decode(data, MOST_READ_PX)
