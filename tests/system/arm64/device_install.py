"""The device install: the folder that `pip install edge-sdk` leaves on a board, made here from aarch64 wheels.

Owns what pip cannot do for another machine: it reads environment markers as the board's Python would, not as this one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions, version
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edge_sdk.target import load_target
from tests.system.arm64.board import Board, is_native
from tests.system.arm64.cache import Cache

_SOURCES = ("edge_sdk", "tools/edge_sdk_tools", "targets")
_OLDEST_GLIBC = 17


class DeviceInstall:
    """Makes the folder for one board.

    Args:
        checkout: the folder of pyproject.toml.
        board: whose Python it is for.
        target: whose `wheel_platform` says which wheels may be taken.
    """

    def __init__(self, checkout: Path, board: Board, target: str) -> None:
        self._checkout = checkout
        self._version, self._machine = board.identify()
        self._tags = [] if is_native() else _pip_tags(self._version, load_target(target).wheel_platform)

    def make(self, cache: Cache) -> Path:
        """The site folder; from the cache when neither the sources nor the pinned versions changed."""
        settings = " ".join([self._version, self._machine, *self._tags, *self._constraints()])
        recipe = [Path(__file__).read_bytes(), settings.encode(), (self._checkout / "pyproject.toml").read_bytes()]
        sources = [part for path in self._source_files() for part in (str(path).encode(), path.read_bytes())]
        folder = cache.folder_of("device", [*recipe, *sources], lambda fresh: self._fill(fresh, cache, recipe))
        return folder / "site"

    def _fill(self, folder: Path, cache: Cache, recipe: Iterable[bytes]) -> None:
        site, scratch = folder / "site", folder / "wheel"
        _pip("wheel", "--no-deps", "--wheel-dir", str(scratch), str(self._checkout))
        [wheel] = scratch.glob("*.whl")
        self._install(site, [wheel])
        # Linked, not copied: 220 MB that stay the same while the sources change.
        others = cache.folder_of("dependencies", recipe, lambda fresh: self._install_dependencies(fresh, wheel))
        shutil.copytree(others, site, copy_function=os.link, dirs_exist_ok=True)

    def _install_dependencies(self, site: Path, wheel: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            self._download(Path(scratch), wheel)
            self._install(site, sorted(Path(scratch).glob("*.whl")))

    def _install(self, site: Path, wheels: Iterable[Path]) -> None:
        # Bytecode of this machine's Python would be of no use on the board, whose pip makes its own.
        # pip holds a wheel in a file against this machine's Python; the download held it against the board's.
        options = ("--no-deps", "--no-index", "--no-compile", "--ignore-requires-python", "--target", str(site))
        _pip("install", *options, *self._tags, *map(str, wheels))

    def _download(self, folder: Path, wheel: Path) -> None:
        """Fetch what `wheel` requires, then what that requires, until nothing new comes up."""
        pins = folder / "constraints.txt"
        pins.write_text("".join(f"{line}\n" for line in self._constraints()))
        options = ("--no-deps", "--dest", str(folder), "--constraint", str(pins), *self._tags)
        found: set[str] = set()
        pending = self._requirements_of(wheel)
        while pending := {name: text for name, text in pending.items() if name not in found}:
            _pip("download", *options, *pending.values())
            found.update(pending)
            arrived = folder.glob("*.whl")
            pending = {name: text for item in arrived for name, text in self._requirements_of(item).items()}

    def _requirements_of(self, wheel: Path) -> dict[str, str]:
        """What a wheel requires on the board: name to requirement without its marker."""
        [distribution] = distributions(path=[str(wheel)])
        return self._that_apply(distribution.requires or [])

    def _constraints(self) -> Iterable[str]:
        """The pinned versions as the board's Python reads them, but for ONNX Runtime.

        A bundle runs with the ONNX Runtime that proved it, so the board gets this machine's.
        """
        lines = (self._checkout / "constraints.txt").read_text().splitlines()
        pins = self._that_apply(line for line in lines if line and not line.startswith("#"))
        return {**pins, "onnxruntime": f"onnxruntime=={version('onnxruntime')}"}.values()

    def _that_apply(self, lines: Iterable[str]) -> dict[str, str]:
        environment = {
            **{key: str(value) for key, value in default_environment().items()},
            "python_version": ".".join(self._version.split(".")[:2]),
            "python_full_version": self._version,
            "implementation_version": self._version,
            "platform_machine": self._machine,
            "extra": "",
        }
        applying: dict[str, str] = {}
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate(environment):
                requirement.marker = None
                applying[canonicalize_name(requirement.name)] = str(requirement)
        return applying

    def _source_files(self) -> list[Path]:
        found = (path for folder in _SOURCES for path in (self._checkout / folder).rglob("*") if path.is_file())
        return sorted(path for path in found if "__pycache__" not in path.parts)


def installed(site: Path) -> dict[str, Distribution]:
    """The distributions in a site folder by canonical name."""
    return {canonicalize_name(d.metadata["Name"]): d for d in distributions(path=[str(site)])}


def sizes_mb(site: Path) -> dict[str, float]:
    """MB (of 1e6 bytes) on disk by distribution, largest first, without bytecode."""
    sizes = {name: _size_mb(distribution) for name, distribution in installed(site).items()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _size_mb(distribution: Distribution) -> float:
    paths = (Path(str(file.locate())) for file in distribution.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def _pip_tags(python: str, platform: str) -> list[str]:
    """pip's options for another machine's wheels: that platform tag and the older ones, which it also runs."""
    glibc, machine = platform.removeprefix("manylinux_2_").split("_", 1)
    platforms = [f"manylinux_2_{n}_{machine}" for n in range(int(glibc), _OLDEST_GLIBC - 1, -1)]
    platforms.append(f"manylinux2014_{machine}")
    tags = ["--only-binary=:all:", "--implementation", "cp", "--python-version", ".".join(python.split(".")[:2])]
    return [*tags, *(part for name in platforms for part in ("--platform", name))]


def _pip(verb: str, *arguments: str) -> None:
    command: Sequence[str] = (sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *arguments)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"pip {verb} failed: {done.stderr.strip()}")
