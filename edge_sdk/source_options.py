"""SourceOptions: what a source is asked for, beside where it is."""

from __future__ import annotations

import math
import os
import re
from typing import Literal

import msgspec

from edge_sdk.errors import ConfigError

LARGEST_SIDE_PX = 16384
SLOWEST_FPS, FASTEST_FPS = 0.1, 240.0
PATTERN_SLOWEST_FPS = 1.0
SHORTEST_S, LONGEST_S = 0.1, 60.0  # of a time-out
DEVICE_TIMEOUT_VARIABLE = "OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT"
_DEVICE_TIMEOUT_S = 2  # OpenCV has it for all V4L2 cameras of a process, in whole seconds

_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(?::?[0-9A-Fa-f]{2}){31}")

_CHOICES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("pixel_format", (None, "MJPG", "YUYV")),
    ("transport", ("tcp", "udp")),
    ("rotate", (0, 90, 180, 270)),
    ("repeat", (False, True)),
    ("tls_verify", (False, True)),
    ("allow_other_hosts", (False, True)),
)


class SourceOptionError(ConfigError, ValueError):
    """An option that no source can have. A ValueError too, so that msgspec names the place in a file."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a source is asked for; what does not concern its kind is ignored.

    Attributes:
        size_wh: pixels, 1 to 16384, of a camera that can be asked; None: as it delivers.
        fps: frames a second, 0.1 to 240, of a camera that can be asked, and of what has no rate of its own; of a
            pattern 1 or more.
        pixel_format: of a V4L2 camera.
        transport: of RTSP. With `tcp` FFmpeg still takes UDP from a server that has nothing else.
        rotate: degrees clockwise by which every picture is turned, after what its own EXIF or display matrix says.
        repeat: a video file, or a folder of images, begins again when it is through.
        open_timeout_s: seconds, 0.1 to 60, that a stream may take to open.
        read_timeout_s: seconds, 0.1 to 60, without a frame after which a stream is lost. A V4L2 camera has 2.
        tls_fingerprint: SHA-256 of the one certificate that an rtsps or https camera may show, 64 hexadecimal digits,
            with colons or without.
        tls_ca_file: PEM file of the authorities whose certificates are trusted instead of the system's.
        tls_verify: False: any certificate is taken, and whoever shows one gets the password.
        allow_other_hosts: a stream may redirect to other hosts, which then get the password.

    Raises:
        SourceOptionError: one that is out of its range.
    """

    size_wh: tuple[int, int] | None = None
    fps: float | None = None
    pixel_format: Literal["MJPG", "YUYV"] | None = None
    transport: Literal["tcp", "udp"] = "tcp"
    rotate: Literal[0, 90, 180, 270] = 0
    repeat: bool = False
    open_timeout_s: float = 3.0
    read_timeout_s: float = 2.0
    tls_fingerprint: str | None = None
    tls_ca_file: str | None = None
    tls_verify: bool = True
    allow_other_hosts: bool = False

    def __post_init__(self) -> None:
        """Refuse what no source can have."""
        if self.size_wh is not None and not _is_size(self.size_wh):
            expected = f"[width, height] of 1 to {LARGEST_SIDE_PX} whole pixels, such as [1280, 720]"
            raise SourceOptionError(f"size_wh is {self.size_wh}, expected {expected}")
        if self.fps is not None and not _is_within(self.fps, SLOWEST_FPS, FASTEST_FPS):
            raise SourceOptionError(
                f"fps is {self.fps:g}, expected {SLOWEST_FPS} to {FASTEST_FPS:g} frames a second, or nothing"
            )
        for name in ("open_timeout_s", "read_timeout_s"):
            if not _is_within(getattr(self, name), SHORTEST_S, LONGEST_S):
                raise SourceOptionError(
                    f"{name} is {getattr(self, name)}, expected {SHORTEST_S} to {LONGEST_S:g} seconds"
                )
        for name, choices in _CHOICES:
            if getattr(self, name) not in choices:
                expected = " or ".join(str(choice) for choice in choices if choice is not None)
                raise SourceOptionError(f"{name} is {getattr(self, name)}, expected {expected}")
        if self.tls_fingerprint is not None and not _FINGERPRINT.fullmatch(self.tls_fingerprint):
            raise SourceOptionError(
                f"tls_fingerprint is {self.tls_fingerprint}, expected 64 hexadecimal digits, with colons or without: "
                "`openssl x509 -noout -fingerprint -sha256 -in FILE` prints them"
            )
        given = [name for name, is_given in self._ways_to_trust() if is_given]
        if len(given) > 1:
            raise SourceOptionError(f"{' and '.join(given)}: expected one of them")

    def _ways_to_trust(self) -> tuple[tuple[str, bool], ...]:
        return (
            ("tls_fingerprint", self.tls_fingerprint is not None),
            ("tls_ca_file", self.tls_ca_file is not None),
            ("tls_verify = false", not self.tls_verify),
        )


def bare_fingerprint(written: str) -> str:
    """A fingerprint as it is compared: small letters, no colons."""
    return written.replace(":", "").lower()


def device_timeout_s() -> int:
    """Seconds without a frame after which a V4L2 camera is lost; whoever sets OpenCV's variable has another number."""
    asked = os.environ.get(DEVICE_TIMEOUT_VARIABLE, "")
    is_number = asked.isascii() and asked.isdigit() and len(asked) < 7
    return (int(asked) if is_number else 0) or _DEVICE_TIMEOUT_S


def _is_within(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and least <= value <= most


def _is_size(value: object) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(isinstance(side, int) and 1 <= side <= LARGEST_SIDE_PX for side in value)


AS_IT_COMES = SourceOptions()
"""Nothing is asked for."""
