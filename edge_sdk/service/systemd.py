"""Tell the service manager how the process does: sd_notify(3), over a socket of the standard library.

A manager that is not there or went away never holds anything up, one that does not read for a moment at most.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

_LONGEST_STATUS = 500  # bytes; systemd takes no datagram that does not fit its buffer
_LONGEST_NUMBER = 20  # digits, as 64 bits have
_PATIENCE_S = 0.3  # for a manager that is busy; who is told to stop has two seconds for everything


class Notifier:
    """Tells the service manager how the process does; without one, nobody. To be used from one thread.

    Args:
        address: of its datagram socket: a path, or a name after an @; None: there is no manager.
        watchdog_s: seconds after which it ends a process that it did not hear of; None: it does not.

    Attributes:
        has_manager: whether anybody is told.
        interval_s: seconds between two calls of `watchdog`, half of what is allowed; None where none is wanted.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        # Other kinds of addresses (vsock:) are for whole virtual machines.
        self._address = address if address and address[0] in "/@" else None
        self.has_manager = self._address is not None
        self.interval_s = None if self._address is None or watchdog_s is None else watchdog_s / 2
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(_PATIENCE_S)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> Notifier:
        """Make one as the service manager asked for it; its variables are taken away: they are not the children's."""
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", None)
        usec, pid = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        is_wanted = _is_number(usec) and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 1e6 if is_wanted else None)

    def starting(self, seconds: float) -> None:
        """Ask that the start, which systemd would end after TimeoutStartSec, may take so many seconds from now on."""
        self._tell(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def ready(self, status: str) -> None:
        """Tell that the start, or what `reloading` began, is over; `status` is for people."""
        self._tell("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """Tell that the configuration is read again, until `ready`."""
        # systemd compares the time with that of its signal, to tell this reloading from one before (253 and later).
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell that the end has begun."""
        self._tell("STOPPING=1")

    def watchdog(self) -> None:
        """Tell that the process works."""
        self._tell("WATCHDOG=1")

    def close(self) -> None:
        """Tell nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str) -> None:
        if self._socket is None or self._address is None:
            return
        # In Linux the name of a socket without a file begins with a zero byte.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError, ValueError):  # nobody listens, or the address is none
            self._socket.sendto("\n".join(lines).encode(errors="replace"), address)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER


def _line(text: str) -> str:
    """Make one line: another would be another message to the manager."""
    flat = " ".join(text.split())
    return flat.encode(errors="replace")[:_LONGEST_STATUS].decode(errors="ignore")
