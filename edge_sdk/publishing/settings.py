"""MqttSettings: which broker, who we are there, and how each kind of message is sent.

`MqttSettings` checks the ranges, and what goes with what; `MqttSettings.parse` reads the broker's URL. The files that
it names are read by `tls`. At the end stand the terms that a connection and its session share: their modules cannot
import each other, because `client` loads paho.
"""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from msgspec import Meta

from edge_sdk.core.errors import UsageError
from edge_sdk.core.files import read_regular
from edge_sdk.messages.schema import EVENTS, MESSAGES, SNAPSHOTS, Channel, MessageKind, Topics, default_device

_log = logging.getLogger(__name__)
_EXPECTED = "expected mqtt[s]://[user@]host[:port] or ws[s]://[user@]host[:port][/path]"
_UNESCAPED = (
    "the URL goes on after the host, and has an @ there: in a user's name write / as %2F (the user SITE/DEVICE is "
    "SITE%2FDEVICE@), ? as %3F, # as %23, @ as %40"
)
_WEBSOCKET_PATH = "/mqtt"  # the path that most brokers use
_BARE_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?")
_PATH = re.compile(r"/[A-Za-z0-9._~/-]{0,200}")
_PASSWORD_LIMIT = 65535  # bytes, MQTT's own


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


class Secret:
    """A text that is not printed by accident; `place` says for people where it was found."""

    __slots__ = ("_text", "place")

    def __init__(self, text: str, place: str = "") -> None:
        self._text, self.place = text, place

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text


def read_password(path: Path, what: str = "the MQTT password", *, others: int = 0o077) -> Secret:
    """Read the first line of a file, or raise `UsageError`, which calls it `what`; warn of permissions in `others`."""
    try:
        line = read_regular(path).partition(b"\n")[0].rstrip(b"\r")
        mode = path.stat().st_mode & 0o777
    except OSError as cause:
        raise UsageError(f"{path}: {what} cannot be read: {cause.strerror}") from cause
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: {what} is not UTF-8") from None
    if not text or len(line) > _PASSWORD_LIMIT:
        raise UsageError(f"{path}: {what} has {len(line)} bytes, expected 1 to {_PASSWORD_LIMIT} in the first line")
    if mode & others:
        _log.warning(f"{path}: other users can read {what} (mode {mode:04o}); chmod 600 {path}")
    return Secret(text, str(path))


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a broker that a configuration file, the command line and a program share."""

    ca_file: (
        Annotated[Path, Meta(description="PEM file of the authorities to trust instead of the system's")] | None
    ) = None
    cert_file: (
        Annotated[Path, Meta(description="PEM file of this device's certificate, for a broker that wants one")] | None
    ) = None
    key_file: (
        Annotated[Path, Meta(description="PEM file of its private key, where cert_file does not hold it")] | None
    ) = None
    prefix: Annotated[str, Meta(description="first levels of every topic")] = "edge/v1"
    qos: Annotated[Literal[0, 1], Meta(description="of results; 1: acknowledged, perhaps twice")] = 0
    protocol: Annotated[Literal["5", "3.1.1"], Meta(description="version of MQTT")] = "5"


class MqttSettings(BrokerSettings, frozen=True, kw_only=True):
    """One broker, and how this device publishes there; a name or a number that cannot be raises `UsageError`."""

    host: str
    port: int
    tls: bool = False
    websocket_path: str | None = None  # where on an HTTP server MQTT is spoken; None for MQTT on a port of its own
    username: str | None = None
    password: Secret | None = None
    key_password: Secret | None = None
    site: str = "default"
    device: str = msgspec.field(default_factory=default_device)  # with the site it is unique at the broker
    expiry_s: int = 60  # of results, as `max_per_s`
    max_per_s: float | None = None
    events: Channel = EVENTS
    snapshots: Channel = SNAPSHOTS
    keepalive_s: int = 30  # silence after which the connection is probed; a dead one is noticed within twice that
    will_delay_s: int = 5  # how long the broker waits for us before it says that we are lost; MQTT 5 only

    def __post_init__(self) -> None:
        _ = self.topics, self.channels  # checks the names and the numbers
        if self.password is not None and not self.username:
            raise UsageError(f"there is an MQTT password but no user in the URL; {_EXPECTED}")
        given = (("CA", self.ca_file), ("certificate", self.cert_file), ("key", self.key_file))
        for what, file in given:
            if file is not None and not self.tls:
                raise UsageError(f"a {what} file is for mqtts:// and wss:// only; write one of them to encrypt")
        if self.cert_file is None and self.key_file is not None:
            raise UsageError("there is a private key but no certificate; give its file too (--mqtt-cert-file)")
        if self.cert_file is None and self.key_password is not None:
            raise UsageError("there is a private key's password but no certificate (--mqtt-cert-file)")

    @classmethod
    def parse(cls, url: str, **others: Any) -> MqttSettings:
        """Make settings from a URL without a password, as `_EXPECTED` says, and what of the others is not None."""
        return cls(**_read_url(url), **{key: value for key, value in others.items() if value is not None})

    @property
    def channels(self) -> dict[MessageKind, Channel]:
        """The channels of a camera's messages, by kind."""
        results = Channel(qos=self.qos, expiry_s=self.expiry_s, max_per_s=self.max_per_s)
        return {"event": self.events, "result": results, "snapshot": self.snapshots}

    def channel(self, kind: MessageKind) -> Channel:
        """Return how messages of one kind travel; telemetry expires as results do."""
        if kind == "telemetry":
            return Channel(expiry_s=self.expiry_s)
        return self.channels.get(kind, MESSAGES[kind].channel)

    @property
    def topics(self) -> Topics:
        """The topics of this device."""
        return Topics(self.prefix, self.site, self.device)

    @property
    def login(self) -> str:
        """Who logs in, and with what, for people; nothing secret."""
        if not self.username:
            return "without a user" + (f", with the certificate in {self.cert_file}" if self.cert_file else "")
        if self.password is None:
            return f"as {self.username!r} without a password"
        place = f" in {self.password.place}" if self.password.place else ""
        return f"as {self.username!r} with the password{place}"

    @property
    def client_id(self) -> str:
        """The client id: the same after every restart, so that the broker ends a connection that died unnoticed.

        With a random one the last will of the dead connection would come after the new one's birth, and stay. A name
        holds no slash, so two different devices never share an id.
        """
        return f"edge/{self.site}/{self.device}"

    @property
    def address(self) -> str:
        """The host and port, and the path of a websocket, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{self.websocket_path or ''}"


def _read_url(url: str) -> dict[str, Any]:
    """Read a URL; no error repeats it, because it may contain a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"--mqtt: the URL cannot be read; {_EXPECTED}") from None
    if parts.scheme not in _SCHEMES or not url.isprintable() or " " in url:
        hint = f"; did you mean mqtt://{url}?" if _BARE_HOST.fullmatch(url) else ""
        hint = hint or ("" if "://" in url else "; a bare host needs mqtt:// before it")
        raise UsageError(f"--mqtt: the URL cannot be read; {_EXPECTED}{hint}")
    if parts.password is not None:
        raise UsageError(
            "--mqtt: the URL holds a password, which others on this machine can see; "
            "leave it out, and give the name of a file that holds it with --mqtt-password-file"
        )
    scheme = _SCHEMES[parts.scheme]
    # A password with / ? or # in it ends up here.
    if "@" in parts.path + parts.query + parts.fragment:
        raise UsageError(f"--mqtt: {_UNESCAPED}; {_EXPECTED}")
    if parts.query or parts.fragment or (parts.path not in ("", "/") and not scheme.websockets):
        raise UsageError(f"--mqtt: the URL goes on after the host, a topic is no part of it; {_EXPECTED}")
    if scheme.websockets and parts.path and not _PATH.fullmatch(parts.path):
        raise UsageError(f"--mqtt: the URL's path has characters that it may not have; {_EXPECTED}")
    return {
        "host": _host(parts),
        "port": _port(parts) or scheme.port,
        "tls": scheme.tls,
        "websocket_path": (parts.path or _WEBSOCKET_PATH) if scheme.websockets else None,
        "username": unquote(parts.username) if parts.username else None,
    }


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    with contextlib.suppress(UnicodeError):
        if host.encode("idna"):  # the socket does the same, and its UnicodeError would come in another thread
            return host
    raise UsageError(f"--mqtt: the URL names no host that could exist; {_EXPECTED}")


def _port(parts: SplitResult) -> int | None:
    with contextlib.suppress(ValueError):
        if parts.port != 0:
            return parts.port
    raise UsageError(f"--mqtt: the URL's port is not a number from 1 to 65535; {_EXPECTED}")


Phase: TypeAlias = Literal["opening", "up", "refused", "lost"]

UNSENT_BYTES = 16384
"""Limit of the unsent bytes in the kernel's send buffer; bytes on their way in the network are not counted."""

NOT_AUTHORIZED, QUOTA_EXCEEDED = 0x87, 0x97
"""MQTT's reason codes."""


class PublishOutcome(NamedTuple):
    """The outcome of one message: its number, the broker's complaint, which may be empty, and MQTT's reason code."""

    number: int
    complaint: str = ""
    code: int = 0
