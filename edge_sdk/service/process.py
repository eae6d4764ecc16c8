"""The process as its service manager and its log see it: notifications, progress, and how long the start took.

`Notifier` speaks sd_notify(3) over a socket of the standard library: a missing manager never blocks the process, and
one that does not read blocks it for a moment at most. `Progress` knows whether every pipeline makes steps, so that the
watchdog reports work and not only a living thread. `Start` measures the way to the first result.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

_LONGEST_STATUS = 500  # bytes; systemd rejects a datagram that is larger than its buffer
_LONGEST_NUMBER = 20  # digits of a 64-bit number
_PATIENCE_S = 0.3  # longest wait for a busy manager; the process has two seconds in all to stop


class Notifier:
    """Reports to the service manager, or does nothing where there is none. To be used from one thread.

    `address` is the manager's datagram socket: a path, or a name after an @. The manager ends the process after
    `watchdog_s` seconds without a message, so `watchdog` is to be called every `interval_s` seconds.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        # Other kinds of addresses (vsock:) are meant for virtual machines.
        self._address = address if address and address[0] in "/@" else None
        self.has_manager = self._address is not None
        self.interval_s = None if self._address is None or watchdog_s is None else watchdog_s / 2
        self._unsent: dict[str, str] = {}  # lines by name
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

    def repeat(self) -> None:
        """Send what the manager did not take; later reports send it, too."""
        if self._unsent:
            self._tell()

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
        for line in lines:  # of those with one name, and of READY, RELOADING and STOPPING, the last one counts
            name = line.partition("=")[0]
            self._unsent.pop(name, None)
            self._unsent[name] = line
        with contextlib.suppress(OSError, ValueError):  # no manager listens, or the address is not valid
            self._socket.sendto("\n".join(self._unsent.values()).encode(errors="replace"), address)
            self._unsent.clear()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER


def _line(text: str) -> str:
    """Return the text as one line, because a line end would begin another message to the manager."""
    flat = " ".join(text.split())
    return flat.encode(errors="replace")[:_LONGEST_STATUS].decode(errors="ignore")


class Progress:
    """Knows whether all pipelines of a process make steps; `is_due` is called from one thread."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._steps: dict[object, int] = {}  # each count is written by its own thread only; `dict.copy` is atomic
        self._seen: dict[object, int] = {}
        self._told_s: float | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Callable[[], None]]:
        """Watch a pipeline, which calls the yielded function after every step, also one without a frame."""
        key = object()
        self._steps[key] = 0

        def after_step() -> None:
            self._steps[key] += 1

        try:
            yield after_step
        finally:
            del self._steps[key]

    @property
    def is_any(self) -> bool:
        """Whether any pipeline is watched."""
        return bool(self._steps)

    def is_due(self, now_s: float) -> bool:
        """Return whether to notify the watchdog now: an interval is over, and every pipeline has made a step since."""
        if self._told_s is not None and now_s - self._told_s < self._interval_s:
            return False
        steps = self._steps.copy()
        # New pipelines are not compared, because they may load their models for as long as the start may take.
        if any(steps[key] == self._seen[key] for key in steps.keys() & self._seen.keys()):
            return False
        self._told_s, self._seen = now_s, steps
        return True


_STARTED_COLUMN = 19  # index in /proc/self/stat (proc_pid_stat(5)), counted after the name, which may hold blanks


def process_age_s() -> float | None:
    """Return the seconds since this process was started, to a hundredth; None where /proc does not give them."""
    try:
        text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(text.rpartition(")")[2].split()[_STARTED_COLUMN])
    except (OSError, ValueError, IndexError):
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return age_s if age_s >= 0 else None  # in a container with a shifted clock the two times cannot be compared


class Start:
    """Measures the way from the process's start, `age_s` seconds ago, to the first result."""

    def __init__(self, age_s: float | None = None) -> None:
        age_s = process_age_s() if age_s is None else age_s
        self._last_ns = time.monotonic_ns()
        self._started_ns = self._last_ns - round((age_s or 0) * 1e9)
        self._parts_s = {} if age_s is None else {"interpreter and command": age_s}

    def mark(self, name: str, at_ns: int | None = None) -> None:
        """Record that a part of the start ended, now or at a monotonic time, but not before the last part."""
        at_ns = max(time.monotonic_ns() if at_ns is None else at_ns, self._last_ns)
        self._parts_s[name] = (at_ns - self._last_ns) / 1e9
        self._last_ns = at_ns

    def line(self) -> str:
        """Return the durations of the start and of each part, for people."""
        parts = ", ".join(f"{name} {part_s:.2f}" for name, part_s in self._parts_s.items())
        return f"first result {(self._last_ns - self._started_ns) / 1e9:.2f} s after start ({parts})"
