"""Notifier: what the service manager is told: sd_notify(3), over a socket of the standard library.

Owns the messages and the socket. A manager that is not there, does not read or went away never holds anything up.

Journal: lines for people as systemd's journal takes them: with a priority, without a name that it adds itself.
"""

from __future__ import annotations

import enum
import functools
import os
import socket
import time
from collections.abc import MutableMapping

from edge_sdk.core.errors import printable

_LONGEST_STATUS = 500  # bytes; systemd takes no datagram that does not fit its buffer
_LONGEST_NUMBER = 20  # digits, as 64 bits have
_MOST_OWED = 8  # lines; a manager that reads nothing for so long has lost interest


class Notifier:
    """Tells the service manager; without one, nobody. To be used from one thread.

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
        self._owed: list[str] = []
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> Notifier:
        """As the service manager asked for it; its variables are taken away, for they are not the children's.

        Args:
            environment: this process's by default.
        """
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", None)
        usec, pid = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        is_wanted = _is_number(usec) and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 1e6 if is_wanted else None)

    def starting(self, seconds: float) -> None:
        """The start, which systemd would end after TimeoutStartSec, may take so many seconds from now on."""
        self._send([*self._owed, f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}"])

    def ready(self, status: str) -> None:
        """The start, or what `reloading` began, is over; `status` is for people."""
        self._tell("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """The configuration is read again, until `ready`."""
        # systemd compares the time with that of its signal, to tell this reloading from one before (253 and later).
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The end has begun."""
        self._tell("STOPPING=1")

    def watchdog(self) -> None:
        """The process works."""
        self._send([*self._owed, "WATCHDOG=1"])

    def close(self) -> None:
        """Tell nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str) -> None:
        """What must get through: it goes before the next message where the socket is full now."""
        self._owed += lines
        self._send(self._owed)

    def _send(self, lines: list[str]) -> None:
        if self._socket is None or self._address is None:
            self._owed.clear()
            return
        # In Linux the name of a socket without a file begins with a zero byte.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), address)
        except BlockingIOError:
            del self._owed[:-_MOST_OWED]
        except (OSError, ValueError):  # nobody listens, or the address is none
            self._owed.clear()
        else:
            self._owed.clear()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER


def _line(text: str) -> str:
    """One line: another would be another message to the manager."""
    flat = " ".join(text.split())
    return flat.encode(errors="replace")[:_LONGEST_STATUS].decode(errors="ignore")


_STANDARD_ERROR = 2


class Priority(enum.IntEnum):
    """Of syslog(3), as far as they are used here."""

    ERROR = 3
    WARNING = 4
    INFO = 6


def line_for_people(text: str, priority: Priority = Priority.INFO) -> str:
    """A line for standard error: `edge-sdk: TEXT`, or, where that is the journal, `<PRIORITY>TEXT` (sd-daemon(3)).

    Args:
        text: one line; one that begins with `warning: ` has that priority. Somebody else's words may be in it: line
            ends and whatever else a terminal would act on are replaced.
        priority: how bad it is.
    """
    line = printable(text)
    if not is_journal(_STANDARD_ERROR):
        return f"edge-sdk: {line}"
    if priority is Priority.INFO and line.startswith("warning: "):
        priority = Priority.WARNING
    return f"<{priority:d}>{line}"


@functools.cache
def is_journal(descriptor: int) -> bool:
    """Whether what is written there goes to the journal: $JOURNAL_STREAM names its device and inode.

    The variable alone does not tell: a program whose output was redirected inherits it.
    """
    named = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return named == f"{status.st_dev}:{status.st_ino}"
