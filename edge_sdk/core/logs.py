"""Format the log of the device's program: one line per record, for people, systemd's journal or JSON collectors.

Every module logs to `logging.getLogger(__name__)`. `edge-sdk run` puts a handler on the logger `edge_sdk`, whose
formatter knows where the lines are read: on a terminal, in systemd's journal, or by what collects JSON. `Model` and
`Loop` inside another program log to the same loggers, and that program configures the handlers.

A thread that works for a camera sets `CAMERA`; threads that `BackgroundTask` starts for it inherit the value. If a
process has several cameras (`name_cameras`), the camera's name stands in front of the line.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import datetime, timezone

import msgspec

from edge_sdk.core.errors import printable

_log = logging.getLogger(__name__)

CAMERA: ContextVar[str] = ContextVar("camera", default="")
"""The camera that the current thread works for; empty if it works for all cameras."""

_STANDARD_ERROR = 2
_PRIORITIES = {logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}  # priorities of syslog(3)
_names_cameras = _is_json = False


def name_cameras(*, wanted: bool) -> None:
    """Set whether later lines contain the camera's name, which a process with one camera does not need."""
    global _names_cameras
    _names_cameras = wanted


def log_as_json(*, wanted: bool) -> None:
    """Set whether later lines are JSON, for log collectors, or text for people."""
    global _is_json
    _is_json = wanted


@contextlib.contextmanager
def of_all_cameras() -> Iterator[None]:
    """Omit the camera's name from lines logged in this context, because they concern all cameras."""
    token = CAMERA.set("")
    try:
        yield
    finally:
        CAMERA.reset(token)


def line_of(record: logging.LogRecord) -> str:
    """Return the message of a record, with `warning: ` and the camera's name in front where needed."""
    camera = CAMERA.get()
    return (
        ("warning: " if record.levelno == logging.WARNING else "")
        + (f"{camera}: " if camera and _names_cameras else "")
        + record.getMessage()
    )


class LineFormatter(logging.Formatter):
    """Formats one line per record; replaces characters that a terminal acts on, because records may quote foreign text.

    On a terminal it is `edge-sdk: LINE`, for systemd's journal `<PRIORITY>LINE` (sd-daemon(3)), where the journal adds
    the program's name itself. As JSON it is an object with `at`, `level`, `message`, and `camera` where there is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_for_journal = is_journal(_STANDARD_ERROR)  # checked now, because a run replaces standard error later

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        if _is_json:
            fields = {"at": datetime.fromtimestamp(record.created, timezone.utc), "level": record.levelname.lower()}
            camera = {"camera": CAMERA.get()} if CAMERA.get() else {}
            return msgspec.json.encode({**fields, **camera, "message": printable(record.getMessage())}).decode()
        start = f"<{_PRIORITIES.get(record.levelno, 6)}>" if self._is_for_journal else "edge-sdk: "
        return start + printable(line_of(record))


def line_for_people(text: str, level: int = logging.INFO) -> str:
    """Format one line as the handler of `edge-sdk run` does, for commands without a log handler."""
    return LineFormatter().format(logging.LogRecord("edge_sdk", level, "", 0, text, None, None))


@functools.cache
def is_journal(descriptor: int) -> bool:
    """Tell whether a file descriptor leads to the journal, whose device and inode $JOURNAL_STREAM names.

    The variable alone is no proof, because a program whose output was redirected inherits it.
    """
    named = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


def counted(count: int, noun: str) -> str:
    """Return `1 thread`, `2 threads`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Alarm:
    """A condition that is reported when it begins and when it is over, in the log and in the published state.

    Args:
        name: name of the condition in the state's `warnings`.
        warn: function that takes the name and the line, which is empty once the condition is over.

    Attributes:
        line: description of the condition; empty while it does not hold.
    """

    def __init__(self, name: str, warn: Callable[[str, str], None]) -> None:
        self.line = ""
        self._name, self._warn = name, warn

    def tell(self, line: str) -> None:
        """Report the condition, or with an empty line that it is over."""
        before, self.line = self.line, line
        log_change(_log, line, before)
        self._warn(self._name, line)


def log_change(log: logging.Logger, line: str, before: str) -> None:
    """Log a problem; if the line is empty, log that the problem before is over, without its next step."""
    if line:
        log.warning(line)
    elif before:
        log.info("over: %s", before.partition("; ")[0])
