"""Pictures with results drawn on them: videos, the last picture, or every picture of a folder.

`AnnotatedVideo` writes an .mp4 that keeps the source's pace: beside its place, moved there when it is whole. H.264
needs the `ffmpeg` program, because OpenCV's wheels cannot write it; without it MPEG-4 part 2 is written, which not
every browser plays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edge_sdk.core.errors import OutputError, UsageError, printable
from edge_sdk.core.files import check_new_file
from edge_sdk.core.frame import Image, Result
from edge_sdk.core.opencv import cv2
from edge_sdk.tasks.detection import draw

_CLOSE_TIMEOUT_S = 120  # time to finish a long video on a slow board
_LOG_TAIL = 300  # bytes of ffmpeg's log that go into an error


class VideoWriter:
    """Writes pictures to a new .mp4 at a constant rate; the file appears at `close()`, and only if it is whole.

    The first picture determines the size, rounded up to even numbers for H.264; later ones are fitted into it. `write`
    waits while the encoder is busy. Without the program `ffmpeg` OpenCV writes the file. An existing file, which may be
    the source itself, is never replaced.

    Raises:
        UsageError: the name has another ending, or exists.
        OutputError: the folder is missing or not writable.
    """

    def __init__(self, path: Path, fps: float, *, ffmpeg: str = "ffmpeg") -> None:
        self._path, self._fps, self._program = path, fps, shutil.which(ffmpeg)
        self._encoder: _Encoder | None = None
        self._canvas: Image | None = None
        if path.suffix.lower() != ".mp4":
            raise UsageError(
                f"{path}: expected a name that ends in .mp4, in .jpg or .png for the last frame, "
                "or without an ending for a folder with every picture of image files"
            )
        if not self._program and not str(path).isprintable():  # OpenCV ends the process where a name is no UTF-8
            raise UsageError(f"{printable(str(path))}: expected a printable name, or the program ffmpeg installed")
        check_new_file(path)
        self._part = path.with_name(f".{path.stem}.{os.getpid()}.part.mp4")
        try:
            self._part.touch()
        except OSError as cause:
            raise self._error(cause) from cause

    def write(self, image: Image) -> None:
        """Append a picture; where the encoder fails, for instance on a full disk, nothing is left behind."""
        try:
            if self._canvas is None or self._encoder is None:
                height_px, width_px = (side + side % 2 for side in image.shape[:2])
                self._canvas = np.zeros((height_px, width_px, 3), np.uint8)
                self._encoder = self._open(self._canvas)
            self._encoder.write(fit(image, self._canvas))
        except OSError as cause:
            said = self._encoder.close() if self._encoder else ""
            self._forget()
            raise self._error(said or cause) from cause

    def close(self) -> None:
        """Finish the file and give it its name; may be called twice. Without a picture there is no file."""
        encoder, self._encoder = self._encoder, None
        try:
            said = encoder.close() if encoder else ""
            if said:
                raise self._error(said)
            if encoder:
                # A link, unlike a rename, refuses to replace what came there meanwhile.
                os.link(self._part, self._path)
        except OSError as cause:
            raise self._error(cause) from cause
        finally:
            self._forget()

    def _open(self, canvas: Image) -> _Encoder:
        if self._program:
            return _Ffmpeg(self._program, self._part, canvas, self._fps)
        return _OpenCv(self._part, canvas, self._fps)

    def _forget(self) -> None:
        self._encoder = None
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _error(self, cause: OSError | str) -> OutputError:
        reason = cause if isinstance(cause, str) else cause.strerror or str(cause)
        return OutputError(f"{self._path}: cannot be written: {reason}; check the folder and the space on its disk")


class PictureWriter:
    """Writes the last of the pictures it is given, when it is closed, as a new JPEG or PNG."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, np.empty((0, 0, 3), np.uint8)
        check_new_file(path)
        if not path.parent.is_dir():
            raise OutputError(f"{path}: cannot be written: no such folder")

    def write(self, image: Image) -> None:
        """Take a picture in place of the one before; the caller may change it until the end."""
        self._last = image

    def close(self) -> None:
        """Write the file, if there was a picture."""
        if not self._last.size:
            return
        data = _encoded(self._path, self._last)
        try:
            with self._path.open("xb") as file:
                file.write(data)
        except OSError as cause:
            if not isinstance(cause, FileExistsError):  # it is this run's, and cut short
                self._path.unlink(missing_ok=True)
            raise OutputError(f"{self._path}: cannot be written: {cause.strerror}") from cause


def _encoded(path: Path, image: Image) -> bytes:
    """Encode a picture in the format of its name's ending; raise OutputError if the format has no such size."""
    is_made, data = cv2.imencode(path.suffix, image)
    if not is_made:
        size = f"{image.shape[1]}x{image.shape[0]} pixels"
        raise OutputError(f"{path}: cannot be written: a {path.suffix} file cannot hold {size}")
    return data.tobytes()


def writer_of(path: Path, fps: float) -> VideoWriter | PictureWriter:
    """Return the writer of a new video or picture, by the ending of its name; errors are those of the writers."""
    return PictureWriter(path) if path.suffix.lower() in (".jpg", ".jpeg", ".png") else VideoWriter(path, fps)


class _Ffmpeg:
    def __init__(self, program: str, path: Path, canvas: Image, fps: float) -> None:
        height_px, width_px = canvas.shape[:2]
        rate = str(Fraction(fps).limit_denominator(1001))
        source = ["-f", "rawvideo", "-pix_fmt", "bgr24", "-video_size", f"{width_px}x{height_px}", "-framerate", rate]
        h264 = ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
        # Without -xerror ffmpeg reports success for an unplayable video whose end did not fit on the disk.
        how = ["-loglevel", "error", "-xerror", "-y"]
        command = [program, *how, *source, "-i", "pipe:0", *h264, "-f", "mp4", f"file:{path}"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; a pipe could fill up
        # A session of its own: Ctrl-C in the terminal must end the daemon, which then ends the video properly.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._log, start_new_session=True
        )

    def write(self, image: Image) -> None:
        if self._process.stdin:
            self._process.stdin.write(np.ascontiguousarray(image).data)

    def close(self) -> str:
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            code = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        with self._log:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()[-_LOG_TAIL:]
        return "" if code == 0 else f"ffmpeg ended with {code}: {said.splitlines()[-1] if said else 'no reason given'}"


class _OpenCv:
    def __init__(self, path: Path, canvas: Image, fps: float) -> None:
        self._path = path
        self._count = 0
        self._writer = cv2.VideoWriter(
            str(path), cv2.VideoWriter.fourcc(*"mp4v"), fps, (canvas.shape[1], canvas.shape[0])
        )
        if not self._writer.isOpened():
            raise OSError("OpenCV cannot write MPEG-4")

    def write(self, image: Image) -> None:
        self._writer.write(image)
        self._count += 1

    def close(self) -> str:
        self._writer.release()
        # OpenCV only warns when the disk is full: count what really is there.
        written = cv2.VideoCapture(str(self._path), cv2.CAP_FFMPEG)
        complete = int(written.get(cv2.CAP_PROP_FRAME_COUNT)) == self._count
        written.release()
        return "" if complete else "OpenCV could not write all of it"


_Encoder: TypeAlias = _Ffmpeg | _OpenCv
"""Appends pictures of one size; `close` returns what went wrong, or an empty string."""


def fit(image: Image, canvas: Image) -> Image:
    """Return the picture if it has the canvas's size, else the canvas with the picture fitted into its middle."""
    if image.shape == canvas.shape:
        return image
    (height_px, width_px), (image_h, image_w) = canvas.shape[:2], image.shape[:2]
    only_rounded = 0 <= height_px - image_h <= 1 and 0 <= width_px - image_w <= 1
    scale = 1.0 if only_rounded else min(width_px / image_w, height_px / image_h)
    fitted_w, fitted_h = max(1, round(image_w * scale)), max(1, round(image_h * scale))
    x, y = (width_px - fitted_w) // 2, (height_px - fitted_h) // 2
    canvas[:] = 0
    canvas[y : y + fitted_h, x : x + fitted_w] = cv2.resize(image, (fitted_w, fitted_h))
    return canvas


class AnnotatedFolder:
    """A sink that draws each result of image files on a copy of the picture and writes that to a folder, by its name.

    Raises:
        UsageError: the folder holds something already.
        OutputError: the folder cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, set[str]()
        try:
            if path.exists() and any(path.iterdir()):
                raise UsageError(f"{path}: is not empty; choose a new or an empty folder, nothing is ever overwritten")
        except OSError as cause:
            raise OutputError(f"{path}: cannot be written: {cause.strerror}") from cause

    def put(self, result: Result) -> None:
        """Draw and write one result of an image file."""
        name = result.frame.file
        path = self._path / name
        data = _encoded(path, result.plot())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb" if name in self._written else "xb") as file:  # repeated pictures replace their own
                self._written.add(name)
                file.write(data)
        except OSError as cause:
            if name in self._written:
                path.unlink(missing_ok=True)
            raise OutputError(f"{path}: cannot be written: {cause.strerror}") from cause


def is_folder(path: Path) -> bool:
    """Tell whether `--annotate` means a folder: one that exists, or a name without an ending."""
    return path.is_dir() or not path.suffix


_LONGEST_STILL_S = 1  # if results are missing for longer the video jumps, because more pictures would delay the loop


class AnnotatedVideo:
    """A sink that draws each result on a copy of its frame and writes it for as long as the frame lasted."""

    def __init__(self, writer: VideoWriter | PictureWriter, fps: float) -> None:
        self._writer, self._fps = writer, fps
        self._copy: Image = np.empty((0, 0, 3), np.uint8)
        self._last_ns: int | None = None

    def put(self, result: Result) -> None:
        """Draw and write one result."""
        frame = result.frame
        if self._last_ns is not None:
            missing = round((frame.captured_ns - self._last_ns) * self._fps / 1e9) - 1
            for _ in range(min(missing, int(self._fps * _LONGEST_STILL_S))):
                self._writer.write(self._copy)
        self._last_ns = frame.captured_ns
        if self._copy.shape != frame.image.shape:
            self._copy = np.empty_like(frame.image)
        np.copyto(self._copy, frame.image)
        draw(self._copy, result)
        self._writer.write(self._copy)
