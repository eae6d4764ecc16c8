"""Report the state of the process to the service manager by sd_notify(3), over a socket of the standard library.

A missing manager never blocks the process; one that does not read blocks it for a moment at most.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

_LONGEST_STATUS = 500  # bytes; systemd rejects a datagram that is larger than its buffer
_LONGEST_NUMBER = 20  # digits of a 64-bit number
_PATIENCE_S = 0.3  # longest wait for a busy manager; the process has two seconds in all to stop


class Notifier:
    """Reports to the service manager, or does nothing where there is none. To be used from one thread.

    Args:
        address: the manager's datagram socket: a path, or a name after an @; None: there is no manager.
        watchdog_s: seconds without a message after which the manager ends the process; None: never.

    Attributes:
        has_manager: whether there is a manager to report to.
        interval_s: seconds between two calls of `watchdog`, half of `watchdog_s`; None where there is no watchdog.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        # Other kinds of addresses (vsock:) are meant for virtual machines.
        self._address = address if address and address[0] in "/@" else None
        self.has_manager = self._address is not None
        self.interval_s = None if self._address is None or watchdog_s is None else watchdog_s / 2
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(_PATIENCE_S)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> Notifier:
        """Make a notifier from the manager's environment variables, and remove them so that no child inherits them."""
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", None)
        usec, pid = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        is_wanted = _is_number(usec) and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 1e6 if is_wanted else None)

    def starting(self, seconds: float) -> None:
        """Ask for `seconds` more from now on for the start, which systemd would end after TimeoutStartSec."""
        self._tell(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def ready(self, status: str) -> None:
        """Report that the start or the reload is over; `status` is for people."""
        self._tell("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """Report that a reload is under way, until `ready`."""
        # systemd 253 and later compares the time with that of its signal, to tell this reload from an earlier one.
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the process is stopping."""
        self._tell("STOPPING=1")

    def watchdog(self) -> None:
        """Report that the process works."""
        self._tell("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; later reports do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str) -> None:
        if self._socket is None or self._address is None:
            return
        # In Linux the name of a socket without a file begins with a zero byte.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError, ValueError):  # no manager listens, or the address is not valid
            self._socket.sendto("\n".join(lines).encode(errors="replace"), address)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER


def _line(text: str) -> str:
    """Return the text as one line, because a line end would begin another message to the manager."""
    flat = " ".join(text.split())
    return flat.encode(errors="replace")[:_LONGEST_STATUS].decode(errors="ignore")
