"""Cpu: what this machine computes with: a name for people, and a digest that tells it from others.

Owns the reading of Linux's own files. What no file says is left out; nothing here fails.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import msgspec

# x86 and ARM spell them differently. What changes by itself (clock, microcode) or is of one piece (serial) is left out.
_KEYS = frozenset(
    {
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "flags",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "Features",
    }
)


class Cpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processor of a machine.

    Attributes:
        name: the board's or the processor's, as Linux has it; maker and part by number where ARM has no name; else the
            architecture.
        digest: SHA-256 in hex of the board's name and of each kind of core: its make, and its instructions.
    """

    name: str
    digest: str

    @classmethod
    def read(cls, root: Path = Path("/")) -> Cpu:
        """Read it.

        Args:
            root: the folder that holds `proc`; another one in tests.
        """
        board = _text(root / "proc/device-tree/model").strip("\0").strip()
        kinds = _kinds(_text(root / "proc/cpuinfo"))
        said = msgspec.json.encode((board, platform.machine(), kinds))
        return cls(board or _name(kinds), hashlib.sha256(said).hexdigest())


_Kind = tuple[tuple[str, str], ...]


def _kinds(cpuinfo: str) -> list[_Kind]:
    """Each kind of core once, in an order of their own: cores that are switched off and on again change places."""
    kinds: set[_Kind] = set()
    for block in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        known = tuple(sorted((key.strip(), value.strip()) for key, _, value in pairs if key.strip() in _KEYS))
        kinds.update([known] if known else [])
    return sorted(kinds)


def _name(kinds: list[_Kind]) -> str:
    for kind in map(dict, kinds):
        if "model name" in kind:
            return kind["model name"]
    numbered = [kind for kind in map(dict, kinds) if {"CPU implementer", "CPU part"} <= {*kind}]
    parts = [f"{kind['CPU implementer']}/{kind['CPU part']}" for kind in numbered]
    return f"{platform.machine()} {' + '.join(parts)}" if parts else platform.machine()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
