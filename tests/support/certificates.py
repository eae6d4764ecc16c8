"""Authorities and certificates, made for one test."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

HERE = ("localhost", "127.0.0.1")
"""Names of a broker in a test."""


class Issued(NamedTuple):
    cert_file: Path
    key_file: Path


class Authority:
    def __init__(self, folder: Path, name: str = "ca", *, days: tuple[float, float] = (-100, 1000)) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"authority {name}")
        self.file = folder / f"{name}.pem"
        builder = _builder(self._name, self._name, self._key, days)
        self._write(self.file, builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True))

    def issue(
        self, name: str, names: tuple[str, ...] = (), *, days: tuple[float, float] = (-1, 365),
        password: str | None = None,
    ) -> Issued:  # fmt: skip
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key, days)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
        stem = name.replace("/", "-")
        issued = Issued(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        self._write(issued.cert_file, builder)
        how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        issued.key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
        )
        issued.key_file.chmod(0o600)
        return issued

    def _write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        path.write_bytes(builder.sign(self._key, SHA256()).public_bytes(serialization.Encoding.PEM))


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: tuple[float, float]
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1], minutes=1))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
