"""annotated.jpg: one frame of the video with what a message says about it."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from edge_sdk.core.errors import OutputError
from edge_sdk.core.frame import Detections, Frame, Image
from edge_sdk.events.annotate import Annotator
from edge_sdk.messages.schema import DetectionMessage
from edge_sdk_tools.demo.frames import read_frames


def draw_picture(message: DetectionMessage, video: Path, labels: tuple[str, ...], path: Path) -> None:
    """Draw a message on its frame, which is found in the video by its number.

    Args:
        message: what was received.
        video: the source of the frame.
        labels: in output order.
        path: where the picture goes; the ending says which format.

    Raises:
        DataError: the video has no such frame.
        OutputError: the picture cannot be written.
    """
    _, image = next(read_frames(video, {message.seq}))
    Annotator(labels).draw(image, to_detections(message, image))
    if not cv2.imwrite(str(path), image):
        raise OutputError(f"{path}: cannot be written")


def to_detections(message: DetectionMessage, image: Image) -> Detections:
    """A message as the value that it was made from, to what it was rounded to."""
    items = message.detections
    return Detections(
        frame=Frame(image, 0, message.captured_at.timestamp(), message.seq, message.camera),
        inference_ns=int(message.infer_ms * 1e6),
        boxes_xyxy=np.array([item.box_xyxy for item in items], np.float32).reshape(-1, 4),
        confidences=np.array([item.confidence for item in items], np.float32),
        class_ids=np.array([item.class_id for item in items], np.int64),
    )
