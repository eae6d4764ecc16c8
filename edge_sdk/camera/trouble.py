"""Why a camera is not there, in words for people; found out after it did not open."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.errors import CameraError
from edge_sdk.source_options import SourceOptions

if TYPE_CHECKING:
    from edge_sdk.camera.relay import Relay

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


def stream_trouble(relay: Relay, options: SourceOptions, *, names_user: bool, took_s: float) -> CameraError:
    """Why a stream did not open.

    Args:
        relay: through which it was opened.
        options: those with which it was opened.
        names_user: whether it was opened with a user and a password.
        took_s: seconds until opening it failed.
    """
    if relay.trouble is not None:
        return relay.trouble
    is_rtsp, status = relay.scheme == "rtsp", relay.status
    if status is None:
        hangs_up = took_s < options.open_timeout_s * 0.9
        return CameraError("it hangs up without an answer" if hangs_up else silence(options))
    refusal = _refusal(status, is_rtsp=is_rtsp, names_user=names_user)
    return CameraError(refusal or _want_of_video(options, is_rtsp=is_rtsp, took_s=took_s))


def _refusal(status: int, *, is_rtsp: bool, names_user: bool) -> str:
    if status in (401, 403):
        return "user or password refused" if names_user else "it wants a user and a password"
    if status == 404:
        return "there is nothing at this path (404)"
    if status == 0:
        return f"something else than {'RTSP' if is_rtsp else 'HTTP'} answers there"
    return f"it answers with error {status}" if status >= 400 else ""


def _want_of_video(options: SourceOptions, *, is_rtsp: bool, took_s: float) -> str:
    if took_s < options.open_timeout_s * 0.9:
        return "it answers, but with no video that can be read"
    silence = f"it answers, but no video came within {options.open_timeout_s:g} s"
    is_udp = is_rtsp and options.transport == "udp"
    return f"{silence} over UDP, which a firewall may keep away; try transport tcp" if is_udp else silence


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
