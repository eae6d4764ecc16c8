"""The annotated video of a run, while it lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.bundle import Bundle
from edge_sdk.camera.capture import set_up_opencv

if TYPE_CHECKING:
    from edge_sdk.annotate import AnnotatedVideo


@contextlib.contextmanager
def annotated_video(path: Path, bundle: Bundle, fps: float) -> Iterator[AnnotatedVideo]:
    """A sink that draws each result into a new MP4.

    Args:
        path: of the file.
        bundle: whose labels are drawn.
        fps: of the source.

    Raises:
        OutputError: the file cannot be written.
    """
    from edge_sdk.annotate import AnnotatedVideo, Annotator, VideoWriter  # few runs do

    set_up_opencv()  # OpenCV, where it writes: it speaks of each frame for which the disk has no room
    annotator = Annotator(bundle.labels(), background_class=bundle.manifest.classification.background_class)
    with VideoWriter(path, fps) as writer:
        yield AnnotatedVideo(annotator, writer, fps)
