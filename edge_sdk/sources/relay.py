"""A relay between FFmpeg and one network camera, so that FFmpeg itself connects only to this process.

FFmpeg verifies no certificate unless it is told to, sends the login of the first server to any server that a redirect
names, and allocates memory for any length that a server announces. Its connection therefore ends at this relay:

    FFmpeg -- RTSP or HTTP --> relay on the loopback interface -- TCP, or TLS verified by Python --> camera

Until FFmpeg plays an RTSP stream, or has the head of an HTTP answer, the relay reads the camera's answers: it follows
redirects only to the same server, and limits the length of answers. After that it passes bytes on unread. Over UDP the
pictures do not pass through the relay.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from edge_sdk.core.errors import CameraError, UsageError
from edge_sdk.core.files import LIST_BYTES, read_regular
from edge_sdk.sources.location import (
    SourceAddress,
    SourceOptions,
    UntrustedError,
    address_of,
    bare_fingerprint,
    redact_address,
)

_T = TypeVar("_T")

_DATES = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED of OpenSSL's x509_vfy.h
_REASONS = {
    errno.ECONNREFUSED: "connection refused",
    errno.EHOSTUNREACH: "no way to this host",
    errno.ENETUNREACH: "no network",
}


def reason_of(error: OSError, otherwise: str = "no connection") -> str:
    """Return in a few words why the system refused something; `otherwise` where the error does not tell."""
    return _REASONS.get(error.errno or 0) or (error.strerror or otherwise).lower()


def _no_answer(options: SourceOptions) -> str:
    return f"no answer within {options.open_timeout_s:g} s"


def connect(address: SourceAddress, options: SourceOptions) -> socket.socket:
    """Connect a non-blocking socket to a camera; for rtsps and https after its handshake, with a trusted certificate.

    Raises:
        CameraError: the camera cannot be reached, or its certificate is not trusted; the message is only the reason.
    """
    deadline_s = time.monotonic() + options.open_timeout_s
    try:
        connection = socket.create_connection((address.host, address.port), options.open_timeout_s)
    except (socket.gaierror, UnicodeError):
        raise CameraError("host unknown") from None
    except OSError as cause:
        raise CameraError(_no_answer(options) if isinstance(cause, TimeoutError) else reason_of(cause)) from cause
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return _encrypted(connection, address, options, deadline_s) if address.is_encrypted else connection
    except BaseException:
        connection.close()
        raise


def check_camera_authorities(file: Path) -> None:
    """Raise a UsageError where a file of certificate authorities cannot be read or holds none."""
    try:
        _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), file)
    except CameraError as cause:
        raise UsageError(str(cause)) from cause


def finished(step: Callable[[], _T], connection: socket.socket, deadline_s: float) -> _T:
    """Repeat a step of a non-blocking socket until it is done; raise a TimeoutError at `deadline_s` (monotonic)."""
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


def _encrypted(
    connection: socket.socket, address: SourceAddress, options: SourceOptions, deadline_s: float
) -> ssl.SSLSocket:
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
        raise CameraError(_no_answer(options)) from None
    except ValueError:  # a name that no certificate can have
        raise CameraError("host unknown") from None
    except OSError as cause:
        raise CameraError(f"it ends the TLS handshake: {reason_of(cause)}") from cause


def _context(options: SourceOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.tls_fingerprint is not None or not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_ciphers("DEFAULT@SECLEVEL=0")  # accepts the 1024-bit keys of old cameras
    elif options.tls_ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, options.tls_ca_file)
    return context


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        read_regular(file, LIST_BYTES)  # checks first: OpenSSL would block on a pipe
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


def _mistrust(error: ssl.SSLCertVerificationError, address: SourceAddress, options: SourceOptions) -> str:
    now = f"; this device's clock says {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    why = error.verify_message.rstrip(".") + (now if error.verify_code in _DATES else "")
    return (
        f"its certificate is not trusted ({why}); {_shown(address, options)}give it as tls_fingerprint "
        "(--source-tls-fingerprint) if the camera itself shows the same one, or its authority as tls_ca_file"
    )


def _shown(address: SourceAddress, options: SourceOptions) -> str:
    """Return the fingerprint of a certificate that was refused: Python tells it only where nothing is verified."""
    blind = msgspec.structs.replace(options, tls_fingerprint=None, tls_ca_file=None, tls_verify=False)
    try:
        with contextlib.closing(connect(address, blind)) as connection:
            return f"its SHA-256 fingerprint is {_fingerprint(cast('ssl.SSLSocket', connection))}; "
    except CameraError:
        return ""


def _no_tls(error: ssl.SSLError, scheme: str) -> str:
    reason = error.reason or "it ends the handshake"
    return f"it speaks no TLS of 1.2 or newer there ({reason}); is it another port, or {scheme[:-1]}:// without the s?"


_CHUNK = 1 << 16  # bytes
_LONGEST_HEAD = 1 << 16  # bytes of an answer's head; those of cameras have some hundred bytes
_LONGEST_BODY = 1 << 20  # bytes of an answer's body in RTSP; the description of a stream has a few thousand bytes
_MAX = 8  # connections at once; FFmpeg has one, and two while it seeks in a file
_MAX_REDIRECTS = 8  # FFmpeg's limit for HTTP; for RTSP it has none
_MAX_SHOWN = 200  # characters of a camera's answer that a message repeats
_ENDING_S = 0.1
_HEAD_END = re.compile(rb"\n\r?\n")
_STATUS = re.compile(rb"(?:RTSP|HTTP|ICY)\S*\s+(\d{1,3})")
_ANSWERS = (b"RTSP", b"HTTP", b"ICY ")
_ABSOLUTE = re.compile(r"[^/?#]*:")  # FFmpeg takes any text before the colon for a scheme


class Relay:
    """Accepts FFmpeg's connections, and makes one to the camera for each of them.

    Attributes:
        address: address of the camera; it changes after an allowed redirect.
        authority: host and port at which FFmpeg reaches the relay.
        scheme: the scheme in which FFmpeg connects to the relay, `rtsp` or `http`.
        trouble: why the relay ended a connection; None: it ended none.
        status: status code of the camera's last answer; 0: the answer was neither RTSP nor HTTP; None: no answer.

    Raises:
        CameraError: see `connect`; or the device has no loopback interface or no free descriptor.
    """

    def __init__(self, address: SourceAddress, options: SourceOptions) -> None:
        self.address, self._options = address, options
        self.on_connection: Callable[[], None] = lambda: None
        self.scheme = address.scheme.removesuffix("s")
        self.trouble: CameraError | None = None
        self.status: int | None = None
        self._redirects = 0
        self._threads: list[threading.Thread] = []
        self._first: socket.socket | None = connect(address, options)
        with contextlib.ExitStack() as stack:
            stack.callback(self._first.close)
            # The relay uses the camera's address family, because pictures over UDP come directly and need the same one.
            family = self._first.family
            loopback = "::1" if family == socket.AF_INET6 else "127.0.0.1"
            try:
                self._listener = socket.create_server((loopback, 0), family=family, backlog=_MAX)
            except OSError as cause:
                raise CameraError(reason_of(cause)) from cause
            stack.callback(self._listener.close)
            port = self._listener.getsockname()[1]
            self.authority = f"[{loopback}]:{port}" if family == socket.AF_INET6 else f"{loopback}:{port}"
            self._start(self._accept)
            stack.pop_all()

    def close(self) -> None:
        """Accept no more connections, and wait for the end of those that FFmpeg has closed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends its `accept`
        for thread in self._threads:
            thread.join(_ENDING_S)

    def redirected(self, location: str) -> str:
        """Return the URL at this relay that FFmpeg gets when the camera redirects it to `location`, where it may."""
        self._redirects += 1
        if self._redirects > _MAX_REDIRECTS:
            raise UntrustedError(
                f"it redirects more than {_MAX_REDIRECTS} times; give the address that it is to lead to as the source"
            )
        if self.scheme == "http":
            if location.startswith("//"):
                location = f"{self.address.scheme}:{location}"
            elif not _ABSOLUTE.match(location):
                return location
        target = self._server_of(location)
        if target is None:
            raise UntrustedError(
                f"it redirects to another server, {redact_address(location[:_MAX_SHOWN])}; give that address as the "
                "source if it is meant, or set allow_other_hosts"
            )
        self.address = target
        return f"{self.scheme}://{self.authority}{target.target}"

    def _server_of(self, location: str) -> SourceAddress | None:
        """Return the server that a redirect leads to; None where that server is not allowed."""
        try:
            there, here = address_of(location), self.address
        except CameraError:
            return None
        if (there.scheme, there.host, there.port) == (here.scheme, here.host, here.port):
            return there
        is_allowed = self._options.allow_other_hosts and there.scheme in (here.scheme, f"{self.scheme}s")
        return there if is_allowed else None

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"{threading.current_thread().name} relay", daemon=True)
        thread.start()
        # Added once it runs, because `close` joins what is here, and a thread that was not started cannot be joined.
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]

    def _accept(self) -> None:
        # This ends when the relay is closed, no thread can be started, or FFmpeg has too many connections.
        with contextlib.suppress(OSError, RuntimeError), self._listener:
            while sum(map(threading.Thread.is_alive, self._threads)) <= _MAX:
                connection, _ = self._listener.accept()
                self.on_connection()
                camera, self._first = self._first, None
                self._start(partial(self._serve, connection, camera))
        if self._first is not None:
            self._first.close()

    def _serve(self, ffmpeg: socket.socket, camera: socket.socket | None) -> None:
        with ffmpeg, contextlib.suppress(OSError):  # one side closed the connection
            try:
                with camera or connect(self.address, self._options) as connected:
                    self._carry(ffmpeg, connected)
            except CameraError as cause:
                self.trouble = cause

    def _carry(self, ffmpeg: socket.socket, camera: socket.socket) -> None:
        """Pass bytes on in both directions until one side closes the connection."""
        ffmpeg.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        exchange = _Exchange(self, camera.getpeername()[0])
        buffer = memoryview(bytearray(_CHUNK))
        poll = select.poll()
        for connection in (ffmpeg, camera):
            poll.register(connection, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if ffmpeg.fileno() in ready:
                size = ffmpeg.recv_into(buffer)
                if not size:
                    return
                data = memoryview(exchange.asked(buffer[:size]))
                until_s = time.monotonic() + self._options.read_timeout_s
                while data:
                    data = data[finished(partial(camera.send, data), camera, until_s) :]
            if camera.fileno() in ready and not self._fetch(camera, ffmpeg, exchange, buffer):
                return

    def _fetch(self, camera: socket.socket, ffmpeg: socket.socket, exchange: _Exchange, buffer: memoryview) -> bool:
        """Pass on what came from the camera; return False when it has closed the connection."""
        is_more = True
        while is_more:
            try:
                size = camera.recv_into(buffer)
            except (BlockingIOError, ssl.SSLWantReadError):
                return True
            if not size:
                return False
            ffmpeg.sendall(exchange.answered(buffer[:size]))
            is_more = isinstance(camera, ssl.SSLSocket) and camera.pending() > 0  # decrypted, which no poll shows
        return True


class _Exchange:
    """Checks and rewrites the messages of one connection, as far as necessary."""

    def __init__(self, relay: Relay, camera: str) -> None:
        self._relay, self._camera = relay, camera.encode()
        self._is_rtsp = relay.scheme == "rtsp"
        self._request = self._answer = b""  # the beginning of a head that is not complete yet
        self._has_asked = self._is_unread = False
        self._rest = 0  # bytes of a body or an interleaved packet that are still to come

    def asked(self, data: memoryview) -> bytes | memoryview:
        """Return what to send to the camera for bytes that FFmpeg sent."""
        if self._is_rtsp:
            # Once the stream plays, FFmpeg follows no redirect, and only pictures and keep-alives follow.
            self._is_unread = self._is_unread or bytes(data[:5]) == b"PLAY "
            return data
        if self._has_asked:
            raise CameraError("FFmpeg asked twice through one connection")
        self._request += data
        head, end, _ = self._request.partition(b"\r\n\r\n")
        if not end:
            return b""
        self._has_asked = True
        first, *lines = head.split(b"\r\n")
        kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in (b"host", b"connection")]
        host = b"Host: " + self._relay.address.authority.encode()
        return b"\r\n".join([first, host, b"Connection: close", *kept]) + end

    def answered(self, data: memoryview) -> bytes | memoryview:
        """Return what to send to FFmpeg for bytes that the camera sent; a CameraError says what FFmpeg must not get."""
        if self._is_unread and not self._answer and not self._rest:
            return data
        came, at, passed = self._answer + data, 0, bytearray()
        if self._relay.status is None and not any(came[:4] == known[: len(came)] for known in _ANSWERS):
            self._relay.status = 0
        while at < len(came):
            if self._rest or self._is_unread:
                end = min(at + self._rest, len(came)) if self._rest else len(came)
                self._rest = max(0, self._rest - (end - at))
                passed += came[at:end]
                at = end
            elif self._is_rtsp and came.startswith(b"$", at):
                if len(came) - at < 4:
                    break
                self._rest = 4 + int.from_bytes(came[at + 2 : at + 4], "big")
            else:
                found = _HEAD_END.search(came, at)
                if found is None:
                    if len(came) - at > _LONGEST_HEAD:
                        raise UntrustedError(f"its answer begins with more than {_LONGEST_HEAD} bytes of headers")
                    break
                passed += self._checked(came[at : found.start()])
                at = found.end()
        self._answer = came[at:]
        return bytes(passed)

    def _checked(self, head: bytes) -> bytes:
        """Return the head of an answer, checked and rewritten; it is split into lines as FFmpeg does, ignoring CR."""
        first, *lines = head.replace(b"\r", b"").split(b"\n")
        if b"\0" in head or any(line.startswith(b"$") for line in (first, *lines)):
            raise UntrustedError("its answer cannot be read")
        found = _STATUS.match(first)
        status = int(found[1]) if found else 0
        self._relay.status = status
        if not self._is_rtsp:
            self._is_unread = not 100 <= status < 200  # after a 1xx answer another head comes
        kept = [self._line(line, status) for line in lines]
        return b"\r\n".join([first, *filter(None, kept)]) + b"\r\n\r\n"

    def _line(self, line: bytes, status: int) -> bytes:
        """Return a line of an answer's head as FFmpeg shall get it; empty where the line is left out."""
        name, _, value = line.partition(b":")
        value = value.strip()
        name = name.lower()
        if name == b"location":
            if 200 <= status < 300:
                return b""
            return b"Location: " + self._relay.redirected(value.decode("latin-1")).encode("latin-1")
        if not self._is_rtsp:
            if name == b"content-type" and 200 <= status < 300 and b"mpegurl" in value.lower():
                raise UntrustedError("it is a playlist (HLS), which names other addresses; give that of a stream")
            return b"Connection: close" if name == b"connection" else line
        if name == b"content-length":
            if self._rest or not value.isdigit() or int(value) > _LONGEST_BODY:
                shown = redact_address(value[:20].decode("latin-1"))
                raise UntrustedError(f"it announces an answer of {shown} bytes, expected {_LONGEST_BODY} at most")
            self._rest = int(value)
        elif name == b"transport" and b"interleaved" not in value and b"multicast" not in value.lower():
            # Over UDP FFmpeg sends reports to the address in `source`, or else to the relay, so this names the camera.
            parts = [part for part in value.split(b";") if not part.strip().lower().startswith(b"source=")]
            return b"Transport: " + b";".join([*parts, b"source=" + self._camera])
        return line


def stream_trouble(relay: Relay, options: SourceOptions, *, names_user: bool, took_s: float) -> CameraError:
    """Return why a stream did not open."""
    if relay.trouble is not None:
        return relay.trouble
    is_rtsp, status = relay.scheme == "rtsp", relay.status
    if status is None:
        hangs_up = took_s < options.open_timeout_s * 0.9
        return CameraError("it hangs up without an answer" if hangs_up else _no_answer(options))
    refusal = _refusal(status, is_rtsp=is_rtsp, names_user=names_user)
    return CameraError(refusal or _want_of_video(options, is_rtsp=is_rtsp, took_s=took_s))


def _refusal(status: int, *, is_rtsp: bool, names_user: bool) -> str:
    if status in (401, 403):
        return "user or password refused" if names_user else "it wants a user and a password"
    if status == 404:
        return "there is nothing at this path (404)"
    if status == 0:
        return f"something else than {'RTSP' if is_rtsp else 'HTTP'} answers there"
    return f"it answers with error {status}" if status >= 400 else ""


def _want_of_video(options: SourceOptions, *, is_rtsp: bool, took_s: float) -> str:
    if took_s < options.open_timeout_s * 0.9:
        return "it answers, but with no video that can be read"
    silence = f"it answers, but no video came within {options.open_timeout_s:g} s"
    is_udp = is_rtsp and options.transport == "udp"
    return f"{silence} over UDP, which a firewall may keep away; try transport tcp" if is_udp else silence
