"""Every error a user can meet, its exit code, and how errors are worded.

The subclasses of `EdgeError` differ by who can correct the fault. A message is one line: what, where, expected, got,
next step. It never contains a secret. `one_line`, `first_line`, `typed_line` and `failure_line` make text from outside
printable and limit its length. Libraries word three conditions of the machine in different ways; this module recognises
them: no memory, no permission, and no file descriptor left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import signal
import stat
import threading
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

LONGEST_LINE = 2000
"""The largest number of characters of a line for people; longer lines lose their middle."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
_HEAD = 1200  # characters kept in front of the cut: the place is named in front, the next step at the end


def printable(text: str) -> str:
    """Replace characters that a terminal acts on: escapes, line ends, marks that turn the text's direction.

    Joiners stay behind the letters, marks and emoji that they join or part, as in Malayalam and Persian.
    """
    if text.isprintable():
        return text
    before = ("", *text)  # the character before each
    return "".join(c if c.isprintable() or _joins(b, c) else _REPLACEMENT for b, c in zip(before, text, strict=False))


def _joins(before: str, char: str) -> bool:
    """Tell whether a character is a joiner behind what it joins; ASCII needs none, and could be made to look equal."""
    return char in _JOINERS and before > "\x7f" and unicodedata.category(before)[0] in "LMS"


def one_line(text: str) -> str:
    """Return a text as one printable line of at most `LONGEST_LINE` characters."""
    if len(text) > LONGEST_LINE:
        text = f"{text[:_HEAD]}…{text[_HEAD + 1 - LONGEST_LINE :]}"
    return text if text.isprintable() else printable(" ".join(text.splitlines()))


_WORST_FIRST = (7, 6, 8, 4, 2, 1)
"""Exit codes, worst first: untrusted bundles, bundles that do not run here, then faults that can be corrected here."""


def worst_first(exit_code: int) -> int:
    """Return the rank of an exit code; the worst has the lowest."""
    return _WORST_FIRST.index(exit_code) if exit_code in _WORST_FIRST else len(_WORST_FIRST)


class EdgeError(Exception):
    """The root: something went wrong while running (source, broker, disk).

    Args:
        lines: lines of the message; most errors have one. Line ends within a line become spaces.
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
    """A label that no class of a bundle has, so that its rule never applies; everything else runs."""


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
    """A setting that is impossible. It is also a ValueError, so that msgspec names the place in a file."""


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
    """A run that hung and was ended; the next one may succeed."""


class NoRoomError(SessionError):
    """A model for which too little memory is free at present."""


class PublishError(EdgeError):
    """A broker that refuses messages, or a device name that another program uses there."""


class OutputError(EdgeError):
    """A file or folder that cannot be written."""


class LinesError(OutputError):
    """An output to which no more result lines can be written."""


class StoppedError(Exception):
    """Work that was stopped before it was done. Nothing is wrong, so this is no `EdgeError`."""


_WORDS = (
    "bad_alloc",
    "bad allocation",
    "cannot allocate memory",
    "failed to allocate memory",
    "failed to map segment",
    "can't start new thread",
    "insufficient memory",  # OpenCV
    "out of memory",
    "resource temporarily unavailable",  # a thread or process for whose stack memory is missing
    "unable to allocate",  # numpy
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, or one of its causes, is a lack of memory."""
    return any(_says_so(one) for one in _chain(error))


def says_out_of_memory(text: str) -> bool:
    """Tell whether the text that a library or a process printed reports a lack of memory."""
    words = text.casefold()
    return any(known in words for known in _WORDS)


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return says_out_of_memory(str(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, the latest first, each once: a chain may lead back to where it began."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ONNXRUNTIME = "[ONNXRuntimeError] : "  # prefix of its messages; dropped because the caller names ONNX Runtime

_WANT_OF_MEMORY = "out of memory: end other programs, or take a machine or a container with more of it"


def failure_line(error: BaseException) -> str:
    """Return a line for an error; what is unforeseen, and no lack of memory, files or packages, is called a bug."""
    if is_out_of_memory(error):
        return _WANT_OF_MEMORY
    if isinstance(error, OSError) and error.errno in _OUT_OF:
        return os_error_text(error)
    if isinstance(error, EdgeError):
        return str(error)
    if isinstance(error, ImportError) and not (error.name or "edge_sdk").startswith("edge_sdk"):
        return one_line(f"a package is missing, damaged or of another Python, install it again: {typed_line(error)}")
    return one_line(f"this is a bug in edge-sdk: {typed_line(error)}")


def typed_line(cause: BaseException) -> str:
    """Return the type and the message of an exception as one line, see `first_line`."""
    name, line = type(cause).__name__, first_line(cause)
    return line if line.startswith(name) else f"{name}: {line}"


def first_line(cause: BaseException) -> str:
    """Return the message of an exception of other code as one line.

    Returns:
        The first line of its text that is not blank, see `one_line`. For an exception without a text, such as a bare
        `assert`: its type and the file and line that raised it.
    """
    lines = (line.strip() for line in _COLOURS.sub("", str(cause)).splitlines())
    line = one_line(next(filter(None, lines), "")).removeprefix(_ONNXRUNTIME)
    if line:
        return line
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}{place}"


@contextlib.contextmanager
def _held_back_interrupt() -> Iterator[None]:
    """Raise a KeyboardInterrupt at the end of the context, because some libraries make other errors of it on import."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupts:
        raise KeyboardInterrupt


@contextlib.contextmanager
def raising(
    error: Callable[[str], EdgeError], what: str, then: str = "", kinds: type[Exception] = OSError
) -> Iterator[None]:
    """Turn an exception of other code within the context into an error: `what`, its own line, and what comes `then`."""
    try:
        yield
    except EdgeError:
        raise
    except kinds as cause:
        reason = cause.strerror if isinstance(cause, OSError) else None
        raise error(f"{what}: {reason or first_line(cause)}{then}") from cause


@contextlib.contextmanager
def host_tools(what: str, extra: str = "host") -> Iterator[None]:
    """Turn an ImportError within the context into an error that says what `what` needs, and how to install it."""
    try:
        with _held_back_interrupt():
            yield
    except ImportError as cause:
        if is_out_of_memory(cause):
            raise
        missing = cause.name or "a package"
        raise MissingDependencyError(
            f"{what} runs on the workstation and needs {missing}; in the checkout: "
            f"pip install -c constraints.txt '.[{extra}]'"
        ) from cause


def missing_permission(path: Path) -> str:
    """Return which user needs permission to read a path; empty if this user has it, or if the path does not exist."""
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return f"permission denied; let {_user()} into its folder"
    except (OSError, ValueError):  # the name is too long or contains a NUL
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
    """Return the system's message, with the next step if no file descriptor is left."""
    said = cause.strerror or str(cause) or type(cause).__name__
    return f"{said}; {_MORE_FILES}" if cause.errno in _OUT_OF else said


def descriptor_shortage() -> str:
    """Return a line if no file descriptor is left, which libraries report as other failures; otherwise an empty one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as cause:
        return f"too many files are open; {_MORE_FILES}" if cause.errno in _OUT_OF else ""
    return ""
