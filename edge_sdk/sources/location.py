"""Parse locations of sources as users write them; `SourceOptions` are the options for opening a source.

The functions here parse locations, add passwords to URLs, and show addresses without secrets. They open nothing. The
table in `sources.opening` decides which kind of source a location names, and what of it is shown.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from edge_sdk.core.errors import CameraError, ConfigError, SettingError, missing_permission, printable
from edge_sdk.core.toml import check_fields

LARGEST_SIDE_PX = 16384
SLOWEST_FPS, FASTEST_FPS = 0.1, 240.0
DEVICE_TIMEOUT_VARIABLE = "OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT"
_DEVICE_TIMEOUT_S = 2  # OpenCV's value for all V4L2 cameras of a process, in whole seconds

_Side = Annotated[int, Meta(ge=1, le=LARGEST_SIDE_PX)]
_SIZE = Meta(description="width and height in pixels, of a camera", examples=[[1280, 720]])
_Size = Annotated[tuple[_Side, _Side], _SIZE]
_ASKED = {"description": "frames a second that a camera is asked for", "extra": {"unit": "frames a second"}}
_Fps = Annotated[float, Meta(ge=SLOWEST_FPS, le=FASTEST_FPS, **_ASKED)]
_FINGERPRINT = Meta(
    pattern=r"^[0-9A-Fa-f]{2}(?::?[0-9A-Fa-f]{2}){31}$(?!\n)",
    description="64 hexadecimal digits, with colons or without: SHA-256 of the certificate of an rtsps or https camera "
    "(`openssl x509 -noout -fingerprint -sha256 -in FILE` prints it)",
)
_Fingerprint = Annotated[str, _FINGERPRINT]
_AuthoritiesFile = Annotated[Path, Meta(description="PEM file of the authorities to trust instead of the system's")]


def _timeout(description: str) -> Meta:
    return Meta(ge=0.1, le=60, description=f"seconds {description}", extra={"unit": "seconds"})


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options with which a source is opened; those that do not concern its kind are ignored.

    Attributes:
        fps: frames per second; for a source without a rate of its own, such as a pattern, 1 or more.
        transport: transport of RTSP; with `tcp` FFmpeg still uses UDP if the server offers nothing else.
        rotate: applied after the picture's own EXIF or display matrix.
        read_timeout_s: V4L2 cameras always use 2.
        tls_verify: False: accept any certificate; an attacker in between can then get the password.
        allow_other_hosts: whether to follow redirects to other hosts, which then get the password.

    Raises:
        SettingError: an option is out of range, or more than one of the three certificate options is set.
    """

    size_wh: _Size | None = None
    fps: _Fps | None = None
    pixel_format: Annotated[Literal["MJPG", "YUYV"], Meta(description="of a V4L2 camera")] | None = None
    transport: Annotated[Literal["tcp", "udp"], Meta(description="of RTSP")] = "tcp"
    rotate: Annotated[Literal[0, 90, 180, 270], Meta(description="degrees clockwise")] = 0
    repeat: Annotated[bool, Meta(description="files begin again when they are through", extra={"also": ("loop",)})] = (
        False
    )
    open_timeout_s: Annotated[float, _timeout("that a stream may take to open")] = 3.0
    read_timeout_s: Annotated[float, _timeout("without a frame, after which a stream is lost")] = 2.0
    tls_fingerprint: _Fingerprint | None = None
    tls_ca_file: _AuthoritiesFile | None = None
    tls_verify: Annotated[bool, Meta(description="false: a camera's certificate is not verified")] = True
    allow_other_hosts: Annotated[bool, Meta(description="a stream may redirect to other servers")] = False

    def __post_init__(self) -> None:
        check_fields(self, SourceOptions)
        given = [name for name in ("tls_fingerprint", "tls_ca_file") if getattr(self, name) is not None]
        given += [] if self.tls_verify else ["tls_verify = false"]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)}: expected one of them")


def bare_fingerprint(written: str) -> str:
    """Return a fingerprint in lower case without colons, for comparing."""
    return written.replace(":", "").lower()


def device_timeout_s() -> int:
    """Return the seconds without a frame after which a V4L2 camera is lost; a variable of OpenCV may set them."""
    asked = re.fullmatch(r"0*([1-9][0-9]{0,5})", os.environ.get(DEVICE_TIMEOUT_VARIABLE, ""))
    return int(asked[1]) if asked else _DEVICE_TIMEOUT_S


AS_IT_COMES = SourceOptions()
"""Default options: the source delivers frames as it comes."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm")

SCHEMES = ("rtsp", "rtsps", "http", "https")
_INDEX = re.compile(r"[0-9]{1,9}")
_PICAMERA = re.compile(r"picamera2(?::(\d{1,2}))?")
_PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
# Some cameras take the login as a part of the path: /user=admin_password=…_channel=1.sdp
_SECRET_IN_PATH = re.compile(
    r"((?:(?:user|pass|pwd|pw|psw|psk|token|secret|key|auth|signature)\w*?|sig|code)(?:=|%3D))[^&;/]*", re.IGNORECASE
)
# Other cameras use an unguessable path as the only login: rtsps://host:7441/AbCdEfGhIjKlMnOp
_LONG_RUN = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Za-z]{16,}")
# Words such as streamingchannels101 or StreamingSetting are no secret.
_WORDS = re.compile(r"[A-Z]?[a-z]{2,}(?:[A-Z][a-z]{2,})*[0-9]{0,4}")
_WITHOUT_SLASHES = re.compile(r"(rtsps?|https?):(?!//)", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


class UntrustedError(CameraError):
    """A camera's certificate or answer is refused; the message says what to do."""


def is_device(location: str) -> bool:
    """Tell whether a location is the index or the path of a V4L2 device."""
    return _INDEX.fullmatch(location) is not None or location.startswith("/dev/")


def device_path(location: str) -> str:
    """Return the path of a V4L2 device given by its index or its path."""
    return f"/dev/video{int(location)}" if location.isdigit() else location


def check_path(location: str, expected: str = "") -> None:
    """Refuse a path that does not exist, or is neither a file nor a folder."""
    path = Path(location)
    if not location or not _exists(path):
        slashes = without_slashes(location)
        if slashes:
            raise CameraError(slashes)
        missing = missing_permission(path) or f"no such file or folder{expected}"
        raise CameraError(f"{redact_address(location) or 'no source'}: {missing}")
    if not path.is_dir() and not path.is_file():
        raise CameraError(f"{redact_address(location)}: neither a file nor a folder{expected}")


def redact_address(location: str) -> str:
    """Show a URL, or a path, without user, password, query and anything else that may be a secret.

    It hides too much rather than too little. It removes all text before the last `@` of a URL, because a password that
    was not percent-encoded may contain any character; text before `://` that cannot be a scheme, because users may put
    a login there by mistake; and in a path each run of 16 or more letters and digits that does not look like words.
    docs/cameras.md documents this.
    """
    shown = printable(location)
    scheme, mark, rest = shown.partition("://")
    if not mark:
        login, at, host = shown.rpartition("@")
        bare = f"…@{host}" if at and ":" in login else shown
        return _shown_address(bare) if _WITHOUT_SLASHES.match(shown) else bare
    rest = rest[rest.rfind("@") + 1 :]
    return (scheme if _SCHEME.fullmatch(scheme) else "…") + mark + _shown_address(rest)


def redact_pipeline(location: str) -> str:
    """Show only the element names of `gst:PIPELINE`: any property may be a password, even with a quoted `!`."""
    pipeline = printable(location).removeprefix("gst:")
    if set(pipeline) & set("'\"\\"):
        return "gst:…"
    found = [re.match(r"\s*([A-Za-z][\w-]*)(?=\s|$)", part) for part in re.split(r"\s!(?=\s)", pipeline)]
    return "gst:" + " ! ".join(name[1] if name else "…" for name in found)


def _shown_address(rest: str) -> str:
    """Return the host and path of a URL without possible secrets."""
    address, query, _ = rest.partition("#")[0].partition("?")
    host, slash, path = address.partition("/")
    shown_path = _LONG_RUN.sub(
        lambda run: run[0] if _WORDS.fullmatch(run[0]) else "…", _SECRET_IN_PATH.sub(r"\1…", path)
    )
    return _SECRET_IN_PATH.sub(r"\1…", host) + slash + shown_path + ("?…" if query else "")


def without_slashes(location: str) -> str:
    """Return what is wrong with a URL such as `rtsp:/cam/x`, which looks like a file; empty if nothing is."""
    found = _WITHOUT_SLASHES.match(location)
    if not found:
        return ""
    return f"{redact_address(location)}: `//` is missing behind {found[1]}:, expected {found[1]}://HOST/PATH"


def holds_password(text: str) -> bool:
    """Tell whether a URL contains a password, percent-encoded or not; it may contain any character, even a slash."""
    _, mark, rest = text.partition("://")
    return bool(mark) and ":" in rest.rpartition("@")[0]


def names_user(location: str) -> bool:
    """Tell whether a location is a URL with a user name."""
    _, mark, rest = location.partition("://")
    return bool(mark) and bool(re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[0])


def is_encrypted(location: str) -> bool:
    """Tell whether a location is a URL whose connection uses TLS."""
    return location.lower().startswith(("rtsps://", "https://"))


def picamera_number(location: str) -> int | None:
    """Return the number, from 0, of the camera that `picamera2` or `picamera2:1` names; None for other locations."""
    found = _PICAMERA.fullmatch(location)
    return int(found[1] or 0) if found else None


class SourceAddress(msgspec.Struct, frozen=True):
    """The address of a URL's server; `target` is path and query, empty if there are none."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme.endswith("s")

    @property
    def name(self) -> str:
        """The host without the zone of an IPv6 address (`fe80::1%eth0`), which only this device knows."""
        return self.host.partition("%")[0]

    @property
    def authority(self) -> str:
        """Host, and port unless it is the scheme's; an IPv6 address stands in brackets without its zone."""
        host = f"[{self.name}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def address_of(url: str) -> SourceAddress:
    """Return the address of a URL's server, without the login; raise a CameraError without host or possible port."""
    scheme, _, rest = url.partition("://")
    authority, tail = _split_authority(rest.partition("#")[0])
    bare = f"{scheme.lower()}://{authority.rpartition('@')[2]}{tail}"
    try:
        parts = urlsplit(bare)
        port = _PORTS.get(scheme.lower(), 0) if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port or not parts.hostname:
        raise CameraError(f"{redact_address(url)}: no host, or no possible port (1 to 65535), in this address")
    return SourceAddress(scheme.lower(), parts.hostname, port, tail)


def through(url: str, scheme: str, authority: str) -> str:
    """Return the URL, with its login, with another scheme, host and port."""
    own, tail = _split_authority(url.partition("://")[2])
    login, at, _ = own.rpartition("@")
    return f"{scheme}://{login}{at}{authority}{tail}"


NOT_UTF8 = "not valid UTF-8, or with a NUL, which OpenCV cannot take; rename it"


def is_utf8(location: str) -> bool:
    """Tell whether a location is UTF-8; OpenCV's Python binding crashes on others, which file names may be."""
    try:
        return b"\0" not in location.encode()
    except UnicodeEncodeError:
        return False


def add_password(location: str, password: str | None) -> str:
    """Put a password, percent-encoded, behind the user name of a URL; the result is for OpenCV only.

    Raises:
        ConfigError: there is a password, but no user name in the URL.
    """
    scheme, mark, rest = location.partition("://")
    if password is None or not mark:
        return location
    authority, tail = _split_authority(rest)
    login, _, host = authority.rpartition("@")
    user = login.partition(":")[0]
    if not user:
        raise ConfigError(
            f"{redact_address(location)}: a password, but no user name; write {scheme}://USER@{redact_address(host)}"
        )
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{tail}"


def _split_authority(rest: str) -> tuple[str, str]:
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return authority, rest[len(authority) :]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long or contains a NUL
        return False
