"""Sysroot: an arm64 Python of this machine's own release in a folder, and one root for each core to run it under.

Owns which packages and servers; fetching and unpacking are the same as for counting instructions.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from edge_sdk.errors import MissingDependencyError
from edge_sdk_tools.arm_cost import apt, core, system
from edge_sdk_tools.arm_cost.core import CORES, Core
from tests.system.arm64.cache import Cache

PACKAGES = ("python3", "libstdc++6", "libgomp1")
_UBUNTU_SOURCES = "".join(
    "deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] http://ports.ubuntu.com/ubuntu-ports "
    f"{{codename}}{pocket} main universe\n"
    for pocket in ("", "-updates", "-security")
)


class MissingPartError(Exception):
    """Something this machine lacks; the message says what."""


def make_roots(cache: Cache) -> dict[Core, Path]:
    """The root folder of each core: the same Debian below, a kernel that names another CPU on top.

    Raises:
        MissingPartError: no apt here, or it cannot fetch arm64 packages.
    """
    release = _release()
    modules = (Path(str(module.__file__)).read_bytes() for module in (apt, core, system))
    recipe = (Path(__file__).read_bytes(), *modules, repr(release).encode())
    try:
        folder = cache.folder_of("debian", recipe, lambda fresh: _fill(fresh, release))
    except MissingDependencyError as cause:
        raise MissingPartError(str(cause)) from cause
    return {each: folder / each.model for each in CORES}


def _release() -> tuple[str, str]:
    """The distribution's id and its release's code name."""
    try:
        release = platform.freedesktop_os_release()
    except OSError as cause:
        raise MissingPartError("this system has no os-release, expected Debian or Ubuntu") from cause
    return release.get("ID", ""), release.get("VERSION_CODENAME", "")


def _fill(folder: Path, release: tuple[str, str]) -> None:
    state = folder / "apt"
    fetched = apt.Apt("arm64", state, state / "archives", _sources(release)).download(PACKAGES)
    system.make_system(folder / "system", fetched)
    shutil.rmtree(state)
    for each in CORES:
        system.lay_root(folder / each.model, folder / "system", each)


def _sources(release: tuple[str, str]) -> str:
    """Debian's own servers have every architecture, Ubuntu keeps arm64 on others."""
    distribution, codename = release
    return _UBUNTU_SOURCES.format(codename=codename) if distribution == "ubuntu" else ""
