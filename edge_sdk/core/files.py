"""Read files from outside in bounded memory without waiting; write records atomically.

Small files from outside (keys, certificates, passwords, labels, TOML, records) are read by `read_regular`; a bundle's
files, which may be large, are opened by `open_regular`. Both refuse a folder, a pipe, a socket or a device before they
read from it. They raise an OSError whose `strerror` is written for people; the caller puts the path in front of it and
chooses the class of the error.

In the folder `state_folder` a device keeps records about itself; it runs without them, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_sdk.core.errors import OutputError, UsageError

SMALL_BYTES = 1 << 20
"""Limit in bytes for a key, a password or a chain of certificates; real ones have a few kB."""
LIST_BYTES = 1 << 24
"""Limit in bytes for a list with a line for each class or each certificate authority."""

_Record = TypeVar("_Record")
_EXPECTED = "expected a regular file"
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: Path, *, follow_links: bool = True) -> BufferedReader:
    """Open a regular file for reading; never waits, as opening a pipe would. Without `follow_links` it refuses links.

    Raises:
        OSError: there is no such file, it cannot be opened, or it is no regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError as cause:
        raise OSError(errno.EINVAL, "there is a NUL character in its name") from cause
    except OSError as cause:
        if cause.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, f"it is a socket, or a device that is not there, {_EXPECTED}") from cause
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, {_EXPECTED}")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, limit: int = SMALL_BYTES) -> bytes:
    """Read a whole regular file of `limit` bytes at most, a whole number of MiB; a symbolic link is followed.

    Raises:
        OSError: as `open_regular`; or the file is larger than `limit`, or cannot be read.
    """
    with open_regular(path) as file:
        # A file that grows meanwhile, or has no size, as those of /proc, shows its size as it is read.
        if os.fstat(file.fileno()).st_size > limit or len(data := file.read(limit + 1)) > limit:
            raise OSError(errno.EFBIG, f"more than {limit >> 20} MiB, expected a smaller file")
    return data


def check_new_file(path: Path) -> None:
    """Raise UsageError for a new file whose name is taken, or whose folder is a bundle, which may have no others."""
    if os.path.lexists(path):  # where the folder may not be read, the one who writes says so
        raise UsageError(f"{path}: exists already; choose another name, nothing is ever overwritten")
    if all(os.path.lexists(path.parent / name) for name in ("manifest.json", "golden.npz")):
        raise UsageError(f"{path}: inside of a bundle, which no device would read with another file in it")


def system_text(path: Path) -> str:
    """Read a file of /proc or /sys without surrounding white space; return an empty string if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


def state_folder() -> Path:
    """Return the state folder, which need not exist yet; raise OutputError where this user has no home for it.

    It is the first folder in systemd's $STATE_DIRECTORY, else `edge-sdk` in $XDG_STATE_HOME, else
    ~/.local/state/edge-sdk. A relative $XDG_STATE_HOME is ignored, as its specification demands.
    """
    by_systemd = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if by_systemd:
        return Path(by_systemd)
    by_user = Path(os.environ.get("XDG_STATE_HOME", ""))
    if by_user.is_absolute():
        return by_user / "edge-sdk"
    try:
        return Path.home() / ".local" / "state" / "edge-sdk"
    except RuntimeError as cause:
        raise OutputError(
            "this user has no home folder; set $XDG_STATE_HOME to a folder that can be written"
        ) from cause


def write_record(path: Path, data: bytes) -> None:
    """Write a record atomically, so that readers find the old or the new one even if other processes write it, too.

    Raises:
        OutputError: the record cannot be written; the old one is unchanged.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # without it a power cut leaves an empty file under the final name
            Path(partial).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(partial).unlink()
            raise
    except OSError as cause:
        raise OutputError(f"{path}: cannot be written: {cause.strerror or cause}") from cause


def read_record(path: Path, kind: type[_Record]) -> _Record | None:
    """Read a record of a type, JSON, as `write_record` wrote it; None where there is none.

    Raises:
        OutputError: it cannot be read, or is damaged.
    """
    try:
        return msgspec.json.decode(read_regular(path), type=kind)
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise OutputError(f"{path}: cannot be read: {cause.strerror}") from cause
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise OutputError(f"{path}: damaged") from cause


def forget_oldest(folder: Path, most: int) -> None:
    """Remove all but the newest files of a folder of records."""
    with contextlib.suppress(OSError):  # another process removes old records, too
        newest_first = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in newest_first[most:]:
            path.unlink()
