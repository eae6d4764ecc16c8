"""File systems that only the programs of one test see, in a mount namespace of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from tests.absent import not_allowed

DISK_KB = 1024


class Mounts:
    """A namespace with other mounts; as a context manager it is gone at the end. Skips the test who may not have one.

    Args:
        script: of the shell, in it.
    """

    def __init__(self, script: str) -> None:
        # Its own standard input is what it waits for: nothing is left behind, however the test ends.
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{script} && echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._holder.stdout
        if self._holder.stdout.readline() != b"ready\n":
            self._end()
            not_allowed("no mount namespace may be made here: it takes root and CAP_SYS_ADMIN")

    def __enter__(self) -> Mounts:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def within(self) -> tuple[str, ...]:
        """A command that runs another one in there."""
        return (shutil.which("nsenter") or "nsenter", "-m", "-t", str(self._holder.pid), "--")

    def path(self, path: Path) -> Path:
        """Where that which is there under this path is from outside."""
        return Path(f"/proc/{self._holder.pid}/root") / path.relative_to("/")

    def files(self, folder: Path) -> dict[str, int]:
        """Files in a folder and below, with their sizes in bytes."""
        root = self.path(folder)
        return {str(p.relative_to(root)): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}

    def _end(self) -> None:
        self._holder.communicate()


def full_disk(folder: Path, room_kb: int = 0) -> Mounts:
    """A disk of a megabyte at `folder`, full but for so much; what fills it is the file `fill`."""
    folder.mkdir()
    fill = f"head -c {(DISK_KB - room_kb) * 1024} /dev/zero > {folder}/fill"
    return Mounts(f"mount -t tmpfs -o size={DISK_KB}k tmpfs {folder} && {fill}")


def without_sys() -> Mounts:
    """/sys is empty."""
    return Mounts("mount -t tmpfs tmpfs /sys")


def read_only(*folders: Path) -> Mounts:
    """Nothing can be written: not to these folders, nor where programs put what they need for a while."""
    places = {*map(str, folders), "/tmp", "/var/tmp", "/usr/tmp", tempfile.gettempdir(), str(Path.cwd())}
    bound = "for d in {}; do [ ! -d $d ] || {{ mount --rbind $d $d && mount -o remount,bind,ro $d; }} || exit 1; done"
    return Mounts("mount -o remount,bind,ro / && " + bound.format(" ".join(sorted(places))))
