"""MqttSettings: which broker, who we are there, and how results are sent.

Owns the reading of a broker's URL and of a password file. A secret is in no repr, no message and no log; for that
reason no error here repeats the URL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from edge_sdk.errors import UsageError
from edge_sdk.publishing.topics import Topics, default_device

_EXPECTED = "expected mqtt://[user@]host[:port] or mqtts://[user@]host[:port]"
_PASSWORD_LIMIT = 65535  # bytes, MQTT's own
_DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}


class Secret:
    """A text that does not show itself by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._text


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, and one camera of this device there.

    Attributes:
        host: name or address.
        port: TCP port.
        tls: encrypt, verify the broker's certificate and its host name.
        username: None for an anonymous connection.
        password: only with a user name.
        ca_file: PEM file of the authorities to trust instead of the system's.
        prefix: first levels of every topic.
        site: one level of the topic: where the device stands.
        device: one level of the topic: its name; with the site it is unique at the broker.
        qos: of results. 0: the broker may miss some when a connection breaks. 1: acknowledged, perhaps twice.
        expiry_s: seconds after which a broker drops a result that it could not deliver.
        keepalive_s: seconds of silence after which the connection is probed; a dead one is noticed within twice that.
        protocol: MQTT version; 3.1.1 for a broker that knows no other, without properties and reasons.

    Raises:
        UsageError: a name cannot be part of a topic, or a number is outside its range.
    """

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: Secret | None = None
    ca_file: Path | None = None
    prefix: str = "edge/v1"
    site: str = "default"
    device: str = msgspec.field(default_factory=default_device)
    qos: Literal[0, 1] = 0
    expiry_s: int = 60
    keepalive_s: int = 30
    protocol: Literal["5", "3.1.1"] = "5"

    def __post_init__(self) -> None:
        _ = self.topics  # it checks the names
        _check_range("--mqtt-qos", self.qos, 0, 1)
        _check_range("the expiry of results in seconds", self.expiry_s, 1, 2**32 - 1)
        _check_range("the keep-alive in seconds", self.keepalive_s, 1, 65535)
        if self.password is not None and not self.username:
            raise UsageError(f"there is an MQTT password but no user in the URL; {_EXPECTED}")

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        password: Secret | None = None,
        ca_file: Path | None = None,
        prefix: str = "edge/v1",
        site: str = "default",
        device: str | None = None,
        qos: Literal[0, 1] = 0,
        protocol: Literal["5", "3.1.1"] = "5",
    ) -> MqttSettings:
        """Settings from `mqtt://[user@]host[:port]` or `mqtts://...`; the attributes say what the rest is.

        Raises:
            UsageError: not such a URL, with a password inside, or one of the names or numbers is impossible.
        """
        parts = _split(url)
        if ca_file is not None and parts.scheme != "mqtts":
            raise UsageError("a CA file is for mqtts:// only; write mqtts:// to encrypt the connection")
        return cls(
            host=_host(parts),
            port=_port(parts),
            tls=parts.scheme == "mqtts",
            username=unquote(parts.username) if parts.username else None,
            password=password,
            ca_file=ca_file,
            prefix=prefix,
            site=site,
            device=default_device() if device is None else device,
            qos=qos,
            protocol=protocol,
        )

    @property
    def topics(self) -> Topics:
        """This device's topics."""
        return Topics(self.prefix, self.site, self.device)

    @property
    def client_id(self) -> str:
        """The same after every restart, so that the broker ends a connection that died unnoticed.

        With a random one the last will of the dead connection would come after the new one's birth, and stay. A name
        holds no slash, so two different devices never share an id.
        """
        return f"edge/{self.site}/{self.device}"

    @property
    def address(self) -> str:
        """host:port, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_password(path: Path, what: str = "the MQTT password") -> Secret:
    """The first line of a file.

    Args:
        path: the file.
        what: what to call its content in an error.

    Raises:
        UsageError: the file cannot be read, or its first line is no password.
    """
    try:
        with path.open("rb") as file:
            line = file.readline(_PASSWORD_LIMIT + 2).rstrip(b"\r\n")
    except OSError as cause:
        raise UsageError(f"{path}: {what} cannot be read: {cause.strerror}") from cause
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: {what} is not UTF-8") from None
    if not text or len(line) > _PASSWORD_LIMIT:
        raise UsageError(f"{path}: {what} has {len(line)} bytes, expected 1 to {_PASSWORD_LIMIT} in the first line")
    return Secret(text)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"--mqtt: the URL cannot be read; {_EXPECTED}") from None
    if parts.scheme not in _DEFAULT_PORTS or not url.isprintable() or " " in url:
        raise UsageError(f"--mqtt: the URL cannot be read; {_EXPECTED}")
    if parts.password is not None:
        raise UsageError(
            "--mqtt: the URL holds a password, which others on this machine can see; "
            "leave it out, and give the name of a file that holds it with --mqtt-password-file"
        )
    # A password with / ? or # in it ends up here: nothing of the URL is repeated.
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UsageError(f"--mqtt: the URL goes on after the host, a topic is no part of it; {_EXPECTED}")
    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    try:
        host.encode("idna")  # the socket does the same, and its UnicodeError would come in another thread
    except UnicodeError:
        host = ""
    if not host:
        raise UsageError(f"--mqtt: the URL names no host that could exist; {_EXPECTED}")
    return host


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(f"--mqtt: the URL's port is not a number from 1 to 65535; {_EXPECTED}")
    return port or _DEFAULT_PORTS[parts.scheme]


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} is {value}, expected {low} to {high}")
