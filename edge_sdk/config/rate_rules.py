"""Rates that no source can have: rules about a stream's `fps`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UnsetType

from edge_sdk.config.config import PipelineConfig
from edge_sdk.errors import CameraError
from edge_sdk.location import Kind, named_kind, pattern_of
from edge_sdk.source_options import AS_IT_COMES, PATTERN_SLOWEST_FPS, device_timeout_s


def broken_rate_rules(stream: PipelineConfig) -> Iterator[str]:
    """One line a rule that is broken.

    Args:
        stream: with what [defaults] say for it.
    """
    fps, kind = stream.fps, named_kind(stream.source)
    if isinstance(fps, UnsetType):
        return
    if kind is Kind.PATTERN and fps < PATTERN_SLOWEST_FPS and _has_no_rate(stream.source):
        yield f"fps is {fps:g}, expected {PATTERN_SLOWEST_FPS:g} or more: a pattern is no slower"
    elif kind is Kind.DEVICE:
        # OpenCV has one time-out for all V4L2 cameras, whatever read_timeout_s says.
        yield from _too_slow(fps, device_timeout_s(), "a V4L2 camera")
    elif kind is Kind.PICAMERA:
        given = stream.read_timeout_s
        timeout_s = AS_IT_COMES.read_timeout_s if isinstance(given, UnsetType) else given
        advice = f", or a read_timeout_s above {1 / fps:.3g}"
        yield from (line + advice for line in _too_slow(fps, timeout_s, "by read_timeout_s the camera"))


def _too_slow(fps: float, timeout_s: float, what: str) -> Iterator[str]:
    if 1 / fps > timeout_s:
        yield (
            f"fps is {fps:g}, one frame in {1 / fps:.3g} s, and {what} is lost after {timeout_s:g} s without one; "
            f"expected {1 / timeout_s:.3g} or more"
        )


def _has_no_rate(pattern: str) -> bool:
    try:
        return pattern_of(pattern)[1] is None
    except CameraError:  # which is said where patterns are looked at
        return False
