"""Results drawn on frames, and frames written to a video file."""

from edge_sdk.annotate.annotated_video import AnnotatedVideo
from edge_sdk.annotate.annotator import Annotator
from edge_sdk.annotate.video_writer import VideoWriter

__all__ = ["AnnotatedVideo", "Annotator", "VideoWriter"]
