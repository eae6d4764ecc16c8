"""TLS of a connection to a broker: version 1.2 or later; the broker's certificate and name are always verified.

`broker_tls` makes the TLS context of one connection; verification cannot be turned off. Files are read for each
connection, so that renewed ones need no restart. `check_credentials` and `check_authorities` check the files without a
connection, and warn of certificates that expire soon. `explain` says in words why one side does not trust the other.
"""

from __future__ import annotations

import contextlib
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edge_sdk.core.errors import UsageError, os_error_text
from edge_sdk.core.files import LIST_BYTES, SMALL_BYTES, read_regular
from edge_sdk.publishing.settings import MqttSettings

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

UNUSABLE = "a file of this device cannot be used"
WANTS_OURS = "the broker wants a certificate of this device; give cert_file and key_file (--mqtt-cert-file)"
_NO_TLS = "what answers there speaks no TLS"
_OLD_TLS = "the broker speaks no TLS of 1.2 or newer"
_OURS = ("the broker's certificate", UNUSABLE, _NO_TLS, _OLD_TLS)  # reasons for which this device refuses the broker

_RENEW = "renew it in its place"
_AHEAD = timedelta(days=30)  # how long before the end of a certificate a warning begins
_OTHERS = 0o007  # permissions for other users; those of a group may be intended

# OpenSSL's numbers of what verifying a certificate found (X509_V_ERR_... in x509_vfy.h), and its reasons.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})
_OTHER_NAME = frozenset({62, 64})
_OLD_TLS_REASONS = frozenset({"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"})
_NO_TLS_REASONS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})
_MISMATCHES = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"})
_WANTS_OURS_REASONS = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"})


class ExpiredError(UsageError):
    """A valid certificate that has expired: the device may go on, but the broker will refuse it."""


class BrokerSocket(ssl.SSLSocket):
    """A socket that remembers why reading failed, because paho does not report it."""

    trouble: ssl.SSLError | None = None  # the broker's TLS alert, if it sent one

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read; see `ssl.SSLSocket.recv`."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as cause:
            self.trouble = cause
            raise


class BrokerTls(ssl.SSLContext):
    """The TLS context of one connection; it keeps the socket, which paho does not close if the handshake fails."""

    connection: BrokerSocket | None = None
    sslsocket_class = BrokerSocket

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Wrap a socket; see `ssl.SSLContext.wrap_socket`."""
        wrapped = super().wrap_socket(*args, **options)
        self.connection = wrapped if isinstance(wrapped, BrokerSocket) else None
        return wrapped

    @property
    def is_pending(self) -> bool:
        """Whether decrypted data waits, which poll does not see."""
        connection = self.connection
        return connection is not None and connection.fileno() >= 0 and connection.pending() > 0

    def broker_expiry(self) -> datetime | None:
        """Return when the broker's certificate expires; None before the handshake."""
        certificate = self.connection.getpeercert() if self.connection is not None else None
        ends = (certificate or {}).get("notAfter")
        return _moment(ends) if isinstance(ends, str) else None


def broker_tls(settings: MqttSettings) -> BrokerTls | None:
    """Return the TLS context of one connection; None where the settings ask for no encryption.

    Raises:
        UsageError: a file cannot be read, or its content is not valid.
    """
    if not settings.tls:
        return None
    context = BrokerTls(ssl.PROTOCOL_TLS_CLIENT)  # it verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_authorities(context, settings.ca_file)
    if settings.cert_file is not None:
        _load_own(context, settings, settings.cert_file)
    return context


def _load_authorities(context: ssl.SSLContext, file: Path | None) -> None:
    if file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    _read(file, "the authorities' certificates", LIST_BYTES)
    try:
        context.load_verify_locations(cafile=str(file))
    except (OSError, ValueError) as cause:
        raise UsageError(f"{file}: not a PEM file of CA certificates: {cause}") from cause


def _load_own(context: ssl.SSLContext, settings: MqttSettings, cert_file: Path) -> Certificate:
    """Load this device's certificate and private key, and return the certificate."""
    certificate, key_file = _certificate(cert_file), settings.key_file or cert_file
    is_encrypted = b"ENCRYPTED" in _read(key_file, "the private key")
    if is_encrypted and settings.key_password is None:
        raise UsageError(
            f"{key_file}: the private key is encrypted; name a file with its password: key_password_file "
            "(--mqtt-key-password-file)"
        )
    password = settings.key_password.reveal() if settings.key_password is not None else ""
    try:
        context.load_cert_chain(cert_file, key_file, password=lambda: password)  # else OpenSSL asks on the terminal
    except (OSError, ValueError) as cause:  # not chained, because its message may contain secrets
        if isinstance(cause, ssl.SSLError) and cause.reason in _MISMATCHES:
            raise UsageError(f"{key_file}: not the private key of the certificate in {cert_file}") from None
        why = "its password is wrong, or it is damaged" if is_encrypted else "not a PEM file of a private key"
        raise UsageError(f"{key_file}: {why}") from None
    return certificate


def _certificate(path: Path) -> Certificate:
    from cryptography import x509  # imported only where there is a certificate

    try:
        return x509.load_pem_x509_certificates(_read(path, "this device's certificate"))[0]
    except ValueError:
        raise UsageError(f"{path}: not a PEM file of this device's certificate") from None


def _read(path: Path, what: str, max_bytes: int = SMALL_BYTES) -> bytes:
    """Read a regular file, because OpenSSL would wait at a pipe and read a device for ever."""
    try:
        return read_regular(path, max_bytes)
    except OSError as cause:
        raise UsageError(f"{path}: {what} cannot be read: {os_error_text(cause)}") from cause


def check_credentials(settings: MqttSettings) -> list[str]:
    """Check this device's certificate and private key; return a line for each warning.

    Raises:
        UsageError: a file cannot be read, is not PEM, or the key is not the certificate's.
        ExpiredError: the certificate has expired, but is valid otherwise.
    """
    file, now = settings.cert_file, datetime.now(timezone.utc)
    if file is None:
        return []
    certificate = _load_own(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings, file)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if ends <= now:
        raise ExpiredError(f"{file}: this device's certificate expired on {ends:%Y-%m-%d}; renew it")
    doubts = [expiry_line(f"{file}: this device's certificate", ends, _RENEW)]
    if begins > now:
        moment = f"{begins:%Y-%m-%d %H:%M} UTC"
        doubts.append(f"{file}: this device's certificate is valid from {moment} on; is the clock right?")
    key_file = settings.key_file or file
    mode = key_file.stat().st_mode & 0o777
    if mode & _OTHERS:
        doubts.append(f"{key_file}: every user can read the private key (mode {mode:04o}); chmod 600 {key_file}")
    return [doubt for doubt in doubts if doubt]


def own_expiry(settings: MqttSettings) -> str:
    """Read this device's certificate again; return a warning if it expires soon or cannot be read, else ""."""
    try:
        ends = None if settings.cert_file is None else _certificate(settings.cert_file).not_valid_after_utc
    except UsageError as cause:
        return str(cause)
    return expiry_line(f"{settings.cert_file}: this device's certificate", ends, _RENEW)


def valid_until(settings: MqttSettings) -> datetime | None:
    """Return when this device's certificate expires; None where none can be read."""
    with contextlib.suppress(UsageError):
        return _certificate(settings.cert_file).not_valid_after_utc if settings.cert_file is not None else None
    return None


def expiry_line(what: str, ends: datetime | None, advice: str, now: datetime | None = None) -> str:
    """Return a warning with advice if a certificate expires within 30 days, else an empty line."""
    if ends is None or (left := ends - (now or datetime.now(timezone.utc))) > _AHEAD:
        return ""
    if left <= timedelta(0):
        return f"{what} expired on {ends:%Y-%m-%d}; {advice}"
    return f"{what} ends on {ends:%Y-%m-%d}, in {left.days} {'day' if left.days == 1 else 'days'}; {advice}"


def check_authorities(settings: MqttSettings) -> str:
    """Read the file of authorities again; return a warning if one expires soon, else "".

    Raises:
        UsageError: the file does not hold authorities.
    """
    return "; ".join(filter(None, (_authority_line(settings, *one) for one in _authorities(settings))))


def _authorities(settings: MqttSettings) -> list[tuple[str, datetime]]:
    """Return the name and expiry of each authority in the file; of one name, only the latest."""
    if settings.ca_file is None:
        return []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_authorities(context, settings.ca_file)
    ends: dict[str, datetime] = {}
    for certificate in context.get_ca_certs():
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate["subject"])
        name = ", ".join(value for part in subject for _, value in part)
        end = _moment(str(certificate["notAfter"]))
        ends[name] = max(end, ends.get(name, end))
    return list(ends.items())


def _authority_line(settings: MqttSettings, name: str, ends: datetime) -> str:
    advice = "write its successor into this file, beside it, on each device"
    return expiry_line(f"{settings.ca_file}: the authority {name}", ends, advice)


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), timezone.utc)


def trust_refusal(detail: str) -> str:
    """Return in words which side refuses the other, by the detail of a refused connection."""
    return f"not connected: {detail}" if detail.startswith(_OURS) else f"refused us ({detail})"


def explain(error: ssl.SSLError, settings: MqttSettings) -> str:
    """Return for people why TLS failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_distrust(error, settings)
    reason = error.reason or str(error)
    if reason in _OLD_TLS_REASONS:
        return f"{_OLD_TLS}; update the broker, because older versions are not allowed"
    if reason in _NO_TLS_REASONS:
        return f"{_NO_TLS}; is it the right port, or mqtt:// (ws://) without the s?"
    if reason in _WANTS_OURS_REASONS and settings.cert_file is None:
        return f"{WANTS_OURS} ({reason})"
    if "_ALERT_" in reason and settings.cert_file is not None:  # the other side complained
        return f"the broker does not take the certificate in {settings.cert_file} ({reason}); does it trust its signer?"
    return f"no encrypted connection: {reason}"


def _explain_distrust(error: ssl.SSLCertVerificationError, settings: MqttSettings) -> str:
    code, message = error.verify_code, error.verify_message.rstrip(".")
    now = datetime.now(timezone.utc)
    if code == _EXPIRED:
        authorities = _authorities(settings)
        lines = [_authority_line(settings, name, ends) for name, ends in authorities if ends <= now]
        if len(lines) < len(authorities) or not authorities:
            lines.append("the broker's certificate, or its authority's, has expired; renew it at the broker")
        return "; or ".join(lines)
    if code == _NOT_YET_VALID:
        return (
            f"the broker's certificate is not valid yet; is this device's clock right? It is {now:%Y-%m-%d %H:%M} UTC"
        )
    if code in _OTHER_NAME:
        return f"the broker's certificate is of another name: {message}; write the name that it is for into the URL"
    if code in _UNKNOWN_AUTHORITY:
        known = f"the authorities in {settings.ca_file}" if settings.ca_file else "the system's authorities"
        untrusted = f"the broker's certificate is not trusted ({message})"
        return f"{untrusted}: none of {known} signed it; give its own, ca_file (--mqtt-ca-file)"
    return f"the broker's certificate is not trusted: {message}"
