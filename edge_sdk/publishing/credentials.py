"""Credentials: whether this device's certificate and its private key can be used, and for how long.

Looks at files, and at no network. What they say of themselves is said in one line each, without their content.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.errors import UsageError
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.regular_file import read_regular

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

AHEAD = timedelta(days=30)
"""How long before the end of a certificate a warning begins."""

_OTHERS = 0o007  # a group may be meant, everybody never is


class ExpiredError(UsageError):
    """A certificate that was good once: the device may go on, and the broker will not take it."""


def check_credentials(settings: MqttSettings, now: datetime | None = None) -> list[str]:
    """Look at this device's certificate and key.

    Args:
        settings: which files.
        now: with a time zone; the clock's by default.

    Returns:
        One line for each thing that is doubtful.

    Raises:
        UsageError: a file cannot be read, is not PEM, or the key is not the certificate's.
        ExpiredError: all is well but that the certificate has expired.
    """
    if settings.cert_file is None:
        return []
    now = now or datetime.now(timezone.utc)
    certificate = _certificate(settings.cert_file)
    key_file = settings.key_file or settings.cert_file
    _check_key(certificate, key_file, settings)
    if certificate.not_valid_after_utc <= now:
        ends = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        raise ExpiredError(f"{settings.cert_file}: this device's certificate expired on {ends}; renew it")
    doubts = [_early(settings.cert_file, certificate, now), own_expiry(settings, now), _openness(key_file)]
    return [doubt for doubt in doubts if doubt]


def own_expiry(settings: MqttSettings, now: datetime) -> str:
    """A warning where this device's certificate ends soon; empty where it does not, or there is none.

    Args:
        settings: which file; it is read again.
        now: with a time zone.
    """
    if settings.cert_file is None:
        return ""
    try:
        ends = _certificate(settings.cert_file).not_valid_after_utc
    except UsageError as cause:
        return str(cause)
    return expiry_line(f"{settings.cert_file}: this device's certificate", ends, now, "renew it in its place")


def expiry_line(what: str, ends: datetime, now: datetime, advice: str) -> str:
    """A warning where a certificate ends within `AHEAD`; otherwise empty.

    Args:
        what: the certificate, for people.
        ends: when it does, with a time zone.
        now: with a time zone.
        advice: what to do.
    """
    left = ends - now
    if left > AHEAD:
        return ""
    if left <= timedelta(0):
        return f"{what} expired on {ends:%Y-%m-%d}; {advice}"
    days = left.days
    return f"{what} ends on {ends:%Y-%m-%d}, in {days} {'day' if days == 1 else 'days'}; {advice}"


def valid_until(settings: MqttSettings) -> datetime | None:
    """When this device's certificate ends; None where there is none that can be read."""
    try:
        return _certificate(settings.cert_file).not_valid_after_utc if settings.cert_file is not None else None
    except UsageError:
        return None


def _certificate(path: Path) -> Certificate:
    from cryptography import x509  # only who has such a certificate pays for it

    data = _read(path, "this device's certificate")
    try:
        return x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        raise UsageError(f"{path}: not a PEM file of this device's certificate") from None


def _check_key(certificate: Certificate, path: Path, settings: MqttSettings) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    data = _read(path, "the private key")
    is_encrypted = b"ENCRYPTED" in data
    if is_encrypted and settings.key_password is None:
        raise UsageError(
            f"{path}: the private key is encrypted; name a file with its password: key_password_file "
            "(--mqtt-key-password-file)"
        )
    word = settings.key_password.reveal().encode() if is_encrypted and settings.key_password else None
    try:
        key = load_pem_private_key(data, word)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # not chained: nobody knows what it repeats
        why = "its password is wrong, or it is damaged" if is_encrypted else "not a PEM file of a private key"
        raise UsageError(f"{path}: {why}") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise UsageError(f"{path}: not the private key of the certificate in {settings.cert_file}")


def _early(path: Path, certificate: Certificate, now: datetime) -> str:
    begins = certificate.not_valid_before_utc
    if begins <= now:
        return ""
    return f"{path}: this device's certificate is valid from {begins:%Y-%m-%d %H:%M} UTC on; is the clock right?"


def _openness(path: Path) -> str:
    mode = path.stat().st_mode & 0o777
    return f"{path}: every user can read the private key (mode {mode:04o}); chmod 600 {path}" if mode & _OTHERS else ""


def _read(path: Path, what: str) -> bytes:
    try:
        return read_regular(path)
    except OSError as cause:
        raise UsageError(f"{path}: {what} cannot be read: {cause.strerror}") from None
