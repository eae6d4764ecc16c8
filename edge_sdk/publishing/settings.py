"""MqttSettings: which broker, who we are there, and how results are sent.

Owns their ranges, and what goes with what. Files that are named here are looked at by `credentials`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from edge_sdk.errors import UsageError
from edge_sdk.publishing.broker_url import EXPECTED, BrokerUrl
from edge_sdk.publishing.channels import EVENTS, SNAPSHOTS, Channel
from edge_sdk.publishing.outbox import CameraKind
from edge_sdk.publishing.secret import Secret
from edge_sdk.publishing.topics import Topics, default_device


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, and how this device publishes there.

    Attributes:
        host: name or address.
        port: TCP port.
        tls: encrypt, verify the broker's certificate and its host name.
        websocket_path: where on an HTTP server MQTT is spoken over a websocket; None for MQTT on a port of its own.
        username: None for an anonymous connection.
        password: only with a user name.
        ca_file: PEM file of the authorities to trust instead of the system's.
        cert_file: PEM file of this device's own certificate, and of those between it and the broker's authority.
        key_file: PEM file of its private key; None where it stands in `cert_file`.
        key_password: of an encrypted private key.
        prefix: first levels of every topic.
        site: one level of the topic: where the device stands.
        device: one level of the topic: its name; with the site it is unique at the broker.
        qos: of results. 0: the broker may miss some when a connection breaks. 1: acknowledged, perhaps twice.
        expiry_s: seconds after which a broker drops a result that it could not deliver.
        max_per_s: results a second of one camera; of what is more the newest is kept. None: no limit.
        events: how events travel; acknowledged (QoS 1), for none may be lost.
        snapshots: how pictures travel.
        keepalive_s: seconds of silence after which the connection is probed; a dead one is noticed within twice that.
        will_delay_s: seconds that the broker waits for us to come back before it says that we are lost; MQTT 5 only.
        protocol: MQTT version. A broker that knows no 5 is spoken to in 3.1.1, without properties and reasons.

    Raises:
        UsageError: a name cannot be part of a topic, or a number is outside its range.
    """

    host: str
    port: int
    tls: bool = False
    websocket_path: str | None = None
    username: str | None = None
    password: Secret | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: Secret | None = None
    prefix: str = "edge/v1"
    site: str = "default"
    device: str = msgspec.field(default_factory=default_device)
    qos: Literal[0, 1] = 0
    expiry_s: int = 60
    max_per_s: float | None = None
    events: Channel = EVENTS
    snapshots: Channel = SNAPSHOTS
    keepalive_s: int = 30
    will_delay_s: int = 5
    protocol: Literal["5", "3.1.1"] = "5"

    def __post_init__(self) -> None:
        _ = self.topics  # it checks the names
        _check_range("--mqtt-qos", self.qos, 0, 1)
        _ = self.channels  # they check the other numbers
        _check_range("the QoS of events", self.events.qos, 1, 1)
        _check_range("the keep-alive in seconds", self.keepalive_s, 1, 65535)
        _check_range("the delay of the last will in seconds", self.will_delay_s, 0, 3600)
        if self.password is not None and not self.username:
            raise UsageError(f"there is an MQTT password but no user in the URL; {EXPECTED}")
        self._check_files()

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        password: Secret | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        key_password: Secret | None = None,
        prefix: str = "edge/v1",
        site: str = "default",
        device: str | None = None,
        qos: Literal[0, 1] = 0,
        protocol: Literal["5", "3.1.1"] = "5",
    ) -> MqttSettings:
        """Settings from a URL as `BrokerUrl` reads it; the attributes say what the rest is.

        Raises:
            UsageError: not such a URL, with a password inside, or one of the names or numbers is impossible.
        """
        return cls(
            **msgspec.structs.asdict(BrokerUrl.parse(url)),
            password=password,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            key_password=key_password,
            prefix=prefix,
            site=site,
            device=default_device() if device is None else device,
            qos=qos,
            protocol=protocol,
        )

    def _check_files(self) -> None:
        """Whether what is given of TLS is of use."""
        given = (("CA", self.ca_file), ("certificate", self.cert_file), ("key", self.key_file))
        for what, file in given:
            if file is not None and not self.tls:
                raise UsageError(f"a {what} file is for mqtts:// and wss:// only; write one of them to encrypt")
        if self.cert_file is None and self.key_file is not None:
            raise UsageError("there is a private key but no certificate; give its file too (--mqtt-cert-file)")
        if self.cert_file is None and self.key_password is not None:
            raise UsageError("there is a private key's password but no certificate (--mqtt-cert-file)")

    @property
    def channels(self) -> dict[CameraKind, Channel]:
        """How what is of a camera travels, by kind."""
        results = Channel(qos=self.qos, expiry_s=self.expiry_s, max_per_s=self.max_per_s)
        return {"event": self.events, "result": results, "snapshot": self.snapshots}

    @property
    def topics(self) -> Topics:
        """This device's topics."""
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
        """The same after every restart, so that the broker ends a connection that died unnoticed.

        With a random one the last will of the dead connection would come after the new one's birth, and stay. A name
        holds no slash, so two different devices never share an id.
        """
        return f"edge/{self.site}/{self.device}"

    @property
    def address(self) -> str:
        """host:port, and the path of a websocket, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{self.websocket_path or ''}"


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} is {value}, expected {low} to {high}")
