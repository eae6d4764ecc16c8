"""DebianRoot: a folder with a minimal Debian of this machine's own release, from this machine's own mirror.

The same release, so that this machine's Python finds the libraries that it was linked with.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from edge_sdk_tools.wheel import cache_folder
from tests.system.arm64.cache import Cache
from tests.system.broker import find_program

_PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "libstdc++6")
_APT = Path("/etc/apt")


class CannotRunError(Exception):
    """Something that cannot be had here: the rights, or the kernel; the message says what."""


class NotInstalledError(Exception):
    """Something that could be installed here; the message says what."""


def make_root() -> Path:
    """The folder, made once and kept in the cache; nobody may change it.

    Raises:
        CannotRunError: these tests cannot run here.
        NotInstalledError: they could.
    """
    if os.geteuid() != 0:
        raise CannotRunError("a container with a system of its own can be started by root alone")
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not _APT.is_dir() or not release:
        raise CannotRunError("this system is neither Debian nor made from it, and debootstrap makes one of those")
    for program in ("debootstrap", "systemd-nspawn", "nsenter"):
        if find_program(program) is None:
            raise NotInstalledError(f"{program} is not installed; `apt-get install debootstrap systemd-container`")
    mirror = next(_mirrors(release), None)
    if mirror is None:
        raise CannotRunError(f"no server in {_APT} has {release}")
    recipe = (release.encode(), " ".join(_PACKAGES).encode(), Path(__file__).read_bytes())
    return Cache(cache_folder() / "systemd").folder_of("root", recipe, lambda fresh: _fill(fresh, release, mirror))


def _fill(folder: Path, release: str, mirror: str) -> None:
    program = find_program("debootstrap")
    done = subprocess.run(
        [str(program), "--variant=minbase", f"--include={','.join(_PACKAGES)}", release, str(folder), mirror],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise CannotRunError(f"debootstrap could not make a system: {(done.stdout + done.stderr)[-500:]}")
    shutil.rmtree(folder / "var/cache/apt/archives", ignore_errors=True)


def _mirrors(release: str) -> Iterator[str]:
    """Servers of the release, as apt has them, in both of its formats."""
    for path in sorted(_APT.glob("sources.list.d/*.sources")):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            fields = dict(line.split(":", 1) for line in paragraph.splitlines() if ":" in line and line[:1] not in " #")
            if release in fields.get("Suites", "").split() and "main" in fields.get("Components", "").split():
                yield fields["URIs"].split()[0]
    for path in (_APT / "sources.list", *sorted(_APT.glob("sources.list.d/*.list"))):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            kind, *words = line.partition("]")[2].split() if "[" in line else line.split() or [""]
            words = words if "[" not in line else [kind, *words]
            if line.startswith("deb ") and len(words) > 2 and words[1] == release and "main" in words[2:]:
                yield words[0]
