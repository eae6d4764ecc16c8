"""Sources without a camera: video files, image files in order, and a moving test pattern.

A video file plays in real time like a camera (`VideoSource`), or every frame in order (`EveryFrame`). One that does not
open, or has no readable frame, raises an error before any thread starts.

The pattern is a numbered picture at a steady pace: sixteen bars show the frame's number in bits, the lowest on the
left, and a square walks below them.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np

from edge_sdk.core.errors import CameraError, descriptor_shortage, missing_permission, printable
from edge_sdk.core.files import read_regular
from edge_sdk.core.frame import Image
from edge_sdk.sources.location import (
    AS_IT_COMES,
    FASTEST_FPS,
    IMAGE_SUFFIXES,
    LARGEST_SIDE_PX,
    NOT_UTF8,
    SourceOptions,
    check_path,
    is_utf8,
)
from edge_sdk.sources.opencv import (
    MAX_READ_PX,
    Capture,
    OpenCvCapture,
    Rotation,
    decode,
    open_file,
    set_up_opencv,
    turned,
)
from edge_sdk.sources.slot import OpenedSource, PicturesInTurn, Slot

_LONGEST_SKIP_NS = 500_000_000  # a reader slower than real time still delivers twice a second
_LONGEST_GAP_NS = 60_000_000_000  # between two frames; a longer gap means a broken time stamp
_NO_FRAME = "no frame can be read; expected a whole video file (AVI, MP4, MKV, …); is it truncated, or no video at all?"
_COUNT_TOLERANCE = 0.95  # the frame count in a header is often an estimate


class VideoFile:
    """An opened video file whose first frame was decoded; `fps` is the mean if the rate varies."""

    def __init__(self, path: Path, options: SourceOptions = AS_IT_COMES) -> None:
        self._path = path
        self._rotation, self._repeats = Rotation(options.rotate), options.repeat
        self.capture, self.first = self._opened()
        self.fps = self.capture.fps

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Decode the grabbed frame, rotated as requested; see `Capture`."""
        return self._rotation.retrieve_into(self.capture, buffer)

    def grab(self) -> bool:
        """Grab the next frame, reopening a file that is repeated; return False at the end."""
        if self.capture.grab():
            return True
        if not self._repeats:
            return False
        self.capture.release()
        self.capture, _ = self._opened()
        return True

    def missing(self, read: int) -> int:
        """Return how many frames the header promises beyond `read`; 0 if the difference may be a rough estimate."""
        promised = self.capture.frame_count
        return int(promised) - read if math.isfinite(promised) and read < promised * _COUNT_TOLERANCE else 0

    def _opened(self) -> tuple[OpenCvCapture, Image]:
        """Open the file, grab its first frame, and return the capture and the frame."""
        location = str(self._path.absolute())
        check_path(location)
        capture = open_file(location)
        excess = capture.excess if capture else ""
        buffer = np.zeros((1, 1, 3), np.uint8)
        first = self._rotation.retrieve_into(capture, buffer) if capture and not excess and capture.grab() else None
        if capture is not None and first is not None:
            return capture, first
        if capture is not None:
            capture.release()
        trouble = excess or ("" if is_utf8(location) else NOT_UTF8) or missing_permission(self._path)
        raise CameraError(f"{self._path}: {trouble or descriptor_shortage() or _NO_FRAME}")


class FrameTimes:
    """Computes when the frames of a file are due.

    The file states the time of each frame, because the rate may vary. If a time is missing or runs backwards, the frame
    is due one period after the previous one.
    """

    def __init__(self, position_ms: float, fps: float) -> None:
        self._period_ns = round(1e9 / fps)
        self._base_ms, self._base_ns, self._due_ns = position_ms, 0, 0

    def due_ns(self, position_ms: float) -> int:
        """Return the nanoseconds after the first frame at which the frame at `position_ms` is due."""
        due_ns = 0
        if math.isfinite(position_ms):
            due_ns = self._base_ns + round((position_ms - self._base_ms) * 1e6)
        if not self._due_ns < due_ns <= self._due_ns + _LONGEST_GAP_NS:
            due_ns = self._due_ns + self._period_ns
            if math.isfinite(position_ms):
                self._base_ms, self._base_ns = position_ms, due_ns
        self._due_ns = due_ns
        return due_ns


class VideoSource(OpenedSource):
    """A video file in real time as a source: a frame is "captured" when it is due.

    The clock starts with the first request for a frame, so that no frame is lost while a model loads. A reader that
    falls behind skips frames, but never the last.
    """

    def __init__(self, video: VideoFile, camera: str) -> None:
        self._video = video
        self._period_ns = 1e9 / video.fps
        super().__init__(camera, video.fps)

    def read(self, slot: Slot, stop: Event) -> None:
        """Feed the slot until the file ends or `stop` is set."""
        try:
            slot.wanted.wait()
            self._play(slot, stop)
        finally:
            self._video.capture.release()

    def _play(self, slot: Slot, stop: Event) -> None:
        times = FrameTimes(self._video.capture.position_ms, self.fps)
        start_ns, start_at = time.monotonic_ns(), time.time()
        image: Image | None = self._video.first
        index, after_ns, last_ns = 0, 0, start_ns
        while True:
            if image is not None:
                if stop.wait(max(0, start_ns + after_ns - time.monotonic_ns()) / 1e9):
                    return
                last_ns = time.monotonic_ns()
                slot.put(image, start_ns + after_ns, start_at + after_ns / 1e9, index)
            index += 1
            if stop.is_set() or not self._video.grab():
                break
            after_ns = times.due_ns(self._video.capture.position_ms)
            image = self._retrieve(slot, index, start_ns + after_ns, last_ns)
        if not stop.is_set():
            self.unreadable += self._video.missing(index)

    def _retrieve(self, slot: Slot, index: int, due_ns: int, last_ns: int) -> Image | None:
        """Decode the grabbed frame unless it is late; the last one of the header's count is never skipped."""
        now_ns = time.monotonic_ns()
        is_late = now_ns - due_ns > self._period_ns and now_ns - last_ns < _LONGEST_SKIP_NS
        if is_late and index + 1 != self._video.capture.frame_count:
            slot.dropped += 1
            return None
        image = self._video.retrieve_into(slot.buffer())
        self.unreadable += image is None
        return image


class EveryFrame(PicturesInTurn):
    """A video file of which no frame is skipped."""

    def __init__(self, video: VideoFile, camera: str) -> None:
        self._video = video
        super().__init__(camera, video.fps)

    def pictures(self, slot: Slot) -> Generator[Image | None, None, None]:
        """Yield every frame of the file."""
        video, count = self._video, 1
        try:
            yield video.first
            while video.grab():
                yield video.retrieve_into(slot.buffer())
                count += 1
            self.unreadable += video.missing(count)
        finally:
            video.capture.release()


_MOST_BYTES = 1 << 28  # of an image file: more than so many pixels take without compression
_EXPECTED = (
    "expected whole JPEG, PNG, BMP, WebP or PPM files of "
    f"{MAX_READ_PX / 1e6:.1f} million pixels and {_MOST_BYTES >> 20} MiB at most"
)
_THIS_FILE_ALONE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EINVAL)  # others may be readable


class ImageFiles(PicturesInTurn):
    """Image files in turn; unreadable files are skipped and counted, and a CameraError says where all are."""

    def __init__(self, path: Path, camera: str, options: SourceOptions = AS_IT_COMES) -> None:
        set_up_opencv()
        self._path, self._options, self._paths = path, options, image_paths(path)
        root = path if path.is_dir() else path.parent
        # Linux takes any bytes as a name, JSON only UTF-8.
        self.files = [os.fsencode(item.relative_to(root)).decode(errors="backslashreplace") for item in self._paths]
        # Read up to the first image here, so that opening a folder without readable images raises an error.
        self._first = list[Image | None]()
        for image in self._round():
            self._first.append(image)
            if image is not None:
                break
        super().__init__(camera, fps=1.0)

    def pictures(self, slot: Slot) -> Generator[Image | None, None, None]:
        """Yield every image, again and again if they are repeated."""
        yield from self._first
        yield from self._round(len(self._first))
        while self._options.repeat:
            yield from self._round()

    def _round(self, start: int = 0) -> Generator[Image | None, None, None]:
        is_any = start > 0
        for path in self._paths[start:]:
            image = _read(path)
            is_any = is_any or image is not None
            yield None if image is None else turned(image, self._options.rotate)
        if not is_any:
            image_paths(self._path)  # raises an error if there is none
            why = next(filter(None, map(missing_permission, self._paths)), _EXPECTED)
            raise CameraError(f"{self._path}: none of {len(self._paths)} images can be read; {why}")


def image_paths(path: Path) -> list[Path]:
    """Return the images of a folder sorted by name, or the one image.

    Of a folder that has no image of its own, such as one with a folder for each class, they are those of its folders.

    Raises:
        CameraError: there is no image that may be read.
    """
    check_path(str(path.absolute()))
    denied = missing_permission(path)
    if denied:
        raise CameraError(f"{path}: {denied}")
    try:
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        images = list(filter(_is_image, found))
        if not images:
            images = [
                item for folder in found if folder.is_dir() for item in sorted(folder.iterdir()) if _is_image(item)
            ]
    except OSError as cause:
        raise CameraError(f"{cause.filename or path}: cannot be read: {cause.strerror}") from cause
    if not images:
        raise CameraError(
            f"{path}: no image in it or in the folders in it, expected files ending in {' '.join(IMAGE_SUFFIXES)}"
        )
    return images


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _read(path: Path) -> Image | None:
    try:
        data = read_regular(path, _MOST_BYTES)
    except OSError as cause:
        if cause.errno in _THIS_FILE_ALONE:
            return None
        # A fault of the disk or no free descriptor, which would also hit the next file.
        raise CameraError(f"{path}: cannot be read: {cause.strerror}") from cause
    # Decoded from memory, where OpenCV 5 refuses a truncated JPEG; reading the file itself gives a half-grey picture.
    return decode(data)


_DRAWN = re.compile(r"\w+(?::(?:(\d{1,5})x(\d{1,5}))?(?:@(\d{1,3}(?:\.\d+)?))?)?")
_DEFAULT_SIZE_WH, _DEFAULT_FPS, _SLOWEST_FPS = (1280, 720), 30.0, 1.0
_BITS = 16
_DARK, _LIGHT = 16, 235
_SQUARE_BGR = (40, 160, 240)


class Pattern(Capture):
    """A test pattern: drawn pictures at a steady pace of 1 frame per second or more."""

    stamp_ns: int

    def __init__(self, size_wh: tuple[int, int], fps: float) -> None:
        self.fps = fps
        self._shape = size_wh[1], size_wh[0], 3
        columns = (np.arange(size_wh[0]) * _BITS) // size_wh[0]
        self._bits = (1 << columns).astype(np.uint16)
        self._row = np.zeros(size_wh[0], np.uint8)
        self._period_ns = round(1e9 / fps)
        self._number = -1
        self.stamp_ns = time.monotonic_ns() - self._period_ns  # when the grabbed frame was due
        self._square_px = max(1, min(size_wh) // 6)

    def grab(self) -> bool:
        """Wait for the next frame; skip frames whose time has passed, as a camera does."""
        now_ns = time.monotonic_ns()
        behind = max(0, now_ns - self.stamp_ns) // self._period_ns
        step = max(1, behind)
        self._number += step
        self.stamp_ns += step * self._period_ns
        time.sleep(max(0, self.stamp_ns - now_ns) / 1e9)
        return True

    def retrieve_into(self, buffer: Image) -> Image:
        """Draw the frame into `buffer`, or into a new array if the size differs."""
        image = buffer if buffer.shape == self._shape else np.empty(self._shape, np.uint8)
        np.multiply((self._bits & (self._number % (1 << _BITS))) != 0, _LIGHT - _DARK, out=self._row, casting="unsafe")
        self._row += _DARK
        image[:] = self._row[None, :, None]
        height, width, _ = self._shape
        side = self._square_px
        left = self._number * max(1, width // 100) % max(1, width - side)
        top = max(0, height * 3 // 4 - side // 2)
        image[top : top + side, left : left + side] = _SQUARE_BGR
        return image


class StillPicture(Pattern):
    """The same picture at a steady pace."""

    def __init__(self, image: Image, fps: float) -> None:
        super().__init__((image.shape[1], image.shape[0]), fps)
        self._image = image

    def retrieve_into(self, buffer: Image) -> Image:
        """Return the picture itself."""
        return self._image


def pattern_opener(location: str, _password: str | None, options: SourceOptions) -> Callable[[], Pattern]:
    """Return a function that opens `pattern:1280x720@30`; options or defaults supply what the location omits."""
    return partial(Pattern, *size_and_fps(location, options))


def size_and_fps(location: str, options: SourceOptions) -> tuple[tuple[int, int], float]:
    """Return width and height in pixels, and frames per second, of a drawn source such as `pattern:1280x720@30`."""
    shown, kind = printable(location), location.partition(":")[0]
    found = _DRAWN.fullmatch(location)
    if found is None:
        raise CameraError(f"{shown}: expected {kind}, {kind}:1280x720, {kind}:@30 or {kind}:1280x720@30")
    width, height, given_fps = found.groups()
    size_wh = (int(width), int(height)) if width else options.size_wh or _DEFAULT_SIZE_WH
    if not all(1 <= side <= LARGEST_SIDE_PX for side in size_wh):
        raise CameraError(f"{shown}: expected a size of 1x1 to {LARGEST_SIDE_PX}x{LARGEST_SIDE_PX} pixels")
    fps = float(given_fps) if given_fps else options.fps or _DEFAULT_FPS
    if not _SLOWEST_FPS <= fps <= FASTEST_FPS:
        raise CameraError(f"{shown}: fps is {fps:g}, expected {_SLOWEST_FPS:g} to {FASTEST_FPS:g} frames a second")
    return size_wh, fps
