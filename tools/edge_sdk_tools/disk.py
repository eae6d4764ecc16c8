"""Tells a full disk from other reasons why a library could not write: most of them name only their own function."""

from __future__ import annotations

import errno
from pathlib import Path

_PROBE_BYTES = 1 << 20


def is_full(cause: OSError) -> bool:
    """Whether it says that there is no more space, or that no more of it may be used."""
    return cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def raise_if_full(folder: Path, cause: Exception) -> None:
    """Find out whether the disk made a library fail: by what it raised, or by writing and removing one MiB.

    Args:
        folder: where the library wrote.
        cause: what it raised.

    Raises:
        OSError: the disk's own reason.
    """
    if isinstance(cause, OSError):  # the disk's, whatever it is: no model is a reason for one
        raise cause
    probe = folder / "probe"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)
