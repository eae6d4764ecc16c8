"""A real Mosquitto that speaks TLS, websockets or both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.device.certificates import HERE, Authority, Issued
from tests.system.broker import Broker, free_port


class TlsBroker(Broker):
    """One with a second, encrypted listener; the plain one is for whoever looks on.

    Args:
        folder: for its files; must exist.
        broker_certificate: what it shows; by default a good one, of an authority of its own.
        clients_of: the authority whose clients alone may connect; None: they need no certificate.
        more: lines of mosquitto.conf for this listener.
        users: passwords by name.
        acl: lines of an ACL file.
        config: lines of mosquitto.conf before the listener.
    """

    def __init__(
        self,
        folder: Path,
        *,
        broker_certificate: Issued | None = None,
        clients_of: Authority | None = None,
        more: Sequence[str] = (),
        users: dict[str, str] | None = None,
        acl: Sequence[str] | None = None,
        config: Sequence[str] = (),
    ) -> None:
        self.authority = Authority(folder, "broker-ca")
        self.tls_port = free_port()
        shown = broker_certificate or self.authority.issue("broker", HERE)
        lines = [f"listener {self.tls_port} 127.0.0.1", f"certfile {shown.cert_file}", f"keyfile {shown.key_file}"]
        if clients_of is not None:
            lines += [f"cafile {clients_of.file}", "require_certificate true"]
        super().__init__(folder, users=users, acl=acl, config=[*config, *lines, *more])

    @property
    def reach(self) -> dict[str, object]:
        """Settings with which a device reaches it, encrypted."""
        return {"host": "localhost", "port": self.tls_port, "tls": True, "ca_file": self.authority.file}
