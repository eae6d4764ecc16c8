"""Why a camera is not there, in words for people; found out after it did not open."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.core.errors import CameraError
from edge_sdk.sources.location import SourceOptions

if TYPE_CHECKING:
    pass

_QUERYCAP, _CAPABILITY_BYTES = 0x80685600, 104  # VIDIOC_QUERYCAP of linux/videodev2.h, and its struct
_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.EHOSTUNREACH: "no way to this host",
    errno.ENETUNREACH: "no network",
    errno.EMFILE: "too many open files in this process",
    errno.ENFILE: "too many open files on this device",
}


class UntrustedError(CameraError):
    """What a camera shows or answers is refused; the message says what to do."""


def words_of(error: OSError, otherwise: str = "no connection") -> str:
    """What the system says of a failure, in a few words."""
    return _WORDS.get(error.errno or 0) or (error.strerror or otherwise).lower()


def silence(options: SourceOptions) -> str:
    """What is said of a server that does not answer in time."""
    return f"no answer within {options.open_timeout_s:g} s"


def device_trouble(path: str) -> str:
    """What is wrong with a V4L2 device before it is opened; empty where nothing is."""
    if not Path(path).exists():
        return "no such device"
    if not os.access(path, os.R_OK | os.W_OK):
        return "permission denied; add this user to the group video"
    return ""


def opened_device_trouble(path: str) -> str:
    """Why a V4L2 device did not open although it is there."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as cause:
        if cause.errno == errno.EBUSY:
            return "in use by another program"
        return words_of(cause, "it does not open")
    try:
        fcntl.ioctl(descriptor, _QUERYCAP, bytes(_CAPABILITY_BYTES))
    except OSError:
        return "not a camera"
    finally:
        os.close(descriptor)
    return "it gives no pictures; is it in use by another program?"


def want_of_descriptors() -> str:
    """Says that no file can be opened at present; empty where one can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as cause:
        return _WORDS.get(cause.errno or 0, "")
    return ""
