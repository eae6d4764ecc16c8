"""A recording of what a process writes and syncs, and the files that a power cut would have left of it.

Of a file is left what was written before the last sync that had returned; the worst that a disk may do to whoever
syncs. A file that was removed is gone: SQLite syncs its folder after that. Needs no rights: strace looks at a child.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TRACED = "trace=pwrite64,write,fsync,fdatasync,ftruncate,unlink"
"""For `strace -f -y -xx -e`; all of a write must be recorded, `-s 100000`."""

_CALL = re.compile(r'\d+ +(?P<call>\w+)\((?P<fd>\d+)<(?P<path>[^>]*)>(?:, "(?P<data>[^"]*)")?(?P<rest>.*)')
_UNLINK = re.compile(r'\d+ +unlink\("(?P<path>[^"]*)"\) += 0')
_UNFINISHED = re.compile(r"(?P<pid>\d+) +(?P<begin>.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<end>.*)")


class RecordedDisk:
    """Replays a trace.

    Args:
        folder: of the files that are followed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, bytearray] = {}
        self._synced: dict[str, bytes] = {}

    def replay(self, trace: str) -> Iterator[str]:
        """What went to standard output, piece by piece; between two the disk is as it was then."""
        for line in _whole_calls(trace):
            removed, found = _UNLINK.fullmatch(line), _CALL.fullmatch(line)
            if removed is not None:
                self._remove(Path(_text(removed["path"])))
            if found is None:
                continue
            data = _bytes(found["data"] or "")
            if found["fd"] == "1" and found["call"] == "write":
                yield data.decode()
            path = Path(_text(found["path"]))
            if path.parent == self._folder:
                self._apply(found["call"], path.name, data, found["rest"])

    def leave(self, folder: Path) -> None:
        """Write what a power cut now would leave."""
        folder.mkdir()
        for name, content in self._synced.items():
            (folder / name).write_bytes(content)

    def _remove(self, path: Path) -> None:
        if path.parent == self._folder:
            self._written.pop(path.name, None)
            self._synced.pop(path.name, None)

    def _apply(self, call: str, name: str, data: bytes, rest: str) -> None:
        content = self._written.setdefault(name, bytearray())
        if call == "pwrite64":
            offset = int(rest.split(",")[2].rstrip(")").split(")")[0])
            content.extend(bytes(max(0, offset + len(data) - len(content))))
            content[offset : offset + len(data)] = data
        elif call == "ftruncate":
            del content[int(rest.split(",")[1].split(")")[0]) :]
        elif call in ("fsync", "fdatasync"):
            self._synced[name] = bytes(content)


def _whole_calls(trace: str) -> Iterator[str]:
    """Calls in the order in which they returned; writes that had begun before a sync ended count as before it."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        if unfinished := _UNFINISHED.fullmatch(line):
            begun[unfinished["pid"]] = f"{unfinished['pid']} {unfinished['begin']}"
        elif resumed := _RESUMED.fullmatch(line):
            yield begun.pop(resumed["pid"], "") + resumed["end"]
        else:
            yield line


def _bytes(shown: str) -> bytes:
    return bytes.fromhex(shown.replace("\\x", ""))


def _text(shown: str) -> str:
    return _bytes(shown).decode() if shown.startswith("\\x") else shown
