"""SourceOptions: what a source is asked for, beside where it is."""

from __future__ import annotations

from typing import Literal

import msgspec


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a source is asked for; what does not concern its kind is ignored.

    Attributes:
        size_wh: pixels, of a camera that can be asked; None: as it delivers.
        fps: frames a second, of a camera that can be asked, and of what has no rate of its own.
        pixel_format: of a V4L2 camera.
        transport: of RTSP.
    """

    size_wh: tuple[int, int] | None = None
    fps: float | None = None
    pixel_format: Literal["MJPG", "YUYV"] | None = None
    transport: Literal["tcp", "udp"] = "tcp"
