"""AnnotatedVideo: results as a video that keeps the source's pace."""

from __future__ import annotations

import numpy as np

from edge_sdk.annotate.annotator import Annotator
from edge_sdk.annotate.video_writer import VideoWriter
from edge_sdk.frame import Image, Result

_LONGEST_STILL_S = 1  # where results are missing for longer the video jumps: to write more would hold up the loop


class AnnotatedVideo:
    """A sink that draws each result on a copy of its frame and writes it, as often as its time lasted.

    Args:
        annotator: draws.
        writer: encodes at `fps` frames a second.
        fps: the source's own; frames that were dropped show the result before them.
    """

    def __init__(self, annotator: Annotator, writer: VideoWriter, fps: float) -> None:
        self._annotator, self._writer, self._fps = annotator, writer, fps
        self._copy: Image = np.empty((0, 0, 3), np.uint8)
        self._last_ns: int | None = None

    def put(self, result: Result) -> None:
        """Draw and write one result.

        Raises:
            OutputError: the video cannot be written.
        """
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
