"""How the device's program speaks to people: through `logging`, one line a record.

Every module logs to `logging.getLogger(__name__)`. `edge-sdk run` puts a handler on the logger `edge_sdk`, whose
formatter knows where the lines are read: on a terminal, in systemd's journal, or by what collects JSON. `Model` and
`Loop` in somebody else's program log to the same loggers, and that program decides what becomes of it.

A thread that works for a camera sets `CAMERA`; threads that `BackgroundTask` begins for it inherit that. Where a
process has several cameras (`name_cameras`) the name stands in front of the line.
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
"""The camera that the current thread works for; empty where it works for all of them."""

_STANDARD_ERROR = 2
_PRIORITIES = {logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}  # of syslog(3)
_names_cameras = _is_json = False


def name_cameras(*, wanted: bool) -> None:
    """Have lines from now on bear the camera's name, or not, as where there is only one."""
    global _names_cameras
    _names_cameras = wanted


def log_as_json(*, wanted: bool) -> None:
    """Have lines from now on be JSON, for what collects logs, or words for people."""
    global _is_json
    _is_json = wanted


@contextlib.contextmanager
def of_all_cameras() -> Iterator[None]:
    """Have lines that are logged within bear no camera's name: they hold for all of them."""
    token = CAMERA.set("")
    try:
        yield
    finally:
        CAMERA.reset(token)


def line_of(record: logging.LogRecord) -> str:
    """Return what a record says, with `warning: ` and the camera's name in front where they belong there."""
    camera = CAMERA.get()
    return (
        ("warning: " if record.levelno == logging.WARNING else "")
        + (f"{camera}: " if camera and _names_cameras else "")
        + record.getMessage()
    )


class LineFormatter(logging.Formatter):
    """One line a record. Somebody else's words may be in it: whatever a terminal would act on is replaced.

    On a terminal it is `edge-sdk: LINE`, for systemd's journal `<PRIORITY>LINE` (sd-daemon(3)), where the journal adds
    the program's name itself. As JSON it is an object with `at`, `level`, `message`, and `camera` where there is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_for_journal = is_journal(_STANDARD_ERROR)  # as it was given to the program: a run replaces it later

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        if _is_json:
            fields = {"at": datetime.fromtimestamp(record.created, timezone.utc), "level": record.levelname.lower()}
            camera = {"camera": CAMERA.get()} if CAMERA.get() else {}
            return msgspec.json.encode({**fields, **camera, "message": printable(record.getMessage())}).decode()
        start = f"<{_PRIORITIES.get(record.levelno, 6)}>" if self._is_for_journal else "edge-sdk: "
        return start + printable(line_of(record))


def line_for_people(text: str, level: int = logging.INFO) -> str:
    """Format one line as the handler of `edge-sdk run` does, for verbs that print without one."""
    return LineFormatter().format(logging.LogRecord("edge_sdk", level, "", 0, text, None, None))


@functools.cache
def is_journal(descriptor: int) -> bool:
    """Tell whether what is written there goes to the journal: $JOURNAL_STREAM names its device and inode.

    The variable alone does not tell: a program whose output was redirected inherits it.
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
    """One thing that may be wrong, told when it begins and when it is over: to people, and to who watches from afar.

    Args:
        name: of what may be wrong, as in the state's `warnings`.
        warn: takes the name and the line, empty once it is over.

    Attributes:
        line: what is wrong; empty while nothing is.
    """

    def __init__(self, name: str, warn: Callable[[str, str], None]) -> None:
        self.line = ""
        self._name, self._warn = name, warn

    def tell(self, line: str) -> None:
        """Say what is wrong now, or with an empty line that it is over."""
        before, self.line = self.line, line
        log_change(_log, line, before)
        self._warn(self._name, line)


def log_change(log: logging.Logger, line: str, before: str) -> None:
    """Log what is wrong; where the line is empty, that what was wrong before is over, without what was to be done."""
    if line:
        log.warning(line)
    elif before:
        log.info("over: %s", before.partition("; ")[0])
