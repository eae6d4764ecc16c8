"""Journal: lines for people as systemd's journal takes them: with a priority, without a name that it adds itself."""

from __future__ import annotations

import enum
import functools
import os

from edge_sdk.printable import printable

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
