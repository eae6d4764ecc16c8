"""Wheels for the emulated board's Python, which is not this one.

Owns pip's options for another machine. Installs nothing: a wheel unpacked into a folder is all that an import needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from edge_sdk.core.errors import MissingDependencyError

_TIMEOUT_S = 1200
_NEWEST_GLIBC, _OLDEST_GLIBC = 36, 17  # Debian 12 has 2.36; manylinux2014 is 2.17
_CREDENTIALS = re.compile(r"//[^/@\s]+@")


def download_wheels(requirements: Sequence[str], python: str, folder: Path) -> list[Path]:
    """Fetch wheels for aarch64 without what they depend on; those that are in `folder` already are not fetched again.

    Args:
        requirements: each `name==version`.
        python: the minor version, such as `3.11`.
        folder: where to keep them.

    Raises:
        MissingDependencyError: pip cannot; with its own last words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)]
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [part for name in (*platforms, "manylinux2014_aarch64") for part in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--quiet", "--retries=2", *options, "--dest", str(folder), *requirements]
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    if done.returncode:
        raise MissingDependencyError(
            f"pip cannot fetch {', '.join(requirements)} for aarch64 ({_last_words(done.stderr)}); "
            "is the package index reachable?"
        )
    return [next(folder.glob(f"{name}-{version}-*.whl")) for name, version in (r.split("==") for r in requirements)]


def unpack_wheels(wheels: Iterable[Path], folder: Path) -> None:
    """Lay wheels into one folder, for PYTHONPATH.

    Raises:
        OSError: it cannot be written.
    """
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)  # zipfile keeps members inside the folder


def _last_words(text: str) -> str:
    """Pip's last error in one line, without the credentials that an index URL may carry."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return _CREDENTIALS.sub("//", (errors or lines or ["pip said nothing"])[-1])
