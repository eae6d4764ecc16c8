"""Where a source is, as the user wrote it: what kind it is, how to show it, how to add its password.

Owns the rule that nothing secret is ever shown. Opens nothing.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from edge_sdk.errors import CameraError, ConfigError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")

_SCHEMES = ("rtsp", "rtsps", "http", "https")
_KINDS = "a V4L2 index or /dev path, an rtsp(s):// or http(s):// URL, a video file, an image or a folder of images"
# Some cameras take the login as a part of the path: /user=admin_password=…_channel=1.sdp
_SECRET_IN_PATH = re.compile(r"((?:user|pass|pwd|token|secret|key|auth)\w*?=)[^&;/]*", re.IGNORECASE)
_LOGIN_WITHOUT_SCHEME = re.compile(r"[^@]*:[^@]*@")


class Kind(Enum):
    """The kinds of sources."""

    DEVICE = "device"
    STREAM = "stream"
    VIDEO = "video"
    IMAGES = "images"


def kind_of(location: str) -> Kind:
    """Say what kind of source a location names.

    Raises:
        CameraError: a URL that is not RTSP or HTTP, or no file where a file is meant.
    """
    if "://" in location:
        if location.partition("://")[0].lower() not in _SCHEMES:
            raise CameraError(f"{redact(location)}: this kind of URL is not supported, expected {_KINDS}")
        return Kind.STREAM
    if (location.isascii() and location.isdigit()) or location.startswith("/dev/"):
        return Kind.DEVICE
    path = Path(location)
    if not location or not _exists(path):
        raise CameraError(f"{redact(location) or 'no source'}: no such file or folder, expected {_KINDS}")
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        return Kind.IMAGES
    return Kind.VIDEO


def redact(location: str) -> str:
    """Show a location without user, password, query and anything else that may be a secret.

    Rather hides too much than too little: all that stands before the last `@` of a URL goes, because a password that
    was not percent-encoded may hold any character.
    """
    shown = "".join(c if c.isprintable() else "�" for c in location)
    scheme, mark, rest = shown.partition("://")
    if not mark:
        return _LOGIN_WITHOUT_SCHEME.sub("…@", shown)
    rest = rest[rest.rfind("@") + 1 :].partition("#")[0]
    address, query, _ = rest.partition("?")
    return f"{scheme}://" + _SECRET_IN_PATH.sub(r"\1…", address) + ("?…" if query else "")


def holds_password(text: str) -> bool:
    """Whether there is a password in a URL, percent-encoded or not: it may hold any character, the slash too."""
    _, mark, rest = text.partition("://")
    return bool(mark) and ":" in rest.rpartition("@")[0]


def names_user(location: str) -> bool:
    """Whether it is a URL with a user, to whom a password can belong."""
    _, mark, rest = location.partition("://")
    return bool(mark) and bool(re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[0])


def add_password(location: str, password: str | None) -> str:
    """Put a password, percent-encoded, behind the user name of a URL.

    Returns:
        What only OpenCV may see; the location itself without a password or where it is no URL.

    Raises:
        ConfigError: a password, but no user name in the URL.
    """
    scheme, mark, rest = location.partition("://")
    if password is None or not mark:
        return location
    end = re.search(r"[/?#]|$", rest)
    authority, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    login, _, host = authority.rpartition("@")
    user = login.partition(":")[0]
    if not user:
        raise ConfigError(f"{redact(location)}: a password, but no user name; write {scheme}://USER@{redact(host)}")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{tail}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        return False
