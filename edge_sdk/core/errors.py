"""Every error a user can meet, its exit code, and how errors are worded.

Families of `EdgeError` say who can mend it. A message is one line: what, where, expected, got, next step. It never
holds a secret; whatever names and texts of somebody else's are in it, it is printable and of a bounded length
(`one_line`, `first_line`, `typed_line`, `failure_line`). Three conditions of the machine are told from faults of the
program, because libraries word them in their own ways: want of memory, want of permission, and no file descriptor left.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
import traceback
from collections.abc import Iterator
from pathlib import Path, PurePath

LONGEST_LINE = 2000
"""Characters of a line for people; of a longer one the middle is left out."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_HEAD = 1200  # of what is kept: where it is about stands in front, what to do at the end


def printable(text: str) -> str:
    """Replace what a terminal would act on: escapes, line ends, marks that turn the text's direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _REPLACEMENT for c in text)


def one_line(text: str) -> str:
    """Return a text as one printable line of at most `LONGEST_LINE` characters."""
    if len(text) > LONGEST_LINE:
        text = f"{text[:_HEAD]}…{text[_HEAD + 1 - LONGEST_LINE :]}"
    return text if text.isprintable() else printable(" ".join(text.splitlines()))


_WORST_FIRST = (7, 6, 8, 4, 2, 1)
"""Exit codes: a bundle that is not to be trusted before one that does not run here, before what can be mended here."""


def worst_first(exit_code: int) -> int:
    """Return the place of an exit code among all, of which the worst comes first."""
    return _WORST_FIRST.index(exit_code) if exit_code in _WORST_FIRST else len(_WORST_FIRST)


class EdgeError(Exception):
    """The root: something went wrong while running (source, broker, disk).

    Args:
        lines: what it says, a line each; most errors have one. Line ends within one become spaces.
    """

    exit_code = 1

    def __init__(self, *lines: str) -> None:
        super().__init__(*map(one_line, lines))

    def __str__(self) -> str:
        return "\n".join(self.args)


class UsageError(EdgeError):
    """A flag or argument that cannot be used as given."""

    exit_code = 2


class LabelError(UsageError):
    """A label that no class of a bundle has: what it is for never happens, and all else runs."""


class TargetError(EdgeError):
    """A target file that is missing, unreadable or impossible."""

    exit_code = 2


class ModelError(EdgeError):
    """A model or model.toml that cannot be used."""

    exit_code = 2


class DataError(EdgeError):
    """Images or labels that cannot be used."""

    exit_code = 2


class ConfigError(EdgeError):
    """A device configuration that cannot be used."""

    exit_code = 2


class SettingError(ConfigError, UsageError, ValueError):
    """A setting that is impossible. A ValueError, too, so that msgspec names the place in a file."""


class AccuracyGateError(EdgeError):
    """A model that lost more than its gate allows."""

    exit_code = 3


class LatencyGateError(EdgeError):
    """A model that cannot keep its latency budget."""

    exit_code = 4


class SizeGateError(EdgeError):
    """A model larger than its gate allows."""

    exit_code = 5


class IncompatibleError(EdgeError):
    """A sound bundle that this device or this runtime cannot run."""

    exit_code = 6


class BundleError(EdgeError):
    """A bundle that is not what its manifest promises, or not signed by a trusted key."""

    exit_code = 7


class MissingDependencyError(EdgeError):
    """A package or system program that is not installed."""

    exit_code = 8


class CameraError(EdgeError):
    """A source that does not open or broke down."""


class SessionError(EdgeError):
    """A model that the runtime does not load or run."""


class HungRunError(SessionError):
    """A run that came to no end and was ended; the next one may do better."""


class NoRoomError(SessionError):
    """A model for which memory is short at present."""


class PublishError(EdgeError):
    """A broker that refuses what it is sent, or a device name that another program has there."""


class OutputError(EdgeError):
    """A file or folder that cannot be written."""


class LinesError(OutputError):
    """Results that cannot be written as lines any more."""


class StoppedError(Exception):
    """Work that was told to stop before it was done: nothing is wrong, so it is no `EdgeError`."""


_WORDS = (
    "bad_alloc",
    "bad allocation",
    "cannot allocate memory",
    "failed to allocate memory",
    "failed to map segment",
    "can't start new thread",
    "insufficient memory",  # OpenCV
    "out of memory",
    "resource temporarily unavailable",  # a thread or a process that has no room for its stack
    "unable to allocate",  # numpy
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it came from, is that there is no memory left."""
    return any(_says_so(one) for one in _chain(error))


def says_out_of_memory(text: str) -> bool:
    """Whether what a library or a process printed is that there is no memory left."""
    words = text.casefold()
    return any(known in words for known in _WORDS)


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return says_out_of_memory(str(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return the error and its causes, the last first; each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ONNXRUNTIME = "[ONNXRuntimeError] : "  # in front of what ONNX Runtime says; the caller names it

_WANT_OF_MEMORY = "out of memory: end other programs, or take a machine or a container with more of it"


def failure_line(error: BaseException) -> str:
    """Say what went wrong; what is neither foreseen nor want of memory is a bug of ours, and said to be one."""
    if is_out_of_memory(error):
        return _WANT_OF_MEMORY
    if isinstance(error, EdgeError):
        return str(error)
    return one_line(f"this is a bug in edge-sdk: {typed_line(error)}")


def typed_line(cause: BaseException) -> str:
    """Say in one line which exception it is and what it says, see `first_line`."""
    name, line = type(cause).__name__, first_line(cause)
    return line if line.startswith(name) else f"{name}: {line}"


def first_line(cause: BaseException) -> str:
    """Say in one line what an exception of somebody else's code says.

    Returns:
        The first line of its text that is not blank, see `one_line`. Of an exception without a text, such as a bare
        `assert`, its type and the file and line that raised it.
    """
    lines = (line.strip() for line in _COLOURS.sub("", str(cause)).splitlines())
    line = one_line(next(filter(None, lines), "")).removeprefix(_ONNXRUNTIME)
    if line:
        return line
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}{place}"


def missing_permission(path: Path) -> str:
    """Say who must be let in where this user may not read a path; empty where it may, or where nothing is there."""
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return f"permission denied; let {_user()} into its folder"
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        return ""
    wanted = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
    return "" if os.access(path, wanted, effective_ids=True) else f"permission denied; let {_user()} read it"


def _user() -> str:
    number = os.geteuid()
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except (KeyError, OSError):
        return f"user {number}"


_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE})

_MORE_FILES = "let this process open more: LimitNOFILE= of its unit, ulimit -n, or prlimit --nofile while it runs"


def os_error_text(cause: OSError) -> str:
    """Say what the system said, and what to do where there is no descriptor left."""
    said = cause.strerror or str(cause) or type(cause).__name__
    return f"{said}; {_MORE_FILES}" if cause.errno in _OUT_OF else said


def descriptor_shortage() -> str:
    """Say that no file can be opened at present, which libraries word as other failures; empty where one can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as cause:
        return f"too many files are open; {_MORE_FILES}" if cause.errno in _OUT_OF else ""
    return ""
