"""BrokerUrl: where a broker is, as one URL says it.

Owns the reading of it. No error here repeats the URL: whoever puts a password there writes it into nobody's log.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from edge_sdk.errors import UsageError

EXPECTED = "expected mqtt[s]://[user@]host[:port] or ws[s]://[user@]host[:port][/path]"
"""For people."""

_UNESCAPED = (
    "the URL goes on after the host, and has an @ there: in a user's name write / as %2F (the user SITE/DEVICE is "
    "SITE%2FDEVICE@), ? as %3F, # as %23, @ as %40"
)
_WEBSOCKET_PATH = "/mqtt"  # where most brokers have it
_PATH = re.compile(r"/[A-Za-z0-9._~/-]{0,200}")


class _Scheme(NamedTuple):
    port: int
    tls: bool
    websockets: bool


_SCHEMES = {
    "mqtt": _Scheme(1883, tls=False, websockets=False),
    "mqtts": _Scheme(8883, tls=True, websockets=False),
    "ws": _Scheme(80, tls=False, websockets=True),
    "wss": _Scheme(443, tls=True, websockets=True),
}


class BrokerUrl(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says.

    Attributes:
        host: name or address.
        port: TCP port.
        tls: whether the connection is encrypted.
        websocket_path: where on an HTTP server MQTT is spoken over a websocket; None for MQTT on a port of its own.
        username: None for an anonymous connection.
    """

    host: str
    port: int
    tls: bool
    websocket_path: str | None
    username: str | None

    @classmethod
    def parse(cls, url: str) -> BrokerUrl:
        """Read `mqtt://`, `mqtts://`, `ws://` or `wss://`.

        Raises:
            UsageError: not such a URL, or with a password inside.
        """
        parts = _split(url)
        scheme = _SCHEMES[parts.scheme]
        return cls(
            host=_host(parts),
            port=_port(parts) or scheme.port,
            tls=scheme.tls,
            websocket_path=_path(parts) if scheme.websockets else None,
            username=unquote(parts.username) if parts.username else None,
        )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"--mqtt: the URL cannot be read; {EXPECTED}") from None
    if parts.scheme not in _SCHEMES or not url.isprintable() or " " in url:
        raise UsageError(f"--mqtt: the URL cannot be read; {EXPECTED}")
    if parts.password is not None:
        raise UsageError(
            "--mqtt: the URL holds a password, which others on this machine can see; "
            "leave it out, and give the name of a file that holds it with --mqtt-password-file"
        )
    # A password with / ? or # in it ends up here: nothing of the URL is repeated.
    rest = parts.path + parts.query + parts.fragment
    if "@" in rest:
        raise UsageError(f"--mqtt: {_UNESCAPED}; {EXPECTED}")
    if parts.query or parts.fragment or (parts.path not in ("", "/") and not _SCHEMES[parts.scheme].websockets):
        raise UsageError(f"--mqtt: the URL goes on after the host, a topic is no part of it; {EXPECTED}")
    return parts


def _path(parts: SplitResult) -> str:
    path = parts.path or _WEBSOCKET_PATH
    if not _PATH.fullmatch(path):
        raise UsageError(f"--mqtt: the URL's path has characters that it may not have; {EXPECTED}")
    return path


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    try:
        host.encode("idna")  # the socket does the same, and its UnicodeError would come in another thread
    except UnicodeError:
        host = ""
    if not host:
        raise UsageError(f"--mqtt: the URL names no host that could exist; {EXPECTED}")
    return host


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(f"--mqtt: the URL's port is not a number from 1 to 65535; {EXPECTED}")
    return port
