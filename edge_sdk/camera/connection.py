"""A connection to a network camera: TCP, and TLS whose certificate is verified before a byte is sent through it.

Most IP cameras sign their certificate themselves. So a certificate is trusted in one of three ways: by its SHA-256
fingerprint (`tls_fingerprint`), by authorities and the host's name (`tls_ca_file`, or the system's), or not at all
(`tls_verify = false`).
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from edge_sdk.camera.trouble import UntrustedError, silence, words_of
from edge_sdk.errors import CameraError, UsageError
from edge_sdk.location import Address
from edge_sdk.regular_file import LIST_BYTES, read_regular
from edge_sdk.source_options import SourceOptions, bare_fingerprint

T = TypeVar("T")

_DATES = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED of OpenSSL's x509_vfy.h
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})
_OLD_TLS = frozenset({"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"})


def connect(address: Address, options: SourceOptions) -> socket.socket:
    """Connect to a camera and, for rtsps and https, verify its certificate.

    Args:
        address: where it is.
        options: the time-out of an opening, and how the certificate is verified.

    Returns:
        A socket that does not block; of TLS a `ssl.SSLSocket` whose handshake is done.

    Raises:
        CameraError: it cannot be reached, or its certificate is not the right one; the message says why, and no more.
    """
    deadline_s = time.monotonic() + options.open_timeout_s
    try:
        connection = socket.create_connection((address.host, address.port), options.open_timeout_s)
    except (socket.gaierror, UnicodeError):
        raise CameraError("host unknown") from None
    except OSError as cause:
        raise CameraError(silence(options) if isinstance(cause, TimeoutError) else words_of(cause)) from cause
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return _encrypted(connection, address, options, deadline_s) if address.is_encrypted else connection
    except BaseException:
        connection.close()
        raise


def check_authorities(file: str) -> None:
    """Look at a file of authorities.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    try:
        _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), file)
    except CameraError as cause:
        raise UsageError(str(cause)) from cause


def finished(step: Callable[[], T], connection: socket.socket, deadline_s: float) -> T:
    """Do what a socket that does not block can do only later: send, or a part of a handshake.

    Raises:
        TimeoutError: it could not until `deadline_s`, monotonic seconds.
    """
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            awaited = select.POLLIN
        except (ssl.SSLWantWriteError, BlockingIOError):
            awaited = select.POLLOUT
        poll = select.poll()
        poll.register(connection, awaited)
        if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            raise TimeoutError


def _encrypted(connection: socket.socket, address: Address, options: SourceOptions, deadline_s: float) -> ssl.SSLSocket:
    context = _context(options)
    try:
        encrypted = context.wrap_socket(connection, server_hostname=address.name, do_handshake_on_connect=False)
        with contextlib.ExitStack() as stack:
            stack.callback(encrypted.close)  # which has taken the descriptor
            finished(encrypted.do_handshake, encrypted, deadline_s)
            _compare_fingerprint(encrypted, options)
            stack.pop_all()
            return encrypted
    except ssl.SSLCertVerificationError as cause:
        raise UntrustedError(_mistrust(cause, address, options)) from cause
    except ssl.SSLError as cause:
        raise UntrustedError(_no_tls(cause, address.scheme)) from cause
    except TimeoutError:
        raise CameraError(silence(options)) from None
    except ValueError:  # a name that no certificate can have
        raise CameraError("host unknown") from None
    except OSError as cause:
        raise CameraError(f"it ends the TLS handshake: {words_of(cause)}") from cause


def _context(options: SourceOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.tls_fingerprint is not None or not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_ciphers("DEFAULT@SECLEVEL=0")  # 1024 bits, as old cameras have, are more than none
    elif options.tls_ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, options.tls_ca_file)
    return context


def _load_authorities(context: ssl.SSLContext, file: str) -> None:
    try:
        read_regular(Path(file), LIST_BYTES)  # OpenSSL, which reads it again, would wait at a pipe
        context.load_verify_locations(cafile=file)
    except ssl.SSLError:
        raise UntrustedError(f"{file} (tls_ca_file) is no PEM file of CA certificates") from None
    except OSError as cause:
        raise UntrustedError(f"{file} (tls_ca_file) cannot be read: {cause.strerror}") from None


def _compare_fingerprint(encrypted: ssl.SSLSocket, options: SourceOptions) -> None:
    expected = options.tls_fingerprint
    shown = _fingerprint(encrypted)
    if expected is not None and bare_fingerprint(expected) != bare_fingerprint(shown):
        raise UntrustedError(
            f"its certificate is another one: SHA-256 fingerprint {shown}, expected tls_fingerprint {expected}; "
            "compare it at the camera, and give the new one if the certificate was renewed"
        )


def _fingerprint(encrypted: ssl.SSLSocket) -> str:
    digest = hashlib.sha256(encrypted.getpeercert(binary_form=True) or b"").hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def _mistrust(error: ssl.SSLCertVerificationError, address: Address, options: SourceOptions) -> str:
    now = f"; this device's clock says {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    why = error.verify_message.rstrip(".") + (now if error.verify_code in _DATES else "")
    return (
        f"its certificate is not trusted ({why}); {_shown(address, options)}give it as tls_fingerprint "
        "(--source-tls-fingerprint) if the camera itself shows the same one, or its authority as tls_ca_file"
    )


def _shown(address: Address, options: SourceOptions) -> str:
    """The fingerprint of a certificate that was refused: Python tells it only where nothing is verified."""
    blind = msgspec.structs.replace(options, tls_fingerprint=None, tls_ca_file=None, tls_verify=False)
    try:
        with contextlib.closing(connect(address, blind)) as connection:
            return f"its SHA-256 fingerprint is {_fingerprint(cast('ssl.SSLSocket', connection))}; "
    except CameraError:
        return ""


def _no_tls(error: ssl.SSLError, scheme: str) -> str:
    reason = error.reason or "it ends the handshake"
    if reason in _NO_TLS:
        return f"it speaks no TLS there; is it another port, or {scheme[:-1]}:// without the s?"
    if reason in _OLD_TLS:
        return "it speaks only a TLS older than 1.2, which is not spoken here; update it"
    return f"no encrypted connection: {reason}"
