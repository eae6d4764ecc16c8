"""Identity: which device speaks, in which boot of it, and in which start of the program."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """The kernel's boot id; where there is none, a random one for this process."""
    try:
        return str(uuid.UUID(_BOOT_ID_FILE.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        return str(uuid.uuid4())


def new_run_id() -> str:
    """A random UUID."""
    return str(uuid.uuid4())


class Identity(msgspec.Struct, frozen=True):
    """Who speaks; made once for a process, and shared by all that it publishes.

    Attributes:
        device: the device's name.
        boot_id: what tells this run of the machine from others; read from the kernel by default.
        run_id: what tells this run of the program from others; a random UUID by default.
    """

    device: str
    boot_id: str = msgspec.field(default_factory=read_boot_id)
    run_id: str = msgspec.field(default_factory=new_run_id)
