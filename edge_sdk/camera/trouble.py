"""Why a camera is not there, in words for people; found out after it did not open.

Sends no user and no password, and nothing at all where the address itself looks like a secret.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
from pathlib import Path
from urllib.parse import quote

from edge_sdk.location import Address, address_of
from edge_sdk.source_options import SourceOptions

_ASK_S = 1.0
_QUERYCAP, _CAPABILITY_BYTES = 0x80685600, 104  # VIDIOC_QUERYCAP of linux/videodev2.h, and its struct
_STATUS_LINE = re.compile(rb"(?:RTSP|HTTP)/\d\.\d (\d{3})")
_TOO_MANY_FILES = "too many open files in this process"
_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.EHOSTUNREACH: "no way to this host",
    errno.ENETUNREACH: "no network",
    errno.EMFILE: _TOO_MANY_FILES,
    errno.ENFILE: "too many open files on this device",
}


def stream_trouble(location: str, options: SourceOptions, *, names_user: bool, took_s: float) -> str:
    """Why a stream did not open.

    Args:
        location: its URL; a login in it is left out.
        options: those with which it was opened.
        names_user: whether it was opened with a user and a password.
        took_s: seconds until opening it failed.
    """
    address = address_of(location)
    silent = f"no answer within {options.open_timeout_s:g} s"
    try:
        with socket.create_connection((address.host, address.port), _ASK_S) as connection:
            answer = _ask(connection, address)
    except (socket.gaierror, UnicodeError):
        return "host unknown"
    except TimeoutError:
        return silent
    except OSError as cause:
        return _WORDS.get(cause.errno or 0) or (cause.strerror or "no connection").lower()
    if answer is None:
        return silent if address.is_open else f"no video within {options.open_timeout_s:g} s"
    refusal = _refusal(answer, is_rtsp=address.scheme == "rtsp", names_user=names_user)
    return refusal or _want_of_video(options, is_rtsp=address.scheme == "rtsp", took_s=took_s)


def _ask(connection: socket.socket, address: Address) -> int | None:
    """The status with which a server answers who shows no login; 0 for what is no status, None for silence."""
    if not address.is_open or address.scheme not in ("rtsp", "http"):
        return None
    target = quote(address.target or "/", safe="/?&=%:;,+@!$'()*~-._")
    host = f"[{address.host}]" if ":" in address.host else address.host
    if address.scheme == "rtsp":
        request = (
            f"DESCRIBE rtsp://{host}:{address.port}{target} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n"
        )
    else:
        request = f"GET {target} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    connection.sendall(request.encode())
    with contextlib.suppress(TimeoutError):
        answer = connection.recv(512)
        found = _STATUS_LINE.match(answer)
        return int(found[1]) if found else 0
    return None


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
        return _WORDS.get(cause.errno or 0) or (cause.strerror or "it does not open").lower()
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
