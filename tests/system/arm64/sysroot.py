"""Sysroot: a Debian arm64 Python in a folder, and one root for each core to run it under.

Owns apt and dpkg-deb. apt gets a state of its own: nothing is installed on this machine, and no root is needed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from tests.system.arm64 import cores
from tests.system.arm64.cache import Cache
from tests.system.arm64.cores import CORES, Core

PACKAGES = ("python3", "libstdc++6", "libgomp1")
_PROGRAMS = ("apt-get", "dpkg-deb", "tar")
_MERGED = ("bin", "lib", "sbin")

# The hooks of this machine's own apt are cleared: they would tidy up its caches after our update.
_APT_CONF = """\
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true";
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::Cache "{state}";
"""
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
    recipe = (Path(__file__).read_bytes(), Path(cores.__file__).read_bytes(), repr(release).encode())
    folder = cache.folder_of("debian", recipe, lambda fresh: _fill(fresh, release))
    return {core: folder / core.model for core in CORES}


def _release() -> tuple[str, str]:
    """The distribution's id and its release's code name."""
    try:
        release = platform.freedesktop_os_release()
    except OSError as cause:
        raise MissingPartError("this system has no os-release, expected Debian or Ubuntu") from cause
    return release.get("ID", ""), release.get("VERSION_CODENAME", "")


def _fill(folder: Path, release: tuple[str, str]) -> None:
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            raise MissingPartError(f"{program} is not installed, expected a Debian or Ubuntu machine")
    state = folder / "apt"
    system = folder / "system"
    for name in _MERGED:
        (system / "usr" / name).mkdir(parents=True)
        (system / name).symlink_to(f"usr/{name}")
    for archive in _download(state, release):
        _unpack(archive, system)
    shutil.rmtree(state)
    for core in CORES:
        _lay_root(folder / core.model, system, core)


def _download(state: Path, release: tuple[str, str]) -> list[Path]:
    """Fetch the packages and all they depend on."""
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    config = state / "apt.conf"
    config.write_text(_APT_CONF.format(state=state) + _sources(state, release))
    apt = ["apt-get", "-c", str(config), "-qq"]
    # A third party's source that serves no arm64 fails here and does not matter: what is needed decides below.
    subprocess.run([*apt, "update"], check=False, capture_output=True, timeout=300)
    _run([*apt, "install", "--yes", "--download-only", *PACKAGES])
    return sorted((state / "archives").glob("*.deb"))


def _sources(state: Path, release: tuple[str, str]) -> str:
    """Extra configuration: Debian's own servers have every architecture, Ubuntu keeps arm64 on others."""
    system, codename = release
    if system != "ubuntu":
        return ""
    listing = state / "sources.list"
    listing.write_text(_UBUNTU_SOURCES.format(codename=codename))
    return f'Dir::Etc::SourceList "{listing}";\nDir::Etc::SourceParts "-";\n'


def _unpack(archive: Path, system: Path) -> None:
    """Add one package; the links from /lib to /usr/lib, which newer releases need, would not survive `dpkg-deb -x`."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as reading:
        tar = ["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", str(system)]
        subprocess.run(tar, stdin=reading.stdout, check=True, timeout=300)
    if reading.returncode:
        raise RuntimeError(f"{archive.name}: dpkg-deb failed with {reading.returncode}")


def _lay_root(root: Path, system: Path, core: Core) -> None:
    root.mkdir()
    for entry in system.iterdir():
        (root / entry.name).symlink_to(os.path.relpath(entry, root))
    for name, text in core.files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        complaint = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MissingPartError(f"{command[0]} failed, is the package server reachable? {complaint}")
