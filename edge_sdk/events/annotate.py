"""Results drawn on pictures: boxes with labels, the likeliest classes, class maps as translucent colours.

`Annotator` draws on copies that the caller owns, never on a source's frame. `AnnotatedVideo` writes such pictures as an
.mp4 that keeps the source's pace: beside its place, moved there when it is whole. H.264 needs the `ffmpeg` program,
because OpenCV's wheels cannot write it; without it MPEG-4 part 2 is written, which not every browser plays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import OutputError, UsageError
from edge_sdk.core.frame import Classification, Detections, Image, Result, Segmentation
from edge_sdk.core.opencv import cv2

_STRENGTH = 0.4  # of the colour; the rest is the picture
_PAINTED = 255


_FONT = cv2.FONT_HERSHEY_SIMPLEX
_TOP_CLASSES = 3
_LARGEST_CLASSES = 5
_LEAST_SHARE = 0.005  # of the picture: what is smaller would be written as 0 %
_REFERENCE_PX = 720  # the shorter side at which the sizes below are right
_GOLDEN_RATIO = 0.618034  # steps of it around the colour circle keep neighbouring classes far apart

_Colour = tuple[int, int, int]


class _Pen(NamedTuple):
    """Sizes for one picture, in pixels; `scale` is OpenCV's for fonts."""

    line_px: int
    text_px: int
    scale: float
    margin_px: int


class Annotator:
    """Draws results on pictures; with `background_class` a classifier's first label has the class id -1."""

    def __init__(self, labels: Sequence[str], *, background_class: bool = False) -> None:
        self._labels = tuple(labels)
        self._offset = int(background_class)
        self._colours = np.zeros((256, 1, 3), np.uint8)  # of classes that are painted
        self._is_painted = np.zeros(256, np.uint8)
        for class_id, label in enumerate(self._labels[:256]):
            colour = _segment_colour(class_id, label)
            if colour is not None:
                self._colours[class_id], self._is_painted[class_id] = colour, _PAINTED

    def draw(self, image: Image, result: Result) -> None:
        """Draw a result on a picture, in place."""
        _DRAWING[type(result)](self, image, result, _pen_for(image))

    def _draw_detections(self, image: Image, result: Detections, pen: _Pen) -> None:
        usable = np.isfinite(result.xyxy).all(axis=1)
        # The most confident last, and the texts after the boxes, so that they lie on top.
        order = np.flatnonzero(usable)[::-1].tolist()
        corners = [[round(v) for v in result.xyxy[i].tolist()] for i in order]
        for index in order if result.masks is not None else ():
            self._paint(image, result, index, class_colour(int(result.class_id[index])))
        for index, (x1, y1, x2, y2) in zip(order, corners, strict=True):
            colour = class_colour(int(result.class_id[index]))
            if result.keypoints is not None:
                _draw_keypoints(image, result.keypoints[index], colour, pen)
            cv2.rectangle(image, (x1, y1), (x2, y2), colour, pen.line_px, cv2.LINE_AA)
        for index, (x1, y1, _, _) in zip(order, corners, strict=True):
            class_id = int(result.class_id[index])
            text = f"{self._name(class_id)} {result.confidence[index]:.0%}"
            then = None if result.then is None else result.then[index]
            if isinstance(then, (Detections, Classification)) and len(then.confidence):
                text += f" ({then.labels[0]} {then.confidence[0]:.0%})"
            _draw_tag(image, text, (x1 - pen.line_px // 2, y1), class_colour(class_id), pen)

    def _paint(self, image: Image, result: Detections, index: int, colour: _Colour) -> None:
        painted = image.copy()
        cv2.fillPoly(painted, [outline.astype(np.int32) for outline in result.polygons(index)], colour)
        cv2.addWeighted(image, 1 - _STRENGTH, painted, _STRENGTH, 0, dst=image)

    def _draw_classes(self, image: Image, result: Classification, pen: _Pen) -> None:
        y = pen.margin_px
        for class_id, confidence in zip(result.class_id[:_TOP_CLASSES], result.confidence[:_TOP_CLASSES], strict=True):
            text = f"{self._name(int(class_id), self._offset)} {confidence:.0%}"
            y = _draw_tag(image, text, (pen.margin_px, y), class_colour(int(class_id)), pen, above=False)

    def _draw_segments(self, image: Image, result: Segmentation, pen: _Pen) -> None:
        class_map = result.to_frame()
        painted = cv2.LUT(class_map, self._is_painted)
        colours = cv2.applyColorMap(class_map, self._colours)
        cv2.copyTo(cv2.addWeighted(image, 1 - _STRENGTH, colours, _STRENGTH, 0), painted, image)
        # The largest id around a pixel less the smallest: above 0 where two classes meet, and a line is drawn.
        around = np.ones((pen.line_px + 1, pen.line_px + 1), np.uint8)
        borders = cv2.morphologyEx(class_map, cv2.MORPH_GRADIENT, around)
        cv2.copyTo(colours, cv2.bitwise_and(borders, painted), image)
        y = pen.margin_px
        for class_id in np.argsort(-result.shares, kind="stable")[:_LARGEST_CLASSES].tolist():
            share, colour = float(result.shares[class_id]), _segment_colour(class_id, self._name(class_id))
            if colour is not None and share >= _LEAST_SHARE and y < image.shape[0] // 2:
                text = f"{self._name(class_id)} {share:.0%}"
                y = _draw_tag(image, text, (pen.margin_px, y), colour, pen, above=False)

    def _name(self, class_id: int, offset: int = 0) -> str:
        index = class_id + offset
        return self._labels[index] if 0 <= index < len(self._labels) else f"class {class_id}"


_DRAWING: dict[type[Result], Callable[[Annotator, Image, Any, _Pen], None]] = {
    Detections: Annotator._draw_detections,
    Classification: Annotator._draw_classes,
    Segmentation: Annotator._draw_segments,
}


_LEAST_SURE = 0.5  # confidence of a keypoint that is drawn
_PERSON = 17  # keypoints of COCO's persons: nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles
_BONES = np.reshape(
    (0, 1, 0, 2, 1, 3, 2, 4, 5, 6, 5, 7, 7, 9, 6, 8, 8, 10, 5, 11, 6, 12, 11, 12, 11, 13, 13, 15, 12, 14, 14, 16),
    (-1, 2),
).tolist()


def _draw_keypoints(image: Image, points: NDArray[np.float32], colour: _Colour, pen: _Pen) -> None:
    places = [(round(x), round(y)) if sure >= _LEAST_SURE else None for x, y, sure in points.tolist()]
    for one, other in _BONES if len(places) == _PERSON else ():
        if (start := places[one]) is not None and (end := places[other]) is not None:
            cv2.line(image, start, end, colour, pen.line_px, cv2.LINE_AA)
    for place in places:
        if place is not None:
            cv2.circle(image, place, 2 * pen.line_px, colour, cv2.FILLED, cv2.LINE_AA)


def _segment_colour(class_id: int, label: str) -> _Colour | None:
    """Return a class's colour, BGR; None for the background, which is not painted."""
    return None if label.strip("_ ").casefold() == "background" else class_colour(class_id)


def class_colour(class_id: int) -> tuple[int, int, int]:
    """Return the colour of a class, BGR 0-255; it is constant, bright, and unlike that of neighbouring classes."""
    hue = (0.05 + class_id * _GOLDEN_RATIO) % 1.0
    hsv = np.array([[[int(hue * 180), 200, 240]]], np.uint8)
    blue, green, red = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0].tolist()
    return blue, green, red


def _pen_for(image: Image) -> _Pen:
    factor = min(image.shape[:2]) / _REFERENCE_PX
    scale = min(max(0.75 * factor, 0.45), 3.0)
    text_px = max(1, round(1.5 * scale))
    return _Pen(line_px=max(1, round(3 * factor)), text_px=text_px, scale=scale, margin_px=max(2, round(6 * scale)))


def _draw_tag(
    image: Image, text: str, at_xy: tuple[int, int], colour: _Colour, pen: _Pen, *, above: bool = True
) -> int:
    """Write a text on a filled background inside the picture; return the y where it ends, in pixels."""
    height_px, width_px = int(image.shape[0]), int(image.shape[1])
    text, (text_w, text_h), below_px = _fit_text(text, width_px - 2 * pen.margin_px, pen)
    tag_w, tag_h = text_w + 2 * pen.margin_px, text_h + below_px + pen.margin_px
    y = at_xy[1] - tag_h if above and at_xy[1] >= tag_h else at_xy[1]
    x, y = max(0, min(at_xy[0], width_px - tag_w)), max(0, min(y, height_px - tag_h))
    cv2.rectangle(image, (x, y), (x + tag_w - 1, y + tag_h - 1), colour, cv2.FILLED)
    origin = (x + pen.margin_px, y + tag_h - below_px - pen.margin_px // 2)
    cv2.putText(image, text, origin, _FONT, pen.scale, _readable_on(colour), pen.text_px, cv2.LINE_AA)
    return y + tag_h


def _fit_text(text: str, room_px: int, pen: _Pen) -> tuple[str, Sequence[int], int]:
    """Shorten a text until it fits; return it with its size (width, height above, below the line) in pixels."""
    size_wh, below_px = cv2.getTextSize(text, _FONT, pen.scale, pen.text_px)
    while size_wh[0] > room_px and len(text) > 1:
        text = text[: max(1, min(len(text) - 1, len(text) * room_px // size_wh[0]))]
        size_wh, below_px = cv2.getTextSize(text, _FONT, pen.scale, pen.text_px)
    return text, size_wh, below_px


def _readable_on(colour: _Colour) -> _Colour:
    """Return black or white, by the luma of the ground (ITU-R BT.601)."""
    blue, green, red = colour
    return (0, 0, 0) if 0.114 * blue + 0.587 * green + 0.299 * red > 128 else (255, 255, 255)


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
            raise UsageError(f"{path}: expected a name that ends in .mp4, or in .jpg or .png for the last frame")
        _refuse_existing(path)
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
        _refuse_existing(path)
        if not path.parent.is_dir():
            raise OutputError(f"{path}: cannot be written: no such folder")

    def write(self, image: Image) -> None:
        """Take a picture in place of the one before; the caller may change it until the end."""
        self._last = image

    def close(self) -> None:
        """Write the file, if there was a picture."""
        if not self._last.size:
            return
        data = cv2.imencode(self._path.suffix, self._last)[1]
        try:
            with self._path.open("xb") as file:
                file.write(data.tobytes())
        except OSError as cause:
            raise OutputError(f"{self._path}: cannot be written: {cause.strerror}") from cause


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path}: exists already; choose another name, nothing is ever overwritten")


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


_LONGEST_STILL_S = 1  # if results are missing for longer the video jumps, because more pictures would delay the loop


class AnnotatedVideo:
    """A sink that draws each result on a copy of its frame and writes it for as long as the frame lasted."""

    def __init__(self, annotator: Annotator, writer: VideoWriter | PictureWriter, fps: float) -> None:
        self._annotator, self._writer, self._fps = annotator, writer, fps
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
        self._annotator.draw(self._copy, result)
        self._writer.write(self._copy)
