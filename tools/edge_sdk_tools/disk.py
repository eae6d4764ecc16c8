"""Tells a full disk from other reasons why a library could not write: most of them name only their own function."""

from __future__ import annotations

from pathlib import Path

_PROBE_BYTES = 1 << 20


def raise_if_full(folder: Path) -> None:
    """Write and remove one MiB.

    Raises:
        OSError: the disk's own reason why it cannot.
    """
    probe = folder / "probe"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)
