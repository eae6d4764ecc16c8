"""The process: what its service manager is told, how long its start took, and what its pipelines share.

`Notifier` speaks sd_notify(3) over a socket of the standard library: a missing manager never blocks the process, and
one that does not read blocks it for a moment at most. `Start` measures the way to the first result. `Shared` holds the
objects that all pipelines share; `Gate` makes pipelines that start together wait for each other.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

from edge_sdk.core.logs import of_all_cameras
from edge_sdk.core.machine import BoardWatch
from edge_sdk.inference.session import SessionCache
from edge_sdk.service.runner import Controls, Progress
from edge_sdk.tuning.degradation import DegradationController

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


_log = logging.getLogger(__name__)
_LOOK_S = 0.05  # time between two checks for a request to stop
_GATE_S = 10.0  # longest wait for all pipelines to be ready, so that a slow one does not delay the others


class Gate:
    """Opens once all announced pipelines have arrived, or some time has passed.

    Pipelines that start together measure their models one after another, and none may run frames meanwhile.
    """

    def __init__(self, count: int, patience_s: float = _GATE_S) -> None:
        self._missing, self._lock = count, threading.Lock()
        self._until = time.monotonic() + patience_s

    def arrive(self) -> None:
        """Count one pipeline that is ready, or never will be."""
        with self._lock:
            self._missing -= 1

    def wait(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until the gate opens or `is_stopped` returns True."""
        while self._missing > 0 and not is_stopped() and time.monotonic() < self._until:
            time.sleep(_LOOK_S)


class Shared:
    """Objects that all pipelines of one process share."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress(math.inf)
        self.models = SessionCache()  # pipelines with the same model share it, and the last one releases it
        self.controls = Controls()
        self.degradation = DegradationController()
        self.tuning = threading.Lock()  # held by the pipeline that tunes
        self._starting = threading.Lock()
        self.turns = 0  # pipeline starts begun so far; changed only with this lock
        self._logged: set[str] = set()
        self._board_lock = threading.Lock()
        self._board: BoardWatch | None = None

    def throttled(self) -> str:
        """Return why the board throttles at present; empty when it does not. Another thread reads the board."""
        with self._board_lock:
            self._board = self._board or BoardWatch()
        return self._board.state.throttled

    def close(self) -> None:
        """Stop reading the board's throttling."""
        if self._board is not None:
            self._board.close()

    def log_once(self, level: int, line: str) -> None:
        """Log a line that holds for all pipelines only once; to be called during the pipeline's `turn`."""
        if line not in self._logged:
            self._logged.add(line)
            with of_all_cameras():
                _log.log(level, line)

    @contextlib.contextmanager
    def turn(self, is_stopped: Callable[[], bool]) -> Iterator[bool]:
        """Keep other pipelines from loading or measuring within the context; yield False if `is_stopped` came first."""
        while not self._starting.acquire(timeout=_LOOK_S):
            if is_stopped():
                yield False
                return
        try:
            self.turns += 1
            yield True
        finally:
            self._starting.release()
