"""Packages of Debian or Ubuntu, for any architecture, fetched and unpacked without being installed.

Owns apt-get, dpkg-deb and tar. apt gets a state of its own: nothing changes on this machine, and no root is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from edge_sdk.core.errors import MissingDependencyError

_PROGRAMS = ("apt-get", "dpkg-deb", "tar")
_TIMEOUT_S = 300
_CREDENTIALS = re.compile(r"//[^/@\s]+@")

# The hooks of this machine's own apt are cleared: they would tidy up its caches after our update.
_CONFIGURATION = """\
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true";
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::Cache "{state}";
Dir::Cache::Archives "{archives}";
"""


def require_apt() -> None:
    """Refuse a machine without the programs that this needs.

    Raises:
        MissingDependencyError: one of them is not installed.
    """
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            raise MissingDependencyError(f"{program} is not installed, expected a Debian or Ubuntu machine")


class Apt:
    """apt-get with a state of its own, for one architecture.

    Args:
        architecture: in Debian's spelling (`arm64`).
        state: an empty folder for its lists.
        archives: where packages are kept; those that are there already are not fetched again.
        sources: lines of a sources.list to use instead of this machine's own.
    """

    def __init__(self, architecture: str, state: Path, archives: Path, sources: str = "") -> None:
        require_apt()
        for folder in (state / "lists" / "partial", archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        configuration = _CONFIGURATION.format(architecture=architecture, state=state, archives=archives)
        if sources:
            (state / "sources.list").write_text(sources)
            configuration += f'Dir::Etc::SourceList "{state}/sources.list";\nDir::Etc::SourceParts "-";\n'
        (state / "apt.conf").write_text(configuration)
        self._command = ["apt-get", "-c", str(state / "apt.conf"), "-qq"]
        self._archives = archives

    def download(self, packages: Sequence[str]) -> list[Path]:
        """Fetch packages (`name` or `name=version`) and all they depend on.

        Raises:
            MissingDependencyError: apt cannot; with its own last words.
            OSError: the disk is full.
        """
        # A third party's source that lacks this architecture fails here and does not matter: what is needed decides.
        subprocess.run([*self._command, "update"], check=False, capture_output=True, timeout=_TIMEOUT_S)
        # What an earlier attempt left and the server has replaced since.
        subprocess.run([*self._command, "autoclean"], check=False, capture_output=True, timeout=_TIMEOUT_S)
        install = [*self._command, "install", "--yes", "--download-only", *packages]
        done = subprocess.run(install, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode:
            complaint = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise MissingDependencyError(
                f"apt-get cannot fetch {', '.join(packages)} ({_CREDENTIALS.sub('//', complaint)}); "
                "is the package server reachable?"
            )
        return sorted(self._archives.glob("*.deb"))


def unpack(archive: Path, folder: Path) -> None:
    """Add one package to `folder`, through links such as `lib` to `usr/lib`, which `dpkg-deb -x` would replace.

    Raises:
        OSError: it cannot be unpacked.
    """
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as reading:
        tar = ["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", str(folder)]
        done = subprocess.run(
            tar, stdin=reading.stdout, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    if reading.returncode or done.returncode:
        words = done.stderr.strip().splitlines() or [f"dpkg-deb ended with {reading.returncode}"]
        raise OSError(f"{archive.name}: {words[0]}")
