"""Fetch and unpack packages of Debian or Ubuntu for any architecture, without installing them.

The module runs apt-get, dpkg-deb and tar. apt gets a state folder of its own, so that nothing changes on this machine
and root is not needed.
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

# The hooks of this machine's own apt are cleared, because they would clean its caches after this update.
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
    """Check that apt-get, dpkg-deb and tar are installed.

    Raises:
        MissingDependencyError: one of them is not installed.
    """
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            raise MissingDependencyError(f"{program} is not installed, expected a Debian or Ubuntu machine")


class Apt:
    """apt-get with a state folder of its own, for one architecture.

    Args:
        architecture: the architecture in Debian's spelling (`arm64`).
        state: an empty folder for apt's package lists.
        archives: folder for packages; packages that it already has are not fetched again.
        sources: lines of a sources.list to use instead of this machine's own; empty for this machine's.
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
            MissingDependencyError: apt cannot fetch the packages; the message has the last line that apt printed.
            OSError: the disk is full.
        """
        # Errors are ignored: a third party's source may lack this architecture. The installation below decides.
        subprocess.run([*self._command, "update"], check=False, capture_output=True, timeout=_TIMEOUT_S)
        # Remove packages of an earlier attempt that the server has replaced since.
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
    """Unpack one package into `folder`; follow links such as `lib` to `usr/lib`, which `dpkg-deb -x` would replace.

    Raises:
        OSError: the package cannot be unpacked.
    """
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as reading:
        tar = ["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", str(folder)]
        done = subprocess.run(
            tar, stdin=reading.stdout, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    if reading.returncode or done.returncode:
        words = done.stderr.strip().splitlines() or [f"dpkg-deb ended with {reading.returncode}"]
        raise OSError(f"{archive.name}: {words[0]}")
