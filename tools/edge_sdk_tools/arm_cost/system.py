"""System: a Debian for another architecture in a folder, and roots in which its programs see one core or another."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from edge_sdk_tools.arm_cost.apt import unpack
from edge_sdk_tools.arm_cost.core import Core

_MERGED = ("bin", "lib", "sbin")


def make_system(folder: Path, archives: Iterable[Path]) -> None:
    """Unpack packages into `folder`, which is made.

    Raises:
        OSError: one of them cannot be unpacked.
    """
    for name in _MERGED:
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    for archive in archives:
        unpack(archive, folder)


def lay_root(root: Path, system: Path, core: Core) -> None:
    """Make a root for qemu's -L: links to what `system` holds, and on top files that name `core`."""
    root.mkdir()
    for entry in system.iterdir():
        (root / entry.name).symlink_to(os.path.relpath(entry, root))
    for name, text in core.files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
